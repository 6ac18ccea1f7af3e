//! Channels: the subscriptions of connections, and how an event reaches them.
//!
//! One directory for the process knows every channel and subscription. An event travels once to
//! each loop that has a subscriber of its channel; the loop hands it to its own connections. So
//! publishing costs as much as there are loops, not as there are subscribers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tidegate_core::Nanos;
use tidegate_wire::throttr::reply::ChannelSubscriber;

use super::ThrottrInbox;
use super::connection_stats::ConnectionStats;

/// The channel that every connection is subscribed to when it comes.
pub(super) const EVERYBODY: &[u8] = b"*";

/// What was published.
pub(super) struct ChannelEvent {
    /// The channel, by number: its name may be used again by a later one.
    pub(super) channel: u64,
    /// The channel's name.
    pub(super) name: Arc<[u8]>,
    pub(super) payload: Box<[u8]>,
    /// The connection that published it, which had it at once.
    pub(super) from: u64,
    /// Subscriptions that are younger than this do not get it.
    moment: u64,
    figures: Arc<Figures>,
}

impl ChannelEvent {
    /// Bytes that it takes while it waits.
    pub(super) fn bytes(&self) -> usize {
        self.payload.len() + self.name.len() + size_of::<Self>()
    }

    /// Whether it was published after this subscription began.
    pub(super) fn is_for(&self, member: &Member) -> bool {
        member.since < self.moment && member.stats.number != self.from
    }

    /// Counts that a subscriber got it.
    pub(super) fn got_by(&self, member: &Member) {
        let bytes = self.payload.len() as u64;
        self.figures.got.fetch_add(bytes, Relaxed);
        member.figures.got.fetch_add(bytes, Relaxed);
        member.stats.has_received(self.payload.len());
    }
}

/// Bytes of payloads.
#[derive(Default)]
struct Figures {
    /// That subscribers were sent.
    got: AtomicU64,
    /// That were published.
    published: AtomicU64,
}

/// One subscription.
pub(super) struct Member {
    pub(super) stats: Arc<ConnectionStats>,
    subscribed_at: Nanos,
    since: u64,
    figures: Figures,
}

struct Channel {
    number: u64,
    name: Arc<[u8]>,
    figures: Arc<Figures>,
    /// By the number of the connection, so that the oldest comes first.
    members: BTreeMap<u64, Arc<Member>>,
    /// The loops of the members, and how many of them each has.
    loops: Vec<(Arc<ThrottrInbox>, usize)>,
}

/// What a subscription is to the connection that has it.
pub(super) struct ChannelSubscription {
    /// The channel's name.
    pub(super) name: Arc<[u8]>,
    /// The channel's number.
    pub(super) channel: u64,
    pub(super) member: Arc<Member>,
}

/// What became of a publication.
pub(super) struct Published {
    /// Whether a connection is subscribed.
    pub(super) somebody: bool,
    /// Subscribers whose loop had no room for it.
    pub(super) lost: usize,
}

/// A channel as CHANNELS tells it.
pub(super) struct ChannelFigures {
    pub(super) name: Arc<[u8]>,
    pub(super) got_bytes: u64,
    pub(super) published_bytes: u64,
    pub(super) connections: u64,
}

/// All channels of the process.
#[derive(Default)]
pub(super) struct Channels {
    directory: Mutex<Directory>,
}

#[derive(Default)]
struct Directory {
    by_name: HashMap<Arc<[u8]>, Channel>,
    /// Counts channels, subscriptions and events, to tell which came first.
    moment: u64,
    subscriptions: usize,
}

impl Directory {
    fn next(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }
}

impl Channels {
    /// Subscribes a connection, which lives in the loop that `inbox` belongs to, to a channel that
    /// it is not subscribed to yet.
    pub(super) fn subscribe(
        &self,
        name: &[u8],
        stats: &Arc<ConnectionStats>,
        inbox: &Arc<ThrottrInbox>,
        now: Nanos,
    ) -> ChannelSubscription {
        let mut directory = self.directory.lock();
        let since = directory.next();
        directory.subscriptions += 1;
        let name: Arc<[u8]> = match directory.by_name.get_key_value(name) {
            Some((known, _)) => known.clone(),
            None => name.into(),
        };
        let channel = directory.by_name.entry(name.clone()).or_insert_with(|| Channel {
            number: since,
            name: name.clone(),
            figures: Arc::default(),
            members: BTreeMap::new(),
            loops: Vec::new(),
        });
        let member = Arc::new(Member {
            stats: stats.clone(),
            subscribed_at: now,
            since,
            figures: Figures::default(),
        });
        channel.members.insert(stats.number, member.clone());
        match channel.loops.iter_mut().find(|(known, _)| Arc::ptr_eq(known, inbox)) {
            Some((_, members)) => *members += 1,
            None => channel.loops.push((inbox.clone(), 1)),
        }
        ChannelSubscription { name, channel: channel.number, member }
    }

