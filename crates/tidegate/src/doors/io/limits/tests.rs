//! Places on a clock that is moved by hand.

use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use proptest::prelude::*;
use tidegate_core::Now;

use super::*;

const START: Nanos = 1 << 50;

fn open(connections: u32, per_source: Option<u32>) -> (Arc<ConnectionLimits>, Clock) {
    let clock = Clock::manual(Now { mono: START, unix: START });
    let trusted = Allow::default();
    let bounds = DoorLimits {
        connections,
        per_source,
        trusted,
        keeps_descriptors_back: false,
        idle_gives_way: true,
    };
    (ConnectionLimits::new(Door::Http, bounds, &Arc::default(), clock.clone()), clock)
}

/// A place for a client of a Unix socket.
fn enter(limits: &Arc<ConnectionLimits>) -> Result<ConnectionPlace, PlaceRefused> {
    limits.place(None, false)
}

/// Counts how often it is woken.
#[derive(Default)]
struct Owner(AtomicUsize);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn places_are_bounded_and_come_back() {
    let (limits, clock) = open(2, None);
    let (one, two) = (enter(&limits).unwrap(), enter(&limits).unwrap());
    one.set_busy();
    two.set_busy();
    assert!(enter(&limits).is_err() && enter(&limits).is_err(), "being refused takes no place");
    clock.advance(1000 * SECOND);
    assert!(enter(&limits).is_err(), "nobody is idle");
    drop(one);
    assert!(enter(&limits).is_ok());
}

#[test]
fn who_has_been_idle_for_longest_gives_way_after_a_second() {
    let (limits, clock) = open(3, None);
    let places: Vec<ConnectionPlace> = (0..3).map(|_| enter(&limits).unwrap()).collect();
    clock.advance(200 * MILLISECOND);
    places[0].set_idle(clock.now().mono);
    places[2].set_busy();
    clock.advance(SECOND - 100 * MILLISECOND);
    let first = enter(&limits).unwrap();
    assert!(places[1].gave_way() && !places[0].gave_way(), "idle for 1.1 s and for 0.9 s");
    first.set_busy();
    let again_at = clock.now().mono + 200 * MILLISECOND;
    assert_eq!(enter(&limits).err(), Some(PlaceRefused::Full(again_at)));
    clock.advance(200 * MILLISECOND);
    let _second = enter(&limits).unwrap();
    assert!(places[0].gave_way());
    clock.advance(1000 * SECOND);
    places[2].set_idle(clock.now().mono);
    assert!(!places[2].gave_way());
}

#[test]
fn whoever_gave_way_is_told_once_and_has_nothing_to_give_back() {
    let (limits, clock) = open(1, None);
    let old = enter(&limits).unwrap();
    let owner = Arc::new(Owner::default());
    let waker = Waker::from(owner.clone());
    assert!(old.poll_gave_way(&Context::from_waker(&waker)).is_pending());
    clock.advance(2 * SECOND);
    let new = enter(&limits).unwrap();
    assert_eq!(owner.0.load(Relaxed), 1);
    assert!(old.poll_gave_way(&Context::from_waker(&waker)).is_ready());
    old.set_busy();
    old.set_idle(clock.now().mono);
    assert!(old.gave_way(), "too late to be busy");
    assert_eq!(limits.table.lock().leaving, 1);
    drop(old);
    assert_eq!(limits.table.lock().leaving, 0);
    new.set_busy();
    assert!(enter(&limits).is_err(), "the place is taken");

    let late = Arc::new(Owner::default());
    new.set_idle(clock.now().mono);
    clock.advance(2 * SECOND);
    let _newest = enter(&limits).unwrap();
    new.set_owner(late.clone().into());
    assert_eq!(late.0.load(Relaxed), 1, "its place was taken before it had an owner");
}

#[test]
fn one_look_serves_several_newcomers_and_passes_over_who_is_busy_by_then() {
    let (limits, clock) = open(1000, None);
    let mut places = Vec::new();
    for _ in 0..1000 {
        places.push(enter(&limits).unwrap());
        clock.advance(MILLISECOND);
    }
    clock.advance(10 * SECOND);
    let first = enter(&limits).unwrap();
    assert!(places[0].gave_way());
    places[1].set_busy();
    places[2].set_idle(clock.now().mono);
    let newcomers: Vec<ConnectionPlace> = (0..500).map_while(|_| enter(&limits).ok()).collect();
    assert_eq!(newcomers.len(), FOUND_MAX - 3, "until the next look");
    let gone = places.iter().filter(|place| place.gave_way()).count();
    assert_eq!(gone, FOUND_MAX - 2);
    assert!(!places[1].gave_way() && !places[2].gave_way() && !first.gave_way());
    assert!(places[3..FOUND_MAX].iter().all(ConnectionPlace::gave_way));
    clock.advance(LOOK_EVERY_MIN);
    assert!(enter(&limits).is_ok());
    assert!(places[FOUND_MAX].gave_way());
}

