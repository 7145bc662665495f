//! What is changed in an object's type information (BTF, Documentation/bpf/btf.rst) before the loader reads it.

use std::collections::BTreeMap;
use std::ops::Range;

/// Kinds of types, include/uapi/linux/btf.h.
mod kind {
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const ENUM64: u32 = 19;
}

/// `struct btf_type` before what follows it.
const TYPE_LEN: usize = 12;
/// `struct btf_member`, `struct btf_var_secinfo`.
const ENTRY_LEN: usize = 12;
/// `BTF_MAGIC`
const MAGIC: u16 = 0xeb9f;

fn read(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn write(bytes: &mut [u8], at: usize, value: u32) -> Option<()> {
    bytes.get_mut(at..at.checked_add(4)?)?.copy_from_slice(&value.to_ne_bytes());
    Some(())
}

/// Names that an object need not have, which are put behind its own.
const VALUE: &[u8] = b"value\0";
const VALUE_SIZE: &[u8] = b"value_size\0";

/// A copy of a `.BTF` section with our names behind its own; `None` where names are not last in it.
pub(super) fn with_names(bytes: &[u8]) -> Option<Vec<u8>> {
    let (offset, len) = (read(bytes, 16)?, read(bytes, 20)?);
    if (read(bytes, 4)?.checked_add(offset)?.checked_add(len)?) as usize != bytes.len() {
        return None;
    }
    let mut bytes = [bytes, VALUE, VALUE_SIZE].concat();
    write(&mut bytes, 20, len.checked_add((VALUE.len() + VALUE_SIZE.len()) as u32)?)?;
    Some(bytes)
}

/// A table of programs that an object has programs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// Where its first entry is within the map's symbol, in bytes.
    pub(super) entries_at: u64,
    /// Its size; 0 where the object does not say it.
    pub(super) max_entries: u32,
}

/// A `.BTF` section with the places of its types.
pub(super) struct Btf<'a> {
    bytes: &'a mut [u8],
    strings: Range<usize>,
    /// Where type 1 and all after it begin.
    types: Vec<usize>,
}

impl<'a> Btf<'a> {
    /// Finds the types; `None` where the section is not as it should be.
    pub(super) fn parse(bytes: &'a mut [u8]) -> Option<Self> {
        if bytes.get(..2)? != MAGIC.to_ne_bytes() {
            return None;
        }
        let place = |offset_at, len_at| {
            let start = (read(bytes, 4)?.checked_add(read(bytes, offset_at)?)?) as usize;
            let end = start.checked_add(read(bytes, len_at)? as usize)?;
            (end <= bytes.len()).then_some(start..end)
        };
        let (of_types, strings) = (place(8, 12)?, place(16, 20)?);
        let mut types = Vec::new();
        let mut at = of_types.start;
        while at < of_types.end {
            types.push(at);
            at = at.checked_add(len(read(bytes, at + 4)?)?)?;
        }
        let btf = Self { bytes, strings, types };
        (at == of_types.end && btf.names_are_there()?).then_some(btf)
    }

    /// Whether every name lies within the strings, which the loader trusts.
    fn names_are_there(&self) -> Option<bool> {
        for at in &self.types {
            let step = match self.kind(*at)? {
                kind::STRUCT | kind::UNION | kind::ENUM64 => ENTRY_LEN,
                kind::ENUM | kind::FUNC_PROTO => 8,
                _ => 0,
            };
            let named = if step > 0 { (self.read(at + 4)? & 0xffff) as usize } else { 0 };
            let entries = (0..named).map(|index| at + TYPE_LEN + index * step);
            for place in [*at].into_iter().chain(entries) {
                if self.read(place)? as usize >= self.strings.len() {
                    return Some(false);
                }
            }
        }
        // A name at the end must end too.
        Some(self.bytes.get(self.strings.clone())?.last() == Some(&0))
    }

    fn read(&self, at: usize) -> Option<u32> {
        read(self.bytes, at)
    }

    /// The name that begins at `offset` of the strings.
    pub(super) fn name(&self, offset: u32) -> Option<&[u8]> {
        let strings = self.bytes.get(self.strings.clone())?.get(offset as usize..)?;
        strings.split(|byte| *byte == 0).next()
    }

