//! The protocol index: all that the parse graph saw, matched at once, as a content-addressed memory does it.
//!
//! What was seen is packed into 128 bits ([`Seen`]); a rule is a value and a mask over them. Rules are kept in order of
//! priority, then of how many bits they fix, then as loaded; the first that matches wins.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::source::{DefinitionError, Placed, Sources, Table, suggest};

/// What the parse graph saw on its way to the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Seen {
    words: [u64; 2],
}

/// A thing that can be seen: where it lies in [`Seen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    word: u8,
    shift: u8,
    width: u8,
}

impl Term {
    pub(crate) const LINK: Term = Term { word: 0, shift: 0, width: 4 };
    pub(crate) const TUNNEL: Term = Term { word: 0, shift: 4, width: 4 };
    pub(crate) const IP_VERSION: Term = Term { word: 0, shift: 8, width: 4 };
    pub(crate) const FRAME: Term = Term { word: 0, shift: 12, width: 3 };
    pub(crate) const SESSION: Term = Term { word: 0, shift: 15, width: 1 };
    pub(crate) const ETHERTYPE: Term = Term { word: 0, shift: 16, width: 16 };
    pub(crate) const IP_PROTOCOL: Term = Term { word: 0, shift: 32, width: 8 };
    pub(crate) const VNI: Term = Term { word: 0, shift: 40, width: 24 };
    pub(crate) const UDP_SOURCE: Term = Term { word: 1, shift: 0, width: 16 };
    pub(crate) const UDP_DESTINATION: Term = Term { word: 1, shift: 16, width: 16 };
    pub(crate) const TCP_SOURCE: Term = Term { word: 1, shift: 32, width: 16 };
    pub(crate) const TCP_DESTINATION: Term = Term { word: 1, shift: 48, width: 16 };

    const fn max(self) -> u64 {
        (1 << self.width) - 1
    }
}

/// The link layer that a packet came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Link {
    /// Ethernet II frames.
    #[default]
    Ethernet = 1,
    /// InfiniBand: an LRH comes first.
    InfiniBand = 2,
    /// No link header: an IP header comes first.
    Ip = 3,
}

/// The innermost tunnel that a packet came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Tunnel {
    /// Not tunnelled.
    #[default]
    None = 1,
    /// VXLAN.
    Vxlan = 2,
    /// GRE.
    Gre = 3,
    /// IP in IP, any versions.
    Ip = 4,
}

/// What a unit of a protocol is cut out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum FrameKind {
    /// The packet itself.
    #[default]
    Packet = 1,
    /// An MPA start frame at the beginning of a TCP stream.
    MpaStart = 2,
    /// An MPA FPDU in a TCP stream.
    MpaFpdu = 3,
}

impl Seen {
    #[inline]
    pub(crate) fn with(mut self, term: Term, value: u64) -> Seen {
        let [first, second] = &mut self.words;
        let word = if term.word == 0 { first } else { second };
        *word = *word & !(term.max() << term.shift) | (value & term.max()) << term.shift;
        self
    }

    fn value(&self, term: Term) -> u64 {
        let [first, second] = self.words;
        (if term.word == 0 { first } else { second }) >> term.shift & term.max()
    }

    /// A number that differs where link, tunnel, virtual network, IP version or IP protocol differ: flows of the same
    /// addresses and ports in two of them are two flows.
    #[must_use]
    pub fn lane(&self) -> u64 {
        let terms = [Term::LINK, Term::TUNNEL, Term::IP_VERSION, Term::IP_PROTOCOL, Term::VNI];
        terms.iter().fold(0, |lane, term| lane << term.width | self.value(*term))
    }

    /// Something seen inside of a TCP stream.
    #[must_use]
    pub fn in_stream(self, frame: FrameKind) -> Seen {
        self.with(Term::FRAME, frame as u64)
    }

    /// The ports belong to a session that the caller knows.
    #[inline]
    #[must_use]
    pub fn in_session(self) -> Seen {
        self.with(Term::SESSION, 1)
    }
}

