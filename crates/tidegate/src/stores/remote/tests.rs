//! Several nodes over one store that loses, delays and reorders: never more than the limit, and no
//! less where nothing is lost. The store is a map, and time stands still: what is asked here is
//! the order of things.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use tidegate_core::limit::Spec;
use tidegate_core::time::{HOUR, MILLISECOND, SECOND};
use tidegate_core::{JointOutcome as Verdict, Limit, Now, Op, algorithms};

use super::engine::{ABSENT, CellChange, EngineFault, StoredValue, Swapped};
use super::update::{DeferredStep, LateSteps, RemoteSlot, StoreError, Update, UpdateKind};
use super::update_queue::{ChangeInFlight, UpdateQueue};
use crate::stores::memory::Body;

const NOW: Now = Now { mono: 1_000_000 * SECOND, unix: 1_000_000 * SECOND };
const TIMEOUT: u64 = SECOND;

/// What became of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Granted,
    Refused,
    Failed,
}

/// One use of each count, all or nothing; or a use in flight that ends.
struct Use {
    limits: Vec<Arc<[Limit]>>,
    gives_back: bool,
    granted: bool,
    /// `None` if nobody is told of it.
    number: Option<usize>,
    fates: Arc<Mutex<HashMap<usize, Fate>>>,
}

impl DeferredStep for Use {
    fn kind(&self) -> UpdateKind {
        if self.gives_back { UpdateKind::GiveBack } else { UpdateKind::Take }
    }

    fn run(&mut self, bodies: &mut [Body], now: Now) {
        let op = match self.gives_back {
            true => Op::Release { cost: 1, started: now },
            false => Op::Take(1),
        };
        let mut judged = Vec::new();
        for (limits, body) in self.limits.iter().zip(bodies.iter_mut()) {
            for (at, limit) in limits.iter().enumerate() {
                judged.push(algorithms::judge(limit, &body.held.states()[at], op, now));
            }
        }
        self.granted = judged.iter().all(|judgement| judgement.allowed);
        let outcome = if self.granted { Verdict::Granted } else { Verdict::Refused };
        let mut judged = judged.iter();
        for (limits, body) in self.limits.iter().zip(bodies) {
            for (limit, state) in limits.iter().zip(body.held.states_mut()) {
                let judgement = judged.next().expect("one for each limit");
                algorithms::apply(limit, state, op, judgement, outcome, now);
            }
        }
    }

    fn undo(&self, _: usize) -> Box<dyn DeferredStep> {
        unreachable!("nothing lies apart here")
    }

    fn end(self: Box<Self>, outcome: Result<Now, StoreError>) {
        let fate = match outcome {
            Ok(_) if self.granted => Fate::Granted,
            Ok(_) => Fate::Refused,
            Err(_) => Fate::Failed,
        };
        let Some(number) = self.number else { return };
        let before = self.fates.lock().insert(number, fate);
        assert_eq!(before, None, "a step is told once");
    }

    fn answer_early(&mut self) {
        assert!(self.gives_back, "others end");
        if let Some(number) = self.number.take() {
            self.fates.lock().insert(number, Fate::Failed);
        }
    }

    fn end_early(self: Box<Self>, error: StoreError) -> LateSteps {
        let end = |limits: &Arc<[Limit]>| Use {
            limits: vec![limits.clone()],
            gives_back: true,
            granted: false,
            number: None,
            fates: self.fates.clone(),
        };
        let takes = self.granted && !self.gives_back;
        let ends = self.limits.iter().filter(|limits| takes && limits[0].ends());
        let ends = ends.map(end).enumerate();
        let late = ends.map(|(at, end)| (at, Box::new(end) as Box<dyn DeferredStep>)).collect();
        self.end(Err(error));
        late
    }
}

/// The store and its nodes.
struct World {
    kept: HashMap<Arc<[u8]>, StoredValue>,
    version: u64,
    nodes: Vec<UpdateQueue>,
    under_way: Vec<(usize, Vec<CellChange>, ChangeInFlight)>,
    limits: Arc<[Limit]>,
    /// The nodes' own clock, which moves with every look: pauses end.
    local: u64,
    steps: usize,
    fates: Arc<Mutex<HashMap<usize, Fate>>>,
}

fn name(key: u8) -> Arc<[u8]> {
    Arc::from([key].as_slice())
}

