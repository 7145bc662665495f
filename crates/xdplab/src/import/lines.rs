//! Lines of text, with the marks that mail programs and terminals put into them taken off.

use std::io::{self, BufRead, Read};

/// The longest line held; a longer one comes in pieces.
const MAX_LINE: u64 = 1 << 16;
/// Words looked at in a line.
const MAX_WORDS: usize = 32;

/// Reads lines one at a time in memory that does not grow.
pub(super) struct Lines<R> {
    input: R,
    number: u64,
    bytes: Vec<u8>,
    text: String,
    inside: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, number: 0, bytes: Vec::new(), text: String::new(), inside: false }
    }

    /// The next line without quote marks and its number, from 1, or `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, &str)>> {
        self.bytes.clear();
        if self.input.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.bytes)? == 0 {
            return Ok(None);
        }
        let starts = !std::mem::replace(&mut self.inside, !self.bytes.ends_with(b"\n"));
        self.number += u64::from(starts);
        let text = match str::from_utf8(&self.bytes) {
            Ok(text) if !may_hold_controls(&self.bytes) => text,
            _ => {
                let text = String::from_utf8_lossy(&self.bytes);
                self.text = text.chars().filter(|character| !character.is_control() || *character == '\t').collect();
                &self.text
            }
        };
        Ok(Some((self.number, if starts { unquoted(text.trim_end()) } else { text.trim_end_matches(['\r', '\n']) })))
    }
}

/// Whether there may be control characters, which no tool's figures have and no terminal should get.
fn may_hold_controls(line: &[u8]) -> bool {
    // Those of Unicode begin with 0xc2.
    line.iter().any(|&byte| (byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r')) || matches!(byte, 0x7f | 0xc2))
}

/// The line without quote marks (`> `, `>> `, `| `) and without what a terminal echoes for Ctrl-C and Ctrl-\. A line that
/// ends in `|` too is a row of a table and keeps its bars.
fn unquoted(line: &str) -> &str {
    let mut rest = line;
    loop {
        let text = rest.trim_start();
        let bar = if text.ends_with('|') { None } else { text.strip_prefix('|') };
        match text.strip_prefix('>').or(bar).or_else(|| text.strip_prefix("^C")).or_else(|| text.strip_prefix("^\\")) {
            Some(inner) => rest = inner,
            None => return rest,
        }
    }
}

/// A line and its words.
pub(super) struct Line<'a> {
    /// The line.
    pub(super) text: &'a str,
    words: [&'a str; MAX_WORDS],
    count: usize,
}

impl<'a> Line<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut words = [""; MAX_WORDS];
        let mut count = 0;
        for word in text.split_ascii_whitespace().take(MAX_WORDS) {
            words[count] = word;
            count += 1;
        }
        Self { text, words, count }
    }

    /// The words: none in a blank line, and not those of a very long one's end.
    pub(super) fn words(&self) -> &[&'a str] {
        &self.words[..self.count]
    }
}

/// The text between `before` and the next `after`.
pub(super) fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(after)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<(u64, String)> {
        let mut lines = Lines::new(text);
        let mut found = Vec::new();
        while let Some((number, line)) = lines.next().unwrap() {
            found.push((number, line.to_owned()));
        }
        found
    }

    #[test]
    fn quote_marks_and_echoed_control_keys_are_taken_off() {
        let text = b"> > Summary 1 rx/s\r\n>> | Summary\n^C  Duration : 1.0s\n| a | b |\n> | a | b |\n";
        let lines: Vec<String> = all(text).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, [" Summary 1 rx/s", " Summary", "  Duration : 1.0s", "| a | b |", " | a | b |"]);
    }

    #[test]
    fn a_line_without_an_end_comes_in_pieces_under_one_number() {
        let mut text = vec![b'x'; 3 * MAX_LINE as usize];
        text.extend(b"\nlast");
        let pieces = all(&text);
        assert_eq!(pieces.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 1, 1, 1, 2]);
        assert_eq!(pieces[4].1, "last");
    }

    #[test]
    fn control_characters_are_taken_out() {
        assert_eq!(all("a\u{1b}[31mb\u{9b}\tc ± d\n".as_bytes()), [(1, "a[31mb\tc ± d".to_owned())]);
    }

    #[test]
    fn bytes_that_are_no_text_are_no_error() {
        assert_eq!(all(b"a\xff\xfeb\n\n")[1], (2, String::new()));
    }
}
