//! What the fuzz targets do: one module for each kind of input, one function `run` in each. A target in `fuzz_targets/`
//! only calls it; so does `examples/seed.rs`, with the inputs that it makes, before it writes them down.
//!
//! Not panicking is the least. Each module says at its top what must hold for every input that is accepted; a claim
//! that does not hold is an `assert` that fails, and libFuzzer keeps the input.
//!
//! `weft-wire` and `weft-core` forbid unsafe code, so that address sanitizer has nothing to find in them. The targets run without it,
//! five times as fast; integer overflow is still caught, since cargo-fuzz builds with debug assertions.

pub mod capture;
pub mod definition;
pub mod engine;
pub mod frames;
pub mod graph;
pub mod oracle;
pub mod protocol;
pub mod stream;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use weft_wire::table::Tables;

/// The tables of the protocols that come with Weft, loaded once.
pub fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| Tables::builtin().unwrap_or_else(|error| panic!("{error}")))
}

const MARKS: usize = 4096;

/// libFuzzer takes each of these for a piece of code that was reached, and sets them to zero before every input.
// SAFETY: the section is libFuzzer's own and holds nothing but counters of one byte.
#[used]
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static REACHED: [AtomicU8; MARKS] = [const { AtomicU8::new(0) }; MARKS];

/// Tells libFuzzer that an input got somewhere. The same code works on every row of the tables, so that without this
/// one opcode would look like another, and of all of them it would keep a few.
pub fn reached(number: usize) {
    REACHED[number % MARKS].store(1, Ordering::Relaxed);
}
