//! What Envoy 1.40 does with assignments, as far as the server relies on it. These are facts about
//! Envoy: the division and the simulated Envoys of its tests are built on them.

use super::super::address;
use super::scripted::{Scripted, Stream, Told};
use super::{Unassigned, ask, of, start_with};
use crate::engines::until;
use crate::envoy::Envoy;
use crate::upstream::Upstream;

/// A bucket whose rule shows that Envoy obeys a message: it is the last one in each.
const SIGN: &str = "sign";

struct Stage {
    envoy: Envoy,
    stream: Stream,
    server: Scripted,
    _app: Upstream,
    signs: bool,
}

impl Stage {
    /// An Envoy whose buckets of `users` and of the sign are known to the server.
    fn new(users: &[&str]) -> Self {
        Self::with(users, Unassigned::Denied)
    }

    fn with(users: &[&str], unassigned: Unassigned) -> Self {
        let server = Scripted::start();
        let app = Upstream::start();
        let envoy = start_with(unassigned, address(app.address()), address(server.address));
        let passed = u64::from(unassigned != Unassigned::Denied);
        let first = (passed, 1 - passed, 0);
        let status = ask(&envoy, &of(SIGN)).status();
        assert_eq!(status, if passed > 0 { 204 } else { 429 }, "it has no assignment");
        let stream = server.next();
        assert_eq!(stream.next_of(SIGN), first, "the first report comes at once");
        // The rule of the sign is another one after each message, from the first one on.
        let mut stage = Self { envoy, stream, server, _app: app, signs: passed > 0 };
        for user in users {
            assert_eq!(stage.passes(user, 1) as u64, passed);
            assert_eq!(stage.stream.next_of(user), first);
        }
        stage.say(&[]);
        stage
    }

    /// Sends a message, and waits until Envoy obeys it.
    fn say(&mut self, actions: &[(&str, Told)]) {
        self.signs = !self.signs;
        let sign = if self.signs { Told::Allow } else { Told::Deny };
        self.stream.say(&[actions, &[(SIGN, sign)]].concat());
        let status = if self.signs { 204 } else { 429 };
        until(|| ask(&self.envoy, &of(SIGN)).status() == status);
    }

    /// How many of so many requests pass.
    fn passes(&self, user: &str, requests: usize) -> usize {
        (0..requests).filter(|_| ask(&self.envoy, &of(user)).status() == 204).count()
    }
}

#[test]
fn buckets_start_full_and_keep_what_they_have() {
    let mut stage = Stage::new(&["a", "b"]);
    stage.say(&[("a", Told::Tokens(5)), ("b", Told::Tokens(10))]);
    assert_eq!(stage.passes("a", 9), 5);
    // The same again changes nothing.
    stage.say(&[("a", Told::Tokens(5))]);
    assert_eq!(stage.passes("a", 3), 0);
    // A larger one is as empty as the one before: of ten six were left, so of a hundred sixty are.
    assert_eq!(stage.passes("b", 4), 4);
    stage.say(&[("a", Told::Tokens(50)), ("b", Told::Tokens(100))]);
    assert_eq!(stage.passes("a", 3), 0);
    assert_eq!(stage.passes("b", 70), 60);
    // After a rule of another kind it is full, also if both come in one message: a slice is this.
    stage.say(&[("a", Told::Deny), ("a", Told::Tokens(7))]);
    assert_eq!(stage.passes("a", 9), 7);
    stage.say(&[("a", Told::Deny), ("a", Told::Tokens(3))]);
    assert_eq!(stage.passes("a", 9), 3);
    // And after it was abandoned: the next request is a first one.
    stage.say(&[("a", Told::Abandon)]);
    assert_eq!(stage.passes("a", 1), 0);
    until(|| stage.stream.next_of("a") == (0, 1, 0));
    stage.say(&[("a", Told::Tokens(2))]);
    assert_eq!(stage.passes("a", 4), 2);
}

