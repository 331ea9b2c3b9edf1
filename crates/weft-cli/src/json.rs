//! One JSON object on one line.

use std::fmt::Write;

/// A JSON object under construction. Keys are written in the order they come.
#[derive(Default)]
pub(crate) struct Object {
    text: String,
}

impl Object {
    fn key(&mut self, key: &str) -> &mut String {
        self.text.push(if self.text.is_empty() { '{' } else { ',' });
        quote(&mut self.text, key);
        self.text.push(':');
        &mut self.text
    }

    pub(crate) fn number(&mut self, key: &str, value: u64) {
        let _ = write!(self.key(key), "{value}");
    }

    /// `null` for `None`.
    pub(crate) fn maybe(&mut self, key: &str, value: Option<u64>) {
        match value {
            Some(value) => self.number(key, value),
            None => self.key(key).push_str("null"),
        }
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        let _ = write!(self.key(key), "{value}");
    }

    pub(crate) fn string(&mut self, key: &str, value: &str) {
        quote(self.key(key), value);
    }

    /// `null` for `None`.
    pub(crate) fn maybe_string(&mut self, key: &str, value: Option<&str>) {
        match value {
            Some(value) => self.string(key, value),
            None => self.key(key).push_str("null"),
        }
    }

    /// Four decimals; `null` for `None` and for what JSON cannot say.
    pub(crate) fn decimal(&mut self, key: &str, value: Option<f64>) {
        let text = value.map_or_else(|| "null".to_string(), decimal);
        self.key(key).push_str(&text);
    }

    pub(crate) fn decimals(&mut self, key: &str, values: impl Iterator<Item = f64>) {
        let values: Vec<String> = values.map(decimal).collect();
        let _ = write!(self.key(key), "[{}]", values.join(","));
    }

    pub(crate) fn strings<'a>(&mut self, key: &str, values: impl Iterator<Item = &'a str>) {
        let text = self.key(key);
        text.push('[');
        for (index, value) in values.enumerate() {
            if index > 0 {
                text.push(',');
            }
            quote(text, value);
        }
        text.push(']');
    }

    pub(crate) fn object(&mut self, key: &str, value: Object) {
        let value = value.finish();
        self.key(key).push_str(&value);
    }

    /// Seconds with nine decimals, exact.
    pub(crate) fn seconds(&mut self, key: &str, nanoseconds: u64) {
        let _ = write!(self.key(key), "{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    }

    pub(crate) fn finish(mut self) -> String {
        if self.text.is_empty() {
            self.text.push('{');
        }
        self.text.push('}');
        self.text
    }
}

fn decimal(value: f64) -> String {
    if value.is_finite() { format!("{value:.4}") } else { "null".to_string() }
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_order_with_escapes() {
        let mut inner = Object::default();
        inner.maybe("none", None);
        let mut object = Object::default();
        object.number("frame", 1);
        object.string("error", "a \"b\"\\\n\u{1}");
        object.strings("list", ["x", "y"].into_iter());
        object.object("fields", inner);
        object.object("empty", Object::default());
        object.seconds("time", 1_000_000_001);
        object.maybe_string("nobody", None);
        object.flag("right", true);
        object.decimal("half", Some(0.5));
        object.decimals("some", [1.25, f64::NAN].into_iter());
        assert_eq!(
            object.finish(),
            r#"{"frame":1,"error":"a \"b\"\\\n\u0001","list":["x","y"],"fields":{"none":null},"empty":{},"time":1.000000001,"nobody":null,"right":true,"half":0.5000,"some":[1.2500,null]}"#
        );
    }
}
