//! Every bound of the library, in one place.

use weft_mem::device::Kind;

/// Transmits that go to the link in one call.
pub const TRANSMIT_BATCH_MAX: usize = weft_link::limits::SEND_BATCH_MAX;
/// Bytes after which no more are put into one call.
pub const TRANSMIT_BATCH_BYTES: usize = 64 << 10;
/// Bytes of headers and short payloads of one transmit for which room is made at the start: those of a datagram of the
/// longest kind that loopback carries, or the headers of as many segments as leave in one call.
pub const TRANSMIT_BYTES: usize = 16 << 10;
/// Pieces of one transmit for which room is made at the start: three for each of the segments that leave in one call.
pub const TRANSMIT_PIECES: usize = 3 * weft_core::limits::SEGMENTS_MAX;
/// Pieces of a batch for which room is made at the start.
pub const PIECES_PER_BATCH: usize = 4096;
/// Long datagrams that one round takes from the link before it lets the engine answer.
pub const RECEIVE_ROUNDS_MAX: usize = 16;
/// For how many of those a batch of datagrams counts.
pub const BATCH_ROUNDS: usize = 4;
/// Bytes of a datagram beside which another look costs little.
pub const LONG_DATAGRAM_BYTES: usize = 16 << 10;
/// How long commands that were posted with more to follow wait for it.
pub const FLUSH_US: u64 = 50;
/// How soon a link without room is asked again.
pub const LINK_RETRY_US: u64 = 100;
/// How often a link is asked that cannot be slept on.
pub const LINK_POLL_US: u64 = 200;
/// How long a thread that waits spins before it sleeps.
pub const SPIN_US: u64 = 50;
/// Looks at rings without a result between two thoughts about the processor: about a microsecond.
pub const POLL_LOOKS: u32 = 16;
/// For how many of those a look at the link counts, which is a system call.
pub const POLL_LINK_LOOKS: u32 = POLL_LOOKS / 2;
/// Ticks of the processor's clock for which a thread polls in vain before it yields, about 50 µs: a peer that is at work
/// answers sooner. Where others want the processor it yields sooner.
pub const POLL_SPIN_TICKS: u64 = 125_000;
/// The same where several threads poll one NIC, about 1 ms.
pub const POLL_THREADS_SPIN_TICKS: u64 = 2_500_000;
/// A yield that takes longer let somebody else run: about 1.5 µs, while one that lets nobody takes 0.3.
pub const POLL_SHARED_TICKS: u64 = 4_000;
/// So many in a row that let nobody run: nobody else wants the processor.
pub const POLL_SHARED_YIELDS: u32 = 64;
/// One that takes longer, about 1 ms, may have let somebody run who does not yield.
pub const POLL_LATE_TICKS: u64 = 2_500_000;
/// So many of those in a row have: who yields is at work for less, or not each time.
pub const POLL_LATE_YIELDS: u32 = 3;
/// How long that is remembered, about 100 ms.
pub const POLL_REMEMBER_TICKS: u64 = 250_000_000;
/// How long a poll sleeps at most where others do not yield: a fraction of what a yield would take there.
pub const POLL_SLEEP_MAX_US: u64 = 500;
/// How long callers of a domain stay away before a thread stands in for them.
pub const STAND_IN_US: u64 = 20_000;
/// How many commands are posted whose poster waits for nothing until a round of progress is made for it.
pub const UNAWAITED_PER_ROUND: u32 = 16;
/// The longest send over packets that is copied so that it ends at once where processors are not shared: for longer ones
/// the copy costs more than the wait. Where they are, up to [`INJECT_MAX_BYTES`](weft_mem::limits::INJECT_MAX_BYTES).
pub const COPIED_MAX_BYTES: usize = 4 << 10;
/// How long an endpoint that closes, or a process that ends, waits for targets to take another one of its commands, and how
/// much of that one round counts for at most.
pub const LINGER_MAX_US: u64 = 200_000;
/// How many times as long it works where they do take some.
pub const LINGER_PATIENCES: u32 = 10;
/// See [`LINGER_MAX_US`].
pub const LINGER_ROUND_US: u64 = 1_000;
/// How long a domain that closes goes on to acknowledge what it received.
pub const LINGER_ACKNOWLEDGE_US: u64 = 4 * weft_core::limits::ACK_DELAY_US;
/// Rounds of receiving before a timeout is believed: as many datagrams as may wait in a socket, more or less.
pub const DRAIN_ROUNDS_MAX: usize = 256;

