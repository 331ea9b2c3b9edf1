//! The IPv6 header and its extension headers (RFC 8200).

use super::fields::{Fields, flag};
use super::{HeaderError, first_bytes};

// | bytes | field                                           |
// |-------|-------------------------------------------------|
// | 0–3   | version 4 · traffic class 8 · flow label 20     |
// | 4–5   | payload length                                  |
// | 6     | next header                                     |
// | 7     | hop limit                                       |
// | 8–23  | source                                          |
// | 24–39 | destination                                     |
const VERSION_CLASS_FLOW: usize = 0;
const PAYLOAD_LENGTH: usize = 4;
const NEXT_HEADER: usize = 6;
const HOP_LIMIT: usize = 7;
const SOURCE: usize = 8;
const DESTINATION: usize = 24;

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// DSCP 6 · ECN 2.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header, extension headers included.
    pub payload_length: u16,
    /// What follows, one of [`ip_protocol`](super::ip_protocol) or an extension header.
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
}

fixed_header!(Ipv6, Ipv6View, 40, {
    traffic_class, flow_label, payload_length, next_header, hop_limit, source, destination,
}, check version);

impl Ipv6View<'_> {
    #[inline]
    fn version(&self) -> Result<(), HeaderError> {
        match self.bytes[VERSION_CLASS_FLOW] >> 4 {
            Ipv6::VERSION => Ok(()),
            found => Err(HeaderError::BadVersion { expected: Ipv6::VERSION, found }),
        }
    }

    /// DSCP 6 · ECN 2.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.bytes.u16_at::<VERSION_CLASS_FLOW>() >> 4) as u8
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.bytes.u32_at::<VERSION_CLASS_FLOW>() & 0x000f_ffff
    }

    /// Bytes after this header, extension headers included.
    #[inline]
    pub fn payload_length(&self) -> u16 {
        self.bytes.u16_at::<PAYLOAD_LENGTH>()
    }

    /// What follows, one of [`ip_protocol`](super::ip_protocol) or an extension header.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.bytes[NEXT_HEADER]
    }

    /// Hops left.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.bytes[HOP_LIMIT]
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> [u8; 16] {
        self.bytes.bytes_at::<SOURCE, 16>()
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> [u8; 16] {
        self.bytes.bytes_at::<DESTINATION, 16>()
    }
}

impl Ipv6 {
    /// The value of the version field.
    pub const VERSION: u8 = 6;

    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        let class = u32::from(self.traffic_class) << 20;
        out.put_u32::<VERSION_CLASS_FLOW>(u32::from(Self::VERSION) << 28 | class | self.flow_label & 0x000f_ffff);
        out.put_u16::<PAYLOAD_LENGTH>(self.payload_length);
        out[NEXT_HEADER] = self.next_header;
        out[HOP_LIMIT] = self.hop_limit;
        out.put_bytes::<SOURCE, 16>(self.source);
        out.put_bytes::<DESTINATION, 16>(self.destination);
    }
}

/// A checked view of one extension header, for walking the chain to the transport header.
///
/// The first byte of each is the next-header value. The second is a length, in units that depend on the kind:
/// 8 bytes not counting the first 8; for the authentication header (RFC 4302) 4 bytes not counting the first 8; and
/// none in the fragment header, which is always 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6ExtensionView<'a> {
    kind: u8,
    start: &'a [u8; 8],
    bytes: &'a [u8],
}

impl<'a> Ipv6ExtensionView<'a> {
    /// Next-header value of the hop-by-hop options header.
    pub const HOP_BY_HOP: u8 = 0;
    /// Next-header value of the routing header.
    pub const ROUTING: u8 = 43;
    /// Next-header value of the fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Next-header value of the authentication header.
    pub const AUTHENTICATION: u8 = 51;
    /// Next-header value of the destination options header.
    pub const DESTINATION: u8 = 60;
    /// Next-header value of the mobility header.
    pub const MOBILITY: u8 = 135;

    /// Bytes of the authentication header before its check value.
    const AUTHENTICATION_MINIMUM: usize = 12;

