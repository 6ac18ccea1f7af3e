//! With a master: what it is told, what it says, and how it is found again.

use super::*;

/// A gatekeeper and its master, which has answered the first question.
async fn pair(change: impl FnOnce(&mut Config)) -> (Gatekeeper, Domain, UnixClock, TestMaster) {
    let mut master = TestMaster::start().await;
    let (mut config, clock) = config([master.of(&["api"])]);
    change(&mut config);
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let api = gatekeeper.domain("api").unwrap();
    meet(&gatekeeper, api, &mut master, &[]).await;
    (gatekeeper, api, clock, master)
}

/// Runs the master until the gatekeeper is in step with it. An early answer may go to nobody:
/// the subscription is still on its way, and the gatekeeper asks again.
async fn meet(
    gatekeeper: &Gatekeeper,
    domain: Domain,
    master: &mut TestMaster,
    delays: &[(&str, i64)],
) {
    soon(async {
        loop {
            tokio::select! {
                () = gatekeeper.synced(domain) => return,
                () = master.answer_resync("api", delays) => {}
            }
        }
    })
    .await;
}

#[tokio::test]
async fn every_request_is_told_in_order() {
    let (gatekeeper, api, clock, mut master) = pair(|_| {}).await;
    let told = |status, identifier: &str, at| ("api".to_owned(), status, identifier.to_owned(), at);
    assert!(gatekeeper.decide("api", b"a").is_accept());
    clock.advance(Duration::from_millis(7));
    assert!(gatekeeper.decide_with(api, b"", b"curl").is_accept());
    gatekeeper.remember(api, b"c", T + 107);
    let held = delayed(gatekeeper.decide("api", b"c"));
    gatekeeper.remember(api, b"d", T + 60_000);
    rejected(gatekeeper.decide("api", b"d"));
    let until_ns = (T + 107) as u64 * MILLISECOND_NS;
    for expected in [
        told(Status::Accepted, "a", T),
        told(Status::Accepted, "", T + 7),
        told(Status::Delayed { until_ns }, "c", T + 7),
        told(Status::Rejected, "d", T + 7),
    ] {
        assert_eq!(soon(master.next_told()).await, expected);
    }
    drop(held);
    until(|| gatekeeper.stats().sent >= 4).await;
    assert_eq!(gatekeeper.stats().dropped(), 0);
}

#[tokio::test]
async fn rejects_are_told_as_often_as_wanted() {
    for (reject_every, expected) in [(0, 0), (1, 7), (3, 3)] {
        let (gatekeeper, api, _, mut master) =
            pair(|config| config.reject_every = reject_every).await;
        gatekeeper.remember(api, b"no", T + 60_000);
        for _ in 0..7 {
            rejected(gatekeeper.decide_in(api, b"no"));
        }
        assert!(gatekeeper.decide_in(api, b"last").is_accept());
        let mut rejects = 0;
        while soon(master.next_told()).await.1 == Status::Rejected {
            rejects += 1;
        }
        assert_eq!((rejects, gatekeeper.stats().rejected), (expected, 7), "{reject_every}");
    }
}

#[tokio::test]
async fn its_newest_word_is_obeyed() {
    let (gatekeeper, api, _, master) = pair(|_| {}).await;
    for at_ms in [T + 10_000, T + 20_000, T + 400] {
        master.delay("api", "me", at_ms);
        until(|| gatekeeper.until_ms(api, b"me") == Some(at_ms)).await;
    }
    assert_eq!(delayed(gatekeeper.decide_in(api, b"me")).until_ms(), T + 400);
    assert!(gatekeeper.decide_in(api, b"you").is_accept());
}

#[tokio::test]
async fn what_it_says_beyond_that_is_counted_and_left_alone() {
    let (gatekeeper, api, _, master) = pair(|_| {}).await;
    let say = |frames: &[&[u8]]| {
        let _ = master.control.send(frames.iter().copied());
    };
    say(&[b"api\0"]);
    say(&[b"api\0", b"SOMETHING", b"else"]);
    say(&[b"api\0", b"DELAY_UNTIL", b"me", b"soon"]);
    say(&[b"api\0", b"DELAY_UNTIL", b"me", b"-5"]);
    say(&[b"api\0", b"DELAY_UNTIL", b"me", b"99999999999999999999"]);
    say(&[b"api\0other\0", b"DELAY_UNTIL", b"me", b"1700000000500"]);
    say(&[b"web\0", b"DELAY_UNTIL", b"me", b"1700000000500"]);
    say(&[b"api\0", b"DELAY_UNTIL", b"last", b"1700000000500"]);
    until(|| gatekeeper.until_ms(api, b"last").is_some()).await;
    assert!(gatekeeper.decide_in(api, b"me").is_accept());
    let bad = gatekeeper.stats().control_bad;
    // Nobody subscribed to `web`, so nobody hears of it.
    assert_eq!((bad.not_understood, bad.too_far, bad.unknown_domain), (4, 1, 1));
}

