//! What is printed of a record. It sees the record and nothing else.
//!
//! [`view`] says what is told; each format writes that, so that a number is the same in all of them.

mod across;
mod calibration;
mod csv;
mod explain;
mod html;
mod imported;
mod kernels;
mod labs;
mod mail;
mod markdown;
mod pool;
mod repeated;
mod scenario;
mod svg;
mod table;
mod text;
pub mod view;

pub use across::across_text;
pub use calibration::calibration_text;
pub use explain::explain_text;
pub use imported::import_text;
pub use kernels::{kernels_table, kernels_text};
pub use labs::labs_text;
pub use pool::{kernel_pool_text, pool_bounds_text, pool_text, published_text};
pub use repeated::{recounted_text, remeasured_text, repeated_text};
pub use scenario::{last_done_text, scenario_text};
pub use table::{Cell, Column, Table, Tone};
pub use text::{case_text, settings_text};
pub use view::Report;

use crate::error::{Error, Result};

/// How a report is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a terminal
    #[default]
    Text,
    /// Plain text of at most 72 columns, to paste under a patch
    Mail,
    /// Markdown with tables, as GitHub and GitLab take it
    Markdown,
    /// One page with drawings that needs nothing else, for light and dark screens
    Html,
    /// A line for each figure, with all its digits
    Csv,
    /// Everything, with all digits
    Json,
}

impl Report {
    /// The report in a format.
    ///
    /// # Errors
    /// Never, with the numbers that a record can hold.
    pub fn write(&self, format: Format) -> Result<String> {
        Ok(match format {
            Format::Text => text::report(self),
            Format::Mail => mail::report(self),
            Format::Markdown => markdown::report(self),
            Format::Html => html::report(self),
            Format::Csv => csv::report(self),
            Format::Json => {
                serde_json::to_string_pretty(self)
                    .map_err(|error| Error::invalid("write the report as JSON", error.to_string()))?
                    + "\n"
            }
        })
    }
}
