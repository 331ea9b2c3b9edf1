//! Every bound of this crate in one place. A definition or a packet that asks for more gets an error that names the
//! bound; nothing here grows with what a peer sends.

/// Layers that the parse graph walks before it gives up (VLAN tags, extension headers and tunnels all count).
pub const LAYERS_MAX: usize = 16;
/// Tunnels (VXLAN, GRE, IP-in-IP) inside each other.
pub const TUNNEL_DEPTH_MAX: u8 = 4;
/// Bytes of all headers of one opcode.
pub const HEADER_LENGTH_MAX_BYTES: usize = 128;
/// Headers in one opcode's list.
pub const HEADERS_PER_OPCODE_MAX: usize = 8;
/// Fields in one opcode's headers, hidden filler included.
pub const FIELDS_PER_OPCODE_MAX: usize = 64;
/// Bits of an opcode: the translation table has one entry for every value.
pub const OPCODE_WIDTH_MAX_BITS: u32 = 12;
/// Protocols in one set of tables.
pub const PROTOCOLS_MAX: usize = 64;
/// Opcodes of one protocol after families are expanded.
pub const OPCODES_PER_PROTOCOL_MAX: usize = 512;
/// Headers that one definition describes.
pub const HEADERS_PER_PROTOCOL_MAX: usize = 128;
/// Families of one protocol.
pub const FAMILIES_MAX: usize = 32;
/// Rules by which one protocol is recognised: every packet is held against all of them.
pub const RULES_PER_PROTOCOL_MAX: usize = 16;
/// Checks of one opcode.
pub const CHECKS_PER_OPCODE_MAX: usize = 32;
/// Instructions of one field program.
pub const PROGRAM_LENGTH_MAX: usize = 32;
/// Values that a field program holds at once; also how deep an expression may nest.
pub const PROGRAM_STACK_MAX: usize = 16;
/// Values that one protocol derives. One may stand on another, so it is also how deep they nest.
pub const DERIVATIONS_MAX: usize = 64;
/// Checksums of one protocol.
pub const CHECKSUMS_MAX: usize = 4;
/// Generic commands that one opcode asks for beside its own.
pub const ALSO_MAX: usize = 3;
/// Bytes that one transfer command moves, unless the engine's owner sets another limit. A longer read is split.
pub const TRANSFER_LENGTH_DEFAULT_BYTES: u64 = 1 << 20;
/// Size of one definition file.
pub const DEFINITION_LENGTH_MAX_BYTES: usize = 1 << 20;
/// Pieces of memory that one transaction may have.
pub const SEGMENTS_MAX: usize = 8;
/// Bits of a transaction's id that count how often its place was used.
pub const GENERATION_MIN_BITS: u32 = 4;
/// Longest private data that RFC 5044 allows in an MPA start frame.
pub const PRIVATE_DATA_MAX_BYTES: usize = 512;
/// Bytes that one direction of a TCP stream may hold back while an earlier segment is missing.
pub const STREAM_WINDOW_MAX_BYTES: usize = 1 << 20;

const _: () = assert!(HEADERS_PER_OPCODE_MAX <= FIELDS_PER_OPCODE_MAX);
// A length of 8 bytes is the least that one load of the field extractor reads.
const _: () = assert!(HEADER_LENGTH_MAX_BYTES >= 8 && HEADER_LENGTH_MAX_BYTES <= u8::MAX as usize);
