//! The wait queues before a real limiter, over random histories: callers come, leave, run
//! out of time, end their uses; time passes, keys are reset, rules change.
//!
//! At every pause nothing is left lying: whoever is first in line could not go even if asked
//! again. Everybody goes in the order of arrival, no window ever starts more than its amount, and
//! whoever stays is served in the end.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const KEYS: [&str; 4] = ["a 1", "a 2", "b 1", "b 2"];
const PERIOD: Nanos = 10 * SECOND;

#[derive(Clone, Debug)]
enum Step {
    Come { key: usize, cost: u64, patience: Option<Nanos> },
    Try(usize),
    Leave(prop::sample::Index),
    End(prop::sample::Index),
    Pass(Nanos),
    Reset(usize),
    Amount(u64),
    SetWall(Nanos),
}

fn step() -> impl Strategy<Value = Step> {
    let (key, index) = (0..KEYS.len(), any::<prop::sample::Index>);
    let patience = prop::option::of(0..3 * PERIOD);
    prop_oneof![
        8 => (key.clone(), 1..3u64, patience)
            .prop_map(|(key, cost, patience)| Step::Come { key, cost, patience }),
        1 => key.clone().prop_map(Step::Try),
        2 => index().prop_map(Step::Leave),
        4 => index().prop_map(Step::End),
        4 => (0..PERIOD).prop_map(Step::Pass),
        1 => key.prop_map(Step::Reset),
        1 => (2..5u64).prop_map(Step::Amount),
        1 => (0..4 * PERIOD).prop_map(Step::SetWall),
    ]
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        3 => Just(Algorithm::FixedWindow),
        1 => (2..5u64).prop_map(|burst| Algorithm::Gcra { burst }),
        1 => Just(Algorithm::SlidingWindow),
        1 => Just(Algorithm::SlidingLog),
        1 => any::<bool>().prop_map(|strict| Algorithm::Average { strict }),
        1 => (2..5u64).prop_map(|burst| Algorithm::Smockron { burst }),
        2 => any::<bool>().prop_map(|per_window| Algorithm::InFlight { per_window }),
    ]
}

/// What the rules look like; the amount changes underway.
#[derive(Clone, Debug)]
struct Shape {
    algorithms: Vec<Algorithm>,
    shared: bool,
}

impl Shape {
    fn rules(&self, amount: u64) -> Vec<Rule> {
        let limits = |amount| {
            let period = |algorithm: &Algorithm| match algorithm {
                Algorithm::InFlight { per_window: false } => 0,
                _ => PERIOD,
            };
            self.algorithms.iter().map(|a| limit(amount, period(a), *a)).collect::<Vec<_>>()
        };
        let alone = rule("a", limits(amount));
        let shared = Rule { shared: self.shared, ..rule("b", limits(amount)) };
        vec![alone, shared]
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    (prop::collection::vec(algorithm(), 1..3), any::<bool>())
        .prop_map(|(algorithms, shared)| Shape { algorithms, shared })
}

/// A history in the making.
struct Story<'a> {
    house: &'a House,
    driver: Driver,
    callers: Vec<Caller<'a>>,
    asks: Vec<(usize, u64)>,
    /// Who has already been seen to have gone.
    gone: Vec<bool>,
    /// Uses of fixed windows of keys on their own: by key and window.
    starts: HashMap<(usize, Nanos), u64>,
    /// Starts are counted from this time on.
    counts_from: Nanos,
    /// Passes whose use has not ended: who, and whether it must be given back.
    open: Vec<usize>,
    shared: bool,
}

impl<'a> Story<'a> {
    fn new(house: &'a House, shape: &Shape) -> Self {
        Self {
            house,
            driver: Driver::new(house),
            callers: Vec::new(),
            asks: Vec::new(),
            gone: Vec::new(),
            starts: HashMap::new(),
            counts_from: 0,
            open: Vec::new(),
            shared: shape.shared,
        }
    }

    fn come(&mut self, key: usize, cost: u64, max_wait: Option<Nanos>) {
        let ask = WaitRequest { cost, ..ask(KEYS[key], max_wait) };
        self.callers.push(Caller::came(self.house, ask));
        self.asks.push((key, cost));
        self.gone.push(false);
    }

