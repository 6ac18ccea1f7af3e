//! The commands, against a running server and without one.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::thread;

use serde_json::Value;

use crate::program::{DOORS, PATIENCE, Program, command, tidegate};

fn server() -> Program {
    Program::serve(&format!(
        "[[rule]]\nname = 'two'\nmatch = 'two *'\nlimit = '2 per hour'\n\
         [[rule]]\nname = 'quick'\nmatch = 'quick *'\nlimit = '1 per 50ms'\n\
         [[rule]]\nname = 'jobs'\nmatch = 'jobs'\nlimit = '1 in flight'\n\
         [[rule]]\nname = 'booked'\nmatch = 'booked'\nlimit = '1 per hour'\nalgorithm = 'jarl'\n\
         {DOORS}"
    ))
}

/// Runs a client command against `program`.
fn ask(program: &Program, arguments: &[&str]) -> Output {
    let url = program.url();
    let (first, rest) = arguments.split_first().expect("a command");
    tidegate([&[*first, "--server", &url], rest].concat())
}

/// The same for a command that administers.
fn administer(program: &Program, arguments: &[&str]) -> Output {
    let url = program.admin_url();
    let (first, rest) = arguments.split_first().expect("a command");
    tidegate([&[*first, "--admin", &url], rest].concat())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("not ended by a signal")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn check_tells_the_verdict_by_its_code() {
    let program = server();
    let first = ask(&program, &["check", "two a"]);
    assert_eq!((code(&first), stdout(&first).lines().next()), (0, Some("allowed")));
    assert_eq!(code(&ask(&program, &["check", "two a", "--peek"])), 0, "a peek takes nothing");
    assert_eq!(code(&ask(&program, &["check", "two a"])), 0);
    let refused = ask(&program, &["check", "two a"]);
    assert_eq!(code(&refused), 3);
    assert!(stdout(&refused).starts_with("refused by two, try again in "), "{refused:?}");
    let several = ask(&program, &["check", "two b", "two a", "--json"]);
    assert_eq!(code(&several), 3);
    let json: Value = serde_json::from_slice(&several.stdout).unwrap();
    assert_eq!(json["refused_by"], "two");
    assert_eq!(json["limits"][0]["remaining"], 2, "nothing was taken of the other key");
    assert_eq!(code(&ask(&program, &["check", "unlimited"])), 0);
}

#[test]
fn what_can_never_be_had_is_a_usage_error() {
    let program = server();
    let costly = ask(&program, &["check", "two a", "--cost", "3"]);
    assert_eq!(code(&costly), 2, "{costly:?}");
    assert_eq!(code(&ask(&program, &["wait", "two a", "--cost", "3"])), 2);
    assert_eq!(code(&ask(&program, &["check", "jobs"])), 2, "nobody would say when it ends");
    for wrong in [&["check"][..], &["check", "a", "--cost", "0"], &["nonsense"], &["exec", "a"]] {
        assert_eq!(code(&tidegate(wrong)), 2, "{wrong:?}");
    }
}

#[test]
fn peek_looks_and_reset_forgets() {
    let program = server();
    ask(&program, &["check", "two a", "--cost", "2"]);
    let full = administer(&program, &["peek", "two a"]);
    assert_eq!(code(&full), 0, "looking is never refused");
    assert!(stdout(&full).contains("0 left"), "{full:?}");
    assert_eq!(code(&administer(&program, &["reset", "two a"])), 0);
    let json = administer(&program, &["peek", "two a", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["limits"][0]["remaining"], 2);
    for odd in ["two /?#%20", "two é", "..", ""] {
        assert_eq!(code(&administer(&program, &["peek", odd])), 0, "{odd:?}");
    }
}

#[test]
fn servers_are_named_by_the_environment_too() {
    let program = server();
    let run = |arguments: &[&str]| {
        let mut asked = command(arguments);
        asked.env("TIDEGATE_SERVER", program.url()).env("TIDEGATE_ADMIN", program.admin_url());
        asked.output().expect("the program can be started")
    };
    assert_eq!(code(&run(&["check", "two a", "--cost", "2"])), 0);
    assert_eq!(code(&run(&["wait", "two a", "--max-wait", "1ms"])), 3);
    assert_eq!(code(&run(&["exec", "free", "--", "true"])), 0);
    assert_eq!(code(&run(&["healthcheck"])), 0);
    assert!(stdout(&run(&["peek", "two a"])).contains("0 left"));
    assert_eq!(code(&run(&["reset", "two a"])), 0);
    assert!(stdout(&run(&["peek", "two a"])).contains("2 left"));
    // What is said outranks what is in the environment.
    let away = run(&["peek", "two a", "--admin", "http://127.0.0.1:1"]);
    assert_eq!(code(&away), 1, "{away:?}");
    for (command, variable) in [("check", "TIDEGATE_SERVER"), ("peek", "TIDEGATE_ADMIN")] {
        assert!(stdout(&run(&[command, "--help"])).contains(variable), "{command}");
    }
}

#[test]
fn a_command_that_asks_the_wrong_listener_is_told_which_is_right() {
    let program = server();
    let lost = tidegate(["peek", "two a", "--admin", &program.url()]);
    assert_eq!(code(&lost), 2);
    assert!(stderr(&lost).contains("[admin]"), "{lost:?}");
}

#[test]
fn wait_sleeps_until_it_may() {
    let program = server();
    for _ in 0..3 {
        assert_eq!(code(&ask(&program, &["wait", "quick a"])), 0);
    }
    ask(&program, &["check", "two a", "--cost", "2"]);
    let impatient = ask(&program, &["wait", "two a", "--max-wait", "1ms"]);
    assert_eq!(code(&impatient), 3);
    assert!(stdout(&impatient).is_empty(), "{impatient:?}");
    let said = stderr(&impatient);
    assert!(said.contains("was taken within 1ms: refused by two, try again in "), "{said}");
    assert_eq!(code(&ask(&program, &["wait", "booked"])), 0);
    assert_eq!(code(&ask(&program, &["wait", "booked", "--max-wait", "1ms"])), 3);
}

#[test]
fn exec_returns_the_commands_code() {
    let program = server();
    let shell = |script: &str| code(&ask(&program, &["exec", "free", "--", "sh", "-c", script]));
    assert_eq!(shell("exit 0"), 0);
    assert_eq!(shell("exit 7"), 7);
    assert_eq!(shell("kill -9 $$"), 128 + 9);
    assert_eq!(code(&ask(&program, &["exec", "free", "--", "/nonexistent"])), 127);
    assert_eq!(code(&ask(&program, &["exec", "free", "--", "/"])), 126);
    let out = ask(&program, &["exec", "free", "--", "echo", "--flag", "a b"]);
    assert_eq!(stdout(&out), "--flag a b\n");
}

#[test]
fn exec_holds_a_use_in_flight_while_the_command_runs() {
    let program = server();
    let url = program.url();
    let inner =
        format!("{} exec --server {url} --max-wait 1ms jobs -- true", crate::program::binary());
    let held = ask(&program, &["exec", "jobs", "--", "sh", "-c", &inner]);
    assert_eq!(code(&held), 3, "the only use is taken: {held:?}");
    let free = ask(&program, &["exec", "jobs", "--max-wait", "1ms", "--", "true"]);
    assert_eq!(code(&free), 0, "and given back: {free:?}");
}

#[test]
fn exec_waits_until_another_one_has_ended() {
    use std::io::Read as _;

    let program = server();
    let url = program.url();
    let jobs = |script: &str| {
        let mut exec = command(["exec", "--server", &url, "jobs", "--", "sh", "-c", script]);
        exec.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut first = jobs("echo up; read line");
    let mut up = [0; 3];
    first.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    let second = jobs("echo second");
    let waits = "tidegate_waiting{door=\"http\"} 1\n";
    let metrics = || {
        let page = ureq::get(&format!("{url}/metrics")).call().unwrap();
        page.into_body().read_to_string().unwrap()
    };
    while !metrics().contains(waits) {}
    assert_eq!(code(&ask(&program, &["exec", "jobs", "--max-wait", "1ms", "--", "true"])), 3);
    drop(first.stdin.take());
    first.wait().unwrap();
    let second = second.wait_with_output().unwrap();
    assert_eq!((code(&second), stdout(&second).as_str()), (0, "second\n"));
}

#[test]
fn exec_hands_signals_on_and_gives_the_use_back() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::Read as _;

    let program = server();
    let script = "trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done";
    let url = program.url();
    let mut child = command(["exec", "--server", &url, "jobs", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
    assert_eq!(code(&ask(&program, &["exec", "jobs", "--max-wait", "1ms", "--", "true"])), 0);
}

#[test]
fn without_a_server_it_is_code_1_or_what_the_caller_chose() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    for (asking, at) in [
        (["check", "a"], "--server"),
        (["wait", "a"], "--server"),
        (["peek", "a"], "--admin"),
        (["reset", "a"], "--admin"),
    ] {
        let output = tidegate([&asking[..], &[at, &url]].concat());
        assert_eq!(code(&output), 1, "{asking:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("no server at"), "{output:?}");
    }
    assert_eq!(code(&tidegate(["healthcheck", "--server", &url])), 1);
    assert_eq!(code(&tidegate(["wait", "a", "--on-error", "allow", "--server", &url])), 0);
    let run = ["exec", "a", "--on-error", "allow", "--server", &url, "--", "sh", "-c", "exit 5"];
    assert_eq!(code(&tidegate(run)), 5);
}

#[test]
fn a_server_behind_tls_is_asked_if_its_certificate_is_trusted() {
    let program = server();
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let front = Program::serve(&format!(
        "[[proxy]]\nname = 'tls'\nlisten = '127.0.0.1:0'\nupstream = '{}'\nlimit = 'none'\n\
         tls = {{ cert = '{}', key = '{}' }}\n",
        program.url(),
        cert.display(),
        key.display()
    ));
    let url = format!("https://localhost:{}", front.address("proxy").port());
    let check = |trusted: bool| {
        let mut check = command(["check", "two a", "--server", &url]);
        if trusted {
            check.env("SSL_CERT_FILE", &cert);
        }
        check.output().unwrap()
    };
    let asked = check(true);
    assert_eq!(code(&asked), 0, "{asked:?}");
    let doubted = check(false);
    assert_eq!(code(&doubted), 1, "{doubted:?}");
    assert!(stderr(&doubted).contains("certificate"), "{doubted:?}");
}

#[test]
fn a_wait_without_an_end_is_one_request_without_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asking = thread::spawn(move || tidegate(["wait", "a", "--server", &url]));
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut asked = String::new();
    while !asked.ends_with('}') {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        asked.push(char::from(byte[0]));
    }
    assert!(asked.ends_with(r#"{"key":"a","cost":1}"#), "{asked}");
    drop(stream);
    assert_eq!(code(&asking.join().unwrap()), 1);
}

/// What a command says to a server that answers with this.
fn told_by(answer: &'static str) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asking = thread::spawn(move || tidegate(["check", "--server", &url, "a"]));
    let (mut stream, _) = listener.accept().unwrap();
    let mut byte = [0];
    while byte != *b"}" {
        stream.read_exact(&mut byte).unwrap();
    }
    stream.write_all(answer.as_bytes()).unwrap();
    asking.join().unwrap()
}

#[test]
fn another_program_is_not_taken_for_tidegate() {
    for (answer, status) in [
        ("HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n", "501 Not Implemented"),
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 22\r\n\r\n{\"detail\":\"Not Found\"}",
            "404 Not Found",
        ),
    ] {
        let told = told_by(answer);
        assert_eq!(code(&told), 1, "{told:?}");
        assert!(stderr(&told).contains("is not Tidegate: it answered"), "{told:?}");
        assert!(stderr(&told).contains(status), "{told:?}");
    }
}

#[test]
fn the_listener_for_another_command_is_named() {
    let program = server();
    for command in ["check", "wait"] {
        let checked = tidegate([command, "--server", &program.admin_url(), "a"]);
        assert_eq!(code(&checked), 2, "{checked:?}");
        assert!(stderr(&checked).contains("this is [admin]"), "{checked:?}");
        assert!(stderr(&checked).contains("ask the [http] door"), "{checked:?}");
    }
    let peeked = tidegate(["peek", "--admin", &program.url(), "a"]);
    assert_eq!(code(&peeked), 2, "{peeked:?}");
    assert!(stderr(&peeked).contains("ask [admin]"), "{peeked:?}");
}

#[test]
fn request_speaks_to_the_text_door() {
    let program = server();
    let text = program.address("text").to_string();
    let send = |line: &str, patience: &str| {
        tidegate(["request", line, "--text", &text, "--timeout", patience])
    };
    assert_eq!(stdout(&send("7 ping", "20s")), "7 pong\n");
    assert_eq!(stdout(&send("over_limit two x", "20s")), "ok N 1.0 2.0 3600\n");
    let nothing = send("no such request", "200ms");
    assert_eq!(code(&nothing), 1);
    assert!(nothing.stdout.is_empty());
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("no reply"), "{nothing:?}");
}

#[test]
fn healthcheck_is_for_containers() {
    let program = server();
    for url in [program.url(), program.admin_url()] {
        let ready = tidegate(["healthcheck", "--server", &url]);
        assert_eq!(code(&ready), 0, "{ready:?}");
    }
}

#[test]
fn config_commands_check_show_and_explain() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good.toml");
    std::fs::write(&good, DOORS).unwrap();
    let good = good.to_str().unwrap();
    let checked = tidegate(["config", "check", good]);
    assert_eq!((code(&checked), stdout(&checked)), (0, format!("{good}: ok\n")));
    let shown = stdout(&tidegate(["config", "show", good]));
    assert!(shown.contains("max_bytes = \"4GiB\""), "{shown}");
    let bad = folder.path().join("bad.toml");
    std::fs::write(&bad, "[http]\nlistn = 1\n").unwrap();
    let checked = tidegate(["config", "check", bad.to_str().unwrap()]);
    assert_eq!(code(&checked), 2);
    assert!(String::from_utf8_lossy(&checked.stderr).contains("did you mean \"listen\"?"));
    let example = stdout(&tidegate(["config", "example"]));
    let path = folder.path().join("example.toml");
    std::fs::write(&path, example).unwrap();
    assert_eq!(code(&tidegate(["config", "check", path.to_str().unwrap()])), 0);
    let schema: Value =
        serde_json::from_slice(&tidegate(["config", "schema"]).stdout).expect("JSON");
    assert!(schema["properties"]["rule"].is_object());
}

#[test]
fn completions_and_manual_pages_come_out() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&tidegate(["completions", shell]));
        assert!(script.contains("healthcheck"), "{shell}");
    }
    assert!(stdout(&tidegate(["man"])).contains(".TH tidegate 1"));
    assert!(stdout(&tidegate(["man", "exec"])).contains(".TH tidegate-exec 1"));
    assert_eq!(code(&tidegate(["man", "nonsense"])), 2);
    assert_eq!(code(&tidegate(["--version"])), 0);
    assert_eq!(code(&tidegate(["--help"])), 0);
}

#[test]
fn a_closed_pipe_is_no_error() {
    for arguments in [&["config", "example"][..], &["completions", "bash"], &["man"], &["--help"]] {
        let mut child = command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}");
    }
}
