//! How many connections a door may have, and which one gives way to a new one.
//!
//! Every accept loop of a TCP door asks its door's [`ConnectionLimits`] for a [`ConnectionPlace`]
//! and keeps it for as long as the connection lives. The owner of a connection says whether it is
//! idle: no request has begun, no reply is owed, nothing is waited for, no subscription and no
//! tunnel. When the door is full, the connection that has been idle for longest loses its place to
//! the new one, if that is over a second; its owner is woken and closes it. Where descriptors are
//! short, the same holds for the connections of all doors.
//!
//! An owner says busy or idle with an atomic operation of its own, and no lock. The door's lock is
//! taken when a connection comes, goes, or gives way. Nothing here touches a socket.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tidegate_core::Nanos;
use tidegate_core::time::{MILLISECOND, SECOND};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::descriptors::Descriptors;
use super::sources::{SourceShare, Sources};
use crate::clock::Clock;
use crate::doors::Gate;
use crate::metrics::Door;
use crate::settings::listen::Allow;

/// Owners need not say more exactly than this since when a connection has been idle.
pub(crate) const GRAIN: Nanos = 100 * MILLISECOND;
/// For how long a connection must have been idle to give way: over a second, whatever the grain.
const IDLE_MIN: Nanos = SECOND + GRAIN;
/// All connections are looked through at most this often.
const LOOK_EVERY_MIN: Nanos = 10 * MILLISECOND;
/// Connections that one look finds, for this new connection and for those after it.
const FOUND_MAX: usize = 256;
/// Connections that have given way and are not closed yet, when descriptors are short.
const LEAVING_MAX: usize = 16;

/// The state of a connection that is not idle.
const BUSY: u64 = u64::MAX;
/// The state of a connection that has lost its place.
const GAVE_WAY: u64 = u64::MAX - 1;

/// What a door's table says about its connections.
#[derive(Clone, Debug)]
pub(crate) struct DoorLimits {
    pub(crate) connections: u32,
    /// Absent: the usual share of `connections`, and some are exempt.
    pub(crate) per_source: Option<u32>,
    /// Proxies that speak for many clients.
    pub(crate) trusted: Allow,
    /// Whether the last descriptors are for others; administration may take most of them.
    pub(crate) keeps_descriptors_back: bool,
    /// Whether an idle connection gives way to a newcomer when the door is full. Otherwise the
    /// newcomer is refused.
    pub(crate) idle_gives_way: bool,
}

/// The connections of one door.
pub(crate) struct ConnectionLimits {
    door: Door,
    max: usize,
    idle_gives_way: bool,
    sources: Arc<Sources>,
    descriptors: Descriptors,
    /// Whether the log already says that descriptors are short.
    told_short: AtomicBool,
    all: Arc<AllDoors>,
    clock: Clock,
    table: Mutex<Table>,
    /// Notified of every place that is given back.
    freed: Notify,
    /// Notified when the last place is given back.
    emptied: Notify,
}

#[derive(Default)]
struct Table {
    entries: Slab<Entry>,
    /// Idle connections, the one that has been idle for longest last. Whatever became idle later
    /// than the look that found them has been idle for less time than each of them.
    found: Vec<(Nanos, usize)>,
    /// When the next look can find a connection.
    look_at: Nanos,
    /// Connections that have given way and are not closed yet.
    leaving: usize,
}

struct Entry {
    life: Arc<Life>,
    _share: Option<SourceShare>,
}

/// What the owner of a connection and its door share.
struct Life {
    /// [`BUSY`], [`GAVE_WAY`], or since when it has been idle.
    state: AtomicU64,
    owner: Mutex<Option<Waker>>,
}

/// The right of one connection to be there; given back when it is dropped.
pub(crate) struct ConnectionPlace {
    limits: Arc<ConnectionLimits>,
    life: Arc<Life>,
    key: usize,
    /// If its descriptor has one of the last numbers.
    high: Option<High>,
}

/// A connection whose descriptor has one of the last numbers, until this is dropped.
pub(crate) struct High(Arc<AllDoors>);

