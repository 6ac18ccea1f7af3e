//! `tidegate jarl`, and the same by a link named `jarl`.

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use rustix::process::Signal;

use super::{ask, delay};
use crate::program::{Program, binary, command, tidegate};

/// A port that was free a moment ago.
fn free_port(ip: &str) -> u16 {
    let taken = TcpListener::bind((ip, 0)).expect("a free port");
    taken.local_addr().expect("an address").port()
}

/// Starts a program with the flags of the document; another port is tried if somebody was faster.
fn started(ip: &str, mut program: impl FnMut(&str) -> Command) -> Program {
    for _ in 0..20 {
        let port = free_port(ip).to_string();
        let folder = tempfile::tempdir().expect("a folder");
        let mut started = Program::spawn(program(&port), folder);
        let line = started.wait_for_line(|line| line == "ready" || line.contains("in use"));
        if line == "ready" {
            return started;
        }
    }
    panic!("no port stays free")
}

#[test]
fn the_documents_command_line_serves_and_stops() {
    for (ip, signal) in [("127.0.0.1", Signal::TERM), ("::1", Signal::INT)] {
        let mut program = started(ip, |port| {
            command([
                "jarl",
                "--service",
                "PaymentGateway",
                "--period",
                "3600",
                "--requests",
                "2",
                "--ip",
                ip,
                "--port",
                port,
            ])
        });
        let [(door, address)] = program.listening() else { panic!("one door") };
        assert_eq!((door.as_str(), address.ip().to_string()), ("jarl", ip.to_owned()));
        let address = *address;
        assert_eq!((ask(address).as_str(), ask(address).as_str()), ("0.000", "0.000"));
        // The document's formula: the rest of the hour, and half an hour for the first in excess.
        let told = delay(address);
        assert!((5_390.0..=5_400.0).contains(&told), "{told}");
        program.signal(signal);
        assert_eq!(program.exit_status().code(), Some(0));
    }
}

#[test]
fn a_link_named_jarl_is_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let link = folder.path().join("jarl");
    symlink(binary(), &link).expect("a link");
    let program = started("127.0.0.1", |port| {
        let mut jarl = Command::new(&link);
        jarl.args(["--service", "S", "--requests", "1", "--period", "3600"]);
        jarl.args(["--ip", "127.0.0.1", "--port", port, "--exact"]).env_remove("RUST_LOG");
        jarl
    });
    let door = program.address("jarl");
    assert_eq!(ask(door), "0.000");
    let told: Vec<f64> = (0..2).map(|_| delay(door)).collect();
    assert!(told[0] > 3_590.0 && told[0] <= 3_600.0, "{told:?}");
    assert!(told[1] > 7_190.0 && told[1] <= 7_200.0, "{told:?}");
}

#[test]
fn a_second_one_on_the_same_port_is_told_so() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let out = run(&["S", "1", "1", "127.0.0.1", &port]);
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&port) && said.contains("in use"), "{said}");
    assert!(out.stdout.is_empty());
}

/// Runs the program with service, requests, period, address and port.
fn run(values: &[&str; 5]) -> Output {
    let flags = ["--service", "--requests", "--period", "--ip", "--port"];
    let given = flags.iter().zip(values).flat_map(|(flag, value)| [*flag, *value]);
    tidegate(std::iter::once("jarl").chain(given))
}

#[test]
fn mistakes_name_the_flag() {
    let long = "x".repeat(252);
    let good = ["S", "1", "1", "127.0.0.1", "1"];
    for (at, flag, values) in [
        (0, "--service", vec!["", "a\nb", &long]),
        (1, "--requests", vec!["0", "-1", "1.5", "10000001", "many", ""]),
        (2, "--period", vec!["0", "-1", "0.5", "1s", "31622401", ""]),
        (3, "--ip", vec!["localhost", "1.2.3", "[::1]", "127.0.0.1:80", ""]),
        (4, "--port", vec!["0", "65536", "-1", "http", ""]),
    ] {
        for value in values {
            let mut wrong = good;
            wrong[at] = value;
            let out = run(&wrong);
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(2), "{flag} {value:?}: {said}");
            assert!(said.contains(flag), "{flag} {value:?}: {said}");
            assert!(out.stdout.is_empty(), "{flag} {value:?}");
        }
    }
    let flags = ["--service", "--requests", "--period", "--ip", "--port"];
    for missing in 0..flags.len() {
        let mut words = vec!["jarl"];
        for (at, (flag, value)) in flags.iter().zip(good).enumerate() {
            words.extend([*flag, value].iter().filter(|_| at != missing));
        }
        let out = tidegate(words);
        assert_eq!(out.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&out.stderr).contains(flags[missing]));
    }
    assert_eq!(tidegate(["jarl", "--nonsense"]).status.code(), Some(2));
}
