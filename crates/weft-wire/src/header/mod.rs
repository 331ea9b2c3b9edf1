//! Hand-written views of the headers that Weft meets on the wire.
//!
//! Every header has the same three parts in its file: the layout with its offsets, a checked view (`BthView`), and a
//! plain struct (`Bth`) with `parse` and `emit`. A view borrows a byte array of the header's length, so the length is
//! checked once, in `new`, and no getter can fail. Every bit that is on the wire is kept, the reserved ones too:
//! `parse` after `emit` and `emit` after `parse` change nothing. A value wider than its field is masked by `emit`.
//!
//! Nothing here judges what a header says beyond what its own layout needs (an IP version, a header length). Whether
//! an opcode, a key or a transport version is acceptable is the business of the protocol tables. For them this module
//! is the independent second opinion in tests and the measure of speed in benchmarks; the parse graph uses the
//! network headers directly.
//!
//! Read [`bth`] first: it is typical.

use core::fmt;

/// Declares the view of a header of fixed length, and the conversions between bytes, view and struct.
///
/// The file that calls it writes what differs: the struct, one getter of the view for each field, and
/// `fn write(&self, out: &mut [u8; LEN])`. `check` names a method of the view for layouts that not every byte string
/// of the right length satisfies.
macro_rules! fixed_header {
    ($header:ident, $view:ident, $len:literal, { $($field:ident),+ $(,)? } $(, check $check:ident)?) => {
        #[doc = concat!("A checked view of the ", $len, " bytes of [`", stringify!($header), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $view<'a> {
            bytes: &'a [u8; $len],
        }

        impl<'a> $view<'a> {
            /// Checks that `bytes` begins with this header. Bytes after it are not looked at.
            #[inline]
            pub fn new(bytes: &'a [u8]) -> Result<Self, $crate::header::HeaderError> {
                let view = Self { bytes: $crate::header::first_bytes(bytes)? };
                $(view.$check()?;)?
                Ok(view)
            }

            /// The header's bytes as they are on the wire.
            #[inline]
            pub const fn as_bytes(&self) -> &'a [u8; $len] {
                self.bytes
            }

            /// All fields at once.
            #[inline]
            pub fn header(&self) -> $header {
                $header { $($field: self.$field()),+ }
            }
        }

        impl $header {
            /// Length on the wire, in bytes.
            pub const LEN: usize = $len;

            /// Reads the header at the front of `bytes`.
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, $crate::header::HeaderError> {
                Ok($view::new(bytes)?.header())
            }

            /// Writes the header to the front of `out`, and nothing else.
            #[inline]
            pub fn emit(&self, out: &mut [u8]) -> Result<(), $crate::header::HeaderError> {
                self.write($crate::header::first_bytes_mut(out)?);
                Ok(())
            }
        }
    };
}

