//! Programs that share their counts through a real Redis or etcd, asked over HTTP and through the
//! proxy: one count for all of them, uses that end with their node, waiters that hear of it, and
//! stores that are killed and stopped under load.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::engines::{etcd, redis, until};
use crate::http::{Reply, send_to};
use crate::program::{Program, command};
use crate::remote::until_store_answers;
use crate::upstream::Upstream;

const RULES: &str = "
[http]
listen = '127.0.0.1:0'
[[rule]]
match = 'deny *'
limit = '100 per 366d'
on_store_error = 'deny'
[[rule]]
match = 'load *'
limit = '100000 per 366d'
on_store_error = 'deny'
[[rule]]
match = 'jobs *'
limit = '2 in flight'
on_store_error = 'deny'
[[rule]]
match = 'late *'
limit = '2 in flight'
";

/// The limit of `load *`: what comes back of it in five minutes is less than a use.
const LOAD_MAX: usize = 100_000;

/// A program whose store is known to answer: `redis`, `etcd` or `cluster`.
fn node(kind: &str, urls: &[String], timeout: &str) -> Program {
    let is_cluster = kind == "cluster";
    let kind = if is_cluster { "redis" } else { kind };
    let urls: Vec<String> = urls.iter().map(|url| format!("'{url}'")).collect();
    let urls = urls.join(", ");
    let store = format!(
        "[store]\nkind = '{kind}'\nurl = [{urls}]\ntimeout = '{timeout}'\ncluster = {is_cluster}\n"
    );
    let program = Program::serve(&[RULES, &store].concat());
    until_store_answers(program.address("http"));
    program
}

fn ask(node: SocketAddr, method: &str, path: &str) -> Reply {
    send_to(node, method, path, "Host: localhost\r\n", "")
}

fn post(node: SocketAddr, path: &str, body: &Value) -> Reply {
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    send_to(node, "POST", path, headers, &body.to_string())
}

fn take(node: SocketAddr, key: &str) -> bool {
    post(node, "/v1/check", &json!({ "key": key })).status == 200
}

fn hold(node: SocketAddr, key: &str) -> Option<String> {
    let reply = post(node, "/v1/check", &json!({ "key": key, "hold_ms": 3_600_000 }));
    (reply.status == 200).then(|| reply.json()["use"].as_str().expect("an id").to_owned())
}

/// A use that ends at one node lets somebody go who waits at another.
fn ends_are_heard_by_other_nodes(kind: &str, urls: &[String]) {
    let nodes = [node(kind, urls, "20s"), node(kind, urls, "20s")];
    let [one, two] = nodes.each_ref().map(|node| node.address("http"));
    let held = [hold(one, "jobs a"), hold(one, "jobs a")].map(|id| id.expect("there is room"));
    assert_eq!(hold(two, "jobs a"), None, "it is full, wherever one asks");
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            post(two, "/v1/wait", &json!({ "key": "jobs a", "hold_ms": 3_600_000 })).status
        });
        until(|| {
            let metrics = ask(two, "GET", "/metrics").body;
            metrics.contains("tidegate_waiting{door=\"http\"} 1")
        });
        assert_eq!(ask(one, "DELETE", &format!("/v1/uses/{}", held[0])).status, 204);
        assert_eq!(waits.join().expect("an answer"), 200);
    });
    assert_eq!(hold(one, "jobs a"), None, "the other node has it now");
}

/// The uses of a node that is killed end, although nobody gives them back.
fn uses_end_with_their_node(kind: &str, urls: &[String]) {
    let mut nodes = [node(kind, urls, "20s"), node(kind, urls, "20s")];
    let [one, two] = nodes.each_ref().map(|node| node.address("http"));
    assert!(hold(one, "jobs b").is_some() && hold(one, "jobs b").is_some());
    assert_eq!(hold(two, "jobs b"), None);
    nodes[0].signal(Signal::KILL);
    nodes[0].exit_status();
    until(|| hold(two, "jobs b").is_some());
}

/// Uses that the store counts after `on_store_error` has decided belong to no client: none of them
/// stays, for any node. `halt` says whether the store is to keep silent.
fn late_uses_in_flight_do_not_stay(kind: &str, urls: &[String], halt: impl Fn(bool)) {
    let nodes = [node(kind, urls, "300ms"), node(kind, urls, "20s")];
    let [one, two] = nodes.each_ref().map(|node| node.address("http"));
    for (number, key) in ["late a", "late a", "late a", "jobs c", "jobs c"].iter().enumerate() {
        // The node knows the count, and the store is well.
        until(|| left(one, key) == left(two, key) && left(one, key).is_some());
        halt(true);
        let body = json!({ "key": key, "hold_ms": 3_600_000 });
        let reply = post(one, "/v1/check", &body);
        let said = (reply.status, reply.json()["degraded"] == json!(true));
        halt(false);
        let status = if key.starts_with("late") { 200 } else { 429 };
        assert_eq!(said, (status, true), "{number}: {}", reply.body);
    }
    for key in ["late a", "jobs c"] {
        until(|| left(one, key) == Some(2));
        until(|| left(two, key) == Some(2));
        assert!(hold(two, key).is_some() && hold(two, key).is_some(), "there is room");
    }
}

