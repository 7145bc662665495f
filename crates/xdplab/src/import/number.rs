//! Numbers as people's tools write them: with thousands separators or without, with decimal points or commas.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number with the precision it was written in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stated {
    /// Its value.
    pub value: f64,
    /// What one unit of the last digit written stands for, e.g. 0.01 for `16.00`, 1000 for `62.338M`.
    pub step: f64,
}

/// Whole numbers up to here are exact in an `f64`; a longer one is refused instead of being rounded.
const EXACT: u64 = 1 << 53;

impl Stated {
    /// A whole number, its thousands set apart by any separator or by none.
    pub(super) fn integer(text: &str) -> Option<Self> {
        digits(text, "")
    }

    /// A number of the C or en_US locale: `1,234,567`, `16.00`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').map_or((text, ""), |(whole, fraction)| (whole, fraction));
        let fits = whole.bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
            && fraction.is_empty() != text.contains('.');
        if fits { digits(whole, fraction) } else { None }
    }

    /// A number that has decimals, in any locale: its last separator stands before them.
    pub(super) fn with_decimals(text: &str) -> Option<Self> {
        match text.rsplit_once(['.', ',']) {
            Some((whole, fraction)) if !fraction.is_empty() => digits(whole, fraction),
            Some(_) => None,
            None => digits(text, ""),
        }
    }

    /// The number in units that are `by` times smaller.
    pub(super) fn scaled(self, by: f64) -> Self {
        // From the digits as written, so that 62.338 million is 62,338,000 and not a bit more.
        let step = self.step * by;
        Self { value: (self.value / self.step).round() * step, step }
    }
}

fn digits(whole: &str, fraction: &str) -> Option<Stated> {
    let mut mantissa: u64 = 0;
    let mut take = |digit: u32| {
        mantissa = mantissa.checked_mul(10)?.checked_add(u64::from(digit)).filter(|&value| value <= EXACT)?;
        Some(())
    };
    let mut separator = None;
    let mut since_separator = 0;
    for character in whole.chars() {
        if let Some(digit) = character.to_digit(10) {
            take(digit)?;
            since_separator += 1;
            continue;
        }
        let group_ends = since_separator == 3 || (separator.is_none() && (1..=3).contains(&since_separator));
        let separates = matches!(character, ',' | '.' | '\'' | '’' | '\u{a0}' | '\u{202f}');
        if !separates || !group_ends || separator.is_some_and(|known| known != character) {
            return None;
        }
        separator = Some(character);
        since_separator = 0;
    }
    if since_separator == 0 || (separator.is_some() && since_separator != 3) {
        return None;
    }
    for character in fraction.chars() {
        take(character.to_digit(10)?)?;
    }
    let decimals = i32::try_from(fraction.len()).ok()?;
    Some(Stated { value: mantissa as f64 / 10f64.powi(decimals), step: 10f64.powi(-decimals) })
}

impl fmt::Display for Stated {
    /// With the digits it was written in, thousands set apart by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.step.log10().ceil() as i32;
        let (value, decimals, suffix) = match place {
            ..=0 => (self.value, place.unsigned_abs(), ""),
            1..=3 => (self.value / 1e3, 3 - place.unsigned_abs(), "k"),
            _ => (self.value / 1e6, 6u32.saturating_sub(place.unsigned_abs()), "M"),
        };
        let text = format!("{:.*}", decimals as usize, value);
        let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
        let mut grouped = String::new();
        for (index, digit) in whole.chars().enumerate() {
            if index > 0 && (whole.len() - index).is_multiple_of(3) && !grouped.ends_with('-') {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        f.pad(&format!("{grouped}{fraction}{suffix}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(value: f64, step: f64) -> Option<Stated> {
        Some(Stated { value, step })
    }

    #[test]
    fn thousands_may_be_set_apart_by_anything_but_in_threes() {
        for text in
            ["4960778583", "4,960,778,583", "4.960.778.583", "4'960'778'583", "4\u{202f}960\u{202f}778\u{202f}583"]
        {
            assert_eq!(Stated::integer(text), number(4_960_778_583.0, 1.0), "{text}");
        }
        for text in ["", ",", "1,23", "1,2345", "1,234.567", ",123", "1,234,", "12a", "-1", "1234,567"] {
            assert_eq!(Stated::integer(text), None, "{text}");
        }
    }

    #[test]
    fn decimals_keep_the_precision_they_were_written_in() {
        assert_eq!(Stated::parse("16.00"), number(16.0, 0.01));
        assert_eq!(Stated::parse("4,654.91"), number(4654.91, 0.01));
        assert_eq!(Stated::with_decimals("4.654,91"), number(4654.91, 0.01));
        assert_eq!(Stated::with_decimals("0,02"), number(0.02, 0.01));
        for text in ["1.", ".5", "1.2.3", "1,2", "nan", "1e5"] {
            assert_eq!(Stated::parse(text), None, "{text}");
        }
        assert_eq!(Stated::parse("62.338").unwrap().scaled(1e6), Stated { value: 62_338_000.0, step: 1000.0 });
    }

    #[test]
    fn a_number_that_an_f64_would_round_is_refused() {
        assert_eq!(Stated::integer("9007199254740992"), number(9_007_199_254_740_992.0, 1.0));
        assert_eq!(Stated::integer("9007199254740993"), None);
    }

    #[test]
    fn the_digits_as_written_are_shown_again() {
        assert_eq!(Stated::integer("16105461").unwrap().to_string(), "16,105,461");
        assert_eq!(Stated::parse("16.00").unwrap().to_string(), "16.00");
        assert_eq!(Stated::parse("62.338").unwrap().scaled(1e6).to_string(), "62,338k");
        assert_eq!(Stated::parse("2.1").unwrap().scaled(1e6).to_string(), "2.1M");
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_as_the_same_number(digits in 0u64..1_000_000_000, decimals in 0usize..6) {
            let value = Stated::parse(&format!("{digits}.{:01$}", 0, decimals.max(1)));
            prop_assume!(value.is_some());
            let value = value.unwrap();
            prop_assert_eq!(Stated::parse(&value.to_string()), Some(value));
        }
    }
}
