//! Subscriptions: events between replies, slow subscribers, and subscribers that leave.

use tidegate_wire::throttr::reply;

use super::super::events::SUBSCRIPTIONS_MAX;
use super::*;

fn yes(out: &mut Vec<u8>) {
    reply::status(out, true);
}

fn push(out: &mut Vec<u8>, channel: &[u8], payload: &[u8]) {
    reply::event(out, SIZE, channel, payload).unwrap();
}

async fn subscribe(peer: &mut Peer, client: &ThrottrClient, channel: &[u8]) -> ChannelSubscription {
    let request = Request::Subscribe { channel };
    let (got, ()) = tokio::join!(client.subscribe(channel), peer.answer(request, yes));
    got.unwrap()
}

#[tokio::test]
async fn events_between_replies() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    let mut news = subscribe(&mut peer, &client, b"news").await;
    // Already subscribed is subscribed.
    let request = Request::Subscribe { channel: b"*" };
    let no = |out: &mut Vec<u8>| reply::status(out, false);
    let (all, ()) = tokio::join!(client.subscribe(b"*"), peer.answer(request, no));
    let mut all = all.unwrap();

    let publish = Request::Publish { channel: b"news", payload: b"hello" };
    let write = |out: &mut Vec<u8>| {
        push(out, b"news", b"hello");
        push(out, b"unknown", b"ignored");
        push(out, b"*", b"");
        reply::status(out, true);
        push(out, b"news", b"\x01\x00\x19");
    };
    let (got, ()) = tokio::join!(client.publish(b"news", b"hello"), peer.answer(publish, write));
    assert!(got.unwrap());
    let expected = |channel: &[u8], payload: &[u8]| {
        Some(ChannelEvent { channel: channel.into(), payload: payload.into() })
    };
    assert_eq!(news.next().await, expected(b"news", b"hello"));
    assert_eq!(news.next().await, expected(b"news", b"\x01\x00\x19"));
    assert_eq!(all.next().await, expected(b"*", b""));
    assert_eq!((news.lost(), news.interruptions()), (0, 0));

    // Events come without anything being asked, too.
    let mut out = Vec::new();
    push(&mut out, b"news", b"late");
    peer.say(&out).await;
    assert_eq!(news.next().await, expected(b"news", b"late"));
}

#[tokio::test]
async fn slow_listeners_lose_events_and_count_them() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(Settings { events_max: 2, ..settings(SIZE) }).await;
    let mut slow = subscribe(&mut peer, &client, b"c").await;
    let write = |out: &mut Vec<u8>| {
        (0..5).for_each(|n| push(out, b"c", &[n]));
        reply::status(out, true);
    };
    let (got, ()) =
        tokio::join!(client.purge(b"k"), peer.answer(Request::Purge { key: b"k" }, write));
    assert!(got.unwrap());
    assert_eq!(slow.lost(), 3);
    assert_eq!(&*slow.next().await.unwrap().payload, [0]);
    assert_eq!(&*slow.next().await.unwrap().payload, [1]);
}

#[tokio::test]
async fn the_last_listener_unsubscribes() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    let first = subscribe(&mut peer, &client, b"c").await;
    let mut second = subscribe(&mut peer, &client, b"c").await;
    drop(first);
    let write = |out: &mut Vec<u8>| {
        push(out, b"c", b"x");
        reply::status(out, true);
    };
    let (got, ()) =
        tokio::join!(client.purge(b"k"), peer.answer(Request::Purge { key: b"k" }, write));
    assert!(got.unwrap());
    assert_eq!(&*second.next().await.unwrap().payload, b"x");
    drop(second);
    peer.answer(Request::Unsubscribe { channel: b"c" }, yes).await;
    // The connection outlives the client for a subscription's sake, and no longer.
    let last = subscribe(&mut peer, &client, b"d").await;
    drop(client);
    let mut out = Vec::new();
    push(&mut out, b"d", b"y");
    peer.say(&out).await;
    let mut last = last;
    assert_eq!(&*last.next().await.unwrap().payload, b"y");
    drop(last);
    while peer.read_some().await {}
}

#[tokio::test]
async fn too_many_subscriptions() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    let mut held = Vec::new();
    for _ in 0..SUBSCRIPTIONS_MAX {
        held.push(subscribe(&mut peer, &client, b"c").await);
    }
    assert!(matches!(client.subscribe(b"c").await, Err(ThrottrError::TooManySubscriptions)));
    held.pop();
    held.push(subscribe(&mut peer, &client, b"d").await);
    let refused = client.subscribe(&[b'c'; 256]).await;
    assert!(matches!(refused, Err(ThrottrError::Unwritable(Unwritable::KeyTooLong))));
}
