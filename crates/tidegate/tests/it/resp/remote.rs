//! Counts of CL.THROTTLE that lie in a Redis which several programs share.

use std::net::Shutdown;

use tidegate_wire::resp::request::request;

use super::{Client, DOOR, bad_input, metric};
use crate::engines::redis::Server;
use crate::engines::until;
use crate::program::Program;
use crate::remote::store;

const RULES: &str = "
[[rule]]
match = 'rule *'
limit = '3 per 300d'
[[rule]]
match = 'deny:*'
limit = '3 per 300d'
on_store_error = 'deny'
[[rule]]
match = 'here *'
limit = '3 per 300d'
consistency = 'local'
[[rule]]
match = 'two:*'
limit = ['10 per 300d', '2 per 150d']
algorithm = 'gcra'
[[rule]]
match = 'allow:*'
limit = '7 per 300d'
on_store_error = 'allow'
";

fn program(redis: &Server, timeout: &str) -> Program {
    Program::serve(&[RULES, DOOR, &store(&redis.url(), timeout)].concat())
}

/// Asks, and compares the five numbers of the reply. Times of days run on while the test does.
#[track_caller]
fn ask(client: &mut Client, command: &str, expected: [i64; 5]) {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    let mut sent = Vec::new();
    request(&mut sent, &words);
    client.send(&sent);
    compare(&client.read(numbers(expected).len()), &numbers(expected));
}

/// Compares replies, number by number. What a store's answer teaches about its clock may set the
/// time back a little, and seconds are rounded up.
#[track_caller]
fn compare(replies: &[u8], expected: &str) {
    let replies = String::from_utf8_lossy(replies);
    let number = |line: &str| line.strip_prefix(':')?.trim_end().parse::<i64>().ok();
    for (found, wanted) in replies.split_inclusive('\n').zip(expected.split_inclusive('\n')) {
        let is_near = number(found).zip(number(wanted)).is_some_and(|(found, wanted)| {
            wanted > 10_000 && (wanted - 600..=wanted + 1).contains(&found)
        });
        assert!(found == wanted || is_near, "{found:?} in place of {wanted:?} in {replies:?}");
    }
}

/// The last number of a reply to a look.
fn reset_of(client: &mut Client, command: &str) -> i64 {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    let mut sent = Vec::new();
    request(&mut sent, &words);
    client.send(&sent);
    let reply = client.read(numbers([0, 4, 3, -1, 31_536_000]).len());
    let reply = String::from_utf8(reply).expect("text");
    let last = reply.trim_end().rsplit(':').next().expect("numbers");
    last.parse().expect("a number")
}

/// A reply of five numbers.
fn numbers(numbers: [i64; 5]) -> String {
    let lines: String = numbers.iter().map(|number| format!(":{number}\r\n")).collect();
    format!("*5\r\n{lines}")
}

#[test]
fn two_programs_keep_to_one_limit() {
    let redis = Server::start(&[]);
    let both = [program(&redis, "1m"), program(&redis, "1m")];
    let mut clients = both.each_ref().map(Client::new);
    let year = 31_536_000;
    let first = "CL.THROTTLE shared 3 1 31536000";
    ask(&mut clients[0], first, [0, 4, 3, -1, year]);
    // The clocks of two programs are apart by less than the second that passes here.
    for client in &mut clients {
        until(|| reset_of(client, &format!("{first} 0")) < year);
    }
    for used in 2..=4 {
        let reply = [0, 4, 4 - used, -1, used * year];
        ask(&mut clients[used as usize % 2], first, reply);
    }
    let [one, other] = &mut clients;
    ask(one, "CL.THROTTLE shared 3 1 31536000", [1, 4, 0, year, 4 * year]);
    ask(other, "CL.THROTTLE shared 3 1 31536000", [1, 4, 0, year, 4 * year]);
    ask(one, "CL.THROTTLE shared 3 1 31536000 0", [0, 4, 0, -1, 4 * year]);
    // What would still be owed does not fit: nothing is given back.
    ask(other, "CL.THROTTLE shared 0 1 31536000 -1", [1, 1, 0, 2 * year, 4 * year]);
    ask(other, "CL.THROTTLE shared 3 1 31536000 -2", [0, 4, 2, -1, 2 * year]);
    ask(one, "THROTTLE shared 4 1 31536000 3", [0, 4, 2, 2 * year, year]);
    ask(one, "CL.THROTTLE shared 3 1 31536000 5", [1, 4, 2, -1, 2 * year]);
}

