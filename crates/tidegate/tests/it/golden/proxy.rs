//! The proxy door of the real program, before an upstream that answers with what it saw.
//!
//! A file's settings are those of the proxy. Each exchange is a conversation on a connection of its
//! own:
//!
//! - `>> text` is a line that the client sends, its end included
//! - `<< upstream text` is a line that the upstream must see; the headers in any order, no others
//! - `<< 200 open` is the status that the client gets, and whether the connection stays open
//! - `<< key api path=/a` is a key that must be remembered afterwards
//!
//! `{client}` stands for the client's address. The program's clock is the real one.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tidegate::clock::Clock;

use super::Adapter;
use super::notation::unescaped;
use super::script::{Exchange, Line, Mismatch};
use crate::message::Message;
use crate::program::Program;
use crate::proxy::{Client, Upstream, api, mirrored, proxy};

struct Proxy {
    program: Program,
    /// What the upstream has seen.
    requests: Arc<AtomicUsize>,
}

pub(super) fn open(settings: Option<&str>, _: &Clock) -> Box<dyn Adapter> {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    let upstream = Upstream::answering(move |request| {
        count.fetch_add(1, SeqCst);
        mirrored(request)
    });
    let settings = settings.unwrap_or("limit = '1000000 per day'");
    Box::new(Proxy { program: proxy(upstream.address, settings), requests })
}

impl Adapter for Proxy {
    fn exchange(&mut self, exchange: &Exchange) -> Vec<Mismatch> {
        self.converse(exchange).err().into_iter().collect()
    }

    fn pass(&mut self, _: &Clock, step: &str) {
        panic!("the program's clock is the real one: @ {step}");
    }
}

impl Proxy {
    fn converse(&self, exchange: &Exchange) -> Result<(), Mismatch> {
        let mut sent = Vec::new();
        for line in &exchange.requests {
            sent.extend(unescaped(&line.text));
            sent.extend_from_slice(b"\r\n");
        }
        let (status_line, status, open) = status(&exchange.replies);
        let wrong = |got: String| status_line.mismatch(got);
        let before = self.requests.load(SeqCst);
        let mut client = Client::of(&self.program);
        client.send(&sent);
        let answer = Message::read(&mut client.stream).ok_or_else(|| wrong("nothing".into()))?;
        if answer.status() != status {
            return Err(wrong(format!("{} {}", answer.first, answer.text())));
        }
        if status == 200 {
            check_upstream(exchange, &answer)?;
        }
        // Nothing that was hidden in a request, or turned away, reaches the upstream.
        let mut expected = usize::from(status == 200);
        if answer.header("connection") == Some("close") || !open {
            if open || !client.closed() {
                return Err(wrong(if open { "closed" } else { "open" }.to_owned()));
            }
        } else {
            let next = b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
            let sent = client.stream.get_mut().write_all(next);
            let answer = sent.ok().and_then(|()| Message::read(&mut client.stream));
            if answer.is_none_or(|answer| answer.status() != 200) {
                return Err(wrong("a connection that is of no more use".to_owned()));
            }
            expected += 1;
        }
        let seen = self.requests.load(SeqCst) - before;
        if seen != expected {
            return Err(wrong(format!("the upstream saw {seen} requests of {expected}")));
        }
        for line in &exchange.replies {
            let Some(key) = line.text.strip_prefix("key ") else { continue };
            let top = api(&self.program, "/v1/top?count=1000");
            if !top.contains(&format!("\"key\":{}", serde_json::to_string(key).expect("JSON"))) {
                return Err(line.mismatch(top));
            }
        }
        Ok(())
    }
}

/// The line with the status, the status, and whether the connection stays open.
fn status(replies: &[Line]) -> (&Line, u16, bool) {
    let mut lines = replies.iter().filter_map(|line| {
        let (code, state) = line.text.split_once(' ')?;
        Some((line, code.parse().ok()?, state == "open"))
    });
    lines.next().expect("a status")
}

/// Compares what the upstream saw with what the file says of it, if it says anything.
fn check_upstream(exchange: &Exchange, answer: &Message) -> Result<(), Mismatch> {
    let text = answer.text();
    let (head, _) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut seen: Vec<&str> = head.lines().collect();
    let lines = exchange.replies.iter();
    let lines = lines.filter_map(|line| Some((line, line.text.strip_prefix("upstream ")?)));
    let mut first = None;
    for (line, expected) in lines {
        let expected = expected.replace("{client}", "127.0.0.1");
        first.get_or_insert(line);
        match seen.iter().position(|one| *one == expected) {
            Some(at) => seen.swap_remove(at),
            None => return Err(line.mismatch(head.to_owned())),
        };
    }
    match first {
        Some(line) if !seen.is_empty() => Err(line.mismatch(format!("{seen:?} too"))),
        _ => Ok(()),
    }
}