    /// Whether `next_header` is one of the extension headers that can be read here.
    #[inline]
    pub const fn is_extension(next_header: u8) -> bool {
        matches!(
            next_header,
            Self::HOP_BY_HOP
                | Self::ROUTING
                | Self::FRAGMENT
                | Self::AUTHENTICATION
                | Self::DESTINATION
                | Self::MOBILITY
        )
    }

    /// Checks that `bytes` begins with a whole extension header of the `kind` that the previous header announced.
    #[inline]
    pub fn new(kind: u8, bytes: &'a [u8]) -> Result<Self, HeaderError> {
        if !Self::is_extension(kind) {
            return Err(HeaderError::NotExtension { next_header: kind });
        }
        let start = first_bytes::<8>(bytes)?;
        let units = usize::from(start[1]);
        let needed = match kind {
            Self::FRAGMENT => 8,
            Self::AUTHENTICATION => units * 4 + 8,
            _ => units * 8 + 8,
        };
        if kind == Self::AUTHENTICATION && needed < Self::AUTHENTICATION_MINIMUM {
            return Err(HeaderError::BadLength { minimum: Self::AUTHENTICATION_MINIMUM, found: needed });
        }
        let whole = bytes.get(..needed).ok_or(HeaderError::Truncated { needed, have: bytes.len() })?;
        Ok(Self { kind, start, bytes: whole })
    }

    /// The next-header value that announced this header.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// What follows: another extension header or a transport.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.start[0]
    }

    /// Bytes of this header.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.bytes.len()
    }

    /// The header's bytes as they are on the wire.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The fields of a fragment header; nothing for the other kinds.
    #[inline]
    pub fn fragment(&self) -> Option<Ipv6FragmentView<'a>> {
        (self.kind == Self::FRAGMENT).then_some(Ipv6FragmentView { bytes: self.start })
    }
}

// | bytes | field                                                             |
// |-------|-------------------------------------------------------------------|
// | 0     | next header                                                       |
// | 1     | reserved                                                          |
// | 2–3   | fragment offset in 8-byte units 13 · reserved 2 · more fragments 1 |
// | 4–7   | identification                                                    |
const FRAGMENT_NEXT_HEADER: usize = 0;
const FRAGMENT_RESERVED: usize = 1;
const FRAGMENT_OFFSET: usize = 2;
const FRAGMENT_FLAGS: usize = 3;
const FRAGMENT_IDENTIFICATION: usize = 4;

/// An IPv6 fragment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Fragment {
    /// What the fragmented part begins with.
    pub next_header: u8,
    /// Reserved, 8 bits.
    pub reserved8: u8,
    /// Place of the fragment in units of 8 bytes, 13 bits.
    pub offset: u16,
    /// Reserved, 2 bits.
    pub reserved2: u8,
    /// Whether this is not the last fragment.
    pub more: bool,
    /// Which datagram a fragment is of.
    pub identification: u32,
}

fixed_header!(Ipv6Fragment, Ipv6FragmentView, 8, { next_header, reserved8, offset, reserved2, more, identification });

impl Ipv6FragmentView<'_> {
    /// What the fragmented part begins with.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.bytes[FRAGMENT_NEXT_HEADER]
    }

    /// Reserved, 8 bits.
    #[inline]
    pub fn reserved8(&self) -> u8 {
        self.bytes[FRAGMENT_RESERVED]
    }

    /// Place of the fragment in units of 8 bytes, 13 bits.
    #[inline]
    pub fn offset(&self) -> u16 {
        self.bytes.u16_at::<FRAGMENT_OFFSET>() >> 3
    }

    /// Reserved, 2 bits.
    #[inline]
    pub fn reserved2(&self) -> u8 {
        self.bytes[FRAGMENT_FLAGS] >> 1 & 0x03
    }

    /// Whether this is not the last fragment.
    #[inline]
    pub fn more(&self) -> bool {
        self.bytes[FRAGMENT_FLAGS] & 0x01 != 0
    }

    /// Which datagram a fragment is of.
    #[inline]
    pub fn identification(&self) -> u32 {
        self.bytes.u32_at::<FRAGMENT_IDENTIFICATION>()
    }
}

