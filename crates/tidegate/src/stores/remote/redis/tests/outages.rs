//! Servers that are killed, halted, full, read only, or out of their minds.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use super::super::super::engine::StoredValue;
use super::super::super::suite::{eventually, told_of};
use super::*;

async fn fault_of(engine: &Engine) -> Option<EngineFault> {
    swap_one(engine, vec![compare(&name("fault"), ABSENT)]).await.err()
}

/// Waits until the engine answers with such a fault.
async fn fails(engine: &Engine, such: impl Fn(&EngineFault) -> bool) {
    eventually(async || fault_of(engine).await.as_ref().is_some_and(&such)).await;
}

#[tokio::test]
async fn a_server_that_was_killed_is_found_again() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let engine = engine(&[server.url()], "");
    ready(&engine).await;
    let one = name("killed");
    engine.watch(&one);
    told_of(&engine, &one).await;
    let version = place(&engine, &one, b"one").await;
    for _ in 0..2 {
        server.kill();
        fails(&engine, |fault| matches!(fault, EngineFault::Unreachable(_))).await;
        assert!(matches!(engine.remove(&one).await, Err(EngineFault::Unreachable(_))));
        assert!(matches!(engine.beat(1, SECOND).await, Err(EngineFault::Unreachable(_))));
        assert!(matches!(engine.scan(b"", Vec::new()).await, Err(EngineFault::Unreachable(_))));
        engine.leave(1).await;

        server.start_again();
        ready(&engine).await;
        assert_eq!(look(&engine, &one).await.version, version, "the server kept it");
        // Whoever watches is told to look, and then hears again.
        while !engine.freed().await.is_empty() {}
    }
    told_of(&engine, &one).await;
}

#[tokio::test]
async fn a_server_that_keeps_nothing_comes_back_empty() {
    let mut server = Server::start(&[]);
    let engine = engine(&[server.url()], "");
    ready(&engine).await;
    let one = name("empty");
    let version = place(&engine, &one, b"one").await;
    server.kill();
    server.start_again();
    ready(&engine).await;
    assert_eq!(
        stale(swap_one(&engine, vec![put(&one, version, b"two")]).await),
        [StoredValue::default()]
    );
}

#[tokio::test]
async fn a_server_that_is_halted_is_slow_then_away_then_good() {
    let server = Server::start(&[]);
    let engine = engine(&[server.url()], SHORT);
    ready(&engine).await;
    let one = name("halted");
    engine.watch(&one);
    told_of(&engine, &one).await;
    let version = place(&engine, &one, b"one").await;
    server.halt();
    let told = swap_one(&engine, vec![put(&one, version, b"two")]).await;
    assert_eq!(told, Err(EngineFault::Slow));
    let told = swap_one(&engine, vec![put(&one, version, b"two")]).await;
    assert!(
        matches!(told, Err(EngineFault::Unreachable(_))),
        "at once, while there is no connection"
    );
    server.go_on();
    ready(&engine).await;
    // What was asked for may have been done, and nothing else.
    let found = look(&engine, &one).await;
    assert!(found.value == b"two" || found.version == version, "{found:?}");
    while !engine.freed().await.is_empty() {}
}

/// Adds one to a count until it is told to stop: how often that was done, and how often nobody
/// knows.
async fn count(engine: &Engine, stop: &AtomicBool) -> (u64, u64) {
    let (mut sure, mut unknown) = (0, 0);
    let one = name("counted");
    let mut seen = StoredValue::default();
    while !stop.load(Relaxed) {
        tokio::task::yield_now().await;
        let told = seen.value.clone().try_into().map_or(0, u64::from_le_bytes);
        let change = put(&one, seen.version, &(told + 1).to_le_bytes());
        match swap_one(engine, vec![change.clone()]).await {
            Ok(Swapped::Done(versions)) => {
                sure += 1;
                seen =
                    StoredValue { version: versions[0], value: (told + 1).to_le_bytes().to_vec() };
            }
            Ok(Swapped::Stale(mut found)) => seen = found.remove(0),
            Ok(broken) => panic!("one name cannot lie apart: {broken:?}"),
            Err(_) => unknown += 1,
        }
    }
    (sure, unknown)
}

