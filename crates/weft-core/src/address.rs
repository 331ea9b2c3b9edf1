//! Who is who: addresses of endpoints, and the vector that gives them short names.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hashbrown::HashMap;

use crate::hash::Keyed;
use crate::limits::ADDRESSES_MAX;

/// An endpoint anywhere: the socket of its node, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Where datagrams for its node go.
    pub socket: SocketAddr,
    /// Its unpredictable number in the node.
    pub endpoint: u32,
}

impl Address {
    /// Bytes of [`Address::to_bytes`].
    pub const BYTES: usize = 24;

    /// A form for exchange out of band: IPv6 address (IPv4 mapped), port, two bytes of zero, endpoint.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Address::BYTES] {
        let ip = match self.socket.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut bytes = [0; Address::BYTES];
        bytes[..16].copy_from_slice(&ip.octets());
        bytes[16..18].copy_from_slice(&self.socket.port().to_be_bytes());
        bytes[20..].copy_from_slice(&self.endpoint.to_be_bytes());
        bytes
    }

    /// Reads [`Address::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Address::BYTES]) -> Address {
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[..16]);
        let ip = Ipv6Addr::from(octets);
        let port = u16::from_be_bytes([bytes[16], bytes[17]]);
        let endpoint = u32::from_be_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), |v4: Ipv4Addr| IpAddr::V4(v4));
        Address { socket: SocketAddr::new(ip, port), endpoint }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:08x}", self.socket, self.endpoint)
    }
}

impl core::str::FromStr for Address {
    type Err = AddressError;

    /// Reads what `Display` writes: `192.0.2.1:4791#1a2b3c4d`.
    fn from_str(text: &str) -> Result<Address, AddressError> {
        let (socket, endpoint) = text.rsplit_once('#').ok_or(AddressError)?;
        let socket = socket.parse().map_err(|_| AddressError)?;
        let endpoint = u32::from_str_radix(endpoint, 16).map_err(|_| AddressError)?;
        Ok(Address { socket, endpoint })
    }
}

/// The text is not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressError;

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an endpoint's address: write it as 192.0.2.1:4791#1a2b3c4d")
    }
}

impl core::error::Error for AddressError {}

/// Short name of a peer's endpoint: its index in the address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// Where a message came from, as matching compares it: a keyed hash of the address. Two addresses have the same one with
/// a chance of 2⁻⁶⁴, and nobody outside can look for such a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId(pub u64);

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: Address,
    source: SourceId,
    /// Bytes of UDP payload that fit on the way there.
    mtu: u32,
}

/// The peers that a node's user has named.
#[derive(Debug)]
pub struct AddressVector {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_source: HashMap<u64, u32, Keyed>,
    keyed: Keyed,
}

impl AddressVector {
    /// An empty vector.
    #[must_use]
    pub fn new(keyed: Keyed) -> AddressVector {
        AddressVector { entries: Vec::new(), free: Vec::new(), by_source: HashMap::with_hasher(keyed.clone()), keyed }
    }

    /// Names an endpoint; the same address gets the same name again, with the new MTU. `None` when there is no room.
    pub fn insert(&mut self, address: Address, mtu: u32) -> Option<PeerId> {
        let source = self.source_of(address);
        let entry = Entry { address, source, mtu };
        if let Some(&index) = self.by_source.get(&source.0) {
            *self.entries.get_mut(index as usize)? = Some(entry);
            return Some(PeerId(index));
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() < ADDRESSES_MAX => {
                self.entries.push(None);
                self.entries.len() as u32 - 1
            }
            None => return None,
        };
        *self.entries.get_mut(index as usize)? = Some(entry);
        self.by_source.insert(source.0, index);
        Some(PeerId(index))
    }

    /// Forgets a name. It may be given to another endpoint later. What is under way to the peer goes on.
    pub(crate) fn remove(&mut self, peer: PeerId) -> bool {
        let Some(entry) = self.entries.get_mut(peer.0 as usize).and_then(Option::take) else { return false };
        self.by_source.remove(&entry.source.0);
        self.free.push(peer.0);
        true
    }

    /// The address behind a name.
    #[must_use]
    #[inline]
    pub fn address(&self, peer: PeerId) -> Option<Address> {
        self.entry(peer).map(|entry| entry.address)
    }

    /// Bytes of UDP payload that fit on the way to a peer.
    #[must_use]
    pub fn mtu(&self, peer: PeerId) -> Option<u32> {
        self.entry(peer).map(|entry| entry.mtu)
    }

    /// What matching compares for messages of this peer.
    #[must_use]
    #[inline]
    pub fn source(&self, peer: PeerId) -> Option<SourceId> {
        self.entry(peer).map(|entry| entry.source)
    }

    /// What matching compares for messages of any address, named or not.
    #[must_use]
    pub fn source_of(&self, address: Address) -> SourceId {
        SourceId(self.keyed.hash_address(address))
    }

    /// The name of a source, if it has one.
    #[must_use]
    pub fn find(&self, source: SourceId) -> Option<PeerId> {
        self.by_source.get(&source.0).copied().map(PeerId)
    }

    #[inline]
    fn entry(&self, peer: PeerId) -> Option<&Entry> {
        self.entries.get(peer.0 as usize)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address { socket: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port), endpoint: 0x1a2b_3c4d }
    }

    #[test]
    fn bytes_and_text_come_back() {
        let v6 = Address { socket: "[2001:db8::7]:4791".parse().unwrap(), endpoint: 7 };
        for address in [address(4791), v6] {
            assert_eq!(Address::from_bytes(&address.to_bytes()), address);
            assert_eq!(std::format!("{address}").parse(), Ok(address));
        }
        assert!("127.0.0.1:1".parse::<Address>().is_err());
    }

    #[test]
    fn names_are_stable_and_used_again() {
        let mut vector = AddressVector::new(Keyed::new(1, 2));
        let first = vector.insert(address(1), 1500).unwrap();
        let second = vector.insert(address(2), 1500).unwrap();
        assert_eq!(vector.insert(address(1), 9000), Some(first));
        assert_eq!(vector.mtu(first), Some(9000));
        assert_eq!(vector.find(vector.source_of(address(2))), Some(second));
        assert!(vector.remove(first) && !vector.remove(first));
        assert_eq!((vector.address(first), vector.find(vector.source_of(address(1)))), (None, None));
        assert_eq!(vector.insert(address(3), 1500), Some(first));
    }
}
