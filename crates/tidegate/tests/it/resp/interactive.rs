//! redis-cli as a person uses it, in a pseudo-terminal.

use std::io::Write as _;
use std::process::Stdio;

use super::ways::{self, Way, said};
use crate::peers::python;

#[track_caller]
fn typed(way: &Way, lines: &str) -> String {
    let mut command = python("resp/interactive.py");
    command.arg("--no-auth-warning").args(way.flags());
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("python can be started");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads");
    said(&child.wait_with_output().expect("it ends"))
}

#[test]
fn redis_cli_in_a_terminal() {
    let lines =
        "PING\nCL.THROTTLE u 15 30 60\nMULTI\nEXISTS u\nEXEC\nFOO\nDEL u\nTG.CHECK other\nquit\n";
    let expected = "\
> PING
PONG
> CL.THROTTLE u 15 30 60
1) (integer) 0
2) (integer) 16
3) (integer) 15
4) (integer) -1
5) (integer) 2
> MULTI
OK
> EXISTS u
QUEUED
> EXEC
1) (integer) 1
> FOO
(error) ERR unknown command 'FOO', with args beginning with: \n\
> DEL u
(integer) 1
> TG.CHECK other
";
    ways::each(|way| {
        let pairs = if way.protocol == "3" { MAP } else { PAIRS };
        let expected = [expected, pairs, "> quit\nexit 0\n"].concat();
        assert_eq!(typed(way, lines), expected, "{}", way.address);
    });
}

/// A reply of TG.CHECK without a limit.
const MAP: &str = r#"1# "allowed" => (true)
2# "limit" => (nil)
3# "remaining" => (nil)
4# "retry_ms" => (integer) 0
5# "reset_ms" => (integer) 0
6# "delay_ms" => (integer) 0
7# "rule" => (nil)
8# "degraded" => (false)
"#;
const PAIRS: &str = r#" 1) "allowed"
 2) (integer) 1
 3) "limit"
 4) (nil)
 5) "remaining"
 6) (nil)
 7) "retry_ms"
 8) (integer) 0
 9) "reset_ms"
10) (integer) 0
11) "delay_ms"
12) (integer) 0
13) "rule"
14) (nil)
15) "degraded"
16) (integer) 0
"#;