/// Private data of a connection request or its answer.
pub const CONNECTION_DATA_MAX_BYTES: usize = 256;
/// What is in front of it in a message between managers.
pub const CONNECTION_HEADER_BYTES: usize = 32;
/// Connections of one manager.
pub const CONNECTIONS_MAX: usize = 1 << 16;
/// Receives that a manager keeps posted; more messages wait, as all that come before their receive do.
pub const CONNECTION_RECEIVES: usize = 64;
/// Messages of a manager that are under way; more wait.
pub const CONNECTION_SENDS_MAX: usize = 128;
/// Places in a manager's completion queue: a quarter is kept for receives, and each peer that is watched takes one.
pub const CONNECTION_QUEUE_CAPACITY: usize = 2048;
/// Peers of a manager that are watched. Others are heard of when something that is sent to them fails.
pub const CONNECTION_WATCHES_MAX: usize = 1024;
/// Watches of one peer that are thrown away at once.
pub const CONNECTION_DISCARDS_MAX: usize = 4;
/// Answers that wait; past this, messages about connections that are unknown are not answered.
pub const CONNECTION_ANSWERS_MAX: usize = 4096;
/// Completions that one call takes before it lets its caller look at the events.
pub const CONNECTION_COMPLETIONS_PER_TURN: usize = 256;
/// Requests that wait for a listener's user; more wait at their senders.
pub const CONNECTION_REQUESTS_MAX: usize = 1024;
/// Requests that a listener remembers, to know them should they come again.
pub const CONNECTION_SEEN_MAX: usize = 8192;
/// How often a request, a rejection or a farewell is sent that is lost, each for as long as the engine tries
/// ([`weft_core::limits::GIVE_UP_US`] unless configured). Requests are sent further while there is only silence.
pub const CONNECTION_REQUEST_ATTEMPTS: u32 = 4;
/// A request that is lost after this time met silence: its target may be stopped, or kept from the processor.
pub const CONNECTION_SILENCE_US: u64 = 100_000;
/// The same of other messages, whose receiver has been heard of.
pub const CONNECTION_ATTEMPTS: u32 = 32;
/// How long an answer is waited for, unless chosen: about as long as connections of TCP wait.
pub const CONNECTION_PATIENCE_US: u64 = 120_000_000;

/// Further looks at the rings in a round that found nothing there.
pub const LOOKS_PER_ROUND: usize = 4;
/// Ticks of the processor's clock between two looks at everything, about 20 µs: such a look costs half a microsecond, which
/// a message in a ring should not wait for.
pub const TICKS_BETWEEN_LOOKS: u64 = 50_000;
/// Messages up to this length go to a peer of the same machine at once; longer ones wait until they are wanted. Going at once
/// takes two copies: where both sides send at once, one of 64 KiB takes three times as long as one that waits.
pub const LOCAL_EAGER_MAX_BYTES: usize = 32 << 10;
/// The same of messages from or to the memory of a device, which take two copies either way.
pub const LOCAL_DEVICE_EAGER_MAX_BYTES: usize = 64 << 10;
/// Longer messages, writes and reads go through the ring in parts of this length.
pub const LOCAL_FRAGMENT_BYTES: usize = 32 << 10;
/// Parts of one pulled message that follow each other before it is another one's turn: a target whose receive is in a
/// device's memory copies them there together.
pub const LOCAL_PARTS_IN_TURN: u32 = 16;
/// Parts of a message in device memory that one copy puts into the ring; each has the longest payload that the ring takes.
/// A copy of 64 KiB takes an H200 9 µs, one of 256 KiB 13 µs; a target takes that much out of the ring in 25 µs.
pub const LOCAL_DEVICE_PARTS_MAX: u32 = 4;
/// Records that one round takes from one channel before it looks at the next.
pub const LOCAL_RECORDS_PER_ROUND: usize = 64;
/// Channels that one round looks at.
pub const LOCAL_POLLED_AT_ONCE: usize = 32;
/// Reads and copies of one peer that are under way here; more wait in its ring.
pub const LOCAL_QUESTIONS_MAX: usize = 1024;
/// Offers of one peer that wait for a receive, or are being fetched; more wait in its ring. As many as an endpoint keeps
/// messages that no receive has matched: a program may take them in any order.
pub const LOCAL_OFFERS_MAX: usize = 1 << 16;
/// Shorter copies are never made in a peer's memory, whatever was measured or said: each is a system call.
pub const LOCAL_ATTACH_MIN_BYTES: usize = 4 << 10;
/// Parts through the ring of which one is timed, which costs 50 ns; one takes 1 to 3 µs where both cores are near.
pub const LOCAL_PARTS_PER_TIMED: u32 = 8;
/// Timed parts in a row that must be slow before the ring is left.
pub const LOCAL_SLOW_PARTS: u32 = 8;
/// The same when it has been left before and is tried again.
pub const LOCAL_SLOW_AGAIN: u32 = 2;
/// Bytes that go by attach before the ring is tried again: there they take some 20 ms, and the trial one.
pub const LOCAL_SLOW_AVOID_BYTES: u64 = 256 << 20;
/// Bytes that try it; enough for more than [`LOCAL_SLOW_AGAIN`] timed parts.
pub const LOCAL_SLOW_TRY_BYTES: u64 = 1 << 20;
/// Bytes that one round copies in a peer's memory, so that nobody else waits for long.
pub const LOCAL_ATTACH_BYTES: u64 = 4 << 20;
/// Messages for device memory of this length and more come through the ring, though attach was measured to be faster for
/// the host's memory. On an H200's host, in one run each, attach took 128 µs for 1 MiB and 64 ms for 256 MiB, the ring 185 µs
/// and 40 ms.
pub const LOCAL_ATTACH_TO_DEVICE_MAX_BYTES: u32 = 8 << 20;
/// Regions of one peer that an endpoint reaches by itself.
pub const LOCAL_REGIONS_MAX: usize = 128;
/// How long a peer may take to leave a region that is being deregistered.
pub const LOCAL_LET_GO_US: u64 = 10_000;

