use std::os::unix::process::ExitStatusExt;

use super::*;

const LENGTH: usize = 10_000;

/// An allocation that is freed.
struct Owned(u32, u64);

impl Owned {
    fn new(device: u32, length: usize) -> Owned {
        Owned(device, operations().allocate(device, length).unwrap())
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let piece = Transfer { to: self.1 + offset, from: bytes.as_ptr() as u64, length: bytes.len() };
        // SAFETY: the host's side is a slice; the device checks its own.
        unsafe { operations().copy(self.0, Direction::ToDevice, &[piece]) }
    }

    fn bytes(&self, offset: u64, length: usize) -> Result<Vec<u8>, DeviceError> {
        get(self.0, self.1 + offset, length)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was allocated, and nobody uses it.
        unsafe { operations().free(self.0, self.1).unwrap() }
    }
}

fn get(device: u32, address: u64, length: usize) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0xee; length];
    let piece = Transfer { to: bytes.as_mut_ptr() as u64, from: address, length };
    // SAFETY: the host's side is a vector; the device checks its own.
    unsafe { operations().copy(device, Direction::FromDevice, &[piece])? };
    Ok(bytes)
}

#[test]
fn copies_in_every_direction() {
    let (a, b) = (Owned::new(0, LENGTH), Owned::new(1, LENGTH));
    assert_eq!(a.bytes(0, LENGTH).unwrap(), vec![0; LENGTH]);
    let bytes: Vec<u8> = (0..LENGTH).map(|i| i as u8).collect();
    a.put(0, &bytes).unwrap();
    let within = [
        Transfer { to: b.1 + 10, from: a.1, length: 5000 },
        Transfer { to: b.1 + 5010, from: a.1 + 5000, length: 4990 },
    ];
    // SAFETY: both sides are the device's, which checks them.
    unsafe { operations().copy(0, Direction::Within, &within).unwrap() };
    assert_eq!(b.bytes(10, 9990).unwrap(), bytes[..9990]);
    // Ranges that overlap.
    let shift = Transfer { to: a.1 + 1, from: a.1, length: LENGTH - 1 };
    // SAFETY: as above.
    unsafe { operations().copy(0, Direction::Within, &[shift]).unwrap() };
    assert_eq!(a.bytes(1, LENGTH - 1).unwrap(), bytes[..LENGTH - 1]);
}

#[test]
fn what_is_not_the_devices_is_refused() {
    let a = Owned::new(0, LENGTH);
    assert_eq!(a.put(1, &[0; LENGTH]), Err(DeviceError::BadAddress));
    assert_eq!(get(1, a.1, 1), Err(DeviceError::BadAddress), "another device's");
    assert_eq!(get(0, u64::MAX, 2), Err(DeviceError::BadAddress));
    assert_eq!(operations().allocate(DEVICES, 1), Err(DeviceError::BadAddress));
    let to_itself = Transfer { to: a.1, from: a.1 + 100, length: 8 };
    // SAFETY: the device refuses memory of its own as the host's.
    assert_eq!(unsafe { operations().copy(0, Direction::ToDevice, &[to_itself]) }, Err(DeviceError::BadAddress));
    // The first piece is not copied when the second cannot be.
    let one = [1; 8];
    let pieces = [a.1, a.1 + LENGTH as u64].map(|to| Transfer { to, from: one.as_ptr() as u64, length: 8 });
    // SAFETY: the host's side is an array.
    assert_eq!(unsafe { operations().copy(0, Direction::ToDevice, &pieces) }, Err(DeviceError::BadAddress));
    assert_eq!(a.bytes(0, 8).unwrap(), [0; 8]);
    // SAFETY: it is not of an allocation, as the device sees.
    assert_eq!(unsafe { operations().free(0, a.1 + 1) }, Err(DeviceError::BadAddress));
    // SAFETY: as above.
    assert_eq!(unsafe { operations().release(a.1) }, Err(DeviceError::BadAddress));
}

#[test]
fn classify_finds_each_allocation() {
    let a = Owned::new(1, LENGTH);
    let found = operations().classify(a.1 + LENGTH as u64 - 1).unwrap();
    assert_eq!((found.base, found.length), (a.1, LENGTH as u64));
    assert_eq!(found.place, Place { kind: Kind::Emulated, device: 1 });
    assert!(found.exportable);
    assert_eq!(operations().classify(a.1 + LENGTH as u64), None);
    assert_eq!(operations().classify((&raw const found) as u64), None, "host memory");
    drop(a);
    let again = Owned::new(1, LENGTH);
    assert_ne!(operations().classify(again.1).unwrap().id, found.id, "even if it is at the same place");
}

