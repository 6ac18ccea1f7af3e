//! TG.CHECK and its kin at the real program: one count for all doors, uses in flight that end at
//! another door, and requests that wait and leave at every point.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate_wire::resp::request::request;

use super::{Client, bad_input, metric};
use crate::engines::redis::Server;
use crate::engines::until;
use crate::http::send_to;
use crate::papers::{Papers, connect};
use crate::program::{PATIENCE, Program};
use crate::remote::store;
use crate::text;

/// Periods are long, so that no test depends on how fast it runs.
const RULES: &str = "
[[rule]]
name = 'pages'
match = 'page:*'
limit = '3 per 300d'
[[rule]]
name = 'jobs'
match = 'job:*'
limit = '1 in flight'
[[rule]]
name = 'deny'
match = 'deny:*'
limit = '3 per 300d'
on_store_error = 'deny'
[[rule]]
name = 'mean'
match = 'mean:*'
limit = '3 per 300d'
algorithm = 'average'
";
const DOORS: &str = "
[resp]
listen = '127.0.0.1:0'
max_connections = 4
[text]
listen = '127.0.0.1:0'
[http]
listen = '127.0.0.1:0'
[admin]
listen = '127.0.0.1:0'
";

fn program() -> Program {
    Program::serve(&[RULES, DOORS].concat())
}

fn send(client: &mut Client, command: &str) {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    let mut bytes = Vec::new();
    request(&mut bytes, &words);
    client.send(&bytes);
}

/// Reads one line without its end.
fn line(client: &mut Client) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(client.read(1));
    }
    String::from_utf8(line).expect("text").trim_end().to_owned()
}

/// Reads a value: a number, a text, or nothing; an error is a text that begins with its minus.
fn value(client: &mut Client) -> Value {
    let line = line(client);
    match line.as_bytes()[0] {
        b':' => json!(line[1..].parse::<i64>().expect("a number")),
        b'$' if line == "$-1" => Value::Null,
        b'$' => {
            let bytes: usize = line[1..].parse().expect("a length");
            let text = client.read(bytes + 2);
            json!(String::from_utf8_lossy(&text[..bytes]))
        }
        _ => json!(line),
    }
}

/// Reads a reply: an object of its pairs, or a value.
fn reply(client: &mut Client) -> Value {
    let first = client.read(1);
    if first != b"*" {
        assert!(first == b":" || first == b"-" || first == b"+", "{first:?}");
        return json!(String::from_utf8_lossy(&first).into_owned() + &line(client));
    }
    let elements: usize = line(client).parse().expect("a length");
    let mut pairs = serde_json::Map::new();
    for _ in 0..elements / 2 {
        let name = value(client);
        pairs.insert(name.as_str().expect("a name").to_owned(), value(client));
    }
    Value::Object(pairs)
}

fn ask(client: &mut Client, command: &str) -> Value {
    send(client, command);
    reply(client)
}

/// Whether it was allowed, and what remains.
fn brief(reply: &Value) -> (i64, Option<i64>) {
    (reply["allowed"].as_i64().unwrap_or_else(|| panic!("{reply}")), reply["remaining"].as_i64())
}

/// Waits until so many requests wait at the door.
fn until_waiting(program: &Program, requests: u64) {
    until(|| metric(program, "tidegate_waiting{door=\"resp\"}") == requests);
}

fn http(program: &Program, method: &str, path: &str, body: &Value) -> crate::http::Reply {
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    send_to(program.address("http"), method, path, headers, &body.to_string())
}

