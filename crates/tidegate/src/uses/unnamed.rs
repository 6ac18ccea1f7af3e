//! Uses in flight that clients end without saying which: the oldest of the key ends first, and what
//! is not ended lapses.
//!
//! Only uses that were remembered here are ended here: no more is given back than was taken. A use
//! that no count holds is remembered, too, if its end will come: otherwise that end would give back
//! the use of another.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tidegate_core::{Nanos, Now};

use super::{HoldError, LAPSE_BATCH};
use crate::limiter::{HeldKey, Key, KeyOp, LimiterHandle, TakenFrom};

/// A use whose end will come, or that lapses.
#[derive(Debug)]
struct UnnamedUse {
    taken_at: Nanos,
    cost: u64,
    /// Where its end gives it back; `None` if no count holds it.
    from: Option<(TakenFrom, Now)>,
    /// The rule that it was taken under, if that is not the one which matches the key.
    rule: Option<Box<str>>,
}

/// Uses of one key, the oldest first.
type Queue = VecDeque<UnnamedUse>;

#[derive(Default)]
struct Register {
    queues: HashMap<Arc<[u8]>, Queue>,
    /// When the oldest use of each key was taken.
    oldest: BTreeSet<(Nanos, Arc<[u8]>)>,
    uses: usize,
    bytes: usize,
}

/// What a key takes beside its uses: it stands in two places.
fn bytes_of(key: &[u8]) -> usize {
    key.len() + size_of::<Queue>() + 4 * size_of::<Arc<[u8]>>()
}

impl Register {
    fn push(&mut self, key: &[u8], unnamed: UnnamedUse) {
        self.uses += 1;
        if let Some(queue) = self.queues.get_mut(key) {
            // Two threads may read the clock in one order and come here in the other.
            let last = queue.back().map_or(0, |last| last.taken_at);
            queue.push_back(UnnamedUse { taken_at: unnamed.taken_at.max(last), ..unnamed });
            return;
        }
        let key: Arc<[u8]> = key.into();
        self.bytes += bytes_of(&key);
        self.oldest.insert((unnamed.taken_at, key.clone()));
        self.queues.insert(key, Queue::from([unnamed]));
    }

    /// Takes up to `cost` uses out, all of the same use.
    fn pop(&mut self, key: &[u8], cost: u64) -> Option<UnnamedUse> {
        let queue = self.queues.get_mut(key)?;
        let oldest = queue.front_mut()?;
        if oldest.cost > cost {
            oldest.cost -= cost;
            let rule = oldest.rule.clone();
            return Some(UnnamedUse { cost, rule, ..*oldest });
        }
        let ended = queue.pop_front()?;
        let next = queue.front().map(|next| next.taken_at);
        self.uses -= 1;
        let (key, _) = self.queues.get_key_value(key)?;
        let key = key.clone();
        let mut entry = (ended.taken_at, key);
        self.oldest.remove(&entry);
        match next {
            Some(next) => {
                entry.0 = next;
                self.oldest.insert(entry);
            }
            None => {
                self.bytes -= bytes_of(&entry.1);
                self.queues.remove(&entry.1);
            }
        }
        Some(ended)
    }

    /// Notes that an end will come for a use that there is no room to remember by itself.
    fn owe(&mut self, key: &[u8], cost: u64, taken_at: Nanos) {
        match self.queues.get_mut(key).and_then(|queue| queue.back_mut()) {
            Some(last) if last.from.is_none() => last.cost = last.cost.saturating_add(cost),
            Some(_) => self.push(key, UnnamedUse { taken_at, cost, from: None, rule: None }),
            // No use of the key is held here: its end finds none.
            None => {}
        }
    }
}

/// The register of these uses.
pub(super) struct UnnamedUses {
    handle: LimiterHandle,
    register: Mutex<Register>,
    /// After this time a use lapses.
    span: AtomicU64,
    uses_max: usize,
    bytes_max: usize,
}

impl UnnamedUses {
    pub(super) fn bounded(handle: LimiterHandle, uses_max: usize, bytes_max: usize) -> Self {
        let (register, span) = (Mutex::default(), AtomicU64::new(Nanos::MAX));
        Self { handle, register, span, uses_max, bytes_max }
    }

