//! An object file (ELF, `R_BPF_*` relocations of Documentation/bpf/llvm_reloc.rst): what it holds, and what is left of it
//! when one program is wanted. The loader reads every program of an object and gives up at the first one that it does not
//! know, so what is not wanted is hidden from it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use object::elf::{
    EM_BPF, ET_REL, FileHeader64, R_BPF_64_32, R_BPF_64_64, Rel64, SHF_EXECINSTR, STT_FUNC, STT_OBJECT, STT_SECTION,
    SectionHeader64, Sym64,
};
use object::read::elf::{ElfFile64, ElfSection64, FileHeader as _, Rel as _, SectionHeader as _, Sym as _};
use object::{NativeEndian, Object as _, ObjectSection as _, SectionIndex};

use super::btf::{self, Btf, Table};

/// Bytes of an instruction.
const INSTRUCTION_LEN: u64 = 8;
/// More than the kernel takes as the value of a map, which sections of variables become (`KMALLOC_MAX_SIZE`).
const MAX_SECTION_LEN: u64 = 64 << 20;
/// Places in `Elf64_Shdr`, and that of `st_info` in `Elf64_Sym`.
const SH_FLAGS: usize = 8;
const SH_OFFSET: usize = 24;
const SH_SIZE: usize = 32;
const ST_INFO: usize = 4;

type File<'a> = ElfFile64<'a, NativeEndian>;
type Section<'a, 'file> = ElfSection64<'a, 'file, NativeEndian>;
type Symbol = Sym64<NativeEndian>;
type Rel = Rel64<NativeEndian>;

/// What is wrong with an object, and what can be done about it.
pub(super) struct Refusal {
    pub(super) why: String,
    pub(super) remedy: Option<String>,
}

impl Refusal {
    fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: None }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

impl From<object::read::Error> for Refusal {
    fn from(error: object::read::Error) -> Self {
        Self::new(format!("it is damaged: {error}"))
    }
}

/// An object made ready for the loader.
pub(super) struct Prepared {
    /// The file's bytes, with everything hidden that the program does not need.
    pub(super) bytes: Vec<u8>,
    /// The program.
    pub(super) program: String,
    /// Whether it takes packets in fragments (`xdp.frags`).
    pub(super) frags: bool,
    /// The maps that it, the programs it tail-calls and functions they may call use.
    pub(super) maps_used: BTreeSet<String>,
    /// The programs that tables of programs begin with.
    pub(super) tail_calls: Vec<TailCall>,
    /// The sizes of these tables (`max_entries`), by name.
    pub(super) table_sizes: BTreeMap<String, u32>,
    /// Bytes of each global variable that can be set.
    pub(super) globals: BTreeMap<String, Global>,
}

/// An entry of a table of programs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TailCall {
    pub(super) map: String,
    pub(super) index: u32,
    pub(super) program: String,
}

/// A global variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Global {
    pub(super) size: usize,
}

/// A function in a section of programs.
#[derive(Clone, Debug)]
struct Program {
    name: String,
    section: SectionIndex,
    section_name: String,
    /// Its bytes within the section.
    code: Range<u64>,
    /// Its number in the symbol table.
    symbol: usize,
}

/// What the kernel is to run a program as, by its section (libbpf, Documentation/bpf/libbpf/program_types.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Xdp { frags: bool },
    BehindMap(&'static str),
    Other,
}

impl Program {
    fn kind(&self) -> Kind {
        match self.section_name.as_str() {
            "xdp" => Kind::Xdp { frags: false },
            "xdp.frags" => Kind::Xdp { frags: true },
            "xdp/cpumap" | "xdp.frags/cpumap" => Kind::BehindMap("cpumap"),
            "xdp/devmap" | "xdp.frags/devmap" => Kind::BehindMap("devmap"),
            _ => Kind::Other,
        }
    }
}

/// Prepares the object in `bytes` for its program `wanted`, or for its only XDP program.
pub(super) fn prepare(bytes: Vec<u8>, wanted: Option<&str>) -> Result<Prepared, Refusal> {
    let elf = Elf::parse(&bytes)?;
    let program = elf.choose(wanted)?;
    let Kind::Xdp { frags } = program.kind() else { return Err(not_xdp(&program)) };
    let mut patched = bytes.clone();
    let tables = elf.prepare_maps(&mut patched)?;
    let needed = elf.needed(&program, &tables)?;
    elf.hide_others(&mut patched, &needed.programs)?;
    Ok(Prepared {
        program: program.name,
        frags,
        maps_used: needed.maps,
        tail_calls: needed.tail_calls,
        table_sizes: tables.into_iter().map(|(name, table)| (name, table.max_entries)).collect(),
        globals: elf.globals(),
        bytes: patched,
    })
}