    fn kind(&self, at: usize) -> Option<u32> {
        Some(self.read(at + 4)? >> 24 & 0x1f)
    }

    fn entries(&self, at: usize) -> Option<impl Iterator<Item = usize> + use<>> {
        let count = (self.read(at + 4)? & 0xffff) as usize;
        Some((0..count).map(move |index| at + TYPE_LEN + index * ENTRY_LEN))
    }

    /// The type with this number, behind names and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<usize> {
        // As many steps as there are types: a circle ends too.
        for _ in &self.types {
            let at = *self.types.get((id as usize).checked_sub(1)?)?;
            match self.kind(at)? {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT => id = self.read(at + 8)?,
                _ => return Some(at),
            }
        }
        None
    }

    /// Makes the definitions of maps such that the loader takes them; the section is one of [`with_names`]. No map is pinned,
    /// since each copy of a program has maps of its own and leaves none behind. Tables of programs lose what the loader does
    /// not know, the programs in them, and their size makes room for their value's, which is that of their key; both are in
    /// the answer.
    pub(super) fn prepare_maps(&mut self) -> Option<BTreeMap<String, Table>> {
        let mut tables = BTreeMap::new();
        for at in self.types.clone() {
            if self.kind(at)? != kind::DATASEC || self.name(self.read(at)?)? != b".maps" {
                continue;
            }
            for entry in self.entries(at)? {
                let variable = self.resolve(self.read(entry)?)?;
                if self.kind(variable)? != kind::VAR {
                    return None;
                }
                let name = String::from_utf8_lossy(self.name(self.read(variable)?)?).into_owned();
                if let Some(table) = self.prepare_map(self.resolve(self.read(variable + 8)?)?)? {
                    tables.insert(name, table);
                }
            }
        }
        Some(tables)
    }

    fn prepare_map(&mut self, at: usize) -> Option<Option<Table>> {
        let mut table = None;
        if self.kind(at)? != kind::STRUCT {
            return None;
        }
        for member in self.entries(at)? {
            let name = self.name(self.read(member)?)?;
            let is_programs = name == b"values" && self.is_programs(self.read(member + 4)?)?;
            if is_programs {
                table = Some(Table { entries_at: u64::from(self.read(member + 8)? / 8), max_entries: 0 });
            }
            if is_programs || name == b"pinning" {
                // The loader goes by names; a member without one is none of its business.
                write(self.bytes, member, 0)?;
            }
        }
        if let (Some(table), Some(member)) = (&mut table, self.member(at, b"max_entries")?) {
            table.max_entries = self.pointed_len(self.read(member + 4)?)?;
            let (name, type_id) = self.value_like_key(at)?;
            write(self.bytes, member, name)?;
            write(self.bytes, member + 4, type_id)?;
        }
        Some(table)
    }

    fn member(&self, at: usize, wanted: &[u8]) -> Option<Option<usize>> {
        for member in self.entries(at)? {
            if self.name(self.read(member)?)? == wanted {
                return Some(Some(member));
            }
        }
        Some(None)
    }

    /// Name and type that make a member of the map at `at` say about its value what another one says about its key.
    fn value_like_key(&self, at: usize) -> Option<(u32, u32)> {
        let value = (self.strings.len() - VALUE.len() - VALUE_SIZE.len()) as u32;
        let value_size = value + VALUE.len() as u32;
        let by_type = self.member(at, b"key")?.map(|member| (value, member));
        let (name, member) = by_type.or(self.member(at, b"key_size")?.map(|member| (value_size, member)))?;
        Some((name, self.read(member + 4)?))
    }

    /// The number that a member of a map's definition stands for: the length of an array that it points to.
    fn pointed_len(&self, id: u32) -> Option<u32> {
        let array = self.resolve(self.read(self.resolve(id)? + 8)?)?;
        if self.kind(array)? == kind::ARRAY { self.read(array + TYPE_LEN + 8) } else { None }
    }

    /// Whether the type is an array of pointers to functions.
    fn is_programs(&self, id: u32) -> Option<bool> {
        let array = self.resolve(id)?;
        if self.kind(array)? != kind::ARRAY {
            return Some(false);
        }
        let pointer = self.resolve(self.read(array + TYPE_LEN)?)?;
        if self.kind(pointer)? != kind::PTR {
            return Some(false);
        }
        // A pointer to void has no type behind it.
        Some(self.resolve(self.read(pointer + 8)?).is_some_and(|at| self.kind(at) == Some(kind::FUNC_PROTO)))
    }
}

