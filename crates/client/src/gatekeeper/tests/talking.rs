//! The way to a master, byte by byte: handshakes, topics, signs of life.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use tidegate_wire::zmtp::{GREETING_BYTES, greeting};

use super::*;

/// A master played by hand on a blocking thread, and what it found.
async fn played<R: Send + 'static>(
    play: impl FnOnce(&mut TcpStream) -> R + Send + 'static,
    domains: &[&str],
    meanwhile: impl AsyncFnOnce(Gatekeeper),
) -> R {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let accounting = door.local_addr().unwrap();
    let playing = tokio::task::spawn_blocking(move || {
        let (mut stream, _) = door.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut theirs = [0; GREETING_BYTES];
        stream.read_exact(&mut theirs).unwrap();
        assert_eq!(theirs, greeting());
        stream.write_all(&greeting()).unwrap();
        let ready = b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03PUB\x08Identity\0\0\0\0";
        let mut theirs = vec![0; ready.len()];
        stream.read_exact(&mut theirs).unwrap();
        assert_eq!(theirs, ready);
        stream.write_all(b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04XSUB").unwrap();
        play(&mut stream)
    });
    let (config, _) = config([of((accounting, nowhere().1), domains)]);
    meanwhile(Gatekeeper::connect(&config).unwrap()).await;
    soon(playing).await.unwrap()
}

fn read(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut room = vec![0; bytes];
    stream.read_exact(&mut room).unwrap();
    room
}

const RESYNC: &[u8] = b"\x01\x04api\0\0\x06RESYNC";

#[tokio::test]
async fn messages_are_frames_and_come_in_one_piece() {
    let play = |stream: &mut TcpStream| {
        // In pieces, and by a command, as ZMTP 3.1 has it.
        for piece in [&b"\x04"[..], b"\x0a\x09SUBS", b"CRIBE"] {
            stream.write_all(piece).unwrap();
        }
        let question = read(stream, RESYNC.len());
        assert_eq!(question, RESYNC);
        let expected = b"\x01\x04api\0\x01\x08ACCEPTED\x01\x02me\x01\x0d1700000000000\x01\0\0\0";
        let mut found = Vec::new();
        while !found.ends_with(expected) {
            found.extend(read(stream, 1));
        }
        // Before it there is nothing but the question again.
        let before = &found[..found.len() - expected.len()];
        assert!(before.chunks(RESYNC.len()).all(|chunk| chunk == RESYNC));
    };
    played(play, &["api"], async |gatekeeper| {
        let api = gatekeeper.domain("api").unwrap();
        until(|| gatekeeper.stats().sent >= 1).await;
        assert!(gatekeeper.decide_in(api, b"me").is_accept());
        until(|| gatekeeper.stats().sent >= 2).await;
    })
    .await;
}

#[tokio::test]
async fn only_what_is_subscribed_to_is_sent() {
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let play = move |stream: &mut TcpStream| {
        stream.write_all(b"\0\x03\x01we\0\x03\x01ap\0\x03\0we").unwrap();
        may_go_on.recv().unwrap();
        stream.write_all(b"\0\x03\0ap").unwrap();
        may_go_on.recv().unwrap();
    };
    played(play, &["api", "web"], async |gatekeeper| {
        let [api, web] = ["api", "web"].map(|name| gatekeeper.domain(name).unwrap());
        soon(gatekeeper.heard(api)).await;
        assert!(gatekeeper.decide_in(api, b"me").is_accept());
        assert!(gatekeeper.decide_in(web, b"me").is_accept());
        assert_eq!(gatekeeper.stats().dropped_no_master, 1);
        go_on.send(()).unwrap();
        until(|| !gatekeeper.shared.core.domains[0].heard.load(Relaxed)).await;
        assert!(gatekeeper.decide_in(api, b"me").is_accept());
        assert_eq!(gatekeeper.stats().dropped_no_master, 2);
        go_on.send(()).unwrap();
    })
    .await;
}

#[tokio::test]
async fn signs_of_life_are_given() {
    let play = |stream: &mut TcpStream| {
        stream.write_all(b"\x04\x0b\x04PING\0\x64life\x04\x07\x04PING\0\x64").unwrap();
        let pongs = b"\x04\x09\x04PONGlife\x04\x05\x04PONG";
        assert_eq!(read(stream, pongs.len()), pongs);
    };
    played(play, &["api"], async |gatekeeper| {
        until(|| gatekeeper.stats().connects == 1).await;
    })
    .await;
}

#[tokio::test]
async fn endless_frames_end_the_connection() {
    for endless in
        [&b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"[..], b"\x80", b"\x02\0\0\0\0\0\0\x20\0"]
    {
        let play = move |stream: &mut TcpStream| {
            stream.write_all(endless).unwrap();
            let mut rest = Vec::new();
            // The other side closes, perhaps with a reset.
            let _ = stream.read_to_end(&mut rest);
            rest
        };
        let rest = played(play, &["api"], async |_gatekeeper| {
            until(|| _gatekeeper.stats().connects >= 1).await;
            // Its tasks go on until the peer has seen the end.
            tokio::spawn(async move {
                let _gatekeeper = _gatekeeper;
                std::future::pending::<()>().await;
            });
        })
        .await;
        assert!(rest.is_empty());
    }
}
