//! A loop that is turned by hand, with a clock that is moved by hand.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use tidegate_core::Now;
use tidegate_core::time::SECOND;
use tidegate_wire::throttr::{Request, ValueSize};

use super::background::ListingAnswer;
use super::counts::Figure;
use super::handler::LINGER_MAX;
use super::permits::Permits;
use super::session::Session;
use super::*;
use crate::clock::Clock;
use crate::doors::io::certificates::Certificates;
use crate::doors::io::inbox::LoopInbox;
use crate::doors::io::listener::Peer;
use crate::doors::io::test_loop::TestLoop;
use crate::metrics::{Metrics, Sizes};
use crate::records::{Records, Settings};
use crate::settings::read::CompletedTable as _;
use crate::settings::tls::Tls;

const SIZE: ValueSize = ValueSize::Bits16;
const NOW: Now = Now { mono: 1 << 60, unix: 1 << 60 };

/// A loop that turns when it is told to, and what it shares with others.
fn open() -> (TestLoop<ThrottrHandler>, Arc<ThrottrState>) {
    open_with(None, Arc::default())
}

fn open_with(
    certificates: Option<Arc<Certificates>>,
    metrics: Arc<Metrics>,
) -> (TestLoop<ThrottrHandler>, Arc<ThrottrState>) {
    let clock = Clock::manual(NOW);
    let records = Records::new(Settings { max_records: 100, max_bytes: 64 << 20 });
    let inbox = LoopInbox::new().expect("an eventfd");
    let local = LocalSubscriptions::new(inbox.clone());
    let state = ThrottrState::new(clock.clone());
    let handler = ThrottrHandler::new(records, state.clone(), local, metrics.clone(), SIZE, 100);
    (TestLoop::with_tls(handler, inbox, None, (clock, metrics), 3, certificates), state)
}

/// A client of another loop.
fn other_loop(state: &ThrottrState) -> Session {
    let mut local = LocalSubscriptions::new(LoopInbox::new().expect("an eventfd"));
    Session::open(Peer::Unix, 0, state, &mut local, NOW).expect("randomness")
}

fn say(mut client: &UnixStream, request: Request<'_>) {
    let mut bytes = Vec::new();
    request.encode(SIZE, &mut bytes).expect("a request that can be written");
    client.write_all(&bytes).expect("the socket takes it");
}

/// What has come so far.
fn heard(mut client: &UnixStream) -> Vec<u8> {
    let mut bytes = vec![0; 1000];
    let count = client.read(&mut bytes).unwrap_or(0);
    bytes.truncate(count);
    bytes
}

#[test]
fn an_event_goes_out_before_the_reply_to_what_came_later() {
    let (mut turning, state) = open();
    let reader = turning.client();
    // Somebody in another loop publishes, and the reader asks before this one looks.
    let writer = other_loop(&state);
    assert!(state.channels.publish(b"*", b"hi", &writer.stats).somebody);
    say(&reader, Request::Query { key: b"none" });
    turning.turn();
    assert_eq!(heard(&reader), b"\x19\x01\x02\x00*hi\x00");
}

#[test]
fn a_bell_that_comes_after_its_letter_was_read_falls_silent() {
    let (mut turning, _) = open();
    rustix::io::write(turning.inbox().wake_fd(), &1u64.to_ne_bytes()).expect("an eventfd");
    turning.turn();
    let left = rustix::io::read(turning.inbox().wake_fd(), &mut [0; 8]);
    assert_eq!(left, Err(rustix::io::Errno::AGAIN));
}

#[test]
fn who_is_silent_for_too_long_is_closed() {
    let (mut turning, _) = open();
    let (silent, busy) = (turning.client(), turning.client());
    turning.skip(50 * SECOND);
    say(&busy, Request::Query { key: b"none" });
    turning.turn();
    turning.advance(11 * SECOND);
    assert_eq!(turning.connections(), 1);
    assert_eq!((&silent).read(&mut [0; 9]).expect("the end"), 0);
    assert_eq!(heard(&busy), [0]);
}

#[test]
fn who_is_idle_gives_way_and_who_listens_does_not() {
    let (mut turning, _) = open();
    let (listening, idle, begun) = (turning.client(), turning.client(), turning.client());
    say(&listening, Request::Subscribe { channel: b"news" });
    (&begun).write_all(&[2]).expect("the socket takes it");
    turning.turn();
    turning.skip(2 * SECOND);
    let _newcomer = turning.client();
    turning.turn();
    assert_eq!((&idle).read(&mut [0; 9]).expect("the end"), 0);
    assert_eq!((turning.connections(), heard(&listening)), (3, vec![1]));

    // A request that stands still is no reason to stay, and neither is one that is no more.
    turning.advance(5 * SECOND);
    let _newcomer = turning.client();
    turning.turn();
    assert_eq!((&begun).read(&mut [0; 9]).expect("the end"), 0);
    turning.advance(61 * SECOND);
    assert_eq!(turning.connections(), 1, "only who listens is left");
    say(&listening, Request::Unsubscribe { channel: b"news" });
    turning.turn();
    turning.advance(61 * SECOND);
    assert_eq!(turning.connections(), 0);
}

