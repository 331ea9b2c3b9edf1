//! TCP streams: the input is two streams and the segments that bring them.
//!
//! Whatever the order, overlap and repetition of the segments: after each of them exactly the bytes that have come
//! without a gap are ready, and in the end each direction gave the same units, or the same fault, as when it came in
//! order. What is held stays within the limit.

use weft_wire::checksum::{CRC32C, Crc};
use weft_wire::limits::STREAM_WINDOW_MAX_BYTES;
use weft_wire::stream::{MpaConnection, MpaError, MpaStep, Reassembly, Side, mark};
use weft_wire::table::{Checked, FrameKind};

use std::sync::OnceLock;

/// Bytes of one direction.
const STREAM_MAX_BYTES: usize = 4096;
const SIDES: [Side; 2] = [Side::A, Side::B];

/// Takes the input apart from its front. When it is used up, there are only zeros.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> usize {
        usize::from(u16::from_be_bytes([self.byte(), self.byte()]))
    }
}

/// What one direction gave.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    units: Vec<(FrameKind, Vec<u8>, Option<Checked>)>,
    consumed: usize,
    fault: Option<MpaError>,
}

/// One input.
pub fn run(input: &[u8]) {
    let mut script = Script(input);
    let streams = match script.byte() {
        0xff => return flood(script),
        kind if kind & 0x80 != 0 => raw_streams(&mut script),
        kind => made_streams(kind, &mut script),
    };
    let first = script.byte();
    let in_order = run_streams(&streams, first, &mut Script(&[]));
    let shuffled = run_streams(&streams, first, &mut script);
    assert_eq!(in_order, shuffled);
}

/// Bytes of the input as they are.
fn raw_streams(script: &mut Script<'_>) -> [Vec<u8>; 2] {
    [(); 2].map(|()| {
        let (stream, rest) = script.0.split_at((script.number() % STREAM_MAX_BYTES).min(script.0.len()));
        script.0 = rest;
        stream.to_vec()
    })
}

/// A connection as two peers would have it: start frames, then FPDUs, with markers where `kind` says.
fn made_streams(kind: u8, script: &mut Script<'_>) -> [Vec<u8>; 2] {
    static CRC: OnceLock<Crc> = OnceLock::new();
    let crc = CRC.get_or_init(|| Crc::new(CRC32C).expect("a known width"));
    let bit = |number: u8| kind >> number & 1;
    let crc = (bit(0) | bit(1) == 1).then_some(crc);
    let fill = script.byte();
    [(b'q', bit(0), bit(2), bit(3)), (b'p', bit(1), bit(3), bit(2))].map(|(letter, own_crc, asks, marked)| {
        let private = script.byte() % 4;
        let mut stream = [&b"MPA ID Re"[..], &[letter], b" Frame", &[asks << 7 | own_crc << 6, 1, 0, private]].concat();
        stream.resize(stream.len() + usize::from(private), fill);
        let mut position = 0;
        for _ in 0..script.byte() % 8 {
            let length = script.number() % 1500;
            if stream.len() + length > STREAM_MAX_BYTES {
                break;
            }
            let mut fpdu = (length as u16).to_be_bytes().to_vec();
            fpdu.resize(2 + length, fill);
            fpdu.resize(fpdu.len().next_multiple_of(4) + 4, 0);
            if marked == 1 {
                position = mark(position, &fpdu, crc, &mut stream);
            } else {
                stream.extend(fpdu);
            }
        }
        stream
    })
}

/// Brings the streams in the segments that the script names, then all that is still missing.
fn run_streams(streams: &[Vec<u8>; 2], first: u8, script: &mut Script<'_>) -> [Outcome; 2] {
    let mut connection = MpaConnection::new();
    let mut directions = [Reassembly::default(), Reassembly::default()];
    let mut outcomes = [Outcome::default(), Outcome::default()];
    let mut came = streams.each_ref().map(|stream| vec![false; stream.len()]);
    // Sequence numbers that wrap somewhere in the stream.
    let sequence = |at: usize| u32::MAX.wrapping_sub(u32::from(first) * 16).wrapping_add(1 + at as u32);
    for direction in &mut directions {
        direction.push(sequence(0).wrapping_sub(1), true, &[]).expect("nothing is held yet");
    }
    let mut bring = |side: usize, from: usize, to: usize| {
        let stream = &streams[side];
        directions[side].push(sequence(from), false, &stream[from..to]).expect("the stream is short");
        came[side][from..to].fill(true);
        let contiguous = came[side].iter().take_while(|came| **came).count();
        if outcomes[side].fault.is_none() {
            assert_eq!(directions[side].ready(), &stream[outcomes[side].consumed..contiguous]);
        }
        // A start frame of the second side may free what the first has sent.
        for number in [0, 1, 0] {
            drain(&mut connection, SIDES[number], &mut directions[number], &mut outcomes[number]);
        }
        contiguous
    };
    while !script.0.is_empty() {
        let side = usize::from(script.byte() & 1);
        let end = streams[side].len();
        let from = script.number() % (end + 1);
        bring(side, from, (from + script.number() % 700).min(end));
    }
    for (side, stream) in streams.iter().enumerate() {
        let mut contiguous = bring(side, 0, 0);
        while contiguous < stream.len() {
            contiguous = bring(side, contiguous, (contiguous + 1000).min(stream.len()));
        }
    }
    outcomes
}

fn drain(connection: &mut MpaConnection, side: Side, direction: &mut Reassembly, outcome: &mut Outcome) {
    let mut scratch = Vec::new();
    while outcome.fault.is_none() && !direction.ready().is_empty() {
        let consumed = match connection.next(side, direction.ready(), &mut scratch) {
            Ok(MpaStep::NeedMore) => return,
            Ok(MpaStep::Unit { consumed, unit }) => {
                outcome.units.push((unit.kind, unit.bytes.to_vec(), unit.crc));
                consumed
            }
            Err(error) => {
                outcome.fault = Some(error);
                return;
            }
        };
        assert!(consumed > 0 && consumed <= direction.ready().len());
        direction.consume(consumed);
        outcome.consumed += consumed;
    }
}

/// Long segments at any place of a stream that nobody reads: it must refuse, not grow.
fn flood(mut script: Script<'_>) {
    static BLOCK: [u8; 1 << 18] = [0; 1 << 18];
    /// More than a held segment costs beside its bytes.
    const SEGMENT_COST_MAX_BYTES: usize = 128;
    let mut direction = Reassembly::default();
    let mut segments = 0;
    while !script.0.is_empty() {
        segments += 1;
        let flags = script.byte();
        let sequence = (script.number() as u32) << 8 | (u32::from(flags) << 24);
        let before = direction.held();
        let data = &BLOCK[..(script.number() << 2).min(BLOCK.len())];
        let outcome = direction.push(sequence, flags & 1 == 1, data);
        // What is ready may have room for as much again; what came early is counted exactly.
        assert!(direction.held() <= 3 * STREAM_WINDOW_MAX_BYTES + 2 * data.len());
        if outcome.is_err() {
            // It is cut where it overlaps others, into at most as many pieces as there are segments.
            assert!(before + data.len() + segments * SEGMENT_COST_MAX_BYTES > STREAM_WINDOW_MAX_BYTES);
            return;
        }
        if flags & 2 == 2 {
            direction.consume(script.number() << 2);
        }
    }
}
