//! JSON numbers with the digits that they are given; all else is `serde_json`'s.

use serde::{Serialize, Serializer};
use serde_json::{Map, Number, Value};

pub(crate) type Object = Map<String, Value>;

/// A number with so many decimals; `null` for none, and for what is no number in JSON.
pub(crate) fn decimal(value: impl Into<Option<f64>>, digits: usize) -> Value {
    let finite = value.into().filter(|value| value.is_finite());
    finite.map_or(Value::Null, |value| number(&format!("{value:.digits$}")))
}

/// An object of these entries.
pub(crate) fn entries<K: Serialize, V: Serialize>(entries: impl Iterator<Item = (K, V)>) -> impl Serialize {
    struct Entries<K, V>(Vec<(K, V)>);
    impl<K: Serialize, V: Serialize> Serialize for Entries<K, V> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
        }
    }
    Entries(entries.collect())
}

/// Seconds with nine decimals, exact.
pub(crate) fn seconds(nanoseconds: u64) -> Value {
    number(&format!("{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000))
}

fn number(digits: &str) -> Value {
    digits.parse::<Number>().map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_keep_their_digits_and_fields_their_order() {
        let object = json!({
            "time": seconds(1_000_000_001),
            "long": u64::MAX,
            "half": decimal(0.5, 4),
            "absent": decimal(None, 4),
            "endless": decimal(f64::INFINITY, 2),
            "error": "a \"b\"\\\n\u{1}",
        });
        let shown = r#"{"time":1.000000001,"long":18446744073709551615,"half":0.5000,"absent":null,"endless":null,"error":"a \"b\"\\\n\u0001"}"#;
        assert_eq!(object.to_string(), shown);
    }
}
