//! What a reload changes at an open door: passwords, rules, and whether requests bring limits.

use super::{Client, DOOR, bad_input};
use crate::program::Program;

const NO_PASSWORD: &str = "-NOAUTH Authentication required.\r\n";
const REFUSED: &str = "-ERR no rule matches this key\r\n";

fn reload(program: &mut Program, config: &str) {
    program.write_config(config);
    program.wait_for_line(|line| line.contains("configuration reloaded"));
}

#[test]
fn passwords_change_and_connections_stay() {
    let mut program = Program::serve(DOOR);
    let mut first = Client::new(&program);
    first.ask("PING", "+PONG\r\n");
    std::fs::write(program.folder().join("password"), "one").expect("a file");
    let guarded = DOOR.replace("[admin]", "password = 'file:password'\n[admin]");
    reload(&mut program, &guarded);
    first.ask("PING", "+PONG\r\n");
    let mut second = Client::new(&program);
    second.ask("PING", NO_PASSWORD);
    second.ask("AUTH one", "+OK\r\n");
    second.ask("PING", "+PONG\r\n");
    second.ask("RESET", "+RESET\r\n");
    second.ask("PING", NO_PASSWORD);
    reload(&mut program, DOOR);
    Client::new(&program).ask("PING", "+PONG\r\n");
    assert_eq!(bad_input(&program, "not_authenticated"), 2);
}

#[test]
fn ad_hoc_limits_can_be_turned_off_and_overruled() {
    let mut program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    let used = "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:31536000\r\n";
    client.ask("CL.THROTTLE k 0 1 31536000", used);
    let ruled = DOOR.replace("[admin]", "ad_hoc = false\n[admin]");
    reload(&mut program, &ruled);
    client.ask("CL.THROTTLE k 0 1 31536000", REFUSED);
    let rule = format!("[[rule]]\nmatch = 'k'\nlimit = 'deny'\n{DOOR}");
    reload(&mut program, &rule);
    client.ask("CL.THROTTLE k 0 1 31536000", "*5\r\n:1\r\n:0\r\n:0\r\n:-1\r\n:0\r\n");
    client.ask("CL.THROTTLE other 0 1 31536000", used);
}

#[test]
fn a_client_that_is_not_allowed_is_closed_silently() {
    let config = DOOR.replace("[admin]", "allow = ['10.0.0.0/8']\n[admin]");
    let program = Program::serve(&config);
    assert_eq!(Client::new(&program).rest(), b"");
    assert_eq!(bad_input(&program, "not_allowed"), 1);
}
