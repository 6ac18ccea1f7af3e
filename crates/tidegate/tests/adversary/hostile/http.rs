//! What hostile clients say at the HTTP door: every question, waits that never end with their
//! bodies in every state, and pages that are not read.

use super::Target;
use crate::ask::{get, post};
use crate::server::Doors;

/// The first lines of a wait.
const WAIT: &str =
    "POST /v1/wait HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

pub(super) fn add(doors: &Doors, targets: &mut Vec<Target>) {
    let scripts = vec![
        post("/v1/check", r#"{"key":"full check"}"#),
        post("/v1/check", r#"{"keys":["full a","full b"],"cost":1,"peek":true}"#),
        post("/v1/check", r#"{"key":"hostile-use","hold_ms":100}"#),
        post("/v1/check", "{nonsense"),
        post("/v1/wait", r#"{"key":"full wait"}"#),
        post("/v1/wait", r#"{"key":"full wait","max_wait_ms":50}"#),
        post("/v1/records/consume", r#"{"key":"hostile","quota":5,"ttl_ms":60000}"#),
        post("/json", r#"{"domain":"full","descriptors":[{"entries":[{"key":"k"}]}]}"#),
        post("/json", "[".repeat(10_000)),
        waiting_body(20, 5),
        get("/metrics"),
        get("/healthz"),
        get("/readyz"),
        get("/healthcheck"),
        get("/v1/nothing"),
        b"DELETE /v1/uses/00000000000000000000000000000000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            .to_vec(),
    ];
    let wait = post("/v1/wait", r#"{"key":"full wait"}"#);
    let spaces = " ".repeat(30_000);
    let burdens = vec![
        wait.clone(),
        wait.repeat(3),
        [&wait[..], &get("/metrics")].concat(),
        [&wait[..], b"GET /met"].concat(),
        post("/v1/wait", format!("{spaces}{{\"key\":\"full wait\"}}")),
        waiting_body(30_000, 20_000),
        chunked(r#"{"key":"full wait"}"#),
        expecting(),
        get("/metrics").repeat(300),
    ];
    targets.push(Target { address: doors.http.into(), scripts, burdens });
}

/// A wait whose body is not whole.
fn waiting_body(declared: usize, sent: usize) -> Vec<u8> {
    [format!("{WAIT}Content-Length: {declared}\r\n\r\n").as_bytes(), &vec![b' '; sent]].concat()
}

fn chunked(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{WAIT}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n")
        .into_bytes()
}

fn expecting() -> Vec<u8> {
    format!("{WAIT}Expect: 100-continue\r\nContent-Length: 20\r\n\r\n").into_bytes()
}
