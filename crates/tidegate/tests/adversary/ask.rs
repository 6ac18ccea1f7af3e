//! One question to the HTTP door on a connection of its own, for those who count from outside.

use std::io::{BufReader, Write as _};
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::message::Message;
use crate::net::Stream;

/// Asks `/v1/check`; `None` if no whole answer came.
pub(crate) fn check(http: SocketAddr, body: &Value) -> Option<(u16, Value)> {
    let body = body.to_string();
    let head = "Host: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";
    let length = body.len();
    let request =
        format!("POST /v1/check HTTP/1.1\r\n{head}Content-Length: {length}\r\n\r\n{body}");
    let mut stream = Stream::connect(&http.into()).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let answer = Message::read(&mut BufReader::new(stream))?;
    let status = answer.first.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_slice(&answer.body).unwrap_or_default()))
}

/// Takes a use of a key; `None` if no answer came.
pub(crate) fn take(http: SocketAddr, key: &str) -> Option<bool> {
    check(http, &json!({ "key": key })).map(|(status, _)| status == 200)
}

/// How many uses of a key are left.
pub(crate) fn remaining(http: SocketAddr, key: &str) -> u64 {
    let (_, body) = check(http, &json!({ "key": key, "peek": true })).expect("an answer");
    body["limits"][0]["remaining"].as_u64().unwrap_or_else(|| panic!("no figure in {body}"))
}
