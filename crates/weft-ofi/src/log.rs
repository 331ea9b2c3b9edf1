//! Log lines, parameters and copies of infos, through the libfabric that loaded us.
//!
//! A plug-in cannot link to libfabric: programs bring their own, under whatever name. Its functions are looked up in the
//! library that is there.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;

use crate::abi::{fi_info, fi_provider};

type Log = unsafe extern "C" fn(*const fi_provider, c_int, c_int, *const c_char, c_int, *const c_char, ...);
type LogEnabled = unsafe extern "C" fn(*const fi_provider, c_int, c_int) -> c_int;
type ParamDefine = unsafe extern "C" fn(*const fi_provider, *const c_char, c_int, *const c_char, ...) -> c_int;
type ParamGet = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;

type DuplicateInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);

/// What libfabric exports for plug-ins.
struct Libfabric {
    log: Option<Log>,
    log_enabled: Option<LogEnabled>,
    param_define: Option<ParamDefine>,
    param_get: Option<ParamGet>,
    duplicate_info: Option<DuplicateInfo>,
    free_info: Option<FreeInfo>,
}

fn libfabric() -> &'static Libfabric {
    static LIBFABRIC: OnceLock<Libfabric> = OnceLock::new();
    LIBFABRIC.get_or_init(|| {
        let library = loaded_libfabric();
        // SAFETY: these are the types that libfabric documents for the names, unchanged since they exist.
        unsafe {
            Libfabric {
                log: symbol(library, c"fi_log").map(|f| std::mem::transmute::<*mut c_void, Log>(f)),
                log_enabled: symbol(library, c"fi_log_enabled")
                    .map(|f| std::mem::transmute::<*mut c_void, LogEnabled>(f)),
                param_define: symbol(library, c"fi_param_define")
                    .map(|f| std::mem::transmute::<*mut c_void, ParamDefine>(f)),
                param_get: symbol(library, c"fi_param_get").map(|f| std::mem::transmute::<*mut c_void, ParamGet>(f)),
                duplicate_info: symbol(library, c"fi_dupinfo")
                    .map(|f| std::mem::transmute::<*mut c_void, DuplicateInfo>(f)),
                free_info: symbol(library, c"fi_freeinfo").map(|f| std::mem::transmute::<*mut c_void, FreeInfo>(f)),
            }
        }
    })
}

