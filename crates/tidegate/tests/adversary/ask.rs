//! Requests to the HTTP door, and one question on a connection of its own, for those who count from
//! outside.

use std::fmt::Display;
use std::io::{BufReader, Write as _};
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::message::Message;
use crate::net::Stream;

/// A request without a body.
pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

/// A request with JSON, or what pretends to be.
pub(crate) fn post(path: &str, body: impl Display) -> Vec<u8> {
    let body = body.to_string();
    let head = "Host: localhost\r\nContent-Type: application/json";
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// Asks `/v1/check`; `None` if no whole answer came.
pub(crate) fn check(http: SocketAddr, body: &Value) -> Option<(u16, Value)> {
    let mut stream = Stream::connect(&http.into()).ok()?;
    stream.write_all(&post("/v1/check", body)).ok()?;
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