#[test]
fn reports_tell_all_buckets_and_what_has_expired_is_denied() {
    let mut stage = Stage::new(&["a", "b"]);
    stage.say(&[("a", Told::Tokens(3)), ("b", Told::Brief(1_000_000, 2))]);
    assert_eq!(stage.passes("a", 5), 3);
    // Its seconds run from when it came.
    until(|| stage.passes("b", 1) == 0);
    assert_eq!(stage.passes("b", 5), 0);
    // A report has all buckets, the one of which there is nothing to tell too.
    let names = |usages: &[(String, _)]| -> Vec<String> {
        usages.iter().map(|(user, _)| user.clone()).collect()
    };
    let (mut allowed, mut whole) = (0, 0);
    until(|| {
        let report = stage.stream.next();
        allowed += report
            .iter()
            .find(|(user, _)| user == "a")
            .map_or(0, |(_, it)| it.num_requests_allowed);
        whole += u32::from(names(&report) == ["a", "b", SIGN]);
        allowed == 3 && whole > 1
    });
    let (allowed, denied, seconds) = stage.stream.next_of("a");
    assert_eq!((allowed, denied), (0, 0));
    assert!(seconds > 0);
}

#[test]
fn assignments_outlive_their_stream() {
    let mut stage = Stage::new(&["a"]);
    stage.say(&[("a", Told::Tokens(9))]);
    assert_eq!(stage.passes("a", 2), 2);
    let Stage { envoy, stream, server, _app, signs } = stage;
    drop(stream);
    // Envoy comes back by itself, and its bucket is as it was.
    let stream = server.next();
    let mut stage = Stage { envoy, stream, server, _app, signs };
    stage.say(&[("a", Told::Tokens(9))]);
    assert_eq!(stage.passes("a", 9), 7);
    until(|| stage.stream.next_of("a").0 == 7);
}

#[test]
fn some_assignments_are_no_limit_or_end_at_once() {
    let mut stage = Stage::new(&["a", "b", "c", "d", "e"]);
    stage.say(&[
        // Without a time to live, and with less than a second of it, they have expired.
        ("a", Told::AllowFor(None)),
        ("b", Told::AllowFor(Some((0, 900_000_000)))),
        // An interval of less than a second is no limit.
        ("c", Told::Filled(1, 1, (0, 500_000_000))),
        ("d", Told::Tokens(3)),
        ("e", Told::Filled(5, 1_000_000, (31_536_000, 0))),
    ]);
    assert_eq!((stage.passes("a", 3), stage.passes("b", 3)), (0, 0));
    assert_eq!(stage.passes("c", 50), 50);
    assert_eq!(stage.passes("e", 7), 5);
    // What Envoy does not know leaves the assignment as it was, and so does another interval: it
    // would be full again at once.
    stage.say(&[("d", Told::PerSecond(1_000)), ("e", Told::Filled(5, 1_000_000, (1, 0)))]);
    assert_eq!(stage.passes("d", 5), 3);
    assert_eq!(stage.passes("e", 5), 0);
}

#[test]
fn what_follows_an_assignment_that_has_expired() {
    let mut stage = Stage::with(&["a", "b", "c"], Unassigned::Reused);
    stage.say(&[("a", Told::DenyFor(2)), ("b", Told::Brief(2, 2)), ("c", Told::Tokens(2))]);
    assert_eq!(stage.passes("b", 2) + stage.passes("c", 2), 4);
    assert_eq!(stage.passes("c", 3), 0);
    // Envoy does not reuse the last assignment, though it was told to: all pass, as without one.
    until(|| stage.passes("a", 1) == 1);
    assert_eq!(stage.passes("b", 9), 9);
    // The next bucket is full, though the one before was empty.
    stage.say(&[("b", Told::Tokens(3)), ("c", Told::Tokens(3))]);
    assert_eq!((stage.passes("b", 9), stage.passes("c", 9)), (3, 0));
}
