//! Administration of the real program: apart from those who ask, and for this machine alone.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use crate::engines::until;
use crate::http::{Reply, send_to};
use crate::program::{DOORS, PATIENCE, Program, tidegate};

const RULE: &str = "[[rule]]\nname = 'r'\nmatch = 'k*'\nlimit = '2 per day'\n";

fn ask(program: &Program, door: &str, method: &str, path: &str) -> Reply {
    send_to(program.address(door), method, path, "Host: localhost\r\n", "")
}

#[test]
fn the_http_door_names_the_listener_that_administers() {
    let program = Program::serve(&format!("{RULE}{DOORS}"));
    for (method, path) in [
        ("GET", "/v1/keys/k"),
        ("DELETE", "/v1/keys/k"),
        ("GET", "/v1/top"),
        ("GET", "/v1/rules"),
        ("PUT", "/v1/rules/r"),
        ("GET", "/v1/proxies"),
        ("DELETE", "/v1/records/k"),
    ] {
        let reply = ask(&program, "http", method, path);
        assert_eq!((reply.status, reply.header("content-type")), (404, "application/problem+json"));
        assert!(reply.json()["detail"].as_str().expect("text").contains("[admin]"));
    }
    for path in ["/metrics", "/healthz", "/readyz"] {
        for door in ["http", "admin"] {
            assert_eq!(ask(&program, door, "GET", path).status, 200, "{door} {path}");
        }
    }
    for path in ["/v1/keys/k", "/v1/top", "/v1/rules/r", "/v1/proxies"] {
        assert_eq!(ask(&program, "admin", "GET", path).status, 200, "{path}");
    }
    assert_eq!(ask(&program, "admin", "POST", "/v1/check").status, 404);
}

#[test]
fn an_address_that_others_can_reach_is_a_mistake_in_the_file() {
    for listen in ["'0.0.0.0:0'", "'[::]:0'", "['127.0.0.1:0', '192.0.2.1:0']"] {
        let file = format!("[text]\nlisten = '127.0.0.1:0'\n[admin]\nlisten = {listen}\n");
        let mut program = Program::start(&file);
        assert_eq!(program.exit_status().code(), Some(2), "{listen}");
        let said = program.rest_of_stderr().join("\n");
        assert!(said.contains("[admin] cannot listen at"), "{said}");
        assert!(said.contains("tidegate.toml:4:10"), "{said}");
        let path = program.config_path();
        let checked = tidegate(["config", "check", path.to_str().expect("text")]);
        assert_eq!(checked.status.code(), Some(2), "{checked:?}");
    }
    let mut program = Program::serve(DOORS);
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"";
    let wide = DOORS.replace(admin, "[admin]\nlisten = '0.0.0.0:0'");
    program.write_config(&wide);
    program.wait_for_line(|line| line.contains("configuration not reloaded"));
    assert_eq!(ask(&program, "admin", "GET", "/healthz").status, 200, "nothing has changed");
    program.write_config(&DOORS.replace(admin, ""));
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    // Closed soon after: without its table it stays closed.
    let address = program.address("admin");
    until(|| TcpStream::connect(address).is_err());
}

/// nginx before the HTTP door, which adds no header to what it forwards. It ends with the test.
struct Nginx {
    address: std::net::SocketAddr,
    child: Child,
    _files: TempDir,
}

impl Nginx {
    fn before(upstream: std::net::SocketAddr) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let files = tempfile::tempdir().expect("a folder");
        let config = files.path().join("nginx.conf");
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr crit;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path body; proxy_temp_path proxy;\n\
             fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;\n\
             server {{ listen {address}; location / {{ proxy_pass http://{upstream}; }} }} }}\n"
        );
        std::fs::write(&config, text).expect("its configuration");
        let sbin = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        let mut nginx = Command::new("nginx");
        nginx.arg("-p").arg(files.path()).arg("-c").arg(&config);
        let child = nginx.env("PATH", sbin).stdin(Stdio::null()).spawn();
        let child = child.expect("nginx is missing: `make setup-test` installs it");
        until(|| TcpStream::connect(address).is_ok());
        Self { address, child, _files: files }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn nothing_is_administered_through_a_proxy_before_the_http_door() {
    let program = Program::serve(&format!("{RULE}{DOORS}"));
    let nginx = Nginx::before(program.address("http"));
    let json = "Host: a.example\r\nContent-Type: application/json\r\n";
    let check = send_to(nginx.address, "POST", "/v1/check", json, r#"{"key":"k"}"#);
    assert_eq!(check.status, 200, "asking is what it forwards: {}", check.body);
    for (method, path) in [
        ("DELETE", "/v1/keys/k"),
        ("GET", "/v1/keys/k"),
        ("GET", "/v1/rules"),
        ("PUT", "/v1/rules/r"),
        ("DELETE", "/v1/rules/r"),
        ("GET", "/v1/top"),
        ("GET", "/v1/proxies"),
        ("GET", "/v1/records/k"),
        ("DELETE", "/v1/records/k"),
    ] {
        let reply = send_to(nginx.address, method, path, json, r#"{"limit":"none"}"#);
        assert_eq!(reply.status, 404, "{method} {path}: {}", reply.body);
    }
    let key = ask(&program, "admin", "GET", "/v1/keys/k").json();
    assert_eq!(key["limits"][0]["remaining"], 1, "{key}");
    let rule = ask(&program, "admin", "GET", "/v1/rules/r").json();
    assert_eq!((&rule["changed"], &rule["limit"]), (&json!(false), &json!("2 per day")));
}

fn answers_for_the_process(program: &Program) {
    for path in ["/healthz", "/metrics", "/readyz"] {
        assert_eq!(ask(program, "admin", "GET", path).status, 200, "{path}");
    }
}

#[test]
fn it_answers_for_the_process_while_the_http_door_is_full() {
    let file = DOORS.replace("[http]\n", "[http]\nmax_connections = 2\n");
    let program = Program::serve(&file);
    // Requests whose bodies never come: nobody gives way, and whoever comes next waits.
    let head = b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\
                 Content-Type: application/json\r\nContent-Length: 9\r\n\r\n";
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut client = TcpStream::connect(program.address("http")).expect("a place");
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        client.write_all(head).expect("it reads");
        let mut told = [0; 12];
        client.read_exact(&mut told).expect("it is asked for its body");
        assert_eq!(&told, b"HTTP/1.1 100");
        busy.push(client);
    }
    let mut next = TcpStream::connect(program.address("http")).expect("the kernel accepts");
    next.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it has room");
    answers_for_the_process(&program);
    next.set_nonblocking(true).expect("a socket");
    let early = next.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(early, Err(std::io::ErrorKind::WouldBlock), "both places are taken");
}

#[test]
fn it_answers_for_the_process_while_files_are_short() {
    let program = Program::serve_with_few_files(DOORS);
    let connect = |_| TcpStream::connect(program.address("http")).expect("the kernel accepts");
    let crowd: Vec<TcpStream> = (0..100).map(connect).collect();
    // As many as there are, but for those that are kept back.
    until(|| program.files() >= 60);
    answers_for_the_process(&program);
    drop(crowd);
}

#[test]
fn one_connection_is_asked_many_times() {
    let program = Program::serve(DOORS);
    let mut stream = TcpStream::connect(program.address("admin")).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let one = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let last = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all((one.repeat(99) + last).as_bytes()).expect("it reads");
    let mut answers = String::new();
    stream.read_to_string(&mut answers).expect("answers");
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 100);
}
