//! `xdplab doctor`: what can be measured here, and why not.

use clap::Args;

use super::{Ending, output};
use crate::error::{Error, Result};
use crate::host;

/// Options of doctor.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Examine this interface too
    #[arg(value_name = "IFACE")]
    interface: Option<String>,
    /// Print one JSON object for each line
    #[arg(long)]
    json: bool,
}

/// Examines the machine and prints what it found.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    let mut lines = host::examine()?;
    if let Some(interface) = &options.interface {
        lines.extend(host::examine_interface(interface)?);
    }
    if !options.json {
        output::text(&host::render_text(&lines))?;
        return Ok(Ending::Done);
    }
    for line in &lines {
        let json = serde_json::to_string(line).map_err(|error| Error::invalid("write JSON", error.to_string()))?;
        output::text(&(json + "\n"))?;
    }
    Ok(Ending::Done)
}