impl Drop for High {
    fn drop(&mut self) {
        self.0.high.fetch_sub(1, Relaxed);
    }
}

/// What lets a connection be there.
pub(crate) enum ConnectionAdmission {
    Place(ConnectionPlace),
    /// It ends with its first answer and takes no place.
    Brief {
        _share: Option<SourceShare>,
        _high: Option<High>,
    },
}

impl ConnectionAdmission {
    /// Since when it has been idle, if it has a place and is.
    pub(crate) fn idle_since(&self) -> Option<Nanos> {
        match self {
            ConnectionAdmission::Place(place) => place.idle_since(),
            ConnectionAdmission::Brief { .. } => None,
        }
    }
}

/// Why a new connection gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceRefused {
    /// Its source has as many as it may have.
    TooManyFromSource,
    /// The door is full, and no connection can give way before this moment.
    Full(Nanos),
    /// The process is short of descriptors, and no connection can give way before this moment.
    Short(Nanos),
    /// The connection took a descriptor that is kept back.
    Spent,
}

impl PlaceRefused {
    /// Under which reason it counts as bad input.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            PlaceRefused::TooManyFromSource => "too_many_from_source",
            PlaceRefused::Full(_) => "too_many_connections",
            PlaceRefused::Short(_) | PlaceRefused::Spent => "no_descriptors",
        }
    }
}

impl ConnectionLimits {
    /// A door without connections, among the other doors of the process.
    pub(crate) fn of(door: Door, bounds: DoorLimits, gate: &Gate) -> Arc<Self> {
        Self::new(door, bounds, &AllDoors::of(gate), gate.clock().clone())
    }

    /// A door without connections.
    pub(crate) fn new(
        door: Door,
        bounds: DoorLimits,
        all: &Arc<AllDoors>,
        clock: Clock,
    ) -> Arc<Self> {
        let limits = Arc::new(Self {
            door,
            max: bounds.connections as usize,
            idle_gives_way: bounds.idle_gives_way,
            sources: Sources::new(bounds.connections, bounds.per_source, bounds.trusted),
            descriptors: match bounds.keeps_descriptors_back {
                true => Descriptors::of_process(),
                false => Descriptors::for_administration(),
            },
            told_short: AtomicBool::new(false),
            all: all.clone(),
            clock,
            table: Mutex::default(),
            freed: Notify::new(),
            emptied: Notify::new(),
        });
        all.add(&limits);
        limits
    }

    /// A place for a connection that was just accepted, from `address` or from a Unix socket.
    pub(crate) fn admit(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        socket: &impl AsFd,
    ) -> Result<ConnectionPlace, PlaceRefused> {
        let short = self.descriptors.are_short(socket, self.all.high.load(Relaxed));
        let place = self.place(address, short);
        if !short {
            self.told_short.store(false, Relaxed);
        } else if matches!(place, Err(PlaceRefused::Short(_)))
            && !self.told_short.swap(true, Relaxed)
        {
            tracing::warn!(door = self.door.name(), "cannot accept: too few file descriptors");
        }
        if short && self.descriptors.are_spent(socket) {
            // The connection that gave way leaves its descriptor to the next new one.
            return Err(PlaceRefused::Spent);
        }
        place.map(|mut place| {
            place.high = self.count_high(socket);
            place
        })
    }

    fn count_high(&self, socket: &impl AsFd) -> Option<High> {
        self.descriptors.is_high(socket).then(|| {
            self.all.high.fetch_add(1, Relaxed);
            High(self.all.clone())
        })
    }

    /// Lets in a connection that ends with its first answer: it is counted by source and needs its
    /// descriptor for a moment, so it is kept unless that is one of the last. `make_room` closes
    /// another connection, if it can.
    pub(crate) fn admit_brief(
        &self,
        address: Option<IpAddr>,
        socket: &impl AsFd,
        make_room: impl FnOnce() -> bool,
    ) -> Result<ConnectionAdmission, PlaceRefused> {
        let high = self.all.high.load(Relaxed);
        let short = self.descriptors.are_short(socket, high) && !make_room();
        let share = self.sources.enter(address).map_err(|_| PlaceRefused::TooManyFromSource)?;
        if short
            && !self.all.let_one_go(self.clock.now().mono)
            && self.descriptors.are_spent(socket)
        {
            return Err(PlaceRefused::Spent);
        }
        let high = self.count_high(socket);
        Ok(ConnectionAdmission::Brief { _share: share, _high: high })
    }

