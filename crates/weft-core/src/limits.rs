//! Every bound of the engine, in one place. Names with the same meaning as in section 10 of `docs/protocol.md` have the
//! same name here.

/// MTU of a session of which nothing is known: bytes of UDP payload (P-2.2).
pub const MTU_DEFAULT_BYTES: u32 = 1232;
/// Smallest MTU that packets are cut for: a link that carries less makes fragments.
pub const MTU_MIN_BYTES: u32 = 512;
/// What Ethernet carries in a packet of IPv6, the longer header: the size to try where a way does not carry what its
/// ends do.
pub const MTU_ETHERNET_BYTES: u32 = 1452;
/// How long a PROBE of a longer datagram waits for the next one, at first and at most (P-8.9).
pub const MTU_PROBE_US: u64 = 20_000;
/// See [`MTU_PROBE_US`].
pub const MTU_PROBE_MAX_US: u64 = 10_000_000;
/// Probe timeouts without an answer to a PROBE of full length after which a way is thought to lose what is long.
pub const MTU_TIMEOUTS: u32 = 2;
/// Largest: what UDP over IPv4 can carry.
pub const MTU_MAX_BYTES: u32 = 65_507;
/// Psns that a target marks.
pub const WINDOW: u32 = 1024;
/// The least that a flow's window is halved to (P-7.11).
pub const WINDOW_MIN: u32 = 64;
/// No target has a window above this.
pub const WINDOW_MAX: u32 = 16_384;
/// Psns under one ticket (P-7.13).
pub const LIFE_PSN_MAX: u32 = (1 << 31) - 1;
/// Commands under way in a node; handle 0 is none.
pub const HANDLES_MAX: usize = 65_535;
/// Bytes of a message.
pub const MESSAGE_LENGTH_MAX_BYTES: u64 = u32::MAX as u64 - 1;
/// How long a request may go without any answer (P-7.12).
pub const GIVE_UP_US: u64 = 800_000;
/// The longest that configuration may set it to.
pub const GIVE_UP_MAX_US: u64 = 20_000_000;
/// How long nothing may be heard of a target whose host says that nobody is there (P-7.12): between two such notices.
pub const ABSENT_US: u64 = 500_000;
/// Targets that were given up as absent lately, and are remembered as such.
pub const ABSENT_MAX: usize = 64;
/// Datagrams sent since, up to which a notice is about one of ours.
pub const QUOTED_DATAGRAMS_MAX: u64 = 1 << 20;
/// How long a target remembers a life (P-7.4).
pub const RETAIN_US: u64 = 60_000_000;
/// How often an initiator that waits asks whether the flow lives (P-7.12).
pub const KEEP_ALIVE_US: u64 = 200_000;
/// Bounds of the probe timeout (P-7.11).
pub const PTO_MIN_US: u64 = 5_000;
/// See [`PTO_MIN_US`].
pub const PTO_MAX_US: u64 = 200_000;
/// Packets that may wait for one acknowledgement (P-7.8).
pub const ACK_EVERY: u32 = 16;
/// How long an acknowledgement may wait that nobody has asked for, so that what goes there next takes it along.
pub const ACK_DELAY_US: u64 = 500;
/// How long one waits that was asked for, while the driver looks whether its user has something to send there: a few looks.
pub const ACK_SOON_US: u64 = 10;
/// Commands that follow each other faster may share a datagram: they wait for the next round of the driver.
pub const COMPANY_US: u64 = 50;
/// Packets of a session that may overtake one before it counts as lost (P-7.11).
pub const REORDER: u64 = 3;
/// How long a packet may wait for an earlier message of its stream (P-6.4).
pub const ORDER_HOLD_US: u64 = 50_000;
/// Bytes of packets that a life may always hold back for order, and at most when there are few lives.
pub const ORDER_HOLD_BYTES: usize = 256 << 10;
/// See [`ORDER_HOLD_BYTES`].
pub const ORDER_HOLD_MAX_BYTES: usize = 8 << 20;
/// What all lives together hold, as long as each has its least.
pub const HELD_MAX_BYTES: usize = 64 << 20;
/// First and longest wait before a refused packet is issued again (P-7.10).
pub const RNR_WAIT_US: u64 = 100;
/// See [`RNR_WAIT_US`].
pub const RNR_WAIT_MAX_US: u64 = 100_000;
/// Messages that may go to an endpoint that refused some before it counts as one that never did: above what is in flight.
pub const PERMITS_MAX: u32 = WINDOW;
/// Lanes of a tracker before one that is not used serves another pair of endpoints.
pub const LANES_KEPT: usize = 16;
/// Responses of atomics that a life keeps (P-7.2).
pub const REPLAY_RESULTS_MAX: usize = 128;
/// Peers' endpoints that a node's user can name.
pub const ADDRESSES_MAX: usize = 1 << 24;
/// Numbers of endpoints that are kept in one row.
pub const NUMBER_ROW_MAX: u32 = 1 << 16;
/// Rows of numbers that are kept at a time.
pub const NUMBER_ROWS_MAX: usize = 1 << 10;
/// Entries of one matching structure: a place has a 32-bit number, of which the last is no place.
pub const MATCH_ENTRIES_MAX: usize = u32::MAX as usize;
/// Entries that are looked at one by one before any is hashed: a look costs about a tenth of an entry's way into a table
/// and out of it.
pub const MATCH_LOOKS: usize = 8;
/// Kinds of receive (anyone or one source, and the bits ignored) that posted receives are hashed by at the same time,
/// without the exact ones. MPI has three: any source, any tag, both.
pub const MATCH_CLASSES_MAX: usize = 15;
/// Kinds of wildcard query that unexpected messages are hashed by at the same time. Each adds to the cost of a message.
pub const MATCH_VIEWS_MAX: usize = 7;
/// Messages that may arrive without a query of a kind before its view is dropped, at the least.
pub const MATCH_VIEW_IDLE_MIN: u64 = 4096;

