//! What hostile clients say at the RESP door: commands of every kind, what breaks the protocol,
//! waits that never end by themselves, and pipelines of replies that are never read.

use tidegate_wire::resp::request::request;

use super::Target;
use crate::server::Doors;

/// Replies that are asked for and not read.
const UNREAD: usize = 500;

pub(super) fn add(doors: &Doors, targets: &mut Vec<Target>) {
    for address in &doors.resp {
        let mut scripts = scripts();
        let mut burdens: Vec<Vec<u8>> =
            scripts.iter().map(|script| script.repeat(UNREAD)).collect();
        let wait = array(&["TG.WAIT", "full resp"]);
        // Commands behind a wait, whole or cut, wait as well.
        let followed = [&wait[..], b"PING\r\n*2\r\n$4\r\nEC"].concat();
        burdens.extend([wait.clone(), wait.repeat(3), followed.clone()]);
        scripts.extend([wait, followed, array(&["TG.WAIT", "full resp", "1", "50"])]);
        targets.push(Target { address: address.clone(), scripts, burdens });
    }
}

fn array(words: &[&str]) -> Vec<u8> {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let mut bytes = Vec::new();
    request(&mut bytes, &words);
    bytes
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
        "TG.CHECK hostile-key",
        "TG.CHECK hostile-key 99",
        "TG.CHECK hostile-use",
        "TG.MCHECK 1 hostile-key hostile-key other",
        "TG.PEEK hostile-use",
        "TG.HOLD hostile-use 100",
        "TG.RELEASE 00000000000000000000000000000000",
        "TG.RELEASE nonsense",
        "TG.RESET hostile-key",
        "TG.WAIT hostile-key 1 50",
        "INCR hostile-counter",
        "DECRBY hostile-counter 99",
        "SET hostile-counter text PX 50",
        "PEXPIRE hostile-counter 50",
        "GET hostile-counter",
        "DEL hostile-counter hostile",
        "TTL hostile",
        "MULTI",
        "EXEC",
        "DISCARD",
        "QUIT",
    ];
    let mut scripts: Vec<Vec<u8>> = Vec::new();
    for command in commands {
        scripts.push(array(&command.split(' ').collect::<Vec<_>>()));
        scripts.push(format!("{command}\r\n").into_bytes());
    }
    scripts.push(array(&["ECHO", &long]));
    for broken in ["*1025\r\n", "*1\r\n$99999999\r\n", "*1\r\n:1\r\n", "ECHO \"\r\n", "*0\r\n"] {
        scripts.push(broken.as_bytes().to_vec());
    }
    scripts
}
