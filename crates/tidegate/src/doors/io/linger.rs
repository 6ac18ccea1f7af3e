//! Connections whose last reply was sent and whose client has not left yet, in the order in which
//! they began to linger.
//!
//! A connection is *fresh* until it was looked at once; from then on it is *watched*. The oldest
//! are in front, so that one whose time is over, or that must make room, is found at once. The
//! list knows places of connections, and nothing of sockets.

use tidegate_core::Nanos;

/// No place.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    is_listed: bool,
    since: Nanos,
    before: u32,
    after: u32,
}

const UNLISTED: Link = Link { is_listed: false, since: 0, before: NONE, after: NONE };

/// All that linger at one loop, by their places.
pub(super) struct Lingering {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    /// The oldest that is fresh; all behind it are, too.
    fresh: u32,
    count: usize,
    max: usize,
}

impl Lingering {
    /// Room for `max` connections.
    pub(super) fn new(max: usize) -> Self {
        let links = Vec::new();
        Self { links, oldest: NONE, newest: NONE, fresh: NONE, count: 0, max: max.max(1) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.count >= self.max
    }

    /// Adds the connection at a place, which is fresh.
    pub(super) fn add(&mut self, slot: u32, since: Nanos) {
        let index = slot as usize;
        if index >= self.links.len() {
            self.links.resize(index + 1, UNLISTED);
        }
        self.links[index] = Link { is_listed: true, since, before: self.newest, after: NONE };
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.links[newest as usize].after = slot,
        }
        self.newest = slot;
        if self.fresh == NONE {
            self.fresh = slot;
        }
        self.count += 1;
    }

    /// Since when the oldest fresh connection has lingered.
    pub(super) fn fresh_since(&self) -> Option<Nanos> {
        self.link(self.fresh).map(|link| link.since)
    }

    /// The oldest fresh connection, which is watched from now on.
    pub(super) fn watch_next(&mut self) -> Option<u32> {
        let slot = self.fresh;
        self.fresh = self.link(slot)?.after;
        Some(slot)
    }

    /// The connection that has lingered longest, and since when.
    pub(super) fn oldest(&self) -> Option<(u32, Nanos)> {
        self.link(self.oldest).map(|link| (self.oldest, link.since))
    }

    /// Takes the connection at a place out, if it is listed.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(&Link { before, after, .. }) = self.link(slot) else { return };
        self.links[slot as usize] = UNLISTED;
        match before {
            NONE => self.oldest = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.links[after as usize].before = before,
        }
        if self.fresh == slot {
            self.fresh = after;
        }
        self.count -= 1;
    }

    fn link(&self, slot: u32) -> Option<&Link> {
        self.links.get(slot as usize).filter(|link| link.is_listed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// The same by the slow, obvious way: places, since when, and which are fresh.
    #[derive(Default)]
    struct Model(VecDeque<(u32, Nanos, bool)>);

    #[derive(Clone, Debug)]
    enum Step {
        Add(u32),
        WatchNext,
        RemoveOldest,
        /// Whether or not it is listed.
        Remove(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u32..8).prop_map(Step::Add),
            2 => Just(Step::WatchNext),
            1 => Just(Step::RemoveOldest),
            3 => (0_u32..10).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn connections_leave_in_any_order_and_are_found_in_theirs(
            max in 1_usize..6,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let mut real = Lingering::new(max);
            let mut model = Model::default();
            for (now, step) in (0_u64..).zip(steps) {
                match step {
                    Step::Add(slot) => {
                        let listed = model.0.iter().any(|(other, ..)| *other == slot);
                        if !real.is_full() && !listed {
                            real.add(slot, now);
                            model.0.push_back((slot, now, true));
                        }
                    }
                    Step::WatchNext => {
                        let next = model.0.iter_mut().find(|(.., fresh)| *fresh);
                        let next = next.map(|next| {
                            next.2 = false;
                            next.0
                        });
                        prop_assert_eq!(real.watch_next(), next);
                    }
                    Step::RemoveOldest => {
                        if let Some((slot, _)) = real.oldest() {
                            real.remove(slot);
                        }
                        model.0.pop_front();
                    }
                    Step::Remove(slot) => {
                        real.remove(slot);
                        model.0.retain(|(other, ..)| *other != slot);
                    }
                }
                let fresh = model.0.iter().find(|(.., fresh)| *fresh);
                prop_assert_eq!(real.fresh_since(), fresh.map(|(_, since, _)| *since));
                let oldest = model.0.front().map(|(slot, since, _)| (*slot, *since));
                prop_assert_eq!(real.oldest(), oldest);
                prop_assert_eq!(real.is_empty(), model.0.is_empty());
                prop_assert_eq!(real.is_full(), model.0.len() == max);
            }
        }
    }
}
