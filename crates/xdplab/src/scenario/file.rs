//! What a scenario file says: cases, each with its parameters, of which some are axes of a matrix.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::path::Path;

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::parameters::{Kind, Parameters};
use super::work::Work;
use crate::error::Result;
use crate::toml_file::TomlFile;

/// The most cases of a scenario with their repeats, so that a slip is told before it takes all memory.
const MOST_CASES: usize = 10_000;

/// A scenario, checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it is to show, in a line.
    pub about: String,
    /// How often each case is carried out.
    pub repeats: u32,
    /// In which order.
    pub order: Order,
    /// Seed of the order and of the cases; another one each time if none is given.
    pub seed: Option<u64>,
    /// What to carry out.
    pub cases: Vec<PlannedCase>,
}

/// The order of cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Every case once in random order, then once more for each repeat.
    #[default]
    Random,
    /// As they are in the file.
    File,
}

/// One measurement or comparison.
#[derive(Clone, Debug)]
pub struct PlannedCase {
    /// Its kind and what tells it from the others of that kind, e.g. `compare size=64`.
    pub label: String,
    /// Its parameters as they were written.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// A shell command that is run before it.
    pub setup: Option<String>,
    /// A shell command that is run after it, whatever became of it.
    pub restore: Option<String>,
    /// What to do.
    pub work: Work,
    /// The first case that differs from this one in nothing but its kernel, with which that is compared; its place in
    /// [`Scenario::cases`].
    pub against: Option<usize>,
}

/// One case, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The case's place in [`Scenario::cases`].
    pub case: usize,
    /// Which time, from 0.
    pub repeat: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    name: String,
    #[serde(default)]
    about: String,
    #[serde(default = "once")]
    repeats: Spanned<NonZero<u32>>,
    #[serde(default)]
    order: Order,
    seed: Option<u64>,
}

fn once() -> Spanned<NonZero<u32>> {
    Spanned::new(0..0, NonZero::<u32>::MIN)
}

impl Scenario {
    /// Reads and checks a scenario. Object files of programs are looked for from its own folder.
    ///
    /// # Errors
    /// The file can't be read, or what it says does not fit together; with line, key and what is allowed.
    pub fn read(path: &Path) -> Result<(Self, String)> {
        let file = TomlFile::read("scenario", path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok((Self::of(&file, folder)?, file.text().to_owned()))
    }

    /// Checks a scenario whose object files are looked for from `folder`.
    ///
    /// # Errors
    /// What it says does not fit together.
    pub fn of(file: &TomlFile, folder: &Path) -> Result<Self> {
        let root = file.root()?;
        let whole = root.span();
        let DeValue::Table(mut root) = root.into_inner() else { return Err(file.wrong(&whole, "it is no table")) };
        let tables = root.remove("cases");
        let Head { name, about, repeats, order, seed } = file.value(Spanned::new(whole, DeValue::Table(root)))?;
        let tables = tables.ok_or_else(|| file.wrong(&(0..0), "there is no [[cases]]; at least one is needed"))?;
        let span = tables.span();
        let DeValue::Array(tables) = tables.into_inner() else {
            return Err(file.wrong(&span, "it is no list of tables, which [[cases]] makes"));
        };
        let mut cases = Vec::new();
        for table in tables {
            let group = Group::of(file, table)?;
            if group.combinations()? + cases.len() > MOST_CASES {
                return Err(group.wrong(&group.span, &format!("more than {MOST_CASES} cases")));
            }
            for combination in group.all() {
                cases.push(group.case(combination, folder)?);
            }
        }
        if cases.is_empty() {
            return Err(file.wrong(&span, "there is no case"));
        }
        name_apart(&mut cases);
        compare_kernels(&mut cases);
        let mut scenario = Self { name, about, repeats: 1, order, seed, cases };
        scenario.set_repeats(repeats.get_ref().get()).map_err(|why| file.wrong(&repeats.span(), why))?;
        Ok(scenario)
    }

    /// Carries out each case so often instead of what the file says.
    ///
    /// # Errors
    /// That makes more cases than anybody can want.
    pub fn set_repeats(&mut self, repeats: u32) -> Result<(), String> {
        if self.cases.len().saturating_mul(repeats as usize) > MOST_CASES {
            return Err(format!("more than {MOST_CASES} cases, with their repeats"));
        }
        self.repeats = repeats;
        Ok(())
    }

    /// Every case as often as it is to be carried out, in the order that follows from `seed`.
    #[must_use]
    pub fn steps(&self, seed: u64) -> Vec<Step> {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut steps = Vec::new();
        for repeat in 0..self.repeats {
            let mut once: Vec<Step> = (0..self.cases.len()).map(|case| Step { case, repeat }).collect();
            if self.order == Order::Random {
                once.shuffle(&mut random);
            }
            steps.extend(once);
        }
        steps
    }

    /// Takes so long for each case instead of what the file says.
    pub fn set_seconds(&mut self, seconds: f64) {
        for case in &mut self.cases {
            case.work.set_seconds(seconds);
        }
    }
}

/// A table of `[[cases]]`.
struct Group<'a> {
    file: &'a TomlFile,
    span: Range<usize>,
    kind: Kind,
    /// What all its cases have.
    fixed: DeTable<'a>,
    /// What they differ in, by key; the values of a key are at least one.
    axes: Vec<(Spanned<Cow<'a, str>>, DeArray<'a>)>,
}

