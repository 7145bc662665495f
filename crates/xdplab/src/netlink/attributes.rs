//! Reading and writing netlink attributes that no packet crate knows.

use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED, NlaBuffer, NlasIterator};

/// A run of netlink attributes as the kernel sent it. What is cut off or has another size than its reader expects
/// counts as absent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Every attribute as its type and value.
    pub(super) fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        NlasIterator::new(self.0).map_while(Result::ok).map(|nla: NlaBuffer<&'a [u8]>| {
            let value = &nla.into_inner()[4..usize::from(nla.length())];
            (nla.kind(), value)
        })
    }

    pub(super) fn bytes(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(found, _)| *found == kind).map(|(_, value)| value)
    }

    pub(super) fn has(self, kind: u16) -> bool {
        self.bytes(kind).is_some()
    }

    pub(super) fn nested(self, kind: u16) -> Option<Attributes<'a>> {
        self.bytes(kind).map(Attributes)
    }

    pub(super) fn string(self, kind: u16) -> Option<String> {
        let text = String::from_utf8_lossy(self.bytes(kind)?);
        Some(text.trim_end_matches('\0').to_owned())
    }

    pub(super) fn u16(self, kind: u16) -> Option<u16> {
        self.bytes(kind)?.try_into().ok().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(self, kind: u16) -> Option<u32> {
        self.bytes(kind)?.try_into().ok().map(u32::from_ne_bytes)
    }

    /// A number of 4 or 8 bytes: the kernel's `uint` type is as short as its value allows.
    pub(super) fn uint(self, kind: u16) -> Option<u64> {
        let bytes = self.bytes(kind)?;
        bytes.try_into().ok().map(u64::from_ne_bytes).or_else(|| self.u32(kind).map(u64::from))
    }
}

/// An attribute holding a number.
pub(super) fn u32_attribute(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

/// An attribute holding a text, ended by NUL as the kernel wants it.
pub(super) fn string_attribute(kind: u16, text: &str) -> DefaultNla {
    DefaultNla::new(kind, [text.as_bytes(), &[0]].concat())
}

/// An attribute that says yes by being there.
pub(super) fn flag_attribute(kind: u16) -> DefaultNla {
    DefaultNla::new(kind, Vec::new())
}

/// An attribute that holds others.
pub(super) fn nested_attribute(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    DefaultNla::new(kind | NLA_F_NESTED, bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_written_is_read_back() {
        let written = nested_attribute(9, &[u32_attribute(1, 7), string_attribute(2, "dut0"), flag_attribute(3)]);
        let mut bytes = vec![0; written.buffer_len()];
        written.emit(&mut bytes);
        let read = Attributes::new(&bytes).nested(9).unwrap();
        assert_eq!(read.u32(1), Some(7));
        assert_eq!(read.uint(1), Some(7));
        assert_eq!(read.string(2).as_deref(), Some("dut0"));
        assert!(read.has(3));
        assert!(!read.has(4));
        assert_eq!(read.u16(1), None, "a value of another size is absent");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>, kind: u16) {
            let attributes = Attributes::new(&bytes);
            let read = attributes.iter().map(|(_, value)| value.len()).sum::<usize>();
            prop_assert!(read <= bytes.len());
            prop_assert_eq!(attributes.uint(kind).is_some(), attributes.bytes(kind).is_some_and(|v| [4, 8].contains(&v.len())));
        }
    }
}
