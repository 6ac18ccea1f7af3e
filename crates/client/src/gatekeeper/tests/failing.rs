//! The promises for when something fails, one test each: nothing that would have passed is delayed
//! or rejected, and no request waits.
//!
//! Decisions are calls that return: had one of them waited for a master, its test would never end.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;

const MANY: u64 = 20_000;

/// As many requests as that, of many clients, all pass.
fn all_pass(gatekeeper: &Gatekeeper, domain: Domain) {
    let before = gatekeeper.stats();
    for at in 0..MANY {
        assert!(
            gatekeeper.decide_in(domain, format!("client {}", at % 100).as_bytes()).is_accept()
        );
    }
    let after = gatekeeper.stats();
    assert_eq!(after.accepted, before.accepted + MANY);
    assert_eq!((after.delayed, after.rejected), (before.delayed, before.rejected));
}

#[tokio::test]
async fn without_a_master_ever_all_pass() {
    let (gatekeeper, api, _) = alone(|_| {});
    all_pass(&gatekeeper, api);
    assert_eq!(gatekeeper.stats().dropped_no_master, MANY);
}

#[tokio::test]
async fn when_the_master_is_gone_what_it_said_ends_and_then_all_pass() {
    let master = TestMaster::start().await;
    let (config, clock) = config([master.of(&["api"])]);
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let api = gatekeeper.domain("api").unwrap();
    soon(async {
        while gatekeeper.until_ms(api, b"client 7").is_none() {
            master.delay("api", "client 7", T + 1_000);
            tokio::task::yield_now().await;
        }
    })
    .await;
    soon(gatekeeper.heard(api)).await;
    master.stop().await;
    until(|| !gatekeeper.shared.core.domains[0].heard.load(Relaxed)).await;
    drop(delayed(gatekeeper.decide_in(api, b"client 7")));
    clock.advance(Duration::from_secs(1));
    all_pass(&gatekeeper, api);
    assert!(gatekeeper.stats().dropped_no_master >= MANY);
}

/// A peer that shakes hands and subscribes, and then neither reads nor goes away.
fn shake_hands(stream: &mut TcpStream) {
    let mut greeting = tidegate_wire::zmtp::greeting();
    greeting[32] = 0;
    stream.write_all(&greeting).unwrap();
    stream.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\0\x01\x01").unwrap();
    let mut theirs = [0; tidegate_wire::zmtp::GREETING_BYTES];
    stream.read_exact(&mut theirs).unwrap();
}

#[tokio::test]
async fn a_master_that_stands_still_holds_nobody_up() {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let accounting = door.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = door.accept().unwrap();
        shake_hands(&mut stream);
        stream
    });
    let (config, _) = config([of((accounting, nowhere().1), &["api"])]);
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let api = gatekeeper.domain("api").unwrap();
    soon(gatekeeper.heard(api)).await;
    let stream = peer.join().unwrap();
    soon(async {
        // The kernel's buffers fill, then the queue, and then accounting is dropped.
        while gatekeeper.stats().dropped_full == 0 {
            all_pass(&gatekeeper, api);
            tokio::task::yield_now().await;
        }
    })
    .await;
    all_pass(&gatekeeper, api);
    assert_eq!(gatekeeper.stats().connects, 1);
    drop(stream);
    until(|| !gatekeeper.shared.core.domains[0].heard.load(Relaxed)).await;
    // What was on its way is counted right after, by another thread.
    until(|| {
        let stats = gatekeeper.stats();
        stats.sent + stats.dropped() >= stats.accepted
    })
    .await;
    let stats = gatekeeper.stats();
    assert!(stats.dropped_lost > 0);
    let questions = stats.sent + stats.dropped() - stats.accepted;
    assert!(questions <= 9, "{stats:?}: nothing is counted twice");
}

#[tokio::test]
async fn a_master_that_is_overloaded_and_speaks_too_late_delays_nobody() {
    let master = TestMaster::start().await;
    let (config, clock) = config([master.of(&["api"])]);
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let api = gatekeeper.domain("api").unwrap();
    soon(gatekeeper.heard(api)).await;
    clock.advance(Duration::from_secs(10));
    soon(async {
        while gatekeeper.stats().control == 0 {
            (0..100).for_each(|at| master.delay("api", &format!("client {at}"), T + 9_999));
            tokio::task::yield_now().await;
        }
    })
    .await;
    all_pass(&gatekeeper, api);
    assert_eq!(gatekeeper.stats().identifiers, 0, "what is past is not even kept");
}

#[tokio::test]
async fn accounting_that_is_dropped_delays_nobody() {
    let master = TestMaster::start().await;
    let (mut config, _) = config([master.of(&["api"])]);
    config.queue_bytes = 0;
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let api = gatekeeper.domain("api").unwrap();
    soon(gatekeeper.heard(api)).await;
    // Faster than the smallest queue is emptied.
    while gatekeeper.stats().dropped_full == 0 {
        all_pass(&gatekeeper, api);
    }
    all_pass(&gatekeeper, api);
    let told = || gatekeeper.stats().sent + gatekeeper.stats().dropped();
    until(|| told() >= gatekeeper.stats().accepted).await;
}

#[tokio::test]
async fn a_peer_that_is_no_master_does_no_harm() {
    for nonsense in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        &[0xff; 100],
        &[0; 64],
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0PLAIN",
    ] {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let accounting = door.local_addr().unwrap();
        let (tried, tries) = std::sync::mpsc::channel();
        let peer = std::thread::spawn(move || {
            for _ in 0..3 {
                let (mut stream, _) = door.accept().unwrap();
                let _ = stream.write_all(nonsense);
                tried.send(()).unwrap();
            }
        });
        let (config, _) = config([of((accounting, nowhere().1), &["api"])]);
        let gatekeeper = Gatekeeper::connect(&config).unwrap();
        let api = gatekeeper.domain("api").unwrap();
        let mut seen = 0;
        soon(async {
            while seen < 3 {
                seen += tries.try_iter().count();
                tokio::task::yield_now().await;
            }
        })
        .await;
        all_pass(&gatekeeper, api);
        assert_eq!(gatekeeper.stats().connects, 0);
        peer.join().unwrap();
    }
}