impl<'a> Group<'a> {
    fn of(file: &'a TomlFile, table: Spanned<DeValue<'a>>) -> Result<Self> {
        let span = table.span();
        let DeValue::Table(mut fixed) = table.into_inner() else { return Err(file.wrong(&span, "it is no table")) };
        let kind = fixed.remove("kind");
        let kind = kind.ok_or_else(|| file.wrong(&span, format!("it has no `kind`; {}", Kind::allowed())))?;
        let kind: Kind = file.value(kind)?;
        let mut group = Self { file, span, kind, fixed, axes: Vec::new() };
        if let Some(matrix) = group.fixed.remove("matrix") {
            group.add_matrix(matrix)?;
        }
        for (key, _) in &group.fixed {
            group.check_key(key)?;
        }
        Ok(group)
    }

    fn add_matrix(&mut self, matrix: Spanned<DeValue<'a>>) -> Result<()> {
        let span = matrix.span();
        let DeValue::Table(matrix) = matrix.into_inner() else {
            return Err(self.wrong(&span, "it is no table of lists"));
        };
        for (key, values) in matrix {
            self.check_key(&key)?;
            if self.fixed.contains_key(key.get_ref().as_ref()) {
                return Err(self.wrong(&key.span(), "it is a parameter of the table too"));
            }
            let span = values.span();
            match values.into_inner() {
                DeValue::Array(values) if !values.is_empty() => self.axes.push((key, values)),
                _ => return Err(self.wrong(&span, "an axis is a list of at least one value")),
            }
        }
        Ok(())
    }

    fn check_key(&self, key: &Spanned<Cow<'_, str>>) -> Result<()> {
        let allowed = self.kind.keys();
        if allowed.contains(&key.get_ref().as_ref()) {
            return Ok(());
        }
        let why = format!("a case of kind {} has no `{}`, only {}", self.kind, key.get_ref(), allowed.join(", "));
        Err(self.wrong(&key.span(), &why))
    }

    fn wrong(&self, place: &Range<usize>, why: &str) -> crate::error::Error {
        self.file.wrong(place, why)
    }

    fn combinations(&self) -> Result<usize> {
        let number = self.axes.iter().try_fold(1_usize, |number, (_, values)| number.checked_mul(values.len()));
        number.ok_or_else(|| self.wrong(&self.span, &format!("more than {MOST_CASES} cases")))
    }

    /// The index of a value on each axis, for every combination; the last axis is the fastest.
    fn all(&self) -> impl Iterator<Item = Vec<usize>> {
        let lengths: Vec<usize> = self.axes.iter().map(|(_, values)| values.len()).collect();
        (0..lengths.iter().product()).map(move |number: usize| {
            let mut rest = number;
            let mut indices: Vec<usize> = lengths
                .iter()
                .rev()
                .map(|length| {
                    let index = rest % length;
                    rest /= length;
                    index
                })
                .collect();
            indices.reverse();
            indices
        })
    }

    fn case(&self, combination: Vec<usize>, folder: &Path) -> Result<PlannedCase> {
        let mut table = self.fixed.clone();
        for ((key, values), index) in self.axes.iter().zip(&combination) {
            table.insert(key.clone(), values[*index].clone());
        }
        let spans: BTreeMap<String, Range<usize>> =
            table.iter().map(|(key, value)| (key.get_ref().to_string(), value.span())).collect();
        let whole = || Spanned::new(self.span.clone(), DeValue::Table(table.clone()));
        let written: BTreeMap<String, serde_json::Value> = self.file.value(whole())?;
        let parameters: Parameters = self.file.value(whole())?;
        let (setup, restore) = (parameters.setup.clone(), parameters.restore.clone());
        let work = Work::of(self.kind, parameters, folder).map_err(|wrong| {
            let place = wrong.key.and_then(|key| spans.get(key)).unwrap_or(&self.span);
            self.wrong(place, &wrong.why)
        })?;
        let kind = serde_json::Value::from(self.kind.to_string());
        let parameters = written.into_iter().chain([("kind".to_owned(), kind)]).collect();
        Ok(PlannedCase { label: self.kind.to_string(), parameters, setup, restore, work, against: None })
    }
}