fn not_xdp(program: &Program) -> Refusal {
    let Program { name, section_name, .. } = program;
    match program.kind() {
        Kind::BehindMap(map) => Refusal::new(format!(
            "`{name}` runs behind a {map} (section {section_name}), not on an interface: it can't be measured by itself"
        )),
        _ if section_name.starts_with("xdp") => {
            Refusal::new(format!("the section `{section_name}` of `{name}` is not one that libbpf takes for XDP"))
                .remedy("use SEC(\"xdp\") or SEC(\"xdp.frags\")")
        }
        _ => Refusal::new(format!("`{name}` is no XDP program: its section is `{section_name}`")),
    }
}

/// What one program needs.
#[derive(Default)]
struct Needed {
    programs: Vec<Program>,
    maps: BTreeSet<String>,
    tail_calls: Vec<TailCall>,
    /// Instructions that were not looked at yet.
    code: Vec<(SectionIndex, Range<u64>)>,
}

impl Needed {
    fn add(&mut self, program: &Program) {
        if self.programs.iter().all(|other| other.symbol != program.symbol) {
            self.code.push((program.section, program.code.clone()));
            self.programs.push(program.clone());
        }
    }
}

/// Whether a section holds instructions.
fn is_code(section: &Section<'_, '_>) -> bool {
    section.elf_section_header().sh_flags(NativeEndian) & u64::from(SHF_EXECINSTR) != 0
}

struct Elf<'a> {
    file: File<'a>,
    programs: Vec<Program>,
}

