//! A client that leaves while a real store is asked for its use.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use serde_json::json;

use super::door;
use crate::settings::units::Span;
use crate::stores::remote::engines::{redis, until};
use crate::stores::remote::settings::{Settings, StoreKind, Urls};

/// Long enough for a busy machine: the store is halted, and answers when it goes on.
const PATIENT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_use_whose_client_has_left_is_given_back_and_not_held() {
    let server = redis::Server::start(&[]);
    let house = door();
    let (limiter, now) = (&house.gate.limiter, house.clock.now());
    let url = Some(Urls::One(server.url()));
    let timeout = Some(Span(PATIENT));
    let settings = Settings { kind: StoreKind::Redis, url, timeout, ..Settings::default() };
    limiter.use_store(&settings).expect("a store to try");
    until(|| limiter.store_away().is_none());
    let body = json!({"key": "both a", "hold_ms": 60_000});
    server.halt();
    {
        let mut leaves = pin!(house.check(body.clone()));
        poll_fn(|cx| {
            assert!(leaves.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }
    server.go_on();
    until(|| limiter.stats(b"both a", now).requests == 1);
    // It was granted the only use in flight. A peek that asks after the refund finds it again.
    for _ in 0..100 {
        let peek = house.check(json!({"key": "both a", "peek": true})).await;
        if peek.json["limits"][1]["remaining"] == 1 {
            break;
        }
    }
    assert!(house.gate.uses.is_empty());
    let next = house.check(body).await;
    assert_eq!(next.status, 200, "{}", next.text);
    assert!(next.json["use"].is_string() && house.gate.uses.len() == 1);
}