const _: () = {
    assert!(RETAIN_US > 2 * GIVE_UP_MAX_US, "P-7 A1");
    assert!(GIVE_UP_US <= GIVE_UP_MAX_US);
    assert!(ABSENT_US > 2 * PTO_MAX_US && ABSENT_US > 2 * KEEP_ALIVE_US, "it was asked several times");
    assert!(ABSENT_US < GIVE_UP_US);
    assert!(KEEP_ALIVE_US <= GIVE_UP_US / 3);
    assert!(PTO_MAX_US <= GIVE_UP_US / 3);
    assert!(ACK_DELAY_US <= PTO_MIN_US / 4);
    assert!(ORDER_HOLD_US <= GIVE_UP_US / 4);
    assert!(WINDOW >= WINDOW_MIN && WINDOW <= WINDOW_MAX);
};
/// Packets that a path may have in flight before anything is known about it.
pub const WINDOW_FIRST_PACKETS: u64 = 16;
/// Packets that a path may always have in flight.
pub const WINDOW_LEAST_PACKETS: u64 = 2;
/// Reads that are asked for together once the window was full, as far as a quarter of it has room for them: each response
/// makes room for one, and a datagram for each request would cost both sides as much as a short message.
pub const READS_TOGETHER: u64 = 8;
/// Delay above the base round trip that never counts as congestion: scheduling of a busy machine.
pub const DELAY_TARGET_MIN_US: u32 = 500;
/// Payloads up to this are copied into the packet (PIO); longer ones are sent from the user's memory (DMA).
pub const PIO_MAX_BYTES: u32 = 512;
/// Messages whose last packet is short and waits for those of others while long packets go out: a message of 64 KiB is
/// a few bytes longer than a datagram, and each such rest would cost one of its own.
pub const RESTS_TOGETHER: usize = 8;
/// Bytes of a bundle: a longer one would keep its receiver waiting for the first message in it.
pub const BUNDLE_MAX_BYTES: usize = 16 << 10;
/// Datagrams of one [`Transmit`](crate::engine::Transmit), as the kernel permits.
pub const SEGMENTS_MAX: usize = 64;
/// Bytes of one.
pub const TRANSMIT_MAX_BYTES: usize = 65_507;
/// Bytes of operands of one atomic, compare values included.
pub const ATOMIC_MAX_BYTES: u32 = 1024;
/// Triggers that may wait for counters, or to be asked for.
pub const TRIGGERS_MAX: usize = 1 << 16;
/// Ordered commands in flight to one target; each that starts is compared with all of them.
pub const ORDERED_MAX: usize = 128;
/// Sources of each peer with a life that an endpoint remembers to send a Credit to, if all have as many.
pub const REFUSED_EACH: usize = 4;
/// Answers and responses that may wait to be sent; a peer that asks for more is not answered and asks again.
pub const ANSWERS_MAX: usize = 4096;
/// How long a message may stay incomplete without a packet of it coming, before its receive fails.
pub const MESSAGE_IDLE_US: u64 = GIVE_UP_MAX_US;
/// How long a tracker stays to tell the target, with a PROBE or the next request, that it may forget results (P-7.3).
pub const PROBE_LINGER_US: u64 = 5_000;
/// Datagrams that answer one READ Request: the asker's window does not know of more than it asked for.
pub const RESPONSE_PIECES_MAX: usize = 64;
/// Messages of one peer that were given up here and that it has not been told about: an honest one has a few at most.
pub const GIVEN_UP_MAX: usize = 1024;
/// Bytes that one VERIFY may ask to be summed: all other work waits meanwhile.
pub const VERIFY_MAX_BYTES: u64 = 1 << 20;
/// Streams of one peer whose order is remembered. Messages of a forgotten one wait a little longer.
pub const STREAMS_MAX: usize = 256;
/// Fetching atomics in flight to one target: half of what it keeps results for, since it keeps some until the next request.
pub const FETCHES_MAX: u32 = REPLAY_RESULTS_MAX as u32 / 2;
/// How long a tracker with nothing left rests before it is freed, and how many do.
pub const REST_US: u64 = 1_000;
/// See [`REST_US`].
pub const RESTING_MAX: usize = 16;
/// Short buffers of unexpected messages that are kept for the next ones, and how long they may be.
pub const SPARE_SHORT_MAX: usize = 256;
/// See [`SPARE_SHORT_MAX`].
pub const SPARE_SHORT_MAX_BYTES: usize = 16 << 10;
/// The same of longer ones, and the bytes of all of those.
pub const SPARE_LONG_MAX: usize = 64;
/// See [`SPARE_LONG_MAX`].
pub const SPARE_LONG_MAX_BYTES: usize = 8 << 20;
/// Begun commands that are looked at for one that may go on.
pub const STARTED_LOOKS: usize = 64;
/// Packets that a probe timeout sends again, whatever the window says.
pub const PROBE_PACKETS: usize = 2;