impl<'a> Elf<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Refusal> {
        check_header(bytes)?;
        let file = File::parse(bytes)?;
        let mut elf = Self { file, programs: Vec::new() };
        elf.check()?;
        elf.programs = elf.find_programs()?;
        Ok(elf)
    }

    /// The loader trusts symbols to lie within their sections, and old definitions of maps to be what it thinks.
    fn check(&self) -> Result<(), Refusal> {
        for section in self.file.sections() {
            if section.name()?.starts_with("maps") {
                return Err(Refusal::new("its maps are defined in the old form (section `maps`)")
                    .remedy("define them in SEC(\".maps\"), as libbpf 1.0 wants it too"));
            }
            if section.address() != 0 || section.size() > MAX_SECTION_LEN {
                return Err(Refusal::new(format!("it is damaged: the section `{}` can't be so", section.name()?)));
            }
        }
        for (symbol, section) in self.symbols_in_sections() {
            let end = symbol.st_value(NativeEndian).checked_add(symbol.st_size(NativeEndian));
            if end.is_none_or(|end| end > section.size()) {
                let name = self.name(symbol).unwrap_or_default();
                return Err(Refusal::new(format!("it is damaged: the symbol `{name}` ends behind its section")));
            }
            let is_code = symbol.st_type() == STT_FUNC;
            if is_code
                && !(symbol.st_value(NativeEndian) | symbol.st_size(NativeEndian)).is_multiple_of(INSTRUCTION_LEN)
            {
                return Err(Refusal::new("it is damaged: a function does not end with an instruction"));
            }
        }
        Ok(())
    }

    fn symbols(&self) -> impl Iterator<Item = (usize, &'a Symbol)> + '_ {
        self.file.elf_symbol_table().enumerate().map(|(index, symbol)| (index.0, symbol))
    }

    fn symbols_in_sections(&self) -> impl Iterator<Item = (&'a Symbol, Section<'a, '_>)> {
        self.symbols().filter_map(|(_, symbol)| {
            let index = SectionIndex(symbol.st_shndx(NativeEndian).into());
            Some((symbol, self.file.section_by_index(index).ok()?))
        })
    }

    fn name(&self, symbol: &Symbol) -> Result<String, Refusal> {
        let name = self.file.elf_symbol_table().symbol_name(NativeEndian, symbol)?;
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    fn find_programs(&self) -> Result<Vec<Program>, Refusal> {
        let mut programs = Vec::new();
        for (index, symbol) in self.symbols() {
            let section = SectionIndex(symbol.st_shndx(NativeEndian).into());
            let Ok(in_section) = self.file.section_by_index(section) else { continue };
            if symbol.st_type() != STT_FUNC || !is_code(&in_section) || in_section.name()? == ".text" {
                continue;
            }
            let start = symbol.st_value(NativeEndian);
            programs.push(Program {
                name: self.name(symbol)?,
                section,
                section_name: in_section.name()?.to_owned(),
                code: start..start + symbol.st_size(NativeEndian),
                symbol: index,
            });
        }
        Ok(programs)
    }

    fn choose(&self, wanted: Option<&str>) -> Result<Program, Refusal> {
        let is_xdp = |program: &&Program| matches!(program.kind(), Kind::Xdp { .. });
        let list = |programs: &[&Program]| {
            let names: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
            names.join(", ")
        };
        let xdp: Vec<&Program> = self.programs.iter().filter(is_xdp).collect();
        if let Some(name) = wanted {
            return self.programs.iter().find(|program| program.name == name).cloned().ok_or_else(|| match xdp[..] {
                [] => self.without_xdp(),
                _ => Refusal::new(format!("it has no program `{name}`; its XDP programs are {}", list(&xdp))),
            });
        }
        match xdp[..] {
            [program] => Ok(program.clone()),
            [] => Err(self.without_xdp()),
            _ => Err(Refusal::new(format!("it has {} XDP programs: {}", xdp.len(), list(&xdp)))
                .remedy("name one of them: FILE.o:PROGRAM")),
        }
    }

    fn without_xdp(&self) -> Refusal {
        match self.programs.as_slice() {
            [] => Refusal::new("it has no program"),
            [program] => not_xdp(program),
            programs => {
                let each = |program: &Program| format!("{} ({})", program.name, program.section_name);
                let list: Vec<String> = programs.iter().map(each).collect();
                Refusal::new(format!("none of its programs is for XDP: {}", list.join(", ")))
            }
        }
    }

    /// The program with what it calls, and the maps of all these and of every function in `.text`.
    fn needed(&self, program: &Program, tables: &BTreeMap<String, Table>) -> Result<Needed, Refusal> {
        let mut needed = Needed::default();
        needed.add(program);
        needed.code.extend(self.file.section_by_name(".text").map(|text| (text.index(), 0..text.size())));
        while let Some((section, range)) = needed.code.pop() {
            for rel in self.relocations(section)?.iter().filter(|rel| range.contains(&rel.r_offset(NativeEndian))) {
                self.check_place(rel, section)?;
                self.follow(rel, &mut needed, tables)?;
            }
        }
        needed.tail_calls.sort();
        Ok(needed)
    }

    /// An address takes an instruction of twice the length, and the loader trusts the second half to be there.
    fn check_place(&self, rel: &Rel, section: SectionIndex) -> Result<(), Refusal> {
        let at = rel.r_offset(NativeEndian);
        let len = if self.is_code(self.symbol_of(rel)?) { INSTRUCTION_LEN } else { 2 * INSTRUCTION_LEN };
        let cut = self.symbols_in_sections().any(|(symbol, of)| {
            let start = symbol.st_value(NativeEndian);
            let function = start..start + symbol.st_size(NativeEndian);
            symbol.st_type() == STT_FUNC
                && of.index() == section
                && function.contains(&at)
                && at.checked_add(len).is_none_or(|end| end > function.end)
        });
        if cut || !at.is_multiple_of(INSTRUCTION_LEN) {
            return Err(Refusal::new("it is damaged: an address stands where no instruction can hold it"));
        }
        Ok(())
    }

    /// Adds what an instruction refers to.
    fn follow(&self, rel: &Rel, needed: &mut Needed, tables: &BTreeMap<String, Table>) -> Result<(), Refusal> {
        let symbol = self.symbol_of(rel)?;
        let name = self.name(symbol)?;
        if symbol.is_undefined(NativeEndian) {
            return Err(Refusal::new(format!("it needs `{name}` of the kernel, which this loader can't give it"))
                .remedy("leave kernel functions (__ksym) and settings (__kconfig) out of the program"));
        }
        if self.is_code(symbol) {
            let known = matches!(symbol.st_type(), STT_FUNC | STT_SECTION)
                && matches!(rel.r_type(NativeEndian), R_BPF_64_64 | R_BPF_64_32);
            if !known {
                return Err(Refusal::new(format!("it is damaged: `{name}` is called and is no function")));
            }
            // Another program, called like a function.
            let callee = self.programs.iter().find(|program| program.symbol == rel.r_sym(NativeEndian) as usize);
            callee.into_iter().for_each(|callee| needed.add(callee));
        }
        let is_map = symbol.st_type() == STT_OBJECT && self.section_name_of(symbol)? == ".maps";
        if !is_map || !needed.maps.insert(name.clone()) {
            return Ok(());
        }
        let Some(table) = tables.get(&name) else { return Ok(()) };
        for (index, program) in self.table(symbol, table.entries_at)? {
            needed.add(&program);
            needed.tail_calls.push(TailCall { map: name.clone(), index, program: program.name });
        }
        Ok(())
    }

    fn is_code(&self, symbol: &Symbol) -> bool {
        let index = SectionIndex(symbol.st_shndx(NativeEndian).into());
        self.file.section_by_index(index).is_ok_and(|section| is_code(&section))
    }

    fn section_name_of(&self, symbol: &Symbol) -> Result<&str, Refusal> {
        let index = SectionIndex(symbol.st_shndx(NativeEndian).into());
        Ok(self.file.section_by_index(index).ok().map_or(Ok(""), |section| section.name())?)
    }

    fn relocations(&self, section: SectionIndex) -> Result<&'a [Rel], Refusal> {
        Ok(self.file.section_by_index(section)?.elf_linked_rel()?)
    }

    fn symbol_of(&self, rel: &Rel) -> Result<&'a Symbol, Refusal> {
        let index = object::SymbolIndex(rel.r_sym(NativeEndian) as usize);
        Ok(self.file.elf_symbol_table().symbol(index)?)
    }

    /// The programs that a table begins with, by index; `offset` is where its entries begin, each a pointer of 8 bytes.
    fn table(&self, map: &Symbol, offset: u64) -> Result<Vec<(u32, Program)>, Refusal> {
        let section = SectionIndex(map.st_shndx(NativeEndian).into());
        let start = map.st_value(NativeEndian) + offset;
        let entries = start..map.st_value(NativeEndian) + map.st_size(NativeEndian);
        let mut programs = Vec::new();
        for rel in self.relocations(section)?.iter().filter(|rel| entries.contains(&rel.r_offset(NativeEndian))) {
            let target = rel.r_sym(NativeEndian) as usize;
            let program = self.programs.iter().find(|program| program.symbol == target);
            let program = program.ok_or_else(|| Refusal::new("a table of programs holds something else"))?;
            let index = (rel.r_offset(NativeEndian) - start) / 8;
            programs.push((u32::try_from(index).unwrap_or(u32::MAX), program.clone()));
        }
        Ok(programs)
    }

    fn globals(&self) -> BTreeMap<String, Global> {
        let is_data = |name: &str| [".rodata", ".data", ".bss"].iter().any(|prefix| name.starts_with(prefix));
        let of_data = |symbol: &Symbol| self.section_name_of(symbol).is_ok_and(is_data);
        self.symbols()
            .map(|(_, symbol)| symbol)
            .filter(|symbol| symbol.st_type() == STT_OBJECT && of_data(symbol))
            .filter_map(|symbol| Some((self.name(symbol).ok()?, symbol)))
            // The compiler's own: string literals and variables within functions.
            .filter(|(name, _)| !name.is_empty() && !name.contains('.'))
            .map(|(name, symbol)| (name, Global { size: symbol.st_size(NativeEndian) as usize }))
            .collect()
    }

    fn range_of(&self, section: &str) -> Option<Range<usize>> {
        let (offset, size) = self.file.section_by_name(section)?.file_range()?;
        Some(usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(size)?).ok()?)
    }

    /// Puts the type information, with maps as the loader takes them, at the end of the file.
    fn prepare_maps(&self, patched: &mut Vec<u8>) -> Result<BTreeMap<String, Table>, Refusal> {
        let section = self
            .file
            .section_by_name(".BTF")
            .ok_or_else(|| Refusal::new("it has no type information (section .BTF)").remedy("compile it with -g"))?;
        let damaged = || Refusal::new("its type information (section .BTF) is damaged or newer than this loader");
        let mut types = btf::with_names(section.data()?).ok_or_else(damaged)?;
        let tables = Btf::parse(&mut types).and_then(|mut btf| btf.prepare_maps()).ok_or_else(damaged)?;
        patched.resize(patched.len().next_multiple_of(8), 0);
        let end = patched.len() as u64;
        self.set_header(patched, section.index(), SH_OFFSET, end)?;
        self.set_header(patched, section.index(), SH_SIZE, types.len() as u64)?;
        patched.extend(types);
        Ok(tables)
    }

    /// Hides every program but those kept.
    fn hide_others(&self, patched: &mut [u8], kept: &[Program]) -> Result<(), Refusal> {
        self.hide_relocations(patched, kept)?;
        let is_kept = |symbol| kept.iter().any(|program| program.symbol == symbol);
        let symbols_at = self.symbol_table_offset()?;
        for program in self.programs.iter().filter(|program| !is_kept(program.symbol)) {
            let info = patched.get_mut(symbols_at + program.symbol * size_of::<Symbol>() + ST_INFO);
            *info.ok_or_else(|| Refusal::new("it is damaged: its symbols lie outside"))? &= 0xf0; // STT_NOTYPE
            if kept.iter().all(|other| other.section != program.section) {
                self.hide_section(patched, program.section)?;
            }
        }
        Ok(())
    }

    fn symbol_table_offset(&self) -> Result<usize, Refusal> {
        let index = self.file.elf_symbol_table().section();
        let header = self.file.elf_section_table().section(index)?;
        usize::try_from(header.sh_offset(NativeEndian)).map_err(|error| Refusal::new(error.to_string()))
    }

    /// A section without instructions is none that the loader looks for programs in.
    fn hide_section(&self, patched: &mut [u8], section: SectionIndex) -> Result<(), Refusal> {
        let flags = self.file.elf_section_table().section(section)?.sh_flags(NativeEndian);
        self.set_header(patched, section, SH_FLAGS, flags & !u64::from(SHF_EXECINSTR))
    }

    /// Sets the field at `place` of a section's header.
    fn set_header(&self, patched: &mut [u8], section: SectionIndex, place: usize, value: u64) -> Result<(), Refusal> {
        let field = usize::try_from(self.file.elf_header().e_shoff(NativeEndian)).ok().and_then(|headers| {
            let at = headers.checked_add(section.0.checked_mul(size_of::<SectionHeader64<NativeEndian>>())? + place)?;
            patched.get_mut(at..at + 8)
        });
        let field = field.ok_or_else(|| Refusal::new("it is damaged: its section headers lie outside"))?;
        field.copy_from_slice(&value.to_ne_bytes());
        Ok(())
    }

    fn hide_relocations(&self, patched: &mut [u8], kept: &[Program]) -> Result<(), Refusal> {
        let Some(ext) = self.range_of(".BTF.ext") else { return Ok(()) };
        let mut btf = self.file.section_by_name_bytes(b".BTF").map_or(Ok(&[][..]), |types| types.data())?.to_vec();
        let keep = |section: &[u8], offset: u64| {
            let of = |program: &Program| program.section_name.as_bytes() == section && program.code.contains(&offset);
            section == b".text" || kept.iter().any(of)
        };
        let done = Btf::parse(&mut btf).and_then(|btf| btf::keep_relocations(patched.get_mut(ext)?, &btf, keep));
        done.ok_or_else(|| Refusal::new("its type information (section .BTF.ext) is damaged or newer than this loader"))
    }
}

/// The header of an ELF file as `clang -target bpf` writes it: 64 bits, this machine's byte order.
fn check_header(bytes: &[u8]) -> Result<(), Refusal> {
    let compile = "compile the program with clang -target bpf -g -O2 -c";
    if bytes.is_empty() {
        return Err(Refusal::new("it is empty"));
    }
    if !bytes.starts_with(b"\x7fELF") {
        return Err(Refusal::new("it is no ELF file").remedy(compile));
    }
    let header = FileHeader64::<NativeEndian>::parse(bytes)?;
    if !header.is_supported() || header.endian().is_err() {
        return Err(Refusal::new("it is an ELF file of another word size or byte order").remedy(compile));
    }
    let machine = header.e_machine(NativeEndian);
    if machine != EM_BPF {
        return Err(
            Refusal::new(format!("it is an ELF file for machine {machine}, and BPF is {EM_BPF}")).remedy(compile)
        );
    }
    if header.e_type(NativeEndian) != ET_REL {
        return Err(Refusal::new("it is a BPF file, but no object file").remedy(compile));
    }
    Ok(())
}
