//! Two processes: this program, and itself started again with a socket as its standard input.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use weft_mem::device::{DeviceError, Direction, HANDLE_BYTES, Handle, Operations, Place, Transfer};

use super::{Memory, figure, from_device, median, pattern, size, to_device, within};

/// kind, device, length, id, whether a descriptor comes along, the handle.
const MESSAGE: usize = 1 + 4 + 8 + 8 + 1 + HANDLE_BYTES;

/// Places that are checked, and the bytes at each.
fn places(length: usize) -> (Vec<usize>, usize) {
    let sample = 1 << 20;
    if length < 4 * sample { (vec![0], length) } else { (vec![0, length / 2 - 12_345, length - sample], sample) }
}

/// Shares memory with another process, which checks, measures and changes it; then checks what it changed.
pub(crate) fn play(table: &dyn Operations, device: u32, address: u64, length: usize, what: &str) {
    let (places, sample) = places(length);
    for (number, place) in (0..).zip(places.iter().map(|place| *place as u64)) {
        to_device(table, device, address + place, &pattern(100 + number, sample));
    }
    let handle = table.export(address + 17).expect("it can be exported");
    assert!(handle.length >= length as u64, "{handle:?}");
    let export = median(1, || drop(table.export(address)));
    let (mut socket, theirs) = UnixStream::pair().expect("a pair of sockets");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["peer", &(table.kind() as u8).to_string()])
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a second process");
    send(&socket, &handle);
    let descriptor = if handle.descriptor.is_some() { "with a descriptor" } else { "without a descriptor" };
    println!("  handles, memory {what}: export {export:.1} µs, {descriptor}; in the other process:");
    let mut done = [0];
    let outcome = socket.read_exact(&mut done);
    let mut said = String::new();
    child.stdout.take().expect("it was piped").read_to_string(&mut said).expect("text");
    print!("{said}");
    assert!(child.wait().expect("it ends").success() && outcome.is_ok(), "the other process failed");
    for (number, place) in (0..).zip(places.iter().map(|place| *place as u64)) {
        let mut out = vec![0; sample];
        from_device(table, device, address + place, &mut out);
        assert!(out == pattern(200 + number, sample), "what the other process wrote");
    }
    println!("    what it wrote arrived");
    socket.write_all(&[0]).err(); // it is gone; the socket stayed open so that it could not end early
}