    /// Ends subscriptions of one connection. A channel without subscribers is no more.
    pub(super) fn unsubscribe<'a>(
        &self,
        subscriptions: impl IntoIterator<Item = &'a ChannelSubscription>,
        inbox: &Arc<ThrottrInbox>,
    ) {
        let mut directory = self.directory.lock();
        for subscription in subscriptions {
            let Some(channel) = directory.by_name.get_mut(&subscription.name) else { continue };
            if channel.members.remove(&subscription.member.stats.number).is_none() {
                continue;
            }
            if let Some(at) = channel.loops.iter().position(|(known, _)| Arc::ptr_eq(known, inbox))
            {
                channel.loops[at].1 -= 1;
                if channel.loops[at].1 == 0 {
                    channel.loops.swap_remove(at);
                }
            }
            if channel.members.is_empty() {
                directory.by_name.remove(&subscription.name);
            }
            directory.subscriptions -= 1;
        }
    }

    /// Sends a payload to every loop that has a subscriber other than the publisher. The
    /// publisher's own copy is its loop's business.
    pub(super) fn publish(&self, name: &[u8], payload: &[u8], from: &ConnectionStats) -> Published {
        let mut directory = self.directory.lock();
        let moment = directory.next();
        let Some(channel) = directory.by_name.get(name) else {
            return Published { somebody: false, lost: 0 };
        };
        let bytes = payload.len() as u64;
        channel.figures.published.fetch_add(bytes, Relaxed);
        let own = channel.members.get(&from.number);
        if let Some(member) = own {
            member.figures.published.fetch_add(bytes, Relaxed);
            member.figures.got.fetch_add(bytes, Relaxed);
            channel.figures.got.fetch_add(bytes, Relaxed);
        }
        if channel.members.len() == usize::from(own.is_some()) {
            return Published { somebody: true, lost: 0 };
        }
        let event = Arc::new(ChannelEvent {
            channel: channel.number,
            name: channel.name.clone(),
            payload: payload.into(),
            from: from.number,
            moment,
            figures: channel.figures.clone(),
        });
        let lost =
            channel.loops.iter().filter(|(inbox, _)| !inbox.send(event.clone(), event.bytes()));
        Published { somebody: true, lost: lost.map(|(_, members)| members).sum() }
    }

    /// How many subscriptions and channels there are.
    pub(super) fn size(&self) -> (usize, usize) {
        let directory = self.directory.lock();
        (directory.subscriptions, directory.by_name.len())
    }

    /// Every channel, the oldest first.
    pub(super) fn all(&self) -> Vec<ChannelFigures> {
        let directory = self.directory.lock();
        let mut channels: Vec<&Channel> = directory.by_name.values().collect();
        channels.sort_unstable_by_key(|channel| channel.number);
        let told = channels.into_iter().map(|channel| ChannelFigures {
            name: channel.name.clone(),
            got_bytes: channel.figures.got.load(Relaxed),
            published_bytes: channel.figures.published.load(Relaxed),
            connections: channel.members.len() as u64,
        });
        told.collect()
    }

    /// The subscribers of a channel; `None` if there is no such channel.
    pub(super) fn one(&self, name: &[u8]) -> Option<Vec<ChannelSubscriber>> {
        let directory = self.directory.lock();
        let members = directory.by_name.get(name)?.members.values();
        let told = members.map(|member| ChannelSubscriber {
            id: member.stats.id,
            subscribed_at_ns: member.subscribed_at,
            read_bytes: member.figures.got.load(Relaxed),
            written_bytes: member.figures.published.load(Relaxed),
        });
        Some(told.collect())
    }
}
