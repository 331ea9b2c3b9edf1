//! Tries and measures every kind of device memory that this machine has: what is absent and why, copies in all
//! directions with their bytes checked, events, and handles between two processes. Beside CUDA's figures stand those of
//! the driver's own calls.
//!
//! `cargo run --release -p weft-mem --example device`; with `-- small` it measures nothing and is done at once.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "a test stops at what must not happen")]

mod peer;
mod raw;

use std::time::Instant;

use weft_mem::device::{DeviceError, Direction, Event, Handle, Kind, Operations, Place, Transfer, in_use, operations};

/// Memory of a device that is freed at the end.
struct Memory<'a> {
    table: &'a dyn Operations,
    device: u32,
    address: u64,
}

impl<'a> Memory<'a> {
    fn new(table: &'a dyn Operations, device: u32, length: usize) -> Memory<'a> {
        Memory { table, device, address: table.allocate(device, length).expect("memory of the device") }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it, and every copy of this program is waited for.
        unsafe { self.table.free(self.device, self.address) }.expect("it was allocated");
    }
}

/// Bytes of which no two neighbouring pages are the same.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn to_device(table: &dyn Operations, device: u32, to: u64, bytes: &[u8]) {
    let piece = Transfer { to, from: bytes.as_ptr() as u64, length: bytes.len() };
    // SAFETY: the caller's device memory is as long, and the bytes are there until it returns.
    unsafe { table.copy(device, Direction::ToDevice, &[piece]) }.expect("a copy to the device");
}

fn from_device(table: &dyn Operations, device: u32, from: u64, bytes: &mut [u8]) {
    let piece = Transfer { to: bytes.as_mut_ptr() as u64, from, length: bytes.len() };
    // SAFETY: as above.
    unsafe { table.copy(device, Direction::FromDevice, &[piece]) }.expect("a copy from the device");
}

fn within(table: &dyn Operations, device: u32, to: u64, from: u64, length: usize) {
    // SAFETY: the caller's device memory is as long.
    unsafe { table.copy(device, Direction::Within, &[Transfer { to, from, length }]) }.expect("a copy inside");
}

