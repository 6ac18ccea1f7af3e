//! Several real Envoys share one limit, in real time: they come and go, stop, and the server is
//! started again. What reaches the application stays within the limit in every span.
//!
//! A short run is part of every run of the tests, the rest of `make soak`.

use std::time::Duration;

use rustix::process::Signal;

use super::load::{App, Load};
use super::oracle::{Use, busiest_window, overshoot};
use super::{Unassigned, start_beside};
use crate::clock::unix_ms;
use crate::envoy::Envoy;
use crate::program::Program;

/// Clients of each Envoy, and how often each asks: together twice what the limit allows, and all
/// three Envoys six times.
const CLIENTS: usize = 4;
const EVERY: Duration = Duration::from_millis(33);

const RATE: f64 = 60.0;
const BURST: f64 = 60.0;
const GCRA: &str = "limit = '60 per 1s burst 60'";

/// Uses that two clocks, one reading after the other, may disagree about: none.
const TOLERANCE: f64 = 1e-6;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The server, the application, and Envoys with their clients.
struct Play {
    program: Program,
    unassigned: Unassigned,
    app: App,
    envoys: Vec<(Envoy, Load)>,
    /// When the start was, since 1970.
    began: Duration,
    /// Of Envoys that are gone.
    uses: Vec<Use>,
}

impl Play {
    fn start(limit: &str) -> Self {
        Self::start_with(limit, Unassigned::Denied)
    }

    fn start_with(limit: &str, unassigned: Unassigned) -> Self {
        let rules = format!("[[rule]]\nmatch = 'web *'\n{limit}\n[grpc]\nunix = 'grpc.sock'\n");
        let program = Program::serve(&rules);
        let app = App::start();
        let began = Duration::from_millis(unix_ms()).saturating_sub(app.start.elapsed());
        Self { program, unassigned, app, envoys: Vec::new(), began, uses: Vec::new() }
    }

    /// At this time another Envoy comes, with its clients.
    fn join(&mut self, at: Duration) {
        self.app.wait_until(at);
        let socket = self.program.folder().join("grpc.sock");
        let envoy = start_beside(self.app.address, &socket, self.unassigned);
        let load = Load::start(&self.app, envoy.address("web"), "a", CLIENTS, EVERY);
        self.envoys.push((envoy, load));
    }

    /// At this time the last Envoy is killed.
    fn kill(&mut self, at: Duration) {
        self.app.wait_until(at);
        let (envoy, load) = self.envoys.pop().expect("an Envoy");
        drop(envoy);
        self.uses.extend(load.end());
    }

    /// All uses until this time.
    fn end(mut self, at: Duration) -> Vec<Use> {
        self.app.wait_until(at);
        for (_envoy, load) in self.envoys {
            self.uses.extend(load.end());
        }
        self.uses
    }
}

/// How many arrived in this span.
fn arrived(uses: &[Use], from: Duration, until: Duration) -> usize {
    uses.iter().filter(|one| (from..until).contains(&one.arrived)).count()
}

#[track_caller]
fn check_limit(uses: &[Use]) {
    let over = overshoot(uses, RATE, BURST);
    eprintln!(
        "{} uses, most in a span: {:.1} of {BURST} beyond the rate",
        uses.len(),
        over + BURST
    );
    assert!(over <= TOLERANCE, "{over} too many");
}

fn soaks() -> bool {
    std::env::var_os("TIDEGATE_SOAK").is_some()
}

#[test]
fn envoys_that_come_share_a_limit_and_never_exceed_it() {
    let mut play = Play::start(GCRA);
    for at in [0, 10, 20] {
        play.join(seconds(at));
    }
    let uses = play.end(seconds(40));
    check_limit(&uses);
    // Nine tenths are usual; how busy the machine is decides.
    let late = arrived(&uses, seconds(30), seconds(40));
    assert!(late > 200, "{late} of 600 in the last ten seconds");
}

#[test]
fn envoys_that_die_or_stop_and_a_server_that_does_lend_nothing_twice() {
    if !soaks() {
        return;
    }
    let mut play = Play::start(GCRA);
    for at in [0, 10, 20] {
        play.join(seconds(at));
    }
    play.kill(seconds(35));
    play.app.wait_until(seconds(45));
    play.envoys[0].0.signal(Signal::STOP);
    play.app.wait_until(seconds(59));
    play.envoys[0].0.signal(Signal::CONT);
    play.app.wait_until(seconds(75));
    play.program = play.program.crash_and_restart();
    play.join(seconds(80));
    play.app.wait_until(seconds(95));
    play.program = play.program.restart();
    let uses = play.end(seconds(125));
    check_limit(&uses);
    let late = arrived(&uses, seconds(115), seconds(125));
    assert!(late > 200, "{late} of 600 in the last ten seconds");
}

#[test]
fn envoys_share_windows_and_never_exceed_one() {
    if !soaks() {
        return;
    }
    const WINDOW: Duration = Duration::from_secs(10);
    let mut play = Play::start("limit = '600 per 10s'\nalgorithm = 'fixed-window'");
    for at in [0, 10, 20] {
        play.join(seconds(at));
    }
    play.kill(seconds(40));
    let began = play.began;
    let uses = play.end(seconds(70));
    let most = busiest_window(&uses, began, WINDOW);
    eprintln!("{} uses, most in a window: {most} of 600", uses.len());
    assert!(most <= 600, "{most} in a window");
    let late = arrived(&uses, seconds(40), seconds(70));
    assert!(late > 600, "{late} of 1800 in the last thirty seconds");
}

/// With Envoy's default, requests pass in addition to the limit while there is no assignment: for
/// seven seconds after the start of the server, and when an Envoy joins. From then on assignments
/// follow each other without a gap.
#[test]
fn by_default_only_what_comes_before_the_first_answer_is_beyond_the_limit() {
    if !soaks() {
        return;
    }
    const WINDOW: Duration = Duration::from_secs(10);
    let mut play =
        Play::start_with("limit = '600 per 10s'\nalgorithm = 'fixed-window'", Unassigned::Allowed);
    play.join(seconds(8));
    play.join(seconds(12));
    play.join(seconds(14));
    let began = play.began;
    let uses = play.end(seconds(75));
    let joined: Vec<Use> = uses.iter().filter(|one| one.sent > seconds(25)).copied().collect();
    let most = busiest_window(&joined, began, WINDOW);
    eprintln!("{} uses, most in a window: {most} of 600", uses.len());
    assert!(most <= 600, "{most} in a window");
    // Of each client a few requests pass before Envoy has its first answer.
    let most = busiest_window(&uses, began, WINDOW);
    assert!(most <= 600 + 3 * CLIENTS * 3, "{most} in a window");
}
