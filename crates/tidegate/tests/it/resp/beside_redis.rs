//! Odd requests beside a real redis-server: the replies are the same, byte by byte, except where
//! this door differs on purpose.
//!
//! A conversation is what a new client sends before it closes its sending side; ours must say what
//! Redis says. One with a reply beside it is answered differently: ours as written, and Redis in
//! another way, so that a difference that is gone is noticed.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use super::{Client, DOOR};
use crate::engines::redis::Server;
use crate::program::{PATIENCE, Program};

/// Conversations in inline commands, one a line; `/` stands for the end of a command.
const ALIKE: &str = include_str!("alike_to_redis.txt");

/// Bytes that are no inline commands.
const FRAMING: &[&[u8]] = &[
    b"*0\r\n*-1\r\n*-10\r\nPING\r\n",
    b"*abc\r\n",
    b"*+1\r\n",
    b"*01\r\n",
    b"*00\r\n",
    b"*-0\r\n",
    b"*\r\n",
    b"* 1\r\n",
    b"*1 \r\n",
    b"*1x\r\n",
    b"*-\r\n",
    b"*--1\r\n",
    b"*9223372036854775808\r\n",
    b"*2147483648\r\n",
    b"*-9223372036854775808\r\nPING\r\n",
    b"*1\r\n",
    b"*1\r\n$",
    b"*1\r\n$-1\r\n",
    b"*1\r\n$-2\r\n",
    b"*1\r\n$abc\r\n",
    b"*1\r\n$04\r\nPING\r\n",
    b"*1\r\n$+4\r\nPING\r\n",
    b"*1\r\n$ 4\r\nPING\r\n",
    b"*1\r\n$4 \r\nPING\r\n",
    b"*1\r\n$9223372036854775807\r\n",
    b"*1\r\n$536870913\r\n",
    b"*1\r\n:1\r\n",
    b"*1\r\n+PING\r\n",
    b"*1\r\n-x\r\n",
    b"*1\r\n*1\r\n$4\r\nPING\r\n",
    b"*1\r\n\r\n",
    b"*1\r\n\n$4\r\nPING\r\n",
    b"*1\r\nPING\r\n",
    b"*1\r\n\xff\r\n",
    b"*1\r\n'\r\n",
    b"*1\r\n\\\r\n",
    b"*1\r\n$0\r\n\r\n",
    b"*2\r\n$0\r\n\r\n$1\r\na\r\n",
    b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
    b"*2\r\n$4\r\nECHO\r\n$-1\r\n",
    b"*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n",
    b"*2\r\n$4\r\nECHO\r\n$3\r\n\x00\xfe\n\r\n",
    b"*1\r\n$4\r\nPING\r\n*abc\r\n",
    b"PING\r\n*abc\r\nPING\r\n",
    b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI",
    b"+PING\r\n",
    b"$4\r\nPING\r\n",
    b":1\r\n_\r\n,1.5\r\n{}\r\n",
    b"\n\nPING\nPING\n",
    b"\r\rPING\r\n",
    b"   ECHO    a   \r\n",
    b"\tECHO\ta\r\n",
    b"\x0bECHO a\r\n",
    b"ECHO\x0ba\r\n",
    b"\x0cECHO a\x0c\r\n",
    b"ECHO \"a\"\x0b\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\n",
    b"post\r\n",
    b"HELLO 3\xff\r\n",
    b"FOO \xff\xfe\r\n",
    b"CLIENT SETNAME \xc3\xa4\r\n",
    b"CLIENT SETNAME a\x7f\r\n",
    b"ECHO \"a\"b\r\n",
    b"ECHO \"a\r\n",
];

