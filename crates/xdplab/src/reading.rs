//! A value read from the machine, or the reason why there is none.

use std::fmt;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// What reading a value gave. A value that can't be read is never 0 and never left out: its place says why.
///
/// In JSON a known value stands for itself; the other case is `{"not_available": "why"}`. The value's own JSON must not
/// be an object with a field of that name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Reading<T> {
    /// There is no value.
    NotAvailable {
        /// The reason, e.g. `/proc/config.gz: ENOENT (No such file or directory)`.
        #[serde(rename = "not_available")]
        why: String,
    },
    /// The value.
    Known(T),
}

impl<T> Reading<T> {
    /// No value, because of `why`.
    #[must_use]
    pub fn not_available(why: impl Into<String>) -> Self {
        Self::NotAvailable { why: why.into() }
    }

    /// The value, where there is one.
    #[must_use]
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::NotAvailable { .. } => None,
        }
    }

    /// The value or the reason, borrowed.
    #[must_use]
    pub fn as_ref(&self) -> Reading<&T> {
        match self {
            Self::Known(value) => Reading::Known(value),
            Self::NotAvailable { why } => Reading::not_available(why),
        }
    }

    /// The reading as a result whose error is the reason.
    ///
    /// # Errors
    /// The reason why there is no value.
    pub fn into_result(self) -> Result<T, String> {
        match self {
            Self::Known(value) => Ok(value),
            Self::NotAvailable { why } => Err(why),
        }
    }

    /// The value changed by `f`, the reason kept.
    #[must_use]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        self.into_result().map(f).into()
    }

    /// What `f` reads out of the value, the reason kept.
    #[must_use]
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Self::Known(value) => f(value),
            Self::NotAvailable { why } => Reading::NotAvailable { why },
        }
    }

    /// This value, else what `f` reads; the reason of both where neither has one.
    #[must_use]
    pub fn or_else(self, f: impl FnOnce() -> Self) -> Self {
        let Self::NotAvailable { why } = self else { return self };
        match f() {
            Self::NotAvailable { why: other } => Self::NotAvailable { why: format!("{why}; {other}") },
            known @ Self::Known(_) => known,
        }
    }
}

/// By way of a JSON value, which keeps maps with numbers as keys readable; serde's own untagged way does not.
impl<'de, T: DeserializeOwned> Deserialize<'de> for Reading<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match value.get("not_available").and_then(Value::as_str) {
            Some(why) => Ok(Self::not_available(why)),
            None => T::deserialize(value).map(Self::Known).map_err(D::Error::custom),
        }
    }
}

impl<T, E: fmt::Display> From<Result<T, E>> for Reading<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::Known(value),
            Err(error) => Self::not_available(error.to_string()),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Reading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(value) => value.fmt(f),
            Self::NotAvailable { why } => write!(f, "not available ({why})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_known_value_stands_for_itself_in_json_and_a_missing_one_says_why() {
        assert_eq!(serde_json::to_string(&Reading::Known(3)).unwrap(), "3");
        let missing = Reading::<u64>::not_available("no such file");
        assert_eq!(serde_json::to_string(&missing).unwrap(), r#"{"not_available":"no such file"}"#);
    }

    #[test]
    fn a_map_and_a_reason_are_told_apart_in_json() {
        type Map = Reading<BTreeMap<String, String>>;
        for reading in [Map::Known(BTreeMap::from([("srso".into(), "Vulnerable".into())])), Map::not_available("gone")]
        {
            let json = serde_json::to_string(&reading).unwrap();
            assert_eq!(serde_json::from_str::<Map>(&json).unwrap(), reading);
        }
    }

    #[test]
    fn numbers_as_keys_and_readings_within_readings_come_back() {
        type Shares = Reading<BTreeMap<u32, Reading<f64>>>;
        let shares = Shares::Known([(0, Reading::Known(0.1 + 0.2)), (7, Reading::not_available("offline"))].into());
        let json = serde_json::to_string(&shares).unwrap();
        assert_eq!(serde_json::from_str::<Shares>(&json).unwrap(), shares);
        assert!(serde_json::from_str::<Shares>(r#"{"x": 1}"#).is_err());
    }

    #[test]
    fn where_no_source_has_the_value_every_reason_is_kept() {
        let neither = Reading::<u8>::not_available("a: gone").or_else(|| Reading::not_available("b: gone"));
        assert_eq!(neither.to_string(), "not available (a: gone; b: gone)");
        assert_eq!(Reading::Known(1).or_else(|| Reading::Known(2)), Reading::Known(1));
        assert_eq!(Reading::not_available("a: gone").or_else(|| Reading::Known(2)).to_string(), "2");
    }
}
