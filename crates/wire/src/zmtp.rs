//! As much of ZMTP 3, ZeroMQ's protocol on a TCP stream, as a publisher that connects needs.
//!
//! A publisher greets, says what it is, hears what its peer subscribes to, and from then on writes
//! messages. One that writes a message for each request cannot afford a library's queue for each of
//! them; frames are simple enough to be written in place. A program that needs more of ZeroMQ, or
//! wants to receive, uses a library. This file knows no sockets: bytes in, frames out, and back.

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 64;

/// The longest frame that is read from a peer: topics and heartbeats are all that it has to say.
pub const FRAME_BYTES_MAX: usize = 4096;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// The longest body whose length fits the short form.
const SHORT_BYTES_MAX: usize = 255;
/// Bytes of a short head and of a long one.
const SHORT_HEAD: usize = 2;
const LONG_HEAD: usize = 9;
/// The most bytes of a PING that go into its PONG.
const CONTEXT_BYTES_MAX: usize = 16;

/// Why a peer is no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZmtpFault {
    /// It does not greet as ZMTP 3 does, or wants more security than none.
    Greeting,
    /// It is no socket that subscribes.
    Role,
    /// It refuses.
    Refused,
    /// A frame is longer than anything that a subscriber has to say, or is not well formed.
    Frame,
}

/// How a peer that connects introduces itself: ZMTP 3.0 without security.
#[must_use]
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[0] = 0xff;
    bytes[8] = 1;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// Whether the other side's greeting is one of ZMTP 3 without security.
///
/// # Errors
/// If it does not.
pub fn check_greeting(bytes: &[u8; GREETING_BYTES]) -> Result<(), ZmtpFault> {
    let signed = bytes[0] == 0xff && bytes[9] & 1 == 1;
    let mechanism = &bytes[12..32];
    let null = mechanism.starts_with(b"NULL\0");
    if signed && bytes[10] >= 3 && null { Ok(()) } else { Err(ZmtpFault::Greeting) }
}

/// Writes the command by which a publisher says what it is.
pub fn write_ready(out: &mut Vec<u8>) {
    let body = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB\x08Identity\x00\x00\x00\x00";
    out.push(COMMAND);
    out.push(body.len() as u8);
    out.extend_from_slice(body);
}

/// Writes frames of messages into a room that is large enough for them.
#[derive(Debug)]
pub struct FrameWriter<'a> {
    room: &'a mut [u8],
    at: usize,
}

impl<'a> FrameWriter<'a> {
    /// Begins at the front of a room.
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { room, at: 0 }
    }

    /// How many bytes a frame with such a body takes.
    #[must_use]
    pub fn bytes_of(body: usize) -> usize {
        body + if body <= SHORT_BYTES_MAX { SHORT_HEAD } else { LONG_HEAD }
    }

    /// Writes a frame.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn frame(&mut self, more: bool, body: &[u8]) {
        let more = if more { MORE } else { 0 };
        if body.len() <= SHORT_BYTES_MAX {
            self.put(&[more, body.len() as u8]);
        } else {
            self.put(&[more | LONG]);
            self.put(&(body.len() as u64).to_be_bytes());
        }
        self.put(body);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.room[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Writes a whole frame of a message.
pub fn write_frame(more: bool, body: &[u8], out: &mut Vec<u8>) {
    let before = out.len();
    out.resize(before + FrameWriter::bytes_of(body.len()), 0);
    FrameWriter::new(&mut out[before..]).frame(more, body);
}

/// One frame from the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    command: bool,
    more: bool,
    body: &'a [u8],
}

/// Reads the frame at the beginning, and how many bytes it takes. None until it is whole.
///
/// # Errors
/// If it will never be a frame that is worth waiting for.
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, ZmtpFault> {
    let Some(&flags) = bytes.first() else { return Ok(None) };
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(ZmtpFault::Frame);
    }
    let (head, length) = if flags & LONG == 0 {
        let Some(&length) = bytes.get(1) else { return Ok(None) };
        (SHORT_HEAD, u64::from(length))
    } else {
        let Some(length) = bytes.get(1..LONG_HEAD) else { return Ok(None) };
        (LONG_HEAD, length.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Err(ZmtpFault::Frame);
    }
    let Some(body) = bytes.get(head..head + length) else { return Ok(None) };
    let (command, more) = (flags & COMMAND != 0, flags & MORE != 0);
    Ok(Some((Frame { command, more, body }, head + length)))
}

