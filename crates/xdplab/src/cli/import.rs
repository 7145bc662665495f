//! `xdplab import`: results of other tools, from the text they print. Needs no privileges.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{Ending, output};
use crate::error::{Error, Result};
use crate::import::{self, Format, Import};
use crate::record::Record;
use crate::report;

/// Options of import.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Files with what the tools printed; `-` is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    files: Vec<PathBuf>,
    /// Read the files in this format alone instead of finding it line by line
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Format::ALL.iter().map(|format| format.name()))
        .try_map(|name| name.parse::<Format>()))]
    format: Option<Format>,
    /// Put a label before those found in the text; once for each FILE, in order
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// Write a record for `compare` and `report`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print one JSON object for each result, and one for what was not understood
    #[arg(long)]
    json: bool,
}

/// Bytes read at once.
const CHUNK: usize = 1 << 17;

/// Imports, prints, and writes the record.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let mut import = Import::default();
    for (path, label) in options.files.iter().zip(labels(options)?) {
        read(path, &import::Options { format: options.format, label }, &mut import)?;
    }
    if import.blocks.is_empty() {
        let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
        return Err(Error::usage(
            "import",
            format!("none of the {} lines is a result of a known tool", import.not_understood.count),
        )
        .remedy(format!("known formats are {}", names.join(", "))));
    }
    if let Some(path) = &options.record {
        Record::of_imported(import.blocks.clone(), std::env::args().collect()).write(path)?;
    }
    if options.json {
        print_json(&import)?
    } else {
        output::text(&report::import_text(&import))?
    }
    Ok(Ending::Done)
}

/// A label for each file: the user's; else its name, where there are several.
fn labels(options: &Options) -> Result<Vec<String>> {
    let (files, labels) = (options.files.len(), options.labels.len());
    if labels == files {
        return Ok(options.labels.clone());
    }
    if labels > 0 {
        return Err(Error::usage("import", format!("{labels} labels for {files} files"))
            .remedy("give --label once for each FILE"));
    }
    let name = |path: &PathBuf| if files > 1 { path.display().to_string() } else { String::new() };
    Ok(options.files.iter().map(name).collect())
}

fn read(path: &Path, options: &import::Options, import: &mut Import) -> Result<()> {
    let name = path.display().to_string();
    if name == "-" {
        return import::read(std::io::stdin().lock(), &name, options, import);
    }
    let file = File::open(path).map_err(|error| Error::io(format!("import {name}"), "open", &error))?;
    import::read(BufReader::with_capacity(CHUNK, file), &name, options, import)
}

fn print_json(import: &Import) -> Result<()> {
    for block in &import.blocks {
        output::text(&format!("{}\n", serde_json::json!({ "schema": "xdplab.import/1", "result": block })))?;
    }
    let rest = serde_json::json!({
        "schema": "xdplab.import/1", "not_understood": import.not_understood, "left_out": import.left_out
    });
    output::text(&format!("{rest}\n"))
}