/// Bytes of a type whose second word is `info`; `None` for a kind that is not known.
fn len(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    let more = match info >> 24 & 0x1f {
        // An integer's encoding, a variable's linkage, a tag's component.
        1 | kind::VAR | 17 => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => count * ENTRY_LEN,
        kind::ENUM | kind::FUNC_PROTO => count * 8,
        kind::PTR | 7 | kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | 12 | 16 | 18 => 0,
        _ => return None,
    };
    Some(TYPE_LEN + more)
}

/// Lists of a `.BTF.ext` section by the place of their offset and length in its header (`struct btf_ext_header`,
/// tools/lib/bpf/libbpf_internal.h): functions, lines and CO-RE relocations, which older objects end before.
const FUNCTIONS: usize = 8;
const LINES: usize = 16;
const RELOCATIONS: usize = 24;

/// What a list says about the instructions of one section: the section's name, and records that begin with the byte offset of
/// an instruction.
struct Block<'a> {
    name: u32,
    records: Vec<&'a [u8]>,
}

/// The place of a list in the section; `None` where there is none.
fn list_at(ext: &[u8], list: usize) -> Option<Option<Range<usize>>> {
    let header = read(ext, 4)? as usize;
    if header < list + 8 || read(ext, list + 4)? == 0 {
        return Some(None);
    }
    let start = header.checked_add(read(ext, list)? as usize)?;
    let end = start.checked_add(read(ext, list + 4)? as usize)?;
    (end <= ext.len()).then_some(Some(start..end))
}

/// The blocks of the list in `list`, which begins with the length of its records.
fn blocks(list: &[u8]) -> Option<Vec<Block<'_>>> {
    let len = read(list, 0)? as usize;
    let mut blocks = Vec::new();
    let mut at = 4;
    while at < list.len() {
        let count = read(list, at + 4)? as usize;
        let end = count.checked_mul(len)?.checked_add(at + 8)?;
        let records = list.get(at + 8..end)?;
        blocks.push(Block { name: read(list, at)?, records: records.chunks_exact(len.max(1)).collect() });
        at = end;
    }
    (8..1024).contains(&len).then_some(blocks)
}

/// Leaves in a `.BTF.ext` section only those CO-RE relocations of which `keep` holds, by section name and byte offset of the
/// instruction; those of programs that are not loaded can't fail the load then. `None` where the section is not as it
/// should be.
pub(super) fn keep_relocations(ext: &mut [u8], btf: &Btf<'_>, keep: impl Fn(&[u8], u64) -> bool) -> Option<()> {
    if ext.get(..2)? != MAGIC.to_ne_bytes() {
        return None;
    }
    for list in [FUNCTIONS, LINES, RELOCATIONS] {
        let Some(range) = list_at(ext, list)? else { continue };
        // The loader trusts the names to be there.
        blocks(&ext[range])?.iter().try_for_each(|block| btf.name(block.name).map(|_| ()))?;
    }
    let Some(range) = list_at(ext, RELOCATIONS)? else { return Some(()) };
    let mut kept = ext[range.start..range.start + 4].to_vec();
    for Block { name, records } in blocks(&ext[range.clone()])? {
        let section = btf.name(name)?;
        let wanted = |record: &&&[u8]| read(record, 0).is_some_and(|offset| keep(section, offset.into()));
        let records: Vec<&[u8]> = records.iter().filter(wanted).copied().collect();
        if !records.is_empty() {
            kept.extend(name.to_ne_bytes());
            kept.extend(u32::try_from(records.len()).ok()?.to_ne_bytes());
            kept.extend(records.concat());
        }
    }
    // A length without a record after it is no list.
    let len = if kept.len() > 4 { kept.len() } else { 0 };
    ext.get_mut(range.start..range.start + len)?.copy_from_slice(&kept[..len]);
    write(ext, RELOCATIONS + 4, u32::try_from(len).ok()?)
}
