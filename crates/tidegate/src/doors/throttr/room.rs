//! The connections of one loop, by place.

use super::connection::Connection;

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
