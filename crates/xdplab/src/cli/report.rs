//! `xdplab report`: records told again, in any format. Needs no privileges.

use std::fs;
use std::path::PathBuf;

use clap::Args;

use super::{Ending, output};
use crate::error::{Error, Result};
use crate::record::Record;
use crate::report::{Format, Report};

/// Options of report.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Records, as other commands write them with --record
    #[arg(value_name = "RECORD", required = true)]
    records: Vec<PathBuf>,
    /// How to write it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Write it to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Reads, and writes the report.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let read = |path: &PathBuf| Ok((path.display().to_string(), Record::read(path)?));
    let records = options.records.iter().map(read).collect::<Result<Vec<_>>>()?;
    let text = Report::of(&records).write(options.format)?;
    match &options.output {
        None => output::text(&text)?,
        Some(path) => fs::write(path, text)
            .map_err(|error| Error::io(format!("write the report {}", path.display()), "write", &error))?,
    }
    Ok(Ending::Done)
}