#[test]
fn started_copies_are_done_later() {
    let a = Owned::new(0, LENGTH);
    let bytes = vec![7; LENGTH];
    let piece = Transfer { to: a.1, from: bytes.as_ptr() as u64, length: LENGTH };
    // SAFETY: the vector lives until the events are done, here and below.
    let first = unsafe { operations().start(0, Direction::ToDevice, &[piece]).unwrap() };
    // SAFETY: as above.
    let second = unsafe { operations().start(0, Direction::ToDevice, &[piece]).unwrap() };
    while !operations().is_done(&second).unwrap() {
        std::thread::yield_now();
    }
    assert_eq!(operations().is_done(&second), Err(DeviceError::BadAddress), "a done one is forgotten");
    operations().wait(first).unwrap();
    assert_eq!(a.bytes(0, LENGTH).unwrap(), bytes);
    let bad = Transfer { to: a.1 + 1, ..piece };
    // SAFETY: as above.
    let bad = unsafe { operations().start(0, Direction::ToDevice, &[bad]).unwrap() };
    assert_eq!(operations().wait(bad), Err(DeviceError::BadAddress));
}

#[test]
fn handles_open_what_they_are_for() {
    let a = Owned::new(1, LENGTH);
    a.put(100, b"over there").unwrap();
    let handle = operations().export(a.1 + 5000).unwrap();
    assert_eq!((handle.length, handle.id), (LENGTH as u64, operations().classify(a.1).unwrap().id));
    let base = operations().import(&handle).unwrap();
    assert_ne!(base, a.1);
    assert_eq!(get(1, base + 100, 10).unwrap(), b"over there");
    let seen = operations().classify(base).unwrap();
    assert_ne!(seen.id, handle.id);
    assert!(!seen.exportable);
    assert!(operations().export(base).is_err());
    // SAFETY: it was imported, and nobody uses it.
    unsafe { operations().release(base).unwrap() };
    // Another test may have got memory at the same place by now, but not the same memory.
    assert_ne!(operations().classify(base).map(|found| found.id), Some(seen.id));
}

#[test]
fn handles_that_lie_are_refused() {
    let a = Owned::new(0, LENGTH);
    let honest = || operations().export(a.1).unwrap();
    let refused = |change: &dyn Fn(&mut Handle)| {
        let mut handle = honest();
        change(&mut handle);
        assert_eq!(operations().import(&handle), Err(DeviceError::BadHandle));
    };
    refused(&|handle| handle.bytes[0] ^= 1);
    refused(&|handle| handle.length += PAGE_BYTES as u64);
    refused(&|handle| handle.length = u64::MAX);
    refused(&|handle| handle.length = 0);
    refused(&|handle| handle.id += 1);
    refused(&|handle| handle.place.device ^= 1);
    refused(&|handle| handle.place.device = DEVICES);
    refused(&|handle| handle.place.kind = Kind::Cuda);
    refused(&|handle| handle.descriptor = None);
    refused(&|handle| handle.descriptor = Some(std::fs::File::open("/dev/zero").unwrap().into()));
    let shrinkable = || {
        // SAFETY: a C string, and a new descriptor that is ours alone.
        unsafe {
            let raw = libc::memfd_create(c"lie".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            assert!(raw >= 0 && libc::ftruncate(raw, 1 << 20) == 0);
            OwnedFd::from_raw_fd(raw)
        }
    };
    refused(&|handle| handle.descriptor = Some(shrinkable()));
    assert!(operations().import(&honest()).is_ok());
}

#[test]
fn host_memory_is_registered_once() {
    let mut bytes = vec![0; 8192];
    let pointer = bytes.as_mut_ptr();
    // SAFETY: the vector lives to the end, here and below.
    unsafe { operations().register_host(pointer, 8192).unwrap() };
    assert!(is_host_registered(pointer.wrapping_add(100), 8092));
    assert!(!is_host_registered(pointer.wrapping_add(100), 8093));
    // SAFETY: as above.
    assert_eq!(unsafe { operations().register_host(pointer, 10) }, Err(DeviceError::BadAddress));
    // SAFETY: no copy uses it.
    unsafe { operations().unregister_host(pointer).unwrap() };
    assert!(!is_host_registered(pointer, 1));
    // SAFETY: as above.
    assert_eq!(unsafe { operations().unregister_host(pointer) }, Err(DeviceError::BadAddress));
}

/// A load of the host at the address that users see ends the process: seen in a child of this test's own program.
#[test]
fn touching_it_faults() {
    const CHILD: &str = "WEFT_TEST_TOUCHES_DEVICE_MEMORY";
    if std::env::var_os(CHILD).is_some() {
        let a = Owned::new(0, 64);
        // SAFETY: none, on purpose: the process dies here.
        let byte = unsafe { (a.1 as *const u8).read_volatile() };
        eprintln!("read {byte}");
        std::process::exit(0);
    }
    let name = "device::emulated::tests::touching_it_faults";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{child:?}");
}