type Words = &'static [(&'static str, u64)];
const NO_WORDS: Words = &[];
const LINK_WORDS: Words =
    &[("ethernet", Link::Ethernet as u64), ("infiniband", Link::InfiniBand as u64), ("ip", Link::Ip as u64)];
const TUNNEL_WORDS: Words = &[
    ("none", Tunnel::None as u64),
    ("vxlan", Tunnel::Vxlan as u64),
    ("gre", Tunnel::Gre as u64),
    ("ip", Tunnel::Ip as u64),
];
const FRAME_WORDS: Words = &[
    ("packet", FrameKind::Packet as u64),
    ("mpa_start", FrameKind::MpaStart as u64),
    ("mpa_fpdu", FrameKind::MpaFpdu as u64),
];

/// Names in `[[recognise]]`, and for those with words instead of numbers the words.
const TERMS: [(&str, Term, Words); 11] = [
    ("link", Term::LINK, LINK_WORDS),
    ("tunnel", Term::TUNNEL, TUNNEL_WORDS),
    ("frame", Term::FRAME, FRAME_WORDS),
    ("ip_version", Term::IP_VERSION, NO_WORDS),
    ("ethertype", Term::ETHERTYPE, NO_WORDS),
    ("ip_protocol", Term::IP_PROTOCOL, NO_WORDS),
    ("vni", Term::VNI, NO_WORDS),
    ("udp_source", Term::UDP_SOURCE, NO_WORDS),
    ("udp_destination", Term::UDP_DESTINATION, NO_WORDS),
    ("tcp_source", Term::TCP_SOURCE, NO_WORDS),
    ("tcp_destination", Term::TCP_DESTINATION, NO_WORDS),
];

/// One `[[recognise]]` entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    value: Seen,
    mask: Seen,
    priority: u8,
}

impl Rule {
    pub(crate) fn read(sources: &Sources<'_>, table: &Table<'_>) -> Result<Rule, DefinitionError> {
        let names: Vec<&str> = TERMS.iter().map(|(name, ..)| *name).chain(["session", "priority"]).collect();
        table.only(&names)?;
        let mut rule = Rule { value: Seen::default(), mask: Seen::default(), priority: 0 };
        for (name, term, words) in TERMS {
            let Some(value) = table.maybe(name) else { continue };
            let number = if words.is_empty() {
                value.integer(0..=term.max())?
            } else {
                let Placed { value: text, .. } = value.string()?;
                let found = words.iter().find(|(word, _)| *word == text).map(|(_, number)| *number);
                found.ok_or_else(|| {
                    value.error(format!("unknown {name} `{text}`"), suggest(&text, words.iter().map(|(word, _)| *word)))
                })?
            };
            rule.value = rule.value.with(term, number);
            rule.mask = rule.mask.with(term, term.max());
        }
        if table.maybe("session").map_or(Ok(false), |session| session.flag())? {
            rule.value = rule.value.in_session();
            rule.mask = rule.mask.in_session();
        }
        if let Some(priority) = table.maybe("priority") {
            rule.priority = priority.integer(0..=255)? as u8;
        }
        if rule.mask == Seen::default() {
            let what = String::from("a rule with no condition would match every packet");
            return Err(sources.error(table.place, what, "write for example `udp_destination = 4791`"));
        }
        Ok(rule)
    }

    /// As the definition writes it, on one line.
    fn describe(&self) -> String {
        let mut parts = Vec::new();
        for (name, term, words) in TERMS {
            if self.mask.value(term) == 0 {
                continue;
            }
            let value = self.value.value(term);
            match words.iter().find(|(_, number)| *number == value) {
                Some((word, _)) => parts.push(format!("{name} = {word}")),
                None if name == "ethertype" => parts.push(format!("{name} = {value:#06x}")),
                None => parts.push(format!("{name} = {value}")),
            }
        }
        if self.mask.value(Term::SESSION) != 0 {
            parts.push("a known session".into());
        }
        parts.join(", ")
    }

    fn bits(&self) -> u32 {
        self.mask.words.iter().map(|word| word.count_ones()).sum()
    }
}

