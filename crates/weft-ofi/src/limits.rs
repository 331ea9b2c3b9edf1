//! Every limit of the provider, with its unit at the end of its name.

/// Closed handles whose memory is kept, so that a call through one of them is refused.
pub(crate) const CLOSED_HANDLES_KEPT: usize = 256;
/// Entries of the first chunk of an address vector; each further one has twice as many.
pub(crate) const ADDRESS_CHUNK: u64 = 64;
/// Chunks of an address vector.
pub(crate) const ADDRESS_CHUNKS: usize = 19;
/// Addresses of a vector that processes share.
pub(crate) const SHARED_ADDRESSES_MAX: usize = 1 << 16;
/// Bits of a `fi_addr_t` that can name a receive context.
pub(crate) const RECEIVE_CONTEXT_BITS_MAX: u32 = 8;
/// Contexts of a scalable endpoint.
pub(crate) const CONTEXTS_MAX: usize = 1 << RECEIVE_CONTEXT_BITS_MAX;
/// Pieces of a local buffer.
pub(crate) const LOCAL_PIECES_MAX: usize = 8;
/// Ranges of remote memory in one operation.
pub(crate) const REMOTE_PIECES_MAX: usize = 4;
/// Bytes that a call can copy, so that the buffer may be used again at once.
/// Half of what the NIC takes: MPICH injects all that it may, even beyond its own limit of eager messages, for which it has
/// posted no longer receive. That limit is 16 KiB wherever it is used with one.
pub(crate) const INJECT_MAX_BYTES: usize = 16 << 10;
const _: () = assert!(INJECT_MAX_BYTES <= weft_mem::limits::INJECT_MAX_BYTES);
/// Bytes of a message.
pub(crate) const MESSAGE_MAX_BYTES: u64 = weft_core::limits::MESSAGE_LENGTH_MAX_BYTES;
/// Completions of a queue, whatever its user asks for: that is a minimum to libfabric. Programs ask for as few as they read
/// at once, and some do not expect that the queue of another provider is ever too short for what an endpoint has under way.
pub(crate) const COMPLETIONS_LEAST: usize = OPERATIONS_MAX;
/// Completions of a queue.
pub(crate) const COMPLETIONS_MAX: usize = 1 << 22;
/// Operations and receives of an endpoint that are under way, unless the user asks for more.
pub(crate) const OPERATIONS_DEFAULT: usize = 1024;
/// Operations and receives of an endpoint that can be under way.
pub(crate) const OPERATIONS_MAX: usize = 16_384;
/// How long the thread of a condition waits for its mutex before it asks whether it shall end.
pub(crate) const CONDITION_LOCK_MS: u64 = 10;
/// Datagrams that wait at an endpoint until a receive is posted: programs know sockets, which keep some.
pub(crate) const DATAGRAMS_KEPT: usize = 256;
/// Receives that an endpoint for messages of any length keeps posted, which tell the program of messages.
pub(crate) const ANNOUNCING_RECEIVES: usize = 64;
/// How long a request is kept back for news of a connection that was accepted before.
pub(crate) const REQUEST_KEPT_MS: u64 = 200;
/// Bytes of the data that goes with a connection request or its answer.
pub(crate) const CONNECTION_DATA_MAX_BYTES: usize = 256;

const _: () = assert!(ADDRESS_CHUNK.is_power_of_two(), "chunks are found by a logarithm");
