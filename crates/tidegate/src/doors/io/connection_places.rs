//! The connections of one loop, by place. A place is used again by later connections.

use slab::Slab;

use super::connection::Connection;
use super::handler::{ConnectionId, Handler};

/// The connections of one loop.
pub(super) struct ConnectionPlaces<H: Handler> {
    places: Slab<Connection<H>>,
    next_generation: u32,
}

impl<H: Handler> ConnectionPlaces<H> {
    pub(super) fn new() -> Self {
        Self { places: Slab::new(), next_generation: 0 }
    }

    /// Makes a connection for a free place and the next generation.
    pub(super) fn add(&mut self, make: impl FnOnce(ConnectionId) -> Connection<H>) -> ConnectionId {
        let place = self.places.vacant_entry();
        let id = ConnectionId { slot: place.key() as u32, generation: self.next_generation };
        self.next_generation = self.next_generation.wrapping_add(1);
        place.insert(make(id));
        id
    }

    /// The connection at a place.
    #[inline]
    pub(super) fn at(&mut self, slot: u32) -> Option<&mut Connection<H>> {
        self.places.get_mut(slot as usize)
    }

    /// A connection, if it is still there.
    #[inline]
    pub(super) fn same(&mut self, id: ConnectionId) -> Option<&mut Connection<H>> {
        self.at(id.slot).filter(|connection| connection.id == id)
    }

    /// Takes a connection out.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Connection<H>> {
        self.places.try_remove(slot as usize)
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The places, used or not.
    pub(super) fn places(&self) -> u32 {
        self.places.capacity() as u32
    }
}