impl Ipv6Fragment {
    #[inline]
    fn write(&self, out: &mut [u8; Self::LEN]) {
        out[FRAGMENT_NEXT_HEADER] = self.next_header;
        out[FRAGMENT_RESERVED] = self.reserved8;
        out.put_u16::<FRAGMENT_OFFSET>(self.offset << 3);
        out[FRAGMENT_FLAGS] |= (self.reserved2 & 0x03) << 1 | flag(self.more, 0);
        out.put_u32::<FRAGMENT_IDENTIFICATION>(self.identification);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{captured, ip_protocol};

    round_trip!(ipv6, Ipv6 {
        traffic_class: any::<u8>(), flow_label: bits!(u32, 20), payload_length: any::<u16>(), next_header: any::<u8>(),
        hop_limit: any::<u8>(), source: any::<[u8; 16]>(), destination: any::<[u8; 16]>(),
    }, valid |mut bytes: [u8; 40]| { bytes[0] = 0x60 | bytes[0] & 0x0f; bytes });

    round_trip!(
        fragment,
        Ipv6Fragment {
            next_header: any::<u8>(),
            reserved8: any::<u8>(),
            offset: bits!(u16, 13),
            reserved2: bits!(u8, 2),
            more: any::<bool>(),
            identification: any::<u32>(),
        }
    );

    #[test]
    fn a_captured_header() {
        let header = Ipv6::parse(&captured::IPV6_ACKNOWLEDGE[14..]).unwrap();
        let expected = Ipv6 {
            traffic_class: 0,
            flow_label: 0,
            payload_length: 28,
            next_header: ip_protocol::UDP,
            hop_limit: 64,
            source: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0, 0, 1],
            destination: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0, 0, 2],
        };
        assert_eq!(header, expected);
    }

    #[test]
    fn class_and_flow_lie_across_bytes() {
        let mut bytes = [0; 40];
        bytes[..4].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45]);
        let view = Ipv6View::new(&bytes).unwrap();
        assert_eq!((view.traffic_class(), view.flow_label()), (0xab, 0x12345));
        bytes[0] = 0x45;
        assert_eq!(Ipv6::parse(&bytes), Err(HeaderError::BadVersion { expected: 6, found: 4 }));
    }

    #[test]
    fn each_kind_counts_its_length_in_its_own_way() {
        let mut bytes = [0; 40];
        bytes[0] = ip_protocol::UDP;
        bytes[1] = 2;
        for (kind, length) in [(0, 24), (43, 24), (44, 8), (51, 16), (60, 24), (135, 24)] {
            let view = Ipv6ExtensionView::new(kind, &bytes).unwrap();
            assert_eq!((view.kind(), view.next_header(), view.header_len()), (kind, ip_protocol::UDP, length));
            for have in 0..length {
                let error = Ipv6ExtensionView::new(kind, &bytes[..have]).unwrap_err();
                assert!(matches!(error, HeaderError::Truncated { have: got, .. } if got == have), "{error}");
            }
        }
        assert_eq!(Ipv6ExtensionView::new(17, &bytes), Err(HeaderError::NotExtension { next_header: 17 }));
        bytes[1] = 0;
        assert_eq!(Ipv6ExtensionView::new(51, &bytes), Err(HeaderError::BadLength { minimum: 12, found: 8 }));
    }

    #[test]
    fn a_fragment_by_hand() {
        let bytes = [17, 0, 0x05, 0xc9, 0xde, 0xad, 0xbe, 0xef];
        let view = Ipv6ExtensionView::new(Ipv6ExtensionView::FRAGMENT, &bytes).unwrap();
        let fragment = view.fragment().unwrap();
        assert_eq!((fragment.offset() * 8, fragment.more(), fragment.identification()), (1480, true, 0xdead_beef));
        assert!(Ipv6ExtensionView::new(0, &[0; 8]).unwrap().fragment().is_none());
    }

    proptest::proptest! {
        #[test]
        fn no_extension_header_panics(
            kind in proptest::prelude::any::<u8>(),
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            if let Ok(view) = Ipv6ExtensionView::new(kind, &bytes) {
                proptest::prop_assert_eq!(view.as_bytes(), &bytes[..view.header_len()]);
            }
        }
    }
}
