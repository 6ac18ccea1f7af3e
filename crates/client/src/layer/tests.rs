//! The layer before a service that counts: requests that pass, that wait and that are rejected.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use tower::{ServiceExt, service_fn};

use super::*;
use crate::clock::UnixClock;
use crate::gatekeeper::{Config, Master};

const T: i64 = 1_700_000_000_000;

fn gatekeeper(held_max: usize) -> (Gatekeeper, Domain, UnixClock) {
    let clock = UnixClock::manual(T);
    let nobody = "tcp://127.0.0.1:1";
    let masters = [Master::new(nobody, nobody, ["api"])];
    let config = Config { clock: clock.clone(), held_max, ..Config::new(masters) };
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let domain = gatekeeper.domain("api").unwrap();
    (gatekeeper, domain, clock)
}

fn asked(user: &str) -> Request<String> {
    Request::get("/a").header("x-user", user).body("body".to_owned()).unwrap()
}

/// A service that counts its requests and answers with what it was sent.
macro_rules! counting {
    ($seen:expr) => {{
        let seen: Arc<AtomicUsize> = $seen.clone();
        service_fn(move |request: Request<String>| {
            seen.fetch_add(1, Relaxed);
            async move { Ok::<_, Infallible>(Response::new(request.into_body())) }
        })
    }};
}

#[tokio::test(start_paused = true)]
async fn requests_pass_wait_or_are_turned_away() {
    let (gatekeeper, api, _) = gatekeeper(10);
    gatekeeper.remember(api, b"slow", T + 300);
    gatekeeper.remember(api, b"no", T + 60_001);
    let layer = GatekeeperLayer::new(gatekeeper.clone(), "api", |head| head.header("x-user"));
    let seen = Arc::new(AtomicUsize::new(0));
    let service = layer.layer(counting!(seen));
    let begin = tokio::time::Instant::now();
    let response = service.clone().oneshot(asked("me")).await.unwrap();
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::OK, "body"));
    assert_eq!(begin.elapsed(), Duration::ZERO);

    let response = service.clone().oneshot(asked("no")).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()[RETRY_AFTER], "61");
    assert_eq!((seen.load(Relaxed), begin.elapsed()), (1, Duration::ZERO));

    let response = service.clone().oneshot(asked("slow")).await.unwrap();
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::OK, "body"));
    assert_eq!((seen.load(Relaxed), begin.elapsed()), (2, Duration::from_millis(300)));

    let nobody = Request::get("/a").body(String::new()).unwrap();
    assert_eq!(service.oneshot(nobody).await.unwrap().status(), StatusCode::OK);
    let stats = gatekeeper.stats();
    assert_eq!((stats.accepted, stats.delayed, stats.rejected, stats.held), (1, 1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn whoever_is_held_keeps_a_place_until_it_goes_or_leaves() {
    let (gatekeeper, api, _) = gatekeeper(1);
    gatekeeper.remember(api, b"slow", T + 300);
    let layer = GatekeeperLayer::new(gatekeeper.clone(), "api", |head| head.header("x-user"));
    let seen = Arc::new(AtomicUsize::new(0));
    let service = layer.layer(counting!(seen));
    let held = tokio::spawn(service.clone().oneshot(asked("slow")));
    tokio::task::yield_now().await;
    assert_eq!(gatekeeper.stats().held, 1);
    let crowded = service.clone().oneshot(asked("slow")).await.unwrap();
    assert_eq!(crowded.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(crowded.headers()[RETRY_AFTER], "1");
    held.abort();
    assert!(held.await.is_err());
    assert_eq!((gatekeeper.stats().held, seen.load(Relaxed)), (0, 0), "it left");
    assert_eq!(service.oneshot(asked("slow")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn errors_go_through_as_they_are() {
    let (gatekeeper, api, _) = gatekeeper(1);
    gatekeeper.remember(api, b"slow", T + 300);
    let layer = GatekeeperLayer::new(gatekeeper, "api", |head| head.header("x-user"));
    let failing = service_fn(|_: Request<String>| async {
        Err::<Response<String>, _>(std::io::Error::other("mine"))
    });
    for user in ["me", "slow"] {
        let error = layer.layer(failing).oneshot(asked(user)).await.unwrap_err();
        assert_eq!(error.to_string(), "mine");
    }
    // Not ready is no answer, neither at once nor after a wait.
    let tired = tower::service_fn(|_: Request<String>| async {
        Err::<Response<String>, _>(std::io::Error::other("not reached"))
    });
    let tired = NeverReady(tired);
    for user in ["me", "slow"] {
        let mut service = layer.layer(tired);
        let error = match user {
            "me" => service.oneshot(asked(user)).await.unwrap_err(),
            _ => service.call(asked(user)).await.unwrap_err(),
        };
        assert_eq!(error.to_string(), "not ready");
    }
}

#[derive(Clone, Copy)]
struct NeverReady<S>(S);

impl<S: Service<R, Error = std::io::Error>, R> Service<R> for NeverReady<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Err(std::io::Error::other("not ready")))
    }

    fn call(&mut self, request: R) -> S::Future {
        self.0.call(request)
    }
}

#[tokio::test]
async fn the_words_of_a_refusal_can_be_chosen() {
    let (gatekeeper, api, _) = gatekeeper(1);
    gatekeeper.remember(api, b"192.0.2.7", T + 60_000);
    let words = |refused: &RefusedRequest| {
        let mut response = Response::new(format!("not before {:?}", refused.after));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response
    };
    let layer = GatekeeperLayer::refusing(
        gatekeeper,
        "api",
        |head| head.extensions.get::<SocketAddr>().map(|it| (*it).into()),
        words,
    );
    let seen = Arc::new(AtomicUsize::new(0));
    let mut request = asked("me");
    request.extensions_mut().insert("192.0.2.7:99".parse::<SocketAddr>().unwrap());
    let response = layer.layer(counting!(seen)).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!((response.body().as_str(), seen.load(Relaxed)), ("not before 60s", 0));
}

#[test]
fn nobody_is_told_to_come_back_too_early() {
    for (ms, expected) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (59_999, "60")] {
        let value = retry_after(Duration::from_millis(ms));
        assert_eq!(value, HeaderValue::from_static(expected), "{ms}");
    }
}
