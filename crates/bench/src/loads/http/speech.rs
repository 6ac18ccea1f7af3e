//! What is said to the HTTP door: a check of one key.

use std::io;

use crate::stream::{Answers, KEY_BYTES, Speech, http1, key_of};

/// What stands around the key.
const BEFORE: &[u8] = b"{\"key\":\"bench key=";
const AFTER: &[u8] = b"\"}";

/// POST of `/v1/check` with the key `bench key=k<number>`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check;

impl Speech for Check {
    fn ask(&mut self, key: u64, out: &mut Vec<u8>) {
        const _: () = assert!(BEFORE.len() + KEY_BYTES + AFTER.len() == 32, "the length below");
        out.extend_from_slice(
            b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
              Content-Length: 32\r\n\r\n",
        );
        out.extend_from_slice(BEFORE);
        out.extend_from_slice(&key_of(key));
        out.extend_from_slice(AFTER);
    }

    fn read(&mut self, bytes: &[u8]) -> io::Result<Answers> {
        http1::read(bytes, 200)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_asked_for_in_json_of_the_length_that_is_told() {
        let mut out = Vec::new();
        Check.ask(77, &mut out);
        let text = String::from_utf8(out).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{text}");
        assert_eq!(body, "{\"key\":\"bench key=k00000000077\"}");
    }
}
