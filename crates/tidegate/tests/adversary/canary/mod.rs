//! Canaries: honest clients whose answers nobody else can have. Each lives in a thread of its own
//! and asks again and again; the first wrong, missing or foreign answer is kept and fails the test.

mod admin;
mod grpc;
mod http;
mod jarl;
mod proxy;
mod quotas;
mod resp;
mod smockron;
mod text;
mod throttr;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use crate::clock::{Moment, WATCHDOG, pause_ms};
use crate::seed::Random;
use crate::server::Doors;

/// What is wrong with an answer, with what was expected and what came.
pub(crate) type Wrong = String;

/// An honest client of one door.
pub(crate) trait Canary: Send {
    /// Asks once, and compares the answer with the model.
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong>;
}

/// A canary with its name in messages.
type Named = (String, Box<dyn Canary>);

/// Canaries at each listener of each door: so many that each loop of the door has some.
const PER_LISTENER: usize = 4;

/// The longest pause between two questions of one canary.
const PAUSE_MS: usize = 8;

/// All canaries of a server.
pub(crate) struct Flock {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    paused: bool,
    ended: bool,
    /// Canaries that wait for an answer.
    asking: usize,
    /// Questions of each canary that were answered.
    answered: Vec<usize>,
    wrong: Option<String>,
}

impl Flock {
    /// Starts canaries at every door.
    pub(crate) fn start(doors: &Doors, random: &mut Random) -> Self {
        let mut canaries: Vec<Named> = Vec::new();
        throttr::add(doors, &mut canaries);
        text::add(doors, &mut canaries);
        jarl::add(doors, &mut canaries);
        smockron::add(doors, &mut canaries);
        proxy::add(doors, &mut canaries);
        resp::add(doors, &mut canaries);
        grpc::add(doors, &mut canaries);
        quotas::add(doors, &mut canaries);
        http::add(doors, &mut canaries);
        admin::add(doors, &mut canaries);
        let state = State { answered: vec![0; canaries.len()], ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let threads = canaries.into_iter().enumerate().map(|(number, canary)| {
            let (shared, random) = (shared.clone(), random.fork());
            thread::spawn(move || shared.live(number, canary, random))
        });
        Self { threads: threads.collect(), shared }
    }

    /// Waits until no canary is in the middle of a question, and keeps them from the next.
    #[track_caller]
    pub(crate) fn pause(&self) {
        let mut state = self.shared.lock();
        state.paused = true;
        let waits = |state: &mut State| state.asking > 0 && state.wrong.is_none();
        let patience = WATCHDOG + WATCHDOG;
        let (state, timeout) =
            self.shared.changed.wait_timeout_while(state, patience, waits).expect("no panic");
        assert!(!timeout.timed_out(), "{} canaries have no answer", state.asking);
        drop(state);
        self.check();
    }

    /// Lets them go on.
    pub(crate) fn resume(&self) {
        self.shared.lock().paused = false;
        self.shared.changed.notify_all();
    }

    /// Fails if any answer was wrong.
    #[track_caller]
    pub(crate) fn check(&self) {
        let wrong = self.shared.lock().wrong.clone();
        if let Some(wrong) = wrong {
            panic!("a canary was answered wrongly: {wrong}");
        }
    }

    /// Waits until each of them has asked so many more questions, all answered rightly.
    #[track_caller]
    pub(crate) fn answers(&self, count: usize) {
        let goals: Vec<usize> = self.shared.lock().answered.iter().map(|had| had + count).collect();
        let begun = Moment::now();
        let has_all =
            |state: &State| state.answered.iter().zip(&goals).all(|(had, goal)| had >= goal);
        while !has_all(&self.shared.lock()) {
            self.check();
            let overdue = begun.elapsed() > WATCHDOG + WATCHDOG;
            assert!(!overdue, "not every canary got {count} answers in time");
            pause_ms(5);
        }
        self.check();
    }

    /// Ends all canaries; returns how many answers they got, all of them right.
    #[track_caller]
    pub(crate) fn end(mut self) -> usize {
        self.pause();
        self.dismiss();
        self.shared.lock().answered.iter().sum()
    }

    fn dismiss(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Flock {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// The life of one canary.
    fn live(&self, number: usize, (name, mut canary): Named, mut random: Random) {
        loop {
            let state = self.lock();
            let waits = |state: &mut State| state.paused && !state.ended;
            let mut state = self.changed.wait_while(state, waits).expect("no panic");
            if state.ended {
                return;
            }
            state.asking += 1;
            drop(state);
            let begun = Moment::now();
            let told = catch_unwind(AssertUnwindSafe(|| canary.ask(&mut random)));
            let told = told.unwrap_or_else(|_| Err("it panicked; see above".to_owned()));
            let mut state = self.lock();
            state.asking -= 1;
            state.answered[number] += 1;
            if let (Err(wrong), None) = (&told, &state.wrong) {
                state.wrong = Some(format!("{name}, after {:?}: {wrong}", begun.elapsed()));
            }
            self.changed.notify_all();
            if told.is_err() || state.ended {
                return;
            }
            drop(state);
            pause_ms(random.below(PAUSE_MS) as u64);
        }
    }
}

/// Says what was expected where something else came.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), Wrong> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found:?} in place of {expected:?}"))
}

/// Turns a failure of a socket into words.
fn failed(what: &str) -> impl Fn(std::io::Error) -> Wrong {
    let what = what.to_owned();
    move |error| format!("{what}: {error}")
}
