//! Uses in flight that clients end: by id, or, in [`unnamed`], the oldest of a key first. What each
//! holds, and when it lapses.
//!
//! A use is given back exactly once, by its end or by its lapse, whichever comes first. There is
//! one ordered list of deadlines and no timer per use. Nothing is decided here: the limiter has
//! already counted what is held.

mod unnamed;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::{Nanos, Now};
use tokio::sync::Notify;

use self::unnamed::UnnamedUses;
use crate::limiter::{HeldKey, Key, Limiter, LimiterHandle, TakenFrom};
use crate::metrics::Door;
use crate::shutdown::Shutdown;

/// The most uses that are held at once.
pub const USES_MAX: usize = 1_000_000;
/// The most bytes that the keys of held uses may take.
pub const USES_BYTES_MAX: usize = 256 << 20;
/// How many lapsed uses are collected under one lock.
const LAPSE_BATCH: usize = 256;
/// The longest sleep between two looks at the deadlines. The timer stands still while the machine
/// is suspended and the limiter's clock does not: this bounds the difference.
const LAPSE_SLEEP_MAX: Duration = Duration::from_secs(10);

/// Names one use. Random, so that no client can guess the id of another's use and end it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UseId(u128);

impl UseId {
    fn random() -> Result<Self, HoldError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| HoldError::NoRandom)?;
        Ok(Self(u128::from_le_bytes(bytes)))
    }
}

impl fmt::Display for UseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for UseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A client that knows an id can end the use: it does not belong in logs.
        f.write_str("UseId(..)")
    }
}

/// The text is not an id that this program gives out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a use id is 32 lowercase hexadecimal digits")]
pub struct BadUseId;

impl FromStr for UseId {
    type Err = BadUseId;

    fn from_str(text: &str) -> Result<Self, BadUseId> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 32 || !text.bytes().all(digit) {
            return Err(BadUseId);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| BadUseId)
    }
}

/// Why a use cannot be held. Nothing was remembered.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum HoldError {
    /// The bound of [`USES_MAX`] or [`USES_BYTES_MAX`] is reached.
    #[error("too many uses are held; try again when some have ended")]
    Full,
    /// The system has no random numbers to make an id from.
    #[error("no random numbers to make a use id from")]
    NoRandom,
}

/// A use in flight of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// The key.
    pub key: Vec<u8>,
    /// Where its end must give it back.
    pub from: TakenFrom,
    /// When it was taken, by the clock of its count.
    pub started: Now,
}

struct Held {
    keys: Vec<KeyUse>,
    cost: u64,
    lapses_at: Nanos,
}

fn bytes_of<'a>(keys: impl Iterator<Item = &'a Vec<u8>>) -> usize {
    keys.map(|key| key.len() + size_of::<KeyUse>()).sum()
}

fn names(keys: &[KeyUse]) -> impl Iterator<Item = &Vec<u8>> {
    keys.iter().map(|held| &held.key)
}

#[derive(Default)]
struct Register {
    held: HashMap<UseId, Held>,
    deadlines: BTreeSet<(Nanos, UseId)>,
    bytes: usize,
}

impl Register {
    fn remove(&mut self, id: UseId) -> Option<Held> {
        let held = self.held.remove(&id)?;
        self.deadlines.remove(&(held.lapses_at, id));
        self.bytes -= bytes_of(names(&held.keys));
        Some(held)
    }
}

/// The register of uses in flight.
pub struct UsesInFlight {
    handle: LimiterHandle,
    register: Mutex<Register>,
    unnamed: UnnamedUses,
    earlier: Notify,
    uses_max: usize,
    bytes_max: usize,
}

impl UsesInFlight {
    /// An empty register that gives uses back to `limiter`.
    #[must_use]
    pub fn before(limiter: &Arc<Limiter>) -> Arc<Self> {
        Arc::new(Self::bounded(limiter, USES_MAX, USES_BYTES_MAX))
    }

    fn bounded(limiter: &Arc<Limiter>, uses_max: usize, bytes_max: usize) -> Self {
        let unnamed = UnnamedUses::bounded(limiter.handle(Door::Grpc), uses_max, bytes_max);
        let (handle, register) = (limiter.handle(Door::Http), Mutex::default());
        Self { handle, register, unnamed, earlier: Notify::new(), uses_max, bytes_max }
    }

