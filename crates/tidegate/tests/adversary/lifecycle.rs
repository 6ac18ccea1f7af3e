//! Reloads and stops in the middle of attacks: canaries go on through the ones, and counts and
//! records live through the others.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use rustix::process::Signal;

use crate::ask::{remaining, take};
use crate::canary::Flock;
use crate::clock::{Moment, WATCHDOG, pause_ms};
use crate::net::Stream;
use crate::quiet;
use crate::rounds::{Force, attack, open_many_files};
use crate::seed::{Seed, soak};
use crate::server::Server;

/// Reloads during one attack. A door that was closed drains for a while, and each has threads and
/// buffers until then: more reloads than that measure memory that nobody has leaked.
const RELOADS_MAX: usize = 40;

#[test]
fn reloads_disturb_nobody() {
    open_many_files();
    let seed = Seed::new();
    let mut random = seed.random(3);
    let mut server = Server::start("");
    let flock = Flock::start(&server.doors, &mut random);
    // The first attack grows every buffer and table to its size.
    attack(&server.doors, &mut random, Force::chosen());
    flock.answers(10);
    flock.pause();
    let before = quiet::holdings(&server);
    flock.resume();
    let (doors, mut attacking) = (server.doors.clone(), random.fork());
    thread::scope(|scope| {
        let attacks = scope.spawn(|| attack(&doors, &mut attacking, Force::chosen()));
        let mut number = 0;
        while !attacks.is_finished() || number < 2 {
            if number == RELOADS_MAX {
                flock.answers(1);
                continue;
            }
            number += 1;
            // Another rule each time, and a door that comes and goes.
            let rule = format!("[[rule]]\nmatch = 'reload {number}'\nlimit = '1/s'\n");
            let door = "[[jarl]]\nservice = 'Extra'\nlisten = '127.0.0.1:0'\nlimit = '1/s'\n";
            let door = if number % 2 == 1 { door } else { "" };
            server.program.write_config(&[server.config(), &rule, door].concat());
            server.program.signal(Signal::HUP);
            server.program.wait_for_line(|line| line.contains("configuration reloaded"));
            flock.check();
        }
    });
    server.program.write_config(server.config());
    server.program.signal(Signal::HUP);
    flock.answers(10);
    flock.pause();
    quiet::returns_to(&server, &before);
    flock.resume();
    flock.end();
}

/// SET and GET of `stop` at a listener of 16 bits: a life of 100 hours.
const SET: &[u8] = b"\x05\x06\x64\x00\x04\x05\x00stopvalue";
const GET: &[u8] = b"\x06\x04stop";

fn throttr(server: &Server, request: &[u8], count: usize) -> Vec<u8> {
    let mut stream = Stream::connect(&server.doors.throttr[0].address).expect("the door is open");
    stream.write_all(request).expect("the door reads");
    let mut answer = vec![0; count];
    stream.read_exact(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_stop_in_the_middle_keeps_every_count() {
    open_many_files();
    let seed = Seed::new();
    let mut random = seed.random(4);
    let mut server = Server::start("[snapshot]\npath = 'kept'\nevery = '1h'\n");
    assert_eq!(throttr(&server, SET, 1), [1]);
    let mut admitted_before = 0;
    for round in 0..if soak() { 5 } else { 1 } {
        let key = format!("stop {round}");
        let doors = server.doors.clone();
        let (asked, admitted) = (AtomicU64::new(0), AtomicU64::new(0));
        let over = AtomicBool::new(false);
        let mut attacking = random.fork();
        server = thread::scope(|scope| {
            let attacks = scope.spawn(|| attack(&doors, &mut attacking, Force::SHARE));
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(SeqCst) {
                        asked.fetch_add(1, SeqCst);
                        if take(doors.http, &key) == Some(true) {
                            admitted.fetch_add(1, SeqCst);
                        }
                    }
                });
            }
            while admitted.load(SeqCst) < 50 {
                pause_ms(1);
            }
            // In the middle of the attacks.
            pause_ms(500 + random.below(1_000) as u64);
            let begun = Moment::now();
            let server = server.restart();
            over.store(true, SeqCst);
            assert!(begun.elapsed() < WATCHDOG, "stopping takes {:?}", begun.elapsed());
            attacks.join().expect("attacks do not fail");
            server
        });
        let used = 1_000 - remaining(server.doors.http, &key);
        let (asked, admitted) = (asked.into_inner(), admitted.into_inner());
        assert!(
            (admitted..=asked).contains(&used),
            "{used} uses were kept of {admitted} that were admitted and {asked} that were asked for"
        );
        admitted_before += admitted;
        let value = throttr(&server, GET, 11);
        assert_eq!(value, b"\x01\x06\x63\x00\x05\x00value", "the record was kept");
    }
    assert!(admitted_before > 0);
    let flock = Flock::start(&server.doors, &mut random);
    flock.answers(5);
    flock.end();
}
