//! Headers of a definition: fields with their bits, checked for overlap and for places outside.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::expression::Expression;
use super::extract::{Endian, Extract};
use super::source::{DefinitionError, Place, Sources, Table};
use crate::limits::HEADER_LENGTH_MAX_BYTES;

/// A header: so many bytes, and what the bits mean.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) bytes: usize,
    pub(crate) title: String,
    /// In order of their first bit.
    pub(crate) fields: Vec<Field>,
    pub(crate) place: Place,
}

/// A field of a header.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) bit: usize,
    pub(crate) width: usize,
    pub(crate) endian: Endian,
    /// What it is when nothing else says so.
    pub(crate) default: u64,
    /// How it follows from the command and the payload when a packet is made.
    pub(crate) encode: Option<Expression>,
    pub(crate) place: Place,
    /// Bits that the definition does not name; kept so that a packet can be made again exactly.
    pub(crate) filler: bool,
}

impl Field {
    /// The windows that hold the field in a header at `base` of `total` bytes: one, or one for each 8 bytes of a wide
    /// field.
    pub(crate) fn extracts(&self, base: usize, total: usize) -> Vec<Extract> {
        let bit = base * 8 + self.bit;
        if self.width <= 64 {
            return Extract::new(bit, self.width, self.endian, total).into_iter().collect();
        }
        (0..self.width)
            .step_by(64)
            .filter_map(|part| Extract::new(bit + part, (self.width - part).min(64), self.endian, total))
            .collect()
    }

    /// The bits of the header that it covers, as one mask for each byte.
    fn cover(&self) -> impl Iterator<Item = (usize, u8)> {
        (self.bit..self.bit + self.width).map(move |bit| {
            let shift = bit % 8;
            (bit / 8, if self.endian == Endian::Big { 0x80 >> shift } else { 1 << shift })
        })
    }
}

impl Header {
    pub(crate) fn read(sources: &Sources<'_>, table: &Table<'_>) -> Result<Header, DefinitionError> {
        table.only(&["bytes", "title", "fields"])?;
        let bytes = table.need("bytes", "12")?.integer(1..=HEADER_LENGTH_MAX_BYTES as u64)? as usize;
        let title = table.maybe("title").map_or(Ok(String::new()), |title| title.string().map(|t| t.value))?;
        let mut fields = Vec::new();
        for (name, value) in table.need("fields", "{ opcode = { bit = 0, width = 8 } }")?.table()?.entries() {
            if name.value.is_empty() || !name.value.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                let instead = "use letters, digits and _ so that expressions can say it";
                return Err(sources.error(name.place, format!("the field name `{}`", name.value), instead));
            }
            fields.push(Field::read(sources, &value.table()?, name.value, name.place, bytes)?);
        }
        let mut header = Header { bytes, title, fields, place: table.place };
        header.check(sources)?;
        Ok(header)
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// No bit twice; bits that are left over become filler.
    fn check(&mut self, sources: &Sources<'_>) -> Result<(), DefinitionError> {
        let mut owner: Vec<[Option<usize>; 8]> = vec![[None; 8]; self.bytes];
        for (index, field) in self.fields.iter().enumerate() {
            for (byte, mask) in field.cover() {
                let Some(slot) = owner.get_mut(byte).and_then(|byte| byte.get_mut(mask.leading_zeros() as usize))
                else {
                    continue;
                };
                if let Some(other) = slot.and_then(|other: usize| self.fields.get(other)) {
                    let what = format!("the fields `{}` and `{}` overlap in byte {byte}", other.name, field.name);
                    let instead = format!(
                        "`{}` has bits {} to {}: begin elsewhere or make one narrower",
                        other.name,
                        other.bit,
                        other.bit + other.width - 1
                    );
                    return Err(sources.error(field.place, what, instead));
                }
                *slot = Some(index);
            }
        }
        for (byte, bits) in owner.iter().enumerate() {
            let mut start = 0;
            while let Some(first) = bits.iter().skip(start).position(Option::is_none).map(|p| p + start) {
                let width = bits.iter().skip(first).take_while(|bit| bit.is_none()).count();
                start = first + width;
                self.fields.push(Field {
                    name: format!("unnamed_{}", byte * 8 + first),
                    bit: byte * 8 + first,
                    width,
                    endian: Endian::Big,
                    default: 0,
                    encode: None,
                    place: self.place,
                    filler: true,
                });
            }
        }
        self.fields.sort_by_key(|field| (field.bit / 8, field.cover().next().map(|(_, mask)| !mask)));
        Ok(())
    }
}

impl Field {
    fn read(
        sources: &Sources<'_>,
        table: &Table<'_>,
        name: String,
        place: Place,
        bytes: usize,
    ) -> Result<Field, DefinitionError> {
        table.only(&["bit", "width", "endian", "default", "encode"])?;
        let bit_value = table.need("bit", "0")?;
        let bit = bit_value.integer(0..=u64::from(u32::MAX))? as usize;
        let width_value = table.need("width", "8")?;
        let width = width_value.integer(1..=HEADER_LENGTH_MAX_BYTES as u64 * 8)? as usize;
        if bit + width > bytes * 8 {
            let what = format!("the field `{name}` ends at bit {}, outside of its header", bit + width);
            return Err(bit_value.error(what, format!("the header has {} bits (bytes = {bytes})", bytes * 8)));
        }
        let endian = match table.maybe("endian").map(|e| e.string().map(|text| (e, text))).transpose()? {
            None => Endian::Big,
            Some((_, text)) if text.value == "big" => Endian::Big,
            Some((_, text)) if text.value == "little" => Endian::Little,
            Some((value, text)) => {
                return Err(value.error(format!("unknown endian `{}`", text.value), "write \"big\" or \"little\""));
            }
        };
        let fits = if width <= 64 { bit % 8 + width <= 64 } else { bit.is_multiple_of(8) && width.is_multiple_of(8) };
        if !fits {
            let what = format!("the field `{name}` of {width} bits at bit {bit} spans more than 8 bytes");
            return Err(width_value.error(what, "begin it on a byte, or make two fields of it"));
        }
        let widest = u64::MAX >> (64 - width.min(64));
        let default = table.maybe("default").map_or(Ok(0), |value| value.integer(0..=widest))?;
        let encode = table.maybe("encode").map(|text| Expression::parse(sources, &text.string()?)).transpose()?;
        Ok(Field { name, bit, width, endian, default, encode, place, filler: false })
    }
}
