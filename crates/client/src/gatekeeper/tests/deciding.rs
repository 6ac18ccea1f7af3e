//! What a delay means for requests, without any master.

use super::*;

#[tokio::test]
async fn a_request_passes_from_its_time_on_and_not_before() {
    let (gatekeeper, api, clock) = alone(|_| {});
    assert!(gatekeeper.decide("api", b"me").is_accept());
    assert!(gatekeeper.remember(api, b"me", T + 2));
    let delay = delayed(gatekeeper.decide("api", b"me"));
    assert_eq!((delay.until_ms(), delay.span()), (T + 2, Duration::from_millis(2)));
    assert!(gatekeeper.decide("api", b"you").is_accept());
    clock.advance(Duration::from_millis(1));
    assert_eq!(delay.remaining(), Duration::from_millis(1));
    assert_eq!(delayed(gatekeeper.decide("api", b"me")).until_ms(), T + 2);
    clock.advance(Duration::from_millis(1));
    assert!(gatekeeper.decide("api", b"me").is_accept());
    assert_eq!(delay.remaining(), Duration::ZERO);
    let stats = gatekeeper.stats();
    assert_eq!((stats.accepted, stats.delayed, stats.rejected), (3, 2, 0));
    assert_eq!((stats.identifiers, stats.held, stats.dropped()), (1, 1, 5));
}

#[tokio::test]
async fn where_a_tick_makes_a_difference_the_exact_time_decides() {
    let lagging = UnixClock::manual_behind(T, 10);
    let (gatekeeper, api, _) = alone(|config| config.clock = lagging.clone());
    for (until_ms, identifier) in [(T - 11, b"a"), (T - 10, b"b"), (T - 9, b"c"), (T, b"d")] {
        gatekeeper.remember(api, identifier, T + 1);
        gatekeeper.remember(api, identifier, until_ms);
        assert!(gatekeeper.decide_in(api, identifier).is_accept(), "{until_ms}");
    }
    gatekeeper.remember(api, b"me", T + 1);
    assert_eq!(delayed(gatekeeper.decide_in(api, b"me")).span(), Duration::from_millis(1));
    gatekeeper.remember(api, b"me", T + 5_000);
    assert_eq!(delayed(gatekeeper.decide_in(api, b"me")).span(), MAX_DELAY);
    gatekeeper.remember(api, b"me", T + 5_001);
    assert_eq!(rejected(gatekeeper.decide_in(api, b"me")), Duration::from_millis(5_001));
    gatekeeper.remember(api, b"me", T + 60_000);
    let after = rejected(gatekeeper.decide_in(api, b"me"));
    assert_eq!(after, Duration::from_millis(60_010), "far away a tick makes none");
}

#[tokio::test]
async fn beyond_the_longest_delay_it_is_turned_away() {
    let (gatekeeper, api, clock) = alone(|_| {});
    gatekeeper.remember(api, b"me", T + 5_001);
    assert_eq!(rejected(gatekeeper.decide_in(api, b"me")), Duration::from_millis(5_001));
    clock.advance(Duration::from_millis(1));
    assert_eq!(delayed(gatekeeper.decide_in(api, b"me")).span(), MAX_DELAY);
    let (never, api, _) = alone(|config| config.max_delay = Duration::ZERO);
    never.remember(api, b"me", T + 1);
    assert_eq!(rejected(never.decide_in(api, b"me")), Duration::from_millis(1));
}

#[tokio::test]
async fn only_so_many_are_held() {
    let (gatekeeper, api, _) = alone(|config| config.held_max = 2);
    gatekeeper.remember(api, b"me", T + 100);
    let first = delayed(gatekeeper.decide_in(api, b"me"));
    let second = delayed(gatekeeper.decide_in(api, b"me"));
    assert_eq!(rejected(gatekeeper.decide_in(api, b"me")), Duration::from_millis(100));
    assert_eq!(gatekeeper.stats().held, 2);
    drop(first);
    let third = delayed(gatekeeper.decide_in(api, b"me"));
    drop((second, third));
    let stats = gatekeeper.stats();
    assert_eq!((stats.held, stats.delayed, stats.rejected, stats.rejected_crowded), (0, 3, 1, 1));
}

#[tokio::test]
async fn domains_are_apart_and_unknown_ones_pass() {
    let (config, _) = config([of(nowhere(), &["api", "web"]), of(nowhere(), &["mail"])]);
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let web = gatekeeper.domain("web").unwrap();
    gatekeeper.remember(web, b"me", T + 100);
    assert!(gatekeeper.decide("api", b"me").is_accept());
    assert!(gatekeeper.decide("mail", b"me").is_accept());
    assert!(gatekeeper.decide("other", b"me").is_accept());
    assert!(!gatekeeper.decide("web", b"me").is_accept());
    assert_eq!(gatekeeper.domain("other"), None);
    assert_eq!(gatekeeper.stats().unknown_domain, 1);
    assert!(gatekeeper.decide_in(Domain(77), b"me").is_accept(), "of another gatekeeper");
}

#[tokio::test]
async fn words_that_do_not_fit_or_make_no_sense_let_pass() {
    let (gatekeeper, api, _) = alone(|config| config.identifiers_max = 2);
    let year_ms = 366 * 24 * 3600 * 1000;
    assert!(gatekeeper.remember(api, b"a", T + year_ms));
    assert!(gatekeeper.remember(api, b"b", T + 1));
    assert!(!gatekeeper.remember(api, b"c", T + 1));
    assert!(!gatekeeper.remember(api, b"a", T + 2 * year_ms), "nobody is poisoned");
    assert!(!gatekeeper.remember(api, &[b'x'; IDENTIFIER_BYTES_MAX + 1], T + 1));
    assert!(gatekeeper.decide_in(api, b"c").is_accept());
    assert_eq!(gatekeeper.until_ms(api, b"a"), Some(T + year_ms));
    let BadControl { too_far, table_full, too_long, .. } = gatekeeper.stats().control_bad;
    assert_eq!((too_far, table_full, too_long, gatekeeper.stats().control), (1, 1, 1, 2));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_goes_when_it_is_time() {
    let (gatekeeper, api, _) = alone(|_| {});
    gatekeeper.remember(api, b"me", T + 250);
    let begin = tokio::time::Instant::now();
    delayed(gatekeeper.decide_in(api, b"me")).wait().await;
    assert_eq!(begin.elapsed(), Duration::from_millis(250), "of a time that stands still");
    assert_eq!(gatekeeper.stats().held, 0);
}

#[tokio::test]
async fn a_clock_that_is_set_back_makes_nobody_wait_longer() {
    let (gatekeeper, api, clock) = alone(|_| {});
    gatekeeper.remember(api, b"me", T + 250);
    let delay = delayed(gatekeeper.decide_in(api, b"me"));
    clock.set(T - 3_600_000);
    assert_eq!(delay.remaining(), Duration::from_millis(250));
}

#[test]
fn wrong_settings_are_told() {
    // No runtime is needed to decide.
    let (config, _) = config([of(nowhere(), &["api"])]);
    assert!(Gatekeeper::connect(&config).unwrap().decide("api", b"me").is_accept());
    let wrong = Config::new([Master::new("tcp://*:1", "tcp://a:1", ["api"])]);
    assert!(matches!(Gatekeeper::connect(&wrong), Err(ConnectError::Endpoint(_))));
    let wrong = Config::new([Master::new("tcp://a:1", "udp://a:1", ["api"])]);
    assert!(matches!(Gatekeeper::connect(&wrong), Err(ConnectError::Endpoint(_))));
}
