//! What a child of `fork` must not share with its parent.
//!
//! A child that does not exec keeps copies of all descriptors and of memory that is mapped shared. So a peer would not hear
//! that the parent died, since the child holds its sockets; and a child that closes what it inherited (a destructor at its
//! end does) would hang up on the parent's peers and take descriptors out of the parent's epoll sets. There is no mark for
//! descriptors that keeps them from children, so a handler of `pthread_atfork` does it: in the child each is replaced by
//! `/dev/null` under the same number, and the rings between processes by memory of the child's own. What the child does to
//! its copy of a NIC then reaches nobody; dropping it is safe.
//!
//! Children that `vfork`, `posix_spawn` and the like make exec at once, and their descriptors close then.

use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many forks are between this process and the first one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Changes in every child: what was made under another number was inherited.
#[must_use]
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A descriptor that children of this process do not share.
#[derive(Debug)]
pub struct LocalFd {
    // Dropped first: a number that is closed may be another's at once.
    _entry: Entry,
    descriptor: OwnedFd,
}

impl From<OwnedFd> for LocalFd {
    fn from(descriptor: OwnedFd) -> LocalFd {
        LocalFd { _entry: Entry::new(Kept::Descriptor(descriptor.as_raw_fd())), descriptor }
    }
}

impl AsFd for LocalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for LocalFd {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

/// A shared mapping that children of this process have for themselves, all zero.
#[derive(Debug)]
pub struct LocalMapping {
    _entry: Entry,
}

impl LocalMapping {
    /// Takes note of a mapping.
    ///
    /// # Safety
    /// `start` and `length` are those of a mapping with whole pages, which is writable and stays until this is dropped.
    #[must_use]
    pub unsafe fn new(start: *mut u8, length: usize) -> LocalMapping {
        LocalMapping { _entry: Entry::new(Kept::Mapping(start.addr(), length)) }
    }
}

#[derive(Clone, Copy, Debug)]
enum Kept {
    Descriptor(RawFd),
    Mapping(usize, usize),
}

/// A place in the list of what a child must not share.
#[derive(Debug)]
struct Entry(usize);

impl Entry {
    fn new(kept: Kept) -> Entry {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: the handlers are functions of this library, which is never unloaded.
            unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
        });
        LIST.with(|list| {
            let index = list.free.pop().unwrap_or(list.kept.len());
            match list.kept.get_mut(index) {
                Some(place) => *place = Some(kept),
                None => list.kept.push(Some(kept)),
            }
            // Taking an entry out must not allocate: it may happen in a child.
            list.free.reserve(list.kept.len());
            Entry(index)
        })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        LIST.with(|list| {
            if let Some(place) = list.kept.get_mut(self.0) {
                *place = None;
                list.free.push(self.0);
            }
        });
    }
}

struct List {
    kept: Vec<Option<Kept>>,
    free: Vec<usize>,
}

/// The list with a lock that can be held across `fork` by the thread that forks, so that the child finds the list whole.
struct SharedList {
    held: AtomicBool,
    list: UnsafeCell<List>,
}

static LIST: SharedList =
    SharedList { held: AtomicBool::new(false), list: UnsafeCell::new(List { kept: Vec::new(), free: Vec::new() }) };

// SAFETY: the list is only touched between `take` and `give_back`, which let one thread in at a time.
unsafe impl Sync for SharedList {}

impl SharedList {
    fn take(&self) {
        while self.held.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn give_back(&self) {
        self.held.store(false, Ordering::Release);
    }

    fn with<T>(&self, change: impl FnOnce(&mut List) -> T) -> T {
        self.take();
        // SAFETY: this thread alone is between `take` and `give_back`; `change` does not come back here.
        let result = change(unsafe { &mut *self.list.get() });
        self.give_back();
        result
    }
}

extern "C" fn before() {
    LIST.take();
}

extern "C" fn after_in_parent() {
    LIST.give_back();
}

/// Only calls that are allowed between `fork` and `exec` of a process with threads, and no allocation.
extern "C" fn after_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the path ends with a zero.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    // SAFETY: the thread that forked took the list, and this is that thread's copy.
    let list = unsafe { &*LIST.list.get() };
    for kept in list.kept.iter().flatten() {
        match *kept {
            // SAFETY: descriptors of ours, whose owners expect no more of them than that their numbers stay taken.
            Kept::Descriptor(descriptor) if null >= 0 => unsafe {
                libc::dup3(null, descriptor, libc::O_CLOEXEC);
            },
            // Without /dev/null the number cannot stay taken: to hide a death is worse.
            // SAFETY: as above.
            Kept::Descriptor(descriptor) => unsafe {
                libc::close(descriptor);
            },
            // SAFETY: a mapping of ours, as whoever entered it promised; its users expect that it may change at any time.
            Kept::Mapping(start, length) => unsafe {
                libc::mmap(
                    std::ptr::with_exposed_provenance_mut(start),
                    length,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                    -1,
                    0,
                );
            },
        }
    }
    if null >= 0 {
        // SAFETY: it was opened above.
        unsafe { libc::close(null) };
    }
    LIST.give_back();
}
