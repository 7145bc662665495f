//! What is printed of a record. It sees the record and nothing else.

mod text;

pub use text::case_text;
