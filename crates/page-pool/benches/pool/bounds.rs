//! The bounds the pool is built to, checked within the run.

use crate::table::Table;

/// Prints each bound and whether it holds; true if all do.
///
/// "Direct" is the return on the owner's thread: of a `LocalFrame`, which needs no test there, unless `Frame` is said. The
/// bulk return through the ring is compared in bursts (T2), which is where frames come in bulk.
pub(crate) fn check(t1: &Table, t2: &Table, t3: &Table, t5: &Table) -> bool {
    let (direct, frame, explicit) =
        ("page-pool: LocalFrame drop", "page-pool: Frame drop", "page-pool: direct, explicit");
    let p10 = t3.p10("ArrayQueue") / t3.p10("page-pool: lane, bulk 16");
    let bounds = [
        ("ArrayQueue / direct (T1)", t1.ratio("ArrayQueue", direct), '≥', 4.0),
        ("mimalloc / direct (T1)", t1.ratio("mimalloc", direct), '≥', 6.0),
        ("mimalloc / Frame drop (T1)", t1.ratio("mimalloc", frame), '≥', 6.0),
        ("Frame drop, ns (T1)", t1.median(frame), '≤', 6.72),
        ("Frame drop / explicit (T1)", t1.ratio(frame, explicit), '≤', 1.6),
        ("LocalFrame drop / explicit (T1)", t1.ratio(direct, explicit), '≤', 1.05),
        ("ring, bulk 16 / direct (T2)", t2.ratio("page-pool: ring, bulk 16", direct), '≤', 1.5),
        ("ring, single / direct (T2)", t2.ratio("page-pool: ring, single", direct), '≤', 4.0),
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
