//! Bookings that lie in a Redis which several programs share.

use std::thread;

use rustix::process::Signal;

use super::{ask, connect, delay, read, table};
use crate::engines::redis::Server;
use crate::program::Program;
use crate::remote::{absent_store, store};

/// A door of a service, and one that tells whether the store is asked: without it nobody waits.
fn program(store: &str) -> Program {
    let doors = [table("exact", "3 per 1h", "exact = true"), table("warm", "1 per 1h", "")];
    let rule = "[[rule]]\nmatch = 'jarl service=denied'\nlimit = '1 per 1h'\nalgorithm = 'jarl'\n\
                on_store_error = 'deny'\n";
    let denied = table("denied", "1 per 1h", "");
    Program::serve(&[&doors.concat(), &*denied, rule, store].concat())
}

/// The doors in the order of the file: exact, warm, denied.
fn door(program: &Program, at: usize) -> std::net::SocketAddr {
    let all: Vec<_> = program.listening().iter().filter(|(door, _)| door == "jarl").collect();
    all[at].1
}

fn warm(program: &Program) {
    while delay(door(program, 1)) == 0.0 {}
}

#[test]
fn exact_bookings_of_two_programs_never_overlap() {
    let redis = Server::start(&[]);
    let store = store(&redis.url(), "1m");
    let both = [program(&store), program(&store)];
    both.iter().for_each(warm);
    let callers: Vec<_> = (0..24)
        .map(|number| {
            let door = door(&both[number % 2], 0);
            thread::spawn(move || delay(door))
        })
        .collect();
    let mut hours = [0; 8];
    for caller in callers {
        let hour = caller.join().expect("an answer") / 3600.0;
        // A start is a little less than whole hours away, by what the test has taken so far.
        hours[hour.round() as usize] += 1;
    }
    assert_eq!(hours, [3; 8], "of each hour all starts are given away, and none twice");
}

#[test]
fn a_store_that_keeps_silent_holds_up_nobody() {
    let redis = Server::start(&[]);
    let mut program = program(&store(&redis.url(), "2s"));
    warm(&program);
    redis.halt();
    // Whoever leaves costs nothing.
    (0..20).for_each(|_| drop(connect(door(&program, 0))));
    let waiting: Vec<_> = (0..20).map(|_| connect(door(&program, 0))).collect();
    let denied = connect(door(&program, 2));
    for stream in waiting {
        assert_eq!(read(stream), "0.000");
    }
    assert_eq!(read(denied), "1.000");
    // Whoever waits when the door is closed is told.
    let last: Vec<_> = (0..20).map(|_| connect(door(&program, 0))).collect();
    program.signal(Signal::TERM);
    for stream in last {
        assert_eq!(read(stream), "0.000");
    }
    assert!(program.exit_status().success());
}

#[test]
fn a_store_that_is_away_at_the_start_is_used_when_it_is_there() {
    let mut redis = Server::start(&[]);
    redis.kill();
    let program = program(&absent_store(&redis.url(), "1m"));
    for _ in 0..10 {
        assert_eq!(ask(door(&program, 0)), "0.000");
        assert_eq!(ask(door(&program, 2)), "1.000");
    }
    redis.start_again();
    warm(&program);
    let delays: Vec<f64> = (0..4).map(|_| delay(door(&program, 0))).collect();
    assert_eq!(delays[..3], [0.0; 3]);
    assert!(delays[3] > 3000.0, "{delays:?}");
}