#[test]
fn one_key_has_one_count_at_all_doors() {
    let program = program();
    let mut client = Client::new(&program);
    assert_eq!(brief(&ask(&mut client, "TG.CHECK page:a")), (1, Some(2)));
    send(&mut client, "CL.THROTTLE page:a 99 99 99");
    let told: Vec<String> = (0..6).map(|_| line(&mut client)).collect();
    assert_eq!(told[..5], ["*5", ":0", ":3", ":1", ":-1"]);
    let checked = http(&program, "POST", "/v1/check", &json!({"key": "page:a"}));
    assert_eq!(checked.json()["limits"][0]["remaining"], 0);
    let text = text::Client::new(program.address("text"));
    let told = text.ask("over_limit page:a");
    assert!(told.starts_with("ok Y"), "{told}");
    let refused = ask(&mut client, "TG.CHECK page:a");
    assert_eq!((brief(&refused), &refused["rule"]), ((0, Some(0)), &json!("pages")));
    assert_eq!(ask(&mut client, "TG.RESET page:a"), json!(":1"));
    // And each of them takes from what the others see.
    let told = text.ask("over_limit page:a");
    assert!(told.starts_with("ok N"), "{told}");
    let checked = http(&program, "POST", "/v1/check", &json!({"key": "page:a"}));
    assert_eq!(checked.json()["limits"][0]["remaining"], 1);
    assert_eq!(brief(&ask(&mut client, "TG.CHECK page:a")), (1, Some(0)));
    client.ask("CL.THROTTLE page:a 99 99 99 0", "*5\r\n:0\r\n:3\r\n:0\r\n:-1\r\n");
}

/// A counter is a record: the Throttr door and administration see the same.
#[test]
fn a_counter_is_one_record_at_all_doors() {
    let program = Program::serve(&format!("{DOORS}[[throttr]]\nlisten = '127.0.0.1:0'\n"));
    let mut client = Client::new(&program);
    client.ask("INCRBY n 258", ":258\r\n");
    client.ask("EXPIRE n 3600", ":1\r\n");
    let mut throttr = TcpStream::connect(program.address("throttr")).expect("the door is open");
    throttr.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut record = [0; 6];
    // QUERY, then UPDATE, which decreases the quota by 2.
    throttr.write_all(b"\x02\x01n").expect("a request");
    throttr.read_exact(&mut record).expect("a record");
    assert_eq!(record[..3], [1, 2, 1], "found, and 258");
    throttr.write_all(b"\x03\x00\x02\x02\x00\x01n").expect("a request");
    throttr.read_exact(&mut record[..1]).expect("a status");
    assert_eq!(record[0], 1);
    client.ask("GET n", "$3\r\n256\r\n");
    let records = |method: &str| {
        send_to(program.address("admin"), method, "/v1/records/n", "Host: localhost\r\n", "")
    };
    let shown = records("GET").json();
    assert_eq!((&shown["kind"], &shown["quota"]), (&json!("counter"), &json!(256)));
    assert!(shown["ttl_ms"].as_u64().is_some_and(|left| left > 3_500_000), "{shown}");
    assert_eq!(records("DELETE").status, 204);
    client.ask("GET n", "$-1\r\n");
}

#[test]
fn a_use_may_end_at_another_door() {
    let program = program();
    let mut client = Client::new(&program);
    let held = ask(&mut client, "TG.HOLD job:a 3600000");
    assert_eq!(brief(&held), (1, Some(0)));
    let refused = ask(&mut client, "TG.HOLD job:a 3600000");
    assert_eq!((brief(&refused), &refused["use"]), ((0, Some(0)), &Value::Null));
    assert_eq!((&refused["retry_ms"], &refused["rule"]), (&Value::Null, &json!("jobs")));
    let path = format!("/v1/uses/{}", held["use"].as_str().expect("an id"));
    assert_eq!(http(&program, "DELETE", &path, &Value::Null).status, 204);
    assert_eq!(http(&program, "DELETE", &path, &Value::Null).status, 404);
    let body = json!({"key": "job:a", "hold_ms": 3_600_000});
    let held = http(&program, "POST", "/v1/check", &body).json();
    assert_eq!(brief(&ask(&mut client, "TG.PEEK job:a")), (0, Some(0)));
    let release = format!("TG.RELEASE {}", held["use"].as_str().expect("an id"));
    assert_eq!(ask(&mut client, &release), json!(":1"));
    assert_eq!(ask(&mut client, &release), json!(":0"));
    assert_eq!(brief(&ask(&mut client, "TG.PEEK job:a")), (1, Some(1)));
}

