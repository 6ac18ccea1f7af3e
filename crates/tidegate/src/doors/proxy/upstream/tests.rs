//! Which requests are sent twice, and how long a response is waited for, without an upstream.

use std::pin::Pin;
use std::task::{Context, Waker};

use super::*;
use crate::doors::proxy::figures::Proxies;

fn upstream(ticks: &Rc<Ticks>) -> Rc<Upstream> {
    let figures = Proxies::default().figures("api");
    let table = "name = 'api'\nlisten = '127.0.0.1:0'\nupstream = 'http://127.0.0.1:1'\n\
                 response_timeout = '5s'";
    let config: Config = toml::from_str(table).unwrap();
    Upstream::new(&config, None, ticks.clone(), figures.for_loop(), figures)
}

#[test]
fn only_idempotent_methods_are_sent_twice() {
    for (method, twice) in [
        ("GET", true),
        ("HEAD", true),
        ("OPTIONS", true),
        ("TRACE", true),
        ("PUT", true),
        ("DELETE", true),
        ("POST", false),
        ("PATCH", false),
        ("PURGE", false),
    ] {
        assert_eq!(method.parse::<Method>().unwrap().is_idempotent(), twice, "{method}");
    }
}

fn never(_: &mut Context<'_>) -> Poll<()> {
    Poll::Pending
}

/// Lets ticks pass one by one, `often` times; after how many the wait was over.
fn waits<F: Future>(ticks: &Ticks, mut wait: Pin<&mut F>, often: Tick) -> Option<Tick> {
    let mut context = Context::from_waker(Waker::noop());
    (1..=often).find(|_| {
        assert!(wait.as_mut().poll(&mut context).is_pending());
        ticks.advance(ticks.now() + 1);
        wait.as_mut().poll(&mut context).is_ready()
    })
}

#[test]
fn an_answer_is_waited_for_while_the_upstream_takes_the_body() {
    let ticks = Rc::new(Ticks::default());
    ticks.advance(1000);
    let upstream = upstream(&ticks);
    let timeout = upstream.timeout();
    let deadline = ticks.deadline();
    let alone = pin!(upstream.wait(never, None, &deadline));
    assert_eq!(waits(&ticks, alone, 2 * timeout), Some(timeout));
    let progress = UploadProgress::new(ticks.now());
    let deadline = ticks.deadline();
    let mut taken = pin!(upstream.wait(never, Some(&progress), &deadline));
    for _ in 0..5 {
        assert_eq!(waits(&ticks, taken.as_mut(), timeout - 1), None);
        progress.moved(ticks.now());
    }
    assert_eq!(waits(&ticks, taken, 2 * timeout), Some(timeout));
}