#[test]
fn a_source_over_its_share_is_refused_and_whoever_gives_way_frees_one() {
    let (limits, clock) = open(3, Some(2));
    let from = |address: &str| limits.place(Some(address.parse().unwrap()), false);
    let one = from("127.0.0.1").unwrap();
    let two = from("127.0.0.1").unwrap();
    clock.advance(2 * SECOND);
    assert_eq!(from("127.0.0.1").err(), Some(PlaceRefused::TooManyFromSource));
    assert!(!one.gave_way(), "its own source does not push it out");
    let _three = from("127.0.0.2").unwrap();
    let _four = from("127.0.0.2").unwrap();
    assert!(one.gave_way() && !two.gave_way());
    assert_eq!(from("127.0.0.2").err(), Some(PlaceRefused::TooManyFromSource));
    assert!(from("127.0.0.1").is_ok(), "one of its two has left");
}

#[test]
fn where_descriptors_are_short_few_leave_at_a_time() {
    let (limits, clock) = open(1000, None);
    let mut places: Vec<ConnectionPlace> = (0..40).map(|_| enter(&limits).unwrap()).collect();
    clock.advance(2 * SECOND);
    let short = || limits.place(None, true);
    let newcomers: Vec<ConnectionPlace> = (0..40).map_while(|_| short().ok()).collect();
    assert_eq!(newcomers.len(), LEAVING_MAX);
    let left = places.iter().position(ConnectionPlace::gave_way).unwrap();
    drop(places.remove(left));
    let _newcomer = short().unwrap();
    assert!(short().is_err());
}

#[test]
fn where_descriptors_are_short_any_door_lets_an_idle_one_go() {
    let clock = Clock::manual(Now { mono: START, unix: START });
    let all = Arc::new(AllDoors::default());
    let open = |door| {
        let (per_source, trusted) = (None, Allow::default());
        let bounds = DoorLimits {
            connections: 9,
            per_source,
            trusted,
            keeps_descriptors_back: true,
            idle_gives_way: true,
        };
        ConnectionLimits::new(door, bounds, &all, clock.clone())
    };
    let (one, other) = (open(Door::Http), open(Door::Throttr));
    drop(open(Door::Proxy));
    let idle = enter(&one).unwrap();
    let busy = enter(&other).unwrap();
    busy.set_busy();
    clock.advance(2 * SECOND);
    let newcomer = other.place(None, true).unwrap();
    assert!(idle.gave_way() && !busy.gave_way());
    let again_at = clock.now().mono + GRAIN;
    assert_eq!(other.place(None, true).err(), Some(PlaceRefused::Short(again_at)));
    assert!(!newcomer.gave_way(), "its own door's connections are too young");
}

#[tokio::test(start_paused = true)]
async fn who_waits_gets_the_next_place() {
    let (limits, _clock) = open(1, None);
    let place = enter(&limits).unwrap();
    place.set_busy();
    let waiting = {
        let (limits, socket) = (limits.clone(), std::io::stdin());
        tokio::spawn(async move { limits.wait_for_place(None, &socket).await.map(drop) })
    };
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished());
    }
    drop(place);
    assert_eq!(waiting.await.unwrap(), Ok(()));
    limits.wait_until_empty().await;
}

#[derive(Clone, Debug)]
enum Step {
    Enter,
    Leave(usize),
    Busy(usize),
    Idle(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Enter),
        1 => (0_usize..8).prop_map(Step::Leave),
        2 => (0_usize..8).prop_map(Step::Busy),
        3 => (0_usize..8).prop_map(Step::Idle),
        3 => (1_u64..15).prop_map(Step::Pass),
    ]
}

/// One connection: since when it has been idle by the slow, obvious way, and its real place.
struct Client {
    idle: Option<Nanos>,
    place: ConnectionPlace,
}

proptest! {
    #[test]
    fn the_same_as_looking_through_all_of_them(
        max in 1_u32..5,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let (limits, clock) = open(max, None);
        let mut clients: Vec<Client> = Vec::new();
        for step in steps {
            let now = clock.now().mono;
            match step {
                Step::Enter => {
                    let mut room = clients.len() < max as usize;
                    if !room {
                        let long = |since: Nanos| now - since >= IDLE_MIN;
                        let old = |client: &&Client| client.idle.is_some_and(long);
                        let oldest = clients.iter().filter(old).map(|client| client.idle).min();
                        room = oldest.is_some();
                        let entered = enter(&limits);
                        prop_assert_eq!(entered.is_ok(), room);
                        if let Some(oldest) = oldest {
                            let at = clients.iter().position(|client| client.place.gave_way());
                            let left = at.map(|at| clients.remove(at));
                            prop_assert_eq!(left.map(|client| client.idle), Some(oldest));
                        }
                        if let Ok(place) = entered {
                            clients.push(Client { idle: Some(now), place });
                        }
                    } else {
                        let place = enter(&limits).unwrap();
                        clients.push(Client { idle: Some(now), place });
                    }
                }
                Step::Leave(which) if which < clients.len() => drop(clients.remove(which)),
                Step::Busy(which) => if let Some(client) = clients.get_mut(which) {
                    client.place.set_busy();
                    client.idle = None;
                },
                Step::Idle(which) => if let Some(client) = clients.get_mut(which) {
                    client.place.set_idle(now);
                    client.idle = Some(now);
                },
                Step::Pass(grains) => clock.advance(grains * GRAIN),
                Step::Leave(_) => {}
            }
            prop_assert!(clients.iter().all(|client| client.place.idle_since() == client.idle));
            prop_assert!(clients.iter().all(|client| !client.place.gave_way()));
            prop_assert_eq!(limits.table.lock().leaving, 0);
        }
    }
}