/// The first waits, the second behind it, and what is sent behind them waits too. All are answered
/// when the key is forgotten, in the order of arrival.
#[test]
fn requests_wait_in_order_and_commands_behind_them_too() {
    let program = program();
    let mut admin = Client::new(&program);
    assert_eq!(brief(&ask(&mut admin, "TG.CHECK page:a 3")), (1, Some(0)));
    let mut waiting = [Client::new(&program), Client::new(&program)];
    for (at, client) in waiting.iter_mut().enumerate() {
        send(client, "TG.WAIT page:a 2");
        client.send(b"PING\r\n");
        until_waiting(&program, at as u64 + 1);
    }
    // The first takes two of three; the second goes on waiting for its two.
    assert_eq!(ask(&mut admin, "TG.RESET page:a"), json!(":1"));
    let [first, second] = &mut waiting;
    assert_eq!(brief(&reply(first)), (1, Some(1)));
    assert_eq!(reply(first), json!("+PONG"));
    until_waiting(&program, 1);
    assert_eq!(brief(&ask(&mut admin, "TG.PEEK page:a")), (1, Some(1)));
    assert_eq!(ask(&mut admin, "TG.RESET page:a"), json!(":1"));
    assert_eq!(brief(&reply(second)), (1, Some(1)));
    assert_eq!(reply(second), json!("+PONG"));
    until_waiting(&program, 0);
}

#[test]
fn a_client_that_waits_is_not_idle() {
    let doors = DOORS.replacen("[text]", "idle_timeout = '1s'\n[text]", 1);
    let program = Program::serve(&[RULES, &doors].concat());
    let mut waiting = Client::new(&program);
    send(&mut waiting, "TG.CHECK page:a 3");
    assert_eq!(brief(&reply(&mut waiting)), (1, Some(0)));
    send(&mut waiting, "TG.WAIT page:a");
    until_waiting(&program, 1);
    // This one has been silent for a shorter time when it is closed for that.
    let mut idle = Client::new(&program);
    idle.ask("PING", "+PONG\r\n");
    assert_eq!(idle.rest(), b"");
    assert_eq!(bad_input(&program, "idle"), 1);
    assert_eq!(ask(&mut Client::new(&program), "TG.RESET page:a"), json!(":1"));
    assert_eq!(brief(&reply(&mut waiting)), (1, Some(2)));
}

#[test]
fn a_client_that_leaves_takes_nothing() {
    let program = program();
    let mut admin = Client::new(&program);
    for half in [false, true, false] {
        assert_eq!(brief(&ask(&mut admin, "TG.CHECK page:a 3")), (1, Some(0)));
        let mut leaving = Client::new(&program);
        send(&mut leaving, "TG.WAIT page:a");
        until_waiting(&program, 1);
        let mut staying = Client::new(&program);
        send(&mut staying, "TG.WAIT page:a");
        until_waiting(&program, 2);
        if half {
            leaving.0.shutdown(Shutdown::Write).expect("half of it closes");
            assert_eq!(leaving.rest(), b"");
        } else {
            // What lies unread makes it a reset.
            leaving.send(b"PING\r\n");
        }
        drop(leaving);
        until_waiting(&program, 1);
        // Only the one that stayed takes a use.
        assert_eq!(ask(&mut admin, "TG.RESET page:a"), json!(":1"));
        assert_eq!(brief(&reply(&mut staying)), (1, Some(2)));
        assert_eq!(brief(&ask(&mut admin, "TG.PEEK page:a")), (1, Some(2)));
        assert_eq!(ask(&mut admin, "TG.RESET page:a"), json!(":1"));
    }
}

#[test]
fn a_client_that_leaves_while_the_store_is_asked_takes_nothing() {
    let redis = Server::start(&[]);
    let program = Program::serve(&[RULES, DOORS, &store(&redis.url(), "1m")].concat());
    let mut client = Client::new(&program);
    until(|| ask(&mut client, "TG.PEEK deny:a")["degraded"] == 0);
    for _ in 0..3 {
        redis.halt();
        let mut leaving = Client::new(&program);
        send(&mut leaving, "TG.WAIT deny:a");
        leaving.0.shutdown(Shutdown::Write).expect("half of it closes");
        assert_eq!(leaving.rest(), b"", "the store has not answered");
        redis.go_on();
        // This is asked behind it; what it gives back may come later.
        until(|| brief(&ask(&mut client, "TG.PEEK deny:a")) == (1, Some(3)));
    }
    // A transaction only tries: its client waits for the replies alone.
    redis.halt();
    let mut trying = Client::new(&program);
    for command in ["MULTI", "TG.WAIT deny:a", "EXEC"] {
        send(&mut trying, command);
    }
    trying.0.shutdown(Shutdown::Write).expect("half of it closes");
    assert_eq!(trying.read_until(b"*1\r\n"), b"+OK\r\n+QUEUED\r\n*1\r\n");
    redis.go_on();
    assert_eq!(brief(&reply(&mut trying)), (1, Some(2)));
}