    /// As [`Self::admit`], but waits while the door is full.
    pub(crate) async fn wait_for_place(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        socket: &impl AsFd,
    ) -> Result<ConnectionPlace, PlaceRefused> {
        loop {
            match self.admit(address, socket) {
                Err(PlaceRefused::Full(again_at) | PlaceRefused::Short(again_at)) => {
                    let span = again_at.saturating_sub(self.clock.now().mono);
                    let _ = timeout(Duration::from_nanos(span), self.freed.notified()).await;
                }
                admitted => return admitted,
            }
        }
    }

    /// Waits until there is no connection. At most one task may wait for that.
    pub(crate) async fn wait_until_empty(&self) {
        while !self.table.lock().entries.is_empty() {
            self.emptied.notified().await;
        }
    }

    fn place(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        short: bool,
    ) -> Result<ConnectionPlace, PlaceRefused> {
        let share = self.sources.enter(address).map_err(|_| PlaceRefused::TooManyFromSource)?;
        let now = self.clock.now().mono;
        let life = Arc::new(Life { state: AtomicU64::new(now), owner: Mutex::default() });
        if short && !self.let_one_go(now) && !self.all.let_one_go(now) {
            return Err(PlaceRefused::Short(now + GRAIN));
        }
        let mut leaves = None;
        let mut table = self.table.lock();
        if table.entries.len() >= self.max {
            leaves = if self.idle_gives_way { table.give_way(now) } else { None };
            if leaves.is_none() {
                return Err(PlaceRefused::Full(table.look_at));
            }
        }
        let key = table.entries.insert(Entry { life: life.clone(), _share: share });
        drop(table);
        if let Some(entry) = leaves {
            entry.life.wake();
        }
        Ok(ConnectionPlace { limits: self.clone(), life, key, high: None })
    }

    /// Lets a connection give way for its descriptor alone; `false` if none can.
    fn let_one_go(&self, now: Nanos) -> bool {
        let mut table = self.table.lock();
        let leaves = if table.leaving < LEAVING_MAX { table.give_way(now) } else { None };
        drop(table);
        leaves.is_some_and(|entry| {
            entry.life.wake();
            true
        })
    }
}

/// The doors of a process whose connections may give way where descriptors are short. They share
/// the descriptors, so many clients of one door must not close the others.
#[derive(Default)]
pub(crate) struct AllDoors {
    doors: Mutex<Vec<Weak<ConnectionLimits>>>,
    /// Connections whose descriptors have one of the last numbers.
    high: AtomicUsize,
}

impl AllDoors {
    /// Those of the process.
    pub(crate) fn of(gate: &Gate) -> Arc<Self> {
        gate.shared.part(Arc::default)
    }

    fn add(&self, limits: &Arc<ConnectionLimits>) {
        let mut doors = self.doors.lock();
        doors.retain(|door| door.strong_count() > 0);
        doors.push(Arc::downgrade(limits));
    }

    /// How many connections of a door have places, those in a TLS handshake too.
    pub(crate) fn connections(&self, door: Door) -> usize {
        let doors: Vec<_> = self.doors.lock().iter().filter_map(Weak::upgrade).collect();
        let of_door = doors.iter().filter(|limits| limits.door == door);
        of_door.map(|limits| limits.table.lock().entries.len()).sum()
    }

    /// Lets an idle connection of some door give way; `false` if none can.
    pub(crate) fn let_one_go(&self, now: Nanos) -> bool {
        // Not under the lock: a reference taken here may be the last, and drops a door's limits.
        let doors: Vec<_> = self.doors.lock().iter().filter_map(Weak::upgrade).collect();
        doors.iter().any(|door| door.let_one_go(now))
    }
}

