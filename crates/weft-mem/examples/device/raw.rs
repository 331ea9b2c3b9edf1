//! CUDA's own calls, to be compared with, and to make the kinds of memory that the table does not make.

use std::ffi::{CStr, CString, c_void};

use weft_mem::device::{Direction, Operations, Transfer};

use super::median;

type Code = i32;

macro_rules! cuda {
    ($(#[$attribute:meta])* $struct:ident: $($name:ident($($argument:ty),*);)*) => {
        $(#[$attribute])*
        #[allow(non_snake_case, reason = "the names are the driver's")]
        pub(crate) struct $struct {
            $($name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl $struct {
            pub(crate) fn load() -> $struct {
                // SAFETY: names end with a zero; the signatures are those of cuda.h.
                unsafe {
                    let name = std::env::var("WEFT_CUDA_LIBRARY").unwrap_or_else(|_| "libcuda.so.1".to_owned());
                    let name = CString::new(name).expect("a name");
                    let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
                    assert!(!library.is_null(), "the table has loaded it");
                    let find = |name: &CStr| {
                        let symbol = libc::dlsym(library, name.as_ptr());
                        assert!(!symbol.is_null(), "no {name:?}");
                        symbol
                    };
                    $struct {
                        $($name: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Code>(
                            find(CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).expect("a name")),
                        ),)*
                    }
                }
            }
        }
    };
}
cuda! {
    /// The driver's functions that make other kinds of memory.
    Maker:
    cuDevicePrimaryCtxRetain(*mut *mut c_void, i32);
    cuCtxSetCurrent(*mut c_void);
    cuCtxGetCurrent(*mut *mut c_void);
    cuMemCreate(*mut u64, usize, *const Properties, u64);
    cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
    cuMemMap(u64, usize, usize, u64, u64);
    cuMemSetAccess(u64, usize, *const Access, usize);
}
cuda! {
    /// The driver's functions to compare with.
    Cuda:
    cuStreamCreate(*mut *mut c_void, u32);
    cuStreamSynchronize(*mut c_void);
    cuStreamDestroy_v2(*mut c_void);
    cuMemcpyHtoD_v2(u64, *const c_void, usize);
    cuMemcpyDtoH_v2(*mut c_void, u64, usize);
    cuMemcpyDtoD_v2(u64, u64, usize);
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, *mut c_void);
    cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, *mut c_void);
    cuMemcpyDtoDAsync_v2(u64, u64, usize, *mut c_void);
    cuCtxSynchronize();
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemAllocManaged(*mut u64, usize, u32);
    cuMemAllocAsync(*mut u64, usize, *mut c_void);
    cuMemHostAlloc(*mut *mut c_void, usize, u32);
    cuMemFreeHost(*mut c_void);
}

#[repr(C)]
struct Properties {
    kind: i32,
    handle_types: i32,
    location: [i32; 2],
    windows: *mut c_void,
    flags: [u8; 8],
}

#[repr(C)]
struct Access {
    location: [i32; 2],
    flags: i32,
}

fn ok(code: Code) {
    assert_eq!(code, 0, "the driver failed");
}

impl Maker {
    /// Makes the device's context this thread's.
    pub(crate) fn enter(&self, device: u32) {
        let mut context = std::ptr::null_mut();
        // SAFETY: it writes one handle to where it is told.
        unsafe {
            ok((self.cuDevicePrimaryCtxRetain)(&raw mut context, device as i32));
            ok((self.cuCtxSetCurrent)(context));
        }
    }

    /// Takes this thread's context away.
    pub(crate) fn leave(&self) {
        // SAFETY: no context is a context.
        unsafe { ok((self.cuCtxSetCurrent)(std::ptr::null_mut())) };
    }

    /// Whether this thread has a context.
    pub(crate) fn is_entered(&self) -> bool {
        let mut context = std::ptr::null_mut();
        // SAFETY: it writes one handle to where it is told.
        unsafe { ok((self.cuCtxGetCurrent)(&raw mut context)) };
        !context.is_null()
    }

    /// Memory of `cuMemCreate`, which can be exported as a descriptor, or not at all.
    pub(crate) fn create(&self, device: u32, length: usize, exportable: bool) -> u64 {
        self.enter(device);
        let location = [1, device as i32];
        let properties = Properties {
            kind: 1,
            handle_types: i32::from(exportable),
            location,
            windows: std::ptr::null_mut(),
            flags: [0; 8],
        };
        let access = Access { location, flags: 3 };
        let (mut handle, mut address) = (0, 0);
        // SAFETY: they write a handle and an address to where they are told.
        unsafe {
            ok((self.cuMemCreate)(&raw mut handle, length, &raw const properties, 0));
            ok((self.cuMemAddressReserve)(&raw mut address, length, 0, 0, 0));
            ok((self.cuMemMap)(address, length, 0, handle, 0));
            ok((self.cuMemSetAccess)(address, length, &raw const access, 1));
        }
        self.leave();
        address
    }
}

impl Cuda {
    /// Microseconds of a synchronous copy, and of an asynchronous one on a stream that is then waited for.
    pub(crate) fn measure(&self, maker: &Maker, device: u32, direction: Direction, piece: &Transfer) -> (f64, f64) {
        let Transfer { to, from, length } = *piece;
        maker.enter(device);
        let mut stream = std::ptr::null_mut();
        // SAFETY: it writes one handle to where it is told.
        unsafe { ok((self.cuStreamCreate)(&raw mut stream, 1)) };
        // SAFETY: as in the measurement of the table: both memories have as many bytes.
        let plain = median(length, || unsafe {
            match direction {
                Direction::ToDevice => ok((self.cuMemcpyHtoD_v2)(to, from as *const c_void, length)),
                Direction::FromDevice => ok((self.cuMemcpyDtoH_v2)(to as *mut c_void, from, length)),
                Direction::Within => {
                    ok((self.cuMemcpyDtoD_v2)(to, from, length));
                    ok((self.cuCtxSynchronize)());
                }
            }
        });
        // SAFETY: as above.
        let on_stream = median(length, || unsafe {
            match direction {
                Direction::ToDevice => ok((self.cuMemcpyHtoDAsync_v2)(to, from as *const c_void, length, stream)),
                Direction::FromDevice => ok((self.cuMemcpyDtoHAsync_v2)(to as *mut c_void, from, length, stream)),
                Direction::Within => ok((self.cuMemcpyDtoDAsync_v2)(to, from, length, stream)),
            }
            ok((self.cuStreamSynchronize)(stream));
        });
        // SAFETY: nothing is on it.
        unsafe { ok((self.cuStreamDestroy_v2)(stream)) };
        maker.leave();
        (plain, on_stream)
    }

    /// How the table sees memory that it did not allocate.
    pub(crate) fn kinds_of_memory(&self, maker: &Maker, table: &dyn Operations, device: u32) {
        maker.enter(device);
        let (mut small, mut neighbour, mut managed, mut pool) = (0, 0, 0, 0);
        let mut host = std::ptr::null_mut();
        // SAFETY: each writes one address to where it is told.
        unsafe {
            ok((self.cuMemAlloc_v2)(&raw mut small, 1000));
            ok((self.cuMemAlloc_v2)(&raw mut neighbour, 1000));
            ok((self.cuMemAllocManaged)(&raw mut managed, 4096, 1));
            ok((self.cuMemAllocAsync)(&raw mut pool, 4096, std::ptr::null_mut()));
            ok((self.cuMemHostAlloc)(&raw mut host, 4096, 1));
        }
        maker.leave();
        for (what, address) in [
            ("cuMemAlloc, 1000 bytes", small),
            ("its neighbour", neighbour),
            ("cuMemAllocManaged", managed),
            ("cuMemAllocAsync", pool),
            ("cuMemHostAlloc", host as u64),
        ] {
            println!("  {what}: {:x?}", table.classify(address));
        }
        assert_eq!(table.classify(host as u64), None, "memory of the host");
        // Two allocations in one block of the driver's: each is opened by itself.
        super::peer::play(table, device, small, 1000, "of 1000 bytes");
        super::peer::play(table, device, neighbour, 1000, "of 1000 bytes beside it");
        maker.enter(device);
        // SAFETY: allocated above, in no use.
        unsafe {
            ok((self.cuMemFree_v2)(small));
            ok((self.cuMemFree_v2)(neighbour));
            ok((self.cuMemFree_v2)(managed));
            ok((self.cuMemFree_v2)(pool));
            ok((self.cuMemFreeHost)(host));
        }
        maker.leave();
    }
}
