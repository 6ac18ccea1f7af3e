//! The client against a real socket whose other end is played by the test.
//!
//! No test waits for time to pass. Where an answer must come, the timeout is an hour; where none
//! may come, it is zero, or the request is given up.

use std::pin::{Pin, pin};

use super::*;

/// The server's end. It says exactly what the test tells it to.
struct Door {
    socket: UdpSocket,
}

impl Door {
    async fn open(address: &str) -> (Door, TextClient) {
        let socket = UdpSocket::bind(address).await.unwrap();
        let client = TextClient::connect(socket.local_addr().unwrap()).await.unwrap();
        (Door { socket }, client.with_timeout(Duration::from_secs(3600)))
    }

    /// The next request: its id, its command, and where it came from.
    async fn next(&self) -> (String, String, SocketAddr) {
        let mut datagram = [0; 2000];
        let (len, from) = self.socket.recv_from(&mut datagram).await.unwrap();
        let text = String::from_utf8(datagram[..len].to_vec()).unwrap();
        let (id, command) = text.split_once(' ').unwrap();
        (id.into(), command.into(), from)
    }

    async fn say(&self, text: &str, to: SocketAddr) {
        self.socket.send_to(text.as_bytes(), to).await.unwrap();
    }

    /// Answers the next request, which must be `command`.
    async fn answer(&self, command: &str, answer: &str) {
        let (id, asked, from) = self.next().await;
        assert_eq!(asked, command);
        self.say(&format!("{id} {answer}"), from).await;
    }
}

const ADDRESSES: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];
const OVER: LineShown = LineShown { over: true, rate: 28.1, limit: 22.0, period_s: 20 };
const UNDER: LineShown = LineShown { over: false, rate: 1.4, ..OVER };

/// Polls a future until the door has received something, and tells what.
async fn until_asked(
    door: &Door,
    asking: Pin<&mut impl Future<Output: std::fmt::Debug>>,
) -> (String, String, SocketAddr) {
    tokio::select! {
        biased;
        answer = asking => panic!("answered before it was asked: {answer:?}"),
        request = door.next() => request,
    }
}

#[tokio::test]
async fn every_command_over_both_families() {
    for address in ADDRESSES {
        let (door, client) = Door::open(address).await;
        let (got, ()) = tokio::join!(
            client.over_limit(b"ws ip=1"),
            door.answer("over_limit ws ip=1", "ok Y 28.1 22.0 20")
        );
        assert_eq!(got, Ok(Reading::Answered(OVER)));
        assert!(got.unwrap().is_over());
        let (got, ()) =
            tokio::join!(client.over_limit(b""), door.answer("over_limit ", "ok N 1.4 22.0 20"));
        assert_eq!(got, Ok(Reading::Answered(UNDER)));
        assert!(!got.unwrap().is_over());
        let (got, ()) = tokio::join!(
            client.get_stats(b"k"),
            door.answer("get_stats k", "n_req=3 n_over=2 last_max_rate=1 key=k")
        );
        assert_eq!(got.unwrap(), Stats { requests: 3, over: 2, last_max_rate: 1 });
        let (got, ()) = tokio::join!(client.get_size(), door.answer("get_size", "size=1/2 keys=1"));
        assert_eq!(got.unwrap(), SizeShown { size: "1/2".into(), keys: 1 });
        let (got, ()) = tokio::join!(client.ping(), door.answer("ping", "pong"));
        got.unwrap();
        let fields = Fields { origin: Some("ws"), ua: Some("x"), ip: None };
        let (got, ()) = tokio::join!(
            client.check_limit(fields),
            door.answer(
                r#"check_limit {"origin":"ws","ua":"x"}"#,
                r#"ok Y 28.1 22.0 20, ["k"], [{"key":"k","over_limit":"ok Y 28.1 22.0 20"}]"#,
            )
        );
        let got = got.unwrap();
        assert_eq!(got, Reading::Answered(vec![Checked { key: "k".into(), line: OVER }]));
        assert!(got.is_over());
    }
}

