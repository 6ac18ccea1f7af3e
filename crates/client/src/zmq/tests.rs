//! Two sockets that talk, that are bounded, and that find each other again.

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

fn quick() -> Options {
    let reconnect = (Duration::from_millis(5), Duration::from_millis(20));
    Options { reconnect, ..Options::default() }
}

async fn until(events: &mut PeerEvents, wanted: &PeerEvent) {
    loop {
        let event = soon(events.next()).await.expect("the socket is closed");
        if event == *wanted {
            return;
        }
    }
}

fn frames(batch: &Batch, index: usize) -> Vec<Vec<u8>> {
    let mut room = [&b""[..]; 8];
    batch.frames(index, &mut room).iter().map(|frame| frame.to_vec()).collect()
}

fn send(publisher: &PubSocket, frames: &[&[u8]]) -> Sent {
    publisher.send(frames.iter().copied())
}

#[tokio::test]
async fn a_message_arrives_with_its_frames() {
    let subscriber = SubSocket::new(&quick());
    subscriber.subscribe(b"web\0").await.unwrap();
    let address = subscriber.bind("tcp://127.0.0.1:0").await.unwrap();
    assert_ne!(address.port(), 0);
    let publisher = PubSocket::new(&quick());
    let mut events = publisher.events();
    publisher.connect(&format!("tcp://{address}")).await.unwrap();
    until(&mut events, &PeerEvent::Subscribed).await;
    let long = [7; 500];
    assert_eq!(send(&publisher, &[b"other\0", b"not", b"asked"]), Sent::Queued);
    assert_eq!(send(&publisher, &[b"web\0", b"", b"\0\xff", &long]), Sent::Queued);
    let mut batch = Batch::new();
    assert_eq!(soon(subscriber.receive(&mut batch, 10)).await.unwrap(), 1);
    let expected = [b"web\0".to_vec(), Vec::new(), b"\0\xff".to_vec(), long.to_vec()];
    assert_eq!(frames(&batch, 0), expected);
    // No more frames are handed out than there is room for.
    let mut room = [&b""[..]; 2];
    assert_eq!(batch.frames(0, &mut room), [&b"web\0"[..], b""]);
}

#[tokio::test]
async fn what_is_there_is_taken_at_once_and_no_more_than_asked() {
    let publisher = PubSocket::new(&quick());
    let address = publisher.bind("tcp://127.0.0.1:0").await.unwrap();
    let subscriber = SubSocket::new(&quick());
    subscriber.subscribe(b"").await.unwrap();
    let mut events = publisher.events();
    subscriber.connect(&format!("tcp://{address}")).await.unwrap();
    until(&mut events, &PeerEvent::Subscribed).await;
    for number in 0..100_u8 {
        assert_eq!(send(&publisher, &[b"web\0", &[number]]), Sent::Queued);
    }
    let mut batch = Batch::new();
    let mut next = 0;
    while next < 100 {
        let count = soon(subscriber.receive(&mut batch, 7)).await.unwrap();
        assert!((1..=7).contains(&count) && batch.len() == count && !batch.is_empty());
        for index in 0..count {
            assert_eq!(frames(&batch, index), [b"web\0".to_vec(), vec![next]]);
            next += 1;
        }
    }
}

#[tokio::test]
async fn a_full_queue_drops_and_says_so() {
    let publisher = PubSocket::new(&Options { hwm: 8, ..quick() });
    let address = publisher.bind("tcp://127.0.0.1:0").await.unwrap();
    // Without a subscriber there is no queue, and nothing is lost.
    assert!((0..100).all(|_| send(&publisher, &[b"web\0"]) == Sent::Queued));
    let subscriber = SubSocket::new(&quick());
    subscriber.subscribe(b"").await.unwrap();
    let mut events = publisher.events();
    subscriber.connect(&format!("tcp://{address}")).await.unwrap();
    until(&mut events, &PeerEvent::Subscribed).await;
    let sent = (0..100).filter(|_| send(&publisher, &[b"web\0"]) == Sent::Queued).count();
    assert!((8..100).contains(&sent), "{sent}");
}

