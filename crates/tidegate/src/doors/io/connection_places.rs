//! The connections of one loop, by place. A place is used again by later connections.

use super::connection::Connection;
use super::handler::{ConnectionId, Handler};

/// The connections of one loop.
pub(super) struct ConnectionPlaces<H: Handler> {
    places: Vec<Place<H>>,
    free: Vec<u32>,
}

struct Place<H: Handler> {
    /// How many connections were here before.
    generation: u32,
    connection: Option<Connection<H>>,
}

impl<H: Handler> ConnectionPlaces<H> {
    pub(super) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    /// Makes a connection for the next free place and generation.
    pub(super) fn add(&mut self, make: impl FnOnce(ConnectionId) -> Connection<H>) -> ConnectionId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, connection: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[slot as usize];
        let id = ConnectionId { slot, generation: place.generation };
        place.connection = Some(make(id));
        id
    }

    /// The connection at a place.
    #[inline]
    pub(super) fn at(&mut self, slot: u32) -> Option<&mut Connection<H>> {
        self.places.get_mut(slot as usize)?.connection.as_mut()
    }

    /// A connection, if it is still there.
    #[inline]
    pub(super) fn same(&mut self, id: ConnectionId) -> Option<&mut Connection<H>> {
        let place = self.places.get_mut(id.slot as usize)?;
        place.connection.as_mut().filter(|_| place.generation == id.generation)
    }

    /// Takes a connection out.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Connection<H>> {
        let place = self.places.get_mut(slot as usize)?;
        let connection = place.connection.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(slot);
        Some(connection)
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The places, used or not.
    pub(super) fn places(&self) -> u32 {
        self.places.len() as u32
    }
}
