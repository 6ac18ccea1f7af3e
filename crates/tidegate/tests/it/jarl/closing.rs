//! How connections end: what a client sends never costs it the answer, and nobody stays for ever.

use std::io::Write as _;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;

use rustix::process::Signal;

use super::{PLENTY, ask, bad_input, connect, read, table};
use crate::program::{DOORS, Program};

fn plenty() -> Program {
    Program::serve(&format!("{DOORS}{}", table("a", PLENTY, "")))
}

/// Waits for the answer without taking it.
fn wait_for_answer(stream: &TcpStream) {
    assert_eq!(stream.peek(&mut [0]).expect("an answer"), 1);
}

#[test]
fn bytes_sent_before_the_answer_do_not_cost_it() {
    let program = plenty();
    let door = program.address("jarl");
    let bytes = vec![b'x'; 60_000];
    for round in 0..1_000 {
        let mut stream = connect(door);
        stream.write_all(&bytes[..1 + round * 59]).expect("the door takes it");
        if round % 2 == 0 {
            wait_for_answer(&stream);
            stream.shutdown(Shutdown::Write).expect("half a close");
        }
        assert_eq!(read(stream), "0.000", "round {round}");
    }
    assert_eq!(bad_input(&program, "too_much_input"), 0);
}

#[test]
fn bytes_sent_after_the_answer_do_not_cost_it() {
    let program = plenty();
    let door = program.address("jarl");
    for round in 0..1_000 {
        let mut stream = connect(door);
        wait_for_answer(&stream);
        for _ in 0..3 {
            stream.write_all(b"thank you").expect("the door takes it");
        }
        assert_eq!(read(stream), "0.000", "round {round}");
    }
}

#[test]
fn a_client_that_does_not_leave_is_left() {
    let program = plenty();
    let mut stays = connect(program.address("jarl"));
    wait_for_answer(&stays);
    // A byte now and then is borne, but not for ever: once the door has closed, it is refused.
    let mut sent = 0;
    while stays.write_all(b"x").is_ok() {
        sent += 1;
        assert!(sent < 100_000, "it is still there");
        assert_eq!(bad_input(&program, "too_much_input"), 0);
    }
}

#[test]
fn megabytes_are_drained_and_more_is_cut_off() {
    let program = plenty();
    let door = program.address("jarl");
    let large = vec![b'x'; 4 << 20];
    for _ in 0..20 {
        let mut stream = connect(door);
        stream.write_all(&large).expect("the door takes it");
        assert_eq!(read(stream), "0.000");
    }
    assert_eq!(bad_input(&program, "too_much_input"), 0);
    // Who does not stop is stopped, and others are answered meanwhile.
    let mut endless = connect(door);
    assert!((0..1_000).any(|_| endless.write_all(&large).is_err()), "nobody drinks the sea");
    assert_eq!(bad_input(&program, "too_much_input"), 1);
    assert_eq!(ask(door), "0.000");
}

#[test]
fn a_crowd_that_does_not_leave_is_bounded() {
    let crowded = table("a", PLENTY, "max_connections = 8");
    let program = Program::serve(&format!("{DOORS}{crowded}"));
    let door = program.address("jarl");
    let before = program.files();
    let crowd: Vec<TcpStream> = (0..300).map(|_| connect(door)).collect();
    crowd.iter().for_each(wait_for_answer);
    // The connection to /metrics is one more.
    let most = 8 + thread::available_parallelism().map_or(1, usize::from) + 1;
    assert!(program.files() <= before + most, "{} after {before}", program.files());
    assert!(bad_input(&program, "too_many_connections") >= 200);
    for stream in crowd {
        assert_eq!(read(stream), "0.000", "all have their answer, and a clean end");
    }
}

#[test]
fn clients_that_leave_are_let_go() {
    let program = plenty();
    let door = program.address("jarl");
    let before = program.files();
    let crowd: Vec<TcpStream> = (0..200).map(|_| connect(door)).collect();
    crowd.iter().for_each(wait_for_answer);
    drop(crowd);
    // A round trip each, so that this is never a busy loop.
    let gone = (0..100_000).any(|_| {
        ask(door);
        program.files() <= before + 20
    });
    assert!(gone, "{} files of {before}", program.files());
    assert_eq!(bad_input(&program, "too_many_connections"), 0);
}

#[test]
fn who_lingers_makes_room_when_files_run_out() {
    let program = Program::serve_with_few_files(&format!("{DOORS}{}", table("a", PLENTY, "")));
    let door = program.address("jarl");
    let crowd: Vec<TcpStream> = (0..300).map(|_| connect(door)).collect();
    for stream in crowd {
        assert_eq!(read(stream), "0.000");
    }
}

#[test]
fn callers_are_answered_when_another_door_has_taken_the_files() {
    let mut program = Program::serve_with_few_files(&format!("{DOORS}{}", table("a", PLENTY, "")));
    let (door, http) = (program.address("jarl"), program.address("http"));
    let _takers: Vec<TcpStream> = (0..100).map(|_| connect(http)).collect();
    // Not before all files are taken that may be.
    program.wait_for_line(|line| line.contains("too few file descriptors door=\"http\""));
    for _ in 0..100 {
        assert_eq!(ask(door), "0.000");
    }
}

#[test]
fn who_waits_already_is_answered_before_the_door_closes() {
    let mut program = plenty();
    let door: SocketAddr = program.address("jarl");
    let waiting: Vec<TcpStream> = (0..50).map(|_| connect(door)).collect();
    program.signal(Signal::TERM);
    assert_eq!(program.exit_status().code(), Some(0));
    for stream in waiting {
        assert_eq!(read(stream), "0.000");
    }
}
