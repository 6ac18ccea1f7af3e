//! The engine against real servers: the shared properties, and what only Redis can do to us.

mod answers;
mod clusters;
mod logins;
mod outages;

use tidegate_core::time::SECOND;

use super::super::engine::{ABSENT, Engine, EngineFault, Swapped, Timed};
use super::super::engines::PATIENCE;
use super::super::engines::redis::{Cluster, Server};
use super::super::settings::Settings;
use super::super::suite::{
    compare, done, every_property, look, name, place, put, ready, stale, swap_one,
};
use super::Redis;
use crate::settings::units::Span;

/// A server that will not answer is not waited for longer than this.
const SHORT: &str = "timeout = \"100ms\"";

/// An engine for these urls, with further settings. It waits longer than usual: a busy machine is
/// no fault of the engine.
fn try_engine(urls: &[String], more: &str) -> Result<Engine, String> {
    let text = format!("kind = \"redis\"\nurl = {urls:?}\n{more}");
    let mut settings: Settings = toml::from_str(&text).expect("settings");
    settings.timeout.get_or_insert(Span(PATIENCE / 10));
    Redis::new(&settings).map(Engine::Redis)
}

fn engine(urls: &[String], more: &str) -> Engine {
    try_engine(urls, more).expect("an engine")
}

#[tokio::test]
async fn one_server_has_every_property() {
    let server = Server::start(&[]);
    every_property(&engine(&[server.url()], "")).await;
}

#[tokio::test]
async fn a_cluster_has_every_property() {
    let cluster = Cluster::start();
    every_property(&engine(&cluster.urls(), "")).await;
}

#[tokio::test]
async fn a_socket_on_this_machine_will_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redis.sock").display().to_string();
    let _server = Server::start(&["--unixsocket", &path]);
    let engine = engine(&[format!("unix://{path}")], "");
    ready(&engine).await;
    place(&engine, &name("socket"), b"one").await;
}

#[tokio::test]
async fn the_database_is_the_one_of_the_url() {
    let server = Server::start(&[]);
    let engine = engine(&[format!("{}/3", server.url())], "");
    ready(&engine).await;
    place(&engine, &name("database"), b"one").await;
    assert_eq!(server.ask(&["-n", "3", "dbsize"]).trim(), "1");
    assert_eq!(server.ask(&["-n", "0", "dbsize"]).trim(), "0");
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_taught_again() {
    let server = Server::start(&[]);
    let engine = engine(&[server.url()], "");
    ready(&engine).await;
    let one = name("script");
    for _ in 0..3 {
        place(&engine, &one, b"one").await;
        engine.beat(1, SECOND).await.expect("a beat");
        assert_eq!(server.ask(&["script", "flush"]).trim(), "OK");
    }
    let version = place(&engine, &one, b"two").await;
    assert_eq!(server.ask(&["flushall"]).trim(), "OK");
    let told = stale(swap_one(&engine, vec![put(&one, version, b"three")]).await);
    assert_eq!(told[0].version, ABSENT, "what was flushed is absent");
    place(&engine, &one, b"four").await;
}

#[tokio::test]
async fn the_time_is_that_of_the_server_and_not_asked_for_each_time() {
    let server = Server::start(&[]);
    let engine = engine(&[server.url()], "");
    ready(&engine).await;
    let seconds = || {
        let told = server.ask(&["time"]);
        told.lines().next().and_then(|line| line.parse::<u64>().ok()).expect("a time")
    };
    let before = seconds();
    let beat = engine.beat(1, SECOND).await.expect("a beat").time.expect("a time");
    assert!((before..=seconds()).contains(&(beat / SECOND)));

    // Within a moment the time is told once or a few times, but not with each of very many.
    let one = name("time");
    let mut told = Vec::new();
    while told.len() < 500 {
        let results = engine.swap(vec![vec![compare(&one, ABSENT)]; 1]).await;
        told.extend(results.into_iter().map(|result| result.expect("an answer").time));
    }
    assert!(told.iter().any(Option::is_none));
    let mut times = told.into_iter().flatten();
    assert!(times.all(|time| (before..=seconds()).contains(&(time / SECOND))));
}

#[tokio::test]
async fn what_others_put_there_spoils_nothing_else() {
    let server = Server::start(&[]);
    let engine = engine(&[server.url()], "");
    ready(&engine).await;
    server.ask(&["lpush", "strange:list", "x"]);
    server.ask(&["set", "strange:short", "x"]);
    let names = ["strange:1", "strange:list", "strange:2", "strange:short", "strange:3"];
    for frees in [false, true] {
        let request = |text: &&str| {
            let mut change = put(&name(text), ABSENT, b"one");
            change.write.as_mut().expect("a write").frees = frees;
            vec![change]
        };
        server.ask(&["del", "strange:1", "strange:2", "strange:3"]);
        let results = engine.swap(names.iter().map(request).collect()).await;
        for (name, result) in names.iter().zip(results) {
            match result {
                Ok(told) => assert!(matches!(told.what, Swapped::Done(_)), "{name}"),
                Err(fault) => {
                    assert!(matches!(fault, EngineFault::Garbage(_)), "{fault}");
                    assert!(["strange:list", "strange:short"].contains(name), "{name}");
                }
            }
        }
    }
    // A scan leaves them out, and a reset helps.
    let (page, _) = engine.scan(b"strange:", Vec::new()).await.expect("a page");
    assert_eq!(page.len(), 3);
    for text in ["strange:list", "strange:short"] {
        assert_eq!(engine.remove(text.as_bytes()).await, Ok(true));
        assert_eq!(look(&engine, &name(text)).await.version, ABSENT);
    }
}

#[tokio::test]
async fn a_watcher_is_told_by_whoever_gives_back_and_by_nobody_else() {
    let server = Server::start(&[]);
    let (here, there) = (engine(&[server.url()], ""), engine(&[server.url()], ""));
    ready(&here).await;
    ready(&there).await;
    let (one, two) = (name("freed:1"), name("freed:2"));
    here.watch(&one);
    // Once because it may have missed something before the server knew of it.
    assert_eq!(here.freed().await, one);
    let version = place(&there, &one, b"three").await;
    let mut change = put(&two, ABSENT, b"other");
    change.write.as_mut().expect("a write").frees = true;
    done(swap_one(&there, vec![change.clone()]).await);
    let mut quiet = std::pin::pin!(here.freed());
    let none = std::future::poll_fn(|context| {
        std::task::Poll::Ready(quiet.as_mut().poll(context).is_pending())
    });
    assert!(none.await, "nothing was given back to it");
    (change.name, change.seen) = (one.clone(), version);
    done(swap_one(&there, vec![change]).await);
    assert_eq!(quiet.await, one);
}