/// Declares a header of which every field is whole bytes: struct, view, getters and `write` from one list of
/// `field: type = offset`. A `u24` is held in a `u32`.
macro_rules! whole_byte_header {
    (
        $(#[$about:meta])+
        $header:ident, $view:ident, $len:literal { $($(#[$doc:meta])+ $field:ident : $type:tt = $at:literal),+ $(,)? }
    ) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $header {
            $($(#[$doc])+ pub $field: whole_byte_header!(@type $type)),+
        }

        fixed_header!($header, $view, $len, { $($field),+ });

        impl $view<'_> {
            $(
                $(#[$doc])+
                #[inline]
                pub fn $field(&self) -> whole_byte_header!(@type $type) {
                    whole_byte_header!(@read $type, $at, self.bytes)
                }
            )+
        }

        impl $header {
            #[inline]
            fn write(&self, out: &mut [u8; $len]) {
                $(whole_byte_header!(@write $type, $at, out, self.$field);)+
            }
        }
    };
    (@type u24) => { u32 };
    (@type $type:tt) => { $type };
    (@read u8, $at:literal, $bytes:expr) => { $bytes[$at] };
    (@read u16, $at:literal, $bytes:expr) => { Fields::u16_at::<$at>($bytes) };
    (@read u24, $at:literal, $bytes:expr) => { Fields::u24_at::<$at>($bytes) };
    (@read u32, $at:literal, $bytes:expr) => { Fields::u32_at::<$at>($bytes) };
    (@read u64, $at:literal, $bytes:expr) => { Fields::u64_at::<$at>($bytes) };
    (@write u8, $at:literal, $out:expr, $value:expr) => { $out[$at] = $value };
    (@write u16, $at:literal, $out:expr, $value:expr) => { Fields::put_u16::<$at>($out, $value) };
    (@write u24, $at:literal, $out:expr, $value:expr) => { Fields::put_u24::<$at>($out, $value) };
    (@write u32, $at:literal, $out:expr, $value:expr) => { Fields::put_u32::<$at>($out, $value) };
    (@write u64, $at:literal, $out:expr, $value:expr) => { Fields::put_u64::<$at>($out, $value) };
}

#[cfg(test)]
#[macro_use]
mod round_trip;
#[cfg(test)]
mod captured;

pub mod bth;
pub mod checksum;
pub mod ddp;
pub mod ethernet;
pub mod extension;
mod fields;
pub mod gre;
pub mod grh;
pub mod ipv4;
pub mod ipv6;
pub mod lrh;
pub mod mpa;
pub mod rdmap;
pub mod srdma;
pub mod tcp;
pub mod udp;
pub mod vxlan;

pub use bth::{Bth, BthView};
pub use checksum::{Checksum, PseudoHeader};
pub use ddp::{DdpControl, DdpControlView, DdpTagged, DdpTaggedView, DdpUntagged, DdpUntaggedView};
pub use ethernet::{Ethernet, EthernetView, Vlan, VlanView, ether_type};
pub use extension::{
    Aeth, AethView, AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView, CnpReserved, CnpReservedView, Deth,
    DethView, Feth, FethView, Ieth, IethView, ImmDt, ImmDtView, Rdeth, RdethView, Reth, RethView, XrcEth, XrcEthView,
};
pub use gre::{Gre, GreChecksum, GreView};
pub use grh::{Grh, GrhView};
pub use ipv4::{Ipv4, Ipv4View, ip_protocol};
pub use ipv6::{Ipv6, Ipv6ExtensionView, Ipv6Fragment, Ipv6FragmentView, Ipv6View};
pub use lrh::{Lrh, LrhView, link_next_header};
pub use mpa::{Fpdu, FpduView, MpaEnhanced, MpaEnhancedView, MpaMarker, MpaMarkerView, MpaStart, MpaStartView};
pub use rdmap::{
    AtomicRequest, AtomicRequestView, AtomicResponse, AtomicResponseView, ReadRequest, ReadRequestView,
    TerminateControl, TerminateControlView, rdmap_opcode,
};
pub use srdma::{
    SrdmaAck, SrdmaAckView, SrdmaAtomic, SrdmaAtomicView, SrdmaCookie, SrdmaCookieView, SrdmaFlush, SrdmaFlushView,
    SrdmaImmediate, SrdmaImmediateView, SrdmaInvalidate, SrdmaInvalidateView, SrdmaMessage, SrdmaMessageView,
    SrdmaRemote, SrdmaRemoteView, SrdmaSession, SrdmaSessionView, SrdmaSetup, SrdmaSetupView, SrdmaTag, SrdmaTagView,
    SrdmaTransport, SrdmaTransportView, SrdmaVerify, SrdmaVerifyView, srdma_opcode,
};
pub use tcp::{Tcp, TcpView, tcp_flag};
pub use udp::{Udp, UdpView, udp_port};
pub use vxlan::{Vxlan, VxlanView};

/// Why bytes are not the header they were taken for, or why a header does not fit where it was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The bytes end before the header does (`parse`), or the room does (`emit`).
    Truncated {
        /// Bytes that the header takes.
        needed: usize,
        /// Bytes that were given.
        have: usize,
    },
    /// The version field names another layout.
    BadVersion {
        /// The only version that has this layout.
        expected: u8,
        /// What the field says.
        found: u8,
    },
    /// The header says that it is shorter than its own fixed part.
    BadLength {
        /// Bytes of the fixed part.
        minimum: usize,
        /// Bytes that the length field stands for.
        found: usize,
    },
    /// Flags are set that make the rest of the header something else than what is read here.
    UnsupportedFlags {
        /// The flags at fault, at their place in the first 16 bits.
        flags: u16,
    },
    /// This next-header value is not an IPv6 extension header.
    NotExtension {
        /// The value.
        next_header: u8,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { needed, have } => {
                write!(formatter, "the header takes {needed} bytes, but there are only {have}")
            }
            Self::BadVersion { expected, found } => {
                write!(formatter, "the version field is {found}, but this layout is version {expected}")
            }
            Self::BadLength { minimum, found } => {
                write!(formatter, "the length field stands for {found} bytes, but the fixed part alone is {minimum}")
            }
            Self::UnsupportedFlags { flags } => {
                write!(formatter, "the flags {flags:#06x} are set, and the layout they announce is not supported")
            }
            Self::NotExtension { next_header } => {
                write!(formatter, "next header {next_header} is not an IPv6 extension header")
            }
        }
    }
}

impl core::error::Error for HeaderError {}

#[inline]
fn first_bytes<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], HeaderError> {
    bytes.first_chunk().ok_or(HeaderError::Truncated { needed: N, have: bytes.len() })
}

#[inline]
fn first_bytes_mut<const N: usize>(bytes: &mut [u8]) -> Result<&mut [u8; N], HeaderError> {
    let have = bytes.len();
    bytes.first_chunk_mut().ok_or(HeaderError::Truncated { needed: N, have })
}

#[cfg(test)]
mod tests {
    use super::HeaderError;
    use alloc::string::ToString;

    #[test]
    fn the_text_says_what_is_wrong() {
        let text = HeaderError::Truncated { needed: 12, have: 7 }.to_string();
        assert_eq!(text, "the header takes 12 bytes, but there are only 7");
        let text = HeaderError::UnsupportedFlags { flags: 0x4000 }.to_string();
        assert!(text.contains("0x4000"), "{text}");
    }
}