    /// From now on every use lapses this long after it was taken.
    pub(super) fn lapse_after(&self, span: Nanos) {
        self.span.store(span, Relaxed);
    }

    /// Remembers a use of `cost` that was just asked for and whose end will come. `held` says where
    /// it is to be given back, if a count holds it. `true`: it is the only one.
    ///
    /// # Errors
    /// When there is no room. Then it was given back, and must not be made.
    pub(super) fn hold(&self, key: &Key<'_>, held: Option<&HeldKey>) -> Result<bool, HoldError> {
        let (taken_at, cost) = (self.handle.now().mono, key.op.cost());
        let from = held.map(|held| (held.from, held.started));
        let rule = key.rule().map(Box::from);
        let mut register = self.register.lock();
        let fits =
            register.uses < self.uses_max && register.bytes + bytes_of(key.bytes) <= self.bytes_max;
        if !fits {
            register.owe(key.bytes, cost, taken_at);
            drop(register);
            self.give_back(key.bytes, &UnnamedUse { taken_at, cost, from, rule });
            return Err(HoldError::Full);
        }
        register.push(key.bytes, UnnamedUse { taken_at, cost, from, rule });
        Ok(register.uses == 1)
    }

    /// Ends the oldest uses of a key, up to `cost` of them, but not more than a few at a time.
    /// Returns how many are left to be ended.
    pub(super) fn end(&self, key: &[u8], cost: u64) -> u64 {
        let mut left = cost;
        for _ in 0..LAPSE_BATCH {
            let Some(ended) = self.register.lock().pop(key, left) else { return 0 };
            left -= ended.cost;
            self.give_back(key, &ended);
            if left == 0 {
                break;
            }
        }
        left
    }

    /// Gives back what is due at `now`.
    pub(super) fn lapse(&self, now: Now) {
        loop {
            let due = self.due(now);
            due.iter().for_each(|(key, lapsed)| self.give_back(key, lapsed));
            if due.len() < LAPSE_BATCH {
                return;
            }
        }
    }

    fn due(&self, now: Now) -> Vec<(Arc<[u8]>, UnnamedUse)> {
        let span = self.span.load(Relaxed);
        let mut register = self.register.lock();
        let mut due = Vec::new();
        while due.len() < LAPSE_BATCH {
            let Some((taken_at, key)) = register.oldest.first().cloned() else { break };
            if taken_at.saturating_add(span) > now.mono {
                break;
            }
            let Some(lapsed) = register.pop(&key, u64::MAX) else { break };
            due.push((key, lapsed));
        }
        due
    }

    fn give_back(&self, key: &[u8], ended: &UnnamedUse) {
        let Some((from, started)) = ended.from else { return };
        let key = Key::new(key, KeyOp::Release { cost: ended.cost, started, from });
        self.handle.release(match &ended.rule {
            Some(rule) => key.under(rule, None),
            None => key,
        });
    }

