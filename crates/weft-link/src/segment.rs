//! A piece of memory that goes out: what memory gives, links take.

pub use weft_mem::Segment;
