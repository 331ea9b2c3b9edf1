//! Every bound of the library, in one place.

/// Transmits that go to the link in one call.
pub const TRANSMIT_BATCH_MAX: usize = weft_link::limits::SEND_BATCH_MAX;
/// Pieces of a batch for which room is made at the start.
pub const PIECES_PER_BATCH: usize = 4096;
/// Batches that one round takes from the link before it lets the engine answer.
pub const RECEIVE_ROUNDS_MAX: usize = 4;
/// How long commands that were posted with more to follow wait for it.
pub const FLUSH_US: u64 = 50;
/// How soon a link without room is asked again.
pub const LINK_RETRY_US: u64 = 100;
/// How often a link is asked that cannot be slept on.
pub const LINK_POLL_US: u64 = 200;
/// How long a thread that waits spins before it sleeps.
pub const SPIN_US: u64 = 50;
/// How long an endpoint that closes waits for what was injected to be taken by its target.
pub const LINGER_MAX_US: u64 = 200_000;
/// How long a domain that closes goes on to acknowledge what it received.
pub const LINGER_ACKNOWLEDGE_US: u64 = 4 * weft_core::limits::ACK_DELAY_US;
