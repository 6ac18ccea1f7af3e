//! redis-cli as a person uses it, in a pseudo-terminal.

use std::io::Write as _;
use std::process::Stdio;

use super::DOOR;
use super::ways::said;
use crate::peers::python;
use crate::program::Program;

#[track_caller]
fn typed(program: &Program, flags: &[&str], lines: &str) -> String {
    let mut command = python("resp/interactive.py");
    command.arg(program.address("resp").port().to_string()).args(flags);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("python can be started");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads");
    said(&child.wait_with_output().expect("it ends"))
}

#[test]
fn redis_cli_in_a_terminal() {
    let program = Program::serve(DOOR);
    let lines = "PING\nCL.THROTTLE u 15 30 60\nMULTI\nEXISTS u\nEXEC\nFOO\nDEL u\nquit\n";
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
> quit
exit 0
";
    for flags in [&[][..], &["-3"]] {
        assert_eq!(typed(&program, flags, lines), expected, "{flags:?}");
    }
}
