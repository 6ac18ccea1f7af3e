//! How many requests are at an upstream at once, with a real Envoy before it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use serde_json::{Value, json};

use super::super::DOORS;
use super::{APP, asked, clusters, config, filter_route, fixed, left, limiter, listener};
use crate::engines::until;
use crate::envoy::Envoy;
use crate::http::Reply;
use crate::program::Program;

const AMOUNT: usize = 100;
const REQUESTS: usize = 500;
const KEY: &str = "web slot=1";
const RULES: &str = "
[[rule]]
match = 'web slot=*'
limit = '100 in flight'
";

fn file(hold: &str) -> String {
    let table = format!("counting = 'envoy'\nhold = '{hold}'\n[http]");
    [RULES, &DOORS.replace("[http]", &table)].concat()
}

/// How many requests an upstream has, and has had at most; and whether it answers.
#[derive(Debug, Default)]
struct Busy {
    now: usize,
    most: usize,
    answers: bool,
}

/// An upstream that answers when it is told to.
#[derive(Default)]
struct Slow {
    busy: Mutex<Busy>,
    changed: Condvar,
}

impl Slow {
    fn start() -> (Arc<Self>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let slow = Arc::new(Self::default());
        let upstream = slow.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let upstream = upstream.clone();
                thread::spawn(move || upstream.answer(stream));
            }
        });
        (slow, address)
    }

    fn answer(&self, stream: TcpStream) {
        let mut writer = stream.try_clone().expect("a socket");
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        while lines.by_ref().any(|line| line.is_empty()) {
            let mut busy = self.busy.lock().expect("whole");
            busy.now += 1;
            busy.most = busy.most.max(busy.now);
            self.changed.notify_all();
            let mut busy = self.changed.wait_while(busy, |busy| !busy.answers).expect("whole");
            busy.now -= 1;
            drop(busy);
            if writer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").is_err() {
                return;
            }
        }
    }

    fn set_answers(&self, answers: bool) {
        self.busy.lock().expect("whole").answers = answers;
        self.changed.notify_all();
    }

    fn figures(&self) -> (usize, usize) {
        let busy = self.busy.lock().expect("whole");
        (busy.now, busy.most)
    }
}

fn start(program: &Program) -> (Envoy, Arc<Slow>) {
    let (slow, address) = Slow::start();
    let slot: Value = json!([
        {"actions": [fixed("slot", "1")]},
        {
            "actions": [fixed("slot", "1")],
            "hits_addend": {"number": 1, "is_negative_hits": true},
            "apply_on_stream_done": true,
        },
    ]);
    let web = listener("web", &[limiter("web", json!({}))], &[filter_route("/", APP, slot)]);
    (Envoy::start(&config(&[web], &clusters(address, program))), slow)
}

#[test]
fn no_more_requests_are_at_the_upstream_than_the_limit_allows() {
    let program = Program::serve(&file("1h"));
    let (envoy, slow) = start(&program);
    let send = || -> Vec<_> { (0..REQUESTS).map(|_| envoy.send("web", "/", "")).collect() };
    let statuses = |sent: Vec<TcpStream>| -> Vec<u16> {
        sent.into_iter().map(|stream| Reply::read(stream).status).collect()
    };
    // Nothing ends before all have asked, so just as many go as may.
    let sent = send();
    until(|| asked(&program).get(KEY) == Some(&(REQUESTS as u64)));
    until(|| slow.figures() == (AMOUNT, AMOUNT));
    slow.set_answers(true);
    let answered = statuses(sent);
    assert_eq!(answered.iter().filter(|status| **status == 204).count(), AMOUNT);
    assert_eq!(answered.iter().filter(|status| **status == 429).count(), REQUESTS - AMOUNT);
    until(|| left(&program, KEY) == AMOUNT as u64);
    // Requests end while others come.
    let answered = statuses(send());
    assert!(answered.iter().all(|status| [204, 429].contains(status)), "{answered:?}");
    until(|| left(&program, KEY) == AMOUNT as u64);
    assert_eq!(slow.figures(), (0, AMOUNT));
    // Clients that hang up.
    slow.set_answers(false);
    let sent: Vec<_> = (0..5).map(|_| envoy.send("web", "/", "")).collect();
    until(|| slow.figures().0 == 5);
    assert_eq!(left(&program, KEY), AMOUNT as u64 - 5);
    drop(sent);
    until(|| left(&program, KEY) == AMOUNT as u64);
}

#[test]
fn what_an_envoy_held_that_is_gone_lapses() {
    let program = Program::serve(&file("1h"));
    let (envoy, slow) = start(&program);
    let _waiting: Vec<_> = (0..3).map(|_| envoy.send("web", "/", "")).collect();
    until(|| slow.figures().0 == 3);
    drop(envoy);
    assert_eq!(left(&program, KEY), AMOUNT as u64 - 3);
    // A reload holds for uses that are held already.
    program.write_config(&file("1s"));
    until(|| left(&program, KEY) == AMOUNT as u64);
}