/// A handle of the libfabric in this process: the global scope if it is there, else the first library of that name (a
/// program may have loaded it with a scope of its own).
fn loaded_libfabric() -> *mut c_void {
    if symbol(libc::RTLD_DEFAULT, c"fi_log").is_some() {
        return libc::RTLD_DEFAULT;
    }
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader gives a valid structure, with a name that ends with 0 or is null.
        let name = unsafe { (*info).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name) };
        if !name.to_string_lossy().contains("libfabric") {
            return 0;
        }
        // SAFETY: `found` is what was given to `dl_iterate_phdr`.
        unsafe { *found.cast::<CString>() = name.to_owned() };
        1
    }
    let mut found = CString::default();
    // SAFETY: `look` takes what is given here; the loader calls it before it returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    if found.is_empty() {
        return libc::RTLD_DEFAULT;
    }
    // SAFETY: the library is loaded already: nothing of it runs.
    let handle = unsafe { libc::dlopen(found.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() { libc::RTLD_DEFAULT } else { handle }
}

fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle of a loaded library, and a name that ends with 0.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

/// Whether lines of a level and subsystem are wanted.
pub(crate) fn enabled(level: c_int, subsystem: c_int) -> bool {
    let Some(enabled) = libfabric().log_enabled else { return false };
    // SAFETY: the provider is static.
    unsafe { enabled(crate::provider(), level, subsystem) != 0 }
}

/// Writes a line.
pub(crate) fn write(level: c_int, subsystem: c_int, line: u32, text: fmt::Arguments<'_>) {
    let Some(log) = libfabric().log else { return };
    let text = CString::new(text.to_string().replace('\0', " ")).unwrap_or_default();
    // SAFETY: the provider is static, the strings end with 0, and the format takes one of them.
    unsafe {
        log(crate::provider(), level, subsystem, c"weft".as_ptr(), line as c_int, c"%s\n".as_ptr(), text.as_ptr())
    };
}

/// A line for people who look for what went wrong: shown unless they ask for silence.
macro_rules! warning {
    ($subsystem:ident, $($text:tt)*) => {
        $crate::log::line!($crate::abi::FI_LOG_WARN, $subsystem, $($text)*)
    };
}
/// A line for people who ask why (`FI_LOG_LEVEL=info`).
macro_rules! info {
    ($subsystem:ident, $($text:tt)*) => {
        $crate::log::line!($crate::abi::FI_LOG_INFO, $subsystem, $($text)*)
    };
}
macro_rules! line {
    ($level:expr, $subsystem:ident, $($text:tt)*) => {{
        let subsystem = $crate::log::subsystem::$subsystem;
        if $crate::log::enabled($level as _, subsystem) {
            $crate::log::write($level as _, subsystem, line!(), format_args!($($text)*));
        }
    }};
}
pub(crate) use {info, line, warning};

/// Parts of a provider, as libfabric's filters name them.
pub(crate) mod subsystem {
    use crate::abi;
    pub(crate) const CORE: i32 = abi::FI_LOG_CORE as i32;
    pub(crate) const FABRIC: i32 = abi::FI_LOG_FABRIC as i32;
    pub(crate) const DOMAIN: i32 = abi::FI_LOG_DOMAIN as i32;
    pub(crate) const EP_CTRL: i32 = abi::FI_LOG_EP_CTRL as i32;
    pub(crate) const AV: i32 = abi::FI_LOG_AV as i32;
    pub(crate) const CQ: i32 = abi::FI_LOG_CQ as i32;
    pub(crate) const EQ: i32 = abi::FI_LOG_EQ as i32;
    pub(crate) const MR: i32 = abi::FI_LOG_MR as i32;
}

/// A parameter with a text as value: `fi_info -e` lists it, and users set `FI_WEFT_` and its name.
pub(crate) fn define_parameter(name: &CStr, help: &CStr) {
    if let Some(define) = libfabric().param_define {
        const STRING: c_int = 0;
        // SAFETY: the provider is static, the strings end with 0, and the format takes one of them.
        unsafe { define(crate::provider(), name.as_ptr(), STRING, c"%s".as_ptr(), help.as_ptr()) };
    }
}

/// The value of a parameter, if its user has set it.
pub(crate) fn parameter(name: &CStr) -> Option<String> {
    let get = libfabric().param_get?;
    let mut value: *const c_char = std::ptr::null();
    // SAFETY: the parameter was defined as a string, so the value is a pointer to one.
    let found = unsafe { get(crate::provider().cast_mut(), name.as_ptr(), (&raw mut value).cast()) };
    if found != 0 || value.is_null() {
        return None;
    }
    // SAFETY: libfabric gives the variable's value, which ends with 0 and stays.
    Some(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}

/// A copy of an info, made by libfabric; null if that is not possible.
///
/// # Safety
/// `info` is one of libfabric's.
pub(crate) unsafe fn duplicate_info(info: *const fi_info) -> *mut fi_info {
    // SAFETY: as the caller says.
    libfabric().duplicate_info.map_or(std::ptr::null_mut(), |duplicate| unsafe { duplicate(info) })
}

/// Frees such a copy.
///
/// # Safety
/// `info` is null, or such a copy that nobody uses.
pub(crate) unsafe fn free_info(info: *mut fi_info) {
    if let Some(free) = libfabric().free_info
        && !info.is_null()
    {
        // SAFETY: as the caller says.
        unsafe { free(info) };
    }
}
