//! What hostile clients say at the RESP door: every command, what breaks the protocol, and
//! pipelines of replies that are never read.

use tidegate_wire::resp::request::request;

use super::Target;
use crate::server::Doors;

/// Replies that are asked for and not read.
const UNREAD: usize = 500;

pub(super) fn add(doors: &Doors, targets: &mut Vec<Target>) {
    for address in &doors.resp {
        let scripts = scripts();
        let burdens = scripts.iter().map(|script| script.repeat(UNREAD)).collect();
        targets.push(Target { address: address.clone(), scripts, burdens });
    }
}

fn scripts() -> Vec<Vec<u8>> {
    let long = "x".repeat(20_000);
    let commands = [
        "PING",
        "HELLO 3",
        "HELLO 2",
        "AUTH wrong",
        "AUTH other wrong",
        "CLIENT SETNAME hostile",
        "CLIENT LIST",
        "INFO",
        "COMMAND",
        "CONFIG GET *",
        "RESET",
        "SELECT 7",
        "EVAL return 0",
        "NOPE a b",
        "CL.THROTTLE hostile 5 10 60",
        "CL.THROTTLE hostile 5 10 60 -3",
        "CL.THROTTLE hostile 5 0 60",
        "THROTTLE hostile 5 10 60 0",
        "CL.THROTTLE",
        "QUIT",
    ];
    let mut scripts: Vec<Vec<u8>> = Vec::new();
    for command in commands {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let mut bytes = Vec::new();
        request(&mut bytes, &words);
        scripts.push(bytes);
        scripts.push(format!("{command}\r\n").into_bytes());
    }
    let mut echo = Vec::new();
    request(&mut echo, &[b"ECHO", long.as_bytes()]);
    scripts.push(echo);
    for broken in ["*1025\r\n", "*1\r\n$99999999\r\n", "*1\r\n:1\r\n", "ECHO \"\r\n", "*0\r\n"] {
        scripts.push(broken.as_bytes().to_vec());
    }
    scripts
}
