//! Numbers of endpoints that stand in a row.

use crate::domain::Domain;
use crate::error::Result;

/// A row of endpoint numbers that no other endpoint of the domain is given. Open endpoints with them
/// ([`EndpointOptions::number`](crate::EndpointOptions::number)): who knows the address of the first then knows all.
/// When it is dropped the numbers are free, but for those that endpoints have.
///
/// ```
/// use weft::{EndpointOptions, raw};
/// # let domain = weft::Domain::udp("127.0.0.1:0")?;
/// let numbers = raw::Numbers::keep(&domain, None, 4)?;
/// for index in 0..numbers.count() {
///     let options = EndpointOptions { number: Some(numbers.first() + index), ..Default::default() };
///     let endpoint = domain.open_endpoint(options)?;
///     assert_eq!(endpoint.address().endpoint, numbers.first() + index);
/// }
/// # Ok::<(), weft::Error>(())
/// ```
#[derive(Debug)]
pub struct Numbers {
    first: u32,
    count: u32,
    domain: Domain,
}

impl Numbers {
    /// Keeps `count` numbers that begin with `first`, or (`None`) somewhere. Refused if one of them is taken.
    pub fn keep(domain: &Domain, first: Option<u32>, count: u32) -> Result<Numbers> {
        let first = domain.nic().lock().engine.delivery_mut().keep_numbers(first, count)?;
        Ok(Numbers { first, count, domain: domain.clone() })
    }

    /// The first of them.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// How many they are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        self.domain.nic().lock().engine.delivery_mut().release_numbers(self.first);
    }
}