#[tokio::test]
async fn many_open_requests_answered_in_any_order() {
    let (door, client) = Door::open(ADDRESSES[0]).await;
    let asking: Vec<_> = (0..100)
        .map(|n: u32| {
            let client = client.clone();
            tokio::spawn(async move { client.over_limit(format!("key {n}").as_bytes()).await })
        })
        .collect();
    let mut requests = vec![];
    for _ in 0..asking.len() {
        requests.push(door.next().await);
    }
    for (id, command, from) in requests.iter().rev() {
        let n = command.strip_prefix("over_limit key ").unwrap();
        door.say(&format!("{id} ok N {n}.0 22.0 20"), *from).await;
    }
    for (n, asked) in asking.into_iter().enumerate() {
        let line = LineShown { rate: n as f64, ..UNDER };
        assert_eq!(asked.await.unwrap(), Ok(Reading::Answered(line)));
    }
    assert_eq!(client.connection.shared.open.len(), 0);
}

#[tokio::test]
async fn replies_that_match_no_open_request_are_ignored() {
    let (door, client) = Door::open(ADDRESSES[0]).await;
    let mut asking = pin!(client.over_limit(b"k"));
    let (id, _, from) = until_asked(&door, asking.as_mut()).await;
    let wrong = id.parse::<u64>().unwrap() + 1;
    for stray in [
        "ok Y 28.1 22.0 20".to_string(),
        format!("{wrong} ok Y 28.1 22.0 20"),
        format!("0{id} ok Y 28.1 22.0 20"),
        format!("{id}{} ok Y 28.1 22.0 20", "0".repeat(30)),
        format!("{id}  ok Y 28.1 22.0 20"),
        format!("{id} ok Y 28.1 22.0 20\n"),
        format!("{id} pong"),
        format!("{id} n_req=3 n_over=2 last_max_rate=1 key=k"),
        format!("{id} {}", "x".repeat(CHECK_REPLY_BYTES_MAX)),
        String::new(),
    ] {
        door.say(&stray, from).await;
    }
    door.say(&format!("{id} ok N 1.4 22.0 20"), from).await;
    assert_eq!(asking.await, Ok(Reading::Answered(UNDER)));
}

#[tokio::test]
async fn only_the_server_is_heard() {
    let (door, client) = Door::open(ADDRESSES[0]).await;
    let (other, _) = Door::open(ADDRESSES[0]).await;
    let mut asking = pin!(client.over_limit(b"k"));
    let (id, _, from) = until_asked(&door, asking.as_mut()).await;
    other.say(&format!("{id} ok Y 28.1 22.0 20"), from).await;
    door.say(&format!("{id} ok N 1.4 22.0 20"), from).await;
    assert_eq!(asking.await, Ok(Reading::Answered(UNDER)));
}

#[tokio::test]
async fn without_an_answer_a_use_is_allowed_and_late_replies_are_ignored() {
    let (door, client) = Door::open(ADDRESSES[0]).await;
    // After one exchange the socket is known to be writable, so that a request leaves at once.
    let (pong, ()) = tokio::join!(client.ping(), door.answer("ping", "pong"));
    pong.unwrap();
    let hurried = client.with_timeout(Duration::ZERO);
    let reading = hurried.over_limit(b"k").await.unwrap();
    assert_eq!(reading, Reading::Assumed);
    assert!(!reading.is_over());
    let (late, command, from) = door.next().await;
    assert_eq!(command, "over_limit k");
    assert_eq!(client.connection.shared.open.len(), 0);
    door.say(&format!("{late} ok Y 28.1 22.0 20"), from).await;

    let (got, ()) =
        tokio::join!(client.over_limit(b"k"), door.answer("over_limit k", "ok N 1.4 22.0 20"));
    assert_eq!(got, Ok(Reading::Answered(UNDER)));

    let checked = hurried.check_limit(Fields::default()).await.unwrap();
    assert_eq!(checked, Reading::Assumed);
    assert!(!checked.is_over());
    assert!(matches!(hurried.get_stats(b"k").await, Err(TextError::TimedOut)));
    assert!(matches!(hurried.get_size().await, Err(TextError::TimedOut)));
    assert!(matches!(hurried.ping().await, Err(TextError::TimedOut)));
}

