//! Whatever arrives at the ports: nothing of it ends the process, fills its memory or disturbs a
//! gatekeeper that behaves.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::peer::{Peer, addresses};
use super::{bad_input, delays, eventually, metric, pair};
use crate::program::{PATIENCE, Program};

/// What a peer says first: a signature, version 3.0 and the mechanism NULL.
fn greeting() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// The command that ends a handshake.
fn ready(kind: &[u8]) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend_from_slice(&(kind.len() as u32).to_be_bytes());
    body.extend_from_slice(kind);
    let mut bytes = vec![4, body.len() as u8];
    bytes.extend_from_slice(&body);
    bytes
}

fn connect(door: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(door).expect("the door is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// A publisher that has shaken hands by hand.
fn publisher(door: SocketAddr) -> TcpStream {
    let mut stream = connect(door);
    stream.write_all(&greeting()).expect("it reads");
    stream.write_all(&ready(b"PUB")).expect("it reads");
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs).expect("a greeting");
    assert_eq!((theirs[0], theirs[9]), (0xff, 0x7f));
    stream
}

fn resident_bytes(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a figure");
    let kib = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    kib * 1024
}

/// Writes until all is written or the other side has enough; says how many bytes went.
fn pour(stream: &mut TcpStream, chunk: &[u8], times: usize) -> usize {
    let mut sent = 0;
    for _ in 0..times {
        match stream.write_all(chunk) {
            Ok(()) => sent += chunk.len(),
            Err(_) => break,
        }
    }
    sent
}

#[test]
fn what_is_no_zeromq_is_counted_and_hung_up_on() {
    let (program, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "before");
    for door in addresses(&program) {
        for garbage in [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            vec![0; 4096],
            vec![0xff; 4096],
            [greeting(), vec![0xff; 4096]].concat(),
            [greeting(), ready(b"NONSENSE")].concat(),
            // A subscriber where subscribers are, a publisher where publishers are.
            [greeting(), ready(b"SUB"), ready(b"SUB")].concat(),
            [greeting(), ready(b"PUB"), ready(b"PUB")].concat(),
        ] {
            let mut stream = connect(door);
            pour(&mut stream, &garbage, 1);
            // It ends, one way or the other.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    eventually(|| bad_input(&program, "handshake") >= 8);
    delays(&mut gatekeeper, "after");
}

#[test]
fn half_handshakes_hold_up_nobody() {
    let (program, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "before");
    let mut held = Vec::new();
    for number in 0..600 {
        let mut stream = connect(addresses(&program)[number % 2]);
        pour(&mut stream, &greeting()[..number % 64], 1);
        held.push(stream);
    }
    delays(&mut gatekeeper, "meanwhile");
    let mut late = Peer::gatekeeper(&super::Endpoints::of(&program), &["web"]);
    delays(&mut late, "late");
    drop(held);
    delays(&mut gatekeeper, "after");
}

#[test]
fn large_and_endless_messages_are_cut_off_and_memory_stays() {
    let (program, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "before");
    let before = resident_bytes(&program);
    let [accounting, _] = addresses(&program);
    let mebibyte = vec![b'x'; 1 << 20];
    // A frame that says it is as long as can be, and then goes on and on.
    let mut stream = publisher(accounting);
    let mut frame = vec![2];
    frame.extend_from_slice(&(u64::MAX >> 2).to_be_bytes());
    stream.write_all(&frame).expect("it reads");
    assert!(pour(&mut stream, &mebibyte, 256) < 256 << 20, "it is cut off");
    // One that is a little too long, and is whole.
    let mut stream = publisher(accounting);
    frame.truncate(1);
    frame.extend_from_slice(&(1_u64 << 20).to_be_bytes());
    frame.extend_from_slice(&mebibyte);
    assert!(pour(&mut stream, &frame, 64) < 64 << 20, "it is cut off");
    // A message of frames without an end, each of them small.
    let mut stream = publisher(accounting);
    let frames = b"\x01\x01x".repeat(1 << 18);
    assert!(pour(&mut stream, &frames, 256) < 256 * frames.len(), "it is cut off");
    eventually(|| bad_input(&program, "message_too_large") >= 3);
    delays(&mut gatekeeper, "after");
    let grown = resident_bytes(&program).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
}

#[test]
fn garbage_in_whole_messages_is_counted() {
    let (program, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "before");
    let mut stream = publisher(addresses(&program)[0]);
    // Every byte in every frame of a message that would be right without it.
    let right: [&[u8]; 6] = [b"web\0", b"ACCEPTED", b"me", b"9999999999999", b"", b"log"];
    for at in 0..right.len() {
        for byte in 0..=u8::MAX {
            for (number, frame) in right.iter().enumerate() {
                let garbled = [&[byte][..], frame].concat();
                let frame = if number == at { &garbled } else { *frame };
                let more = u8::from(number + 1 < right.len());
                stream.write_all(&[more, frame.len() as u8]).expect("it reads");
                stream.write_all(frame).expect("it reads");
            }
        }
    }
    // Frames of nothing, and more of them than any message has.
    stream.write_all(&b"\x01\x00".repeat(100)).expect("it reads");
    stream.write_all(b"\x00\x00").expect("it reads");
    for (reason, count) in
        [("unknown_domain", 255), ("status", 256), ("timestamp", 246), ("domain", 1 + 1)]
    {
        eventually(|| bad_input(&program, reason) >= count);
    }
    delays(&mut gatekeeper, "after");
    // Whatever stands in an identifier, in a time that nobody needs and in the log info.
    let told = metric(&program, "tidegate_accounting_total{status=\"accepted\"}");
    assert!(told >= 3 * 256, "{told}");
}

#[test]
fn subscriptions_without_end_end_nothing() {
    let (program, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "before");
    let before = resident_bytes(&program);
    let [_, control] = addresses(&program);
    let mut stream = connect(control);
    stream.write_all(&greeting()).expect("it reads");
    stream.write_all(&ready(b"SUB")).expect("it reads");
    // A subscription is a message whose first byte is 1: topics that nobody publishes.
    for number in 0..20_000_u32 {
        let mut frame = vec![0, 5, 1];
        frame.extend_from_slice(&number.to_be_bytes());
        if stream.write_all(&frame).is_err() {
            break;
        }
    }
    delays(&mut gatekeeper, "after");
    let grown = resident_bytes(&program).saturating_sub(before);
    assert!(grown < 128 << 20, "{grown} bytes more");
}
