//! What is printed of a record. It sees the record and nothing else.

mod across;
mod text;

pub use across::across_text;
pub use text::case_text;
