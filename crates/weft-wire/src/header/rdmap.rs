//! What RDMAP (RFC 5040, with the atomics of RFC 7306) puts at the front of a DDP payload.

use super::fields::{Fields, flag};

/// Values of the RDMAP opcode, in [`DdpControl`](super::DdpControl).
pub mod rdmap_opcode {
    /// RDMA WRITE; tagged.
    pub const WRITE: u8 = 0x0;
    /// RDMA READ request; a [`ReadRequest`](super::ReadRequest).
    pub const READ_REQUEST: u8 = 0x1;
    /// RDMA READ response; tagged.
    pub const READ_RESPONSE: u8 = 0x2;
    /// SEND.
    pub const SEND: u8 = 0x3;
    /// SEND that invalidates a steering tag.
    pub const SEND_INVALIDATE: u8 = 0x4;
    /// SEND with a solicited event.
    pub const SEND_SOLICITED: u8 = 0x5;
    /// SEND with a solicited event that invalidates a steering tag.
    pub const SEND_SOLICITED_INVALIDATE: u8 = 0x6;
    /// TERMINATE; a [`TerminateControl`](super::TerminateControl) and what it announces.
    pub const TERMINATE: u8 = 0x7;
    /// Immediate data, 8 bytes of payload (RFC 7306).
    pub const IMMEDIATE: u8 = 0x8;
    /// Immediate data with a solicited event (RFC 7306).
    pub const IMMEDIATE_SOLICITED: u8 = 0x9;
    /// Atomic request; an [`AtomicRequest`](super::AtomicRequest) (RFC 7306).
    pub const ATOMIC_REQUEST: u8 = 0xa;
    /// Atomic response; an [`AtomicResponse`](super::AtomicResponse) (RFC 7306).
    pub const ATOMIC_RESPONSE: u8 = 0xb;
}

whole_byte_header! {
    /// An RDMA READ request: copy from the source, at the receiver, to the sink, at the sender.
    ReadRequest, ReadRequestView, 28 {
        /// Steering tag of the sink.
        sink_stag: u32 = 0,
        /// Tagged offset in the sink.
        sink_to: u64 = 4,
        /// Bytes to read.
        size: u32 = 12,
        /// Steering tag of the source.
        source_stag: u32 = 16,
        /// Tagged offset in the source.
        source_to: u64 = 20,
    }
}

// | bytes | field                                                                             |
// |-------|-----------------------------------------------------------------------------------|
// | 0     | layer 4 · error type 4                                                            |
// | 1     | error code                                                                        |
// | 2–3   | segment length follows 1 · DDP header follows 1 · RDMAP header follows 1 · reserved 13 |
const LAYER_TYPE: usize = 0;
const ERROR_CODE: usize = 1;
const HEADERS: usize = 2;
const RESERVED_MASK: u16 = 0x1fff;

/// The control word of a TERMINATE message: which layer found what, and which parts of the offending segment follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminateControl {
    /// Layer that found the error, 4 bits: 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// Type of the error in that layer, 4 bits.
    pub error_type: u8,
    /// Error code of that type.
    pub error_code: u8,
    /// The M bit: the DDP segment length follows and is valid.
    pub has_segment_length: bool,
    /// The D bit: the DDP header follows.
    pub has_ddp_header: bool,
    /// The R bit: the RDMAP header follows.
    pub has_rdmap_header: bool,
    /// Reserved, 13 bits.
    pub reserved13: u16,
}

fixed_header!(TerminateControl, TerminateControlView, 4, {
    layer, error_type, error_code, has_segment_length, has_ddp_header, has_rdmap_header, reserved13,
});

