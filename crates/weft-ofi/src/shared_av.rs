//! Address vectors that several processes of a user share, by name.
//!
//! The vector is a file of shared memory: a header, an array with the `fi_addr_t` of each entry (what `map_addr` points to),
//! and the addresses. Who creates it unlinks it when it is closed there; others keep what they have mapped. Every process
//! that has it open holds a lock on the file, so that what a process left behind that died is known and used anew.
//! Entries are only ever written by processes that opened it for writing, one at a time. Readers copy them out and check
//! them.

use std::ffi::{CStr, CString, c_int};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use weft::Address;

use crate::abi::*;
use crate::guard::Result;
use crate::limits::SHARED_ADDRESSES_MAX;
use crate::log;

const MAGIC: u64 = u64::from_be_bytes(*b"weft-av1");
/// The header has a page, so that what follows can be mapped by itself.
const HEADER_BYTES: usize = 4096;
const ENTRY_WORDS: usize = 4;
const WORDS: usize = HEADER_BYTES / 8 + SHARED_ADDRESSES_MAX * (1 + ENTRY_WORDS);
const BYTES: usize = WORDS * 8;
/// Words of the header.
const HEADER_MAGIC: usize = 0;
const HEADER_COUNT: usize = 1;
/// Where the names and the addresses begin.
const NAMES: usize = HEADER_BYTES / 8;
const ENTRIES: usize = NAMES + SHARED_ADDRESSES_MAX;
/// In the first word of an entry.
const IS_THERE: u64 = 1;
const IS_IP6: u64 = 2;

/// A vector in shared memory.
pub(crate) struct SharedVector {
    words: NonNull<AtomicU64>,
    file: OwnedFd,
    /// Of who created it, the name.
    unlinks: Mutex<Option<CString>>,
    writable: bool,
}

// SAFETY: the memory is only touched through atomics, and stays mapped while this lives.
unsafe impl Send for SharedVector {}
// SAFETY: as above.
unsafe impl Sync for SharedVector {}

impl SharedVector {
    /// Opens the vector with a name; without `read_only` it is made if there is none. `wished`: where it should be mapped,
    /// if that can be.
    pub(crate) fn open(name: &CStr, read_only: bool, wished: usize) -> Result<SharedVector> {
        let path = path_of(name)?;
        let (file, created) = if read_only { (open_file(&path, libc::O_RDONLY)?, false) } else { create(&path)? };
        let protection = libc::PROT_READ | if read_only { 0 } else { libc::PROT_WRITE };
        let wished = std::ptr::with_exposed_provenance_mut(wished);
        // SAFETY: a new mapping, which the system puts where nothing else is.
        let mapped = unsafe { libc::mmap(wished, BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            return Err(failed("map"));
        }
        let words = NonNull::new(mapped.cast::<AtomicU64>()).ok_or(-FI_ENOMEM)?;
        let vector = SharedVector { words, file, unlinks: Mutex::new(created.then_some(path)), writable: !read_only };
        if created {
            vector.word(HEADER_MAGIC).store(MAGIC, Ordering::Release);
        } else if vector.word(HEADER_MAGIC).load(Ordering::Acquire) != MAGIC {
            log::info!(AV, "the shared address vector {name:?} is of another version, or is being made");
            return Err(-FI_EINVAL);
        }
        Ok(vector)
    }

    /// What programs see as the address of the vector: an array of names.
    pub(crate) fn names(&self) -> *mut std::ffi::c_void {
        std::ptr::from_ref(self.word(NAMES)).cast_mut().cast()
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < WORDS, "inside the mapping");
        // SAFETY: the mapping has `WORDS` words, of which nothing but atomics is made.
        unsafe { self.words.add(index.min(WORDS - 1)).as_ref() }
    }

    fn entry(&self, index: u64) -> Option<usize> {
        let index = usize::try_from(index).ok().filter(|index| *index < SHARED_ADDRESSES_MAX)?;
        Some(ENTRIES + index * ENTRY_WORDS)
    }

