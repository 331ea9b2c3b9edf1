//! What the fuzz targets do: one module for each kind of input, one function `run` in each. A target in `fuzz_targets/`
//! only calls it; so does `examples/seed.rs`, with the inputs that it makes, before it writes them down.
//!
//! Not panicking is the least. Each module says at its top what must hold for every input that is accepted; a claim
//! that does not hold is an `assert` that fails, and libFuzzer keeps the input.
//!
//! `weft-wire` forbids unsafe code, so that address sanitizer has nothing to find in it. The targets run without it,
//! five times as fast; integer overflow is still caught, since cargo-fuzz builds with debug assertions.

pub mod capture;
pub mod definition;
pub mod frames;
pub mod graph;
pub mod protocol;
pub mod stream;

use std::sync::OnceLock;

use weft_wire::table::Tables;

/// The tables of the protocols that come with Weft, loaded once.
pub fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| Tables::builtin().unwrap_or_else(|error| panic!("{error}")))
}
