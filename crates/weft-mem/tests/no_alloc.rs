//! The steady state does not allocate: attaching and taking, copies, and registering again.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use weft_core::memory::{Access, Memory};
use weft_mem::{Addressing, Buffer, HostMemory, MemoryRegion};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn the_steady_state_does_not_allocate() {
    let mut memory = HostMemory::new();
    let area = MemoryRegion::alloc_zeroed(4096).unwrap();
    let mut vec = vec![1; 100];
    let mut before = 0;
    for round in 0..1000 {
        if round == 10 {
            before = ALLOCATIONS.with(Cell::get);
        }
        let owned = memory.attach(Buffer::from(vec)).unwrap();
        let part = memory.attach(Buffer::from_region(&area, 64, 64).unwrap()).unwrap();
        let copies = [(); 5].map(|()| memory.attach_inline(&[7; 300]).unwrap());
        let region = memory.register(&area, Access::REMOTE, Addressing::Offset).unwrap();
        let piece = memory.local(owned, 0, 100).unwrap();
        memory.write(piece, &[round as u8; 100]).unwrap();
        memory.deregister(region.key).unwrap();
        copies.into_iter().for_each(|key| memory.release(key));
        memory.release(part);
        vec = memory.take(owned).unwrap().into_vec().unwrap();
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    assert_eq!(vec, [231; 100]);
}
