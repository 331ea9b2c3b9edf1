use std::cell::RefCell;
use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const PLACE: Place = Place { kind: Kind::Emulated, device: 1 };

fn allocation(base: u64, length: u64, id: u64) -> Allocation {
    Allocation { place: PLACE, base, length, id, exportable: true }
}

fn handle(id: u64, byte: u8) -> Handle {
    Handle { place: PLACE, bytes: [byte; HANDLE_BYTES], descriptor: None, length: 100, id }
}

#[test]
fn device_memory_that_was_freed_and_used_again_is_noticed() {
    let (mut cache, mut removed) = (RegistrationCache::default(), Vec::new());
    let (first, second) = (allocation(4096, 100, 1), allocation(4096, 100, 2));
    cache.insert(Subject::Device(&first), 4096, 100, "first", &mut removed);
    assert_eq!(cache.find(Subject::Device(&first), 4096, 100, &mut removed), Some(&mut "first"));
    assert_eq!(cache.find(Subject::Device(&first), 4195, 1, &mut removed), Some(&mut "first"));
    assert_eq!(cache.find(Subject::Device(&first), 4195, 2, &mut removed), None, "past its end");
    assert_eq!(cache.find(Subject::Device(&first), 4095, 1, &mut removed), None);
    let elsewhere = Allocation { place: Place { device: 0, ..PLACE }, ..first };
    assert_eq!(cache.find(Subject::Device(&elsewhere), 4096, 1, &mut removed), None);
    assert!(removed.is_empty());
    assert_eq!(cache.find(Subject::Device(&second), 4100, 1, &mut removed), None);
    assert_eq!((removed.as_slice(), cache.len()), (&["first"][..], 0));
    cache.insert(Subject::Device(&second), 4096, 100, "second", &mut removed);
    assert_eq!(cache.find(Subject::Device(&second), 4096, 0, &mut removed), Some(&mut "second"));
}

#[test]
fn host_memory_is_known_by_its_region() {
    let (mut cache, mut removed) = (RegistrationCache::new(2), Vec::new());
    let region = MemoryRegion::from_vec(vec![0; 64]);
    let address = region.as_ptr().addr() as u64;
    cache.insert(Subject::Region(&region), address, 64, 1, &mut removed);
    assert_eq!(cache.find(Subject::Region(&region.clone()), address + 8, 8, &mut removed), Some(&mut 1));
    // The vector comes back, and another region begins at the very same place.
    let again = MemoryRegion::from_vec(region.into_vec().unwrap());
    assert_eq!(again.as_ptr().addr() as u64, address);
    assert_eq!(cache.find(Subject::Region(&again), address, 8, &mut removed), None);
    assert_eq!(removed, [1]);
    cache.insert(Subject::Region(&again), address, 64, 2, &mut removed);
    cache.sweep(&mut removed);
    assert_eq!(cache.len(), 1);
    drop(again);
    cache.sweep(&mut removed);
    assert_eq!((removed.as_slice(), cache.is_empty()), (&[1, 2][..], true));
}

#[test]
fn what_is_gone_goes_before_what_was_used_longest_ago() {
    let (mut cache, mut removed) = (RegistrationCache::new(2), Vec::new());
    let region = MemoryRegion::from_vec(vec![0; 64]);
    let address = region.as_ptr().addr() as u64;
    let device = [1, 2, 3].map(|id| allocation(id * 1000, 100, id));
    cache.insert(Subject::Device(&device[0]), 1000, 100, 1, &mut removed);
    cache.insert(Subject::Region(&region), address, 64, 9, &mut removed);
    drop(region);
    cache.insert(Subject::Device(&device[1]), 2000, 100, 2, &mut removed);
    assert_eq!(removed, [9]);
    cache.find(Subject::Device(&device[0]), 1000, 1, &mut removed).unwrap();
    cache.insert(Subject::Device(&device[2]), 3000, 100, 3, &mut removed);
    assert_eq!(removed, [9, 2]);
    cache.clear(&mut removed);
    assert_eq!(removed, [9, 2, 1, 3]);
}