/// Adds to each label the parameters that not all cases of its kind share.
fn name_apart(cases: &mut [PlannedCase]) {
    let names: Vec<String> = cases
        .iter()
        .map(|case| {
            let of_kind = || cases.iter().filter(|other| other.parameters["kind"] == case.parameters["kind"]);
            let differs = |key: &String| of_kind().any(|other| other.parameters.get(key) != case.parameters.get(key));
            let told = case.parameters.iter().filter(|(key, _)| differs(key));
            told.map(|(key, value)| format!(" {key}={}", shown(value))).collect()
        })
        .collect();
    cases.iter_mut().zip(names).for_each(|(case, name)| case.label += &name);
}

/// Puts in, for each case that has a kernel, the first that has the same parameters but for that.
fn compare_kernels(cases: &mut [PlannedCase]) {
    let but_for_the_kernel = |case: &PlannedCase| {
        let mut parameters = case.parameters.clone();
        parameters.remove("kernel").map(|_| parameters)
    };
    let rests: Vec<Option<BTreeMap<_, _>>> = cases.iter().map(but_for_the_kernel).collect();
    for (index, (case, rest)) in cases.iter_mut().zip(&rests).enumerate() {
        case.against = rests[..index].iter().position(|other| other.is_some() && other == rest);
    }
}

