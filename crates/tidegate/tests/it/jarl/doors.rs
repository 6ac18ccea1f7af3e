//! What callers are told, and what every other door sees of it.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tidegate_client::jarl::{Advice, JarlClient};

use super::{PLENTY, ask, bad_input, delay, metric, table};
use crate::program::{DOORS, Program, tidegate};

const SERVICE: &str = "Payment Gateway";
const KEY: &str = "jarl service=Payment%20Gateway";

fn peek(program: &Program, key: &str) -> Value {
    let out = tidegate(["peek", key, "--json", "--admin", &program.admin_url()]);
    serde_json::from_slice(&out.stdout).expect("a verdict")
}

#[test]
fn a_call_is_booked_for_every_door() {
    let program = Program::serve(&format!("{DOORS}{}", table(SERVICE, "3 per 1h", "")));
    let door = program.address("jarl");
    assert_eq!(ask(door), "0.000");
    assert_eq!(ask(door), "0.000");
    let seen = peek(&program, KEY);
    assert_eq!(seen["limits"][0]["remaining"], 1);
    assert_eq!(seen["limits"][0]["rule"], "jarl:Payment Gateway");
    let again = peek(&program, KEY);
    assert_eq!(again["limits"][0]["remaining"], 1, "looking books nothing");
    // A check over HTTP books the third call, and a fourth is told to come later, but booked.
    let check = |code: i32| {
        let out = tidegate(["check", KEY, "--json", "--server", &program.url()]);
        assert_eq!(out.status.code(), Some(code), "{out:?}");
        serde_json::from_slice::<Value>(&out.stdout).expect("a verdict")
    };
    assert_eq!(check(0)["delay_ms"], 0);
    let refused = check(3);
    assert_eq!(refused["refused_by"], "jarl:Payment Gateway");
    let told = refused["delay_ms"].as_u64().expect("a delay");
    assert!((4_790_000..=4_800_000).contains(&told), "an hour and a third of one: {told}");
    // The second to be told to wait, and so a step longer.
    let waited = delay(door);
    assert!((5_990.0..=6_000.0).contains(&waited), "{waited}");
    let series = |verdict: &str| {
        format!(
            "tidegate_decisions_total{{door=\"jarl\",rule=\"jarl:{SERVICE}\",\
             verdict=\"{verdict}\"}}"
        )
    };
    assert_eq!(metric(&program, &series("allow")), 2);
    assert_eq!(metric(&program, &series("delay")), 1);
}

#[test]
fn services_are_apart_and_listen_where_they_are_told() {
    let many = "listen = ['127.0.0.1:0', '[::1]:0']";
    let both = table("b", "2 per 1h", "exact = true").replace("listen = '127.0.0.1:0'", many);
    let program = Program::serve(&(table("a", "1 per 1h", "exact = true") + &both));
    let [a, b4, b6] = program.listening() else { panic!("{:?}", program.listening()) };
    assert!([a, b4, b6].iter().all(|(door, _)| door == "jarl") && b6.1.is_ipv6());
    assert_eq!(ask(a.1), "0.000");
    assert_eq!(ask(b4.1), "0.000");
    assert_eq!(ask(b6.1), "0.000", "one service at both addresses");
    assert!(delay(b4.1) > 3590.0);
    assert!(delay(a.1) > 3590.0);
}

#[test]
fn exact_booking_hands_out_one_start_after_the_other() {
    let program = Program::serve(&table("a", "2 per 1h", "exact = true"));
    let door = program.address("jarl");
    let told: Vec<f64> = (0..6).map(|_| delay(door)).collect();
    assert_eq!(told[..2], [0.0, 0.0]);
    for (at, hours) in [(2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0)] {
        let (least, most) = (hours * 3600.0 - 60.0, hours * 3600.0);
        assert!((least..=most).contains(&told[at]), "{told:?}");
    }
}

#[test]
fn a_rule_goes_before_the_doors_own_limit() {
    let rule = "[[rule]]\nmatch = 'jarl service=a'\nlimit = '1 per 1h'\nalgorithm = 'gcra'\n\
                [[rule]]\nmatch = 'jarl service=jobs'\nlimit = '1 in flight'\n";
    let tables = table("a", PLENTY, "") + &table("jobs", PLENTY, "");
    let program = Program::serve(&format!("{rule}{DOORS}{tables}"));
    let (a, jobs) = (program.listening()[1].1, program.address("jarl"));
    assert_eq!(ask(a), "0.000");
    let told = delay(a);
    assert!((3590.0..=3600.0).contains(&told), "{told}");
    assert_eq!(ask(jobs), "", "no answer, and no reset either");
    assert_eq!(bad_input(&program, "in_flight_key"), 1);
}

