//! `xdplab completions` and `xdplab man`: made from the same definitions as `--help`.

use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Arguments, Ending, output};
use crate::error::{Error, Result};

/// Options of completions.
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Options of man.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Write a page for each command into this folder, which is made if need be; without it, the first page goes to standard
    /// output
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Prints the completions.
pub(crate) fn completions(options: &Completions) -> Result<Ending> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Arguments::command(), "xdplab", &mut script);
    output::text(&String::from_utf8_lossy(&script))?;
    Ok(Ending::Done)
}

/// Prints or writes the pages.
pub(crate) fn man(options: &Man) -> Result<Ending> {
    let what =
        || options.folder.as_ref().map_or("write the page".into(), |to| format!("write pages to {}", to.display()));
    let failed = |error: std::io::Error| Error::io(what(), "write", &error);
    match &options.folder {
        Some(folder) => {
            fs::create_dir_all(folder).map_err(|error| Error::io(what(), "mkdir", &error))?;
            clap_mangen::generate_to(Arguments::command(), folder).map_err(failed)?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Arguments::command()).render(&mut page).map_err(failed)?;
            output::text(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Ending::Done)
}