    /// Adds an address; gives its index.
    pub(crate) fn insert(&self, address: &Address) -> Result<u64> {
        let _lock = self.lock()?;
        let count = self.word(HEADER_COUNT).load(Ordering::Relaxed).min(SHARED_ADDRESSES_MAX as u64);
        let is_free = |index: &u64| {
            self.entry(*index).is_some_and(|entry| self.word(entry).load(Ordering::Relaxed) & IS_THERE == 0)
        };
        let index = match count < SHARED_ADDRESSES_MAX as u64 {
            true => count,
            false => (0..count).find(is_free).ok_or(-FI_ENOMEM)?,
        };
        let entry = self.entry(index).ok_or(-FI_ENOMEM)?;
        let (flags, ip, scope) = match address.socket {
            SocketAddr::V4(v4) => (0, u128::from(u32::from(*v4.ip())), 0),
            SocketAddr::V6(v6) => (IS_IP6, u128::from(*v6.ip()), v6.scope_id()),
        };
        self.word(entry + 1).store((ip >> 64) as u64, Ordering::Relaxed);
        self.word(entry + 2).store(ip as u64, Ordering::Relaxed);
        // Each change has another number, by which a reader sees that it read half of it.
        let change = (self.word(entry + 3).load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.word(entry + 3).store(change << 32 | u64::from(scope), Ordering::Relaxed);
        let port = u64::from(address.socket.port());
        let first = IS_THERE | flags | port << 16 | u64::from(address.endpoint) << 32;
        self.word(entry).store(first, Ordering::Release);
        self.word(NAMES + index as usize).store(index, Ordering::Release);
        self.word(HEADER_COUNT).store(count.max(index + 1), Ordering::Release);
        Ok(index)
    }

    /// Takes an address out.
    pub(crate) fn remove(&self, index: u64) -> Result {
        let _lock = self.lock()?;
        let entry = self.entry(index).ok_or(-FI_EINVAL)?;
        self.word(NAMES + index as usize).store(FI_ADDR_NOTAVAIL, Ordering::Release);
        self.word(entry).store(0, Ordering::Release);
        fence(Ordering::Release);
        Ok(())
    }

    /// The address with an index.
    pub(crate) fn get(&self, index: u64) -> Option<Address> {
        let entry = self.entry(index)?;
        let words = || {
            let first = self.word(entry).load(Ordering::Acquire);
            [first, self.word(entry + 1).load(Ordering::Relaxed), self.word(entry + 2).load(Ordering::Relaxed)]
        };
        let change = self.word(entry + 3).load(Ordering::Acquire);
        let read = words();
        fence(Ordering::Acquire);
        let [first, upper, lower] = read;
        if first & IS_THERE == 0 || words() != read || self.word(entry + 3).load(Ordering::Relaxed) != change {
            return None;
        }
        let (port, endpoint) = ((first >> 16) as u16, (first >> 32) as u32);
        let ip = u128::from(upper) << 64 | u128::from(lower);
        let socket = match first & IS_IP6 {
            0 => SocketAddr::new(Ipv4Addr::from(ip as u32).into(), port),
            _ => SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, change as u32).into(),
        };
        Some(Address { socket, endpoint })
    }

    /// Whoever made it takes its name away; others keep what they have open.
    pub(crate) fn unlink(&self) {
        let path = self.unlinks.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(path) = path {
            // SAFETY: a text that ends with 0.
            unsafe { libc::shm_unlink(path.as_ptr()) };
        }
    }

    /// Keeps other processes from changing it.
    fn lock(&self) -> Result<Locked<'_>> {
        if !self.writable {
            return Err(-FI_EACCES);
        }
        change_lock(&self.file, libc::F_WRLCK)?;
        Ok(Locked { file: &self.file })
    }
}

impl Drop for SharedVector {
    fn drop(&mut self) {
        self.unlink();
        // SAFETY: the mapping is this one's, and nothing of it is lent.
        unsafe { libc::munmap(self.words.as_ptr().cast(), BYTES) };
    }
}

struct Locked<'a> {
    file: &'a OwnedFd,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Unlocking what is locked does not fail.
        let _ = change_lock(self.file, libc::F_UNLCK);
    }
}

/// Locks or unlocks the file for changes. This lock and that of those who have it open do not touch each other.
fn change_lock(file: &OwnedFd, kind: c_int) -> Result {
    // SAFETY: all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as i16, libc::SEEK_SET as i16);
    loop {
        // SAFETY: the argument of this command.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &lock) } == 0 {
            return Ok(());
        }
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return Err(failed("lock"));
        }
    }
}

/// The path of a vector. Other users have others.
fn path_of(name: &CStr) -> Result<CString> {
    // SAFETY: it cannot fail.
    let user = unsafe { libc::getuid() };
    let mut path = format!("/weft-av-{user}-");
    for byte in name.to_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => path.push(char::from(*byte)),
            other => path.push_str(&format!("%{other:02x}")),
        }
    }
    if name.is_empty() || path.len() > libc::FILENAME_MAX as usize / 16 - 1 {
        return Err(-FI_EINVAL);
    }
    CString::new(path).map_err(|_| -FI_EINVAL)
}

