//! The address vector: short names for peers.

use weft_core::address::{Address, PeerId};
use weft_link::Link;

use crate::domain::Domain;
use crate::driver::Core;
use crate::error::{Error, Result};

/// The peers that a domain's user has named. Operations take the short name; looking up the way is done once, here.
///
/// ```
/// # let fabric = weft::Fabric::new("doc")?;
/// let domain = fabric.udp("127.0.0.1:0")?;
/// let addresses = domain.addresses();
/// let peer = addresses.insert("192.0.2.1:4791#1a2b3c4d".parse().unwrap())?;
/// assert_eq!(addresses.address(peer).unwrap().endpoint, 0x1a2b_3c4d);
/// assert!(addresses.remove(peer));
/// assert_eq!(addresses.address(peer), None);
/// # Ok::<(), weft::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AddressVector {
    domain: Domain,
}

impl AddressVector {
    pub(crate) fn new(domain: Domain) -> AddressVector {
        AddressVector { domain }
    }

    /// Names an endpoint. The same address gets the same name again.
    pub fn insert(&self, address: Address) -> Result<PeerId> {
        let mut core = self.domain.nic().lock();
        let mtu = core.link.mtu(address.socket.into());
        let peer = core.engine.delivery_mut().addresses_mut().insert(address, mtu).ok_or(Error::AddressVectorFull)?;
        core.forget_way(peer);
        Ok(peer)
    }

    /// Forgets a name, which may be given to another endpoint later; what is under way to the peer goes on. False: there
    /// was no such name.
    pub fn remove(&self, peer: PeerId) -> bool {
        let mut core = self.domain.nic().lock();
        core.forget_way(peer);
        core.engine.delivery_mut().remove_address(peer)
    }

    /// The address behind a name.
    #[must_use]
    pub fn address(&self, peer: PeerId) -> Option<Address> {
        self.domain.nic().lock().engine.delivery().addresses().address(peer)
    }

    /// The name of an address, if it has one.
    #[must_use]
    pub fn find(&self, address: Address) -> Option<PeerId> {
        let core = self.domain.nic().lock();
        let addresses = core.engine.delivery().addresses();
        addresses.find(addresses.source_of(address))
    }
}

impl Core {
    /// A name has a new meaning: its way is looked for anew.
    fn forget_way(&mut self, peer: PeerId) {
        if let Some(local) = &mut self.local {
            local.forget_peer(peer);
        }
    }
}
