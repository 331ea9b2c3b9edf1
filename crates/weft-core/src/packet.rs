//! Packets as the engine sees them.

/// stub
#[derive(Debug)]
pub struct Codec;