impl World {
    fn new(nodes: usize, limit: &str) -> Self {
        let limits: Arc<[Limit]> =
            [Spec::parse(limit).unwrap().with(None, None, None).unwrap().unwrap()].into();
        Self {
            kept: HashMap::new(),
            version: ABSENT,
            nodes: (0..nodes).map(|node| UpdateQueue::new(node as u64 + 1, TIMEOUT)).collect(),
            under_way: Vec::new(),
            limits,
            local: NOW.mono,
            steps: 0,
            fates: Arc::default(),
        }
    }

    fn submit(&mut self, node: usize, keys: &[u8], kind: UpdateKind) {
        let slot = |key: &u8| RemoteSlot { name: name(*key), limits: self.limits.clone() };
        let slots: Vec<RemoteSlot> = keys.iter().map(slot).collect();
        let step = Use {
            limits: slots.iter().map(|slot| slot.limits.clone()).collect(),
            gives_back: kind == UpdateKind::GiveBack,
            granted: false,
            number: Some(self.steps),
            fates: self.fates.clone(),
        };
        self.steps += 1;
        let deadline = NOW.mono + HOUR;
        self.nodes[node].add(Update { slots, step: Box::new(step), kind, deadline });
    }

    fn send(&mut self, node: usize) {
        self.local += 10 * MILLISECOND;
        while let Some((changes, attempt)) = self.nodes[node].next(self.local, NOW) {
            self.under_way.push((node, changes, attempt));
        }
    }

    /// The store takes a request: all or nothing.
    fn swap(&mut self, changes: &[CellChange]) -> Swapped {
        let found = |change: &CellChange| self.kept.get(&change.name).cloned().unwrap_or_default();
        if changes.iter().any(|change| found(change).version != change.seen) {
            return Swapped::Stale(changes.iter().map(found).collect());
        }
        let mut versions = Vec::new();
        for change in changes {
            let mut version = change.seen;
            if let Some(write) = &change.write {
                self.version += 1;
                version = if write.value.is_empty() { ABSENT } else { self.version };
                let value = write.value.clone();
                self.kept.insert(change.name.clone(), StoredValue { version, value });
            }
            versions.push(version);
        }
        Swapped::Done(versions)
    }

    /// One request arrives, and its answer, unless one of both is lost.
    fn deliver(&mut self, which: usize, lost: Lost) {
        if self.under_way.is_empty() {
            return;
        }
        let (node, changes, attempt) = self.under_way.swap_remove(which % self.under_way.len());
        let outcome = match lost {
            Lost::Nothing => Ok(self.swap(&changes)),
            Lost::Request => Err(EngineFault::Slow),
            Lost::Answer => {
                self.swap(&changes);
                Err(EngineFault::Slow)
            }
        };
        self.nodes[node].finish(attempt, outcome, self.local);
    }

    /// Until nobody wants anything any more.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            (0..self.nodes.len()).for_each(|node| self.send(node));
            if self.under_way.is_empty() {
                break;
            }
            self.deliver(0, Lost::Nothing);
        }
        assert!(self.nodes.iter().all(UpdateQueue::is_idle), "somebody still waits");
        assert_eq!(self.fates.lock().len(), self.steps, "everybody is told");
    }

    fn count(&self, fate: Fate) -> usize {
        self.fates.lock().values().filter(|other| **other == fate).count()
    }
}

/// While nothing may be sent the loop sleeps: it must not be told that something is due already.
#[test]
fn a_pause_that_is_over_is_not_due_for_ever() {
    let mut world = World::new(2, "100 per hour");
    world.submit(0, &[0], UpdateKind::Take);
    for _ in 0..2 {
        // Another node is always faster.
        world.submit(1, &[0], UpdateKind::Take);
        world.send(0);
        world.send(1);
        world.deliver(1, Lost::Nothing);
        world.deliver(0, Lost::Nothing);
    }
    assert!(world.nodes[0].next(world.local, NOW).is_none(), "it pauses");
    let due = world.nodes[0].due().unwrap();
    assert!(world.local < due && due < NOW.mono + HOUR);
    world.nodes[0].end_rests(due);
    assert_eq!((world.nodes[0].ready(), world.nodes[0].due()), (1, Some(NOW.mono + HOUR)));
    world.settle();
}

#[derive(Clone, Copy, Debug)]
enum Lost {
    Nothing,
    Request,
    Answer,
}