impl Table {
    /// Takes the place of the connection that has been idle for longest, if that is long enough.
    fn give_way(&mut self, now: Nanos) -> Option<Entry> {
        loop {
            while let Some((since, key)) = self.found.pop() {
                let idle = self.entries.get(key).is_some_and(|entry| entry.life.gives_way(since));
                if idle {
                    self.leaving += 1;
                    return self.entries.try_remove(key);
                }
            }
            if now < self.look_at {
                return None;
            }
            self.look(now);
        }
    }

    /// Looks for connections that have been idle for long enough.
    fn look(&mut self, now: Nanos) {
        // A connection that becomes idle after this look has not been idle for long enough before.
        let mut next = now + IDLE_MIN;
        for (key, entry) in &self.entries {
            let Some(since) = entry.life.idle_since() else { continue };
            if since + IDLE_MIN <= now {
                self.found.push((since, key));
            } else {
                next = next.min(since + IDLE_MIN);
            }
        }
        if self.found.len() > FOUND_MAX {
            self.found.select_nth_unstable(FOUND_MAX - 1);
            self.found.truncate(FOUND_MAX);
            next = now;
        }
        self.found.sort_unstable_by(|one, other| other.cmp(one));
        self.look_at = next.max(now + LOOK_EVERY_MIN);
    }
}

impl Life {
    fn idle_since(&self) -> Option<Nanos> {
        Some(self.state.load(Acquire)).filter(|state| *state < GAVE_WAY)
    }

    /// Takes the place of a connection that has been idle since then; `false` if it has not.
    fn gives_way(&self, since: Nanos) -> bool {
        self.state.compare_exchange(since, GAVE_WAY, AcqRel, Relaxed).is_ok()
    }

    fn wake(&self) {
        let owner = self.owner.lock().take();
        if let Some(owner) = owner {
            owner.wake();
        }
    }
}

impl ConnectionPlace {
    /// Something is under way.
    #[inline]
    pub(crate) fn set_busy(&self) {
        self.set(BUSY);
    }

    /// Nothing is under way since then. Cheap where that moves on by little: it is not written.
    #[inline]
    pub(crate) fn set_idle(&self, since: Nanos) {
        let known = self.life.state.load(Relaxed);
        if known > since || known + GRAIN <= since {
            self.set(since.min(GAVE_WAY - 1));
        }
    }

    fn set(&self, state: u64) {
        let known = self.life.state.load(Relaxed);
        if known != GAVE_WAY && known != state {
            // Only a loss of the place changes it meanwhile, and that must stand.
            let _ = self.life.state.compare_exchange(known, state, AcqRel, Relaxed);
        }
    }

    /// Since when it has been idle, if it is.
    pub(crate) fn idle_since(&self) -> Option<Nanos> {
        self.life.idle_since()
    }

    /// Whether the connection must be closed for another one.
    #[inline]
    pub(crate) fn gave_way(&self) -> bool {
        self.life.state.load(Acquire) == GAVE_WAY
    }

    /// Wakes `owner` once when the connection must be closed for another one.
    pub(crate) fn set_owner(&self, owner: Waker) {
        *self.life.owner.lock() = Some(owner);
        if self.gave_way() {
            self.life.wake();
        }
    }

    /// As [`Self::gave_way`], for a task: it is woken.
    pub(crate) fn poll_gave_way(&self, context: &Context<'_>) -> Poll<()> {
        let mut owner = self.life.owner.lock();
        if !owner.as_ref().is_some_and(|owner| owner.will_wake(context.waker())) {
            *owner = Some(context.waker().clone());
        }
        drop(owner);
        if self.gave_way() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let ConnectionLimits { table, freed, emptied, .. } = &*self.limits;
        let mut table = table.lock();
        // The place was taken away under the lock: the connection that has it now keeps it.
        let entry = if self.gave_way() {
            table.leaving -= 1;
            None
        } else {
            table.entries.try_remove(self.key)
        };
        let empty = table.entries.is_empty();
        drop(table);
        drop(entry);
        freed.notify_one();
        if empty {
            emptied.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
