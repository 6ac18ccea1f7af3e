//! Connections that are lost, made again, or cannot be made.

use tidegate_wire::throttr::reply;

use super::*;

fn iam(id: u8) -> impl FnOnce(&mut Vec<u8>) {
    move |out| reply::whoami(out, &[id; ID_BYTES])
}

#[tokio::test]
async fn a_lost_connection_is_made_again() {
    for door in [Door::tcp().await, Door::unix()] {
        let (mut peer, client) = door.connect(settings(SIZE)).await;
        let request = Request::Subscribe { channel: b"c" };
        let yes = |out: &mut Vec<u8>| reply::status(out, true);
        let (news, ()) = tokio::join!(client.subscribe(b"c"), peer.answer(request, yes));
        let mut news = news.unwrap();

        // The first is answered, the second is not; neither is sent again.
        let (got, ()) =
            tokio::join!(async { tokio::join!(client.whoami(), client.purge(b"k")) }, async {
                peer.hear(Request::Whoami).await;
                peer.hear(Request::Purge { key: b"k" }).await;
                let mut out = Vec::new();
                iam(1)(&mut out);
                peer.say(&out).await;
                drop(peer);
            });
        assert_eq!(got.0.unwrap(), [1; ID_BYTES]);
        assert!(
            matches!(got.1, Err(ThrottrError::Lost(Loss::Closed | Loss::Io(_)))),
            "{:?}",
            got.1
        );

        let mut peer = door.accept(SIZE).await;
        peer.answer(request, yes).await;
        let (got, ()) = tokio::join!(client.whoami(), peer.answer(Request::Whoami, iam(2)));
        assert_eq!(got.unwrap(), [2; ID_BYTES]);
        let mut out = Vec::new();
        reply::event(&mut out, SIZE, b"c", b"x").unwrap();
        peer.say(&out).await;
        assert_eq!(&*news.next().await.unwrap().payload, b"x");
        assert_eq!((news.lost(), news.interruptions()), (0, 1));
    }
}

#[tokio::test]
async fn without_a_server_requests_fail_at_once() {
    let door = Door::unix();
    let (peer, client) = door.connect(settings(SIZE)).await;
    let folder = door.close();
    drop(peer);
    // What was sent before the loss was noticed is lost; what comes later is refused.
    let error = loop {
        match client.whoami().await {
            Err(ThrottrError::Lost(_)) => {}
            other => break other.unwrap_err(),
        }
    };
    assert!(matches!(error, ThrottrError::Unreachable(_)), "{error}");
    assert!(error.to_string().starts_with("cannot reach the Throttr door"));
    assert!(matches!(client.subscribe(b"c").await, Err(ThrottrError::Unreachable(_))));

    let door = Door::reopen(folder);
    let mut peer = door.accept(SIZE).await;
    let asks = async {
        loop {
            match client.whoami().await {
                // The client rests a little longer, or is just being told.
                Err(ThrottrError::Unreachable(_)) => tokio::task::yield_now().await,
                other => break other,
            }
        }
    };
    let (got, ()) = tokio::join!(asks, peer.answer(Request::Whoami, iam(3)));
    assert_eq!(got.unwrap(), [3; ID_BYTES]);
}

#[tokio::test]
async fn a_first_connection_that_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nobody");
    let refused = ThrottrClient::connect_unix(&nowhere, settings(SIZE)).await;
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::NotFound);
    let refused = ThrottrClient::connect("no port", SIZE).await;
    assert!(refused.is_err());
}

/// A server that takes a connection and says nothing.
#[tokio::test]
async fn a_server_that_stops_answering() {
    let door = Door::tcp().await;
    let limits = Settings { stall_timeout: Duration::from_secs(10), ..settings(SIZE) };
    let (mut peer, client) = door.connect(limits).await;
    // Time stands still but for this: with nothing else to do, it jumps to the next deadline.
    tokio::time::pause();
    let (got, ()) = tokio::join!(client.whoami(), peer.hear(Request::Whoami));
    assert!(matches!(got, Err(ThrottrError::Lost(Loss::Stalled))), "{got:?}");
    tokio::time::resume();
    let mut peer = door.accept(SIZE).await;
    let (got, ()) = tokio::join!(client.whoami(), peer.answer(Request::Whoami, iam(4)));
    assert_eq!(got.unwrap(), [4; ID_BYTES]);
}

#[tokio::test]
async fn a_server_that_speaks_something_else() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    let (got, ()) = tokio::join!(client.whoami(), async {
        peer.hear(Request::Whoami).await;
        peer.say(b"HTTP/1.1 400 Bad Request").await;
    });
    let Err(ThrottrError::Lost(loss)) = got else { panic!("{got:?}") };
    assert_eq!(
        loss.to_string(),
        "0x48 is not the status of such a reply (is the value size right?)"
    );
    let peer = door.accept(SIZE).await;
    // What nobody asked for ends the connection too.
    peer.say(&[1]).await;
    let mut peer = door.accept(SIZE).await;
    let (got, ()) = tokio::join!(client.whoami(), peer.answer(Request::Whoami, iam(5)));
    assert_eq!(got.unwrap(), [5; ID_BYTES]);
}

#[tokio::test]
async fn a_timeout_ends_the_wait() {
    let door = Door::tcp().await;
    let (mut peer, client) = door.connect(settings(SIZE)).await;
    let client = client.with_timeout(Duration::from_secs(5));
    assert_eq!(client.settings().timeout, Duration::from_secs(5));
    tokio::time::pause();
    let (got, ()) = tokio::join!(client.whoami(), peer.hear(Request::Whoami));
    assert!(matches!(got, Err(ThrottrError::TimedOut)), "{got:?}");
}

#[test]
fn a_runtime_that_has_ended() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (peer, client) = first.block_on(async { Door::tcp().await.connect(settings(SIZE)).await });
    drop(peer);
    drop(first);
    let got = runtime().block_on(client.whoami());
    assert!(matches!(got, Err(ThrottrError::Ended)), "{got:?}");
}