#[test]
fn announced_ranges_are_forgotten() {
    let (mut cache, mut removed) = (RegistrationCache::default(), Vec::new());
    for id in 0..5 {
        let allocation = allocation(id * 100, 100, id);
        cache.insert(Subject::Device(&allocation), id * 100, 100, id, &mut removed);
    }
    cache.forget(PLACE, 199, 102, &mut removed);
    removed.sort_unstable();
    assert_eq!((removed.as_slice(), cache.len()), (&[1, 2, 3][..], 2));
    cache.forget(Place::HOST, 0, u64::MAX, &mut removed);
    assert_eq!(cache.len(), 2, "of another place");
    cache.forget(PLACE, 0, u64::MAX, &mut removed);
    assert!(cache.is_empty());
}

#[test]
fn handles_are_opened_once() {
    let mut opened = OpenedHandles::default();
    let count = RefCell::new(0);
    let mut open = |channel, handle: &Handle| {
        opened.open(channel, handle, |_| {
            *count.borrow_mut() += 1;
            Ok::<_, DeviceError>(*count.borrow())
        })
    };
    assert_eq!(open(1, &handle(7, 0)), Ok(Arc::new(1)));
    assert_eq!(open(1, &handle(7, 0)), Ok(Arc::new(1)));
    assert_eq!(open(2, &handle(7, 0)), Ok(Arc::new(2)), "of another peer");
    assert_eq!(open(1, &handle(7, 9)), Ok(Arc::new(3)), "another handle of the same id");
    assert_eq!(open(1, &Handle { length: 101, ..handle(7, 9) }), Ok(Arc::new(4)));
    assert_eq!(opened.find(1, PLACE, 7), Some(Arc::new(4)));
    assert_eq!(opened.find(1, Place::HOST, 7), None);
    assert_eq!(opened.open(1, &handle(8, 0), |_| Err(DeviceError::BadHandle)), Err(DeviceError::BadHandle));
    assert_eq!(opened.len(), 2);
    opened.forget(2, PLACE, 7);
    assert_eq!(opened.find(2, PLACE, 7), None);
    opened.close_channel(1);
    assert!(opened.is_empty());
}

#[test]
fn a_peer_pushes_out_only_its_own() {
    let mut opened = OpenedHandles::new(4, 3);
    let open = |opened: &mut OpenedHandles<u64>, channel, id| {
        opened.open(channel, &handle(id, 0), |handle| Ok::<_, DeviceError>(handle.id)).unwrap()
    };
    open(&mut opened, 1, 100);
    let held = open(&mut opened, 2, 0);
    (1..50).for_each(|id| drop(open(&mut opened, 2, id)));
    assert_eq!(opened.len(), 4);
    assert!(opened.find(1, PLACE, 100).is_some());
    assert_eq!(*held, 0, "who holds one keeps it");
    assert_eq!([0, 46, 47, 48, 49].map(|id| opened.find(2, PLACE, id).is_some()), [false, false, true, true, true]);
    open(&mut opened, 3, 1);
    assert_eq!((opened.len(), opened.find(1, PLACE, 100)), (4, None), "the one used longest ago of all");
}

/// Counts what is open.
#[derive(Debug, Default)]
struct Fake {
    open: std::sync::Mutex<HashSet<u64>>,
}

impl Operations for Fake {
    fn kind(&self) -> Kind {
        Kind::Emulated
    }
    fn devices(&self) -> u32 {
        1
    }
    fn describe(&self, _: u32) -> String {
        String::new()
    }
    fn capabilities(&self) -> crate::device::Capabilities {
        crate::device::Capabilities::default()
    }
    unsafe fn copy(
        &self,
        _: u32,
        _: crate::device::Direction,
        _: &[crate::device::Transfer],
    ) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }
    unsafe fn start(
        &self,
        _: u32,
        _: crate::device::Direction,
        _: &[crate::device::Transfer],
    ) -> Result<crate::device::Event, DeviceError> {
        Err(DeviceError::NotSupported)
    }
    fn is_done(&self, _: &crate::device::Event) -> Result<bool, DeviceError> {
        Ok(true)
    }
    fn wait(&self, _: crate::device::Event) -> Result<(), DeviceError> {
        Ok(())
    }
    fn allocate(&self, _: u32, _: usize) -> Result<u64, DeviceError> {
        Err(DeviceError::NotSupported)
    }
    unsafe fn free(&self, _: u32, _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }
    fn classify(&self, _: u64) -> Option<Allocation> {
        None
    }
    fn export(&self, _: u64) -> Result<Handle, DeviceError> {
        Err(DeviceError::NotSupported)
    }
    fn import(&self, handle: &Handle) -> Result<u64, DeviceError> {
        let base = handle.id * 4096;
        assert!(self.open.lock().unwrap().insert(base), "mapped twice");
        Ok(base)
    }
    unsafe fn release(&self, base: u64) -> Result<(), DeviceError> {
        assert!(self.open.lock().unwrap().remove(&base), "not mapped");
        Ok(())
    }
    unsafe fn register_host(&self, _: *mut u8, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }
    unsafe fn unregister_host(&self, _: *mut u8) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[test]
