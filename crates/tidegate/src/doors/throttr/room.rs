//! The room for connections: how many a door may have, and the places of one loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::connection::Connection;

/// How many connections all loops of one door may have together.
pub(super) struct Room {
    max: usize,
    taken: AtomicUsize,
}

/// The right of one connection to be there.
pub(super) struct Place(Arc<Room>);

impl Room {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    /// A place, if there is one left.
    pub(super) fn take(self: &Arc<Self>) -> Option<Place> {
        let place = Place(self.clone());
        // Dropping the place gives it back, also when it was one too many.
        (self.taken.fetch_add(1, Relaxed) < self.max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Relaxed);
    }
}

/// The connections of one loop, by place. A place is used again by later connections.
#[derive(Default)]
pub(super) struct Connections {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Slot {
    /// How many connections were here before.
    generation: u32,
    connection: Option<Box<Connection>>,
}

impl Connections {
    /// Makes a connection for the next free place and generation.
    pub(super) fn add<E>(
        &mut self,
        make: impl FnOnce(u32, u32) -> Result<Connection, E>,
    ) -> Result<u32, E> {
        let slot = self.free.last().copied().unwrap_or(self.slots.len() as u32);
        let generation = self.slots.get(slot as usize).map_or(0, |slot| slot.generation);
        let connection = Some(Box::new(make(slot, generation)?));
        match self.free.pop() {
            Some(_) => self.slots[slot as usize].connection = connection,
            None => self.slots.push(Slot { generation, connection }),
        }
        Ok(slot)
    }

    /// The connection at a place.
    pub(super) fn at(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.connection.as_deref_mut()
    }

    /// The connection at a place, if it is the one that was there in this generation.
    pub(super) fn same(&mut self, slot: u32, generation: u32) -> Option<&mut Connection> {
        self.at(slot).filter(|connection| connection.generation == generation)
    }

    /// Takes a connection out.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Box<Connection>> {
        let place = self.slots.get_mut(slot as usize)?;
        let connection = place.connection.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(slot);
        Some(connection)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The places, used or not.
    pub(super) fn places(&self) -> u32 {
        self.slots.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_come_back() {
        let room = Room::new(2);
        let (one, two) = (room.take(), room.take());
        assert!(one.is_some() && two.is_some() && room.take().is_none());
        assert!(room.take().is_none(), "being refused takes no place");
        drop(one);
        assert!(room.take().is_some());
    }
}