#[derive(Clone, Debug)]
enum Move {
    Submit(usize, Vec<u8>),
    Send(usize),
    Deliver(usize, Lost),
    /// The node takes the store for away: all that wait for it are told, and the store answers.
    GiveUp(usize),
}

fn moves(lossy: bool) -> impl Strategy<Value = Vec<Move>> {
    let lost = match lossy {
        true => {
            prop_oneof![4 => Just(Lost::Nothing), 1 => Just(Lost::Request), 1 => Just(Lost::Answer)]
                .boxed()
        }
        false => Just(Lost::Nothing).boxed(),
    };
    let keys = prop_oneof![
        3 => (0_u8..2).prop_map(|key| vec![key]),
        1 => Just(vec![0, 1]),
        1 => Just(vec![1, 0]),
    ];
    let one = prop_oneof![
        4 => (0_usize..3, keys).prop_map(|(node, keys)| Move::Submit(node, keys)),
        3 => (0_usize..3).prop_map(Move::Send),
        3 => (any::<usize>(), lost).prop_map(|(which, lost)| Move::Deliver(which, lost)),
        u32::from(lossy) => (0_usize..3).prop_map(Move::GiveUp),
    ];
    prop::collection::vec(one, 1..120)
}

/// Returns the keys of each use, and of which node it is.
fn play(world: &mut World, moves: Vec<Move>) -> Vec<(usize, Vec<u8>)> {
    let mut asked = Vec::new();
    for step in moves {
        match step {
            Move::Submit(node, keys) => {
                world.submit(node, &keys, UpdateKind::Take);
                asked.push((node, keys));
            }
            Move::Send(node) => world.send(node),
            Move::Deliver(which, lost) => world.deliver(which, lost),
            Move::GiveUp(node) => world.nodes[node].give_up(),
        }
    }
    world.settle();
    asked
}

/// How many uses of each key were granted.
fn granted(world: &World, asked: &[(usize, Vec<u8>)]) -> [usize; 2] {
    let fates = world.fates.lock();
    let of = |key: u8| {
        let uses = asked.iter().enumerate().filter(|(_, (_, keys))| keys.contains(&key));
        uses.filter(|(number, _)| fates[number] == Fate::Granted).count()
    };
    [of(0), of(1)]
}

proptest! {
    /// Whatever is lost on the way, no more is granted than the limit allows.
    #[test]
    fn nodes_never_grant_more_than_the_limit(moves in moves(true)) {
        let mut world = World::new(3, "5 per 1h");
        let asked = play(&mut world, moves);
        for uses in granted(&world, &asked) {
            prop_assert!(uses <= 5, "{uses} of 5");
        }
    }

    /// Whatever is lost or comes too late, a use in flight ends with what its caller was told of,
    /// for all nodes. No more are held at once than the limit allows.
    #[test]
    fn uses_in_flight_that_nobody_holds_do_not_stay(moves in moves(true)) {
        let mut world = World::new(3, "5 in flight");
        let asked = play(&mut world, moves);
        for uses in granted(&world, &asked) {
            prop_assert!(uses <= 5, "{uses} of 5");
        }
        let fates = world.fates.lock().clone();
        for (number, (node, keys)) in asked.iter().enumerate() {
            if fates[&number] == Fate::Granted {
                keys.iter().for_each(|key| world.submit(*node, &[*key], UpdateKind::GiveBack));
            }
        }
        world.settle();
        for (name, kept) in &world.kept {
            prop_assert!(kept.value.is_empty(), "{name:?} has {:?}", kept.value);
        }
    }

    /// Where nothing is lost nobody fails, and a use is refused only when a key of it is used up.
    #[test]
    fn nothing_is_refused_that_is_left(moves in moves(false)) {
        let mut world = World::new(3, "5 per 1h");
        let asked = play(&mut world, moves);
        prop_assert_eq!(world.count(Fate::Failed), 0);
        let full = granted(&world, &asked).map(|uses| uses == 5);
        let fates = world.fates.lock().clone();
        for (number, (_, keys)) in asked.iter().enumerate() {
            let used_up = keys.iter().any(|key| full[usize::from(*key)]);
            prop_assert!(fates[&number] == Fate::Granted || used_up);
        }
    }
}

