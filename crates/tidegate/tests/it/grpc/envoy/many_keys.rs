//! Two Envoys ask about a million keys. Only `make soak` does: it prints how long answers took, as
//! Envoy saw it, and looks at nothing but that every request is answered and counted.

use std::io::{BufReader, Write as _};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use serde_json::json;

use super::super::DOORS;
use super::{clusters, config, header, limiter, listener, route};
use crate::envoy::Envoy;
use crate::message::Message;
use crate::program::Program;
use crate::upstream::Upstream;

const KEYS: u32 = 1_000_000;
/// Clients of each Envoy.
const CLIENTS: usize = 8;

const RULES: &str = "
[[rule]]
match = 'web user=*'
limit = '1 per 366d'
[memory]
max_keys = 1_100_000
";

/// Asks for one key after the other, and returns how many requests passed.
fn ask(envoy: &Envoy, keys: &AtomicU32, end: u32) -> u32 {
    let mut stream = BufReader::new(envoy.connect("web"));
    let mut passed = 0;
    loop {
        let key = keys.fetch_add(1, Relaxed);
        if key >= end {
            return passed;
        }
        let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\nX-User: {key}\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes()).expect("Envoy reads");
        let answer = Message::read(&mut stream).expect("an answer");
        passed += u32::from(answer.status() == 204);
    }
}

#[test]
fn two_envoys_ask_for_a_million_keys() {
    if std::env::var_os("TIDEGATE_SOAK").is_none() {
        return;
    }
    let program = Program::serve(&[RULES, DOORS].concat());
    let app = Upstream::start();
    let routes = [route("/", json!([{"actions": [header("x-user", "user")]}]))];
    // As operators have it: what takes longer than 20 ms is an error, and passes.
    let own = json!({"timeout": "0.020s", "failure_mode_deny": false});
    let web = listener("web", &[limiter("web", own)], &routes);
    let text = config(&[web], &clusters(app.address(), &program));
    let envoys = [Envoy::start(&text), Envoy::start(&text)];
    let all_at = |keys: &AtomicU32, end: u32| -> u32 {
        thread::scope(|scope| {
            let clients = envoys.iter().flat_map(|envoy| [envoy; CLIENTS]);
            let clients = clients.map(|envoy| scope.spawn(|| ask(envoy, keys, end)));
            let clients: Vec<_> = clients.collect();
            clients.into_iter().map(|client| client.join().expect("a client")).sum()
        })
    };
    let late =
        || -> u64 { envoys.iter().map(|envoy| envoy.figure("cluster.app.ratelimit.error")).sum() };
    assert_eq!(all_at(&AtomicU32::new(0), KEYS), KEYS);
    let first_late = late();
    eprintln!("{KEYS} keys: {first_late} answers took longer than 20 ms");
    for envoy in &envoys {
        eprintln!("{}", envoy.ask("/stats?filter=^cluster.tidegate.upstream_rq_time$").trim());
    }
    // Each was counted: a second request of a key passes only if its answer is late, too, or if its
    // first one never reached the server.
    let again = all_at(&AtomicU32::new(0), KEYS / 10);
    assert!(u64::from(again) <= late(), "{again} passed twice");
}
