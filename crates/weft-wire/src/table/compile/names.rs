//! Names in expressions: every one must mean something.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::Compiler;
use crate::command::Slot;
use crate::table::definition::header_and_field;
use crate::table::expression::{Attribute, Expression, Operand};
use crate::table::source::{DefinitionError, Placed, suggest};

impl Compiler<'_> {
    /// Every name in every expression must mean something in some opcode.
    pub(super) fn names_are_known(&self) -> Result<(), DefinitionError> {
        let definition = self.definition;
        let own = definition.opcodes.iter().flat_map(|o| o.checks.iter().chain(o.bind.values().flat_map(|(_, e)| e)));
        let encodes = definition.headers.values().flat_map(|h| h.fields.iter().filter_map(|f| f.encode.as_ref()));
        let shared = definition.bind.values().flat_map(|(_, e)| e).chain(&definition.checks).chain(&definition.pad);
        let derived = definition.derivations.0.values();
        for (encoding, expression) in
            own.chain(shared).chain(derived).map(|e| (false, e)).chain(encodes.map(|e| (true, e)))
        {
            for name in expression.names() {
                self.name_is_known(name, expression, encoding)?;
            }
        }
        Ok(())
    }

    pub(super) fn name_is_known(
        &self,
        name: &str,
        expression: &Expression,
        encoding: bool,
    ) -> Result<(), DefinitionError> {
        if self.definition.derivations.0.contains_key(name) {
            return Ok(());
        }
        match (special(name), encoding) {
            (Some(Operand::Slot(_)), false) => {
                let what = format!("`{name}` is only known when a packet is made");
                return Err(self.sources.error(expression.place, what, "use it in a field's `encode`"));
            }
            (Some(Operand::Connection(_) | Operand::Transaction(_)), true) => {
                let what = format!("`{name}` is only known when a packet is received");
                return Err(self.sources.error(expression.place, what, "use `command.…` in an `encode`"));
            }
            (Some(_), _) => return Ok(()),
            (None, _) => {}
        }
        let unknown = |what: String, known: &mut dyn Iterator<Item = &str>| {
            let part = name.split_once('.').map_or(name, |(_, part)| part);
            let known: Vec<&str> = known.collect();
            Err(self.sources.error(expression.place, what, suggest(part, known.iter().copied())))
        };
        match name.split_once('.') {
            None => {
                let names = self.definition.derivations.0.keys().map(String::as_str);
                let what = format!("unknown name `{name}` in `{}`", expression.text);
                unknown(what, &mut ["payload", "headers", "packet", "header.field"].into_iter().chain(names))
            }
            Some(("connection" | "transaction", _)) => {
                unknown(format!("unknown attribute `{name}`"), &mut Attribute::names())
            }
            Some(("command", _)) => unknown(format!("a command has no `{name}`"), &mut Slot::names()),
            Some(_) => {
                let placed = Placed { value: name.to_string(), place: expression.place };
                let (_, _, field) = header_and_field(self.sources, &self.definition.headers, &placed)?;
                if field.width > 64 {
                    let what = format!("the field `{name}` has {} bits", field.width);
                    return Err(self.sources.error(expression.place, what, "expressions compute with 64 bits"));
                }
                Ok(())
            }
        }
    }
}

/// Names that every opcode has.
pub(super) fn special(name: &str) -> Option<Operand> {
    match name.split_once('.') {
        None => match name {
            "payload" => Some(Operand::Payload),
            "headers" => Some(Operand::Headers),
            "packet" => Some(Operand::Packet),
            _ => None,
        },
        Some(("connection", attribute)) => Attribute::from_name(attribute).map(Operand::Connection),
        Some(("transaction", attribute)) => Attribute::from_name(attribute).map(Operand::Transaction),
        Some(("command", slot)) => Slot::from_name(slot).map(Operand::Slot),
        Some(_) => None,
    }
}
