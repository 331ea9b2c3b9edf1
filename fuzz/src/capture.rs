//! Capture files: the first byte seeds how the rest, a file, is cut into chunks.
//!
//! A file gives the same packets, the same faults and the same end, whether the reader sees it at once, or no more of it
//! than it asks for, or in chunks of any size. No step asks for more than the limit or consumes what is not there, and a file is done after as many
//! steps as it has bytes.

use weft_wire::capture::limits::BUFFERED_BLOCK_LENGTH_MAX_BYTES;
use weft_wire::capture::{CaptureError, LinkType, Reader, Step};

/// What a reader says of a file.
#[derive(Debug, PartialEq)]
enum Event {
    Packet { link_type: LinkType, timestamp_ns: u64, original_length: u32, start: usize, length: usize },
    Bad(CaptureError),
    End(Result<(), CaptureError>),
}

/// One input.
pub fn run(input: &[u8]) {
    let Some((seed, file)) = input.split_first() else { return };
    let whole = events(file, |_| usize::MAX);
    // No more than was asked for, each time.
    let asked = events(file, |missing| missing);
    assert_eq!(whole, asked);
    let mut state = u32::from(*seed);
    let chunked = events(file, |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Mostly a few bytes, sometimes many.
        1 + (state >> 24) as usize % if state & 0x10_0000 == 0 { 5 } else { 200 }
    });
    assert_eq!(whole, chunked);
}

/// Reads a file whose bytes come in chunks as `chunk` says.
fn events(file: &[u8], mut chunk: impl FnMut(usize) -> usize) -> Vec<Event> {
    let mut events = Vec::new();
    let mut reader = Reader::new();
    let (mut start, mut end) = (0, 0);
    // Each step either consumes something or brings something.
    for _ in 0..2 * file.len() + 2 {
        let buffer = &file[start..end];
        assert_eq!(reader.offset(), start as u64);
        let consumed = match reader.next(buffer) {
            Err(error) => {
                assert_eq!(reader.next(buffer), Err(error), "an error is final");
                events.push(Event::End(Err(error)));
                return events;
            }
            Ok(Step::NeedMore { at_least }) => {
                assert!(at_least > buffer.len() && at_least <= BUFFERED_BLOCK_LENGTH_MAX_BYTES as usize);
                // The contract: the buffer grows to what was asked for, or the file has no more.
                while end < file.len() && end - start < at_least {
                    end = end.saturating_add(chunk(at_least - (end - start))).min(file.len());
                }
                if end - start < at_least {
                    events.push(Event::End(reader.finish(&file[start..end])));
                    return events;
                }
                continue;
            }
            Ok(Step::Skip { consumed }) => consumed,
            Ok(Step::Bad { consumed, error }) => {
                events.push(Event::Bad(error));
                consumed
            }
            Ok(Step::Packet { consumed, packet }) => {
                assert!(packet.data.len() <= consumed);
                events.push(Event::Packet {
                    link_type: packet.link_type,
                    timestamp_ns: packet.timestamp_ns,
                    original_length: packet.original_length,
                    start: packet.data.as_ptr().addr() - file.as_ptr().addr(),
                    length: packet.data.len(),
                });
                consumed
            }
        };
        assert!(consumed > 0 && consumed <= buffer.len());
        start += consumed;
    }
    panic!("the reader does not come to an end");
}
