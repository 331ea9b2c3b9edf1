//! Endpoints: opened, numbered, found.

use alloc::vec::Vec;
use core::fmt;

use super::{Bindings, Endpoint, EndpointKind, Engine};
use crate::command::EndpointId;
use crate::limits::{NUMBER_ROW_MAX, NUMBER_ROWS_MAX};
use crate::matching::{Posted, Unexpected};
use crate::memory::Memory;

/// What an endpoint is opened with besides its kind and bindings. The defaults serve most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The number by which peers address it; `None`: one that nobody can guess is drawn, never 0.
    pub number: Option<u32>,
}

/// Why an endpoint was not opened, or numbers were not kept. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The caller: another endpoint has the number, or a number of the row.
    NumberTaken {
        /// Which.
        number: u32,
    },
    /// The caller: no such row of numbers is possible.
    BadRow,
    /// A local resource: as many rows are kept as can be.
    TooManyRows,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NumberTaken { number } => {
                write!(f, "endpoint number {number} is taken on this NIC: choose another, or let one be drawn")
            }
            OpenError::BadRow => write!(f, "a row of numbers has 1 to {NUMBER_ROW_MAX} of them, all below 2^32"),
            OpenError::TooManyRows => write!(f, "too many rows of numbers are kept: release some"),
        }
    }
}

impl core::error::Error for OpenError {}

impl<M: Memory> Engine<M> {
    /// Makes an endpoint with a drawn number.
    pub fn open_endpoint(&mut self, kind: EndpointKind, bindings: Bindings) -> EndpointId {
        let number = self.draw_numbers(1);
        self.insert_endpoint(kind, bindings, number)
    }

    /// Makes an endpoint.
    pub fn open_endpoint_with(
        &mut self,
        kind: EndpointKind,
        bindings: Bindings,
        opening: &Opening,
    ) -> Result<EndpointId, OpenError> {
        let number = match opening.number {
            Some(number) if self.endpoint_of.contains_key(&number) => return Err(OpenError::NumberTaken { number }),
            Some(number) => number,
            None => self.draw_numbers(1),
        };
        Ok(self.insert_endpoint(kind, bindings, number))
    }

    fn insert_endpoint(&mut self, kind: EndpointKind, bindings: Bindings, number: u32) -> EndpointId {
        if let Some(queue) = bindings.receive_queue.and_then(|queue| self.queues.get_mut(queue.0 as usize)) {
            queue.serve_receives();
        }
        let receives = self.config.receives_max;
        let unexpected = self.config.unexpected_max;
        let endpoint = Endpoint {
            number,
            kind,
            bindings,
            posted: Posted::new(self.keyed.clone(), receives),
            unexpected: Unexpected::new(self.keyed.clone(), unexpected),
            tagged_posted: Posted::new(self.keyed.clone(), receives),
            tagged_unexpected: Unexpected::new(self.keyed.clone(), unexpected),
            refused: Vec::new(),
        };
        let id = match self.endpoints.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.endpoints.push(None);
                self.endpoints.len() - 1
            }
        };
        if let Some(slot) = self.endpoints.get_mut(id) {
            *slot = Some(endpoint);
        }
        let id = EndpointId(id as u32);
        self.endpoint_of.insert(number, id);
        id
    }

    /// Keeps a row of numbers for endpoints that will be opened with them ([`Opening::number`]): none of them is drawn for
    /// another until [`Engine::release_numbers`]. `first`: where it begins; `None`: somewhere. Gives the first.
    pub fn keep_numbers(&mut self, first: Option<u32>, count: u32) -> Result<u32, OpenError> {
        if count == 0 || count > NUMBER_ROW_MAX || first.is_some_and(|first| first.checked_add(count - 1).is_none()) {
            return Err(OpenError::BadRow);
        }
        if self.rows.len() >= NUMBER_ROWS_MAX {
            return Err(OpenError::TooManyRows);
        }
        let first = match first {
            Some(first) => {
                if let Some(number) = (first..=first + (count - 1)).find(|number| !self.is_free(*number)) {
                    return Err(OpenError::NumberTaken { number });
                }
                first
            }
            None => self.draw_numbers(count),
        };
        self.rows.push((first, count));
        Ok(first)
    }

    /// Lets go of a row of numbers. Endpoints that have some of them keep them.
    pub fn release_numbers(&mut self, first: u32) {
        if let Some(at) = self.rows.iter().position(|row| row.0 == first) {
            self.rows.swap_remove(at);
        }
    }

    /// Whether a number is nobody's.
    fn is_free(&self, number: u32) -> bool {
        let in_row = |&(first, count): &(u32, u32)| number.checked_sub(first).is_some_and(|at| at < count);
        !self.endpoint_of.contains_key(&number) && !self.rows.iter().any(in_row)
    }

    /// The first of so many free numbers in a row, none of which is 0.
    fn draw_numbers(&mut self, count: u32) -> u32 {
        loop {
            let first = self.random.next_u32();
            let last = first.checked_add(count - 1);
            if first != 0 && last.is_some_and(|last| (first..=last).all(|number| self.is_free(number))) {
                return first;
            }
        }
    }

    /// The number by which peers address an endpoint ([`crate::address::Address::endpoint`]).
    pub fn endpoint_number(&self, endpoint: EndpointId) -> Option<u32> {
        self.endpoint(endpoint).map(|endpoint| endpoint.number)
    }

    #[inline]
    pub(super) fn endpoint(&self, endpoint: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(endpoint.0 as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn endpoint_mut(&mut self, endpoint: EndpointId) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(endpoint.0 as usize)?.as_mut()
    }
}