/// A value in a label.
fn shown(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join("+"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scenario(text: &str) -> Result<Scenario> {
        Scenario::of(&TomlFile::of("read the scenario s.toml", text), Path::new("/nowhere"))
    }

    fn refusal(text: &str) -> String {
        let error = scenario(text).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        error.strip_prefix("can't read the scenario s.toml: ").unwrap().to_owned()
    }

    const COMPARE: &str = "name = \"s\"\n[[cases]]\nkind = \"compare\"\nbaseline = \"drop:no-touch\"\n";

    /// A case that compares and has these lines too.
    fn compare(lines: &str) -> String {
        format!("{COMPARE}candidates = \"drop:read-data\"\n{lines}\n")
    }

    #[test]
    fn every_combination_of_the_axes_is_a_case() {
        let text = compare("placement = \"same\"\n[cases.matrix]\nsize = [64, 1500]\nxdp-mode = [\"native\", \"skb\"]")
            + "[[cases]]\nkind = \"pool\"\nmatrix.group = [\"single\", \"frags\"]\nseconds = 2\n";
        let scenario = scenario(&text).unwrap();
        let labels: Vec<&str> = scenario.cases.iter().map(|case| case.label.as_str()).collect();
        assert_eq!(
            labels,
            [
                "compare size=64 xdp-mode=native",
                "compare size=64 xdp-mode=skb",
                "compare size=1500 xdp-mode=native",
                "compare size=1500 xdp-mode=skb",
                "pool group=single",
                "pool group=frags",
            ]
        );
        let Work::Compare(plan, _) = &scenario.cases[3].work else { panic!("{:?}", scenario.cases[3]) };
        assert_eq!(
            (plan.size, plan.xdp_mode),
            (crate::packet::FrameSize::Wire(1500), crate::netlink::XdpMode::Generic)
        );
        assert_eq!(scenario.cases[3].parameters["size"], 1500);
        assert_eq!(scenario.cases[5].parameters["kind"], "pool");
        assert_eq!(scenario.cases[5].work.seconds(), Some(2.0));
    }

    #[test]
    fn every_mistake_is_told_with_line_key_and_what_is_allowed() {
        let cases = [
            ("", "line 1: missing field `name`"),
            ("name = \"s\"\n", "line 1: there is no [[cases]]; at least one is needed"),
            ("name = \"s\"\ncases = 3\n", "line 2, key `cases`: it is no list of tables, which [[cases]] makes"),
            ("name = \"s\"\ncases = []\n", "line 2, key `cases`: there is no case"),
            (
                "name = \"s\"\ntitle = 1\n[[cases]]\nkind = \"pool\"\n",
                "line 2, key `title`: unknown field `title`, expected one of `name`, ",
            ),
            (
                "name = \"s\"\nrepeats = 0\n[[cases]]\nkind = \"pool\"\n",
                "line 2, key `repeats`: invalid value: integer `0`, expected a nonzero u32",
            ),
            (
                "name = \"s\"\norder = \"sorted\"\n[[cases]]\n",
                "line 2, key `order`: unknown variant `sorted`, expected `random` or `file`",
            ),
            (
                "name = \"s\"\n[[cases]]\nseconds = 1\n",
                "line 2, key `cases[0]`: it has no `kind`; it is one of compare, settings, rates, stream, pool, kernels",
            ),
            (
                "name = \"s\"\n[[cases]]\nkind = \"race\"\n",
                "line 3, key `cases[0].kind`: unknown variant `race`, expected one of `compare`, ",
            ),
            ("name = \"s\"\n[[cases]]\nkind = \"pool\"\n", "line 2, key `cases[0]`: it has no `group`"),
            (
                "name = \"s\"\n[[cases]]\nkind = \"pool\"\ngroup = \"all\"\n",
                "line 4, key `cases[0].group`: unknown variant `all`, expected one of `single`, ",
            ),
            (
                "name = \"s\"\n[[cases]]\nkind = \"pool\"\ngroup = \"single\"\nsize = 64\n",
                "line 5, key `cases[0].size`: a case of kind pool has no `size`, only group, seconds, setup, restore",
            ),
            (COMPARE, "line 2, key `cases[0]`: it has no `candidates`"),
            (&compare("seconds = 0"), "line 6, key `cases[0].seconds`: 0 is not above 0"),
            (
                &compare("seconds = \"ten\""),
                "line 6, key `cases[0].seconds`: invalid type: string \"ten\", expected f64",
            ),
            (
                &compare("size = 63"),
                "line 6, key `cases[0].size`: can't build a UDP frame of 63 bytes on the wire (FCS counted): this flow has",
            ),
            (
                &compare("mtu = 100\nsize = 200"),
                "line 6, key `cases[0].mtu`: a frame of 182 bytes without its Ethernet header does not fit an MTU of 100",
            ),
            (&compare("queues = 5000"), "line 6, key `cases[0].queues`: 5000 is not from 1 to 4096"),
            (&compare("flows = 0"), "line 6, key `cases[0].flows`: invalid value: integer `0`, expected a nonzero u16"),
            (
                &compare("placement = \"sideways\""),
                "line 6, key `cases[0].placement`: unknown variant `sideways`, expected `same` or `split`",
            ),
            (
                &compare("xdp-mode = \"offload\""),
                "line 6, key `cases[0].xdp-mode`: unknown variant `offload`, expected `native` or `skb`",
            ),
            (
                &compare("engine = \"test-run\"\nqueues = 2"),
                "line 7, key `cases[0].queues`: programs that run alone have neither queues nor traffic",
            ),
            (
                &compare("sizes = [64]"),
                "line 6, key `cases[0].sizes`: a case of kind compare has no `sizes`, only baseline, candidates, ",
            ),
            (&compare("matrix = 3"), "line 6, key `cases[0].matrix`: it is no table of lists"),
            (
                &compare("matrix.size = 64"),
                "line 6, key `cases[0].matrix.size`: an axis is a list of at least one value",
            ),
            (
                &compare("matrix.size = []"),
                "line 6, key `cases[0].matrix.size`: an axis is a list of at least one value",
            ),
            (
                &compare("size = 64\nmatrix.size = [64]"),
                "line 7, key `cases[0].matrix.size`: it is a parameter of the table too",
            ),
            (
                &compare("matrix.length = [64]"),
                "line 6, key `cases[0].matrix.length`: a case of kind compare has no `length`",
            ),
            (
                &compare("[cases.matrix]\nsize = [\n  64,\n  1,\n]"),
                "line 9, key `cases[0].matrix.size[1]`: can't build a UDP frame of 1 bytes",
            ),
            (
                &compare("matrix.candidates = [\"drop\"]").replace("candidates = \"drop:read-data\"\n", ""),
                "the operation is missing",
            ),
            (
                &COMPARE.replace("no-touch", "frob"),
                "line 4, key `cases[0].baseline`: can't read the program specification `drop:frob`: there is no operation `frob`, only",
            ),
            (&compare("").replace("drop:read-data", "missing.o"), "line 5, key `cases[0].candidates`: can't "),
            (
                "name = \"s\"\n[[cases]]\nkind = \"settings\"\nbaseline-cmd = \"true\"\n",
                "line 2, key `cases[0]`: it has no `candidate-cmds`",
            ),
            ("name = \"s\"\n[[cases]]\nkind = \"rates\"\n\n", "line 2, key `cases[0]`: it has no `program`"),
            (
                "name = \"s\"\n[[cases]]\nkind = \"rates\"\nprogram = \"x.o:p\"\n",
                "line 4, key `cases[0].program`: a user's program counts nothing for this tool; take one of ours",
            ),
            (
                "name = \"s\"\n[[cases]]\nkind = \"rates\"\nprogram = \"redirect-map:egress-melt,\"\n",
                "line 4, key `cases[0].program`: can't read the program specification",
            ),
            (
                "name = \"s\"\n[[cases]]\nkind = \"rates\"\nprogram = \"redirect-map\"\nthreads = 0\n",
                "line 5, key `cases[0].threads`: invalid value: integer `0`, expected a nonzero u16",
            ),
            (
                "name = \"s\"\n[[cases]]\nkind = \"rates\"\nprogram = \"redirect-map\"\nbaseline = \"redirect-map\"\n",
                "a case of kind rates has no `baseline`, only program, ",
            ),
            ("name = \"s\"\n[[cases]]\nkind = \"stream\"\n\n", "line 2, key `cases[0]`: it has no `forwarding`"),
            (
                "name = \"s\"\n[[cases]]\nkind = \"stream\"\nforwarding = \"bridge\"\n",
                "line 4, key `cases[0].forwarding`: unknown variant `bridge`, expected one of `native`, `skb`, `stack`",
            ),
            (
                "name = \"s\"\n[[cases]]\nkind = \"stream\"\nforwarding = \"native\"\nmtu = 1000\n",
                "line 5, key `cases[0].mtu`: 1000 is not from 1280 to 65535 bytes",
            ),
            (
                "name = \"s\"\n[[cases]]\nkind = \"stream\"\nforwarding = \"native\"\nstreams = 200\n",
                "line 5, key `cases[0].streams`: 200 is not from 1 to 128",
            ),
            (&compare("traffic = \"socket\"\nflows = 2"), "line 7, key `cases[0].flows`: a socket is one flow"),
            (
                &compare("traffic = \"pigeon\""),
                "line 6, key `cases[0].traffic`: unknown variant `pigeon`, expected `live-frames` or `socket`",
            ),
        ];
        for (text, expected) in cases {
            let refusal = refusal(text);
            assert!(refusal.contains(expected), "{text}\n{refusal}\n{expected}");
        }
    }

    #[test]
    fn a_matrix_of_more_cases_than_anybody_can_want_is_refused_at_once() {
        let axis = |name: &str| format!("matrix.{name} = [{}]\n", vec!["1"; 1000].join(", "));
        let axes: String = ["size", "mtu", "flows", "queues", "copies", "rounds", "margin-ns"].map(axis).concat();
        assert!(refusal(&compare(&axes)).ends_with("more than 10000 cases"));
    }

    #[test]
    fn every_repeat_has_every_case_once_in_an_order_that_follows_from_the_seed() {
        let text = "repeats = 3\n".to_owned() + &compare("[cases.matrix]\nsize = [64, 65, 66, 67, 68, 69, 70, 71]");
        let mut scenario = scenario(&text).unwrap();
        let steps = scenario.steps(1);
        assert_eq!(steps, scenario.steps(1));
        assert_ne!(steps, scenario.steps(2));
        for (repeat, once) in (0..).zip(steps.chunks(8)) {
            let mut cases: Vec<usize> = once.iter().map(|step| step.case).collect();
            assert!(once.iter().all(|step| step.repeat == repeat));
            assert_ne!(cases, (0..8).collect::<Vec<_>>(), "by chance once in 40,320 seeds");
            cases.sort_unstable();
            assert_eq!(cases, (0..8).collect::<Vec<_>>());
        }
        scenario.order = Order::File;
        assert!(scenario.steps(1).chunks(8).all(|once| once.iter().map(|step| step.case).eq(0..8)));
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_a_scenario_or_one_line_of_refusal(
            lines in prop::collection::vec(
                prop::sample::select(vec![
                    "name = \"s\"", "repeats = 2", "[[cases]]", "kind = \"compare\"", "kind = \"pool\"", "group = \"single\"",
                    "baseline = \"drop:no-touch\"", "candidates = [\"drop:read-data\"]", "[cases.matrix]", "size = [64, 1500]",
                    "size = 64", "matrix.size = [64]", "= 3", "seconds = -1", "[cases", "mtu = 1e3", "x = {", "\u{0}",
                ]),
                0..12,
            )
        ) {
            if let Err(error) = scenario(&lines.join("\n")) {
                prop_assert!(!error.to_string().contains('\n'));
            }
        }
    }
}