#[tokio::test]
async fn both_sides_come_back_without_help() {
    let subscriber = SubSocket::new(&quick());
    subscriber.subscribe(b"").await.unwrap();
    let address = subscriber.bind("tcp://127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{address}");
    let publisher = PubSocket::new(&quick());
    let mut events = publisher.events();
    publisher.connect(&endpoint).await.unwrap();
    until(&mut events, &PeerEvent::Subscribed).await;
    subscriber.close().await;
    until(&mut events, &PeerEvent::Lost).await;
    for _ in 0..3 {
        let subscriber = SubSocket::new(&quick());
        subscriber.subscribe(b"").await.unwrap();
        soon(async {
            while subscriber.bind(&endpoint).await.is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        until(&mut events, &PeerEvent::Subscribed).await;
        assert_eq!(send(&publisher, &[b"web\0", b"again"]), Sent::Queued);
        let mut batch = Batch::new();
        assert_eq!(soon(subscriber.receive(&mut batch, 1)).await.unwrap(), 1);
        assert_eq!(frames(&batch, 0)[1], b"again");
        subscriber.close().await;
        until(&mut events, &PeerEvent::Lost).await;
    }
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_its_connection_alone() {
    let subscriber = SubSocket::new(&Options { message_bytes_max: 1_000, ..quick() });
    subscriber.subscribe(b"").await.unwrap();
    let address = subscriber.bind("tcp://127.0.0.1:0").await.unwrap();
    let mut seen = subscriber.events();
    let publisher = PubSocket::new(&quick());
    let mut events = publisher.events();
    publisher.connect(&format!("tcp://{address}")).await.unwrap();
    until(&mut events, &PeerEvent::Subscribed).await;
    assert_eq!(send(&publisher, &[b"web\0", &[0; 100_000]]), Sent::Queued);
    until(&mut seen, &PeerEvent::TooLarge).await;
    until(&mut events, &PeerEvent::Subscribed).await;
    assert_eq!(send(&publisher, &[b"web\0", &[0; 900]]), Sent::Queued);
    let mut batch = Batch::new();
    assert_eq!(soon(subscriber.receive(&mut batch, 1)).await.unwrap(), 1);
    assert_eq!(frames(&batch, 0)[1], [0; 900]);
}

#[tokio::test]
async fn who_is_not_admitted_is_heard_as_soon_as_he_is() {
    let open = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let admission: AddressFilter = Arc::new({
        let open = open.clone();
        move |address: IpAddr| {
            address.is_loopback() && open.load(std::sync::atomic::Ordering::SeqCst)
        }
    });
    let subscriber = SubSocket::new(&Options { admission: Some(admission), ..quick() });
    subscriber.subscribe(b"").await.unwrap();
    let address = subscriber.bind("tcp://127.0.0.1:0").await.unwrap();
    let mut seen = subscriber.events();
    let publisher = PubSocket::new(&quick());
    let mut events = publisher.events();
    publisher.connect(&format!("tcp://{address}")).await.unwrap();
    for _ in 0..3 {
        until(&mut seen, &PeerEvent::NotAdmitted).await;
    }
    open.store(true, std::sync::atomic::Ordering::SeqCst);
    until(&mut events, &PeerEvent::Subscribed).await;
    assert_eq!(send(&publisher, &[b"web\0"]), Sent::Queued);
    let mut batch = Batch::new();
    assert_eq!(soon(subscriber.receive(&mut batch, 1)).await.unwrap(), 1);
}

#[tokio::test]
async fn endpoints_are_checked_and_ports_are_not_shared() {
    let publisher = PubSocket::new(&quick());
    for wrong in ["", "tcp://", "tcp://127.0.0.1", "127.0.0.1:1", "ipc://x", "inproc://x"] {
        let error = publisher.bind(wrong).await.unwrap_err();
        assert!(matches!(error, Error::Endpoint(_)), "{wrong}: {error}");
        assert!(matches!(publisher.connect(wrong).await, Err(Error::Endpoint(_))), "{wrong}");
    }
    let address = publisher.bind("tcp://127.0.0.1:0").await.unwrap();
    let other = PubSocket::new(&quick());
    let taken = other.bind(&format!("tcp://{address}")).await.unwrap_err();
    let in_use = std::io::ErrorKind::AddrInUse;
    assert!(matches!(&taken, Error::Bind(error) if error.kind() == in_use), "{taken}");
}