#[tokio::test]
async fn nothing_is_under_counted_while_a_server_is_halted() {
    let server = Server::start(&[]);
    let engines = [engine(&[server.url()], SHORT), engine(&[server.url()], SHORT)];
    let stop = AtomicBool::new(false);
    let error = async {
        for engine in &engines {
            ready(engine).await;
        }
        for _ in 0..3 {
            server.halt();
            fails(&engines[0], |fault| matches!(fault, EngineFault::Unreachable(_))).await;
            server.go_on();
            ready(&engines[0]).await;
            ready(&engines[1]).await;
        }
        stop.store(true, Relaxed);
    };
    let (one, two, ()) = tokio::join!(count(&engines[0], &stop), count(&engines[1], &stop), error);
    let (sure, unknown) = (one.0 + two.0, one.1 + two.1);
    let value = look(&engines[0], &name("counted")).await.value;
    let counted = value.try_into().map_or(0, u64::from_le_bytes);
    assert!(sure > 0 && (sure..=sure + unknown).contains(&counted), "{sure} {unknown} {counted}");
}

#[tokio::test]
async fn a_server_that_only_reads_is_left_for_the_next() {
    let (old, new) = (Server::start(&[]), Server::start(&[]));
    let engine = engine(&[old.url(), new.url()], "cluster = false");
    ready(&engine).await;
    let one = name("moved");
    place(&engine, &one, b"one").await;
    assert_eq!(old.ask(&["exists", "moved"]).trim(), "1");
    let port = new.port().to_string();
    assert_eq!(old.ask(&["replicaof", "127.0.0.1", &port]).trim(), "OK");
    let told = swap_one(&engine, vec![put(&one, 1, b"two"), put(&name("also"), ABSENT, b"two")]);
    // It may have been emptied already: then it is stale.
    if let Err(fault) = told.await {
        assert!(
            matches!(&fault, EngineFault::Refused(text) if text.contains("READONLY")),
            "{fault}"
        );
    }
    eventually(async || {
        let seen = StoredValue::default().version;
        swap_one(&engine, vec![put(&name("after"), seen, b"two")]).await.is_ok()
    })
    .await;
    assert_eq!(new.ask(&["exists", "after"]).trim(), "1");
}

#[tokio::test]
async fn a_full_server_refuses_and_changes_nothing() {
    let server = Server::start(&[]);
    let engine = engine(&[server.url()], "");
    ready(&engine).await;
    let one = name("full");
    let version = place(&engine, &one, b"one").await;
    server.ask(&["config", "set", "maxmemory", "1"]);
    for _ in 0..2 {
        let told = swap_one(&engine, vec![put(&one, version, b"two")]).await;
        assert!(
            matches!(&told, Err(EngineFault::Refused(text)) if text.contains("OOM")),
            "{told:?}"
        );
    }
    assert_eq!(look(&engine, &one).await.version, version, "and can be asked");
    server.ask(&["config", "set", "maxmemory", "0"]);
    done(swap_one(&engine, vec![put(&one, version, b"two")]).await);
}

/// A server that says the same, whatever it is told; its address.
fn parrot(says: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while stream.read(&mut bytes).is_ok_and(|read| read > 0) {
                    if stream.write_all(says).is_err() {
                        break;
                    }
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn nonsense_is_garbage_and_never_an_answer() {
    let garbage = |fault: &EngineFault| matches!(fault, EngineFault::Garbage(_));
    fails(&engine(&[parrot(b"HTTP/1.1 400 Bad Request\r\n\r\n")], SHORT), garbage).await;
    fails(&engine(&[parrot(b"\0\xff\r\n")], SHORT), garbage).await;
    // Good manners at first, and then nothing but politeness.
    let polite = engine(&[parrot(b"+OK\r\n+OK\r\n")], SHORT);
    fails(&polite, garbage).await;
    assert!(polite.remove(b"x").await.is_err());
    assert!(polite.beat(1, SECOND).await.is_err());
    assert!(polite.scan(b"x", Vec::new()).await.is_err());
    // Lengths that are only claimed are not believed.
    for claim in
        [b"$999999999999\r\n".as_slice(), b"*999999999\r\n", b"+OK\r\n+OK\r\n*99999999\r\n"]
    {
        let liar = engine(&[parrot(claim)], SHORT);
        fails(&liar, |fault| *fault != EngineFault::Unreachable(WAITING.to_owned())).await;
    }
}

/// What an engine says before it has tried.
const WAITING: &str = "it has not been connected to yet";

#[tokio::test]
async fn nobody_there_is_told_at_once() {
    let port = super::super::super::engines::free_port();
    let engine = engine(&[format!("redis://127.0.0.1:{port}")], "");
    assert_eq!(fault_of(&engine).await, Some(EngineFault::Unreachable(WAITING.to_owned())));
    fails(&engine, |fault| matches!(fault, EngineFault::Unreachable(text) if text != WAITING))
        .await;
}