/// What a subscriber says once hands are shaken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// It wants messages whose first frame begins so.
    Subscribe(&'a [u8]),
    /// It does not want them any more.
    Cancel(&'a [u8]),
    /// It asks for a sign of life, which repeats these bytes.
    Ping(&'a [u8]),
    /// Something that a publisher need not know.
    Else,
}

impl<'a> Frame<'a> {
    /// Reads the command by which the other side says what it is.
    ///
    /// # Errors
    /// If it is no subscriber.
    pub fn check_ready(&self) -> Result<(), ZmtpFault> {
        let Some((name, mut properties)) = self.name() else { return Err(ZmtpFault::Frame) };
        match name {
            b"READY" => {}
            b"ERROR" => return Err(ZmtpFault::Refused),
            _ => return Err(ZmtpFault::Frame),
        }
        while let Some((name, value, rest)) = property(properties) {
            if name.eq_ignore_ascii_case(b"Socket-Type") {
                let subscribes = value == b"SUB" || value == b"XSUB";
                return if subscribes { Ok(()) } else { Err(ZmtpFault::Role) };
            }
            properties = rest;
        }
        Err(ZmtpFault::Role)
    }

    /// What the frame says after that. Subscriptions are messages in ZMTP 3.0, commands in 3.1.
    #[must_use]
    pub fn said(&self) -> Said<'a> {
        if !self.command {
            return match self.body {
                [1, topic @ ..] if !self.more => Said::Subscribe(topic),
                [0, topic @ ..] if !self.more => Said::Cancel(topic),
                _ => Said::Else,
            };
        }
        match self.name() {
            Some((b"SUBSCRIBE", topic)) => Said::Subscribe(topic),
            Some((b"CANCEL", topic)) => Said::Cancel(topic),
            // Two bytes say how long to wait for the next one.
            Some((b"PING", [_, _, context @ ..])) => Said::Ping(context),
            _ => Said::Else,
        }
    }

    /// The name of a command, and what follows it.
    fn name(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (&length, rest) = self.body.split_first()?;
        self.command.then_some(())?;
        rest.split_at_checked(usize::from(length))
    }
}

/// The first property: its name, its value, and the rest.
fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(length))?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (value, rest) = rest.split_at_checked(length)?;
    Some((name, value, rest))
}