#[test]
fn many_steps_on_one_count_are_one_change() {
    let mut world = World::new(1, "100 per 1h");
    (0..150).for_each(|_| world.submit(0, &[0], UpdateKind::Take));
    world.send(0);
    assert_eq!(world.under_way.len(), 1, "nobody competes with itself");
    world.deliver(0, Lost::Nothing);
    world.settle();
    assert_eq!((world.count(Fate::Granted), world.count(Fate::Refused)), (100, 50));
}

#[test]
fn a_write_leaves_the_end_of_a_value_as_it_is_where_that_is_late_enough() {
    let mut world = World::new(1, "10 per minute");
    world.nodes[0].keeps_ends = true;
    // A count is kept for a period, and a second is added for the clocks.
    let mut write = |node: usize, later: u64| {
        world.local += later;
        world.submit(node, &[0], UpdateKind::Take);
        world.send(node);
        let sent = world.under_way[0].1[0].write.as_ref().map(|w| (w.keeps, w.lives / SECOND));
        world.settle();
        sent.expect("a use is written")
    };
    assert_eq!(write(0, 0), (false, 122), "twice as long as it must be");
    assert_eq!(write(0, SECOND), (true, 122), "nearly all of that is left");
    assert_eq!(write(0, 61 * SECOND), (false, 122), "sixty are left of it, and more are needed");
}

#[test]
fn a_store_that_was_away_may_come_back_with_what_it_had_before() {
    let check = |limit: &str, granted_later: usize| {
        let mut world = World::new(1, limit);
        (0..3).for_each(|_| world.submit(0, &[0], UpdateKind::Take));
        world.settle();
        let before = world.kept.clone();
        (0..2).for_each(|_| world.submit(0, &[0], UpdateKind::Take));
        world.settle();
        // By chance the old value comes to have the number of the one that was seen last.
        let last = world.kept[&name(0)].version;
        world.kept = before;
        world.kept.get_mut(&name(0)).unwrap().version = last;
        world.nodes[0].forget_all();
        (0..9).for_each(|_| world.submit(0, &[0], UpdateKind::Take));
        world.settle();
        assert_eq!(world.count(Fate::Granted), 5 + granted_later, "{limit}");
    };
    check("6 per 1h", 3);
    // Nobody else knows what a node holds.
    check("6 in flight", 1);
}

#[test]
fn uses_in_flight_are_given_back_by_their_node_alone_and_end_with_it() {
    let mut world = World::new(2, "3 in flight");
    (0..3).for_each(|_| world.submit(0, &[0], UpdateKind::Take));
    world.settle();
    world.submit(1, &[0], UpdateKind::Take);
    // The second node has nothing to give back: what it says must not free the first one's.
    world.submit(1, &[0], UpdateKind::GiveBack);
    world.submit(1, &[0], UpdateKind::Take);
    world.settle();
    assert_eq!(world.count(Fate::Refused), 2);
    world.submit(0, &[0], UpdateKind::GiveBack);
    world.settle();
    world.submit(1, &[0], UpdateKind::Take);
    world.settle();
    assert_eq!(world.count(Fate::Refused), 2, "one was given back");
    // The first node is silent for too long.
    world.nodes[1].members.ask();
    world.nodes[1].members.learn(&[2]);
    (0..3).for_each(|_| world.submit(1, &[0], UpdateKind::Take));
    world.settle();
    assert_eq!(world.count(Fate::Refused), 3, "its two uses have ended, and one of ours has not");
}

#[test]
fn those_who_give_back_try_until_it_is_done() {
    let mut world = World::new(1, "1 in flight");
    world.submit(0, &[0], UpdateKind::Take);
    world.settle();
    world.submit(0, &[0], UpdateKind::GiveBack);
    for _ in 0..5 {
        world.send(0);
        world.deliver(0, Lost::Request);
    }
    assert_eq!(world.fates.lock().len(), 1, "not told while it is not done");
    world.settle();
    world.submit(0, &[0], UpdateKind::Take);
    world.settle();
    assert_eq!(world.count(Fate::Refused), 0);
}

