//! Golden conversations: `vectors/proxy/*.txt`, played by the real program before an upstream that
//! answers with what it saw.
//!
//! A file may open with settings of the proxy between two `+++` lines. Then, one thing a line:
//!
//! - `>> text` is a line that the client sends, its end included; `\x0a` and the like write bytes
//! - `=> text` is a line that the upstream must see; the headers in any order, and no others
//! - `<< 200 open` is the status that the client gets, and whether the connection stays open
//! - `?? api path=/a` is a key that must be remembered afterwards
//! - `#` begins a remark; a blank line ends a conversation
//!
//! `{client}` stands for the client's address. Each conversation has a connection of its own.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::{Client, Message, Upstream, api, mirrored, proxy};
use crate::program::Program;
use crate::vectors::{each_file, front};

#[derive(Default)]
struct Conversation {
    line: usize,
    sent: Vec<u8>,
    seen: Vec<String>,
    status: Option<(u16, bool)>,
    keys: Vec<String>,
}

#[test]
fn conversations() {
    each_file("proxy", 4, |text| (play(text), text.contains("\n<< ")));
}

#[test]
fn a_wrong_vector_is_noticed() {
    let wrong = play(
        ">> GET /a HTTP/1.1\n>> Host: a\n>>\n=> GET /b HTTP/1.1\n<< 200 open\n\n\
         >> GET /a HTTP/1.0\n>>\n<< 200 open\n\n\
         >> CONNECT a:1 HTTP/1.1\n>> Host: a\n>>\n<< 200 open\n",
    );
    assert_eq!(wrong.len(), 3, "{wrong:#?}");
}

/// Plays one file; what is not as written comes back.
fn play(text: &str) -> Vec<String> {
    let (settings, first) = front(text).unwrap_or(("limit = '1000000 per day'", 0));
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    let upstream = Upstream::answering(move |request| {
        count.fetch_add(1, SeqCst);
        mirrored(request)
    });
    let program = proxy(upstream.address, settings);
    let mut wrong = Vec::new();
    let mut next = Conversation::default();
    for (at, line) in text.lines().enumerate().skip(first).chain([(usize::MAX, "")]) {
        if let Some(sent) = line.strip_prefix(">>") {
            next.line = if next.sent.is_empty() { at + 1 } else { next.line };
            next.sent.extend(bytes(sent.strip_prefix(' ').unwrap_or(sent)));
            next.sent.extend_from_slice(b"\r\n");
        } else if let Some(seen) = line.strip_prefix("=> ") {
            next.seen.push(seen.replace("{client}", "127.0.0.1"));
        } else if let Some(status) = line.strip_prefix("<< ") {
            let (code, state) = status.split_once(' ').expect("a status and open or closed");
            next.status = Some((code.parse().expect("a status"), state == "open"));
        } else if let Some(key) = line.strip_prefix("?? ") {
            next.keys.push(key.to_owned());
        } else if line.is_empty() {
            let whole = std::mem::take(&mut next);
            if !whole.sent.is_empty() {
                let at = whole.line;
                let wrongs = converse(&program, &requests, whole).err();
                wrong.extend(wrongs.map(|what| format!("{at}: {what}")));
            }
        } else {
            assert!(line.starts_with('#'), "line {}: {line:?}", at + 1);
        }
    }
    wrong
}

fn converse(program: &Program, requests: &AtomicUsize, asked: Conversation) -> Result<(), String> {
    let mut client = Client::of(program);
    let before = requests.load(SeqCst);
    client.send(&asked.sent);
    let answer = Message::read(&mut client.stream).ok_or("no answer")?;
    let (status, open) = asked.status.ok_or("a conversation without an end")?;
    if answer.status() != status {
        return Err(format!("expected {status}, got {} {}", answer.first, answer.text()));
    }
    if status == 200 {
        let text = answer.text();
        let (head, _) = text.split_once("\n\n").unwrap_or((&text, ""));
        let mut seen: Vec<&str> = head.lines().collect();
        let mut expected: Vec<&str> = asked.seen.iter().map(String::as_str).collect();
        seen.sort_unstable();
        expected.sort_unstable();
        if !asked.seen.is_empty() && seen != expected {
            return Err(format!("the upstream saw {seen:#?}"));
        }
    }
    // Nothing that was hidden in a request, or turned away, reaches the upstream.
    let mut expected = usize::from(status == 200);
    if answer.header("connection") == Some("close") || !open {
        if open || !client.closed() {
            return Err(format!("expected open: {open}"));
        }
    } else {
        let next = b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
        let sent = client.stream.get_mut().write_all(next);
        let answer = sent.ok().and_then(|()| Message::read(&mut client.stream));
        if answer.is_none_or(|answer| answer.status() != 200) {
            return Err("the connection is of no more use".to_owned());
        }
        expected += 1;
    }
    let seen = requests.load(SeqCst) - before;
    if seen != expected {
        return Err(format!("the upstream saw {seen} requests of {expected}"));
    }
    for key in asked.keys {
        let top = api(program, "/v1/top?count=1000");
        if !top.contains(&format!("\"key\":{}", serde_json::to_string(&key).expect("JSON"))) {
            return Err(format!("{key} is not in {top}"));
        }
    }
    Ok(())
}

fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        out.extend_from_slice(before.as_bytes());
        out.push(u8::from_str_radix(&after[..2], 16).expect("two hexadecimal digits"));
        rest = &after[2..];
    }
    out.extend_from_slice(rest.as_bytes());
    out
}