/// Microseconds of one call: the median of many, after some that do not count.
fn median(bytes: usize, mut call: impl FnMut()) -> f64 {
    let calls = ((256 << 20) / bytes.max(1)).clamp(7, 300);
    (0..calls / 10 + 2).for_each(|_| call());
    let mut times: Vec<f64> = (0..calls)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_nanos() as f64 / 1000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

/// A time, and for long copies the rate.
fn figure(bytes: usize, microseconds: f64) -> String {
    if bytes < 1 << 20 {
        format!("{microseconds:.2} µs")
    } else {
        format!("{microseconds:.0} µs {:.1} GB/s", bytes as f64 / microseconds / 1000.0)
    }
}

fn verify(table: &dyn Operations, device: u32) {
    let length = (9 << 20) + 77;
    let bytes = pattern(1, length);
    let (memory, second) = (Memory::new(table, device, length), Memory::new(table, device, length));
    let mut out = vec![1; length];
    from_device(table, device, memory.address, &mut out);
    assert!(out.iter().all(|byte| *byte == 0), "new memory is zero");

    let allocation = table.classify(memory.address + 100).expect("it is of this kind");
    assert_eq!((allocation.base, allocation.place), (memory.address, Place { kind: table.kind(), device }));
    assert!(allocation.length >= length as u64 && allocation.exportable, "{allocation:?}");
    assert_ne!(allocation.id, table.classify(second.address).expect("so is this").id);
    assert_eq!(table.classify(bytes.as_ptr() as u64), None, "memory of the host");
    assert_eq!(table.classify(0), None);

    // Every length at which another way is taken, from odd addresses, there and back, through the second allocation.
    for length in [0, 1, 8, 100, 4096, 8192, 8193, 65_537, (512 << 10) - 1, 512 << 10, (2 << 20) + 1, length - 3] {
        to_device(table, device, memory.address + 3, &bytes[1..][..length]);
        within(table, device, second.address + 1, memory.address + 3, length);
        out.fill(0);
        from_device(table, device, second.address + 1, &mut out[2..][..length]);
        assert!(out[2..][..length] == bytes[1..][..length], "{length} bytes");
        assert!(out[..2] == [0, 0] && out[2 + length..].iter().all(|byte| *byte == 0), "nothing beside {length} bytes");
    }

    // Scattered pieces: long and short in turn, and only short ones, many more than fit into what they are staged in.
    for parts in [&[7, 8000, 60, 1 << 20, 0, 8192, 30_000, 3][..], &[8192, 1, 8000]] {
        let mut pieces = Vec::new();
        let (mut at, mut parts) = (0, parts.iter().cycle());
        while at < length {
            let part = length.min(at + parts.next().expect("they never end")) - at;
            pieces.push((at, part));
            at += part;
        }
        let transfers = |to: u64, from: u64| -> Vec<Transfer> {
            let transfer = |(at, length): &(usize, usize)| (*at as u64, *length);
            let transfers = pieces.iter().map(transfer);
            transfers.map(|(at, length)| Transfer { to: to + at, from: from + at, length }).collect()
        };
        out.fill(0);
        // SAFETY: all pieces lie in the three memories, which are as long, and are waited for.
        unsafe {
            table.copy(device, Direction::ToDevice, &transfers(memory.address, bytes.as_ptr() as u64)).expect("to");
            table.copy(device, Direction::Within, &transfers(second.address, memory.address)).expect("within");
            let out = out.as_mut_ptr() as u64;
            table.copy(device, Direction::FromDevice, &transfers(out, second.address)).expect("from");
        }
        assert!(out == bytes, "{} pieces", pieces.len());
    }

    // Asynchronous, many at a time, in threads.
    std::thread::scope(|scope| {
        for number in 0..4u64 {
            let bytes = &bytes;
            scope.spawn(move || {
                let memory = Memory::new(table, device, 64 * 4096);
                let mut out = vec![0u8; 64 * 4096];
                let start = |direction, to: u64, from: u64| {
                    let piece = Transfer { to, from, length: 4096 };
                    // SAFETY: inside both memories; all are waited for below, before either goes.
                    unsafe { table.start(device, direction, &[piece]) }.expect("a copy is started")
                };
                let from = bytes.as_ptr() as u64 + number;
                let events: Vec<Event> =
                    (0..64).map(|i| start(Direction::ToDevice, memory.address + i * 4096, from + i * 4096)).collect();
                for event in events {
                    while !table.is_done(&event).expect("no failure") {
                        std::hint::spin_loop();
                    }
                    assert_ne!(table.is_done(&event), Ok(false), "a forgotten one is not under way");
                }
                let to = out.as_mut_ptr() as u64;
                let events: Vec<Event> =
                    (0..64).map(|i| start(Direction::FromDevice, to + i * 4096, memory.address + i * 4096)).collect();
                events.into_iter().for_each(|event| table.wait(event).expect("no failure"));
                assert!(out == bytes[number as usize..][..out.len()], "thread {number}");
            });
        }
    });
    assert_eq!(table.is_done(&Event(u64::MAX)), Ok(true));
    assert_eq!(table.allocate(table.devices(), 4096), Err(DeviceError::BadAddress));
    assert_eq!(table.allocate(device, usize::MAX - 5), Err(DeviceError::OutOfMemory));
    assert_eq!(table.allocate(device, 1 << 50), Err(DeviceError::OutOfMemory));
    assert!(table.export(bytes.as_ptr() as u64).is_err());
    println!("  verified: zeros, lengths, scattered pieces, 4 threads with 128 events each");
}

fn measure(table: &dyn Operations, device: u32, raw: Option<&(raw::Maker, raw::Cuda)>) {
    let most = 1 << 30;
    let (memory, second) = (Memory::new(table, device, most), Memory::new(table, device, most));
    let mut pageable = pattern(3, most);
    let host = pageable.as_mut_ptr();
    println!(
        "  classify: {:.2} µs of device memory, {:.2} µs of other",
        median(1, || {
            let _ = table.classify(memory.address);
        }),
        median(1, || {
            let _ = table.classify(host as u64);
        })
    );
    let sizes = [8, 1024, 4096, 8192, 16_384, 65_536, 262_144, 1 << 20, 4 << 20, 64 << 20, most];
    for (direction, name) in
        [(Direction::ToDevice, "to device"), (Direction::FromDevice, "from device"), (Direction::Within, "within")]
    {
        for pinned in [false, true] {
            if direction == Direction::Within && pinned {
                continue;
            }
            let memory_kind = match (direction, pinned) {
                (Direction::Within, _) => "",
                (_, false) => ", pageable",
                (_, true) => ", registered",
            };
            if pinned {
                let start = Instant::now();
                // SAFETY: the memory stays until it is unregistered below.
                unsafe { table.register_host(host, most) }.expect("host memory can be registered");
                println!("  register 1 GiB of host memory: {:.1} ms", start.elapsed().as_secs_f64() * 1000.0);
            }
            println!("  {name}{memory_kind}");
            println!(
                "    {:>8} {:>22} {:>22} {:>22} {:>22}",
                "", "copy", "start and wait", "driver, synchronous", "driver, own stream"
            );
            for bytes in sizes {
                let (to, from) = match direction {
                    Direction::ToDevice => (memory.address, host as u64),
                    Direction::FromDevice => (host as u64, memory.address),
                    Direction::Within => (second.address, memory.address),
                };
                let piece = [Transfer { to, from, length: bytes }];
                // SAFETY: both memories have as many bytes; all copies are waited for.
                let ours = median(bytes, || unsafe { table.copy(device, direction, &piece) }.expect("a copy"));
                let events = median(bytes, || {
                    // SAFETY: as above.
                    let event = unsafe { table.start(device, direction, &piece) }.expect("a copy");
                    table.wait(event).expect("it is done");
                });
                let theirs = raw.map(|(maker, raw)| raw.measure(maker, device, direction, &piece[0]));
                let (plain, stream) = theirs.map_or(("-".to_owned(), "-".to_owned()), |(plain, stream)| {
                    (figure(bytes, plain), figure(bytes, stream))
                });
                println!(
                    "    {:>8} {:>22} {:>22} {plain:>22} {stream:>22}",
                    size(bytes),
                    figure(bytes, ours),
                    figure(bytes, events)
                );
            }
            if pinned {
                // SAFETY: registered above; nothing is under way.
                unsafe { table.unregister_host(host) }.expect("it was registered");
            }
        }
    }
    let starts = median(1, || {
        let piece = [Transfer { to: second.address, from: memory.address, length: 8 }];
        // SAFETY: both are memory of the device; it is waited for.
        let event = unsafe { table.start(device, Direction::Within, &piece) }.expect("a copy");
        let begin = Instant::now();
        while !table.is_done(&event).expect("no failure") {
            std::hint::spin_loop();
        }
        std::hint::black_box(begin.elapsed());
    });
    println!("  start and ask until done, 8 B within: {starts:.2} µs");
}

fn handles(table: &dyn Operations, device: u32, length: usize) {
    let memory = Memory::new(table, device, length);
    peer::play(table, device, memory.address, length, "allocated by the table");
    // Once more at the same place: an allocation that was freed and made anew has another id.
    let first = table.classify(memory.address).expect("ours").id;
    drop(memory);
    let memory = Memory::new(table, device, length);
    let again = table.classify(memory.address).expect("ours");
    assert_ne!(first, again.id, "ids are not used twice");
    println!("  freed and allocated again: base {:#x}, id {first} then {}", memory.address, again.id);
    lies(table, memory.address);
}

/// Memory that only CUDA has.
fn created(table: &dyn Operations, device: u32, maker: &raw::Maker, length: usize) {
    assert!(!maker.is_entered(), "the thread has no context, as before all this");
    let shared = maker.create(device, length, true);
    peer::play(table, device, shared, length, "of cuMemCreate");
    let private = maker.create(device, length, false);
    let found = table.classify(private).expect("device memory");
    assert!(!found.exportable, "{found:?}");
    assert_eq!(table.export(private).err(), Some(DeviceError::NotSupported));
    // A context of the thread's own is there afterwards too.
    maker.enter(0);
    to_device(table, device, private, &[1; 100]);
    assert!(maker.is_entered());
    maker.leave();
}

/// Handles that are not what they say.
fn lies(table: &dyn Operations, address: u64) {
    let good = table.export(address).expect("exportable");
    let file = || std::fs::File::open("/proc/self/exe").expect("this program").into();
    let with = |place, bytes, descriptor, length| Handle { place, bytes, descriptor, length, id: good.id };
    let (place, length) = (good.place, good.length);
    for (what, handle) in [
        ("zeros", with(place, [0; 64], None, length)),
        ("ones", with(place, [0xff; 64], None, length)),
        ("of another kind", with(Place::HOST, good.bytes, None, length)),
        ("of no bytes", with(place, good.bytes, None, 0)),
        ("of a device that is not there", with(Place { device: 99, ..place }, [7; 64], None, length)),
        ("with a file for a descriptor", with(place, good.bytes, Some(file()), length)),
        ("as long as anything", with(place, good.bytes, Some(file()), u64::MAX)),
    ] {
        assert_eq!(table.import(&handle), Err(DeviceError::BadHandle), "a handle {what}");
    }
    // SAFETY: nothing is there, so nothing uses it.
    assert_eq!(unsafe { table.release(0x1000) }, Err(DeviceError::BadAddress));
    println!("  handles that lie are refused; one's own handle: {:?}", table.import(&good).map(|_| "opens"));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let ["peer", kind] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        let kind = Kind::from_number(kind.parse().expect("a number")).expect("a kind");
        return peer::answer(operations(kind).expect("the kind that the other process has"));
    }
    let small = arguments.iter().any(|argument| argument == "small");
    assert!(in_use(Kind::Cuda).is_none(), "nobody loaded it yet");
    for kind in Kind::ALL {
        let start = Instant::now();
        let table = match operations(kind) {
            Ok(table) => table,
            Err(absent) => {
                println!("{kind}: absent: {}", absent.0);
                continue;
            }
        };
        println!(
            "{kind}: {} device(s), {:?}, found in {:.1} ms",
            table.devices(),
            table.capabilities(),
            start.elapsed().as_secs_f64() * 1000.0
        );
        for device in 0..table.devices() {
            println!("  {device}: {}", table.describe(device));
            if kind == Kind::System {
                continue;
            }
            let start = Instant::now();
            drop(Memory::new(table, device, 1));
            println!("  first use: {:.1} ms", start.elapsed().as_secs_f64() * 1000.0);
            verify(table, device);
            handles(table, device, if small { 8 << 20 } else { 1 << 30 });
            assert!(in_use(kind).is_some());
            let maker = (kind == Kind::Cuda).then(raw::Maker::load);
            if let Some(maker) = &maker {
                created(table, device, maker, if small { 8 << 20 } else { 64 << 20 });
            }
            if !small {
                let raw = maker.map(|maker| (maker, raw::Cuda::load()));
                if let Some((maker, raw)) = &raw {
                    raw.kinds_of_memory(maker, table, device);
                }
                measure(table, device, raw.as_ref());
            }
        }
    }
}
