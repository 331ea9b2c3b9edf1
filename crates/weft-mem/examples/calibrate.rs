//! Measures the ways to copy between processes, and says which would be taken: `cargo run --release -p weft-mem
//! --example calibrate`. Nothing is remembered.

use std::time::Instant;

use weft_mem::calibrate::measure;

fn main() {
    for _ in 0..5 {
        let start = Instant::now();
        let methods = measure();
        let time = start.elapsed();
        methods.describe().iter().for_each(|line| println!("{line}"));
        println!("this took {time:.1?}");
    }
}