/// Messages from device memory that the target was not told of, or cannot open, go through a bounce buffer if they have
/// this length and more, and the device is of [`LOCAL_BOUNCE_KINDS`]; shorter ones go through the host.
pub const LOCAL_BOUNCE_MIN_BYTES: usize = 4 << 10;
/// Kinds of device for which bounce buffers are used. Not CUDA: two processes that both copy inside one device share it in
/// slices of time, and each message waits for both to have theirs. On an H200 a message of 4 KiB took 260 µs that way, one
/// of 8 bytes 20 µs through the host, and either 12 to 16 µs from an allocation that the target has opened, which is why that
/// is done from the first byte on: one copy by one process. The others could not be measured.
pub const LOCAL_BOUNCE_KINDS: [Kind; 3] = [Kind::Emulated, Kind::Rocm, Kind::LevelZero];
/// A slot of the bounce buffers; longer messages do not use them.
pub const LOCAL_BOUNCE_BYTES: usize = 64 << 10;
/// Slots of one channel on one device: 2 MiB, which is the least that NVIDIA's driver gives.
pub const LOCAL_BOUNCE_SLOTS: usize = 32;
/// Devices on which a channel has bounce buffers.
pub const LOCAL_POOLS_MAX: usize = 8;
/// Short messages from an allocation that go another way before the target opens the allocation, which costs 30 to 160 µs
/// and then saves some 6 µs for each of them.
pub const LOCAL_HANDLE_AFTER: u32 = 8;
/// Writes and reads in a peer's device memory up to this length are done when the call that posts them returns; longer ones
/// go on meanwhile.
pub const LOCAL_DEVICE_SYNC_BYTES: u32 = 64 << 10;
/// The same of a message that the target copies inside a device, while nothing else is copied: up to here a copy takes
/// about as long as one of 8 bytes.
pub const LOCAL_WITHIN_SYNC_BYTES: u64 = 4 << 20;
/// How long a peer may take to leave a region of a device's memory that is being deregistered: its copies end by
/// themselves, a long one in a fraction of this.
pub const LOCAL_DEVICE_LET_GO_US: u64 = 1_000_000;
/// How long a deregistration waits for a peer to close the region, which nothing depends on but the device's driver.
pub const LOCAL_CLOSE_US: u64 = 1_000;
/// Allocations that one channel's target is told of at a time; it keeps as many open.
pub const LOCAL_HANDLES_MAX: usize = weft_mem::limits::OPENED_HANDLES_OF_A_CHANNEL_MAX;
/// Looks at the socket until a handle that was promised is believed not to come: it was sent before the promise, so more
/// than the notes that a socket holds are not in front of it.
pub const LOCAL_HANDLE_LOOKS_MAX: u32 = 64;
/// Copies by devices that are under way for one peer; more wait.
pub const LOCAL_COPIES_MAX: usize = 64;
/// Copies of one peer that are not done, after which one round does not ask about more. A device has as many streams.
pub const LOCAL_COPIES_ASKED: usize = weft_mem::limits::CUDA_STREAMS;
/// Ranges of a peer's memory that one operation can have.
pub const RANGES_MAX: usize = 8;

const _: () = {
    assert!(LOCAL_FRAGMENT_BYTES <= weft_link::limits::PAYLOAD_MAX_BYTES);
    let timed = LOCAL_SLOW_TRY_BYTES / LOCAL_FRAGMENT_BYTES as u64 / LOCAL_PARTS_PER_TIMED as u64;
    assert!(timed > LOCAL_SLOW_AGAIN as u64);
    assert!(LOCAL_BOUNCE_BYTES <= LOCAL_DEVICE_EAGER_MAX_BYTES);
    assert!(CONNECTION_DATA_MAX_BYTES <= u16::MAX as usize);
    let posted = CONNECTION_SENDS_MAX + CONNECTION_WATCHES_MAX;
    assert!(posted + CONNECTION_RECEIVES <= CONNECTION_QUEUE_CAPACITY * 3 / 4);
    assert!(weft_core::limits::ATOMIC_MAX_BYTES as usize <= LOCAL_FRAGMENT_BYTES);
};
