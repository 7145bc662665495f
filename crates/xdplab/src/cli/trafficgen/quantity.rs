//! Numbers of bytes as typed.

/// A number, with a unit of 1000s (`10k`, `1.5M`, `2G`) or of 1024s (`64Ki`, `1Mi`, `1Gi`).
pub(super) fn quantity(text: &str) -> Result<u64, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let factor = match unit {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        _ => return Err(format!("{unit:?} is none of k, M, G, Ki, Mi, Gi")),
    };
    let exact = number.parse::<u64>().ok().filter(|_| unit.is_empty());
    let value = number.parse::<f64>().map_err(|_no_number| "no number".to_owned())? * factor;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 2^63")]
    match exact {
        Some(exact) if exact > 0 => Ok(exact),
        _ if (1.0..9.2e18).contains(&value) => Ok(value as u64),
        _ => Err("not from 1 up".into()),
    }
}

/// The same where there can be no list of sizes.
pub(super) fn one_size(text: &str) -> Result<u64, String> {
    if text == "imix" || text.contains(',') || text.contains("..") {
        return Err("a stream and a batch have one size; udp and xsk-udp send sizes in turn".into());
    }
    quantity(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_turn_are_another_command_s() {
        assert_eq!(one_size("1.5k"), Ok(1_500));
        for list in ["imix", "64,128", "64..128"] {
            assert!(one_size(list).unwrap_err().contains("udp and xsk-udp"), "{list}");
        }
    }

    #[test]
    fn units_are_of_thousands_or_of_1024s() {
        let all = ["1", "1500", "10k", "1.5M", "2G", "64Ki", "1Mi", "2Gi", "9007199254740993"];
        let expected =
            [1, 1500, 10_000, 1_500_000, 2_000_000_000, 65_536, 1_048_576, 2_147_483_648, 9_007_199_254_740_993];
        assert_eq!(all.map(|text| quantity(text).unwrap()), expected);
        for bad in ["", "0", "-1", "k", "1kB", "1.2.3", "1e30G", "nan"] {
            assert!(quantity(bad).is_err(), "{bad}");
        }
    }
}
