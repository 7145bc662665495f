//! `xdplab help`: the help of a command, or a page about what the figures mean.

use clap::{Args, Parser as _};

use super::{Arguments, Ending, output};
use crate::error::{Error, Result};
use crate::help::PAGES;

/// Options of help.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A command, or a topic: method, verdicts, guards, placement, variants or records
    #[arg(value_name = "COMMAND|TOPIC")]
    words: Vec<String>,
}

/// Prints the page or the help.
pub(crate) fn run(options: &Options) -> Result<Ending> {
    if let [topic] = &options.words[..]
        && let Some(page) = PAGES.iter().find(|page| page.name.eq_ignore_ascii_case(topic))
    {
        output::text(page.text)?;
        return Ok(Ending::Done);
    }
    let words = options.words.iter().map(String::as_str);
    let arguments = ["xdplab"].into_iter().chain(words).chain(["--help"]);
    match Arguments::try_parse_from(arguments) {
        Err(help) if !help.use_stderr() => help.exit(),
        Ok(_) | Err(_) => Err(unknown(&options.words.join(" "))),
    }
}

fn unknown(words: &str) -> Error {
    let topics: Vec<&str> = PAGES.iter().map(|page| page.name).collect();
    Error::usage(format!("help with `{words}`"), "there is no such command or topic")
        .remedy(format!("topics are {}; `xdplab --help` lists the commands", topics.join(", ")))
}