#[tokio::test]
async fn a_gatekeeper_that_starts_late_learns_who_is_delayed() {
    let mut master = TestMaster::start().await;
    let (config, _) = config([master.of(&["api"])]);
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let api = gatekeeper.domain("api").unwrap();
    let delays = [("one", T + 100), ("two", T + 60_000)];
    meet(&gatekeeper, api, &mut master, &delays).await;
    until(|| gatekeeper.stats().identifiers == 2).await;
    drop(delayed(gatekeeper.decide_in(api, b"one")));
    rejected(gatekeeper.decide_in(api, b"two"));
}

#[tokio::test]
async fn a_master_that_does_not_know_the_question_is_asked_a_few_times_only() {
    let mut master = TestMaster::start().await;
    let (config, _) = config([master.of(&["api"])]);
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let api = gatekeeper.domain("api").unwrap();
    // The first two come quickly; the master answers neither, and is obeyed all the same.
    for _ in 0..2 {
        assert_eq!(soon(master.next()).await, Err("api".to_owned()));
    }
    soon(async {
        while gatekeeper.until_ms(api, b"me").is_none() {
            master.delay("api", "me", T + 100);
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(delayed(gatekeeper.decide_in(api, b"me")));
}

#[tokio::test]
async fn a_hundred_restarts_of_the_master_are_lived_through() {
    let mut master = TestMaster::start().await;
    let (config, clock) = config([master.of(&["api"])]);
    let addresses = master.addresses;
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let api = gatekeeper.domain("api").unwrap();
    for round in 0..100_i64 {
        let until_ms = T + 1_000 * (round + 1);
        meet(&gatekeeper, api, &mut master, &[("me", until_ms)]).await;
        until(|| gatekeeper.until_ms(api, b"me") == Some(until_ms)).await;
        drop(delayed(gatekeeper.decide_in(api, b"me")));
        // It is told of what happens, and what passed before passes while it is away.
        while soon(master.next_told()).await.2 != "me" {}
        master.stop().await;
        assert!(gatekeeper.decide_in(api, b"you").is_accept());
        clock.advance(Duration::from_secs(1));
        assert!(gatekeeper.decide_in(api, b"me").is_accept());
        soon(gatekeeper.until(api, || !gatekeeper.shared.core.domains[0].heard.load(Relaxed)))
            .await;
        master = TestMaster::at(addresses).await;
    }
    assert!(gatekeeper.stats().connects >= 100);
}

#[tokio::test]
async fn two_masters_have_their_own_domains() {
    let mut masters = [TestMaster::start().await, TestMaster::start().await];
    let (config, _) = config([masters[0].of(&["api", "web"]), masters[1].of(&["mail"])]);
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let [api, web, mail] = ["api", "web", "mail"].map(|name| gatekeeper.domain(name).unwrap());
    for domain in [api, web, mail] {
        soon(gatekeeper.heard(domain)).await;
        assert!(gatekeeper.decide_in(domain, b"me").is_accept());
    }
    let [first, second] = &mut masters;
    let domains = [soon(first.next_told()).await.0, soon(first.next_told()).await.0];
    assert_eq!(domains, ["api", "web"]);
    assert_eq!(soon(second.next_told()).await.0, "mail");
    soon(async {
        while gatekeeper.until_ms(web, b"me").is_none()
            || gatekeeper.until_ms(mail, b"me").is_none()
        {
            first.delay("web", "me", T + 100);
            second.delay("mail", "me", T + 200);
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(gatekeeper.decide_in(api, b"me").is_accept());
    assert_eq!(gatekeeper.until_ms(mail, b"me"), Some(T + 200));
    // One of them ends, and the other is obeyed and told as before.
    let [first, mut second] = masters;
    first.stop().await;
    drop(delayed(gatekeeper.decide_in(mail, b"me")));
    assert!(gatekeeper.decide_in(api, b"me").is_accept());
    assert!(matches!(soon(second.next_told()).await.1, Status::Delayed { .. }));
}

#[tokio::test]
async fn its_tasks_end_with_the_last_handle() {
    let (gatekeeper, _, _, mut master) = pair(|_| {}).await;
    let other = gatekeeper.clone();
    let core = Arc::downgrade(&gatekeeper.shared.core);
    drop(gatekeeper);
    assert!(other.decide("api", b"me").is_accept());
    assert_eq!(soon(master.next_told()).await.2, "me");
    drop(other);
    until(|| core.strong_count() == 0).await;
}
