//! What the first byte of a captured packet belongs to.

/// The link type of a packet: the numbers of the `LINKTYPE_` registry, reduced to those that can carry RDMA here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkType {
    /// BSD loopback (0): four bytes of address family in the byte order of the capturing machine, then IP.
    Null,
    /// Ethernet (1), from the destination address on.
    Ethernet,
    /// Bare IPv4 or IPv6 (101; also 12 and 14, which some systems wrote for it, and the one-version 228 and 229).
    RawIp,
    /// Linux "cooked" capture (113), as written for the `any` device.
    LinuxSll,
    /// Linux "cooked" capture, second version (276).
    LinuxSll2,
    /// Endace's ERF (197), of a file or an interface: each record tells what is in it. The reader opens the records, so
    /// that their packets come with another link type than this one.
    Erf,
    /// A packet from an ERF record of this type, which is neither Ethernet nor InfiniBand.
    ErfOther(u8),
    /// InfiniBand (247), from the local route header on.
    InfiniBand,
    /// Any other number.
    Other(u32),
}

impl LinkType {
    /// The link type with this registry number.
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Null,
            1 => Self::Ethernet,
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            113 => Self::LinuxSll,
            197 => Self::Erf,
            247 => Self::InfiniBand,
            276 => Self::LinuxSll2,
            other => Self::Other(other),
        }
    }

    /// The registry number to write for this link type.
    pub const fn number(self) -> u32 {
        match self {
            Self::Null => 0,
            Self::Ethernet => 1,
            Self::RawIp => 101,
            Self::LinuxSll => 113,
            Self::Erf | Self::ErfOther(_) => 197,
            Self::InfiniBand => 247,
            Self::LinuxSll2 => 276,
            Self::Other(number) => number,
        }
    }
}
