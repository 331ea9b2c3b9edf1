//! The checksums of a definition: which opcodes carry which, where they are, and that none covers what is written later.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Compiler, Expanded, Laid};
use crate::checksum::Crc;
use crate::limits::HEADER_LENGTH_MAX_BYTES;
use crate::table::definition::{Algorithm, Checksum, header_and_field};
use crate::table::expression::Operand;
use crate::table::source::{DefinitionError, Placed, suggest};
use crate::table::{ByteMask, ChecksumTable, Control, Pad, Sum, SumPlace, SumRow};

impl Compiler<'_> {
    pub(super) fn checksums(&self) -> Result<Vec<ChecksumTable>, DefinitionError> {
        let mut tables = Vec::new();
        for checksum in self.definition.checksums.as_deref().unwrap_or(&[]) {
            for name in checksum.ones.iter().chain(checksum.first.as_ref().map(|first| &first.when)) {
                let (_, _, field) = header_and_field(self.sources, &self.definition.headers, name)?;
                if field.width > 64 {
                    let what = format!("the field `{}` has {} bits", name.value, field.width);
                    return Err(self.sources.error(name.place, what, "only fields of up to 64 bits do here"));
                }
            }
            self.is_final(&tables, checksum)?;
            let bytes = checksum.algorithm.bytes();
            if let Some(name) = &checksum.field {
                let (_, _, field) = header_and_field(self.sources, &self.definition.headers, name)?;
                if field.width != bytes * 8 || field.bit % 8 != 0 {
                    let what =
                        format!("the checksum `{}` does not fit the field `{}`", checksum.name.value, name.value);
                    let instead = format!("the field must have {} bits and begin on a byte", bytes * 8);
                    return Err(self.sources.error(name.place, what, instead));
                }
            }
            tables.push(ChecksumTable {
                name: checksum.name.value.clone(),
                sum: self.sum(checksum)?,
                endian: checksum.endian,
                over: checksum.over,
                trailer_bytes: if checksum.field.is_some() { 0 } else { bytes },
                bytes,
            });
        }
        Ok(tables)
    }

    /// Numbers of the checksums that the opcode carries: all, or those that it names.
    pub(super) fn checksums_of(&self, opcode: &Expanded<'_>) -> Result<Vec<usize>, DefinitionError> {
        let all = self.definition.checksums.as_deref().unwrap_or(&[]);
        let carries = |checksum: &Checksum| {
            checksum.field.as_ref().is_none_or(|name| {
                let header = name.value.split_once('.').map_or("", |(header, _)| header);
                opcode.headers.iter().any(|h| h.value == header)
            })
        };
        let Some(named) = &opcode.opcode.checksums else {
            return Ok((0..all.len()).filter(|n| all.get(*n).is_some_and(carries)).collect());
        };
        let mut numbers = Vec::new();
        for name in named {
            let Some(number) = all.iter().position(|checksum| checksum.name.value == name.value) else {
                let what = format!("there is no checksum `{}`", name.value);
                let instead = suggest(&name.value, all.iter().map(|checksum| checksum.name.value.as_str()));
                return Err(self.sources.error(name.place, what, instead));
            };
            numbers.push(number);
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// The checksums of one opcode: those in headers first, since trailers cover them.
    pub(super) fn sums(&self, tables: &[ChecksumTable], numbers: &[usize], laid: &Laid<'_>) -> Box<[SumRow]> {
        let mut in_headers = Vec::new();
        let mut trailers = Vec::new();
        let mut from_end: usize = numbers.iter().filter_map(|n| tables.get(*n)).map(|table| table.trailer_bytes).sum();
        let declared = self.definition.checksums.as_deref().unwrap_or(&[]);
        for number in numbers {
            let (Some(table), Some(checksum)) = (tables.get(*number), declared.get(*number)) else { continue };
            let extract = |name: &Placed<String>| {
                name.value.split_once('.').and_then(|(header, field)| laid.extract(header, field))
            };
            // Two copies of the headers show which bits a field covers.
            let mut kept = [0xffu8; HEADER_LENGTH_MAX_BYTES];
            let mut set = [0u8; HEADER_LENGTH_MAX_BYTES];
            for field in checksum.ones.iter().filter_map(extract) {
                field.write(&mut set, u64::MAX);
            }
            let own = checksum.field.as_ref().and_then(extract);
            if let Some(field) = own {
                field.write(&mut kept, 0);
                field.write(&mut set, 0);
            }
            let masks = (0u8..).zip(kept.iter().zip(set)).filter(|(_, (keep, set))| **keep != 0xff || *set != 0);
            let masks = masks.map(|(offset, (keep, set))| ByteMask { offset, keep: *keep, set }).collect();
            match own {
                Some(field) => {
                    in_headers.push(SumRow { number: *number, place: SumPlace::Field(field), first: None, masks });
                }
                None => {
                    let first = checksum.first.as_ref();
                    let first = first.and_then(|first| Some((extract(&first.when)?, first.bytes)));
                    trailers.push(SumRow { number: *number, place: SumPlace::Trailer(from_end), first, masks });
                }
            }
            from_end -= table.trailer_bytes;
        }
        in_headers.into_iter().chain(trailers).collect()
    }

    /// The field of a checksum is written last: nothing that is computed before may depend on it.
    pub(super) fn is_final(&self, before: &[ChecksumTable], checksum: &Checksum) -> Result<(), DefinitionError> {
        let Some(field) = &checksum.field else { return Ok(()) };
        let refuse = |what: String, instead: &str| Err(self.sources.error(field.place, what, instead));
        if self.definition.select.iter().flatten().any(|name| name.value == field.value) {
            return refuse(format!("`{}` is a select field", field.value), "give the checksum a field of its own");
        }
        let earlier = self.definition.checksums.iter().flatten().take(before.len());
        for other in earlier.filter(|other| other.field.is_some()) {
            if !other.ones.iter().any(|name| name.value == field.value) {
                let (own, other) = (&checksum.name.value, &other.name.value);
                let what = format!("the checksum `{other}` covers `{}`, which `{own}` writes later", field.value);
                return refuse(what, "put the covered one first, and the other one's field into its `ones`");
            }
        }
        Ok(())
    }

    /// How long the pad is cannot follow from a checksum, which covers it.
    pub(super) fn pad_is_final(&self, control: &Control, laid: &Laid<'_>) -> Result<(), DefinitionError> {
        for checksum in self.definition.checksums.iter().flatten() {
            let Some(name) = &checksum.field else { continue };
            let field = name.value.split_once('.').and_then(|(header, field)| laid.extract(header, field));
            let used = match (&control.pad, field) {
                (Pad::Field(pad), Some(field)) => *pad == field,
                (Pad::Program(program), Some(field)) => program.loads().any(|load| load == Operand::Field(field)),
                _ => false,
            };
            if used {
                let what = format!("`{}` holds a checksum and says how long the pad is", name.value);
                return Err(self.sources.error(name.place, what, "give the checksum a field of its own"));
            }
        }
        Ok(())
    }

    pub(super) fn sum(&self, checksum: &Checksum) -> Result<Sum, DefinitionError> {
        Ok(match checksum.algorithm {
            Algorithm::Crc(parameters) => Sum::Crc(Crc::new(parameters).ok_or_else(|| {
                self.sources.error(checksum.name.place, "unknown CRC width", "use 8, 16, 24 or 32 bits")
            })?),
            Algorithm::Internet => Sum::Internet,
            Algorithm::Sum => Sum::Bytes,
            Algorithm::Xor => Sum::Xor,
        })
    }
}
