//! Waiting on a clock that is moved by hand: order, bounds, leaving, and who wakes whom.
//!
//! Futures are polled only when they were woken, and the driver only when it was woken or its
//! sleep is over: a wake-up that is lost leaves somebody waiting, and a test sees it.

mod line;
mod model;
mod whole;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use tidegate_core::rules::{Rule, RuleSet};
use tidegate_core::time::{DAY, SECOND};
use tidegate_core::{Algorithm, Limit, Nanos, Now};

use super::driver::WallClock;
use super::*;
use crate::limiter::{Key, LimiterHandle, Request};
use crate::metrics::{Door, Metrics};
use crate::stores::memory;

const START: Now = Now { mono: 500 * DAY, unix: 20_000 * DAY };

fn limit(amount: u64, period: Nanos, algorithm: Algorithm) -> Limit {
    Limit { amount, period, algorithm }
}

fn fixed(amount: u64) -> Limit {
    limit(amount, 10 * SECOND, Algorithm::FixedWindow)
}

fn in_flight(amount: u64) -> Limit {
    limit(amount, 0, Algorithm::InFlight { per_window: false })
}

/// A rule for all keys that begin with its name.
fn rule(name: &str, limits: Vec<Limit>) -> Rule {
    Rule::new(name, &format!("{name}*"), limits)
}

/// Remembers that it was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

impl Flag {
    fn take(&self) -> bool {
        self.0.swap(false, SeqCst)
    }
}

/// A limiter, its wait queues, and a door before it.
struct House {
    clock: Clock,
    limiter: Arc<Limiter>,
    waiting: Arc<WaitingRequests>,
    handle: LimiterHandle,
    waiters: Arc<WaiterLimit>,
}

impl House {
    fn new(rules: Vec<Rule>) -> Self {
        Self::bounded(rules, WaiterBounds { per_key: 1_000, total: 1_000 })
    }

    fn bounded(rules: Vec<Rule>, bounds: WaiterBounds) -> Self {
        let clock = Clock::manual(START);
        let metrics = Arc::new(Metrics::new());
        let settings = memory::Settings { max_keys: 1_000, max_bytes: 16 << 20 };
        let rules = RuleSet::new(rules, None);
        let limiter = Limiter::new(clock.clone(), metrics.clone(), rules, settings);
        let waiting = WaitingRequests::new(&limiter);
        let handle = limiter.handle(Door::Proxy);
        let waiters = WaiterLimit::new(&metrics, Door::Proxy, bounds);
        Self { clock, limiter, waiting, handle, waiters }
    }

    fn install(&self, rules: Vec<Rule>) {
        self.limiter.install(RuleSet::new(rules, None));
    }

    /// Tries once; `None` if it would wait.
    fn begin(&self, key: &str) -> Result<Option<Admitted>, NotAdmitted> {
        match self.waiting.begin(&self.handle, &ask(key, None), self.clock.now()) {
            Began::Done(result) => result.map(Some),
            Began::Waits(_) => Ok(None),
        }
    }

    fn release(&self, key: &str, pass: &Admitted, cost: u64) {
        let from = pass.held.expect("something to give back");
        self.handle.release_uses(key.as_bytes(), cost, pass.started, from);
    }

    /// A line of the metrics page.
    fn metric(&self, name: &str) -> u64 {
        let page = self.limiter.metrics().encode(Default::default());
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |value| value.trim().parse().expect("a number"))
    }
}

/// What is left of each limit of a key; empty if it may not be asked for.
fn peek(house: &House, key: &str, cost: u64) -> (Verdict, Rows) {
    let keys = [Key::peek(key.as_bytes(), cost)];
    let request = Request::all_or_nothing(&keys).with_end();
    let mut rows = Rows::default();
    let decision = house.handle.decide(&request, house.clock.now(), Some(&mut rows));
    (decision.expect("fit").ready().expect("in memory"), rows)
}

fn ask(key: &str, max_wait: Option<Nanos>) -> WaitRequest<'_> {
    WaitRequest { key: key.as_bytes(), cost: 1, max_wait, can_end: true }
}

/// One caller, polled only when it is woken.
struct Caller<'a> {
    passing: Option<WaitFuture<'a>>,
    woken: Arc<Flag>,
    result: Option<Result<Admitted, NotAdmitted>>,
    polls: usize,
}

impl<'a> Caller<'a> {
    fn came(house: &'a House, ask: WaitRequest<'a>) -> Self {
        let passing = Some(house.waiting.admit(&house.handle, &house.waiters, ask));
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        let mut caller = Self { passing, woken, result: None, polls: 0 };
        caller.look();
        caller
    }

    /// Polls if it was woken. `true` if it was.
    fn look(&mut self) -> bool {
        let woken = self.woken.take();
        if let Some(passing) = self.passing.as_mut().filter(|_| woken) {
            self.polls += 1;
            let waker = Waker::from(self.woken.clone());
            let polled = std::pin::Pin::new(passing).poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(result) = polled {
                self.result = Some(result);
                self.passing = None;
            }
        }
        woken
    }

    fn leave(&mut self) {
        self.passing = None;
    }

    fn waits(&self) -> bool {
        self.passing.is_some()
    }

    fn pass(&self) -> Admitted {
        match &self.result {
            Some(Ok(pass)) => *pass,
            other => panic!("not passed: {other:?}"),
        }
    }
}

/// The driver, woken by its waker or by the end of its sleep.
struct Driver {
    wall: WallClock,
    woken: Arc<Flag>,
    sleeps_until: Nanos,
}

impl Driver {
    fn new(house: &House) -> Self {
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        Self { wall: WallClock::at(house.clock.now()), woken, sleeps_until: Nanos::MAX }
    }

    fn look(&mut self, house: &House) -> bool {
        let now = house.clock.now().mono;
        let awake = self.woken.take() || now >= self.sleeps_until;
        if awake {
            let waker = Waker::from(self.woken.clone());
            let left = house.waiting.turn(&mut self.wall, &Context::from_waker(&waker));
            self.sleeps_until = left.map_or(Nanos::MAX, |left| now + left.max(1));
        }
        awake
    }
}

/// Lets everybody run who was woken, until nobody is.
fn settle(house: &House, driver: &mut Driver, callers: &mut [Caller<'_>]) {
    loop {
        let mut busy = driver.look(house);
        for caller in callers.iter_mut() {
            busy |= caller.look();
        }
        if !busy {
            return;
        }
    }
}
