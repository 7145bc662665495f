//! Slices in the record: a column for each field, which is lossless and half the size of a row for each slice.
//!
//! Starts are written as the gap to the slice before, and the columns that hardly change as runs of equal values.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::stats::Slice;

#[derive(Serialize, Deserialize)]
struct Columns {
    /// Start minus the previous slice's start, wrapping, in nanoseconds; the first is the start itself.
    start_step_ns: Vec<u64>,
    duration_ns: Vec<u64>,
    block: Vec<u32>,
    variant: Vec<u16>,
    copy: Vec<u16>,
    slot: Vec<u16>,
    packets_runs: Vec<(u32, u32)>,
    cpu_runs: Vec<(u16, u32)>,
}

/// Writes slices as columns.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(slices: &[Slice], serializer: S) -> Result<S::Ok, S::Error> {
    let mut previous = 0;
    let columns = Columns {
        start_step_ns: slices
            .iter()
            .map(|slice| slice.start_ns.wrapping_sub(std::mem::replace(&mut previous, slice.start_ns)))
            .collect(),
        duration_ns: slices.iter().map(|slice| slice.stop_ns.wrapping_sub(slice.start_ns)).collect(),
        block: slices.iter().map(|slice| slice.block).collect(),
        variant: slices.iter().map(|slice| slice.variant).collect(),
        copy: slices.iter().map(|slice| slice.copy).collect(),
        slot: slices.iter().map(|slice| slice.slot).collect(),
        packets_runs: runs(slices.iter().map(|slice| slice.packets)),
        cpu_runs: runs(slices.iter().map(|slice| slice.cpu)),
    };
    columns.serialize(serializer)
}

/// Reads slices from columns.
///
/// # Errors
/// The columns are of different lengths, or the deserializer's.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Slice>, D::Error> {
    let columns = Columns::deserialize(deserializer)?;
    let length = columns.start_step_ns.len();
    let packets = spread(&columns.packets_runs, length).map_err(D::Error::custom)?;
    let cpu = spread(&columns.cpu_runs, length).map_err(D::Error::custom)?;
    let lengths =
        [columns.duration_ns.len(), columns.block.len(), columns.variant.len(), columns.copy.len(), columns.slot.len()];
    if lengths.iter().any(|other| *other != length) {
        return Err(D::Error::custom("the columns of slices have different lengths"));
    }
    let mut start_ns = 0u64;
    Ok((0..length)
        .map(|index| {
            start_ns = start_ns.wrapping_add(columns.start_step_ns[index]);
            Slice {
                start_ns,
                stop_ns: start_ns.wrapping_add(columns.duration_ns[index]),
                packets: packets[index],
                cpu: cpu[index],
                variant: columns.variant[index],
                copy: columns.copy[index],
                slot: columns.slot[index],
                block: columns.block[index],
            }
        })
        .collect())
}

fn runs<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<(T, u32)> {
    let mut runs: Vec<(T, u32)> = Vec::new();
    for value in values {
        match runs.last_mut() {
            Some((last, count)) if *last == value && *count < u32::MAX => *count += 1,
            _ => runs.push((value, 1)),
        }
    }
    runs
}

/// The values of runs; an error where they are not `length` in all, checked before memory is taken for them.
fn spread<T: Copy>(runs: &[(T, u32)], length: usize) -> Result<Vec<T>, &'static str> {
    let total: u64 = runs.iter().map(|(_, count)| u64::from(*count)).sum();
    if total != length as u64 {
        return Err("a column of runs has another length than the others");
    }
    Ok(runs.iter().flat_map(|(value, count)| std::iter::repeat_n(*value, *count as usize)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder(#[serde(with = "super")] Vec<Slice>);

    fn any_slice() -> impl Strategy<Value = Slice> {
        (any::<u64>(), any::<u64>(), any::<u32>(), any::<[u16; 4]>(), any::<u32>()).prop_map(
            |(start_ns, stop_ns, packets, [cpu, variant, copy, slot], block)| Slice {
                start_ns,
                stop_ns,
                packets,
                cpu,
                variant,
                copy,
                slot,
                block,
            },
        )
    }

    proptest! {
        #[test]
        fn slices_come_back_bit_for_bit(slices in proptest::collection::vec(any_slice(), 0..50)) {
            let json = serde_json::to_string(&Holder(slices.clone())).unwrap();
            prop_assert_eq!(serde_json::from_str::<Holder>(&json).unwrap(), Holder(slices));
        }
    }

    #[test]
    fn columns_that_do_not_fit_together_are_refused_without_taking_memory() {
        let huge = r#"{"start_step_ns":[1],"duration_ns":[1],"block":[0],"variant":[0],"copy":[0],"slot":[0],
            "packets_runs":[[1024,4000000000],[1024,4000000000]],"cpu_runs":[[0,1]]}"#;
        assert!(serde_json::from_str::<Holder>(huge).unwrap_err().to_string().contains("another length"));
        let short = huge
            .replace("[[1024,4000000000],[1024,4000000000]]", "[[1024,1]]")
            .replace("\"block\":[0]", "\"block\":[]");
        assert!(serde_json::from_str::<Holder>(&short).unwrap_err().to_string().contains("different lengths"));
    }
}
