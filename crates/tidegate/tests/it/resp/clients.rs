//! redis-cli and redis-benchmark as they are installed: plain, with a password, over TLS and a Unix
//! socket, in both protocols.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use super::{DOOR, ways};
use crate::program::Program;

/// The door with everything that a client can be asked for.
const GUARDED: &str = "[resp]\nlisten = '127.0.0.1:0'\npassword = 'file:password'\n\
                       users = { app = 'file:app' }\n";

fn run(program: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}; `make setup-test` installs it"));
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

fn redis_cli(program: &Program, arguments: &[&str], input: &str) -> String {
    let port = program.address("resp").port().to_string();
    let all = [&["-p", port.as_str()], arguments].concat();
    let output = run("redis-cli", &all, input);
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn redis_cli_asks_one_question_or_many() {
    let program = Program::serve(DOOR);
    assert_eq!(redis_cli(&program, &["PING"], ""), "PONG\n");
    let input = "MONITOR\nECHO \"a b\"\nSELECT 0\nHELLO 3\n";
    let said = redis_cli(&program, &[], input);
    let (first, rest) = said.split_once('\n').expect("lines");
    assert_eq!(first, "ERR unknown command 'MONITOR', with args beginning with: ");
    assert!(rest.contains("a b\nOK\n"), "{rest}");
    assert!(rest.contains("tidegate"), "{rest}");
}

#[test]
fn redis_cli_gives_a_password_and_a_name() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("password"), "s3cret\n").expect("a file");
    std::fs::write(folder.path().join("app"), "0ther").expect("a file");
    let mut program = Program::start_in(folder, GUARDED, "");
    program.wait_until_ready();
    let noauth = "NOAUTH Authentication required.\n\n";
    assert_eq!(redis_cli(&program, &["PING"], ""), noauth);
    for version in ["-2", "-3"] {
        let said = redis_cli(&program, &["-a", "s3cret", "--no-auth-warning", version, "PING"], "");
        assert_eq!(said, "PONG\n");
        for (user, password) in [("default", "s3cret"), ("app", "0ther")] {
            let login = ["--user", user, "--pass", password, "--no-auth-warning", version, "PING"];
            assert_eq!(redis_cli(&program, &login, ""), "PONG\n");
        }
    }
    let wrong = redis_cli(&program, &["-a", "wrong", "--no-auth-warning", "PING"], "");
    assert_eq!(wrong, noauth);
}

#[test]
fn redis_cli_comes_every_way() {
    ways::each(|way| {
        let cli = |command: &[&str], input: &str| {
            let all = [&way.flags(), &["--no-auth-warning"][..], command].concat();
            String::from_utf8(run("redis-cli", &all, input).stdout).expect("text")
        };
        let throttle = ["CL.THROTTLE", "u", "15", "30", "60"];
        assert_eq!(cli(&throttle, ""), "0\n16\n15\n-1\n2\n", "{}", way.address);
        assert_eq!(cli(&[], "DEL u\nTG.RESET api:a\n"), "1\n0\n");
        let piped = "*1\r\n$4\r\nPING\r\n".repeat(10_000);
        let said = cli(&["--pipe"], &piped);
        assert!(said.contains("errors: 0, replies: 10000"), "{}: {said}", way.address);
    });
}

#[test]
fn redis_benchmark_runs_to_its_end() {
    let common = ["-n", "10240", "-c", "8", "-P", "64", "-q"];
    let throttle = ["CL.THROTTLE", "k", "15", "30", "60"];
    let many = ["-r", "100", "CL.THROTTLE", "key:__rand_int__", "15", "30", "60"];
    let check = ["TG.CHECK", "api:benchmark"];
    ways::each(|way| {
        for more in [&["-t", "ping,incr"][..], &throttle, &many, &check] {
            let output = run("redis-benchmark", &[&way.flags(), &common[..], more].concat(), "");
            let said = String::from_utf8_lossy(&output.stdout);
            let is_done = output.status.success() && said.contains("requests per second");
            assert!(is_done, "{}: {more:?}: {said}", way.address);
        }
        let counted = "GET counter:__rand_int__\nDEL counter:__rand_int__\n";
        let output =
            run("redis-cli", &[&way.flags(), &["--no-auth-warning"][..]].concat(), counted);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "10240\n1\n", "{}", way.address);
    });
}
