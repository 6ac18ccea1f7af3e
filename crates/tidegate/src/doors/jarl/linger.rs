//! Clients that have their answer and have not left yet, in the order in which they came.
//!
//! A client is *fresh* until it was looked at once; from then on it is *watched*. The oldest are
//! in front, so that whoever has had its time, or must make room, is found at once. All places are
//! made at the start; nothing here allocates after that, and nothing here knows of sockets.

use tidegate_core::Nanos;

/// No place.
const NONE: u32 = u32::MAX;

/// One client that lingers.
pub(super) struct Guest<T> {
    pub(super) socket: T,
    /// When it was answered.
    pub(super) since: Nanos,
    /// Bytes that it sent, which nobody wanted.
    pub(super) bytes: usize,
}

struct Place<T> {
    guest: Option<Guest<T>>,
    /// How many guests were here before: tells them apart from the one who is.
    generation: u32,
    before: u32,
    after: u32,
}

/// Which guest, as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) place: u32,
    pub(super) generation: u32,
}

/// All that linger at one loop.
pub(super) struct Lingering<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    /// The oldest that is fresh; all behind it are, too.
    fresh: u32,
}

impl<T> Lingering<T> {
    /// Room for `max` guests.
    pub(super) fn new(max: usize) -> Self {
        let count = u32::try_from(max).unwrap_or(NONE - 1).clamp(1, NONE - 1);
        let place = |_| Place { guest: None, generation: 0, before: NONE, after: NONE };
        Self {
            places: (0..count).map(place).collect(),
            free: (0..count).rev().collect(),
            oldest: NONE,
            newest: NONE,
            fresh: NONE,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.oldest == NONE
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Adds a fresh guest. There must be room.
    pub(super) fn add(&mut self, socket: T, since: Nanos) {
        let Some(at) = self.free.pop() else { return };
        let place = &mut self.places[at as usize];
        place.guest = Some(Guest { socket, since, bytes: 0 });
        (place.before, place.after) = (self.newest, NONE);
        match self.newest {
            NONE => self.oldest = at,
            newest => self.places[newest as usize].after = at,
        }
        self.newest = at;
        if self.fresh == NONE {
            self.fresh = at;
        }
    }

    /// Since when the oldest fresh guest has been here.
    pub(super) fn fresh_since(&self) -> Option<Nanos> {
        self.since(self.fresh)
    }

    /// The oldest fresh guest, which is watched from now on.
    pub(super) fn watch_next(&mut self) -> Option<Ticket> {
        let place = self.fresh;
        let generation = self.places.get(place as usize)?.generation;
        self.fresh = self.places[place as usize].after;
        Some(Ticket { place, generation })
    }

    /// Since when the oldest guest of all has been here.
    pub(super) fn oldest_since(&self) -> Option<Nanos> {
        self.since(self.oldest)
    }

    /// Takes the oldest guest out.
    pub(super) fn remove_oldest(&mut self) -> Option<Guest<T>> {
        let place = self.oldest;
        let generation = self.places.get(place as usize)?.generation;
        self.remove(Ticket { place, generation })
    }

    /// A guest, if it is still there.
    pub(super) fn at(&mut self, ticket: Ticket) -> Option<&mut Guest<T>> {
        let place = self.places.get_mut(ticket.place as usize)?;
        place.guest.as_mut().filter(|_| place.generation == ticket.generation)
    }

    /// Takes a guest out, if it is still there.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Guest<T>> {
        self.at(ticket)?;
        let place = &mut self.places[ticket.place as usize];
        let guest = place.guest.take();
        place.generation = place.generation.wrapping_add(1);
        let (before, after) = (place.before, place.after);
        match before {
            NONE => self.oldest = after,
            before => self.places[before as usize].after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.places[after as usize].before = before,
        }
        if self.fresh == ticket.place {
            self.fresh = after;
        }
        self.free.push(ticket.place);
        guest
    }

    fn since(&self, place: u32) -> Option<Nanos> {
        Some(self.places.get(place as usize)?.guest.as_ref()?.since)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// The same by the slow, obvious way: a list, and which of it is fresh.
    #[derive(Default)]
    struct Model(VecDeque<(u32, bool)>);

    #[derive(Clone, Debug)]
    enum Step {
        Add,
        WatchNext,
        RemoveOldest,
        /// Of those that were ever watched, gone or not.
        Remove(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Add),
            2 => Just(Step::WatchNext),
            1 => Just(Step::RemoveOldest),
            3 => (0_usize..64).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn guests_leave_in_any_order_and_are_found_in_theirs(
            max in 1_usize..6,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let mut real = Lingering::new(max);
            let mut model = Model::default();
            let mut tickets: Vec<(Ticket, u32)> = Vec::new();
            for (number, step) in (0_u32..).zip(steps) {
                match step {
                    Step::Add if real.is_full() => {}
                    Step::Add => {
                        real.add(number, u64::from(number));
                        model.0.push_back((number, true));
                    }
                    Step::WatchNext => {
                        let ticket = real.watch_next();
                        let next = model.0.iter_mut().find(|(_, fresh)| *fresh);
                        prop_assert_eq!(ticket.is_some(), next.is_some());
                        if let Some((ticket, next)) = ticket.zip(next) {
                            next.1 = false;
                            let seen = real.at(ticket).map(|guest| guest.socket);
                            prop_assert_eq!(seen, Some(next.0));
                            tickets.push((ticket, next.0));
                        }
                    }
                    Step::RemoveOldest => {
                        let gone = real.remove_oldest().map(|guest| guest.socket);
                        prop_assert_eq!(gone, model.0.pop_front().map(|(number, _)| number));
                    }
                    Step::Remove(which) => {
                        let Some(&(ticket, number)) = tickets.get(which) else { continue };
                        let there = model.0.iter().position(|(other, _)| *other == number);
                        let gone = real.remove(ticket).map(|guest| guest.socket);
                        prop_assert_eq!(gone, there.map(|_| number));
                        there.map(|at| model.0.remove(at));
                    }
                }
                let fresh = model.0.iter().find(|(_, fresh)| *fresh).map(|(n, _)| u64::from(*n));
                prop_assert_eq!(real.fresh_since(), fresh);
                prop_assert_eq!(real.oldest_since(), model.0.front().map(|(n, _)| u64::from(*n)));
                prop_assert_eq!(real.is_empty(), model.0.is_empty());
                prop_assert_eq!(real.is_full(), model.0.len() == max);
            }
        }
    }
}
