//! What is said to the gRPC door: calls of Envoy's rate limit service, as bytes of HTTP/2. No
//! sockets here.

use std::collections::HashMap;
use std::io;

use tidegate_core::Nanos;

use crate::stream::{KEY_BYTES, key_of};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const FRAME_HEAD_BYTES: usize = 9;

/// Bytes of answers that the server may send before it is told that there is room for more, and
/// how few of them may be left before it is told.
const WINDOW: u32 = 1 << 30;
const FIRST_WINDOW: u32 = 65_535;

const HEADERS_SAID: [(&str, &str); 4] = [
    (":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
];
/// POST and http, by their numbers in the table that every connection begins with.
const METHOD_AND_SCHEME: [u8; 2] = [0x83, 0x86];
/// The headers of all calls but the first: the numbers of what the first has left in the table.
const HEADERS_AGAIN: [u8; 6] = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];

/// A message with the descriptor `key=k<number>` of the domain `bench`.
const BEFORE_KEY: &[u8] = b"\0\0\0\0\x1e\x0a\x05bench\x12\x15\x0a\x13\x0a\x03key\x12\x0c";
const OK: u8 = 1;

/// One connection: what was asked, and what is to be said of it.
pub(super) struct Http2 {
    next_stream: u32,
    /// Calls that are not answered: since when, and the code of the answer if it has come.
    open: HashMap<u32, (Nanos, Option<u8>)>,
    /// Bytes that the server may still send.
    window: u32,
    /// What the server must be told.
    owed: Vec<u8>,
}

/// A call that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) asked_at: Nanos,
    pub(super) refused: bool,
}

impl Http2 {
    pub(super) fn new() -> Self {
        let mut owed = PREFACE.to_vec();
        frame(&mut owed, SETTINGS, 0, 0, &[]);
        frame(&mut owed, WINDOW_UPDATE, 0, 0, &(WINDOW - FIRST_WINDOW).to_be_bytes());
        Self { next_stream: 1, open: HashMap::new(), window: WINDOW, owed }
    }

    /// Calls that are not answered.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Appends the call for this key, and what else the server must be told.
    pub(super) fn ask(&mut self, key: u64, now: Nanos, out: &mut Vec<u8>) {
        out.append(&mut self.owed);
        let stream = self.next_stream;
        if stream == 1 {
            frame(out, HEADERS, END_HEADERS, stream, &first_headers());
        } else {
            frame(out, HEADERS, END_HEADERS, stream, &HEADERS_AGAIN);
        }
        let mut message = [0; BEFORE_KEY.len() + KEY_BYTES];
        message[..BEFORE_KEY.len()].copy_from_slice(BEFORE_KEY);
        message[BEFORE_KEY.len()..].copy_from_slice(&key_of(key));
        frame(out, DATA, END_STREAM, stream, &message);
        self.open.insert(stream, (now, None));
        self.next_stream += 2;
    }

    /// Reads the whole frames at the front of `bytes`; returns how many bytes they have.
    pub(super) fn read(&mut self, bytes: &[u8], mut see: impl FnMut(Answer)) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some((head, behind)) = rest.split_first_chunk::<FRAME_HEAD_BYTES>() {
            let [a, b, c, kind, flags, stream @ ..] = *head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((body, behind)) = behind.split_at_checked(length) else { break };
            let stream = u32::from_be_bytes(stream);
            self.take_in(kind, flags, stream, body)?;
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                see(self.end(stream)?);
            }
            rest = behind;
        }
        Ok(bytes.len() - rest.len())
    }

    fn take_in(&mut self, kind: u8, flags: u8, stream: u32, body: &[u8]) -> io::Result<()> {
        match kind {
            DATA => {
                // A prefix of five bytes, and the overall code as the first field.
                if let (Some((_, code)), [_, _, _, _, _, 0x08, said, ..]) =
                    (self.open.get_mut(&stream), body)
                {
                    *code = Some(*said);
                }
                self.window = self.window.saturating_sub(body.len() as u32);
                if self.window < WINDOW / 2 {
                    let more = (WINDOW - self.window).to_be_bytes();
                    frame(&mut self.owed, WINDOW_UPDATE, 0, 0, &more);
                    self.window = WINDOW;
                }
            }
            SETTINGS if flags & ACK == 0 => frame(&mut self.owed, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(&mut self.owed, PING, ACK, 0, body),
            // A call that was answered may be reset: the server read no further.
            RST_STREAM if self.open.contains_key(&stream) => {
                let code = body.last().copied().unwrap_or_default();
                return Err(io::Error::other(format!("the server resets a call: code {code}")));
            }
            GOAWAY => {
                // A stream, a code of four bytes, and perhaps a reason.
                let why = String::from_utf8_lossy(body.get(8..).unwrap_or_default()).into_owned();
                let code = body.get(7).copied().unwrap_or_default();
                let text = format!("the server ends the connection: code {code} {why}");
                return Err(io::Error::other(text));
            }
            _ => {}
        }
        Ok(())
    }

    /// The answer on a stream that has ended.
    fn end(&mut self, stream: u32) -> io::Result<Answer> {
        let Some((asked_at, code)) = self.open.remove(&stream) else {
            return Err(io::Error::other("an answer that nobody asked for"));
        };
        // Errors have no message.
        let code = code.ok_or_else(|| io::Error::other("the server answered with an error"))?;
        Ok(Answer { asked_at, refused: code != OK })
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    // No body here has more than a few bytes.
    out.extend_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(body);
}

/// The headers of the first call, which the server keeps in its table.
fn first_headers() -> Vec<u8> {
    let mut out = METHOD_AND_SCHEME.to_vec();
    for (name, value) in HEADERS_SAID {
        out.push(0x40);
        for text in [name, value] {
            // All are shorter than 127 bytes.
            out.push(text.len() as u8);
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_as_long_as_its_prefix_says() {
        let length = BEFORE_KEY.len() + KEY_BYTES - 5;
        assert_eq!(usize::from(BEFORE_KEY[4]), length);
        assert_eq!(usize::from(BEFORE_KEY[13]), length - 9, "the descriptor");
        assert_eq!(usize::from(BEFORE_KEY[15]), length - 11, "its entry");
    }

    #[test]
    fn answers_are_told_with_when_they_were_asked_for() {
        let (mut speech, mut out) = (Http2::new(), Vec::new());
        speech.ask(7, 100, &mut out);
        speech.ask(8, 200, &mut out);
        assert!(out.starts_with(PREFACE) && out.ends_with(b"k00000000008"));
        let mut answers = Vec::new();
        frame(&mut answers, SETTINGS, 0, 0, &[]);
        for (stream, code) in [(3, 2), (1, 1)] {
            frame(&mut answers, HEADERS, END_HEADERS, stream, &[0x88]);
            frame(&mut answers, DATA, 0, stream, &[0, 0, 0, 0, 2, 8, code]);
            frame(&mut answers, HEADERS, END_HEADERS | END_STREAM, stream, &[]);
        }
        let mut told = Vec::new();
        let cut = answers.len() - 1;
        let read = speech.read(&answers[..cut], |answer| told.push(answer)).expect("frames");
        speech.read(&answers[read..], |answer| told.push(answer)).expect("frames");
        let answer = |asked_at, refused| Answer { asked_at, refused };
        assert_eq!(told, [answer(200, true), answer(100, false)]);
        assert_eq!(speech.open(), 0);
        speech.ask(9, 300, &mut out);
        let mut error = Vec::new();
        frame(&mut error, HEADERS, END_HEADERS | END_STREAM, 5, &[0x88]);
        assert!(speech.read(&error, |_| ()).is_err());
    }
}
