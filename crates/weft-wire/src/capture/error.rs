//! What can be wrong with a capture file. Each text names the file offset and, where there is something to do, says it.

use core::fmt;

use super::erf::ErfFault;

/// Why a capture, or one block of it, cannot be read. All are the file's fault but [`CaptureError::Undrained`].
///
/// An `offset` is where the record or block at fault starts, counted in bytes from the start of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureError {
    /// The file has no bytes.
    Empty,
    /// The file is compressed with gzip; it may well be a capture inside.
    Gzip,
    /// The file starts with no known magic number.
    NotACapture {
        /// The first bytes of the file; only the first `length` are meaningful.
        start: [u8; 4],
        /// How many bytes `start` holds; less than four when the file is that short.
        length: usize,
    },
    /// The file ends inside a header, record or block. Everything before `offset` has been read and is good.
    Truncated {
        /// Where the unfinished record starts.
        offset: u64,
        /// How many bytes are missing at least; more when the missing part itself would hold a length.
        missing: u64,
    },
    /// The file, or a section of it, is of a version that is not known.
    Version {
        /// Where the header starts.
        offset: u64,
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
    /// A record or block claims to be longer than any real one.
    TooLong {
        /// Where the record starts.
        offset: u64,
        /// The length it claims, in bytes.
        claimed: u32,
        /// The longest that is read, in bytes.
        limit: u32,
    },
    /// A pcapng block's length is below what its type needs.
    TooShort {
        /// Where the block starts.
        offset: u64,
        /// The length it claims, in bytes.
        claimed: u32,
        /// The least length of such a block, in bytes.
        minimum: u32,
    },
    /// A pcapng block's length is not a multiple of four.
    Unaligned {
        /// Where the block starts.
        offset: u64,
        /// The length it claims, in bytes.
        claimed: u32,
    },
    /// A pcapng section header's byte-order magic is neither order's.
    ByteOrderMagic {
        /// Where the section header starts.
        offset: u64,
        /// What stands in place of the magic.
        found: [u8; 4],
    },
    /// The lengths at the two ends of a pcapng block differ.
    LengthsDiffer {
        /// Where the block starts.
        offset: u64,
        /// The length at its start; this one is followed.
        leading: u32,
        /// The length at its end.
        trailing: u32,
    },
    /// A pcapng packet claims more data than its block has room for.
    PacketOverrun {
        /// Where the block starts.
        offset: u64,
        /// The captured length it claims, in bytes.
        claimed: u32,
        /// The room in the block, in bytes.
        room: usize,
    },
    /// A pcapng packet names an interface which its section has not described.
    UnknownInterface {
        /// Where the packet block starts.
        offset: u64,
        /// The interface it names.
        interface: u32,
        /// How many interfaces the section has described.
        described: usize,
    },
    /// A pcapng packet names an interface whose description was reported as malformed.
    UnreadableInterface {
        /// Where the packet block starts.
        offset: u64,
        /// The interface it names.
        interface: u32,
    },
    /// An option of a pcapng interface description is malformed.
    InterfaceOption {
        /// Where the interface description starts.
        offset: u64,
        /// The option's code.
        code: u16,
        /// The option's length, in bytes.
        length: u16,
    },
    /// A pcapng section describes more interfaces than are kept.
    TooManyInterfaces {
        /// Where the first interface description too many starts.
        offset: u64,
        /// How many are kept.
        limit: usize,
    },
    /// A pcapng packet's time does not fit 64 bits of nanoseconds since 1970.
    Timestamp {
        /// Where the packet block starts.
        offset: u64,
        /// The time in units of its interface.
        ticks: u64,
    },
    /// An ERF record is malformed.
    Erf {
        /// Where the pcap record or pcapng block starts that holds it.
        offset: u64,
        /// What is wrong with it.
        fault: ErfFault,
    },
    /// The caller ended the file while the reader could still read from what it holds.
    Undrained {
        /// Where the unread part starts.
        offset: u64,
    },
}

impl fmt::Display for CaptureError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => write!(out, "the file is empty: a capture has at least a file header; capture again"),
            Self::Gzip => write!(out, "the file is compressed with gzip: decompress it first (gzip -d)"),
            Self::NotACapture { start, length } => {
                write!(out, "not a pcap or pcapng file: it starts with")?;
                for byte in start.iter().take(length) {
                    write!(out, " {byte:02x}")?;
                }
                write!(
                    out,
                    "; expected d4 c3 b2 a1, 4d 3c b2 a1 or 34 cd b2 a1 (pcap), one of these reversed, or 0a 0d 0d 0a \
                     (pcapng); other capture formats can be converted with: editcap -F pcapng IN OUT"
                )
            }
            Self::Truncated { offset, missing } => write!(
                out,
                "the file ends inside the record at offset {offset}: at least {missing} more bytes belong to it; \
                 everything before it is good"
            ),
            Self::Version { offset, major, minor } => write!(
                out,
                "the header at offset {offset} is of version {major}.{minor}, but only pcap 2.4 and pcapng 1.0 are \
                 known; convert it with: editcap -F pcapng IN OUT"
            ),
            Self::TooLong { offset, claimed, limit } => write!(
                out,
                "the record at offset {offset} claims {claimed} bytes, over the limit of {limit}: the file is damaged \
                 there"
            ),
            Self::TooShort { offset, claimed, minimum } => write!(
                out,
                "the block at offset {offset} claims {claimed} bytes, but one of its type has at least {minimum}: the \
                 file is damaged there"
            ),
            Self::Unaligned { offset, claimed } => write!(
                out,
                "the block at offset {offset} claims {claimed} bytes, which is no multiple of four: the file is \
                 damaged there"
            ),
            Self::ByteOrderMagic { offset, found: [a, b, c, d] } => write!(
                out,
                "the section header at offset {offset} has {a:02x} {b:02x} {c:02x} {d:02x} for its byte order; \
                 expected 4d 3c 2b 1a or 1a 2b 3c 4d"
            ),
            Self::LengthsDiffer { offset, leading, trailing } => write!(
                out,
                "the block at offset {offset} starts with the length {leading} and ends with the length {trailing}: \
                 the file is damaged there"
            ),
            Self::PacketOverrun { offset, claimed, room } => write!(
                out,
                "the packet block at offset {offset} claims {claimed} bytes of packet, but has room for {room}: the \
                 file is damaged there"
            ),
            Self::UnknownInterface { offset, interface, described } => write!(
                out,
                "the packet block at offset {offset} is from interface {interface}, but its section has described \
                 only {described} so far"
            ),
            Self::UnreadableInterface { offset, interface } => write!(
                out,
                "the packet block at offset {offset} is from interface {interface}, whose description is malformed"
            ),
            Self::InterfaceOption { offset, code, length } => write!(
                out,
                "the interface description at offset {offset} has an option {code} of {length} bytes, which does not \
                 fit: packets of this interface cannot be read"
            ),
            Self::TooManyInterfaces { offset, limit } => write!(
                out,
                "the interface description at offset {offset} is one over the limit of {limit} in a section: packets \
                 of this interface cannot be read"
            ),
            Self::Timestamp { offset, ticks } => write!(
                out,
                "the packet block at offset {offset} has the time {ticks} (in units of its interface), which is not \
                 between the years 1970 and 2554"
            ),
            Self::Erf { offset, fault } => write!(out, "the ERF record at offset {offset} cannot be read: {fault}"),
            Self::Undrained { offset } => write!(
                out,
                "the reader was finished with unread records at offset {offset}: call next until it needs more"
            ),
        }
    }
}

impl core::error::Error for CaptureError {}
