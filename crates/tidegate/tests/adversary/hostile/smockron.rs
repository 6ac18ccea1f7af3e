//! What hostile peers say at the Smockron door: ZeroMQ as far as it goes, in messages that are
//! right, wrong or without an end. Canaries speak with the same words.

use super::Target;
use crate::server::Doors;

/// What a peer says first: a signature, version 3.0 and the mechanism NULL.
pub(crate) fn greeting() -> [u8; 64] {
    let mut bytes = [0; 64];
    (bytes[0], bytes[8], bytes[9], bytes[10]) = (0xff, 1, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// The command that ends a handshake.
pub(crate) fn ready(kind: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend_from_slice(&(kind.len() as u32).to_be_bytes());
    body.extend_from_slice(kind.as_bytes());
    [&[4, body.len() as u8][..], &body].concat()
}

/// Asks for everything that begins with `topic`.
pub(crate) fn subscribe(topic: &str) -> Vec<u8> {
    [&[0, topic.len() as u8 + 1, 1][..], topic.as_bytes()].concat()
}

/// A message of these frames.
fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, frame) in frames.iter().enumerate() {
        bytes.push(u8::from(at + 1 < frames.len()));
        bytes.push(u8::try_from(frame.len()).expect("a short frame"));
        bytes.extend_from_slice(frame);
    }
    bytes
}

/// Tells of a request that was accepted.
pub(crate) fn accepted(domain: &str, identifier: &str, at_ms: u64) -> Vec<u8> {
    let (domain, at) = (format!("{domain}\0"), at_ms.to_string());
    message(&[domain.as_bytes(), b"ACCEPTED", identifier.as_bytes(), at.as_bytes(), b"", b"log"])
}

pub(super) fn add(doors: &Doors, targets: &mut Vec<Target>) {
    let now = crate::clock::unix_ms();
    let publisher = [&greeting()[..], &ready("PUB")].concat();
    let accounting = vec![
        greeting().to_vec(),
        publisher.clone(),
        [&publisher[..], &accepted("birds", "hostile", now)].concat(),
        [&publisher[..], &accepted("nobody", "hostile", now).repeat(50)].concat(),
        [&publisher[..], &message(&[b"birds\0", b"RESYNC"])].concat(),
        [&publisher[..], &message(&[b"birds\0", b"DELAYED", b"x", b"1", b"nonsense"])].concat(),
        [&publisher[..], &[1, 1, b'x'].repeat(1_000)].concat(),
        [&publisher[..], &[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], b"x"].concat(),
    ];
    let told = [&publisher[..], &accepted("birds", "hostile", now).repeat(2_000)].concat();
    let burdens = vec![told];
    let address = doors.accounting.into();
    targets.push(Target { address, scripts: accounting, burdens });
    let subscriber = [&greeting()[..], &ready("SUB")].concat();
    let control = vec![
        greeting().to_vec(),
        subscriber.clone(),
        [&subscriber[..], &subscribe("birds\0")].concat(),
        [&subscriber[..], &subscribe("")].concat(),
        [&subscriber[..], &message(&[b"nonsense", b"more"])].concat(),
    ];
    // These hear of every canary's clients, and do not read it.
    let burdens = vec![control[3].clone()];
    targets.push(Target { address: doors.control.into(), scripts: control, burdens });
}
