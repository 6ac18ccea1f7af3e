//! What the door keeps for one connection: its figures and subscriptions; and what a loop knows of
//! the subscriptions of its connections.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::{Nanos, Now};

use super::ThrottrInbox;
use super::channels::{ChannelEvent, ChannelSubscription, EVERYBODY, Member};
use super::connection_stats::ConnectionStats;
use super::permits::Permit;
use super::state::ThrottrState;
use crate::doors::io::listener::Peer;

/// The most subscriptions of one connection, the two that it is born with included.
pub(super) const SUBSCRIPTIONS_MAX: usize = 1024;

/// What a loop knows of the subscriptions of its own connections.
pub(super) struct LocalSubscriptions {
    /// Where other loops leave events for it.
    pub(super) inbox: Arc<ThrottrInbox>,
    /// By the channel's number, then by the connection's place.
    channels: HashMap<u64, HashMap<u32, Arc<Member>>>,
}

impl LocalSubscriptions {
    /// None yet.
    pub(super) fn new(inbox: Arc<ThrottrInbox>) -> Self {
        Self { inbox, channels: HashMap::new() }
    }

    /// The connections of this loop that an event is for, by their places.
    pub(super) fn audience<'a>(
        &'a self,
        event: &'a ChannelEvent,
    ) -> impl Iterator<Item = (u32, &'a Arc<Member>)> {
        let members = self.channels.get(&event.channel).into_iter().flatten();
        members.filter(|(_, member)| event.is_for(member)).map(|(slot, member)| (*slot, member))
    }

    fn add(&mut self, slot: u32, subscription: &ChannelSubscription) {
        let members = self.channels.entry(subscription.channel).or_default();
        members.insert(slot, subscription.member.clone());
    }

    fn remove(&mut self, slot: u32, subscription: &ChannelSubscription) {
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

/// An answer about the whole server that is being sent.
pub(super) struct Listing {
    pub(super) permit: Permit,
    /// When it came.
    pub(super) answered_at: Nanos,
}

/// One connection in its loop.
pub(super) struct Session {
    pub(super) stats: Arc<ConnectionStats>,
    /// Its place in the loop.
    slot: u32,
    subscriptions: Vec<ChannelSubscription>,
    /// How many of them it asked for: all but everybody's channel and its own.
    chosen: usize,
    pub(super) listing: Option<Listing>,
}

impl Session {
    /// A connection that has just come, subscribed to everybody's channel and to its own.
    pub(super) fn open(
        peer: Peer,
        slot: u32,
        state: &ThrottrState,
        local: &mut LocalSubscriptions,
        now: Now,
    ) -> Result<Self, getrandom::Error> {
        let stats = state.enter(peer, now)?;
        let own = stats.own_channel();
        let subscriptions = Vec::with_capacity(2);
        let mut session = Self { stats, slot, subscriptions, chosen: 0, listing: None };
        for channel in [EVERYBODY, &own] {
            // A new connection is subscribed to nothing.
            let _ = session.subscribe(channel, state, local, now);
        }
        Ok(session)
    }

    /// Whether it is subscribed to a channel.
    pub(super) fn is_subscribed(&self, channel: &[u8]) -> bool {
        self.subscriptions.iter().any(|subscription| *subscription.name == *channel)
    }

    /// Subscribes to a channel.
    pub(super) fn subscribe(
        &mut self,
        channel: &[u8],
        state: &ThrottrState,
        local: &mut LocalSubscriptions,
        now: Now,
    ) -> Result<(), NotSubscribed> {
        if self.is_subscribed(channel) {
            return Err(NotSubscribed::Already);
        }
        if self.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            return Err(NotSubscribed::TooMany);
        }
        let subscription = state.channels.subscribe(channel, &self.stats, &local.inbox, now.unix);
        local.add(self.slot, &subscription);
        self.subscriptions.push(subscription);
        self.chosen += usize::from(self.is_choice(channel));
        Ok(())
    }

    /// Whether it listens to a channel that it asked for.
    pub(super) fn has_chosen(&self) -> bool {
        self.chosen > 0
    }

    fn is_choice(&self, channel: &[u8]) -> bool {
        channel != EVERYBODY && channel != self.stats.own_channel()
    }

    /// Ends a subscription; `false` if there is none.
    pub(super) fn unsubscribe(
        &mut self,
        channel: &[u8],
        state: &ThrottrState,
        local: &mut LocalSubscriptions,
    ) -> bool {
        let found = self.subscriptions.iter().position(|known| *known.name == *channel);
        let Some(at) = found else { return false };
        let subscription = self.subscriptions.swap_remove(at);
        state.channels.unsubscribe([&subscription], &local.inbox);
        local.remove(self.slot, &subscription);
        self.chosen -= usize::from(self.is_choice(channel));
        true
    }

    /// The connection is over: leaves all channels.
    pub(super) fn close(self, state: &ThrottrState, local: &mut LocalSubscriptions) {
        state.channels.unsubscribe(&self.subscriptions, &local.inbox);
        for subscription in &self.subscriptions {
            local.remove(self.slot, subscription);
        }
        state.leave(&self.stats);
    }
}