#[test]
fn strangers_are_turned_away_unbooked() {
    let closed = table("a", "1 per 1h", "allow = ['10.0.0.0/8']");
    let mut program = Program::serve(&format!("{DOORS}{closed}"));
    let door = program.address("jarl");
    assert_eq!(ask(door), "");
    assert_eq!(bad_input(&program, "not_allowed"), 1);
    assert_eq!(peek(&program, "jarl service=a")["limits"][0]["remaining"], 1);
    let open = closed.replace("10.0.0.0/8", "127.0.0.0/8");
    let open = open.replace("127.0.0.1:0", &door.to_string());
    program.write_config(&format!("{DOORS}{open}"));
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    assert_eq!(ask(program.address("jarl")), "0.000");
}

#[test]
fn a_reload_opens_and_closes_doors_and_counts_live_on() {
    let mut program = Program::serve(&table("a", "2 per 1h", ""));
    let a = program.address("jarl");
    assert_eq!((ask(a).as_str(), ask(a).as_str()), ("0.000", "0.000"));
    let reload = |program: &mut Program, config: &str| {
        program.write_config(config);
        program.wait_for_line(|line| line.contains("configuration reloaded"));
    };
    // The door stays where it is, its limit is another, and a second service comes.
    let more = table("a", "3 per 1h", "") + &table("b", "1 per 1h", "");
    reload(&mut program, &more);
    let b = program.address("jarl");
    assert_eq!(program.listening().len(), 2, "the first was not opened again");
    assert_eq!(ask(b), "0.000");
    assert_eq!(ask(a), "0.000", "one more than before");
    assert!(delay(a) > 0.0, "and not three more");
    // One service takes the other's address.
    let moved = table("b", "1 per 1h", "").replace("127.0.0.1:0", &a.to_string());
    reload(&mut program, &moved);
    assert!(delay(a) > 0.0, "the other service, which was called once");
    assert!(TcpStream::connect(b).is_err(), "nobody listens there any more");
    program.signal(Signal::TERM);
    assert_eq!(program.exit_status().code(), Some(0));
}

/// The document's client as it is printed, with a host and a port, and with work to do.
const PYTHON_CLIENT: &str = r#"
import socket
from time import sleep


def get_delay():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        # before connecting, it would be wise to settimeout on the socket 
        # object according to your network averages
        s.connect((HOST, PORT))
        data = s.recv(7)
        delay: float = float(data.decode())

        # sleep immediately before making the call to the rate-limited resource
        sleep(delay)
        
        # and then make the call
        print(delay)
"#;

#[test]
fn the_documents_own_client_works_as_printed() {
    let program = Program::serve(&table("a", "2 per 1s", ""));
    let door = program.address("jarl");
    let calls = "get_delay()\n".repeat(3);
    let script = format!("HOST, PORT = '{}', {}\n{PYTHON_CLIENT}\n{calls}", door.ip(), door.port());
    let out = Command::new("python3")
        .args(["-c", &script])
        .output()
        .expect("python3 is needed: install it with `make setup-test`");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let told = String::from_utf8_lossy(&out.stdout);
    let delays: Vec<f64> = told.lines().map(|line| line.parse().expect("a float")).collect();
    assert_eq!(delays.len(), 3, "{told}");
    // However slow the machine: the first two of a service never wait.
    assert_eq!(delays[..2], [0.0, 0.0], "{told}");
}

#[tokio::test]
async fn the_client_of_the_library_is_told_the_same() {
    let program = Program::serve(&table("a", "2 per 1h", "exact = true"));
    let client = JarlClient::new(program.address("jarl").to_string());
    for _ in 0..2 {
        let told = client.ask().await;
        assert!(matches!(told, Advice::Wait(Duration::ZERO)), "{told:?}");
    }
    let told = client.ask().await;
    assert!(told.is_booked(), "{told:?}");
    assert!((1..=3_600).contains(&told.delay().as_secs()), "{told:?}");
    drop(program);
    let without = client.ask().await;
    assert!(matches!(without, Advice::GoOn(_)) && without.delay().is_zero(), "{without:?}");
}
