//! A fabric: the nodes that hear each other.

use std::net::ToSocketAddrs;
use std::sync::Arc;

use weft_core::packet::Codec;

use crate::domain::{Domain, DomainBuilder};
use crate::error::{Error, Result};

/// The nodes that hear each other, by name. Nodes of differently named fabrics ignore each other's packets, even on the
/// same socket.
///
/// A fabric holds what its domains share: the compiled tables of the protocol.
///
/// ```
/// let fabric = weft::Fabric::new("storage")?;
/// let domain = fabric.udp("127.0.0.1:0")?;
/// assert_eq!(domain.fabric().name(), "storage");
/// # Ok::<(), weft::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fabric {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    session: u32,
    codec: Arc<Codec>,
}

impl Fabric {
    /// The fabric of this name.
    pub fn new(name: &str) -> Result<Fabric> {
        let codec = Codec::builtin().map_err(|error| Error::Protocol(error.to_string()))?;
        let shared = Shared { name: name.to_owned(), session: session_id(name), codec: Arc::new(codec) };
        Ok(Fabric { shared: Arc::new(shared) })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The id that its packets carry (P-8.14).
    #[must_use]
    pub fn session_id(&self) -> u32 {
        self.shared.session
    }

    /// A domain whose settings are still to be chosen.
    #[must_use]
    pub fn domain(&self) -> DomainBuilder {
        DomainBuilder::new(self.clone())
    }

    /// A domain on a UDP socket, with the usual settings.
    pub fn udp(&self, bind: impl ToSocketAddrs) -> Result<Domain> {
        self.domain().udp(bind)
    }

    pub(crate) fn codec(&self) -> Arc<Codec> {
        self.shared.codec.clone()
    }
}

/// FNV-1a of the name: the same on every node, and no secret.
fn session_id(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::session_id;

    #[test]
    fn names_give_the_published_hash() {
        assert_eq!(session_id(""), 0x811c_9dc5);
        assert_eq!(session_id("foobar"), 0xbf9c_f968);
    }
}
