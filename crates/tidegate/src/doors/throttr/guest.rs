//! A connection apart from its socket: its card and its subscriptions, and its loop's own list of
//! who is subscribed to what.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::Now;

use super::card::Card;
use super::channels::{EVERYBODY, Event, Member, Subscription};
use super::hall::Hall;
use super::post::Post;
use super::socket::Peer;

/// The most subscriptions of one connection, the two that it is born with included.
pub(super) const SUBSCRIPTIONS_MAX: usize = 1024;

/// What a loop knows of the subscriptions of its own connections.
pub(super) struct Floor {
    /// Where other loops leave events for it.
    pub(super) post: Arc<Post>,
    /// By the channel's number, then by the connection's place.
    channels: HashMap<u64, HashMap<u32, Arc<Member>>>,
}

impl Floor {
    /// Nobody is here yet.
    pub(super) fn new(post: Arc<Post>) -> Self {
        Self { post, channels: HashMap::new() }
    }

    /// The connections of this loop that an event is for, by their places.
    pub(super) fn audience<'a>(
        &'a self,
        event: &'a Event,
    ) -> impl Iterator<Item = (u32, &'a Arc<Member>)> {
        let members = self.channels.get(&event.channel).into_iter().flatten();
        members.filter(|(_, member)| event.is_for(member)).map(|(slot, member)| (*slot, member))
    }

    fn add(&mut self, slot: u32, subscription: &Subscription) {
        let members = self.channels.entry(subscription.channel).or_default();
        members.insert(slot, subscription.member.clone());
    }

    fn remove(&mut self, slot: u32, subscription: &Subscription) {
        let Some(members) = self.channels.get_mut(&subscription.channel) else { return };
        members.remove(&slot);
        if members.is_empty() {
            self.channels.remove(&subscription.channel);
        }
    }
}

/// Why a SUBSCRIBE did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotSubscribed {
    /// It was subscribed before.
    Already,
    /// It has [`SUBSCRIPTIONS_MAX`].
    TooMany,
}

/// One connection in its loop.
pub(super) struct Guest {
    pub(super) card: Arc<Card>,
    /// Its place in the loop.
    slot: u32,
    subscriptions: Vec<Subscription>,
    /// How many of them it asked for: all but everybody's channel and its own.
    chosen: usize,
}

impl Guest {
    /// Enters the hall, subscribed to everybody's channel and to its own.
    pub(super) fn enter(
        peer: Peer,
        slot: u32,
        hall: &Hall,
        floor: &mut Floor,
        now: Now,
    ) -> Result<Self, getrandom::Error> {
        let card = hall.enter(peer, now)?;
        let own = card.own_channel();
        let mut guest = Self { card, slot, subscriptions: Vec::with_capacity(2), chosen: 0 };
        for channel in [EVERYBODY, &own] {
            // A new connection is subscribed to nothing.
            let _ = guest.subscribe(channel, hall, floor, now);
        }
        Ok(guest)
    }

    /// Whether it is subscribed to a channel.
    pub(super) fn is_subscribed(&self, channel: &[u8]) -> bool {
        self.subscriptions.iter().any(|subscription| *subscription.name == *channel)
    }

    /// Subscribes to a channel.
    pub(super) fn subscribe(
        &mut self,
        channel: &[u8],
        hall: &Hall,
        floor: &mut Floor,
        now: Now,
    ) -> Result<(), NotSubscribed> {
        if self.is_subscribed(channel) {
            return Err(NotSubscribed::Already);
        }
        if self.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            return Err(NotSubscribed::TooMany);
        }
        let subscription = hall.channels.subscribe(channel, &self.card, &floor.post, now.unix);
        floor.add(self.slot, &subscription);
        self.subscriptions.push(subscription);
        self.chosen += usize::from(self.is_choice(channel));
        Ok(())
    }

    /// Whether it listens to a channel that it asked for.
    pub(super) fn has_chosen(&self) -> bool {
        self.chosen > 0
    }

    fn is_choice(&self, channel: &[u8]) -> bool {
        channel != EVERYBODY && channel != self.card.own_channel()
    }

    /// Ends a subscription; `false` if there is none.
    pub(super) fn unsubscribe(&mut self, channel: &[u8], hall: &Hall, floor: &mut Floor) -> bool {
        let found = self.subscriptions.iter().position(|known| *known.name == *channel);
        let Some(at) = found else { return false };
        let subscription = self.subscriptions.swap_remove(at);
        hall.channels.unsubscribe([&subscription], &floor.post);
        floor.remove(self.slot, &subscription);
        self.chosen -= usize::from(self.is_choice(channel));
        true
    }

    /// Leaves the hall and all channels.
    pub(super) fn leave(self, hall: &Hall, floor: &mut Floor) {
        hall.channels.unsubscribe(&self.subscriptions, &floor.post);
        for subscription in &self.subscriptions {
            floor.remove(self.slot, subscription);
        }
        hall.leave(&self.card);
    }
}