/// What remains of the limit of a key, if the store says it.
fn left(node: SocketAddr, key: &str) -> Option<u64> {
    let peek = json!({ "key": key, "peek": true });
    post(node, "/v1/check", &peek).json()["limits"][0]["remaining"].as_u64()
}

/// What came of uses that were asked for.
#[derive(Default)]
struct Tally {
    granted: AtomicUsize,
    /// Refused because the store did not answer: it may have counted them nevertheless.
    lost: AtomicUsize,
    /// Refused by the limit.
    over: AtomicUsize,
}

impl Tally {
    fn take(&self, node: SocketAddr, key: &str) {
        let reply = post(node, "/v1/check", &json!({ "key": key }));
        let degraded = reply.json()["degraded"] == json!(true);
        let count = match (reply.status, degraded) {
            (200, false) => &self.granted,
            (429, true) => &self.lost,
            (429, false) => &self.over,
            _ => panic!("{} {}", reply.status, reply.body),
        };
        count.fetch_add(1, SeqCst);
    }

    fn granted(&self) -> usize {
        self.granted.load(SeqCst)
    }

    /// How many uses the store may have counted that were not granted.
    fn lost(&self) -> usize {
        self.lost.load(SeqCst)
    }
}

/// Asks two nodes as fast as it goes while `disturb` does what it does. Whatever is granted has
/// been counted, whatever was counted was granted or its answer was lost, and once the store is
/// well a limit is granted whole and never more.
fn under_load(kind: &str, urls: &[String], disturb: impl FnOnce()) {
    let programs = [node(kind, urls, "50ms"), node(kind, urls, "50ms")];
    let nodes = programs.each_ref().map(|program| program.address("http"));
    let (tally, over) = (Tally::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        for number in 0..4 {
            let (node, over, tally) = (nodes[number % 2], &over, &tally);
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    tally.take(node, "load k");
                }
            });
        }
        until(|| tally.granted() > 20);
        disturb();
        let before = tally.granted();
        until(|| tally.granted() > before + 20);
        over.store(true, SeqCst);
    });
    assert_eq!(tally.over.load(SeqCst), 0, "the limit is far away");
    let mut remaining = None;
    until(|| {
        remaining = left(nodes[0], "load k");
        remaining.is_some()
    });
    let counted = LOAD_MAX - remaining.and_then(|left| left.try_into().ok()).unwrap_or(LOAD_MAX);
    let (granted, lost) = (tally.granted(), tally.lost());
    assert!(granted <= counted, "{granted} were granted, and {counted} counted");
    assert!(counted <= granted + lost, "{counted} were counted, {granted} granted, {lost} lost");

    let tally = Tally::default();
    let mut asked = 0;
    until(|| {
        (0..20).for_each(|number| tally.take(nodes[number % 2], "deny k"));
        asked += 20;
        tally.over.load(SeqCst) >= 20
    });
    let (granted, lost) = (tally.granted(), tally.lost());
    assert!(granted <= 100 && granted + lost >= 100, "{granted} of 100, {lost} lost, of {asked}");
}

#[test]
fn redis_tells_who_waits_and_forgets_who_is_gone() {
    let server = redis::Server::start(&[]);
    ends_are_heard_by_other_nodes("redis", &[server.url()]);
    uses_end_with_their_node("redis", &[server.url()]);
}

#[test]
fn etcd_tells_who_waits_and_forgets_who_is_gone() {
    let member = etcd::Member::start(&[]);
    ends_are_heard_by_other_nodes("etcd", &[member.url()]);
    uses_end_with_their_node("etcd", &[member.url()]);
}

#[test]
fn a_use_in_flight_that_redis_counts_too_late_does_not_stay() {
    let server = redis::Server::start(&[]);
    late_uses_in_flight_do_not_stay("redis", &[server.url()], |halts| match halts {
        true => server.halt(),
        false => server.go_on(),
    });
}

#[test]
fn a_use_in_flight_that_etcd_counts_too_late_does_not_stay() {
    let member = etcd::Member::start(&[]);
    late_uses_in_flight_do_not_stay("etcd", &[member.url()], |halts| match halts {
        true => member.halt(),
        false => member.go_on(),
    });
}

#[test]
fn a_redis_that_is_stopped_under_load_grants_nothing_twice() {
    let server = redis::Server::start(&[]);
    under_load("redis", &[server.url()], || {
        server.halt();
        thread::yield_now();
        server.go_on();
        server.halt();
        server.go_on();
    });
}

#[test]
fn an_etcd_that_is_stopped_under_load_grants_nothing_twice() {
    let member = etcd::Member::start(&[]);
    under_load("etcd", &[member.url()], || {
        member.halt();
        member.go_on();
    });
}

