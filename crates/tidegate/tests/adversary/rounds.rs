//! Rounds of attacks at all doors at once, around canaries at all doors; after each the server is
//! quiet and holds no more than before.

use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::canary::Flock;
use crate::clock::pause_ms;
use crate::hostile::stopped::Stopped;
use crate::hostile::{self, Held, LEAVES, READS, Target};
use crate::quiet;
use crate::seed::{Random, Seed, soak};
use crate::server::{Doors, Server};

/// Threads of hostile clients.
const ATTACKERS: usize = 4;
/// How long burdens stay: longer than anything that a door does every now and then.
const BURDENED_MS: u64 = 1_500;

/// How much there is of each attack.
#[derive(Clone, Copy)]
pub(crate) struct Force {
    visits: usize,
    datagrams: usize,
    burdens: usize,
    flood: usize,
}

impl Force {
    pub(crate) const SHARE: Self = Self { visits: 400, datagrams: 2_000, burdens: 1, flood: 60 };
    pub(crate) const WHOLE: Self =
        Self { visits: 3_000, datagrams: 20_000, burdens: 2, flood: 250 };

    /// The share, or the whole where it was asked for.
    pub(crate) fn chosen() -> Self {
        if soak() { Self::WHOLE } else { Self::SHARE }
    }
}

/// Lets this process, and servers that it starts, open as many files as the system allows.
pub(crate) fn open_many_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// One round: every attack at the same time.
pub(crate) fn attack(doors: &Doors, random: &mut Random, force: Force) {
    let targets = hostile::targets(doors);
    let (held, targets) = (Held::default(), &targets[..]);
    let stopped = Stopped::start(targets, random);
    thread::scope(|scope| {
        for _ in 0..ATTACKERS {
            let (mut random, held) = (random.fork(), &held);
            scope.spawn(move || {
                for _ in 0..force.visits / ATTACKERS {
                    hostile::random_visit(targets, &mut random, held);
                }
            });
        }
        let mut burdening = random.fork();
        scope.spawn(move || {
            let streams = hostile::burden(targets, &mut burdening, force.burdens);
            pause_ms(BURDENED_MS);
            hostile::leave_all(streams, &mut burdening);
        });
        let mut flooding = random.fork();
        scope.spawn(move || {
            hostile::datagrams::send(doors.text, force.datagrams, &mut flooding);
            for target in targets {
                hostile::flood(target, force.flood, &mut flooding);
            }
        });
    });
    stopped.go_on();
    held.release();
}

#[test]
fn hostile_clients_disturb_nobody() {
    open_many_files();
    let seed = Seed::new();
    let mut random = seed.random(1);
    let server = Server::start("");
    let flock = Flock::start(&server.doors, &mut random);
    // The first round grows every buffer and table to its size.
    attack(&server.doors, &mut random, Force::chosen());
    flock.answers(20);
    flock.pause();
    let before = quiet::holdings(&server);
    for round in 0..if soak() { 8 } else { 2 } {
        flock.resume();
        attack(&server.doors, &mut random, Force::chosen());
        flock.answers(10);
        flock.pause();
        quiet::returns_to(&server, &before);
        eprintln!("round {round}: {}", quiet::holdings(&server));
    }
    flock.resume();
    flock.answers(10);
    eprintln!("{} answers, all of them right", flock.end());
}

/// Leaves at each byte of each request, in each way, having read nothing, some or all.
#[test]
fn clients_may_leave_at_any_point() {
    open_many_files();
    let seed = Seed::new();
    let mut random = seed.random(2);
    let server = Server::start("");
    let flock = Flock::start(&server.doors, &mut random);
    flock.answers(10);
    flock.pause();
    let before = quiet::holdings(&server);
    flock.resume();
    let held = Held::default();
    let targets = hostile::targets(&server.doors);
    thread::scope(|scope| {
        for target in &targets {
            let (mut random, held) = (random.fork(), &held);
            scope.spawn(move || leave_everywhere(target, &mut random, held));
        }
    });
    held.release();
    flock.answers(10);
    flock.pause();
    quiet::returns_to(&server, &before);
    flock.resume();
    flock.end();
}

/// Each script cut at some of its bytes, or at all of them; a long one near its ends only.
fn leave_everywhere(target: &Target, random: &mut Random, held: &Held) {
    const NEAR: usize = 150;
    for script in &target.scripts {
        let is_far = |at: &usize| *at > NEAR && at + NEAR < script.len();
        let mut cuts: Vec<usize> = (0..=script.len()).filter(|at| !is_far(at)).collect();
        if !soak() {
            cuts = (0..6).map(|_| *random.pick(&cuts)).chain([script.len()]).collect();
        }
        for at in cuts {
            let (reads, leave) = (*random.pick(&READS), LEAVES[random.below(3)]);
            hostile::visit(target, &script[..at], reads, leave, held);
        }
    }
}