/// The other process.
pub(crate) fn answer(table: &dyn Operations) {
    // SAFETY: the standard input of this process is the socket, and nothing else uses it.
    let mut socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let handle = receive(&socket);
    let (device, length) = (handle.place.device, handle.length as usize);
    let (places, sample) = places(length);
    let own = Memory::new(table, device, length);
    let too_long = Handle { descriptor: None, length: handle.length * 2, ..handle };
    let (handle, too_long) = match handle.descriptor {
        None => (Handle { descriptor: None, ..too_long }, too_long),
        Some(descriptor) => {
            let copy = descriptor.try_clone().expect("a second descriptor");
            (Handle { descriptor: Some(descriptor), ..too_long }, Handle { descriptor: Some(copy), ..too_long })
        }
    };
    let handle = Handle { length: length as u64, ..handle };
    // What is smaller than a block of the driver's may come with the rest of its block.
    let whole = length >= 2 << 20;
    let refused = table.import(&too_long);
    assert!(!whole || refused == Err(DeviceError::BadHandle), "it has not as many bytes");
    let start = Instant::now();
    let base = table.import(&handle).expect("it can be opened");
    let first = start.elapsed().as_secs_f64() * 1e6;
    let found = table.classify(base + 5).expect("device memory");
    println!("    opened at {base:#x}: {found:x?}; twice as long: {refused:x?}");
    assert_eq!((found.base, found.exportable), (base, false));
    for (number, place) in (0..).zip(places.iter().map(|place| *place as u64)) {
        let mut out = vec![0; sample];
        within(table, device, own.address, base + place, sample);
        from_device(table, device, own.address, &mut out);
        assert!(out == pattern(100 + number, sample), "what the first process wrote, by way of our memory");
        from_device(table, device, base + place, &mut out);
        assert!(out == pattern(100 + number, sample), "what the first process wrote");
    }
    // SAFETY: imported above, nothing is under way.
    unsafe { table.release(base) }.expect("it was imported");
    let mut base = 0;
    let again = median(1 << 20, || {
        if base != 0 {
            // SAFETY: as above.
            unsafe { table.release(base) }.expect("it was imported");
        }
        base = table.import(&handle).expect("it can be opened again");
    });
    println!("    open {first:.0} µs, close and open again {again:.0} µs");
    let second = table.import(&handle).expect("it can be open twice");
    // SAFETY: as above; if both are the same address, it stays open for the other.
    unsafe { table.release(second) }.expect("it was imported");
    let local = Memory::new(table, device, length);
    for bytes in [8, 4096, 65_536, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30] {
        if bytes > length {
            break;
        }
        let time = |to, from| {
            let piece = [Transfer { to, from, length: bytes }];
            // SAFETY: all three memories have as many bytes.
            figure(bytes, median(bytes, || unsafe { table.copy(device, Direction::Within, &piece) }.expect("a copy")))
        };
        let (read, write) = (time(own.address, base), time(base, own.address));
        println!(
            "    {:>8} read {read:>22}, write {write:>22}, inside {:>22}",
            size(bytes),
            time(local.address, own.address)
        );
    }
    for (number, place) in (0..).zip(places.iter().map(|place| *place as u64)) {
        let bytes = pattern(200 + number, sample);
        if number == 0 {
            to_device(table, device, base + place, &bytes);
        } else {
            to_device(table, device, own.address + 64, &bytes);
            within(table, device, base + place, own.address + 64, sample);
        }
    }
    // SAFETY: as above.
    unsafe { table.release(base) }.expect("it was imported");
    socket.write_all(&[1]).expect("the first process is there");
}

fn send(socket: &UnixStream, handle: &Handle) {
    let mut message = Vec::with_capacity(MESSAGE);
    message.push(handle.place.kind as u8);
    message.extend_from_slice(&handle.place.device.to_le_bytes());
    message.extend_from_slice(&handle.length.to_le_bytes());
    message.extend_from_slice(&handle.id.to_le_bytes());
    message.push(u8::from(handle.descriptor.is_some()));
    message.extend_from_slice(&handle.bytes);
    let mut room = [0u64; 8];
    let mut vector = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: message.len() };
    // SAFETY: a header of zeros is an empty one. Its pointers are to memory of this function; `room` has room for one
    // descriptor and is aligned for the control header.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        if let Some(descriptor) = &handle.descriptor {
            header.msg_control = room.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let control = libc::CMSG_FIRSTHDR(&raw const header);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(control).cast::<i32>().write_unaligned(descriptor.as_raw_fd());
        }
        assert_eq!(libc::sendmsg(socket.as_raw_fd(), &raw const header, 0), MESSAGE as isize, "the message is sent");
    }
}

fn receive(socket: &UnixStream) -> Handle {
    let mut message = [0u8; MESSAGE];
    let mut room = [0u64; 8];
    let mut vector = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: message.len() };
    // SAFETY: as in `send`; a descriptor that comes is ours.
    let descriptor = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = room.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&room);
        let length = libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_WAITALL);
        assert_eq!(length, MESSAGE as isize, "the message is whole");
        let control = libc::CMSG_FIRSTHDR(&raw const header);
        (!control.is_null()).then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(control).cast::<i32>().read_unaligned()))
    };
    let number = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!(message[21] == 1, descriptor.is_some());
    let kind = weft_mem::device::Kind::from_number(message[0]).expect("a kind");
    Handle {
        place: Place { kind, device: u32::from_le_bytes(message[1..5].try_into().expect("four bytes")) },
        bytes: message[22..].try_into().expect("a handle"),
        descriptor,
        length: number(5),
        id: number(13),
    }
}
