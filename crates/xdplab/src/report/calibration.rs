//! A calibration as text: a table in Markdown, with what is needed to repeat it.

use crate::calibrate::{ADDED_NS, Calibration, Proportion, Row, rows, slice_sizes, usual_errors};
use crate::reading::Reading;
use crate::run::PROGRAM_ONLY;
use crate::stats::{Difference, median};

/// Date, machine, command, table, and what the instrument itself costs.
#[must_use]
pub fn calibration_text(calibration: &Calibration) -> String {
    let settings = &calibration.settings;
    let mut text = format!("{}\n\n", calibration.environment.one_line());
    text += &format!(
        "`{}`, {} to {}; {} of {} runs, {} rounds of {} copies, {}, seed {}; {}\n\n",
        calibration.tool.argv.join(" "),
        calibration.started,
        calibration.stopped.as_deref().unwrap_or("now"),
        calibration.runs.len(),
        settings.runs(),
        settings.rounds,
        settings.copies,
        settings.placement,
        settings.seed,
        load(calibration),
    );
    text += &table(&rows(calibration));
    text += "\nThe truth is 0 between equal programs; elsewhere it is the location (Hodges-Lehmann) of all comparisons of full \
             length, so that their own bias is 0 by construction, and the program alone is there to check it: it agrees \
             where the core is waited for, and costs less where memory is, since nothing else uses the caches there. What a \
             program costs that waits for memory changes with what else uses the caches, and so from run to run; the two \
             comparisons that each run holds of every kind share its conditions, and agree where the difference of their \
             results is within its interval. ± is the standard error; shares have their 95 % interval. Shorter comparisons are the first rounds of the longer ones.\n\n";
    text += &with_added(&rows(calibration));
    text += &match usual_errors(calibration) {
        Some(usual) => format!(
            "The usual way, two runs of {} s of the same program one after the other and their means, {} times: half of the \
             results are off by less than {:.2} ns, 95 % by less than {:.2} ns.\n",
            usual.seconds, usual.comparisons, usual.error_50_ns, usual.error_95_ns
        ),
        None => "The usual way: not available (no run yet)\n".into(),
    };
    text += &instrument(calibration);
    text
}

fn load(calibration: &Calibration) -> String {
    let mut loads: Vec<f64> = calibration.runs.iter().filter_map(|run| Some(run.load_average.known()?[0])).collect();
    loads.sort_unstable_by(f64::total_cmp);
    let failed = calibration.runs.iter().filter(|run| !run.failed_guards.is_empty()).count();
    match (loads.first().copied(), loads.last().copied(), median(&mut loads)) {
        (Some(least), Some(most), Some(middle)) => {
            format!("load average {least:.1} to {most:.1}, median {middle:.1}; a guard failed in {failed} runs")
        }
        _ => "load average not available".into(),
    }
}

fn table(rows: &[Row]) -> String {
    let header = [
        "planted",
        "seconds",
        "comparisons",
        "truth, ns",
        "program alone, ns",
        "bias, ns",
        "95 % of errors below, ns",
        "half interval, ns",
        "interval holds truth",
        "called different",
        "two of a run agree",
    ];
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&header.map(str::to_owned)) + &line(&header.map(|_| "---".to_owned()));
    for row in rows {
        text += &line(&cells(row));
    }
    text
}

fn cells(row: &Row) -> [String; 11] {
    let comparisons = match row.without_result {
        0 => row.comparisons.to_string(),
        without => format!("{} ({without} more had too few slices)", row.comparisons),
    };
    let different = match row.wrong_sign {
        0 => share(row.called_different),
        wrong => format!("{} ({wrong} faster)", share(row.called_different)),
    };
    [
        row.planted.map_or("nothing (A/A)".into(), |planted| planted.to_string()),
        row.seconds.to_string(),
        comparisons,
        row.truth_error_ns.map_or(format!("{:.2}", row.truth_ns), |error| format!("{:.2} ± {error:.2}", row.truth_ns)),
        row.alone.as_ref().map_or(String::new(), difference),
        format!("{:+.2} ± {:.2}", row.bias_ns, row.bias_error_ns),
        format!("{:.2}", row.error_95_ns),
        format!("{:.2}", row.half_width_ns),
        share(row.coverage),
        different,
        row.pairs_agree.map_or(String::new(), share),
    ]
}

/// How often a difference that is known exactly is found.
fn with_added(rows: &[Row]) -> String {
    let found =
        rows.iter().filter_map(|row| Some(format!("{} of those of {} s", share(row.called_with_added?), row.seconds)));
    let found: Vec<String> = found.collect();
    format!(
        "With {ADDED_NS} ns per packet added to, or taken off, every slice of one side of the A/A comparisons, they are called \
         different in {}.\n\n",
        if found.is_empty() { "no case (no run yet)".into() } else { found.join(", ") }
    )
}

fn share(proportion: Proportion) -> String {
    let percent = |share: f64| share * 100.0;
    proportion.share().map_or("not available".into(), |share| {
        format!("{:.1} % [{:.1}, {:.1}]", percent(share), percent(proportion.low), percent(proportion.high))
    })
}

fn difference(reading: &Reading<Difference>) -> String {
    match reading {
        Reading::Known(Difference { delta, .. }) => {
            format!("{:.2} [{:.2}, {:.2}]", delta.estimate, delta.low, delta.high)
        }
        Reading::NotAvailable { why } => format!("not available ({why})"),
    }
}

/// What the dispatcher and the counter cost, and whether the length of slices matters.
fn instrument(calibration: &Calibration) -> String {
    let known = |delta: Difference| difference(&Reading::Known(delta));
    let mut text = match calibration.overhead {
        Some(overhead) => format!(
            "The dispatcher costs {} ns per packet, a program's counter {} ({PROGRAM_ONLY}).\n",
            known(overhead.dispatcher),
            known(overhead.counter)
        ),
        None => "What the dispatcher costs: not available (not measured yet)\n".into(),
    };
    let sizes = slice_sizes(calibration);
    let list: Vec<String> =
        sizes.differences.iter().map(|(packets, found)| format!("{packets} packets {}", difference(found))).collect();
    text += &format!("{} by the length of a slice, ns: {}", sizes.planted, list.join(", "));
    text += match sizes.agree {
        Some(true) => "; the intervals have a value in common\n",
        Some(false) => "; the intervals have NO value in common\n",
        None => "; not available (too few results)\n",
    };
    text
}
