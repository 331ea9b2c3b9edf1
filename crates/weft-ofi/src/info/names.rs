//! Names of bits and values, for log lines.

use std::fmt;

use crate::abi::*;

macro_rules! named {
    ($($name:ident $(or $newer:ident)?),* $(,)?) => {
        &[$((concat!(stringify!($name) $(, " or ", stringify!($newer))?), $name)),*]
    };
}

/// Capabilities. One bit has changed its meaning with version 2.0.
pub(super) const CAPS: &[(&str, u64)] = named![
    FI_MSG,
    FI_RMA,
    FI_TAGGED,
    FI_ATOMIC,
    FI_MULTICAST,
    FI_COLLECTIVE,
    FI_READ,
    FI_WRITE,
    FI_RECV,
    FI_SEND,
    FI_REMOTE_READ,
    FI_REMOTE_WRITE,
    FI_MULTI_RECV,
    FI_TRIGGER,
    FI_FENCE,
    FI_AV_USER_ID,
    FI_PEER,
    FI_XPU_TRIGGER,
    FI_TAGGED_DIRECTED_RECV,
    FI_TAGGED_MULTI_RECV,
    FI_HMEM,
    FI_VARIABLE_MSG or FI_EXACT_DIRECTED_RECV,
    FI_RMA_PMEM,
    FI_SOURCE_ERR,
    FI_LOCAL_COMM,
    FI_REMOTE_COMM,
    FI_SHARED_AV,
    FI_RMA_EVENT,
    FI_SOURCE,
    FI_NAMED_RX_CTX,
    FI_DIRECTED_RECV,
];
/// Flags of operations.
pub(super) const FLAGS: &[(&str, u64)] = named![
    FI_MULTICAST,
    FI_MULTI_RECV,
    FI_REMOTE_CQ_DATA,
    FI_MORE,
    FI_PEEK,
    FI_TRIGGER,
    FI_FENCE,
    FI_COMPLETION,
    FI_INJECT,
    FI_INJECT_COMPLETE,
    FI_TRANSMIT_COMPLETE,
    FI_DELIVERY_COMPLETE,
    FI_AFFINITY,
    FI_COMMIT_COMPLETE,
    FI_MATCH_COMPLETE,
];
/// Orders of messages and completions.
pub(super) const ORDERS: &[(&str, u64)] = named![
    FI_ORDER_RAR,
    FI_ORDER_RAW,
    FI_ORDER_RAS,
    FI_ORDER_WAR,
    FI_ORDER_WAW,
    FI_ORDER_WAS,
    FI_ORDER_SAR,
    FI_ORDER_SAW,
    FI_ORDER_SAS,
    FI_ORDER_DATA,
    FI_ORDER_RMA_RAR,
    FI_ORDER_RMA_RAW,
    FI_ORDER_RMA_WAR,
    FI_ORDER_RMA_WAW,
    FI_ORDER_ATOMIC_RAR,
    FI_ORDER_ATOMIC_RAW,
    FI_ORDER_ATOMIC_WAR,
    FI_ORDER_ATOMIC_WAW,
];

const FORMATS: &[(&str, u32)] = named![
    FI_SOCKADDR,
    FI_SOCKADDR_IN,
    FI_SOCKADDR_IN6,
    FI_SOCKADDR_IB,
    FI_ADDR_GNI,
    FI_ADDR_STR,
    FI_ADDR_PSMX2,
    FI_ADDR_IB_UD,
    FI_ADDR_EFA,
    FI_ADDR_PSMX3,
    FI_ADDR_OPX,
    FI_ADDR_CXI,
    FI_ADDR_UCX,
    FI_SOCKADDR_IP,
];
const CLASSES: &[(&str, u32)] = named![
    FI_TC_BEST_EFFORT,
    FI_TC_LOW_LATENCY,
    FI_TC_DEDICATED_ACCESS,
    FI_TC_BULK_DATA,
    FI_TC_SCAVENGER,
    FI_TC_NETWORK_CTRL,
];

/// Bits by their names, the others as a number.
pub(super) struct Bits(pub(super) u64, pub(super) &'static [(&'static str, u64)]);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bits, names) = *self;
        let known = names.iter().filter(|(_, bit)| bits & bit != 0);
        let rest = known.clone().fold(bits, |rest, (_, bit)| rest & !bit);
        let mut texts: Vec<_> = known.map(|(name, _)| (*name).to_owned()).collect();
        if rest != 0 || bits == 0 {
            texts.push(format!("{rest:#x}"));
        }
        f.write_str(&texts.join("|"))
    }
}

/// The name of an attribute's value, or the number.
pub(super) fn value_name(attribute: &str, value: u32) -> String {
    let names = match attribute {
        "addr_format" => FORMATS,
        _ if attribute.ends_with("tclass") => CLASSES,
        _ => &[],
    };
    match names.iter().find(|(_, known)| *known == value) {
        Some((name, _)) => (*name).to_owned(),
        None => format!("{value:#x}"),
    }
}
