//! Counts that lie in a Redis which several programs share, asked for through the text door; and
//! what tests of other doors need for the same.
//!
//! Limits are per hour, so that no test depends on how fast it runs. A decision has a minute where
//! no test is about a store that keeps silent.

use std::net::SocketAddr;

use rustix::process::Signal;

use crate::engines::redis::Server;
use crate::engines::until;
use crate::http::send_to;
use crate::program::Program;
use crate::text::Client;

/// The table of a store.
pub(crate) fn store(url: &str, timeout: &str) -> String {
    format!("[store]\nkind = 'redis'\nurl = '{url}'\ntimeout = '{timeout}'\n")
}

/// The same for a store that is not there: nobody waits for it.
pub(crate) fn absent_store(url: &str, timeout: &str) -> String {
    store(url, timeout) + "start_timeout = '1ms'\n"
}

/// Waits until the store of a program answers again.
pub(crate) fn until_store_answers(http: SocketAddr) {
    let ready = || send_to(http, "GET", "/readyz", "Host: localhost\r\n", "").body;
    until(|| !ready().contains("store_away"));
}

/// A text door. `warm` tells whether the store is asked: without it everybody may go.
const DOOR: &str = "
[text]
listen = '127.0.0.1:0'
[[rule]]
match = 'warm'
limit = '1 per 1h'
[[rule]]
match = 'k *'
limit = '10 per 1h'
[[rule]]
match = 'ws ip=*'
limit = '2 per 1h'
[[rule]]
match = 'deny *'
limit = '1 per 1h'
on_store_error = 'deny'
[[rule]]
match = 'local *'
limit = '1 per 1h'
on_store_error = 'local'
";

fn program(url: &str, timeout: &str) -> (Program, Client) {
    program_with(&store(url, timeout))
}

fn program_with(store: &str) -> (Program, Client) {
    let program = Program::serve(&[DOOR, store].concat());
    let client = Client::new(program.address("text"));
    (program, client)
}

/// Asks until the store has a say: `allow` is what is said without it.
fn warm(client: &Client) {
    while !client.ask("over_limit warm").starts_with("ok Y") {}
}

#[test]
fn datagrams_to_two_programs_are_counted_once_each() {
    let redis = Server::start(&[]);
    let both = [program(&redis.url(), "1m"), program(&redis.url(), "1m")];
    both.iter().for_each(|(_, client)| warm(client));
    for number in 0..50 {
        both.iter()
            .for_each(|(_, client)| client.send(format!("{number} over_limit k a").as_bytes()));
    }
    let mut passed = 0;
    for (_, client) in &both {
        let mut ids = Vec::new();
        for _ in 0..50 {
            let reply = String::from_utf8(client.reply()).expect("text");
            let (id, line) = reply.split_once(' ').expect("an id");
            ids.push(id.parse::<usize>().expect("a number"));
            assert!(line.ends_with(" 10.0 3600"), "{line}");
            passed += usize::from(line.starts_with("ok N "));
        }
        ids.sort_unstable();
        assert_eq!(ids, (0..50).collect::<Vec<_>>(), "everybody is answered, and once");
    }
    assert_eq!(passed, 10);
}

#[test]
fn the_keys_of_a_check_are_asked_one_after_the_other() {
    let redis = Server::start(&[]);
    let both = [program(&redis.url(), "1m"), program(&redis.url(), "1m")];
    both.iter().for_each(|(_, client)| warm(client));
    let ask = |at: usize| {
        let json = r#"{"origin":"ws","ua":"x","ip":"1.2.3.4"}"#;
        both[at].1.ask(&format!("7 check_limit {json}"))
    };
    let keys = r#", ["ws ua=x","ws ip=1.2.3.4","ws global"], "#;
    for at in [0, 1] {
        let reply = ask(at);
        assert!(reply.starts_with("7 ok N ") && reply.contains(keys), "{reply}");
    }
    let reply = ask(0);
    assert!(reply.starts_with("7 ok Y "), "{reply}");
    assert!(reply.contains(r#", ["ws ua=x","ws ip=1.2.3.4"], "#), "the last is not asked: {reply}");
    assert_eq!(
        both[0].1.ask("get_stats ws ip=1.2.3.4"),
        "n_req=2 n_over=1 last_max_rate=0 key=ws ip=1.2.3.4"
    );
}

#[test]
fn a_store_that_keeps_silent_holds_up_nobody() {
    let redis = Server::start(&[]);
    let (mut program, client) = program(&redis.url(), "2s");
    warm(&client);
    redis.halt();
    client.send(b"1 over_limit deny a");
    client.send(b"2 ping");
    client.send(b"3 get_stats deny a");
    client.send(b"4 check_limit {\"origin\":\"ws\",\"ip\":\"a\"}");
    let replies: Vec<_> =
        (0..4).map(|_| String::from_utf8(client.reply()).expect("text")).collect();
    assert_eq!(replies[..2], ["2 pong", "3 n_req=0 n_over=0 last_max_rate=0 key=deny a"]);
    let decided = |start: &str| replies[2..].iter().any(|reply| reply.starts_with(start));
    assert!(decided("1 ok Y 0.0 1.0 3600") && decided("4 ok N "), "{replies:?}");
    // Whoever waits when the door is closed is told.
    client.send(b"5 over_limit deny a");
    client.send(b"6 ping");
    let mut last = vec![client.reply()];
    program.signal(Signal::TERM);
    last.push(client.reply());
    last.sort_unstable();
    assert_eq!(last, [&b"5 ok Y 0.0 1.0 3600"[..], b"6 pong"]);
    assert!(program.exit_status().success());
}

#[test]
fn a_store_that_is_away_at_the_start_is_used_when_it_is_there() {
    let mut redis = Server::start(&[]);
    redis.kill();
    let (_program, client) = program_with(&absent_store(&redis.url(), "1m"));
    assert!(client.ask("over_limit warm").starts_with("ok N "));
    assert!(client.ask("over_limit deny a").starts_with("ok Y "));
    assert!(client.ask("over_limit local a").starts_with("ok N "));
    assert!(client.ask("over_limit local a").starts_with("ok Y "));
    redis.start_again();
    warm(&client);
    assert!(client.ask("over_limit deny a").starts_with("ok N "));
    assert!(client.ask("over_limit deny a").starts_with("ok Y "));
}
