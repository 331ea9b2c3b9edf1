//! Measures what the memory's own routines cost: copies against libc's `memcpy`, checksums, and attaching buffers.
//!
//! `cargo run --release -p weft-mem --example copy`
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "a benchmark may stop at what cannot happen")]

use std::hint::black_box;
use std::time::Instant;

use weft_core::memory::Memory;
use weft_mem::{Buffer, HostMemory, MemoryRegion, copy, crc32c};

/// Nanoseconds of one call each: the best of several runs in turn, as others use the machine too.
fn measure_pair(bytes: usize, mut first: impl FnMut(), mut second: impl FnMut()) -> (f64, f64) {
    let calls = ((16 << 20) / bytes.max(64)).clamp(4, 100_000);
    let time = |call: &mut dyn FnMut(usize)| {
        let start = Instant::now();
        call(calls);
        start.elapsed().as_nanos() as f64 / calls as f64
    };
    (0..15).fold((f64::INFINITY, f64::INFINITY), |(a, b), _| {
        (a.min(time(&mut |n| (0..n).for_each(|_| first()))), b.min(time(&mut |n| (0..n).for_each(|_| second()))))
    })
}

fn measure(bytes: usize, call: impl FnMut()) -> f64 {
    measure_pair(bytes, call, || {}).0
}

fn copies() {
    let region = MemoryRegion::alloc_zeroed(32 << 20).expect("32 MiB");
    let base = region.as_ptr();
    println!("{:>9} {:>22} {:>12} {:>12}", "bytes", "placement", "memcpy GB/s", "copy GB/s");
    for bytes in [8, 64, 100, 200, 256, 512, 1024, 1400, 2048, 4096, 8192, 16_384, 65_536, 262_144, 1 << 20, 4 << 20] {
        // Destination minus source, modulo a page: far apart, the same, slightly above, slightly below.
        for (placement, shift) in
            [("half a page", 2048), ("same", 0), ("1 above", 1), ("16 above", 16), ("60 above", 60), ("1 below", 4095)]
        {
            // SAFETY: both ranges lie within the 32 MiB, 16 MiB apart.
            let (source, destination) = unsafe { (base.add(8192), base.add((16 << 20) + 8192 + shift)) };
            let (theirs, ours) = measure_pair(
                bytes,
                // SAFETY: as above; nothing else uses the region.
                || unsafe {
                    libc::memcpy(black_box(destination).cast(), black_box(source).cast(), black_box(bytes));
                },
                // SAFETY: as above.
                || unsafe { copy::copy(black_box(destination), black_box(source), black_box(bytes)) },
            );
            let rate = |nanoseconds: f64| bytes as f64 / nanoseconds;
            println!("{bytes:>9} {placement:>22} {:>12.1} {:>12.1}", rate(theirs), rate(ours));
        }
    }
}

fn checksums() {
    let bytes: Vec<u8> = (0..4usize << 20).map(|i| (i * 7) as u8).collect();
    for length in [16, 64, 100, 256, 1024, 1400, 4096, 8192, 65_536, 1 << 20] {
        for start in [0, 1] {
            let part = &bytes[start..start + length];
            let nanoseconds = measure(length, || {
                black_box(crc32c(0, black_box(part)));
            });
            println!(
                "crc32c of {length:>7} bytes, offset {start}: {nanoseconds:>9.1} ns, {:>5.1} GB/s",
                length as f64 / nanoseconds
            );
        }
    }
}

fn buffers() {
    let mut memory = HostMemory::new();
    let mut raw = [0u8; 64];
    let pointer = raw.as_mut_ptr();
    let nanoseconds = measure(64, || {
        // SAFETY: `raw` outlives the loop.
        let buffer = unsafe { Buffer::from_raw(black_box(pointer), 64) };
        let key = memory.attach(buffer).expect("room");
        black_box(memory.take(black_box(key)));
    });
    println!("attach and take a raw buffer: {nanoseconds:.1} ns");
    let mut vec = Some(vec![0u8; 64]);
    let nanoseconds = measure(64, || {
        let key = memory.attach(Buffer::from(vec.take().unwrap_or_default())).expect("room");
        vec = memory.take(black_box(key)).and_then(|buffer| buffer.into_vec().ok());
    });
    println!("attach and take a vector: {nanoseconds:.1} ns");
    for length in [64, 1024, 4096] {
        let bytes = vec![1; length];
        let nanoseconds = measure(length, || {
            let key = memory.attach_inline(black_box(&bytes)).expect("room");
            memory.release(black_box(key));
        });
        println!("attach and release a copy of {length} bytes: {nanoseconds:.1} ns");
    }
}

fn main() {
    buffers();
    checksums();
    copies();
}