fn what_is_closed_is_released() {
    let fake: &'static Fake = Box::leak(Box::default());
    let open = || fake.open.lock().unwrap().len();
    let mut opened = OpenedHandles::<Imported>::new(10, 2);
    let first = opened.open(1, &handle(1, 0), |handle| Imported::open(fake, handle)).unwrap();
    assert_eq!((first.base(), first.length()), (4096, 100));
    assert_eq!([first.range(0, 100), first.range(100, 0)], [Some(4096), Some(4196)]);
    assert_eq!([first.range(1, 100), first.range(u64::MAX, 2), first.range(101, 0)], [None; 3]);
    for id in 2..5 {
        opened.open(1, &handle(id, 0), |handle| Imported::open(fake, handle)).unwrap();
    }
    assert_eq!(open(), 3, "two are kept, one is held");
    drop(first);
    assert_eq!(open(), 2);
    // Another handle under the same id: the old one is closed first.
    opened.open(1, &handle(4, 1), |handle| Imported::open(fake, handle)).unwrap();
    opened.close_channel(1);
    assert_eq!(open(), 0);
    let other_kind = Handle { place: Place::HOST, ..handle(1, 0) };
    assert_eq!(Imported::open(fake, &other_kind).unwrap_err(), DeviceError::BadHandle);
    assert_eq!(Imported::open(fake, &Handle { length: 0, ..handle(1, 0) }).unwrap_err(), DeviceError::BadHandle);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { page: u64, pages: u64 },
    Use { page: u64 },
    Forget { page: u64, pages: u64 },
}

proptest! {
    /// Allocations come and go without a word to the cache. It never gives a value for memory that is gone, never keeps
    /// too many, and gives every value back once.
    #[test]
    fn no_value_outlives_its_memory(
        steps in prop::collection::vec(
            prop_oneof![
                (0u64..20, 1u64..6).prop_map(|(page, pages)| Step::Allocate { page, pages }),
                (0u64..26).prop_map(|page| Step::Use { page }),
                (0u64..20, 1u64..6).prop_map(|(page, pages)| Step::Forget { page, pages }),
            ],
            1..200,
        ),
        max in 1usize..6,
    ) {
        let (mut cache, mut removed) = (RegistrationCache::new(max), Vec::new());
        let mut live: Vec<Allocation> = Vec::new();
        let mut next = 0;
        let mut inserted = 0;
        for step in steps {
            match step {
                Step::Allocate { page, pages } => {
                    let (base, length) = (page * 4096, pages * 4096);
                    live.retain(|old| old.base + old.length <= base || base + length <= old.base);
                    next += 1;
                    live.push(allocation(base, length, next));
                }
                Step::Use { page } => {
                    let address = page * 4096;
                    let Some(now) = live.iter().find(|now| (now.base..now.base + now.length).contains(&address)) else {
                        continue;
                    };
                    match cache.find(Subject::Device(now), address, 4096, &mut removed) {
                        Some(&mut (id, _)) => prop_assert_eq!(id, now.id),
                        None => {
                            inserted += 1;
                            let value = (now.id, inserted);
                            cache.insert(Subject::Device(now), now.base, now.length, value, &mut removed);
                            let found = cache.find(Subject::Device(now), now.base, now.length, &mut removed);
                            prop_assert_eq!(found, Some(&mut (now.id, inserted)));
                        }
                    }
                }
                Step::Forget { page, pages } => {
                    let before = removed.len();
                    cache.forget(PLACE, page * 4096, pages * 4096, &mut removed);
                    for &(id, _) in &removed[before..] {
                        if let Some(now) = live.iter().find(|now| now.id == id) {
                            prop_assert!(now.base < (page + pages) * 4096 && page * 4096 < now.base + now.length);
                        }
                    }
                }
            }
            prop_assert!(cache.len() <= max);
        }
        cache.clear(&mut removed);
        let mut numbers: Vec<u64> = removed.iter().map(|&(_, number)| number).collect();
        numbers.sort_unstable();
        prop_assert_eq!(numbers, (1..=inserted).collect::<Vec<_>>());
    }
}