#[test]
fn waiting_ends_with_its_timeout_and_too_many_are_refused() {
    let program = program();
    let mut admin = Client::new(&program);
    assert_eq!(brief(&ask(&mut admin, "TG.CHECK page:a 3")), (1, Some(0)));
    let refused = ask(&mut admin, "TG.WAIT page:a 1 1");
    assert_eq!((brief(&refused), &refused["rule"]), ((0, Some(0)), &json!("pages")));
    // Of four connections three may wait.
    let mut waiting = [Client::new(&program), Client::new(&program), Client::new(&program)];
    for (at, client) in waiting.iter_mut().enumerate() {
        send(client, "TG.WAIT page:a 1 86400000");
        until_waiting(&program, at as u64 + 1);
    }
    assert_eq!(ask(&mut admin, "TG.WAIT page:a"), json!("-ERR crowded"));
    assert_eq!(ask(&mut admin, "TG.WAIT page:b").get("allowed"), Some(&json!(1)));
    program.signal(Signal::TERM);
    for client in &mut waiting {
        assert_eq!(client.rest(), b"-ERR draining\r\n");
    }
    let mut program = program;
    assert!(program.exit_status().success());
}

#[test]
fn counts_in_a_remote_store_are_the_same_to_two_programs() {
    let redis = Server::start(&[]);
    let config = [RULES, DOORS, &store(&redis.url(), "1m")].concat();
    let (one, other) = (Program::serve(&config), Program::serve(&config));
    let (mut here, mut there) = (Client::new(&one), Client::new(&other));
    assert_eq!(brief(&ask(&mut here, "TG.CHECK page:a")), (1, Some(2)));
    assert_eq!(brief(&ask(&mut there, "TG.MCHECK 2 page:a page:b")), (1, Some(0)));
    assert_eq!(brief(&ask(&mut here, "TG.PEEK page:a")), (0, Some(0)));
    let never = ask(&mut here, "TG.CHECK page:a 4");
    assert_eq!((&never["allowed"], &never["retry_ms"]), (&json!(0), &json!(-1)));
    // One waits, and one leaves.
    let mut leaving = Client::new(&one);
    send(&mut leaving, "TG.WAIT page:a");
    until_waiting(&one, 1);
    drop(leaving);
    until_waiting(&one, 0);
    let mut waiting = Client::new(&one);
    send(&mut waiting, "TG.WAIT page:a");
    until_waiting(&one, 1);
    assert_eq!(ask(&mut there, "TG.RESET page:a"), json!(":1"));
    assert_eq!(brief(&reply(&mut waiting)), (1, Some(2)));
    assert_eq!(brief(&ask(&mut there, "TG.PEEK page:a")), (1, Some(2)));
    // A use in flight that ends at the program that took it.
    let held = ask(&mut here, "TG.HOLD job:a 3600000");
    assert_eq!(brief(&held), (1, Some(0)));
    assert_eq!(brief(&ask(&mut there, "TG.HOLD job:a 3600000")), (0, Some(0)));
    let release = format!("TG.RELEASE {}", held["use"].as_str().expect("an id"));
    assert_eq!(ask(&mut here, &release), json!(":1"));
    until(|| ask(&mut there, "TG.PEEK job:a")["allowed"] == 1);
}

#[test]
fn a_store_that_is_away_is_told() {
    let mut redis = Server::start(&[]);
    let program = Program::serve(&[RULES, DOORS, &store(&redis.url(), "1m")].concat());
    let mut client = Client::new(&program);
    assert_eq!(ask(&mut client, "TG.CHECK page:a")["degraded"], 0);
    redis.kill();
    for command in ["TG.CHECK page:a", "TG.WAIT page:a"] {
        let degraded = ask(&mut client, command);
        assert_eq!((brief(&degraded), &degraded["degraded"]), ((1, None), &json!(1)), "{command}");
    }
    let refused = ask(&mut client, "TG.CHECK deny:a");
    assert_eq!((&refused["allowed"], &refused["degraded"]), (&json!(0), &json!(1)));
    let told = ask(&mut client, "TG.RESET deny:b");
    assert!(told.as_str().is_some_and(|told| told.starts_with("-ERR ")), "{told}");
}