    fn step(&mut self, step: &Step, shape: &Shape) {
        let house = self.house;
        match step {
            Step::Come { key, cost, patience } => self.come(*key, *cost, *patience),
            Step::Try(key) => {
                let passed = house.begin(KEYS[*key]).expect("fit");
                let waited_for = (0..self.callers.len())
                    .any(|at| self.callers[at].waits() && self.same_line(self.asks[at].0, *key));
                assert!(passed.is_none() || !waited_for, "overtaken");
                if let Some(pass) = passed {
                    self.count(*key, 1, &pass);
                    if pass.held.is_some() {
                        house.release(KEYS[*key], &pass, 1);
                    }
                }
            }
            Step::Leave(who) if !self.callers.is_empty() => {
                who.get_mut(&mut self.callers).leave();
            }
            Step::End(which) if !self.open.is_empty() => {
                let at = self.open.remove(which.index(self.open.len()));
                let (key, cost) = self.asks[at];
                house.release(KEYS[key], &self.callers[at].pass(), cost);
            }
            Step::Leave(_) | Step::End(_) => {}
            Step::Pass(span) => house.clock.advance(*span),
            Step::Reset(key) => {
                house.limiter.reset(KEYS[*key].as_bytes());
                let shared = self.shared;
                self.starts.retain(|&(of, _), _| !same_line(shared, of, *key));
            }
            Step::Amount(amount) => house.install(shape.rules(*amount)),
            Step::SetWall(ahead) => {
                house.clock.set_unix(START.unix + ahead);
                // The driver looks at least once a second.
                self.driver.woken.0.store(true, SeqCst);
                // A key stays in a window that the wall clock was set back from, for a period:
                // until then the windows of the limiter are not those of the wall clock.
                self.counts_from = house.clock.now().mono + 2 * PERIOD;
                self.starts.clear();
            }
        }
    }

    fn same_line(&self, one: usize, other: usize) -> bool {
        same_line(self.shared, one, other)
    }

    fn count(&mut self, key: usize, cost: u64, pass: &Admitted) {
        if pass.started.mono < self.counts_from {
            return;
        }
        let window = pass.started.unix / PERIOD;
        let key = if self.shared { key.min(2) } else { key };
        *self.starts.entry((key, window)).or_default() += cost;
    }

    /// Lets everybody run, and looks at who has gone.
    fn settle(&mut self) {
        settle(self.house, &mut self.driver, &mut self.callers);
        for at in 0..self.callers.len() {
            let Some(Ok(pass)) = self.callers[at].result.clone() else { continue };
            if std::mem::replace(&mut self.gone[at], true) {
                continue;
            }
            let (key, cost) = self.asks[at];
            let overtaken = (0..at).any(|other| {
                self.callers[other].waits() && self.same_line(self.asks[other].0, key)
            });
            assert!(!overtaken, "somebody who came earlier still waits");
            self.count(key, cost, &pass);
            if pass.held.is_some() {
                self.open.push(at);
            }
        }
    }

    /// Nobody waits for what could be taken.
    fn nothing_is_missed(&self) {
        for at in 0..self.callers.len() {
            let (key, cost) = self.asks[at];
            let before = |o: usize| self.callers[o].waits() && self.same_line(self.asks[o].0, key);
            if self.callers[at].waits() && !(0..at).any(before) {
                let (verdict, _) = peek(self.house, KEYS[key], cost);
                assert!(!verdict.is_allowed(), "the first in line could go: {verdict:?}");
            }
        }
    }

    fn end(mut self) {
        // As long as it may take: every period something is freed, and every use ends.
        for _ in 0..4 * self.callers.len() + 4 {
            for at in std::mem::take(&mut self.open) {
                let (key, cost) = self.asks[at];
                self.house.release(KEYS[key], &self.callers[at].pass(), cost);
            }
            self.house.clock.advance(PERIOD);
            self.settle();
        }
        assert!(self.callers.iter().all(|caller| !caller.waits()), "everybody is served");
        assert_eq!((self.house.waiting.len(), self.house.waiters.len()), (0, 0));
        assert!(self.house.waiting.queues.holds_nothing());
    }
}

/// Whether two keys are counted together.
fn same_line(shared: bool, one: usize, other: usize) -> bool {
    one == other || shared && one >= 2 && other >= 2
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nobody_waits_in_vain_and_nobody_overtakes(
        shape in shape(),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let house = House::new(shape.rules(3));
        let mut story = Story::new(&house, &shape);
        let is_fixed = shape.algorithms.contains(&Algorithm::FixedWindow);
        let mut most = 3;
        for step in &steps {
            let fits = !matches!(step, Step::Come { cost, .. } if *cost > most);
            if let Step::Amount(amount) = step {
                most = *amount;
                story.starts.clear();
            }
            if fits {
                story.step(step, &shape);
            }
            story.settle();
            story.nothing_is_missed();
            let over = story.starts.values().filter(|starts| **starts > most).count();
            prop_assert!(!is_fixed || over == 0, "{:?}", story.starts);
        }
        story.end();
    }
}
