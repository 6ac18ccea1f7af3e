//! Subscriptions: who listens to which channel, with a bounded queue each.
//!
//! A listener that does not keep up loses events, and the loss is counted; it never holds up the
//! replies behind them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender};

use super::driver::Command;

/// The most subscriptions of one client.
pub(super) const SUBSCRIPTIONS_MAX: usize = 1024;

/// What was published to a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The channel's name.
    pub channel: Arc<[u8]>,
    /// The payload.
    pub payload: Arc<[u8]>,
}

/// The events of one channel, from [`subscribe`](super::ThrottrClient::subscribe).
#[derive(Debug)]
pub struct Subscription {
    events: Receiver<Event>,
    counts: Arc<Counts>,
    /// Keeps the connection, and tells the driver when this is dropped.
    commands: Sender<Command>,
}

#[derive(Debug, Default)]
struct Counts {
    lost: AtomicU64,
    interruptions: AtomicU64,
}

impl Subscription {
    pub(super) fn new(
        events: Receiver<Event>,
        listener: &Listener,
        commands: Sender<Command>,
    ) -> Self {
        Self { events, counts: Arc::clone(&listener.counts), commands }
    }

    /// The next event. `None` says that the client's runtime has ended.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// How many events were lost because nobody took them in time.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// How often the connection was lost. What was published meanwhile nobody can count.
    #[must_use]
    pub fn interruptions(&self) -> u64 {
        self.counts.interruptions.load(Ordering::Relaxed)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.events.close();
        // If there is no place for the word now, the next event of the channel will tell.
        let _ = self.commands.try_send(Command::Sweep);
    }
}

/// The driver's end of a subscription.
#[derive(Debug)]
pub(super) struct Listener {
    events: Sender<Event>,
    counts: Arc<Counts>,
}

impl Listener {
    pub(super) fn new(events: Sender<Event>) -> Self {
        Self { events, counts: Arc::default() }
    }
}

/// Everybody who listens.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    channels: HashMap<Arc<[u8]>, Vec<Listener>>,
    count: usize,
    /// Whether an event met a listener that is gone.
    pub(super) stale: bool,
}

impl Listeners {
    /// `false` if there are too many.
    pub(super) fn add(&mut self, channel: Arc<[u8]>, listener: Listener) -> bool {
        if self.count >= SUBSCRIPTIONS_MAX {
            return false;
        }
        self.count += 1;
        self.channels.entry(channel).or_default().push(listener);
        true
    }

    /// The channels that somebody listens to.
    pub(super) fn channels(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        self.channels.keys()
    }

    pub(super) fn deliver(&mut self, channel: &[u8], payload: &[u8]) {
        // A server subscribes each connection to channels of which nobody here may know.
        let Some((channel, listeners)) = self.channels.get_key_value(channel) else { return };
        let event = Event { channel: Arc::clone(channel), payload: payload.into() };
        for listener in listeners {
            match listener.events.try_send(event.clone()) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => {
                    listener.counts.lost.fetch_add(1, Ordering::Relaxed);
                }
                Err(TrySendError::Closed(_)) => self.stale = true,
            }
        }
    }

    /// The connection is gone.
    pub(super) fn interrupt(&self) {
        for listener in self.channels.values().flatten() {
            listener.counts.interruptions.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets the listeners that are gone, and returns the channels that nobody listens to any
    /// more.
    pub(super) fn sweep(&mut self) -> Vec<Arc<[u8]>> {
        self.stale = false;
        for listeners in self.channels.values_mut() {
            listeners.retain(|listener| !listener.events.is_closed());
        }
        let empty = self.channels.extract_if(|_, listeners| listeners.is_empty());
        let silent = empty.map(|(channel, _)| channel).collect();
        self.count = self.channels.values().map(Vec::len).sum();
        silent
    }
}
