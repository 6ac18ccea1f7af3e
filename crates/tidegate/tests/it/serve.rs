//! Start and stop: `listening` and `ready` lines, exit codes, signals.

use std::io::Read as _;
use std::net::{TcpListener, UdpSocket};

use rustix::process::Signal;

use crate::papers::Papers;
use crate::program::{DOORS, Program, command, tidegate};

#[test]
fn tells_every_address_in_order_then_that_it_is_ready() {
    let config = "[admin]\nlisten = '127.0.0.1:0'\n[http]\nlisten = '127.0.0.1:0'\n\
                  [text]\nlisten = ['127.0.0.1:0', '[::1]:0']\n";
    let program = Program::serve(config);
    let told: Vec<(&str, bool)> = program
        .listening()
        .iter()
        .map(|(door, address)| (door.as_str(), address.is_ipv4()))
        .collect();
    assert_eq!(told, [("text", true), ("text", false), ("http", true), ("admin", true)]);
    assert!(program.listening().iter().all(|(_, address)| address.port() != 0));
}

#[test]
fn both_signals_end_it_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut program = Program::serve(DOORS);
        program.signal(signal);
        assert_eq!(program.exit_status().code(), Some(0), "{signal:?}");
    }
}

#[test]
fn it_starts_again_in_the_same_folder() {
    let program = Program::serve(DOORS).restart();
    assert_eq!(program.listening().len(), 3);
}

#[test]
fn the_same_port_can_be_had_again_at_once() {
    let mut first = Program::serve(DOORS);
    let (text, http) = (first.address("text"), first.address("http"));
    // A connection that the server closes first is what keeps a port busy on careless servers.
    let mut open = std::net::TcpStream::connect(http).unwrap();
    first.signal(Signal::TERM);
    assert_eq!(first.exit_status().code(), Some(0));
    let _ = open.read(&mut [0]);
    let again = Program::serve(&format!("[text]\nlisten = '{text}'\n[http]\nlisten = '{http}'\n"));
    assert_eq!(again.address("text"), text);
    assert_eq!(again.address("http"), http);
}

#[test]
fn a_port_in_use_is_one_clear_line_and_code_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut program = Program::start(&format!("[http]\nlisten = '{address}'\n"));
    assert_eq!(program.exit_status().code(), Some(1));
    let said = program.rest_of_stderr();
    let [line] = said.as_slice() else { panic!("one line: {said:#?}") };
    assert!(line.contains(&address.to_string()) && line.contains("in use"), "{line}");

    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut program = Program::start(&format!("[text]\nlisten = '{address}'\n"));
    assert_eq!(program.exit_status().code(), Some(1));
}

#[test]
fn a_second_tidegate_does_not_share_the_first_ones_ports() {
    let first = Program::serve(DOORS);
    for door in ["text", "http", "admin"] {
        let address = first.address(door);
        let mut second = Program::start(&format!("[{door}]\nlisten = '{address}'\n"));
        assert_eq!(second.exit_status().code(), Some(1), "{door}");
    }
}

#[test]
fn a_wrong_file_is_drawn_and_code_2() {
    let mut program = Program::start("[http]\nlisten = 'example.net:80'\n");
    assert_eq!(program.exit_status().code(), Some(2));
    let said = program.rest_of_stderr().join("\n");
    for part in ["tidegate.toml:2:10", "listen = 'example.net:80'", "^^^", "127.0.0.1:2000"] {
        assert!(said.contains(part), "{part:?} in\n{said}");
    }
    let missing = tidegate(["serve", "-c", "/nonexistent/tidegate.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot read the file"));
}

#[test]
fn finds_the_file_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tidegate.toml"), "[text]\nlisten = '127.0.0.1:0'\n")
        .unwrap();
    let mut serve = command(["serve"]);
    serve.current_dir(folder.path());
    let mut program = Program::spawn(serve, folder);
    program.wait_until_ready();
    assert_eq!(program.listening().len(), 1);
    assert_eq!(program.listening()[0].0, "text");
}

#[test]
fn a_door_that_lets_the_world_in_warns_before_it_is_ready() {
    let papers = Papers::new();
    papers.sign("gate", "localhost");
    let shown = |name: &str| papers.path(name).display().to_string();
    let tls = |more: &str| {
        let (cert, key) = (shown("gate.pem"), shown("gate.key"));
        format!("tls = {{ cert = '{cert}', key = '{key}'{more} }}\n")
    };
    let (encrypted, mutual) = (tls(""), tls(&format!(", client_ca = '{}'", shown("ca.pem"))));
    let doors = [
        ("text", "", true),
        ("text", "allow = ['127.0.0.0/8']\n", false),
        ("http", encrypted.as_str(), true),
        ("http", mutual.as_str(), false),
        ("resp", "", true),
        ("resp", encrypted.as_str(), true),
        ("resp", mutual.as_str(), false),
        ("resp", "password = 'env:PATH'\n", false),
        ("resp", "users = { web = 'env:PATH' }\n", false),
    ];
    for (door, settings, warns) in doors {
        let mut program = Program::start(&format!("[{door}]\nlisten = '0.0.0.0:0'\n{settings}"));
        let told = |line: &str| line.contains("beyond loopback") || line == "ready";
        let line = program.wait_for_line(told);
        assert_eq!(line != "ready", warns, "[{door}] {settings}: {line}");
        assert!(!warns || line.contains(&format!("set `allow` in [{door}]")), "{line}");
    }
}

#[test]
fn logs_are_json_where_the_file_says_so() {
    let mut program = Program::serve(&format!("{DOORS}[server]\nlog_format = 'json'\n"));
    program.signal(Signal::TERM);
    let line = program.wait_for_line(|line| line.contains("stopping"));
    let json: serde_json::Value = serde_json::from_str(&line).expect(&line);
    assert_eq!(json["message"], "stopping");
    assert_eq!(json["level"], "INFO");
}

#[test]
fn standard_error_may_be_closed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tidegate.toml"), DOORS).unwrap();
    let mut serve = command(["serve"]);
    let mut child = serve
        .current_dir(folder.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Nobody reads: whatever it says from now on fails.
    drop(child.stderr.take());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    // Told before it listens for signals, it ends by the signal itself; never by a panic.
    assert_ne!(status.code(), Some(101));
}

#[test]
fn the_start_names_the_file_in_use() {
    let mut program = Program::start(DOORS);
    let line = program.wait_for_line(|line| line.contains("configuration loaded"));
    assert!(line.contains("INFO") && line.contains("tidegate.toml"), "{line}");
    program.wait_until_ready();
    // By a variable, where no file is named.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("elsewhere.toml");
    std::fs::write(&path, DOORS).unwrap();
    let mut serve = command(["serve"]);
    serve.current_dir(folder.path()).env("TIDEGATE_CONFIG", &path);
    let mut program = Program::spawn(serve, folder);
    let line = program.wait_for_line(|line| line.contains("configuration loaded"));
    assert!(line.contains("elsewhere.toml"), "{line}");
}

#[test]
fn what_a_rule_hides_is_warned_of_at_the_start() {
    let rule = |name: &str| format!("[[rule]]\nname = '{name}'\nmatch = 'k*'\nlimit = '1/s'\n");
    let mut program = Program::start(&format!("{}{}{DOORS}", rule("a"), rule("b")));
    let line = program.wait_for_line(|line| line.contains("never decides") || line == "ready");
    assert!(line.contains("WARN") && line.contains("tidegate.toml:7:9"), "{line}");
}
