//! The lists that define the interface and describe its layout at once.
//!
//! One list makes the Rust definition and the row that the layout test compares with C, so neither can be forgotten.

use super::{atomic, cm, domain, endpoint, eq, errno, fabric, log, rma, tagged, trigger};

/// A release of libfabric: major, minor.
pub type Version = (u32, u32);

/// The release whose layout every unmarked definition has.
pub const BASE: Version = (1, 17);

/// The newest release whose headers these definitions were compared with.
pub const NEWEST: Version = (2, 6);

/// A structure as Rust lays it out.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    pub name: &'static str,
    pub size: usize,
    pub since: Version,
    pub fields: &'static [Field],
}

/// A field of a [`Record`]; its size is zero where C has a flexible array.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub name: &'static str,
    pub offset: usize,
    pub size: usize,
    pub since: Version,
    /// The release that gave the structure which it embeds the present size.
    pub grown: Version,
}

/// Constants that the headers of the same releases have.
#[derive(Debug, Clone, Copy)]
pub struct Constants {
    pub since: Version,
    /// The first release whose headers no longer have them; older callers may still pass them.
    pub until: Option<Version>,
    /// Names, and values as C converts them to 64 unsigned bits.
    pub values: &'static [(&'static str, u64)],
}

/// Every structure of the interface, by module.
pub const RECORDS: &[&[Record]] = &[
    atomic::STRUCTS,
    atomic::OPERATIONS,
    cm::STRUCTS,
    cm::OPERATIONS,
    domain::STRUCTS,
    domain::OPERATIONS,
    endpoint::STRUCTS,
    endpoint::OPERATIONS,
    eq::STRUCTS,
    eq::OPERATIONS,
    fabric::STRUCTS,
    fabric::OPERATIONS,
    rma::STRUCTS,
    rma::OPERATIONS,
    tagged::STRUCTS,
    tagged::OPERATIONS,
    trigger::STRUCTS,
];

/// Every constant of the interface, by module.
pub const CONSTANTS: &[&[Constants]] = &[
    atomic::VALUES,
    domain::VALUES,
    endpoint::VALUES,
    eq::VALUES,
    errno::VALUES,
    fabric::VALUES,
    log::VALUES,
    tagged::VALUES,
    trigger::VALUES,
];

macro_rules! since {
    () => {
        crate::abi::BASE
    };
    ($major:literal, $minor:literal) => {
        ($major, $minor)
    };
}

macro_rules! until {
    () => {
        None
    };
    ($major:literal, $minor:literal) => {
        Some(($major, $minor))
    };
}

/// Defines structures; `#[since(major, minor)]` marks a structure or a field that is newer than the base, and
/// `#[grown(major, minor)]` a field that embeds a structure which has grown since.
macro_rules! structs {
    ($(
        $(#[since($record_major:literal, $record_minor:literal)])?
        struct $name:ident {$(
            $(#[since($major:literal, $minor:literal)])?
            $(#[grown($grown_major:literal, $grown_minor:literal)])?
            $field:ident: $kind:ty,
        )*}
    )*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { $( pub $field: $kind, )* }
        )*

        pub(super) const STRUCTS: &[crate::abi::Record] = &[$(
            crate::abi::Record {
                name: stringify!($name),
                size: size_of::<$name>(),
                since: since!($($record_major, $record_minor)?),
                fields: &[$(
                    crate::abi::Field {
                        name: stringify!($field),
                        offset: core::mem::offset_of!($name, $field),
                        size: size_of::<$kind>(),
                        since: since!($($major, $minor)?),
                        grown: since!($($grown_major, $grown_minor)?),
                    },
                )*],
            },
        )*];
    };
}

/// Defines tables of operations: `size` comes first, and an absent operation is a null pointer.
macro_rules! operations {
    ($(
        struct $name:ident {$(
            $(#[since($major:literal, $minor:literal)])?
            fn $operation:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty;
        )*}
    )*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                pub size: usize,
                $( pub $operation: Option<unsafe extern "C" fn($($argument: $kind),*) -> $result>, )*
            }
        )*

        pub(super) const OPERATIONS: &[crate::abi::Record] = &[$(
            crate::abi::Record {
                name: stringify!($name),
                size: size_of::<$name>(),
                since: crate::abi::BASE,
                fields: &[
                    crate::abi::Field {
                        name: "size",
                        offset: core::mem::offset_of!($name, size),
                        size: size_of::<usize>(),
                        since: crate::abi::BASE,
                        grown: crate::abi::BASE,
                    },
                    $(
                        crate::abi::Field {
                            name: stringify!($operation),
                            offset: core::mem::offset_of!($name, $operation),
                            size: size_of::<Option<unsafe extern "C" fn()>>(),
                            since: since!($($major, $minor)?),
                            grown: crate::abi::BASE,
                        },
                    )*
                ],
            },
        )*];
    };
}

/// Defines constants in groups of one type; `until` names the release whose headers dropped the group.
macro_rules! constants {
    ($(
        $(#[since($major:literal, $minor:literal)])?
        $(#[until($last_major:literal, $last_minor:literal)])?
        $kind:ident { $( $name:ident = $value:expr; )* }
    )*) => {
        $( $( pub const $name: $kind = $value; )* )*

        pub(super) const VALUES: &[crate::abi::Constants] = &[$(
            crate::abi::Constants {
                since: since!($($major, $minor)?),
                until: until!($($last_major, $last_minor)?),
                values: &[$( (stringify!($name), $name as u64), )*],
            },
        )*];
    };
}
