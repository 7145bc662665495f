//! Any bytes, as any format: no panic, numbers that JSON has, within the bounds, and the same result again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xdplab::import::{Format, Import, Imported, Options, Series, read};

fuzz_target!(|data: &[u8]| {
    // The first byte chooses the format, so that every parser is reached by itself too.
    let (choice, text) = data.split_first().map_or((0, data), |(first, rest)| (usize::from(*first), rest));
    let options = Options { format: Format::ALL.get(choice).copied(), label: String::new() };
    let text = if options.format.is_some() { text } else { data };
    let import = run(text, &options);
    for block in &import.blocks {
        assert!(block.series.iter().all(|series| series.values.len() <= Series::MAX_VALUES));
        for cost in block.series.iter().filter_map(|series| series.cost) {
            assert!(cost.ns.is_finite() && cost.ns >= 0.0 && cost.rounding_ns.is_finite());
        }
        let json = serde_json::to_string(block).expect("a result is JSON");
        let back: Imported = serde_json::from_str(&json).expect("JSON comes back");
        assert_eq!(&back, block);
    }
    assert_eq!(run(text, &options), import);
});

fn run(text: &[u8], options: &Options) -> Import {
    let mut import = Import::default();
    read(text, "-", options, &mut import).expect("memory can be read");
    import
}