/// Writes the sign of life that a PING asks for.
pub fn write_pong(context: &[u8], out: &mut Vec<u8>) {
    let context = &context[..context.len().min(CONTEXT_BYTES_MAX)];
    let name = b"\x04PONG";
    out.push(COMMAND);
    out.push((name.len() + context.len()) as u8);
    out.extend_from_slice(name);
    out.extend_from_slice(context);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(bytes: &[u8]) -> (Said<'_>, usize) {
        let (frame, used) = parse(bytes).unwrap().unwrap();
        (frame.said(), used)
    }

    #[test]
    fn greetings_are_told_from_others() {
        let own = greeting();
        assert_eq!(check_greeting(&own), Ok(()));
        // Byte by byte what matters: signature, version, mechanism.
        for (at, byte) in [(0, 0), (9, 0), (10, 2), (10, 1), (12, b'P'), (15, 0), (16, b'X')] {
            let mut other = own;
            other[at] = byte;
            assert_eq!(check_greeting(&other), Err(ZmtpFault::Greeting), "{at}");
        }
        for (at, byte) in [(3, 7), (8, 0), (10, 4), (11, 1), (32, 1), (63, 9)] {
            let mut other = own;
            other[at] = byte;
            assert_eq!(check_greeting(&other), Ok(()), "{at}");
        }
    }

    #[test]
    fn only_a_subscriber_is_a_peer() {
        let check = |body: &[u8], expected: Result<(), ZmtpFault>| {
            let mut bytes = vec![COMMAND, body.len() as u8];
            bytes.extend_from_slice(body);
            let (frame, used) = parse(&bytes).unwrap().unwrap();
            assert_eq!(used, bytes.len());
            assert_eq!(frame.check_ready(), expected, "{body:?}");
        };
        check(b"\x05READY\x0bSocket-Type\0\0\0\x03SUB", Ok(()));
        check(b"\x05READY\x08Identity\0\0\0\0\x0bSocket-Type\0\0\0\x04XSUB", Ok(()));
        check(b"\x05READY\x0bsocket-type\0\0\0\x03SUB", Ok(()));
        check(b"\x05READY\x0bSocket-Type\0\0\0\x03PUB", Err(ZmtpFault::Role));
        check(b"\x05READY\x0bSocket-Type\0\0\0\x09SUB", Err(ZmtpFault::Role));
        check(b"\x05READY", Err(ZmtpFault::Role));
        check(b"\x05ERROR\x02no", Err(ZmtpFault::Refused));
        check(b"\x05HELLO", Err(ZmtpFault::Frame));
        check(b"\x50READY", Err(ZmtpFault::Frame));
        check(b"", Err(ZmtpFault::Frame));
        let mut own = Vec::new();
        write_ready(&mut own);
        let (frame, used) = parse(&own).unwrap().unwrap();
        assert_eq!((frame.check_ready(), used), (Err(ZmtpFault::Role), own.len()), "a publisher");
    }

    #[test]
    fn what_subscribers_say_is_understood() {
        assert_eq!(said(b"\0\x01\x01rest"), (Said::Subscribe(b""), 3));
        assert_eq!(said(b"\0\x04\x01api"), (Said::Subscribe(b"api"), 6));
        assert_eq!(said(b"\0\x04\0api"), (Said::Cancel(b"api"), 6));
        assert_eq!(said(b"\x04\x0d\x09SUBSCRIBEapi"), (Said::Subscribe(b"api"), 15));
        assert_eq!(said(b"\x04\x0a\x06CANCELapi"), (Said::Cancel(b"api"), 12));
        assert_eq!(said(b"\x04\x09\x04PING\0\x0ahi"), (Said::Ping(b"hi"), 11));
        assert_eq!(said(b"\x02\0\0\0\0\0\0\0\x04\x01api"), (Said::Subscribe(b"api"), 13));
        for other in
            [&b"\0\0"[..], b"\0\x01\x02", b"\x04\x05\x04PONG", b"\x04\x01\x09", b"\x01\x01\x01"]
        {
            assert_eq!(said(other), (Said::Else, other.len()), "{other:?}");
        }
        let mut pong = Vec::new();
        write_pong(&[7; 40], &mut pong);
        assert_eq!(pong, [&b"\x04\x15\x04PONG"[..], &[7; 16]].concat());
    }

    #[test]
    fn lengths_that_are_declared_are_bounded() {
        for bytes in [&b"\x02\0\0\0\0\0\0\x10\x01"[..], b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(parse(bytes), Err(ZmtpFault::Frame), "{bytes:?}");
        }
        for flags in [8, 16, 0x80, 5] {
            assert_eq!(parse(&[flags, 0]), Err(ZmtpFault::Frame), "{flags}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some((frame, used))) = parse(&bytes) {
                prop_assert!(used <= bytes.len());
                let _ = (frame.said(), frame.check_ready());
            }
        }

        #[test]
        fn frames_come_back_whole_and_never_early(
            body in prop::collection::vec(any::<u8>(), 0..600),
            more: bool,
        ) {
            let mut bytes = Vec::new();
            write_frame(more, &body, &mut bytes);
            prop_assert_eq!(bytes.len(), FrameWriter::bytes_of(body.len()));
            for short in 0..bytes.len() {
                prop_assert_eq!(parse(&bytes[..short]), Ok(None));
            }
            let frame = Frame { command: false, more, body: &body };
            prop_assert_eq!(parse(&bytes), Ok(Some((frame, bytes.len()))));
        }
    }
}
