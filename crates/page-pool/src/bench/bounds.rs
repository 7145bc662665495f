//! The bounds the pool is built to, checked within the run.

use crate::table::Table;

/// Prints each bound and whether it holds; true if all do.
///
/// The return on the owner's thread is bounded for both of its types: `Frame`, which tests where it is, and `LocalFrame`,
/// which need not. So is the bulk return through the ring, one frame at a time (T1) and in bursts (T2).
pub(crate) fn check(t1: &Table, t2: &Table, t3: &Table, t5: &Table) -> bool {
    let (local, frame, explicit) =
        ("page-pool: LocalFrame drop", "page-pool: Frame drop", "page-pool: direct, explicit");
    let p10 = t3.p10("ArrayQueue") / t3.p10("page-pool: lane, bulk 16");
    let bounds = [
        ("ArrayQueue / Frame drop (T1)", t1.ratio("ArrayQueue", frame), '≥', 4.0),
        ("ArrayQueue / LocalFrame drop (T1)", t1.ratio("ArrayQueue", local), '≥', 4.0),
        ("mimalloc / Frame drop (T1)", t1.ratio("mimalloc", frame), '≥', 6.0),
        ("mimalloc / LocalFrame drop (T1)", t1.ratio("mimalloc", local), '≥', 6.0),
        ("Frame drop, ns (T1)", t1.median(frame), '≤', 6.72),
        ("Frame drop / explicit (T1)", t1.ratio(frame, explicit), '≤', 1.6),
        ("LocalFrame drop / explicit (T1)", t1.ratio(local, explicit), '≤', 1.05),
        ("ring, bulk 16 / Frame drop (T1)", t1.ratio("page-pool: ring, bulk 16", frame), '≤', 1.5),
        ("ring, bulk 16 / Frame drop (T2)", t2.ratio("page-pool: ring, bulk 16", frame), '≤', 1.5),
        ("ring, bulk 16 / LocalFrame drop (T2)", t2.ratio("page-pool: ring, bulk 16", local), '≤', 1.5),
        ("ring, single / Frame drop (T1)", t1.ratio("page-pool: ring, single", frame), '≤', 4.0),
        ("ArrayQueue / lane, p10 (T3)", p10, '≥', 2.5),
        ("side table / flag (T5)", t5.ratio("page-pool: side table, always read", "page-pool: flag"), '≤', 1.15),
        ("counters / no counters (T1)", t1.ratio(explicit, "page-pool: direct, explicit, no counters"), '≤', 1.05),
    ];
    println!("Bounds");
    let mut all = true;
    for (name, value, relation, bound) in bounds {
        let holds = if relation == '≥' { value >= bound } else { value <= bound };
        all &= holds;
        println!("{name:44} {value:9.2} {relation} {bound:<5} {}", if holds { "holds" } else { "MISSED" });
    }
    all
}