#[test]
fn replies_stand_in_order_whatever_is_asked_where() {
    let redis = Server::start(&[]);
    let program = program(&redis, "1m");
    let mut client = Client::new(&program);
    let (mut sent, mut expected) = (Vec::new(), String::new());
    let day = 86_400;
    let hundred = 100 * day;
    for number in 1..=50_i64 {
        let own = format!("key {number}");
        for key in ["rule a", own.as_str(), "here a"] {
            request(&mut sent, &[b"CL.THROTTLE", key.as_bytes(), b"0", b"1", b"86400"]);
        }
        let uses = number.min(3);
        let by_rule = match number {
            1..=3 => numbers([0, 3, 3 - uses, -1, uses * hundred]),
            _ => numbers([1, 3, 0, hundred, 3 * hundred]),
        };
        expected += &[&by_rule, &*numbers([0, 1, 0, -1, day]), &by_rule].concat();
        sent.extend_from_slice(b"PING\r\nCL.THROTTLE a b c d\r\n");
        expected += "+PONG\r\n-Cell error: Store error: Couldn't parse as integer: b\r\n";
    }
    client.send(&sent);
    compare(&client.read(expected.len()), &expected);
}

/// A quantity above a limit is answered in its place, and shows the limit that never grants it.
#[test]
fn what_can_never_be_had_is_answered_in_its_place() {
    let redis = Server::start(&[]);
    let program = program(&redis, "1m");
    let mut client = Client::new(&program);
    let mut sent = Vec::new();
    for quantity in ["3", "1", "11", "2"] {
        let words = [b"CL.THROTTLE", &b"two:a"[..], b"9", b"9", b"9", quantity.as_bytes()];
        request(&mut sent, &words);
    }
    client.send(&sent);
    let day = 86_400;
    let expected = [
        numbers([1, 2, 2, -1, 0]),
        numbers([0, 2, 1, -1, 75 * day]),
        numbers([1, 10, 9, -1, 30 * day]),
        numbers([1, 2, 1, 75 * day, 75 * day]),
    ];
    let expected = expected.concat();
    compare(&client.read(expected.len()), &expected);
}

#[test]
fn commands_of_several_keys_have_one_reply() {
    let redis = Server::start(&[]);
    let program = program(&redis, "1m");
    let mut client = Client::new(&program);
    let long = "k".repeat(1025);
    for command in ["EXISTS", "DEL", "UNLINK"] {
        // Nothing was asked of the store: the next replies are in their places.
        client.ask(&format!("{command} a {long}"), "-ERR key is longer than 1024 bytes\r\n");
        client.ask("EXISTS a b", ":0\r\n");
        client.ask("PING", "+PONG\r\n");
    }
    ask(&mut client, "CL.THROTTLE a 3 1 86400", [0, 4, 3, -1, 86_400]);
    // Redis counts a repeated key each time where it looks, and once where it removes.
    client.ask("EXISTS a b a", ":2\r\n");
    client.ask("DEL a b a", ":1\r\n");
    client.ask("EXISTS a", ":0\r\n");
}

#[test]
fn a_store_that_is_away_holds_up_no_client() {
    let mut redis = Server::start(&[]);
    let program = program(&redis, "1m");
    let mut client = Client::new(&program);
    ask(&mut client, "CL.THROTTLE warm 9 1 10", [0, 10, 9, -1, 10]);
    redis.kill();
    // Where no rule says otherwise every request is allowed, uncounted.
    for _ in 0..20 {
        ask(&mut client, "CL.THROTTLE other 1 1 86400", [0, 2, 1, -1, 0]);
    }
    // The limit that is told is the rule's own; other uses are not in what remains of it.
    ask(&mut client, "CL.THROTTLE allow:a 1 1 86400 2", [0, 7, 5, -1, 0]);
    ask(&mut client, "CL.THROTTLE allow:a 1 1 86400 2", [0, 7, 5, -1, 0]);
    ask(&mut client, "CL.THROTTLE allow:a 1 1 86400 0", [0, 7, 7, -1, 0]);
    ask(&mut client, "CL.THROTTLE allow:a 1 1 86400 8", [1, 7, 7, -1, 0]);
    // A rule may refuse all.
    ask(&mut client, "CL.THROTTLE deny:a 1 1 86400", [1, 3, 0, 1, 1]);
    ask(&mut client, "CL.THROTTLE deny:a 1 1 86400 -1", [0, 3, 0, -1, 1]);
    // What only the store knows is an error; plain counters need no store.
    for command in ["DEL other", "EXISTS other", "TTL other", "PTTL other"] {
        client.ask(command, "-ERR the store is away\r\n");
    }
    client.ask("INCR plain", ":1\r\n");
    client.ask("EXISTS plain", ":1\r\n");
    client.ask("DEL plain", ":1\r\n");
}

