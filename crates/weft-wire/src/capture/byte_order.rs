//! Integers in the byte order of the machine that wrote the capture.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// The integer at `at`, or nothing when `bytes` ends before it does.
    pub(super) fn u16_at(self, bytes: &[u8], at: usize) -> Option<u16> {
        let raw = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(raw),
            Self::Big => u16::from_be_bytes(raw),
        })
    }

    pub(super) fn u32_at(self, bytes: &[u8], at: usize) -> Option<u32> {
        let raw = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(raw),
            Self::Big => u32::from_be_bytes(raw),
        })
    }

    pub(super) fn i64_at(self, bytes: &[u8], at: usize) -> Option<i64> {
        let raw = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => i64::from_le_bytes(raw),
            Self::Big => i64::from_be_bytes(raw),
        })
    }
}
