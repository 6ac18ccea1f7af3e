//! Servers whose counts lie in a real Redis: from the very first datagram on, and through outages,
//! nobody gets more than there is.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::ask::take;
use crate::canary::Flock;
use crate::clock::{Moment, pause_ms};
use crate::engines::redis;
use crate::program::Program;
use crate::rounds::{Force, attack, open_many_files};
use crate::seed::{Seed, soak};
use crate::server::Server;

/// Decisions and the start have so long that a slow machine is not taken for a store that is away.
fn store(redis: &redis::Server) -> String {
    let url = redis.url();
    format!("[store]\nkind = 'redis'\nurl = '{url}'\ntimeout = '20s'\nstart_timeout = '60s'\n")
}

/// A limit that is hammered while its server starts.
const AMOUNT: u64 = 10;

/// Asks over the text door as fast as it goes; counts who is admitted.
fn hammer_text(text: SocketAddr, key: &str, over: &AtomicBool, admitted: &AtomicU64) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.connect(text).expect("an address");
    socket.set_read_timeout(Some(Duration::from_millis(5))).expect("a timeout");
    let question = format!("over_limit {key}");
    let mut reply = [0; 100];
    while !over.load(SeqCst) {
        for _ in 0..8 {
            let _ = socket.send(question.as_bytes());
        }
        for _ in 0..8 {
            match socket.recv(&mut reply) {
                Ok(count) if reply[..count].starts_with(b"ok N") => {
                    admitted.fetch_add(1, SeqCst);
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
}

#[test]
fn no_start_admits_what_is_not_counted() {
    let redis = redis::Server::start(&[]);
    let config = format!(
        "[[rule]]\nmatch = 'start *'\nlimit = '{AMOUNT} per 300d'\n[text]\n\
         listen = '127.0.0.1:0'\n[http]\nlisten = '127.0.0.1:0'\n{}",
        store(&redis)
    );
    for round in 0..if soak() { 20 } else { 3 } {
        let key = format!("start {round}");
        let mut program = Program::start(&config);
        program.wait_for_line(|line| line.starts_with("listening door=http"));
        let (text, http) = (program.address("text"), program.address("http"));
        let (over, admitted) = (AtomicBool::new(false), AtomicU64::new(0));
        let (over, admitted, key) = (&over, &admitted, &key);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(move || hammer_text(text, key, over, admitted));
                scope.spawn(move || {
                    while !over.load(SeqCst) {
                        if take(http, key) == Some(true) {
                            admitted.fetch_add(1, SeqCst);
                        }
                    }
                });
            }
            program.wait_until_ready();
            // Until the store has the last word.
            let begun = Moment::now();
            while take(http, key) != Some(false) && !begun.is_overdue() {}
            over.store(true, SeqCst);
        });
        let admitted = admitted.load(SeqCst);
        assert!(
            admitted <= AMOUNT,
            "start {round}: {admitted} uses of a limit of {AMOUNT} passed beside a healthy store"
        );
    }
}

#[test]
fn no_outage_admits_more_than_there_is() {
    const OUTAGE_AMOUNT: u64 = 100;
    open_many_files();
    let seed = Seed::new();
    let mut random = seed.random(5);
    let mut redis = redis::Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let quick = store(&redis).replace("20s", "2s");
    let server = Server::start_with(&quick, |config| {
        // A remote store holds shorter logs.
        config.replace("1000000 per 300d", "10000 per 300d")
    });
    let doors = server.doors.clone();
    let (over, admitted) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut attacking = random.fork();
    thread::scope(|scope| {
        let attacks = scope.spawn(|| attack(&doors, &mut attacking, Force::SHARE));
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    if take(doors.http, "outage key") == Some(true) {
                        admitted.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        for _ in 0..if soak() { 10 } else { 2 } {
            pause_ms(100 + random.below(300) as u64);
            if random.one_in(2) {
                redis.halt();
                pause_ms(2_500);
                redis.go_on();
            } else {
                redis.kill();
                pause_ms(200);
                redis.start_again();
            }
        }
        attacks.join().expect("attacks do not fail");
        over.store(true, SeqCst);
    });
    let admitted = admitted.into_inner();
    assert!(admitted <= OUTAGE_AMOUNT, "{admitted} uses of {OUTAGE_AMOUNT} passed");
    // Once the store is back for good, a whole flock is answered as always.
    let begun = Moment::now();
    while take(doors.http, "outage other") != Some(true) {
        assert!(!begun.is_overdue(), "the store is not found again");
    }
    let flock = Flock::start(&server.doors, &mut random);
    flock.answers(5);
    flock.end();
}