impl TerminateControlView<'_> {
    /// Layer that found the error, 4 bits: 0 RDMAP, 1 DDP, 2 MPA.
    #[inline]
    pub fn layer(&self) -> u8 {
        self.bytes[LAYER_TYPE] >> 4
    }

    /// Type of the error in that layer, 4 bits.
    #[inline]
    pub fn error_type(&self) -> u8 {
        self.bytes[LAYER_TYPE] & 0x0f
    }

    /// Error code of that type.
    #[inline]
    pub fn error_code(&self) -> u8 {
        self.bytes[ERROR_CODE]
    }

    /// The M bit: the DDP segment length follows and is valid.
    #[inline]
    pub fn has_segment_length(&self) -> bool {
        self.bytes[HEADERS] & 0x80 != 0
    }

    /// The D bit: the DDP header follows.
    #[inline]
    pub fn has_ddp_header(&self) -> bool {
        self.bytes[HEADERS] & 0x40 != 0
    }

    /// The R bit: the RDMAP header follows.
    #[inline]
    pub fn has_rdmap_header(&self) -> bool {
        self.bytes[HEADERS] & 0x20 != 0
    }

    /// Reserved, 13 bits.
    #[inline]
    pub fn reserved13(&self) -> u16 {
        self.bytes.u16_at::<HEADERS>() & RESERVED_MASK
    }
}

impl TerminateControl {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out[LAYER_TYPE] = self.layer << 4 | self.error_type & 0x0f;
        out[ERROR_CODE] = self.error_code;
        out.put_u16::<HEADERS>(self.reserved13 & RESERVED_MASK);
        out[HEADERS] |=
            flag(self.has_segment_length, 7) | flag(self.has_ddp_header, 6) | flag(self.has_rdmap_header, 5);
    }
}

// | bytes | field                         |
// |-------|-------------------------------|
// | 0–3   | reserved 28 · operation 4     |
// | 4–7   | request identifier            |
// | 8–11  | remote steering tag           |
// | 12–19 | remote tagged offset          |
// | 20–27 | data to add or swap in        |
// | 28–35 | mask of that data             |
// | 36–43 | data to compare with          |
// | 44–51 | mask of the comparison        |
const OPERATION: usize = 0;
const REQUEST_ID: usize = 4;
const REMOTE_STAG: usize = 8;
const REMOTE_TO: usize = 12;
const DATA: usize = 20;
const DATA_MASK: usize = 28;
const COMPARE: usize = 36;
const COMPARE_MASK: usize = 44;

/// An atomic request (RFC 7306).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Reserved, 28 bits.
    pub reserved28: u32,
    /// [`AtomicRequest::FETCH_ADD`] or [`AtomicRequest::COMPARE_SWAP`], 4 bits.
    pub operation: u8,
    /// Comes back in the response.
    pub request_id: u32,
    /// Steering tag of the remote memory.
    pub remote_stag: u32,
    /// Tagged offset in the remote memory.
    pub remote_to: u64,
    /// What to add or to swap in.
    pub add_or_swap: u64,
    /// Fetch-and-add: bits that end an independent addition. Compare-and-swap: bits that are replaced.
    pub add_or_swap_mask: u64,
    /// What compare-and-swap compares with.
    pub compare: u64,
    /// Bits that compare-and-swap compares.
    pub compare_mask: u64,
}

fixed_header!(AtomicRequest, AtomicRequestView, 52, {
    reserved28, operation, request_id, remote_stag, remote_to, add_or_swap, add_or_swap_mask, compare, compare_mask,
});

impl AtomicRequestView<'_> {
    /// Reserved, 28 bits.
    #[inline]
    pub fn reserved28(&self) -> u32 {
        self.bytes.u32_at::<OPERATION>() >> 4
    }

    /// [`AtomicRequest::FETCH_ADD`] or [`AtomicRequest::COMPARE_SWAP`], 4 bits.
    #[inline]
    pub fn operation(&self) -> u8 {
        self.bytes[OPERATION + 3] & 0x0f
    }

    /// Comes back in the response.
    #[inline]
    pub fn request_id(&self) -> u32 {
        self.bytes.u32_at::<REQUEST_ID>()
    }

    /// Steering tag of the remote memory.
    #[inline]
    pub fn remote_stag(&self) -> u32 {
        self.bytes.u32_at::<REMOTE_STAG>()
    }

    /// Tagged offset in the remote memory.
    #[inline]
    pub fn remote_to(&self) -> u64 {
        self.bytes.u64_at::<REMOTE_TO>()
    }

    /// What to add or to swap in.
    #[inline]
    pub fn add_or_swap(&self) -> u64 {
        self.bytes.u64_at::<DATA>()
    }

    /// Fetch-and-add: bits that end an independent addition. Compare-and-swap: bits that are replaced.
    #[inline]
    pub fn add_or_swap_mask(&self) -> u64 {
        self.bytes.u64_at::<DATA_MASK>()
    }

    /// What compare-and-swap compares with.
    #[inline]
    pub fn compare(&self) -> u64 {
        self.bytes.u64_at::<COMPARE>()
    }

    /// Bits that compare-and-swap compares.
    #[inline]
    pub fn compare_mask(&self) -> u64 {
        self.bytes.u64_at::<COMPARE_MASK>()
    }
}

