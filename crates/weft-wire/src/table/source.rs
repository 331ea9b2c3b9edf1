//! Definition files as text: TOML with a place for every value, and errors that name the place.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::limits::DEFINITION_LENGTH_MAX_BYTES;

/// What is wrong with a definition, where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionError {
    /// The file, as it was named when it was loaded.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What to write instead.
    pub instead: String,
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}; {}", self.file, self.line, self.column, self.what, self.instead)
    }
}

impl core::error::Error for DefinitionError {}

/// One definition file: a name for messages and the text.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Shown in errors.
    pub file: &'a str,
    /// TOML.
    pub text: &'a str,
}

/// Where something stands: the file's number in the set, and a byte offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: usize,
    pub(crate) at: usize,
}

/// A value with its place.
#[derive(Clone, Debug)]
pub(crate) struct Placed<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
}

/// All files of one load, to turn places into lines.
pub(crate) struct Sources<'a>(pub(crate) &'a [Source<'a>]);

impl Sources<'_> {
    pub(crate) fn error(&self, place: Place, what: impl Into<String>, instead: impl Into<String>) -> DefinitionError {
        let source = self.0.get(place.file).copied().unwrap_or(Source { file: "?", text: "" });
        let mut end = place.at.min(source.text.len());
        while !source.text.is_char_boundary(end) {
            end -= 1;
        }
        let before = source.text.get(..end).unwrap_or("");
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        DefinitionError {
            file: source.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).map_or(0, |line| line.chars().count()) + 1,
            what: what.into(),
            instead: instead.into(),
        }
    }

    /// Parses file number `file` and hands its top table to `read`.
    pub(crate) fn parse<T>(
        &self,
        file: usize,
        read: impl FnOnce(Table<'_>) -> Result<T, DefinitionError>,
    ) -> Result<T, DefinitionError> {
        let text = self.0.get(file).map_or("", |source| source.text);
        let start = Place { file, at: 0 };
        if text.len() > DEFINITION_LENGTH_MAX_BYTES {
            return Err(self.error(
                start,
                format!("the file has {} bytes", text.len()),
                format!("a definition has at most {DEFINITION_LENGTH_MAX_BYTES}"),
            ));
        }
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let what = error.message().replace('\n', ", ");
            self.error(Place { file, at }, what, "the file must be valid TOML")
        })?;
        read(Table { sources: self, table: table.get_ref(), place: start, called: String::new() })
    }
}

/// A TOML table under reading.
pub(crate) struct Table<'a> {
    sources: &'a Sources<'a>,
    table: &'a DeTable<'a>,
    pub(crate) place: Place,
    /// Its name in messages: `header.bth.` or empty at the top.
    called: String,
}

impl<'a> Table<'a> {
    pub(crate) fn error(&self, place: Place, what: impl Into<String>, instead: impl Into<String>) -> DefinitionError {
        self.sources.error(place, what, instead)
    }

    fn place_of(&self, span: core::ops::Range<usize>) -> Place {
        Place { file: self.place.file, at: span.start }
    }

    fn find(&self, key: &str) -> Option<Value<'a>> {
        let value = self.table.get(key)?;
        Some(Value { sources: self.sources, value, file: self.place.file, called: format!("{}{key}", self.called) })
    }

    /// Every key of the table, for tables whose keys are names that the file makes up.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Placed<String>, Value<'a>)> {
        self.table.iter().map(|(key, value)| {
            let name = key.get_ref().to_string();
            let called = format!("{}{name}", self.called);
            let value = Value { sources: self.sources, value, file: self.place.file, called };
            (Placed { value: name, place: self.place_of(key.span()) }, value)
        })
    }

    /// Refuses keys that are not in `known`, with a suggestion.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), DefinitionError> {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let what = format!("unknown name `{}{name}`", self.called);
                return Err(self.error(self.place_of(key.span()), what, suggest(name, known.iter().copied())));
            }
        }
        Ok(())
    }

    pub(crate) fn need(&self, key: &str, example: &str) -> Result<Value<'a>, DefinitionError> {
        self.find(key).ok_or_else(|| {
            let what = format!("`{}{key}` is missing", self.called);
            self.error(self.place, what, format!("write for example `{key} = {example}`"))
        })
    }

    pub(crate) fn maybe(&self, key: &str) -> Option<Value<'a>> {
        self.find(key)
    }

    /// The tables of an array of tables (`[[key]]`); none when it is absent.
    pub(crate) fn tables(&self, key: &str) -> Result<Vec<Table<'a>>, DefinitionError> {
        self.maybe(key).map_or(Ok(Vec::new()), |value| value.array()?.into_iter().map(Value::table).collect())
    }
}