#[test]
fn giving_back_waits_for_no_store_that_is_away() {
    let mut redis = Server::start(&[]);
    let program = program(&redis, "1m");
    let mut client = Client::new(&program);
    let day = 86_400;
    ask(&mut client, "CL.THROTTLE owed 1 1 86400", [0, 2, 1, -1, day]);
    redis.kill();
    for _ in 0..20 {
        ask(&mut client, "CL.THROTTLE other 1 1 86400", [0, 2, 1, -1, 0]);
    }
    for _ in 0..5 {
        client.send(b"CL.THROTTLE owed 1 1 86400 -1\r\nPING\r\n");
        let reply = client.read_until(b"+PONG\r\n");
        assert!(reply.starts_with(b"*5\r\n:0\r\n:2\r\n"), "{}", reply.escape_ascii());
    }
}

/// What gives back may stand behind a change that the store never answers.
#[test]
fn giving_back_is_answered_while_the_store_is_silent() {
    let redis = Server::start(&[]);
    let program = program(&redis, "300ms");
    let mut taking = Client::new(&program);
    until(|| {
        taking.send(b"EXISTS silent\r\n");
        taking.read_until(b"\r\n") == b":0\r\n"
    });
    redis.halt();
    taking.send(b"CL.THROTTLE silent 9 1 86400\r\n");
    let mut giving = Client::new(&program);
    giving.send(b"CL.THROTTLE silent 9 1 86400 -1\r\nDEL silent\r\n");
    // The store is known to be away after a few of these.
    let mut others = Client::new(&program);
    for number in 0..10 {
        let command = format!("CL.THROTTLE other{number} 1 1 86400");
        ask(&mut others, &command, [0, 2, 1, -1, 0]);
    }
    ask(&mut others, "CL.THROTTLE silent 9 1 86400 -1", [0, 10, 10, -1, 0]);
    let replies = numbers([0, 10, 10, -1, 0]) + "-ERR the store is away\r\n";
    compare(&giving.read(replies.len()), &replies);
    redis.go_on();
}

/// A store may tell what there is and take no change.
#[test]
fn a_bucket_that_a_store_does_not_empty_is_not_taken_for_deleted() {
    let redis = Server::start(&[]);
    let program = program(&redis, "1m");
    let mut client = Client::new(&program);
    ask(&mut client, "CL.THROTTLE kept 3 1 86400", [0, 4, 3, -1, 86_400]);
    redis.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    client.ask("DEL kept", "-ERR the store is away\r\n");
    client.ask("SET kept 1", "+OK\r\n");
    client.ask("DEL kept", ":1\r\n");
    redis.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    until(|| {
        client.send(b"EXISTS kept\r\n");
        client.read_until(b"\r\n") == b":1\r\n"
    });
    client.ask("DEL kept", ":1\r\n");
    client.ask("EXISTS kept", ":0\r\n");
}

/// A reply that comes late stands behind others that are not read yet. What comes behind it is
/// executed all the same, also if the client has sent its last by then.
#[test]
fn a_client_that_half_closes_has_the_replies_behind_a_late_one() {
    let redis = Server::start(&[]);
    let program = program(&redis, "1m");
    let mut client = Client::new(&program);
    ask(&mut client, "CL.THROTTLE late 9 1 86400", [0, 10, 9, -1, 86_400]);
    redis.halt();
    let message = "x".repeat(60_000);
    let mut sent = format!("*2\r\n$4\r\nECHO\r\n$60000\r\n{message}\r\n").repeat(200);
    sent += "CL.THROTTLE late 9 1 86400\r\nPING\r\n";
    client.send(sent.as_bytes());
    client.0.shutdown(Shutdown::Write).expect("half a close");
    // The store was asked.
    until(|| metric(&program, "tidegate_resp_commands_total{command=\"cl.throttle\"}") == 2);
    redis.go_on();
    // The answer has come before the first reply is read.
    until(|| metric(&program, "tidegate_resp_commands_total{command=\"ping\"}") == 1);
    let message = format!("$60000\r\n{message}\r\n");
    for number in 0..200 {
        assert!(client.read(message.len()) == message.as_bytes(), "reply {number}");
    }
    let last = numbers([0, 10, 8, -1, 2 * 86_400]) + "+PONG\r\n";
    compare(&client.rest(), &last);
    assert_eq!(bad_input(&program, "cut_short"), 0);
}
