//! A limit split among replicas behind a real balancer: together they never allow more than it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use serde_json::json;

use crate::balancer::Balancer;
use crate::engines::until;
use crate::http::send_to;
use crate::program::Program;
use crate::upstream::Upstream;

const JSON: &str = "Host: localhost\r\nContent-Type: application/json\r\n";

/// The period is longer than any test, and its window begins with the first use.
fn replica(number: Option<usize>) -> Program {
    let number = number.map_or(String::new(), |number| format!("replica = {number}\n"));
    Program::serve(&format!(
        "[[rule]]\nname = 'r'\nmatch = 'k'\nlimit = '100 per day'\nalgorithm = 'sliding-log'\n\
         replicas = 3\n{number}[http]\nlisten = '127.0.0.1:0'\n\
         [admin]\nlisten = '127.0.0.1:0'\n"
    ))
}

/// Asks `times` times through the balancer, from several clients at once; returns how often a use
/// was allowed.
fn ask(balancer: &Balancer, times: usize) -> usize {
    let (left, allowed) = (AtomicUsize::new(times), AtomicUsize::new(0));
    let client = || {
        let next = |left: usize| left.checked_sub(1);
        while left.fetch_update(Relaxed, Relaxed, next).is_ok() {
            let reply = send_to(balancer.address(), "POST", "/v1/check", JSON, r#"{"key":"k"}"#);
            match reply.status {
                200 => drop(allowed.fetch_add(1, Relaxed)),
                429 => {}
                other => panic!("{other}: {}", reply.body),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(client);
        }
    });
    allowed.into_inner()
}

fn addresses(replicas: &[Program]) -> Vec<std::net::SocketAddr> {
    replicas.iter().map(|program| program.address("http")).collect()
}

#[test]
fn replicas_that_know_their_number_allow_the_whole_and_no_more() {
    let replicas = [1, 2, 3].map(|number| replica(Some(number)));
    let balancer = Balancer::start(&addresses(&replicas));
    assert_eq!(ask(&balancer, 300), 100);
    assert_eq!(ask(&balancer, 30), 0);
    // Told one after the other, while all of them serve.
    for program in &replicas {
        let body = json!({"limit": "200 per day"}).to_string();
        let reply = send_to(program.address("admin"), "PUT", "/v1/rules/r", JSON, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
    assert_eq!(ask(&balancer, 600), 100, "what was used is still counted");
}

#[test]
fn replicas_that_do_not_know_it_leave_the_rest_unused() {
    let replicas = [None; 3].map(replica);
    let balancer = Balancer::start(&addresses(&replicas));
    assert_eq!(ask(&balancer, 300), 99);
    // One goes away: the balancer is told, and then the others.
    let balancer = Balancer::start(&addresses(&replicas[..2]));
    for program in &replicas[..2] {
        let body = r#"{"replicas":2}"#;
        let reply = send_to(program.address("admin"), "PUT", "/v1/rules/r", JSON, body);
        assert_eq!(reply.json()["in_force"], json!(["50 per day"]));
    }
    assert_eq!(ask(&balancer, 300), 34);
}

/// A proxy before `upstream` whose limit is that of one of three.
fn proxy(upstream: &Upstream, number: usize, settings: &str) -> Program {
    Program::serve(&format!(
        "[[proxy]]\nname = 'api'\nlisten = '127.0.0.1:0'\nupstream = 'http://{}'\n\
         algorithm = 'sliding-log'\nreplicas = 3\nreplica = {number}\n{settings}\n\
         [http]\nlisten = '127.0.0.1:0'\n\
         [admin]\nlisten = '127.0.0.1:0'\n",
        upstream.address(),
    ))
}

fn behind_balancer(replicas: &[Program]) -> Balancer {
    let proxies: Vec<_> = replicas.iter().map(|program| program.address("proxy")).collect();
    Balancer::start(&proxies)
}

#[test]
fn proxies_behind_a_balancer_start_no_more_than_the_limit() {
    let upstream = Upstream::start();
    let settings = "limit = '100 per day'\non_limit = 'reject'";
    let replicas = [1, 2, 3].map(|number| proxy(&upstream, number, settings));
    let balancer = behind_balancer(&replicas);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let client = || {
            let get = |_| send_to(balancer.address(), "GET", "/a", "Host: a\r\n", "").status;
            (0..75).map(get).collect::<Vec<_>>()
        };
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().expect("answers")).collect()
    });
    let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!((count(204), count(429)), (100, 200));
    assert_eq!(upstream.more(), 100, "what was refused never reached the upstream");
}

#[test]
fn a_raised_limit_frees_those_who_wait_on_every_replica() {
    let upstream = Upstream::start();
    let replicas = [1, 2, 3].map(|number| proxy(&upstream, number, "limit = '3 per day'"));
    let balancer = behind_balancer(&replicas);
    thread::scope(|scope| {
        let get = || send_to(balancer.address(), "GET", "/a", "Host: a\r\n", "").status;
        let clients: Vec<_> = (0..9).map(|_| scope.spawn(get)).collect();
        (0..3).for_each(|_| drop(upstream.next()));
        for (told, program) in replicas.iter().enumerate() {
            assert!(upstream.more() <= 2 * told, "nobody goes before the limit is raised");
            let body = r#"{"limit":"9 per day"}"#;
            let path = "/v1/rules/proxy:api";
            let reply = send_to(program.address("admin"), "PUT", path, JSON, body);
            assert_eq!(reply.status, 200, "{}", reply.body);
        }
        let served = clients.into_iter().map(|client| client.join().expect("an answer"));
        assert_eq!(served.filter(|status| *status == 204).count(), 9);
    });
}

#[test]
fn the_number_of_replicas_changes_while_requests_wait() {
    let upstream = Upstream::start();
    let program = proxy(&upstream, 1, "limit = '3 per day'");
    let change = |body: &str| {
        let reply = send_to(program.address("admin"), "PUT", "/v1/rules/proxy:api", JSON, body);
        assert_eq!(reply.status, 200, "{}", reply.body);
    };
    thread::scope(|scope| {
        let address = program.address("proxy");
        let get = move || send_to(address, "GET", "/a", "Host: a\r\n", "").status;
        let mut clients: Vec<_> = (0..3).map(|_| scope.spawn(get)).collect();
        upstream.next();
        let waiting = |count: usize| {
            let series = format!("tidegate_waiting{{door=\"proxy\"}} {count}");
            let page = || {
                send_to(program.address("http"), "GET", "/metrics", "Host: localhost\r\n", "").body
            };
            until(|| page().lines().any(|line| line == series));
        };
        waiting(2);
        // With as many as there are uses in all, this one has no more than it has used.
        change(r#"{"replicas":4}"#);
        clients.push(scope.spawn(get));
        waiting(3);
        assert_eq!(upstream.more(), 0);
        change(r#"{"replicas":1}"#);
        (0..2).for_each(|_| drop(upstream.next()));
        waiting(1);
        change(r#"{"limit":"8 per day","replicas":2}"#);
        let served = clients.into_iter().map(|client| client.join().expect("an answer"));
        assert_eq!(served.filter(|status| *status == 204).count(), 4);
    });
}