/// Opens the file of a vector, if it is ours, and says that it is in use.
fn open_file(path: &CStr, flags: c_int) -> Result<OwnedFd> {
    // SAFETY: a text that ends with 0.
    let raw = unsafe { libc::shm_open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
    if raw < 0 {
        return Err(failed("open"));
    }
    // SAFETY: a new descriptor of ours.
    let file = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: all zeros is a valid value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for the answer; the other call cannot fail.
    let ours = unsafe { libc::fstat(raw, &mut status) == 0 && status.st_uid == libc::getuid() };
    if !ours || status.st_mode & 0o077 != 0 {
        log::info!(AV, "the shared address vector {path:?} is not this user's alone");
        return Err(-FI_EACCES);
    }
    if flags & libc::O_CREAT == 0 {
        // What is shorter would end the process that looks behind its end.
        if usize::try_from(status.st_size).is_ok_and(|size| size < BYTES) {
            return Err(-FI_EAGAIN);
        }
        in_use(&file, libc::LOCK_SH)?;
    }
    Ok(file)
}

fn is_unlinked(file: &OwnedFd) -> Result<bool> {
    // SAFETY: all zeros is a valid value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for the answer.
    let known = unsafe { libc::fstat(file.as_raw_fd(), &mut status) } == 0;
    if known { Ok(status.st_nlink == 0) } else { Err(failed("look at")) }
}

fn in_use(file: &OwnedFd, how: c_int) -> Result {
    // SAFETY: a descriptor of ours.
    if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 { Ok(()) } else { Err(failed("lock")) }
}

/// Opens the file of a vector for writing; gives whether it is new.
fn create(path: &CStr) -> Result<(OwnedFd, bool)> {
    let mut file = open_file(path, libc::O_RDWR | libc::O_CREAT)?;
    // Who gets this lock is alone: what is there is new, or was left by a process that died.
    let mut alone = in_use(&file, libc::LOCK_EX | libc::LOCK_NB).is_ok();
    while alone && is_unlinked(&file)? {
        // Its creator closed it just now.
        file = open_file(path, libc::O_RDWR | libc::O_CREAT)?;
        alone = in_use(&file, libc::LOCK_EX | libc::LOCK_NB).is_ok();
    }
    if alone {
        // Shortened to nothing first, so that it is all zeros.
        if [0, BYTES as u64].into_iter().any(|bytes| weft_mem::set_length(file.as_fd(), bytes).is_err()) {
            return Err(failed("size"));
        }
    }
    in_use(&file, libc::LOCK_SH)?;
    if alone { Ok((file, true)) } else { open_file(path, libc::O_RDWR).map(|file| (file, false)) }
}

fn failed(what: &str) -> i32 {
    let error = std::io::Error::last_os_error();
    log::info!(AV, "cannot {what} a shared address vector: {error}");
    -error.raw_os_error().unwrap_or(FI_EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_inserts_others_find() {
        let name = CString::new(format!("test/{}", std::process::id())).unwrap();
        assert_eq!(SharedVector::open(&name, true, 0).err(), Some(-FI_ENOENT));
        let writer = SharedVector::open(&name, false, 0).unwrap();
        let reader = SharedVector::open(&name, true, 0).unwrap();
        let addresses = ["127.0.0.1:7", "[::1]:65535", "[fe80::1%3]:1"];
        let addresses = addresses.map(|socket| Address { socket: socket.parse().unwrap(), endpoint: 0xffff_fffe });
        for (index, address) in (0..).zip(&addresses) {
            assert!(reader.get(index).is_none());
            assert_eq!(writer.insert(address), Ok(index));
            assert_eq!(reader.get(index), Some(*address));
        }
        assert_eq!(reader.insert(&addresses[0]), Err(-FI_EACCES));
        let other = SharedVector::open(&name, false, 0).unwrap();
        assert_eq!(other.insert(&addresses[0]), Ok(3));
        writer.remove(1).unwrap();
        assert_eq!((reader.get(1), reader.get(3)), (None, Some(addresses[0])));
        assert_eq!(reader.get(u64::MAX), None);
        drop(other);
        drop(writer);
        assert_eq!(SharedVector::open(&name, true, 0).err(), Some(-FI_ENOENT), "its creator has closed it");
        assert_eq!(reader.get(0), Some(addresses[0]));
    }

    #[test]
    fn what_was_left_behind_is_used_anew() {
        let name = CString::new(format!("left {}", std::process::id())).unwrap();
        let dead = SharedVector::open(&name, false, 0).unwrap();
        let address = Address { socket: "127.0.0.1:7".parse().unwrap(), endpoint: 1 };
        dead.insert(&address).unwrap();
        dead.unlinks.lock().unwrap().take();
        drop(dead);
        let next = SharedVector::open(&name, false, 0).unwrap();
        assert_eq!((next.get(0), next.insert(&address)), (None, Ok(0)));
    }

    #[test]
    fn names_are_paths() {
        assert!(path_of(c"").is_err());
        assert!(path_of(&CString::new("x".repeat(4000)).unwrap()).is_err());
        let path = path_of(c"a/b c").unwrap();
        assert!(path.to_str().unwrap().ends_with("-a%2fb%20c"));
    }
}