#[tokio::test]
async fn a_request_given_up_is_closed() {
    let (door, client) = Door::open(ADDRESSES[0]).await;
    let (id, _, from) = {
        let mut asking = pin!(client.over_limit(b"k"));
        let request = until_asked(&door, asking.as_mut()).await;
        assert_eq!(client.connection.shared.open.len(), 1);
        request
    };
    assert_eq!(client.connection.shared.open.len(), 0);
    door.say(&format!("{id} ok Y 28.1 22.0 20"), from).await;
    let (pong, ()) = tokio::join!(client.ping(), door.answer("ping", "pong"));
    pong.unwrap();
}

#[tokio::test]
async fn no_more_requests_are_open_than_the_bound() {
    let (door, client) = Door::open(ADDRESSES[0]).await;
    let places = &client.connection.places;
    assert_eq!(places.available_permits(), OUTSTANDING_MAX);
    let _all_but_one = places.acquire_many(OUTSTANDING_MAX as u32 - 1).await.unwrap();
    let mut first = Box::pin(client.over_limit(b"first"));
    let (_, command, _) = until_asked(&door, first.as_mut()).await;
    assert_eq!(command, "over_limit first");
    // The one too many waits for a place within its own timeout, and is not sent.
    let hurried = client.with_timeout(Duration::ZERO);
    assert_eq!(hurried.over_limit(b"too many").await, Ok(Reading::Assumed));
    assert_eq!(client.connection.shared.open.len(), 1);
    // With more time it gets the place that becomes free.
    let second = client.ping();
    drop(first);
    let (pong, ()) = tokio::join!(second, door.answer("ping", "pong"));
    pong.unwrap();
}

#[tokio::test]
async fn keys_that_the_protocol_cannot_carry() {
    let (_door, client) = Door::open(ADDRESSES[0]).await;
    assert_eq!(client.over_limit(b"a\nb").await, Err(Unwritable::Newline));
    assert_eq!(client.over_limit(&[b'k'; 1000]).await, Err(Unwritable::TooLong));
    let stats = client.get_stats(b"\n").await;
    assert!(matches!(stats, Err(TextError::Unwritable(Unwritable::Newline))));
}

/// Refusals by the host (no such port) neither end the client nor hide the server's return.
#[tokio::test]
async fn a_server_that_comes_back() {
    let (door, client) = Door::open(ADDRESSES[0]).await;
    let (pong, ()) = tokio::join!(client.ping(), door.answer("ping", "pong"));
    pong.unwrap();
    let address = door.socket.local_addr().unwrap();
    drop(door);
    let hurried = client.with_timeout(Duration::ZERO);
    for _ in 0..10 {
        assert_eq!(hurried.over_limit(b"k").await, Ok(Reading::Assumed));
    }
    let door = Door { socket: UdpSocket::bind(address).await.unwrap() };
    let (pong, ()) = tokio::join!(client.ping(), door.answer("ping", "pong"));
    pong.unwrap();
}

#[tokio::test]
async fn dropping_the_last_clone_closes_the_socket() {
    let (_door, client) = Door::open(ADDRESSES[0]).await;
    let shared = Arc::downgrade(&client.connection.shared);
    let clone = client.clone();
    drop(client);
    assert!(shared.upgrade().is_some());
    drop(clone);
    // The reader ends at its next turn.
    while shared.upgrade().is_some() {
        tokio::task::yield_now().await;
    }
}
