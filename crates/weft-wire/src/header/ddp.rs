//! DDP segments (RFC 5041), with the RDMAP control byte (RFC 5040) that lies inside their header.
//!
//! [`DdpControl`] is common to both kinds: read it first and let its `tagged` bit choose.

use super::fields::{Fields, flag};

// | bytes | field                                              |
// |-------|----------------------------------------------------|
// | 0     | tagged 1 · last 1 · reserved 4 · DDP version 2     |
// | 1     | RDMAP version 2 · reserved 2 · opcode 4            |
const DDP: usize = 0;
const RDMAP: usize = 1;

/// The two control bytes at the front of every segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdpControl {
    /// Whether [`DdpTagged`] or [`DdpUntagged`] is the whole header.
    pub tagged: bool,
    /// Whether this is the message's last segment.
    pub last: bool,
    /// Reserved, 4 bits.
    pub reserved4: u8,
    /// DDP version, 2 bits; 1.
    pub version: u8,
    /// RDMAP version, 2 bits; 1.
    pub rdmap_version: u8,
    /// Reserved by RDMAP, 2 bits.
    pub reserved2: u8,
    /// One of [`rdmap_opcode`](super::rdmap_opcode), 4 bits.
    pub opcode: u8,
}

fixed_header!(DdpControl, DdpControlView, 2, {
    tagged, last, reserved4, version, rdmap_version, reserved2, opcode,
});

impl DdpControlView<'_> {
    /// Whether [`DdpTagged`] or [`DdpUntagged`] is the whole header.
    #[inline]
    pub fn tagged(&self) -> bool {
        self.bytes[DDP] & 0x80 != 0
    }

    /// Whether this is the message's last segment.
    #[inline]
    pub fn last(&self) -> bool {
        self.bytes[DDP] & 0x40 != 0
    }

    /// Reserved, 4 bits.
    #[inline]
    pub fn reserved4(&self) -> u8 {
        self.bytes[DDP] >> 2 & 0x0f
    }

    /// DDP version, 2 bits; 1.
    #[inline]
    pub fn version(&self) -> u8 {
        self.bytes[DDP] & 0x03
    }

    /// RDMAP version, 2 bits; 1.
    #[inline]
    pub fn rdmap_version(&self) -> u8 {
        self.bytes[RDMAP] >> 6
    }

    /// Reserved by RDMAP, 2 bits.
    #[inline]
    pub fn reserved2(&self) -> u8 {
        self.bytes[RDMAP] >> 4 & 0x03
    }

    /// One of [`rdmap_opcode`](super::rdmap_opcode), 4 bits.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.bytes[RDMAP] & 0x0f
    }
}

impl DdpControl {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out[DDP] = flag(self.tagged, 7) | flag(self.last, 6) | (self.reserved4 & 0x0f) << 2 | self.version & 0x03;
        out[RDMAP] = self.rdmap_version << 6 | (self.reserved2 & 0x03) << 4 | self.opcode & 0x0f;
    }

    #[inline]
    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        self.write(&mut out);
        out
    }
}

// | bytes | tagged           | bytes | untagged                            |
// |-------|------------------|-------|-------------------------------------|
// | 0–1   | control          | 0–1   | control                             |
// | 2–5   | steering tag     | 2–5   | steering tag to invalidate          |
// | 6–13  | tagged offset    | 6–9   | queue number                        |
// |       |                  | 10–13 | message sequence number             |
// |       |                  | 14–17 | message offset                      |
const CONTROL: usize = 0;
const STAG: usize = 2;
const TAGGED_OFFSET: usize = 6;
const QUEUE: usize = 6;
const MSN: usize = 10;
const OFFSET: usize = 14;

/// The header of a tagged segment: it goes where the steering tag and offset say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdpTagged {
    /// The control bytes. Nothing here insists on their `tagged` bit.
    pub control: DdpControl,
    /// Steering tag of the memory.
    pub stag: u32,
    /// Where in the memory.
    pub tagged_offset: u64,
}

fixed_header!(DdpTagged, DdpTaggedView, 14, { control, stag, tagged_offset });

impl DdpTaggedView<'_> {
    /// The control bytes.
    #[inline]
    pub fn control(&self) -> DdpControl {
        DdpControlView { bytes: &self.bytes.bytes_at::<CONTROL, 2>() }.header()
    }

    /// Steering tag of the memory.
    #[inline]
    pub fn stag(&self) -> u32 {
        self.bytes.u32_at::<STAG>()
    }

    /// Where in the memory.
    #[inline]
    pub fn tagged_offset(&self) -> u64 {
        self.bytes.u64_at::<TAGGED_OFFSET>()
    }
}