/// Why a reply is another than that of Redis.
const RULED: &[(&str, &str, &str)] = &[
    ("an index that is none is out of range, too", "SELECT x", "-ERR DB index is out of range"),
    (
        "nothing is done of a HELLO whose options are wrong",
        "HELLO 3 AUTH x y BAD",
        "-ERR Syntax error in HELLO option 'BAD'",
    ),
    (
        "nothing is done of a HELLO whose options are wrong",
        "HELLO 3 SETNAME a BAD / CLIENT GETNAME",
        "-ERR Syntax error in HELLO option 'BAD'\r\n$-1",
    ),
    ("settings have one spelling", "CONFIG GET SAVE", "*2\r\n$4\r\nsave\r\n$0\r\n"),
    ("no patterns", "CONFIG GET sav?", "*0"),
    (
        "settings are changed in the file",
        "CONFIG SET save",
        "-ERR unknown subcommand 'SET'. Try CONFIG HELP.",
    ),
    ("no filters", "COMMAND LIST FILTERBY MODULE nope", "-ERR syntax error"),
    ("no counter is below zero", "DECR k", "-ERR decrement would go below zero"),
    (
        "no counter is below zero",
        "SET k -5 / INCR k",
        "+OK\r\n-ERR value is not an integer or out of range",
    ),
    (
        "ends of lines become blanks, at the end also",
        "EXPIRE k 10 \"BAD\\r\\n\"",
        "-ERR Unsupported option BAD  ",
    ),
    (
        "names are bounded",
        "CLIENT SETNAME $LONG",
        "-ERR Client names cannot contain spaces, newlines or special characters.",
    ),
    ("what was answered before is sent", "PING / Host: x", "+PONG"),
    ("no scripts", "EVAL", "-ERR scripts are not supported: use CL.THROTTLE or TG.CHECK"),
    ("no scripts", "EVALSHA x 0", "-ERR scripts are not supported: use CL.THROTTLE or TG.CHECK"),
    (
        "unknown",
        "MULTI / WATCH k / EXEC",
        "+OK\r\n-ERR unknown command 'WATCH', with args beginning with: 'k' \r\n\
         -EXECABORT Transaction discarded because of previous errors.",
    ),
    ("unknown", "KEYS *", "-ERR unknown command 'KEYS', with args beginning with: '*' "),
];

/// A conversation, the wrong reply, and what was to be said.
type Difference = (String, String, String);

struct Both {
    program: Program,
    redis: Server,
}

impl Both {
    fn start() -> Self {
        let redis = Server::start(&["--databases", "1"]);
        Self { program: Program::serve(DOOR), redis }
    }

    /// What both say to a new client that finds no keys: ours, and Redis.
    fn ask(&self, sent: &[u8]) -> (String, String) {
        let ours = converse(self.program.address("resp").port(), sent);
        let redis = converse(self.redis.port(), sent);
        (ours, redis)
    }
}

fn converse(port: u16, sent: &[u8]) -> String {
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    };
    let mut clean = Client(connect());
    clean.send(b"DEL k c\r\n");
    clean.read_until(b"\r\n");
    let mut stream = connect();
    stream.write_all(sent).expect("it reads");
    // A server that closes at once may have done so by now.
    let _ = stream.shutdown(Shutdown::Write);
    let mut said = Vec::new();
    // Some errors close the connection over what was not read.
    let _ = stream.read_to_end(&mut said);
    said.escape_ascii().to_string()
}

/// The bytes of a line of inline commands.
fn commands(line: &str) -> Vec<u8> {
    let line = line.replace("$LONG", &"n".repeat(1025));
    line.split(" / ").flat_map(|command| [command.as_bytes(), b"\r\n"].concat()).collect()
}

#[test]
fn odd_requests_are_answered_as_by_redis() {
    let both = Both::start();
    let lines = ALIKE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut all: Vec<Vec<u8>> = lines.map(commands).collect();
    assert!(all.len() > 200, "{} conversations", all.len());
    all.extend(FRAMING.iter().map(|bytes| bytes.to_vec()));
    let differ = |sent: Vec<u8>| -> Option<Difference> {
        let (ours, redis) = both.ask(&sent);
        (ours != redis).then(|| (sent.escape_ascii().to_string(), ours, redis))
    };
    let differences: Vec<Difference> = all.into_iter().filter_map(differ).collect();
    assert!(differences.is_empty(), "sent, ours, Redis: {differences:#?}");
}

#[test]
fn what_is_answered_differently_is_meant_so() {
    let both = Both::start();
    for (why, line, expected) in RULED {
        let (ours, redis) = both.ask(&commands(line));
        assert_eq!(ours, format!("{expected}\r\n").as_bytes().escape_ascii().to_string(), "{line}");
        assert_ne!(ours, redis, "{line}: no difference any more ({why})");
    }
}

#[test]
fn command_info_without_names_tells_of_all() {
    let program = Program::serve(DOOR);
    let said = |sent: &[u8]| converse(program.address("resp").port(), sent);
    assert_eq!(said(b"COMMAND INFO\r\n"), said(b"COMMAND\r\n"));
    assert!(said(b"COMMAND INFO\r\n").contains("tg.check"));
}
