//! Subscriptions to channels, each with a bounded queue of events.
//!
//! A subscription that does not keep up loses events, and the loss is counted; it never holds up
//! the replies behind them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender};

use super::driver::ClientCommand;

/// The most subscriptions of one client.
pub(super) const SUBSCRIPTIONS_MAX: usize = 1024;

/// What was published to a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelEvent {
    /// The channel's name.
    pub channel: Arc<[u8]>,
    /// The payload.
    pub payload: Arc<[u8]>,
}

/// The events of one channel, from [`subscribe`](super::ThrottrClient::subscribe).
#[derive(Debug)]
pub struct ChannelSubscription {
    events: Receiver<ChannelEvent>,
    counts: Arc<Counts>,
    /// Keeps the connection, and tells the driver when this is dropped.
    commands: Sender<ClientCommand>,
}

#[derive(Debug, Default)]
struct Counts {
    lost: AtomicU64,
    interruptions: AtomicU64,
}

impl ChannelSubscription {
    pub(super) fn new(
        events: Receiver<ChannelEvent>,
        sender: &SubscriptionSender,
        commands: Sender<ClientCommand>,
    ) -> Self {
        Self { events, counts: Arc::clone(&sender.counts), commands }
    }

    /// The next event. `None` says that the client's runtime has ended.
    pub async fn next(&mut self) -> Option<ChannelEvent> {
        self.events.recv().await
    }

    /// How many events were lost because they were not taken in time.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// How often the connection was lost. What was published meanwhile is not counted.
    #[must_use]
    pub fn interruptions(&self) -> u64 {
        self.counts.interruptions.load(Ordering::Relaxed)
    }
}

impl Drop for ChannelSubscription {
    fn drop(&mut self) {
        self.events.close();
        // If the queue is full, the driver notices with the next event of the channel.
        let _ = self.commands.try_send(ClientCommand::Sweep);
    }
}

/// The sending end of a subscription, kept by the driver.
#[derive(Debug)]
pub(super) struct SubscriptionSender {
    events: Sender<ChannelEvent>,
    counts: Arc<Counts>,
}

impl SubscriptionSender {
    pub(super) fn new(events: Sender<ChannelEvent>) -> Self {
        Self { events, counts: Arc::default() }
    }
}

/// The subscriptions of one client, by channel.
#[derive(Debug, Default)]
pub(super) struct SubscriptionTable {
    channels: HashMap<Arc<[u8]>, Vec<SubscriptionSender>>,
    count: usize,
    /// Whether an event met a subscription that was dropped.
    pub(super) stale: bool,
}

impl SubscriptionTable {
    /// `false` if there are too many.
    pub(super) fn add(&mut self, channel: Arc<[u8]>, sender: SubscriptionSender) -> bool {
        if self.count >= SUBSCRIPTIONS_MAX {
            return false;
        }
        self.count += 1;
        self.channels.entry(channel).or_default().push(sender);
        true
    }

    /// The channels that have a subscription.
    pub(super) fn channels(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        self.channels.keys()
    }

    pub(super) fn deliver(&mut self, channel: &[u8], payload: &[u8]) {
        // A server subscribes each connection to channels that this client did not ask for.
        let Some((channel, subscriptions)) = self.channels.get_key_value(channel) else { return };
        let event = ChannelEvent { channel: Arc::clone(channel), payload: payload.into() };
        for sender in subscriptions {
            match sender.events.try_send(event.clone()) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => {
                    sender.counts.lost.fetch_add(1, Ordering::Relaxed);
                }
                Err(TrySendError::Closed(_)) => self.stale = true,
            }
        }
    }

    /// The connection is gone.
    pub(super) fn interrupt(&self) {
        for sender in self.channels.values().flatten() {
            sender.counts.interruptions.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes the subscriptions that were dropped, and returns the channels that have none left.
    pub(super) fn sweep(&mut self) -> Vec<Arc<[u8]>> {
        self.stale = false;
        for subscriptions in self.channels.values_mut() {
            subscriptions.retain(|sender| !sender.events.is_closed());
        }
        let empty = self.channels.extract_if(|_, subscriptions| subscriptions.is_empty());
        let silent = empty.map(|(channel, _)| channel).collect();
        self.count = self.channels.values().map(Vec::len).sum();
        silent
    }
}
