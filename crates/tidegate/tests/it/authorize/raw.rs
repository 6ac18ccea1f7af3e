//! Questions as servers put them on the wire, over real sockets.

use super::{asked, program};
use crate::http::send_to;
use crate::program::Program;

/// What Traefik's `ForwardAuth` asks about a POST: a GET without a body, the client's headers but
/// for those of one hop, and who asked for what.
fn as_traefik(program: &Program, uri: &str, client: &str) -> u16 {
    let head = format!(
        "Host: {}\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\nCookie: a=b\r\n\
         X-Forwarded-Method: POST\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: api.example\r\n\
         X-Forwarded-Uri: {uri}\r\nX-Forwarded-For: {client}\r\nAccept-Encoding: gzip\r\n",
        program.address("http")
    );
    send_to(program.address("http"), "GET", "/v1/authorize/api", &head, "").status
}

/// What Envoy's `ext_authz` asks about a POST with a prefix: its own method, path and host, and of
/// the client's headers those that it was told to send. No body.
fn as_envoy(program: &Program, path: &str, host: &str, client: &str) -> u16 {
    let head = format!(
        "host: {host}\r\nauthorization: Bearer x\r\nx-forwarded-for: {client}\r\n\
         x-envoy-internal: true\r\nx-request-id: 1\r\n"
    );
    send_to(program.address("http"), "POST", &format!("/v1/authorize/api{path}"), &head, "").status
}

#[test]
fn traefik_is_answered_for_each_of_its_clients() {
    let program = program("");
    let statuses = ["/a", "/b?c=d", "/a"].map(|uri| as_traefik(&program, uri, "192.0.2.1"));
    assert_eq!(statuses, [200, 200, 429]);
    // The last address is the one that Traefik has seen; what a client wrote stands before it.
    assert_eq!(as_traefik(&program, "/a", "192.0.2.1, 192.0.2.2"), 200);
    assert_eq!(asked(&program, "api client=192.0.2.2"), 1);
}

#[test]
fn envoy_is_answered_if_the_names_of_its_sites_are_known() {
    let program = program("");
    let statuses =
        ["/", "/a?b=c", "/a"].map(|path| as_envoy(&program, path, "localhost", "192.0.2.1"));
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(as_envoy(&program, "/a", "api.example", "192.0.2.2"), 403);
    let file = std::fs::read_to_string(program.config_path()).expect("the file");
    let named = file.replace("[http]\n", "[http]\nnames = [\"api.example\"]\n");
    let program = Program::serve(&named);
    assert_eq!(as_envoy(&program, "/a", "api.example:8443", "192.0.2.2"), 200);
}

#[test]
fn tables_change_while_the_door_is_open() {
    let mut program = program("");
    assert_eq!(as_traefik(&program, "/a", "192.0.2.1"), 200);
    let before = program.listening().len();
    let file = std::fs::read_to_string(program.config_path()).expect("the file");
    let by_path = file
        .replace("client={client}", "path={path}")
        .replace("match = \"api client=*\"", "match = \"api path=*\"");
    program.write_config(&by_path);
    program.signal(rustix::process::Signal::HUP);
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    let statuses = ["/a", "/a", "/a", "/b"].map(|uri| as_traefik(&program, uri, "192.0.2.9"));
    assert_eq!(statuses, [200, 200, 429, 200]);
    assert_eq!(program.listening().len(), before, "the door stayed open");
}
