//! The Internet checksum: whole (RFC 1071) and by difference (RFC 1624).

/// The Internet checksum of the concatenated `parts` (RFC 1071): the one's complement of the one's complement sum of
/// 16-bit big-endian words, a last odd byte padded with zero. 0 over data that holds its own correct checksum.
///
/// Each part but the last must have an even length, so that words do not straddle parts.
#[must_use]
pub fn internet(parts: &[&[u8]]) -> u16 {
    !fold(parts.iter().copied().map(sum_words).sum())
}

/// The UDP checksum of the concatenated `parts` (pseudo header, UDP header with a checksum of 0, payload): as
/// [`internet`], but 0 becomes 0xffff, because 0 in the field says "no checksum" (RFC 768; forbidden over IPv6 by
/// RFC 8200, section 8.1).
#[must_use]
pub fn udp(parts: &[&[u8]]) -> u16 {
    never_zero(internet(parts))
}

/// The checksum after one 16-bit word of the covered data changed from `old` to `new`, without reading the rest:
/// `HC' = ~(~HC + ~m + m')` (RFC 1624, equation 3).
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// As [`update`] for a UDP checksum, which is never 0 (see [`udp`]). `checksum` must not be 0 ("no checksum") either.
#[must_use]
pub fn update_udp(checksum: u16, old: u16, new: u16) -> u16 {
    never_zero(update(checksum, old, new))
}

/// A UDP checksum as it is sent: 0 becomes 0xffff (see [`udp`]).
#[must_use]
pub fn never_zero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

fn sum_words(bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let last = odd.first().map_or(0, |&byte| u64::from(byte) << 8);
    words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum::<u64>() + last
}

pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_rfc_1071_sums_to_ddf2() {
        assert_eq!(internet(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624_ends_in_zero_where_rfc_1141_gave_ffff() {
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn an_odd_last_byte_counts_as_the_high_byte() {
        assert_eq!(internet(&[&[0x12, 0x34, 0x56]]), !(0x1234 + 0x5600));
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_ffff() {
        assert_eq!(internet(&[&[0xff, 0xff]]), 0);
        assert_eq!(udp(&[&[0xff, 0xff]]), 0xffff);
    }

    proptest! {
        #[test]
        fn an_update_by_difference_agrees_with_the_whole_checksum(
            mut words in prop::collection::vec(any::<u16>(), 2..40),
            index in any::<prop::sample::Index>(),
            new in any::<u16>(),
        ) {
            words[0] |= 1; // an IP header or UDP pseudo header is never all zero
            let bytes = |words: &[u16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
            let index = 1 + index.index(words.len() - 1);
            let before = bytes(&words);
            let old = std::mem::replace(&mut words[index], new);
            let after = bytes(&words);
            prop_assert_eq!(update(internet(&[&before]), old, new), internet(&[&after]));
            prop_assert_eq!(update_udp(udp(&[&before]), old, new), udp(&[&after]));
        }

        #[test]
        fn data_that_holds_its_checksum_sums_to_zero(mut words in prop::collection::vec(any::<u16>(), 1..40)) {
            words.push(0);
            let bytes = |words: &[u16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
            let checksum = internet(&[&bytes(&words)]);
            *words.last_mut().unwrap() = checksum;
            prop_assert_eq!(internet(&[&bytes(&words)]), 0);
        }
    }
}