    /// Whether a use of `keys` would find room now. Ask before taking it from the limiter.
    ///
    /// # Errors
    /// [`HoldError::Full`] if it would not.
    pub fn room_for(&self, keys: &[Vec<u8>]) -> Result<(), HoldError> {
        self.check_room(&self.register.lock(), bytes_of(keys.iter()))
    }

    fn check_room(&self, register: &Register, bytes: usize) -> Result<(), HoldError> {
        let fits = register.held.len() < self.uses_max && register.bytes + bytes <= self.bytes_max;
        if fits { Ok(()) } else { Err(HoldError::Full) }
    }

    /// Remembers a use that the limiter has granted and says is held. It lapses at `lapses_at` on
    /// the monotonic clock.
    ///
    /// # Errors
    /// When nothing can be remembered; the caller still owns the use and must release it.
    pub fn hold(&self, keys: Vec<KeyUse>, cost: u64, lapses_at: Nanos) -> Result<UseId, HoldError> {
        let id = UseId::random()?;
        let bytes = bytes_of(names(&keys));
        let held = Held { keys, cost, lapses_at };
        let mut register = self.register.lock();
        self.check_room(&register, bytes)?;
        // Two equal ids of 128 random bits do not happen; if they do, the first keeps its own.
        if register.held.contains_key(&id) {
            return Err(HoldError::NoRandom);
        }
        let is_first = register.deadlines.first().is_none_or(|&(first, _)| lapses_at < first);
        register.deadlines.insert((lapses_at, id));
        register.held.insert(id, held);
        register.bytes += bytes;
        drop(register);
        if is_first {
            self.earlier.notify_one();
        }
        Ok(id)
    }

    /// Gives a use back. False: there is none of that id, or it has ended or lapsed already.
    pub fn end(&self, id: UseId) -> bool {
        let removed = self.register.lock().remove(id);
        if let Some(held) = &removed {
            self.release(held);
        }
        removed.is_some()
    }

    /// Remembers a use that [`Self::end_oldest`] will end: `key` with its cost, as the limiter was
    /// asked for it, and what it says is held.
    ///
    /// # Errors
    /// When there is no room. Then it was given back, and must not be made.
    pub fn hold_unnamed(&self, key: &Key<'_>, held: Option<&HeldKey>) -> Result<(), HoldError> {
        let is_only = self.unnamed.hold(key, held)?;
        if is_only {
            self.earlier.notify_one();
        }
        Ok(())
    }

    /// Ends the oldest of the uses of a key that have no id, up to `cost` of them, but not more
    /// than a few at a time. Returns how many are left: the caller lets others run and asks again.
    pub fn end_oldest(&self, key: &[u8], cost: u64) -> u64 {
        self.unnamed.lapse(self.handle.now());
        self.unnamed.end(key, cost)
    }

