//! A thousand requests that wait on one path while clients leave at random: never more than the
//! limit at a time, everybody who stays is served in order, and nothing is left behind.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use super::{Client, Message, Upstream, eventually, metric, ok, proxy};
use crate::program::PATIENCE;

const CLIENTS: usize = 1000;
const LIMIT: usize = 7;

/// Leaves about every third, always the same ones.
fn leaves(number: usize) -> bool {
    (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 62 == 0 && number >= LIMIT
}

#[test]
fn a_thousand_wait_and_some_leave() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (tell, started) = channel::<usize>();
    let (go, gone) = channel::<()>();
    let gone = Arc::new(Mutex::new(gone));
    let upstream = {
        let (now, most) = (now.clone(), most.clone());
        Upstream::new(move |mut stream| {
            while let Some(request) = Message::read(&mut stream) {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                let number = request.first.split(['?', ' ']).nth(2).expect("a number");
                tell.send(number.parse().expect("a number")).expect("the test listens");
                gone.lock().expect("no panic").recv_timeout(PATIENCE).expect("told to go");
                // Before the answer: once the proxy has it, the next one may start.
                now.fetch_sub(1, SeqCst);
                let answer = ok("");
                if stream.get_mut().write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        })
    };
    let program = proxy(upstream.address, &format!("limit = '{LIMIT} in flight'"));
    let waiting = |count: usize| {
        eventually(|| metric(&program, "tidegate_waiting{door=\"proxy\"}") == count as f64);
    };
    let mut order = Vec::new();
    let mut clients: Vec<Option<Client>> = Vec::new();
    for number in 0..CLIENTS {
        let mut client = Client::of(&program);
        client.send(format!("GET /busy?{number} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        clients.push(Some(client));
        if number < LIMIT {
            order.push(started.recv_timeout(PATIENCE).expect("it starts"));
        } else if number % 50 == 49 || number + 1 == CLIENTS {
            // Requests of one batch may overtake each other on their way in; batches may not.
            waiting(number + 1 - LIMIT);
        }
    }
    let left = (0..CLIENTS).filter(|number| leaves(*number)).count();
    assert!(left > CLIENTS / 8, "{left}");
    (0..CLIENTS).filter(|number| leaves(*number)).for_each(|number| drop(clients[number].take()));
    waiting(CLIENTS - LIMIT - left);
    // Each that ends lets one start.
    for _ in LIMIT..CLIENTS - left {
        go.send(()).expect("the upstream listens");
        order.push(started.recv_timeout(PATIENCE).expect("it starts"));
    }
    (0..LIMIT).for_each(|_| go.send(()).expect("the upstream listens"));
    for client in clients.iter_mut().flatten() {
        assert_eq!(client.read().status(), 200);
    }
    assert_eq!(most.load(SeqCst), LIMIT);
    let mut served = order.clone();
    served.sort_unstable();
    assert!(served.into_iter().eq((0..CLIENTS).filter(|number| !leaves(*number))));
    let batches: Vec<usize> = order.iter().map(|number| number / 50).collect();
    assert!(batches.is_sorted(), "a later batch has overtaken: {order:?}");
    drop(clients);
    waiting(0);
    eventually(|| metric(&program, "tidegate_proxy_connections{proxy=\"api\"}") == 0.0);
    let upstreams = metric(&program, "tidegate_proxy_upstream_connections{proxy=\"api\"}");
    // Each loop keeps what it has used at most at once.
    let loops = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    assert!(upstreams <= (LIMIT * loops) as f64, "{upstreams}");
}