/// Under `average` one more is left a moment after a use.
#[test]
fn a_wait_tells_what_was_left_when_its_use_was_taken() {
    let redis = Server::start(&[]);
    let there = [RULES, DOORS, &store(&redis.url(), "1m")].concat();
    for program in [program(), Program::serve(&there)] {
        let mut client = Client::new(&program);
        assert_eq!(brief(&ask(&mut client, "TG.CHECK mean:a")), (1, Some(2)));
        assert_eq!(brief(&ask(&mut client, "TG.WAIT mean:b")), (1, Some(2)));
        let http = program.address("http");
        let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
        let waited = send_to(http, "POST", "/v1/wait", headers, r#"{"key":"mean:c"}"#);
        assert_eq!(waited.json()["limits"][0]["remaining"], 2, "{}", waited.body);
    }
}

#[test]
fn a_wait_that_gives_up_asks_a_silent_store_once() {
    let redis = Server::start(&[]);
    let program = Program::serve(&[RULES, DOORS, &store(&redis.url(), "300ms")].concat());
    let mut client = Client::new(&program);
    until(|| ask(&mut client, "TG.PEEK deny:a")["degraded"] == 0);
    let decided = || metric(&program, "tidegate_decision_seconds_count{door=\"resp\"}");
    let before = decided();
    redis.halt();
    let refused = ask(&mut client, "TG.WAIT deny:a 1 1");
    assert_eq!((&refused["allowed"], &refused["degraded"]), (&json!(0), &json!(1)), "{refused}");
    assert_eq!(decided() - before, 2, "the try, and the refusal without the store");
}

#[test]
fn a_cost_that_can_never_be_had_is_counted_as_refused() {
    let program = program();
    let mut client = Client::new(&program);
    for command in ["TG.CHECK page:a 4", "TG.MCHECK 4 page:a free", "TG.WAIT page:a 4"] {
        let reply = ask(&mut client, command);
        assert_eq!(
            (brief(&reply), reply["retry_ms"].as_i64()),
            ((0, Some(3)), Some(-1)),
            "{reply}"
        );
    }
    client.ask("CL.THROTTLE page:a 0 1 1 4", "*5\r\n:1\r\n:3\r\n:3\r\n:-1\r\n:0\r\n");
    let refused = "tidegate_decisions_total{door=\"resp\",rule=\"pages\",verdict=\"refuse\"}";
    assert_eq!(metric(&program, refused), 4);
    // A look counts nothing.
    assert_eq!(brief(&ask(&mut client, "TG.PEEK page:a 4")), (0, Some(3)));
    assert_eq!(metric(&program, refused), 4);
}

#[test]
fn administration_shows_and_resets_what_cl_throttle_has_counted() {
    let program = program();
    let mut client = Client::new(&program);
    client.ask("CL.THROTTLE adhoc 3 1 86400", "*5\r\n:0\r\n:4\r\n:3\r\n:-1\r\n:86400\r\n");
    let shown = |method: &str| {
        send_to(program.address("admin"), method, "/v1/keys/adhoc", "Host: localhost\r\n", "")
    };
    let limits = &shown("GET").json()["limits"];
    assert_eq!((&limits[0]["rule"], &limits[0]["limit"]), (&json!("resp:throttle"), &Value::Null));
    assert!(limits[0]["reset_ms"].as_u64().is_some_and(|left| left > 86_000_000), "{limits}");
    assert_eq!(shown("DELETE").status, 204);
    assert_eq!(shown("GET").json()["limits"], json!([]));
    client.ask("EXISTS adhoc", ":0\r\n");
}

#[test]
fn what_is_sent_behind_a_wait_is_answered_after_it() {
    let program = program();
    let mut client = Client::new(&program);
    assert_eq!(brief(&ask(&mut client, "TG.CHECK page:w 3")), (1, Some(0)));
    let mut waiting = Client::new(&program);
    send(&mut waiting, "TG.WAIT page:w");
    until_waiting(&program, 1);
    // As client libraries do: the whole pipeline, then the replies.
    let count = 300_000;
    waiting.send("PING\r\n".repeat(count).as_bytes());
    assert_eq!(ask(&mut client, "TG.RESET page:w"), ":1");
    assert_eq!(brief(&reply(&mut waiting)), (1, Some(2)));
    assert_eq!(waiting.read(7 * count), "+PONG\r\n".repeat(count).as_bytes());
    let read = metric(&program, "tidegate_resp_bytes_total{direction=\"read\"}");
    assert!(read > 6 * count as u64, "{read}");
}

/// The end of TLS may come in one read with requests, and no end of the connection behind it.
#[test]
fn a_client_that_ends_tls_leaves_the_line() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let file = |name: &str| papers.path(name).display().to_string();
    let tls = format!("tls = {{ cert = '{}', key = '{}' }}\n", file("gate.pem"), file("gate.key"));
    let doors = DOORS.replacen("[text]", &(tls + "[text]"), 1);
    let program = Program::serve(&[RULES, &doors].concat());
    for behind in ["", "PING\r\n"] {
        let mut client = connect(papers.client(None), program.address("resp"));
        client.write_all(b"TG.CHECK page:a 3\r\nTG.WAIT page:a\r\n").expect("the door takes it");
        until_waiting(&program, 1);
        client.conn.writer().write_all(behind.as_bytes()).expect("room");
        client.conn.send_close_notify();
        client.conn.write_tls(&mut client.sock).expect("the door takes it");
        until_waiting(&program, 0);
        let mut reset = connect(papers.client(None), program.address("resp"));
        reset.write_all(b"TG.RESET page:a\r\n").expect("the door takes it");
        let mut reply = [0; 4];
        reset.read_exact(&mut reply).expect("a reply");
        assert_eq!(&reply, b":1\r\n");
    }
}