    /// Uses without an id lapse this long after they were taken, those that are held now, too.
    pub fn lapse_unnamed_after(&self, span: Duration) {
        self.unnamed.lapse_after(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        self.earlier.notify_one();
    }

    /// Gives back every use that is due at `now`.
    pub fn lapse(&self, now: Now) {
        self.unnamed.lapse(now);
        loop {
            let due = self.due(now);
            due.iter().for_each(|held| self.release(held));
            if due.len() < LAPSE_BATCH {
                return;
            }
        }
    }

    fn due(&self, now: Now) -> Vec<Held> {
        let mut register = self.register.lock();
        let mut due = Vec::new();
        while due.len() < LAPSE_BATCH {
            let Some(&(deadline, id)) = register.deadlines.first() else { break };
            if deadline > now.mono {
                break;
            }
            due.extend(register.remove(id));
        }
        due
    }

    fn release(&self, held: &Held) {
        for KeyUse { key, from, started } in &held.keys {
            self.handle.release_uses(key, held.cost, *started, *from);
        }
    }

    /// How many uses are held.
    pub fn len(&self) -> usize {
        self.register.lock().held.len() + self.unnamed.len()
    }

    /// Whether no use is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When the next use lapses, on the monotonic clock.
    fn next_deadline(&self) -> Option<Nanos> {
        let of_ids = self.register.lock().deadlines.first().map(|&(deadline, _)| deadline);
        of_ids.into_iter().chain(self.unnamed.next_deadline()).min()
    }

    /// Lapses uses as they fall due, until `shutdown`. One task for all of them.
    pub async fn keep_lapsing(&self, shutdown: Shutdown) {
        loop {
            let now = self.handle.now();
            self.lapse(now);
            let sleep = self.next_deadline().map_or(LAPSE_SLEEP_MAX, |deadline| {
                Duration::from_nanos(deadline.saturating_sub(now.mono)).min(LAPSE_SLEEP_MAX)
            });
            tokio::select! {
                () = tokio::time::sleep(sleep) => {}
                () = self.earlier.notified() => {}
                () = shutdown.wait() => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tidegate_core::rules::{Rule, RuleSet};
    use tidegate_core::time::{MINUTE, SECOND};
    use tidegate_core::{Algorithm, Limit};

    use super::*;
    use crate::clock::Clock;
    use crate::limiter::{HeldKey, Key, Limiter, Request, Rows};
    use crate::metrics::{Door, Metrics};
    use crate::stores::memory;

    const AMOUNT: u64 = 10_000;
    const KEY: &[u8] = b"jobs";

    /// A limiter whose every key has [`AMOUNT`] in flight, and a register before it.
    struct House {
        clock: Clock,
        handle: LimiterHandle,
        uses: Arc<UsesInFlight>,
    }

    impl House {
        fn new(uses_max: usize, bytes_max: usize) -> Self {
            let algorithm = Algorithm::InFlight { per_window: false };
            Self::limited(Limit { amount: AMOUNT, period: 0, algorithm }, uses_max, bytes_max)
        }

        fn limited(limit: Limit, uses_max: usize, bytes_max: usize) -> Self {
            let rule = Rule::new("jobs", "*", vec![limit]);
            let clock = Clock::manual(Now { mono: MINUTE, unix: 1_000 * MINUTE });
            let settings = memory::Settings { max_keys: 1_000, max_bytes: 16 << 20 };
            let rules = RuleSet::new(vec![rule], None);
            let limiter = Limiter::new(clock.clone(), Arc::new(Metrics::new()), rules, settings);
            let uses = Arc::new(UsesInFlight::bounded(&limiter, uses_max, bytes_max));
            Self { clock, handle: limiter.handle(Door::Http), uses }
        }

        /// Takes a use from the limiter and holds it.
        fn take(&self, cost: u64, span: Nanos) -> Result<UseId, HoldError> {
            let now = self.clock.now();
            let held = self.decide(Key::take(KEY, cost)).held;
            self.uses.hold(key_uses(&held), cost, now.mono + span)
        }

        fn in_flight(&self) -> u64 {
            AMOUNT - self.decide(Key::peek(KEY, 1)).limits[0].verdict.remaining
        }

        fn decide(&self, key: Key<'_>) -> Rows {
            let (keys, mut rows) = ([key], Rows::default());
            let request = Request::all_or_nothing(&keys).with_end();
            self.handle.decide(&request, self.clock.now(), Some(&mut rows)).unwrap();
            rows
        }
    }

    fn key_uses(held: &[HeldKey]) -> Vec<KeyUse> {
        let key_use =
            |&HeldKey { from, started, .. }: &HeldKey| KeyUse { key: KEY.to_vec(), from, started };
        held.iter().map(key_use).collect()
    }

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id = UseId::random().unwrap();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_ne!(UseId::random().unwrap(), id);
        let small = UseId(10);
        assert_eq!(small.to_string(), format!("{:0>32}", "a"));
        for text in ["", "a", &"A".repeat(32), &"+1".repeat(16), &"0".repeat(33)] {
            assert_eq!(text.parse::<UseId>(), Err(BadUseId), "{text}");
        }
    }

    #[test]
    fn a_use_ends_or_lapses_and_never_both() {
        let house = House::new(10, 1_000);
        let ended = house.take(3, SECOND).unwrap();
        let lapsed = house.take(4, SECOND).unwrap();
        assert_eq!(house.in_flight(), 7);
        assert!(house.uses.end(ended));
        assert!(!house.uses.end(ended));
        assert_eq!(house.in_flight(), 4);
        house.clock.advance(SECOND);
        house.uses.lapse(house.clock.now());
        assert_eq!(house.in_flight(), 0);
        assert!(!house.uses.end(lapsed));
        assert_eq!(house.take(5, SECOND).map(|_| house.in_flight()), Ok(5));
    }

    /// A count in memory and one in a remote store have clocks of their own.
    #[test]
    fn each_key_ends_by_its_own_start() {
        let algorithm = Algorithm::InFlight { per_window: true };
        let limit = Limit { amount: AMOUNT, period: MINUTE, algorithm };
        let house = House::limited(limit, 10, 1_000);
        let mut keys = key_uses(&house.decide(Key::take(KEY, 1)).held);
        house.clock.advance(MINUTE);
        keys.extend(key_uses(&house.decide(Key::take(KEY, 1)).held));
        house.decide(Key::take(KEY, 1));
        assert_eq!(house.in_flight(), 2);
        let id = house.uses.hold(keys, 1, Nanos::MAX).unwrap();
        assert!(house.uses.end(id));
        assert_eq!(house.in_flight(), 1, "the window has given back the first already");
    }

    #[test]
    fn more_than_one_batch_lapses_at_once() {
        let house = House::new(usize::MAX, usize::MAX);
        let many = 3 * LAPSE_BATCH + 1;
        for _ in 0..many {
            house.take(1, SECOND).unwrap();
        }
        assert_eq!(house.in_flight(), many as u64);
        house.clock.advance(SECOND);
        house.uses.lapse(house.clock.now());
        assert_eq!((house.in_flight(), house.uses.len()), (0, 0));
    }

    #[test]
    fn the_register_is_bounded_by_number_and_by_bytes() {
        let one = KEY.len() + size_of::<KeyUse>();
        for house in [House::new(2, usize::MAX), House::new(usize::MAX, 2 * one)] {
            let keys = [KEY.to_vec()];
            let first = house.take(1, SECOND).unwrap();
            assert_eq!(house.uses.room_for(&keys), Ok(()));
            house.take(1, SECOND).unwrap();
            assert_eq!(house.uses.room_for(&keys), Err(HoldError::Full));
            assert_eq!(house.take(1, SECOND), Err(HoldError::Full));
            assert!(house.uses.end(first));
            assert_eq!(house.uses.room_for(&keys), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_task_lapses_them_all_and_notices_an_earlier_one() {
        let house = House::new(10, 1_000);
        let shutdown = Shutdown::new();
        let task = tokio::spawn({
            let (uses, shutdown) = (house.uses.clone(), shutdown.clone());
            async move { uses.keep_lapsing(shutdown).await }
        });
        house.take(1, 3 * SECOND).unwrap();
        tokio::task::yield_now().await;
        house.take(1, SECOND).unwrap();
        for left in [1, 1, 0] {
            // Let the task see what is held and go to sleep, then let a second pass on both.
            tokio::task::yield_now().await;
            house.clock.advance(SECOND);
            tokio::time::advance(Duration::from_millis(1_001)).await;
            tokio::task::yield_now().await;
            assert_eq!(house.in_flight(), left);
        }
        shutdown.set();
        task.await.unwrap();
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take { cost: u64, span: Nanos },
        End(prop::sample::Index),
        Pass(Nanos),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..50u64, 0..20u64).prop_map(|(cost, span)| Step::Take { cost, span }),
            any::<prop::sample::Index>().prop_map(Step::End),
            (0..10u64).prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// The slow model: a list of all uses ever taken, looked through at every step.
        #[test]
        fn what_is_in_flight_is_what_was_neither_ended_nor_lapsed(
            steps in prop::collection::vec(step(), 1..150),
        ) {
            let house = House::new(usize::MAX, usize::MAX);
            let mut model: Vec<(UseId, u64, Nanos, bool)> = Vec::new();
            for step in steps {
                let now = house.clock.now();
                match step {
                    Step::Take { cost, span } => {
                        model.push((house.take(cost, span).unwrap(), cost, now.mono + span, true));
                    }
                    Step::End(index) if !model.is_empty() => {
                        let (id, _, _, live) = index.get_mut(&mut model[..]);
                        prop_assert_eq!(house.uses.end(*id), *live);
                        *live = false;
                    }
                    Step::End(_) => {}
                    Step::Pass(span) => house.clock.advance(span),
                }
                let now = house.clock.now();
                house.uses.lapse(now);
                model.iter_mut().for_each(|(_, _, deadline, live)| *live &= *deadline > now.mono);
                let live = model.iter().filter(|(.., live)| *live);
                prop_assert_eq!(house.uses.len(), live.clone().count());
                prop_assert_eq!(house.in_flight(), live.map(|(_, cost, ..)| cost).sum::<u64>());
            }
        }
    }
}