/// All rules of all protocols.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    rules: Vec<(Rule, u16)>,
}

impl Index {
    pub(crate) fn add(&mut self, rules: &[Rule], protocol: u16) {
        self.rules.extend(rules.iter().map(|rule| (*rule, protocol)));
        // Stable: equal rules stay as loaded.
        self.rules.sort_by_key(|(rule, _)| core::cmp::Reverse((rule.priority, rule.bits())));
    }

    pub(crate) fn rules(&self, protocol: u16) -> impl Iterator<Item = String> {
        self.rules.iter().filter(move |(_, known)| *known == protocol).map(|(rule, _)| rule.describe())
    }

    pub(crate) fn wanted(&self, protocol: u16, name: &str) -> Option<u64> {
        let (_, term, _) = TERMS.iter().find(|(known, ..)| *known == name)?;
        let mut rules = self.rules.iter().filter(|(rule, known)| *known == protocol && rule.mask.value(*term) != 0);
        rules.next().map(|(rule, _)| rule.value.value(*term))
    }

    #[inline]
    pub(crate) fn find(&self, seen: &Seen) -> Option<u16> {
        let hit = self.rules.iter().find(|(rule, _)| {
            let [a, b] = seen.words;
            let [value_a, value_b] = rule.value.words;
            let [mask_a, mask_b] = rule.mask.words;
            // One word after the other: most rules fail at the first.
            a & mask_a == value_a && b & mask_b == value_b
        });
        hit.map(|(_, protocol)| *protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(terms: &[(Term, u64)], priority: u8) -> Rule {
        let fold = |f: fn(Term, u64) -> u64| {
            terms.iter().fold(Seen::default(), |seen, (term, value)| seen.with(*term, f(*term, *value)))
        };
        Rule { value: fold(|_, value| value), mask: fold(|term, _| term.max()), priority }
    }

    #[test]
    fn terms_do_not_share_bits() {
        for (index, (_, a, _)) in TERMS.iter().enumerate() {
            for (_, b, _) in TERMS.iter().skip(index + 1) {
                let seen = Seen::default().with(*a, u64::MAX);
                assert_eq!(seen.with(*b, u64::MAX).with(*b, 0), seen, "{a:?} {b:?}");
            }
            assert_eq!(Seen::default().in_session().with(*a, u64::MAX).with(*a, 0), Seen::default().in_session());
        }
    }

    #[test]
    fn flows_are_told_apart_by_what_they_run_in() {
        let seen = Seen::default().with(Term::IP_PROTOCOL, 6).with(Term::IP_VERSION, 4).with(Term::VNI, 1);
        for (term, other) in [(Term::IP_PROTOCOL, 17), (Term::IP_VERSION, 6), (Term::VNI, 2), (Term::TUNNEL, 3)] {
            assert_ne!(seen.with(term, other).lane(), seen.lane(), "{term:?}");
        }
        assert_eq!(seen.with(Term::UDP_SOURCE, 9).in_stream(FrameKind::MpaFpdu).lane(), seen.lane());
    }

    #[test]
    fn priority_then_precision_then_order() {
        let port = (Term::UDP_DESTINATION, 4791);
        let mut index = Index::default();
        index.add(&[rule(&[port], 0)], 1);
        index.add(&[rule(&[port, (Term::TUNNEL, Tunnel::Vxlan as u64)], 0)], 2);
        index.add(&[rule(&[port], 0)], 3);
        index.add(&[rule(&[(Term::LINK, 1), (Term::UDP_SOURCE, 9)], 7)], 4);
        let seen = Seen::default().with(Term::UDP_DESTINATION, 4791).with(Term::LINK, 1);
        assert_eq!(index.find(&seen), Some(1));
        assert_eq!(index.find(&seen.with(Term::TUNNEL, Tunnel::Vxlan as u64)), Some(2));
        assert_eq!(index.find(&seen.with(Term::UDP_SOURCE, 9)), Some(4));
        assert_eq!(index.find(&Seen::default()), None);
    }
}
