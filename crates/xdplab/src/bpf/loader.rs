//! One loader for all objects of ours. A new one reads and parses this kernel's types again, whether an object needs them or
//! not, and that takes longer than everything else about loading one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, PoisonError};

use aya::{Btf, Ebpf, EbpfError, EbpfLoader};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

static LOADER: LazyLock<Mutex<EbpfLoader<'static>>> = LazyLock::new(|| Mutex::new(EbpfLoader::new()));

/// Makes the loader, if there is none yet.
pub(super) fn prepare() {
    LazyLock::force(&LOADER);
}

/// Creates the maps of an object, these with these sizes, and makes its programs ready to be loaded one by one.
pub(super) fn load(
    bytes: &[u8],
    map_entries: &BTreeMap<&'static str, u32>,
    kernel_types: Option<&'static Btf>,
) -> Result<Ebpf, EbpfError> {
    let parsed = aya_obj::Object::parse(bytes)?;
    let mut loader = LOADER.lock().unwrap_or_else(PoisonError::into_inner);
    loader.btf(kernel_types);
    for (name, map) in &parsed.maps {
        // Every map's each time: the loader keeps what it was told of a map of this name in another object.
        let entries = map_entries.get(name.as_str()).copied().unwrap_or(map.max_entries());
        loader.map_max_entries(kept(name), entries);
    }
    loader.load(bytes)
}

/// The name, kept as long as the loader. There are as many as there are names of maps in our objects.
fn kept(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.get(name).copied().unwrap_or_else(|| {
        let name: &'static str = Box::leak(name.into());
        names.insert(name);
        name
    })
}

/// Sets a `const volatile` variable in the bytes of an object.
///
/// # Errors
/// Why it can't be set: the object has no such variable, or one of another size.
pub(super) fn set_global(bytes: &mut [u8], name: &str, value: &[u8]) -> Result<(), String> {
    let at = {
        let file = object::File::parse(&*bytes).map_err(|error| error.to_string())?;
        let symbol = file.symbol_by_name(name).ok_or("the object has no such variable")?;
        if symbol.size() != value.len() as u64 {
            return Err(format!("it has {} bytes and not {}", symbol.size(), value.len()));
        }
        let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
        let (start, length) = section.and_then(|section| section.file_range()).ok_or("its section has no bytes")?;
        let end = symbol.address().checked_add(symbol.size()).filter(|end| *end <= length);
        end.ok_or("it does not lie within its section")?;
        usize::try_from(start + symbol.address()).map_err(|error| error.to_string())?
    };
    bytes[at..at + value.len()].copy_from_slice(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{CPUMAP, DUT};

    /// The section of constants as the loader sees it.
    fn rodata(bytes: &[u8]) -> Vec<u8> {
        aya_obj::Object::parse(bytes).unwrap().maps[".rodata"].data().to_vec()
    }

    #[test]
    fn a_variable_is_set_where_the_loader_finds_it_and_nothing_else_changes() {
        let mut bytes = DUT.bytes.to_vec();
        set_global(&mut bytes, "action", &7_u32.to_ne_bytes()).unwrap();
        let (before, after) = (rodata(DUT.bytes), rodata(&bytes));
        let mut parsed = aya_obj::Object::parse(DUT.bytes).unwrap();
        parsed.patch_map_data([("action", (&7_u32.to_ne_bytes()[..], true))].into()).unwrap();
        assert_eq!(after, parsed.maps[".rodata"].data());
        assert_eq!(before.iter().zip(&after).filter(|(before, after)| before != after).count(), 1, "1 became 7");
        let mut bytes = CPUMAP.bytes.to_vec();
        let cpus: Vec<u8> = (0..1024_u64).flat_map(u64::to_ne_bytes).collect();
        set_global(&mut bytes, "cpus", &cpus).unwrap();
        assert!(rodata(&bytes).windows(cpus.len()).any(|window| window == cpus));
    }

    #[test]
    fn a_variable_that_is_not_there_or_of_another_size_is_refused() {
        let mut bytes = DUT.bytes.to_vec();
        assert_eq!(set_global(&mut bytes, "acton", &[0; 4]).unwrap_err(), "the object has no such variable");
        assert_eq!(set_global(&mut bytes, "action", &[0; 8]).unwrap_err(), "it has 4 bytes and not 8");
        assert_eq!(bytes, DUT.bytes);
        assert!(set_global(&mut [0; 64], "action", &[0; 4]).is_err(), "no object at all");
    }

    #[test]
    fn a_name_is_kept_once() {
        assert!(std::ptr::eq(kept("xdplab_a_name"), kept(&String::from("xdplab_a_name"))));
    }
}