    /// When the next use lapses, on the monotonic clock.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        let register = self.register.lock();
        let (taken_at, _) = register.oldest.first()?;
        Some(taken_at.saturating_add(self.span.load(Relaxed)))
    }

    /// How many uses are remembered.
    pub(super) fn len(&self) -> usize {
        self.register.lock().uses
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tidegate_core::rules::{OnFull, Rule, RuleSet};
    use tidegate_core::time::{MINUTE, SECOND};
    use tidegate_core::{Algorithm, Limit};

    use super::*;
    use crate::clock::Clock;
    use crate::limiter::{Limiter, Request, Rows};
    use crate::metrics::{Door, Metrics};
    use crate::stores::memory;
    use crate::uses::UsesInFlight;

    const AMOUNT: u64 = 5;
    const LIMIT: Limit = {
        let algorithm = Algorithm::InFlight { per_window: false };
        Limit { amount: AMOUNT, period: 0, algorithm }
    };
    const KEYS: [&[u8]; 2] = [b"web slot=1", b"web slot=2"];

    /// A limiter whose every key has [`AMOUNT`] in flight, and a register before it.
    struct House {
        clock: Clock,
        limiter: Arc<Limiter>,
        uses: UsesInFlight,
    }

    impl House {
        fn new(uses_max: usize) -> Self {
            Self::of(Rule::new("web", "web *", vec![LIMIT]), uses_max)
        }

        fn of(rule: Rule, uses_max: usize) -> Self {
            let clock = Clock::manual(Now { mono: MINUTE, unix: 1_000 * MINUTE });
            let settings = memory::Settings { max_keys: 2, max_bytes: 16 << 20 };
            let rules = RuleSet::new(vec![rule], None);
            let limiter = Limiter::new(clock.clone(), Arc::new(Metrics::new()), rules, settings);
            let uses = UsesInFlight::bounded(&limiter, uses_max, usize::MAX);
            uses.lapse_unnamed_after(Duration::from_secs(60));
            Self { clock, limiter, uses }
        }

        /// As the gRPC door: whether the use may go, if it is remembered.
        fn take(&self, key: &[u8], cost: u64) -> Result<bool, HoldError> {
            let key = Key::new(key, KeyOp::TakeOrRecord(cost));
            let rows = self.decide(key);
            self.uses.hold_unnamed(&key, rows.held.first())?;
            Ok(rows.refused_by.is_none())
        }

        fn decide(&self, key: Key<'_>) -> Rows {
            let (keys, mut rows) = ([key], Rows::default());
            let handle = self.limiter.handle(Door::Grpc);
            let request = Request::all_or_nothing(&keys).with_end();
            handle.decide(&request, self.clock.now(), Some(&mut rows)).unwrap();
            rows
        }

        fn in_flight(&self, key: &[u8]) -> u64 {
            self.decide(Key::peek(key, 1)).limits[0].verdict.rate as u64
        }
    }

    #[test]
    fn a_refused_use_is_held_until_its_end() {
        let house = House::new(100);
        for _ in 0..AMOUNT {
            assert_eq!(house.take(KEYS[0], 1), Ok(true));
        }
        assert_eq!(house.take(KEYS[0], 1), Ok(false));
        assert_eq!(house.take(KEYS[0], 2), Ok(false));
        assert_eq!(house.in_flight(KEYS[0]), AMOUNT + 3);
        house.uses.end_oldest(KEYS[0], 3);
        assert_eq!(house.take(KEYS[0], 1), Ok(false));
        house.uses.end_oldest(KEYS[0], 2);
        assert_eq!(house.take(KEYS[0], 1), Ok(true));
        house.uses.end_oldest(KEYS[0], u64::MAX);
        house.uses.end_oldest(KEYS[0], 1);
        assert_eq!((house.in_flight(KEYS[0]), house.uses.len()), (0, 0));
    }

    #[test]
    fn uses_with_an_id_are_not_ended_by_others() {
        let house = House::new(100);
        assert_eq!(house.decide(Key::take(KEYS[0], 2)).held.len(), 1);
        assert_eq!(house.take(KEYS[0], 1), Ok(true));
        house.uses.end_oldest(KEYS[0], 9);
        assert_eq!(house.in_flight(KEYS[0]), 2);
    }

    #[test]
    fn another_span_holds_for_uses_that_are_held() {
        let house = House::new(100);
        assert_eq!(house.take(KEYS[0], 1), Ok(true));
        house.clock.advance(2 * SECOND);
        house.uses.lapse(house.clock.now());
        assert_eq!(house.in_flight(KEYS[0]), 1);
        assert_eq!(house.uses.next_deadline(), Some(MINUTE + 60 * SECOND));
        house.uses.lapse_unnamed_after(Duration::from_secs(2));
        house.uses.lapse(house.clock.now());
        assert_eq!(house.in_flight(KEYS[0]), 0);
    }

    /// The end of a use that no count holds must not be that of another.
    #[test]
    fn ends_of_uses_that_no_count_holds_are_awaited() {
        let rule = Rule { on_full: OnFull::Allow, ..Rule::new("web", "web *", vec![LIMIT]) };
        let house = House::of(rule, 100);
        for key in [&b"web a"[..], b"web b"] {
            assert_eq!(house.take(key, 1), Ok(true));
        }
        assert_eq!(house.take(KEYS[0], 1), Ok(true), "the table is full");
        house.uses.end_oldest(b"web a", 1);
        house.limiter.reset(b"web a");
        assert_eq!(house.take(KEYS[0], 1), Ok(true));
        assert_eq!(house.in_flight(KEYS[0]), 1);
        house.uses.end_oldest(KEYS[0], 1);
        assert_eq!(house.in_flight(KEYS[0]), 1);
        house.uses.end_oldest(KEYS[0], 1);
        assert_eq!(house.in_flight(KEYS[0]), 0);
    }

    #[test]
    fn what_finds_no_room_is_refused_and_its_end_awaited() {
        let house = House::new(2);
        assert_eq!((house.take(KEYS[0], 1), house.take(KEYS[0], 1)), (Ok(true), Ok(true)));
        for _ in 0..10 {
            assert_eq!(house.take(KEYS[0], 1), Err(HoldError::Full));
            assert_eq!(house.take(KEYS[1], 1), Err(HoldError::Full));
        }
        assert_eq!((house.uses.len(), house.in_flight(KEYS[0])), (3, 2));
        assert_eq!(house.in_flight(KEYS[1]), 0);
        house.uses.end_oldest(KEYS[0], 12);
        assert_eq!((house.uses.len(), house.in_flight(KEYS[0])), (0, 0));
        assert_eq!(house.take(KEYS[1], 1), Ok(true));
    }

    /// There may be a million, and other calls wait for the thread.
    #[test]
    fn many_uses_are_ended_a_few_at_a_time() {
        let house = House::new(usize::MAX);
        for _ in 0..2 * LAPSE_BATCH + 1 {
            house.take(KEYS[0], 1).expect("room");
        }
        let mut left = Vec::new();
        while left.last() != Some(&0) {
            let cost = left.last().copied().unwrap_or(u64::MAX);
            left.push(house.uses.end_oldest(KEYS[0], cost));
            assert!(left.len() <= 3, "{left:?}");
        }
        assert_eq!((left.len(), house.uses.len(), house.in_flight(KEYS[0])), (3, 0, 0));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take { key: usize, cost: u64 },
        End { key: usize, cost: u64 },
        Pass(Nanos),
        Span(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..2usize, 1..4u64).prop_map(|(key, cost)| Step::Take { key, cost }),
            3 => (0..2usize, 1..5u64).prop_map(|(key, cost)| Step::End { key, cost }),
            2 => (0..30u64).prop_map(|seconds| Step::Pass(seconds * SECOND)),
            1 => (1..90u64).prop_map(Step::Span),
        ]
    }

    proptest! {
        /// The slow model: one entry for each single use that was ever asked for.
        #[test]
        fn what_is_in_flight_was_neither_ended_nor_has_lapsed(
            steps in prop::collection::vec(step(), 1..150),
        ) {
            let house = House::new(usize::MAX);
            let mut span = 60 * SECOND;
            let mut model: Vec<(usize, Nanos, bool)> = Vec::new();
            for step in steps {
                let now = house.clock.now().mono;
                let live = |model: &[(usize, Nanos, bool)], key: usize| {
                    model.iter().filter(|(of, _, live)| *live && *of == key).count() as u64
                };
                match step {
                    Step::Take { key, cost } => {
                        let fits = live(&model, key) + cost <= AMOUNT;
                        prop_assert_eq!(house.take(KEYS[key], cost), Ok(fits));
                        model.extend((0..cost).map(|_| (key, now, true)));
                    }
                    Step::End { key, cost } => {
                        house.uses.end_oldest(KEYS[key], cost);
                        let oldest = model.iter_mut().filter(|(of, _, live)| *live && *of == key);
                        oldest.take(cost as usize).for_each(|(.., live)| *live = false);
                    }
                    Step::Pass(time) => house.clock.advance(time),
                    Step::Span(seconds) => {
                        span = seconds * SECOND;
                        house.uses.lapse_unnamed_after(Duration::from_secs(seconds));
                    }
                }
                let now = house.clock.now();
                house.uses.lapse(now);
                model.iter_mut().for_each(|(_, at, live)| *live &= *at + span > now.mono);
                for (key, name) in KEYS.iter().enumerate() {
                    prop_assert_eq!(house.in_flight(name), live(&model, key));
                }
            }
            house.clock.advance(span);
            house.uses.lapse(house.clock.now());
            let register = house.uses.unnamed.register.lock();
            prop_assert_eq!((register.uses, register.bytes), (0, 0));
            prop_assert!(register.queues.is_empty() && register.oldest.is_empty());
        }
    }
}