impl DdpTagged {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out.put_bytes::<CONTROL, 2>(self.control.to_bytes());
        out.put_u32::<STAG>(self.stag);
        out.put_u64::<TAGGED_OFFSET>(self.tagged_offset);
    }
}

/// The header of an untagged segment: it goes to the next buffer of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdpUntagged {
    /// The control bytes. Nothing here insists on their `tagged` bit.
    pub control: DdpControl,
    /// Steering tag to invalidate; reserved in messages that do not invalidate.
    pub invalidate_stag: u32,
    /// Queue number: 0 send, 1 READ request, 2 terminate.
    pub queue: u32,
    /// Message sequence number in the queue, from 1.
    pub msn: u32,
    /// Where in the message.
    pub offset: u32,
}

fixed_header!(DdpUntagged, DdpUntaggedView, 18, { control, invalidate_stag, queue, msn, offset });

impl DdpUntaggedView<'_> {
    /// The control bytes.
    #[inline]
    pub fn control(&self) -> DdpControl {
        DdpControlView { bytes: &self.bytes.bytes_at::<CONTROL, 2>() }.header()
    }

    /// Steering tag to invalidate; reserved in messages that do not invalidate.
    #[inline]
    pub fn invalidate_stag(&self) -> u32 {
        self.bytes.u32_at::<STAG>()
    }

    /// Queue number: 0 send, 1 READ request, 2 terminate.
    #[inline]
    pub fn queue(&self) -> u32 {
        self.bytes.u32_at::<QUEUE>()
    }

    /// Message sequence number in the queue, from 1.
    #[inline]
    pub fn msn(&self) -> u32 {
        self.bytes.u32_at::<MSN>()
    }

    /// Where in the message.
    #[inline]
    pub fn offset(&self) -> u32 {
        self.bytes.u32_at::<OFFSET>()
    }
}

impl DdpUntagged {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out.put_bytes::<CONTROL, 2>(self.control.to_bytes());
        out.put_u32::<STAG>(self.invalidate_stag);
        out.put_u32::<QUEUE>(self.queue);
        out.put_u32::<MSN>(self.msn);
        out.put_u32::<OFFSET>(self.offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{captured, rdmap_opcode};
    use proptest::prelude::{Strategy, any};

    round_trip!(
        control,
        DdpControl {
            tagged: any::<bool>(),
            last: any::<bool>(),
            reserved4: bits!(u8, 4),
            version: bits!(u8, 2),
            rdmap_version: bits!(u8, 2),
            reserved2: bits!(u8, 2),
            opcode: bits!(u8, 4),
        }
    );
    round_trip!(tagged, DdpTagged { control: any_control(), stag: any::<u32>(), tagged_offset: any::<u64>() });
    round_trip!(
        untagged,
        DdpUntagged {
            control: any_control(),
            invalidate_stag: any::<u32>(),
            queue: any::<u32>(),
            msn: any::<u32>(),
            offset: any::<u32>(),
        }
    );

    fn any_control() -> impl Strategy<Value = DdpControl> {
        any::<[u8; 2]>().prop_map(|bytes| DdpControl::parse(&bytes).unwrap())
    }

    const CONTROL: DdpControl = DdpControl {
        tagged: true,
        last: true,
        reserved4: 0,
        version: 1,
        rdmap_version: 1,
        reserved2: 0,
        opcode: rdmap_opcode::WRITE,
    };

    #[test]
    fn captured_headers() {
        let tagged = DdpTagged { control: CONTROL, stag: 1, tagged_offset: 0 };
        assert_eq!(DdpTagged::parse(&captured::IWARP_WRITE[68..]), Ok(tagged));
        let control = DdpControl { tagged: false, opcode: rdmap_opcode::READ_REQUEST, ..CONTROL };
        let untagged = DdpUntagged { control, invalidate_stag: 0, queue: 1, msn: 1, offset: 0 };
        assert_eq!(DdpUntagged::parse(&captured::IWARP_READ_REQUEST[68..]), Ok(untagged));
    }

    #[test]
    fn values_too_wide_do_not_spill() {
        let wide = DdpControl { reserved4: 0xff, reserved2: 0xff, version: 0, rdmap_version: 0, ..CONTROL };
        assert_eq!(wide.to_bytes(), [0xfc, 0x30]);
    }
}