/// A TOML value under reading.
#[derive(Clone)]
pub(crate) struct Value<'a> {
    sources: &'a Sources<'a>,
    value: &'a Spanned<DeValue<'a>>,
    file: usize,
    called: String,
}

impl<'a> Value<'a> {
    pub(crate) fn place(&self) -> Place {
        Place { file: self.file, at: self.value.span().start }
    }

    pub(crate) fn error(&self, what: impl Into<String>, instead: impl Into<String>) -> DefinitionError {
        self.sources.error(self.place(), what, instead)
    }

    fn wrong(&self, wanted: &str) -> DefinitionError {
        let found = self.value.get_ref().type_str();
        self.error(format!("`{}` is a TOML {found}", self.called), format!("write {wanted}"))
    }

    pub(crate) fn string(&self) -> Result<Placed<String>, DefinitionError> {
        let text = self.value.get_ref().as_str().ok_or_else(|| self.wrong("a string in quotes"))?;
        // Names and titles reach terminals.
        if text.chars().any(char::is_control) {
            let what = format!("`{}` has control characters", self.called);
            return Err(self.error(what, "write plain text on one line"));
        }
        Ok(Placed { value: text.to_owned(), place: self.place() })
    }

    pub(crate) fn flag(&self) -> Result<bool, DefinitionError> {
        self.value.get_ref().as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    /// An integer in a range.
    pub(crate) fn integer(&self, range: core::ops::RangeInclusive<u64>) -> Result<u64, DefinitionError> {
        let integer = self.value.get_ref().as_integer().ok_or_else(|| self.wrong("a whole number"))?;
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let what = format!("`{}` is {}", self.called, integer.as_str());
            self.error(what, format!("it must be {} to {:#x}", range.start(), range.end()))
        })
    }

    pub(crate) fn array(&self) -> Result<Vec<Value<'a>>, DefinitionError> {
        let array = self.value.get_ref().as_array().ok_or_else(|| self.wrong("a list in brackets"))?;
        let one = |value| Value { sources: self.sources, value, file: self.file, called: self.called.clone() };
        Ok(array.iter().map(one).collect())
    }

    pub(crate) fn strings(&self) -> Result<Vec<Placed<String>>, DefinitionError> {
        self.array()?.iter().map(Value::string).collect()
    }

    /// A string, or a list of strings.
    pub(crate) fn one_or_more(&self) -> Result<Vec<Placed<String>>, DefinitionError> {
        if self.value.get_ref().is_array() { self.strings() } else { Ok(alloc::vec![self.string()?]) }
    }

    pub(crate) fn is_string(&self) -> bool {
        self.value.get_ref().is_str()
    }

    pub(crate) fn table(self) -> Result<Table<'a>, DefinitionError> {
        let table = self.value.get_ref().as_table().ok_or_else(|| self.wrong("a table"))?;
        Ok(Table { sources: self.sources, table, place: self.place(), called: format!("{}.", self.called) })
    }
}

/// "did you mean …" for a misspelt name, or the list of what is known.
pub(crate) fn suggest<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = known.clone().map(|k| (distance(name, k), k)).min();
    match near {
        Some((distance, near)) if distance <= 2 && distance < near.len() => format!("did you mean `{near}`?"),
        _ => format!("known here: {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// Edits from one name to another. Long names are not compared: the cost is their product.
fn distance(a: &str, b: &str) -> usize {
    const COMPARED_MAX_BYTES: usize = 64;
    if a.len() > COMPARED_MAX_BYTES || b.len() > COMPARED_MAX_BYTES {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let here = (diagonal + usize::from(x != y)).min(*cell + 1).min(left + 1);
            diagonal = core::mem::replace(cell, here);
            left = here;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_become_lines_and_columns() {
        let files = [Source { file: "a.toml", text: "one\ntwø three\n" }];
        let error = Sources(&files).error(Place { file: 0, at: 9 }, "bad", "good");
        assert_eq!(error.to_string(), "a.toml:2:5: bad; good");
        assert_eq!(Sources(&files).error(Place { file: 0, at: 999 }, "", "").line, 3);
        assert_eq!(Sources(&files).error(Place { file: 9, at: 9 }, "", "").line, 1);
    }

    #[test]
    fn misspelt_names_get_a_suggestion() {
        let known = ["width", "bit", "default"];
        assert_eq!(suggest("widht", known.into_iter()), "did you mean `width`?");
        assert_eq!(suggest("colour", known.into_iter()), "known here: width, bit, default");
        assert_eq!((distance("", "abc"), distance("abc", "abc"), distance("kitten", "sitting")), (3, 0, 3));
    }
}