/// A wait is of no use to a client that sends no more. Earlier replies are.
#[test]
fn a_client_that_half_closes_behind_a_wait_has_its_earlier_replies() {
    let program = program();
    let mut client = Client::new(&program);
    let message = "x".repeat(60_000);
    let echo = format!("*2\r\n$4\r\nECHO\r\n$60000\r\n{message}\r\n").repeat(200);
    client.send((echo + "TG.CHECK page:a 3\r\nTG.WAIT page:a\r\n").as_bytes());
    until_waiting(&program, 1);
    client.0.shutdown(Shutdown::Write).expect("half of it closes");
    let one = format!("$60000\r\n{message}\r\n");
    assert!((0..200).all(|_| client.read(one.len()) == one.as_bytes()));
    assert_eq!(brief(&reply(&mut client)), (1, Some(0)));
    assert_eq!(client.rest(), b"");
    until_waiting(&program, 0);
}

#[test]
fn however_much_a_client_sends_behind_a_wait_it_leaves_the_line() {
    let program = program();
    let mut client = Client::new(&program);
    assert_eq!(brief(&ask(&mut client, "TG.CHECK page:w 3")), (1, Some(0)));
    let behind = |bytes: usize| {
        let mut waiting = Client::new(&program);
        send(&mut waiting, "TG.WAIT page:w");
        until_waiting(&program, 1);
        for _ in 0..bytes / 1000 {
            // The door may have closed the connection before all of it is sent.
            let _ = waiting.0.write_all(format!("ECHO {}\r\n", "x".repeat(993)).as_bytes());
        }
        waiting
    };
    // The client's end comes behind more bytes than the kernel keeps.
    for how in [None, Some(Shutdown::Write)] {
        let waiting = behind(5_000_000);
        match how {
            None => drop(waiting),
            Some(how) => {
                waiting.0.shutdown(how).expect("an end");
                until_waiting(&program, 0);
            }
        }
        until_waiting(&program, 0);
    }
    // What would have to be kept is bounded.
    let waiting = behind(40_000_000);
    until_waiting(&program, 0);
    drop(waiting);
    assert_eq!(ask(&mut client, "TG.RESET page:w"), ":1");
    assert_eq!(brief(&ask(&mut client, "TG.PEEK page:w")), (1, Some(3)));
}
