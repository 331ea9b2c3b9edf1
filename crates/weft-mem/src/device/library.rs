//! Libraries that are looked for at run time, so that a machine without them lacks a kind of memory and nothing else.

use std::ffi::{CStr, CString, OsString, c_void};
use std::os::unix::ffi::OsStringExt;
use std::ptr::NonNull;
use std::sync::OnceLock;

use super::{Absent, Operations};

/// A library that stays loaded until the process ends: drivers do not survive being unloaded.
#[derive(Debug)]
pub(super) struct Library {
    handle: NonNull<c_void>,
    name: String,
}

// SAFETY: the handle only names the library, and the loader takes calls from every thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library that the environment names under `variable`, otherwise `name`.
    pub(super) fn open(variable: &str, name: &str) -> Result<Library, Absent> {
        Library::load(override_of(variable).unwrap_or_else(|| name.into()))
    }

    /// Loads a library; `Err` says why that is not possible.
    pub(super) fn load(file: OsString) -> Result<Library, Absent> {
        let name = file.to_string_lossy().into_owned();
        let c_name =
            CString::new(file.into_vec()).map_err(|_| Absent(format!("{name:?} is not the name of a library")))?;
        // SAFETY: the name ends with a zero. The initialisers of the library run: it is the vendor's driver, or what
        // the user of this process put in its place.
        let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Library { handle, name }),
            None => {
                let why = last_error();
                let why = why.strip_prefix(&format!("{name}: ")).unwrap_or(&why);
                Err(Absent(format!("{name} cannot be loaded: {why}")))
            }
        }
    }

    /// Its name, for people.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The address of a function; `None`: the library has none of that name.
    pub(super) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is that of a loaded library, and the name ends with a zero.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }
}

/// A kind whose library is looked for when it is first asked for, and once.
pub(super) struct Vendor<T> {
    found: OnceLock<Result<T, Absent>>,
    variable: &'static str,
    name: &'static str,
    load: fn(&Library) -> Result<T, Absent>,
}

impl<T: Operations> Vendor<T> {
    /// A kind with the library `name`, unless the environment names another under `variable`.
    pub(super) const fn new(
        variable: &'static str,
        name: &'static str,
        load: fn(&Library) -> Result<T, Absent>,
    ) -> Vendor<T> {
        Vendor { found: OnceLock::new(), variable, name, load }
    }

    /// The operations, or why there are none.
    pub(super) fn operations(&'static self) -> Result<&'static dyn Operations, Absent> {
        match self.found.get_or_init(|| (self.load)(&Library::open(self.variable, self.name)?)) {
            Ok(operations) => Ok(operations),
            Err(absent) => Err(absent.clone()),
        }
    }

    /// The operations, if the process has the library: we use it, or another part of the program does.
    pub(super) fn in_use(&'static self) -> Option<&'static dyn Operations> {
        let file = override_of(self.variable).unwrap_or_else(|| self.name.into());
        if self.found.get().is_none() && !is_loaded(file) {
            return None;
        }
        self.operations().ok()
    }
}

fn is_loaded(file: OsString) -> bool {
    let Ok(name) = CString::new(file.into_vec()) else {
        return false;
    };
    // SAFETY: the name ends with a zero; nothing is loaded that is not there already.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: it only takes back what the call above added to the count of users.
    unsafe { libc::dlclose(handle) };
    true
}

/// What the environment says. A program that runs with more rights than its user must not load what that user likes.
fn override_of(variable: &str) -> Option<OsString> {
    // SAFETY: it only reads what the kernel told the process at its start.
    let more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if more_rights { None } else { std::env::var_os(variable).filter(|value| !value.is_empty()) }
}

fn last_error() -> String {
    // SAFETY: the text is the loader's, of this thread, and stays until its next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".to_owned();
    }
    // SAFETY: as above; it ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Makes a struct of a library's functions, under their names in C. `load` finds all of them, or says which is missing.
macro_rules! functions {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $(fn $function:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*
        }
    ) => {
        $(#[$attribute])*
        #[allow(non_snake_case, reason = "the names are the library's")]
        $visibility struct $name {
            $($visibility $function: unsafe extern "C" fn($($argument: $type),*) -> $result,)*
        }

        #[allow(non_snake_case, reason = "the names are the library's")]
        impl $name {
            $visibility fn load(library: &$crate::device::library::Library) -> Result<$name, $crate::device::Absent> {
                $(
                    let symbol = const {
                        match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($function), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name of C has no zero inside"),
                        }
                    };
                    let Some(address) = library.symbol(symbol) else {
                        return Err($crate::device::Absent(format!(
                            "{} has no {}: it is too old, or not what its name says",
                            library.name(),
                            stringify!($function),
                        )));
                    };
                    // SAFETY: the library's own interface says that the function of this name has this signature; a
                    // pointer to a function is as large as one to data on every system that has `dlsym`.
                    let $function = unsafe {
                        std::mem::transmute::<
                            std::ptr::NonNull<std::ffi::c_void>,
                            unsafe extern "C" fn($($argument: $type),*) -> $result,
                        >(address)
                    };
                )*
                Ok($name { $($function),* })
            }
        }
    };
}
pub(super) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    functions! {
        struct Mathematics {
            fn strlen(text: *const std::ffi::c_char) -> usize;
        }
    }
    functions! {
        #[derive(Debug)]
        #[expect(dead_code, reason = "it cannot be loaded")]
        struct Nonsense {
            fn strlen(text: *const std::ffi::c_char) -> usize;
            fn weft_is_not_in_libc() -> i32;
        }
    }

    #[test]
    fn a_function_is_found_and_called() {
        let library = Library::open("WEFT_NO_SUCH_VARIABLE", "libc.so.6").expect("every process here has it");
        let functions = Mathematics::load(&library).expect("it has strlen");
        // SAFETY: the text ends with a zero.
        assert_eq!(unsafe { (functions.strlen)(c"woven".as_ptr()) }, 5);
    }

    #[test]
    fn a_missing_function_is_named() {
        let library = Library::load("libc.so.6".into()).expect("every process here has it");
        let absent = Nonsense::load(&library).expect_err("there is no such function");
        assert!(absent.0.contains("libc.so.6 has no weft_is_not_in_libc"), "{absent:?}");
    }

    #[test]
    fn a_missing_library_is_named() {
        let absent = Library::load("libweft-is-not-here.so.7".into()).expect_err("there is no such library");
        assert!(absent.0.contains("libweft-is-not-here.so.7"), "{absent:?}");
        Library::load("lib\0c.so".into()).expect_err("a name with a zero");
        let text = std::env::temp_dir().join(format!("weft-not-a-library-{}", std::process::id()));
        std::fs::write(&text, "words").expect("a file");
        let absent = Library::load(text.clone().into()).expect_err("it is no library");
        assert!(absent.0.contains("weft-not-a-library"), "{absent:?}");
        std::fs::remove_file(text).expect("the file is there");
    }
}
