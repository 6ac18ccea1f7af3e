//! Clients that mean harm, or know no better: half requests, no reading, too many connections.

use std::io::Write as _;
use std::net::Shutdown;

use super::{Client, DOOR, bad_input, metric};
use crate::program::{PATIENCE, Program};

#[test]
fn a_whole_pipeline_is_written_before_a_reply_is_read() {
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    let message = "x".repeat(100);
    let one = format!("*2\r\n$4\r\nECHO\r\n$100\r\n{message}\r\n");
    let count = 100_000;
    // A door that stops reading would never take all of it.
    client.0.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    client.send(one.repeat(count).as_bytes());
    let reply = format!("$100\r\n{message}\r\n");
    let replies = client.read(reply.len() * count);
    assert!(replies.chunks(reply.len()).all(|one| one == reply.as_bytes()));
}

#[test]
fn a_client_that_never_reads_is_closed() {
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    client.0.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    let message = "x".repeat(60_000);
    let one = format!("*2\r\n$4\r\nECHO\r\n$60000\r\n{message}\r\n");
    // Far more than 32 MiB and what the kernel holds.
    let refused = (0..4_000).find_map(|_| client.0.write_all(one.as_bytes()).err());
    refused.expect("the door closes the connection");
    assert_eq!(bad_input(&program, "slow_reader"), 1);
    Client::new(&program).ask("PING", "+PONG\r\n");
}

#[test]
fn a_client_that_half_closes_has_its_replies() {
    let program = Program::serve(DOOR);
    for cut in ["", "*2\r\n$4\r\nEC", "PIN"] {
        let mut client = Client::new(&program);
        client.send("PING\r\n".repeat(1_000).as_bytes());
        client.send(cut.as_bytes());
        client.0.shutdown(Shutdown::Write).expect("half a close");
        assert_eq!(client.rest(), "+PONG\r\n".repeat(1_000).as_bytes(), "{cut:?}");
    }
    assert_eq!(bad_input(&program, "cut_short"), 2);
}

#[test]
fn a_newcomer_at_a_full_door_is_told_so() {
    let config = format!("{DOOR}\n").replace("[admin]", "max_connections = 2\n[admin]");
    let program = Program::serve(&config);
    let mut clients = [Client::new(&program), Client::new(&program)];
    clients.iter_mut().for_each(|client| client.ask("PING", "+PONG\r\n"));
    let mut third = Client::new(&program);
    assert_eq!(third.rest(), b"-ERR max number of clients reached\r\n");
    assert_eq!(bad_input(&program, "too_many_connections"), 1);
    // Idle connections of pools do not give way.
    clients.iter_mut().for_each(|client| client.ask("PING", "+PONG\r\n"));
}

#[test]
fn an_idle_client_is_closed_silently() {
    let config = DOOR.replace("[admin]", "idle_timeout = '1s'\n[admin]");
    let program = Program::serve(&config);
    let mut client = Client::new(&program);
    assert_eq!(client.rest(), b"");
    assert_eq!(bad_input(&program, "idle"), 1);
}

#[test]
fn large_headers_take_no_memory_and_half_requests_no_processor() {
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    client.send(b"*2\r\n$4\r\nECHO\r\n$1073741824\r\n");
    assert_eq!(client.rest(), b"-ERR Protocol error: invalid bulk length\r\n");
    // An argument that comes byte by byte is answered like any other.
    let mut client = Client::new(&program);
    client.0.set_nodelay(true).expect("a socket");
    let request = b"*2\r\n$4\r\nECHO\r\n$300\r\n";
    for byte in request.iter().chain(&[b'y'; 300]).chain(b"\r\n") {
        client.send(&[*byte]);
    }
    let expected = format!("$300\r\n{}\r\n", "y".repeat(300));
    assert_eq!(client.read(expected.len()), expected.as_bytes());
}

#[test]
fn commands_and_bytes_are_counted() {
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    client.ask("PING", "+PONG\r\n");
    client.ask("CL.THROTTLE k 1 1 10", "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:10\r\n");
    client.ask("NOPE", "-ERR unknown command 'NOPE', with args beginning with: \r\n");
    for (series, expected) in [
        ("tidegate_resp_commands_total{command=\"ping\"}", 1),
        ("tidegate_resp_commands_total{command=\"cl.throttle\"}", 1),
        ("tidegate_resp_commands_total{command=\"other\"}", 1),
        ("tidegate_resp_connections", 1),
    ] {
        assert_eq!(metric(&program, series), expected, "{series}");
    }
    assert_eq!(bad_input(&program, "unknown_command"), 1);
    let written = metric(&program, "tidegate_resp_bytes_total{direction=\"written\"}");
    assert!(written > 50, "{written}");
}

#[test]
fn a_full_table_has_no_buckets_of_unknown_keys() {
    let program = Program::serve(&format!("[memory]\nmax_keys = 100\n{DOOR}"));
    let mut client = Client::new(&program);
    for number in 0..100 {
        client.ask(
            &format!("CL.THROTTLE k{number} 5 1 600"),
            "*5\r\n:0\r\n:6\r\n:5\r\n:-1\r\n:600\r\n",
        );
    }
    client.ask("CL.THROTTLE unknown 5 1 600", "-OOM no room for a new key\r\n");
    client.ask("EXISTS unknown k0", ":1\r\n");
    client.ask("TTL unknown", ":-2\r\n");
    client.ask("DEL unknown", ":0\r\n");
}
