//! Capture files: read in pieces, gzip or not, so that a file may be longer than memory.

use std::fs::File;
use std::io::{self, Read};

use flate2::read::MultiGzDecoder;
use weft_wire::capture::{CaptureError, Packet, Reader, Step};

/// Bytes asked for at a time.
const CHUNK_BYTES: usize = 256 * 1024;

/// Why a file could not be read to its end. What came before was handed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Capture(CaptureError),
    /// A gzip file inside of a gzip file.
    #[error("gzip inside of gzip: unzip it once by hand")]
    TwiceZipped,
}

/// Opens `path`, or standard input for `-`, and hands every record to `each`: a packet, or what is wrong with it.
pub(crate) fn read_capture<E: From<InputError>>(
    path: &str,
    each: impl FnMut(Result<Packet<'_>, CaptureError>) -> Result<(), E>,
) -> Result<(), E> {
    let mut source: Box<dyn Read> =
        if path == "-" { Box::new(io::stdin().lock()) } else { Box::new(File::open(path).map_err(InputError::Io)?) };
    let mut start = [0u8; 2];
    let (length, failure) = read_up_to(&mut source, &mut start);
    if let Some(error) = failure {
        return Err(InputError::Io(error).into());
    }
    let start = io::Cursor::new(start).take(length as u64);
    let whole = start.chain(source);
    if length == 2 && is_gzip(whole.get_ref().0.get_ref().get_ref()) {
        records(MultiGzDecoder::new(whole), each)
    } else {
        records(whole, each)
    }
}

fn is_gzip(start: &[u8]) -> bool {
    start.starts_with(&[0x1f, 0x8b])
}

/// Fills as much of `buffer` as there is. An error comes beside the bytes that were read before it.
fn read_up_to(source: &mut impl Read, buffer: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut length = 0;
    while let Some(rest) = buffer.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (length, Some(error)),
        }
    }
    (length, None)
}

fn records<E: From<InputError>>(
    mut source: impl Read,
    mut each: impl FnMut(Result<Packet<'_>, CaptureError>) -> Result<(), E>,
) -> Result<(), E> {
    let mut reader = Reader::new();
    let mut buffer = Vec::new();
    let mut done = 0;
    let mut failure = None;
    loop {
        let rest = buffer.get(done..).unwrap_or(&[]);
        let step = reader.next(rest).map_err(|error| match error {
            CaptureError::Gzip => InputError::TwiceZipped,
            error => InputError::Capture(error),
        })?;
        match step {
            Step::Skip { consumed } => done += consumed,
            Step::Packet { consumed, packet } => {
                each(Ok(packet))?;
                done += consumed;
            }
            Step::Bad { consumed, error } => {
                each(Err(error))?;
                done += consumed;
            }
            Step::NeedMore { .. } => {
                buffer.drain(..done);
                done = 0;
                let filled = buffer.len();
                buffer.resize(filled + CHUNK_BYTES, 0);
                // What came before an error is decoded before the error is told.
                if let Some(error) = failure.take() {
                    return Err(InputError::Io(error).into());
                }
                let (more, error) = read_up_to(&mut source, buffer.get_mut(filled..).unwrap_or(&mut []));
                failure = error;
                buffer.truncate(filled + more);
                if more == 0 && failure.is_none() {
                    return Ok(reader.finish(&buffer).map_err(InputError::Capture)?);
                }
            }
        }
    }
}
