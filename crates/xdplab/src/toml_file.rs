//! TOML that users write: every mistake is told with file, line, key and what is allowed.

use std::fs;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::error::{Error, Result};

/// The text of a TOML file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TomlFile {
    /// What was to be done with it, e.g. `read the scenario e1.toml`.
    what: String,
    text: String,
}

impl TomlFile {
    /// Reads a file that holds a `kind`, such as a scenario.
    ///
    /// # Errors
    /// The file can't be read, or is no text.
    pub fn read(kind: &str, path: &Path) -> Result<Self> {
        let what = format!("read the {kind} {}", path.display());
        let text = fs::read_to_string(path).map_err(|error| Error::io(&what, "open", &error))?;
        Ok(Self { what, text })
    }

    /// A text that comes from elsewhere, such as a record; `what` is what was to be done with it.
    #[must_use]
    pub fn of(what: impl Into<String>, text: impl Into<String>) -> Self {
        Self { what: what.into(), text: text.into() }
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Everything in it, as a value.
    ///
    /// # Errors
    /// It is no TOML, or not what the value is made of.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        self.value(self.root()?)
    }

    /// The top level table with the place of everything in it.
    ///
    /// # Errors
    /// It is no TOML.
    pub fn root(&self) -> Result<Spanned<DeValue<'_>>> {
        let table = DeTable::parse(&self.text).map_err(|error| self.refused(&error))?;
        Ok(Spanned::new(table.span(), DeValue::Table(table.into_inner())))
    }

    /// A part of it as a value.
    ///
    /// # Errors
    /// The part is not what the value is made of.
    pub fn value<T: DeserializeOwned>(&self, part: Spanned<DeValue<'_>>) -> Result<T> {
        T::deserialize(ValueDeserializer::from(part)).map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &toml::de::Error) -> Error {
        self.wrong(&error.span().unwrap_or(0..0), error.message())
    }

    /// An error about what is at this place.
    #[must_use]
    pub fn wrong(&self, place: &Range<usize>, why: impl AsRef<str>) -> Error {
        let line = self.text.bytes().take(place.start).filter(|byte| *byte == b'\n').count() + 1;
        let key = DeTable::parse(&self.text).ok().and_then(|table| key_at(table.get_ref(), place));
        let key = key.map_or(String::new(), |key| format!(", key `{key}`"));
        Error::usage(&self.what, format!("line {line}{key}: {}", why.as_ref()))
    }
}

/// The dotted key of the innermost entry that holds `place`.
fn key_at(table: &DeTable<'_>, place: &Range<usize>) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let name = key.get_ref();
        if let Some(inner) = key_in(value.get_ref(), place) {
            return Some(format!("{name}{}", inner));
        }
        (holds(&key.span(), place) || holds(&value.span(), place)).then(|| name.to_string())
    })
}

/// The rest of the key within a value, with the dot or index that it begins with.
fn key_in(value: &DeValue<'_>, place: &Range<usize>) -> Option<String> {
    match value {
        DeValue::Table(table) => key_at(table, place).map(|key| format!(".{key}")),
        DeValue::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let inner = key_in(item.get_ref(), place);
            let inner = inner.or_else(|| holds(&item.span(), place).then(String::new))?;
            Some(format!("[{index}]{inner}"))
        }),
        _ => None,
    }
}

fn holds(outer: &Range<usize>, place: &Range<usize>) -> bool {
    outer.start <= place.start && place.end <= outer.end && !place.is_empty()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Plan {
        #[expect(dead_code, reason = "only what is wrong is looked at")]
        seconds: f64,
        #[serde(default)]
        #[expect(dead_code, reason = "only what is wrong is looked at")]
        rows: Vec<BTreeMap<String, u16>>,
    }

    fn refusal(text: &str) -> String {
        TomlFile::of("read the plan p.toml", text).parse::<Plan>().unwrap_err().to_string()
    }

    #[test]
    fn a_mistake_is_told_with_its_line_its_key_and_what_is_allowed() {
        assert_eq!(
            refusal("# a plan\nseconds = \"ten\"\n"),
            "can't read the plan p.toml: line 2, key `seconds`: invalid type: string \"ten\", expected f64"
        );
        assert_eq!(
            refusal("seconds = 1.0\nminutes = 2\n"),
            "can't read the plan p.toml: line 2, key `minutes`: unknown field `minutes`, expected `seconds` or `rows`"
        );
        assert_eq!(
            refusal("seconds = 1.0\n[[rows]]\na = 1\n\n[[rows]]\na = 1\nb = 70000\n"),
            "can't read the plan p.toml: line 7, key `rows[1].b`: invalid value: integer `70000`, expected u16"
        );
        assert!(refusal("rows = []\n").contains("missing field `seconds`"));
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        let error = refusal("seconds = 1.0\nrows = [\n");
        assert!(error.starts_with("can't read the plan p.toml: line 2: unclosed array"), "{error}");
        let twice = refusal("seconds = 1.0\nseconds = 2.0\n");
        assert!(twice.starts_with("can't read the plan p.toml: line 2: duplicate key"), "{twice}");
    }
}
