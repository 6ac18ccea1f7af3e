//! Publish and subscribe between connections, which live in different loops.

use tidegate_wire::throttr::Request;

use super::{Client, DOOR, metric, until};
use crate::program::Program;

fn hex(id: [u8; 16]) -> Vec<u8> {
    id.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

#[test]
fn events_reach_every_subscriber_and_nobody_else() {
    let program = Program::serve(DOOR);
    // So many that every loop has some.
    let mut subscribers: Vec<_> = (0..8).map(|_| Client::new(&program)).collect();
    for client in &mut subscribers {
        assert!(client.does(&Request::Subscribe { channel: b"news" }));
    }
    let mut publisher = Client::new(&program);
    for payload in [&b"one"[..], b"", b"three"] {
        assert!(publisher.does(&Request::Publish { channel: b"news", payload }));
        for client in &mut subscribers {
            assert_eq!(client.event(), (b"news".to_vec(), payload.to_vec()));
        }
    }
    assert!(subscribers[0].does(&Request::Unsubscribe { channel: b"news" }));
    // The one that publishes has its own event first, then the status.
    let publish = Request::Publish { channel: b"news", payload: b"mine" };
    subscribers[1].send(&super::written(&[publish]));
    assert_eq!(subscribers[1].event(), (b"news".to_vec(), b"mine".to_vec()));
    assert_eq!(subscribers[1].read(1), [1]);
    for client in &mut subscribers[2..] {
        assert_eq!(client.event().1, b"mine");
    }
    subscribers[0].id();
    assert!(!publisher.does(&Request::Publish { channel: b"nobody", payload: b"x" }));
    drop(subscribers);
    // When the last one has left, nobody is subscribed any more.
    until(|| !publisher.does(&Request::Publish { channel: b"news", payload: b"x" }));
}

#[test]
fn a_star_reaches_all_and_an_id_reaches_one() {
    let program = Program::serve(DOOR);
    let mut clients: Vec<_> = (0..6).map(|_| Client::new(&program)).collect();
    let ids: Vec<_> = clients.iter_mut().map(Client::id).collect();
    let (publisher, others) = clients.split_first_mut().expect("six");
    publisher.send(&super::written(&[Request::Publish { channel: b"*", payload: b"all" }]));
    assert_eq!(publisher.event(), (b"*".to_vec(), b"all".to_vec()));
    assert_eq!(publisher.read(1), [1]);
    for client in &mut *others {
        assert_eq!(client.event(), (b"*".to_vec(), b"all".to_vec()));
    }
    let own = hex(ids[3]);
    assert!(publisher.does(&Request::Publish { channel: &own, payload: b"you" }));
    assert_eq!(others[2].event(), (own.clone(), b"you".to_vec()));
    // Nobody else has something to read before the answer to the next question.
    for client in &mut *others {
        client.id();
    }
    assert!(others[2].does(&Request::Unsubscribe { channel: &own }));
    assert!(!publisher.does(&Request::Publish { channel: &own, payload: b"you" }));
}

#[test]
fn replies_are_not_interrupted_by_events() {
    const ROUNDS: usize = 300;
    let program = Program::serve(DOOR);
    let mut subscriber = Client::new(&program);
    let id = subscriber.id();
    let mut publisher = Client::new(&program);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                let payload = round.to_le_bytes();
                publisher.does(&Request::Publish { channel: &hex(id), payload: &payload });
            }
        });
        let mut heard = 0_usize;
        for _ in 0..ROUNDS {
            subscriber.send(&super::written(&[Request::Whoami, Request::Connections]));
            let mut answers = 0;
            while answers < 2 {
                let first = subscriber.read(1)[0];
                if first == 0x19 {
                    let head = subscriber.read(3);
                    subscriber.read(usize::from(head[0]));
                    assert_eq!(subscriber.read(8), heard.to_le_bytes(), "in order");
                    heard += 1;
                    continue;
                }
                assert_eq!(first, 1);
                match answers {
                    0 => assert_eq!(subscriber.read(16), id),
                    _ => {
                        let head = subscriber.read(24);
                        subscriber.read(237 * super::u64_at(&head, 16) as usize);
                    }
                }
                answers += 1;
            }
        }
        while heard < ROUNDS {
            assert_eq!(subscriber.event().1, heard.to_le_bytes());
            heard += 1;
        }
    });
}

#[test]
fn a_slow_subscriber_loses_events_and_that_is_counted() {
    const EVENTS: u64 = 20_000;
    let program = Program::serve(DOOR);
    let mut slow = Client::new(&program);
    let mut quick = Client::new(&program);
    for client in [&mut slow, &mut quick] {
        assert!(client.does(&Request::Subscribe { channel: b"flood" }));
    }
    let mut publisher = Client::new(&program);
    let payload = [7; 5_000];
    // The publisher is never held up, though the slow one reads nothing.
    for _ in 0..EVENTS {
        assert!(publisher.does(&Request::Publish { channel: b"flood", payload: &payload }));
        // Those that read lose nothing.
        assert_eq!(quick.event().1, payload);
    }
    let lost = || metric(&program, "tidegate_throttr_events_lost_total");
    let delivered = || metric(&program, "tidegate_throttr_events_delivered_total");
    until(|| lost() + delivered() == 2 * EVENTS);
    let lost = lost();
    assert!(lost > 0 && lost < EVENTS, "{lost} of {EVENTS} were lost");
    // What was delivered is whole, and comes when it reads at last.
    for _ in 0..EVENTS - lost {
        assert_eq!(slow.event(), (b"flood".to_vec(), payload.to_vec()));
    }
    slow.id();
}

#[test]
fn an_event_that_a_value_size_cannot_say_is_lost_there() {
    let program = Program::serve(
        "[[throttr]]\nlisten = '127.0.0.1:0'\nvalue_size = 8\n\
         [[throttr]]\nlisten = '127.0.0.1:0'\n[http]\nlisten = '127.0.0.1:0'\n",
    );
    let small_door = program.listening()[0].1;
    let mut small = Client(std::net::TcpStream::connect(small_door).expect("open"));
    let mut publisher = Client::new(&program);
    small.send(b"\x11\x01c");
    assert_eq!(small.read(1), [1]);
    assert!(publisher.does(&Request::Publish { channel: b"c", payload: &[1; 256] }));
    assert!(publisher.does(&Request::Publish { channel: b"c", payload: &[2; 255] }));
    assert_eq!(small.read(4), b"\x19\x01\xffc");
    assert_eq!(small.read(255), [2; 255]);
    assert_eq!(metric(&program, "tidegate_throttr_events_lost_total"), 1);
}

#[test]
fn subscriptions_are_bounded() {
    let program = Program::serve(DOOR);
    let mut client = Client::new(&program);
    let names: Vec<[u8; 2]> = (0..1023u16).map(u16::to_le_bytes).collect();
    let (within, beyond) = names.split_at(1022);
    for name in within {
        assert!(client.does(&Request::Subscribe { channel: name }));
    }
    assert!(!client.does(&Request::Subscribe { channel: &beyond[0] }));
    assert_eq!(super::bad_input(&program, "too_many_subscriptions"), 1);
    assert_eq!(metric(&program, "tidegate_throttr_subscriptions"), 1024);
    drop(client);
    until(|| metric(&program, "tidegate_throttr_subscriptions") == 0);
    assert_eq!(metric(&program, "tidegate_throttr_channels"), 0);
}