impl AtomicRequest {
    /// In `operation`: fetch-and-add.
    pub const FETCH_ADD: u8 = 0;
    /// In `operation`: compare-and-swap.
    pub const COMPARE_SWAP: u8 = 2;

    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out.put_u32::<OPERATION>(self.reserved28 << 4 | u32::from(self.operation & 0x0f));
        out.put_u32::<REQUEST_ID>(self.request_id);
        out.put_u32::<REMOTE_STAG>(self.remote_stag);
        out.put_u64::<REMOTE_TO>(self.remote_to);
        out.put_u64::<DATA>(self.add_or_swap);
        out.put_u64::<DATA_MASK>(self.add_or_swap_mask);
        out.put_u64::<COMPARE>(self.compare);
        out.put_u64::<COMPARE_MASK>(self.compare_mask);
    }
}

whole_byte_header! {
    /// An atomic response (RFC 7306).
    AtomicResponse, AtomicResponseView, 12 {
        /// The identifier of the request.
        request_id: u32 = 0,
        /// The value before the operation.
        original: u64 = 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::captured;

    round_trip!(
        read_request,
        ReadRequest {
            sink_stag: any::<u32>(),
            sink_to: any::<u64>(),
            size: any::<u32>(),
            source_stag: any::<u32>(),
            source_to: any::<u64>(),
        }
    );
    round_trip!(
        terminate,
        TerminateControl {
            layer: bits!(u8, 4),
            error_type: bits!(u8, 4),
            error_code: any::<u8>(),
            has_segment_length: any::<bool>(),
            has_ddp_header: any::<bool>(),
            has_rdmap_header: any::<bool>(),
            reserved13: bits!(u16, 13),
        }
    );
    round_trip!(
        atomic_request,
        AtomicRequest {
            reserved28: bits!(u32, 28),
            operation: bits!(u8, 4),
            request_id: any::<u32>(),
            remote_stag: any::<u32>(),
            remote_to: any::<u64>(),
            add_or_swap: any::<u64>(),
            add_or_swap_mask: any::<u64>(),
            compare: any::<u64>(),
            compare_mask: any::<u64>(),
        }
    );
    round_trip!(atomic_response, AtomicResponse { request_id: any::<u32>(), original: any::<u64>() });

    #[test]
    fn a_captured_read_request() {
        let expected = ReadRequest {
            sink_stag: 0x403d_2300,
            sink_to: 0x557c_6d45_9bf0,
            size: 200,
            source_stag: 0x5444_f400,
            source_to: 0x55e1_7101_b790,
        };
        assert_eq!(ReadRequest::parse(&captured::IWARP_READ_REQUEST[86..]), Ok(expected));
    }

    #[test]
    fn a_terminate_by_hand() {
        let expected = TerminateControl {
            layer: 1,
            error_type: 2,
            error_code: 5,
            has_segment_length: true,
            has_ddp_header: true,
            has_rdmap_header: false,
            reserved13: 0,
        };
        assert_eq!(TerminateControl::parse(&[0x12, 0x05, 0xc0, 0x00]), Ok(expected));
    }

    #[test]
    fn an_atomic_request_by_hand() {
        let mut bytes = [0; AtomicRequest::LEN];
        bytes[3] = 0x02;
        bytes[7] = 7;
        bytes[8] = 0x80;
        bytes[19] = 0x10;
        bytes[27] = 1;
        bytes[35] = 2;
        bytes[43] = 3;
        bytes[51] = 4;
        let expected = AtomicRequest {
            reserved28: 0,
            operation: AtomicRequest::COMPARE_SWAP,
            request_id: 7,
            remote_stag: 0x8000_0000,
            remote_to: 0x10,
            add_or_swap: 1,
            add_or_swap_mask: 2,
            compare: 3,
            compare_mask: 4,
        };
        assert_eq!(AtomicRequest::parse(&bytes), Ok(expected));
    }
}