#[test]
fn who_was_told_to_go_may_read_for_a_while() {
    let (mut turning, _) = open();
    let lost = turning.client();
    (&lost).write_all(&[2, 0, 0xff]).expect("the socket takes it");
    turning.turn();
    assert_eq!(heard(&lost), [0]);
    assert_eq!((&lost).read(&mut [0; 9]).expect("the end"), 0);
    assert_eq!(turning.connections(), 1, "closing could take back what it has not read");
    turning.advance(LINGER_MAX + 1);
    assert_eq!(turning.connections(), 0);
}

#[test]
fn who_does_not_read_loses_events() {
    const EVENTS: u64 = 100;
    let (mut turning, state) = open();
    let _deaf = turning.client();
    let writer = other_loop(&state);
    for _ in 0..EVENTS {
        state.channels.publish(b"*", &[7; 60_000], &writer.stats);
        turning.turn();
    }
    let lost = state.sum().figure(Figure::Lost).total;
    assert!(lost > EVENTS / 2 && lost < EVENTS, "{lost}");
}

#[test]
fn replies_to_a_client_that_left_reach_nobody_else() {
    let (mut turning, _) = open();
    let (leaving, staying) = (turning.client(), turning.client());
    say(&leaving, Request::Whoami);
    drop(leaving);
    turning.turn();
    assert_eq!(turning.connections(), 1, "its reply could not be written");
    say(&staying, Request::Query { key: b"none" });
    turning.turn();
    assert_eq!(heard(&staying), [0]);
}

#[test]
fn who_leaves_a_long_answer_unread_loses_it_sooner_if_others_wait() {
    for (others_wait, patience) in [(false, 30 * SECOND), (true, SECOND)] {
        let (mut turning, _) = open();
        let permits = Permits::new(4 << 20);
        let _deaf = turning.client();
        let mut permit = permits.wait(1);
        permit.set_bytes(4 << 20);
        let bytes = vec![0; 4 << 20];
        turning.answer_first(ListingAnswer { bytes, permit });
        thread::scope(|scope| {
            if others_wait {
                scope.spawn(|| drop(permits.wait(1)));
                while !permits.are_wanted() {
                    thread::yield_now();
                }
            }
            turning.advance(patience);
            assert_eq!(turning.connections(), 1);
            turning.advance(SECOND + 1);
            assert_eq!(turning.connections(), 0);
        });
    }
}

#[test]
fn a_handshake_that_does_not_end_is_closed() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().expect("a folder");
    let own = rcgen::generate_simple_self_signed(vec!["gate".to_owned()]).expect("a certificate");
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, own.cert.pem()).expect("a file");
    std::fs::write(&key, own.signing_key.serialize_pem()).expect("a file");
    let tls = Tls { cert, key, client_ca: None, client_names: Vec::new() };
    let certificates = Certificates::read(Some(&tls), &[]).expect("sound files");
    let metrics = Arc::new(Metrics::new());
    let (mut turning, _) = open_with(certificates, metrics.clone());
    let (slow, silent) = (turning.client(), turning.client());
    (&slow).write_all(b"\x16\x03\x01").expect("the socket takes it");
    turning.turn();
    turning.advance(5 * SECOND);
    assert_eq!(turning.connections(), 2);
    turning.advance(SECOND);
    // An alert, and the end.
    (&slow).read_to_end(&mut Vec::new()).expect("the end");
    assert_eq!(turning.connections(), 1, "who has not begun is idle");
    turning.advance(55 * SECOND);
    (&silent).read_to_end(&mut Vec::new()).expect("the end");
    let page = metrics.encode(Sizes::default());
    for reason in ["handshake_slow", "idle"] {
        let series = format!("tidegate_bad_input_total{{door=\"throttr\",reason=\"{reason}\"}} 1");
        assert!(page.contains(&series), "{reason}");
    }
}

#[test]
fn certificates_need_a_tcp_address() {
    let table = |more: &str| {
        let text = format!("{more}\nunix = 'a'\ntls = {{ cert = 'c', key = 'k' }}");
        toml::from_str::<Config>(&text).expect("a table").complete()
    };
    assert!(table("listen = '127.0.0.1:0'").is_ok());
    assert!(table("").expect_err("no address").contains("this table has only `unix`"));
}