/// A store that is away may stay away for hours.
#[test]
fn callers_that_give_back_wait_for_no_store_that_is_away() {
    for (is_sent, is_late) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = World::new(1, "1 in flight");
        world.submit(0, &[0], UpdateKind::Take);
        world.settle();
        world.submit(0, &[0], UpdateKind::GiveBack);
        if is_sent {
            world.send(0);
        }
        assert_eq!(world.count(Fate::Failed), 0);
        match is_late {
            true => assert_eq!(world.nodes[0].expire(NOW.mono + HOUR), is_sent),
            false => world.nodes[0].give_up(),
        }
        assert_eq!(world.count(Fate::Failed), 1, "sent: {is_sent}, late: {is_late}");
        if is_sent {
            world.deliver(0, Lost::Request);
        }
        world.settle();
        world.submit(0, &[0], UpdateKind::Take);
        world.settle();
        assert_eq!(world.count(Fate::Refused), 0, "it was given back all the same");
    }
}

#[test]
fn what_is_given_back_is_given_back_once_whatever_is_lost() {
    let mut world = World::new(2, "3 in flight");
    (0..3).for_each(|_| world.submit(0, &[0], UpdateKind::Take));
    world.settle();
    world.submit(0, &[0], UpdateKind::GiveBack);
    for lost in [Lost::Answer, Lost::Answer, Lost::Request] {
        world.send(0);
        world.deliver(0, lost);
    }
    world.settle();
    (0..3).for_each(|_| world.submit(1, &[0], UpdateKind::Take));
    world.settle();
    assert_eq!(world.count(Fate::Refused), 2, "two of the three are still held");
}

#[test]
fn a_use_in_flight_that_nobody_was_told_of_does_not_stay() {
    let mut world = World::new(1, "2 in flight");
    world.submit(0, &[0], UpdateKind::Take);
    world.settle();
    world.submit(0, &[0], UpdateKind::Take);
    world.send(0);
    world.deliver(0, Lost::Answer);
    assert_eq!(world.count(Fate::Failed), 1);
    world.submit(0, &[0], UpdateKind::Take);
    world.settle();
    assert_eq!(world.count(Fate::Granted), 2, "the store has it, and nobody holds it");
}

#[test]
fn a_count_that_cannot_be_read_is_not_written_over() {
    let mut world = World::new(1, "5 per 1h");
    let foreign = StoredValue { version: 77, value: b"\x63not ours".to_vec() };
    world.kept.insert(name(0), foreign.clone());
    world.submit(0, &[0], UpdateKind::Take);
    world.settle();
    assert_eq!(world.count(Fate::Failed), 1);
    assert_eq!(world.kept[&name(0)], foreign);
}

#[test]
fn a_use_in_flight_that_is_written_in_part_and_failed_does_not_stay() {
    let mut world = World::new(1, "2 in flight");
    world.submit(0, &[0], UpdateKind::Take);
    world.settle();
    let before = world.kept.clone();
    world.submit(0, &[0, 1], UpdateKind::Take);
    world.send(0);
    world.nodes[0].give_up();
    let (_, changes, attempt) = world.under_way.pop().expect("a change");
    world.swap(&changes[..1]);
    assert_ne!(world.kept[&name(0)].value, before[&name(0)].value);
    let broken = Swapped::Broken { written: vec![0], at: 1, found: StoredValue::default() };
    world.nodes[0].finish(attempt, Ok(broken), world.local);
    world.settle();
    assert_eq!(world.kept[&name(0)].value, before[&name(0)].value, "the first is still held");
}

#[test]
fn who_waits_for_silence_is_told_at_its_time_and_the_store_is_to_blame() {
    let mut world = World::new(1, "5 per 1h");
    world.submit(0, &[0], UpdateKind::Take);
    let due = world.nodes[0].due().expect("a deadline");
    let (_, attempt) = world.nodes[0].next(due - TIMEOUT, NOW).expect("a change");
    assert!(!world.nodes[0].expire(due - 1));
    assert!(world.fates.lock().is_empty());
    assert!(world.nodes[0].expire(due));
    assert_eq!(world.count(Fate::Failed), 1);
    // The answer comes after all: nobody is told twice.
    world.nodes[0].finish(attempt, Ok(Swapped::Done(vec![3])), due);
    assert!(world.nodes[0].is_idle());
}

#[test]
fn contention_is_not_the_stores_fault() {
    let mut world = World::new(1, "5 per 1h");
    world.submit(0, &[0], UpdateKind::Take);
    let due = world.nodes[0].due().expect("a deadline");
    world.nodes[0].next(due - 1, NOW).expect("a change");
    assert!(!world.nodes[0].expire(due), "it was sent a moment ago");
    assert_eq!(world.count(Fate::Failed), 1);
}