#[test]
fn a_member_of_three_may_be_killed_under_load() {
    let mut members = etcd::three(&[]);
    let urls: Vec<String> = members.iter().map(etcd::Member::url).collect();
    under_load("etcd", &urls, || {
        let leader = members.iter().position(etcd::Member::leads).unwrap_or(0);
        members[leader].kill();
        members[leader].start_again();
    });
}

#[test]
fn a_redis_that_is_killed_under_load_keeps_what_its_log_kept() {
    let mut server = redis::Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = server.url();
    under_load("redis", &[url], || {
        server.kill();
        server.start_again();
    });
}

#[test]
fn nodes_of_a_cluster_that_are_stopped_under_load_grant_nothing_twice() {
    let cluster = redis::Cluster::start();
    under_load("cluster", &cluster.urls(), || {
        for node in &cluster.nodes {
            node.halt();
            thread::yield_now();
            node.go_on();
        }
    });
}

#[test]
fn nodes_of_a_cluster_that_are_killed_under_load_keep_what_their_logs_kept() {
    let settings = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut cluster = redis::Cluster::start_with(&settings);
    under_load("cluster", &cluster.urls(), || {
        for node in 0..cluster.nodes.len() {
            cluster.nodes[node].kill();
            cluster.nodes[node].start_again();
        }
        cluster.until_well();
    });
}

#[test]
fn a_cluster_goes_on_without_a_node_that_keeps_silent() {
    let cluster = redis::Cluster::start_with(&["--cluster-require-full-coverage", "no"]);
    let program = node("cluster", &cluster.urls(), "200ms");
    let http = program.address("http");
    // Not the one by which nodes are known to live.
    let has_nodes = |node: &redis::Server| node.ask(&["keys", "tidegate:nodes"]).contains("nodes");
    let beats = cluster.nodes.iter().position(has_nodes).expect("somebody has them");
    let silent = &cluster.nodes[(beats + 1) % 3];
    let mut asked = 0;
    let mut is_granted = || {
        asked += 1;
        take(http, &format!("deny {asked}"))
    };
    silent.halt();
    let mut granted = 0;
    until(|| {
        granted += usize::from(is_granted());
        granted == 20
    });
    silent.go_on();
    until(|| (0..20).all(|_| is_granted()));
}

#[test]
fn a_redis_that_comes_back_with_old_counts_is_believed() {
    let mut server = redis::Server::start(&[]);
    let program = node("redis", &[server.url()], "20s");
    let http = program.address("http");
    let taken = |most: usize| (0..most).filter(|_| take(http, "deny k")).count();
    assert_eq!(taken(60), 60);
    assert_eq!(server.ask(&["save"]).trim(), "OK");
    assert_eq!(taken(30), 30);
    server.kill();
    // What it has was written thirty uses ago.
    server.start_again();
    let mut again = 0;
    until(|| {
        again += usize::from(take(http, "deny k"));
        again > 0
    });
    assert_eq!(again + taken(100), 40);
}

#[test]
fn replicas_of_the_documents_proxy_share_a_limit_through_etcd() {
    let member = etcd::Member::start(&[]);
    let upstream = Upstream::start();
    let url = format!("http://{}", upstream.address());
    let etcd = member.url().trim_start_matches("http://").to_owned();
    let replica = || {
        let flags = ["proxy", "--port", "0", "--rpm", "3", "--http", "127.0.0.1:0"];
        let more = ["--admin", "127.0.0.1:0", "--etcd-addresses", &etcd, &url];
        let flags = flags.into_iter().chain(more);
        let mut program = Program::spawn(command(flags), tempfile::tempdir().expect("a folder"));
        program.wait_until_ready();
        until_store_answers(program.address("http"));
        program
    };
    let replicas = [replica(), replica()];
    // A path of its own for every try, until all of one were asked for in the same minute.
    let mut tries = 0;
    until(|| {
        tries += 1;
        let path = format!("/{tries}");
        let status = |at: usize| {
            let key = format!("/v1/keys/proxy%20path={path}");
            ask(replicas[at].address("admin"), "GET", &key).json()["limits"][0]["remaining"].clone()
        };
        for at in [0, 1, 0] {
            let proxy = replicas[at].address("proxy");
            assert_eq!(send_to(proxy, "GET", &path, "Host: a\r\n", "").status, 204);
        }
        let left = [status(0), status(1)];
        left == [json!(0), json!(0)]
    });
    // Without it nobody is let through, and nobody is turned away.
    upstream.more();
    drop(member);
    let mut held = TcpStream::connect(replicas[0].address("proxy")).expect("the proxy accepts");
    held.write_all(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n").expect("the proxy reads");
    let waiting = "tidegate_waiting{door=\"proxy\"} 1";
    until(|| {
        let page = ask(replicas[0].address("http"), "GET", "/metrics").body;
        page.lines().any(|line| line == waiting)
    });
    assert_eq!(upstream.more(), 0);
}
