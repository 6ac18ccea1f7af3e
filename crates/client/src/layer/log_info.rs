//! A line about a request for the master's accounting log.
//!
//! The method, the path without its query, and the user agent, on one line: what is not printable
//! ASCII is escaped, and what is longer than [`BYTES_MAX`] is cut off.

use http::Request;
use http::header::USER_AGENT;

/// The most bytes of a line. On the stack, so few enough to be made for every request.
const BYTES_MAX: usize = 256;

/// The line about one request.
#[derive(Clone, Debug)]
pub struct LogInfo {
    len: usize,
    text: [u8; BYTES_MAX],
}

impl LogInfo {
    /// `GET /path curl/8.5`.
    #[inline]
    #[must_use]
    pub fn of<B>(request: &Request<B>) -> Self {
        let mut line = Self { len: 0, text: [0; BYTES_MAX] };
        line.add(request.method().as_str().as_bytes());
        line.add(b" ");
        line.add(request.uri().path().as_bytes());
        if let Some(agent) = request.headers().get(USER_AGENT) {
            line.add(b" ");
            line.add(agent.as_bytes());
        }
        line
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }

    #[inline]
    fn add(&mut self, bytes: &[u8]) {
        let printable = |&byte: &u8| matches!(byte, b' '..=b'~') && byte != b'\\';
        // Nearly always all of it is: then it is copied in one piece.
        if bytes.iter().all(printable) {
            self.put(bytes);
        } else {
            bytes.iter().for_each(|byte| self.put_escaped(*byte));
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(BYTES_MAX - self.len);
        self.text[self.len..self.len + count].copy_from_slice(&bytes[..count]);
        self.len += count;
    }

    /// An escape is written whole or not at all.
    #[cold]
    fn put_escaped(&mut self, byte: u8) {
        let escape = byte.escape_ascii();
        if escape.len() <= BYTES_MAX - self.len {
            escape.for_each(|byte| self.put(&[byte]));
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[track_caller]
    fn check(uri: &str, agent: Option<&[u8]>, expected: &str) {
        let mut request = Request::put(uri);
        if let Some(agent) = agent {
            request = request.header(USER_AGENT, HeaderValue::from_bytes(agent).unwrap());
        }
        let request = request.body(()).unwrap();
        let line = LogInfo::of(&request);
        assert_eq!(line.as_bytes().escape_ascii().to_string(), expected.replace('\\', "\\\\"));
    }

    #[test]
    fn lines_are_printable_and_bounded() {
        check("/a/b?token=secret", None, "PUT /a/b");
        check("http://host/a", Some(b"curl/8.5 (x)"), "PUT /a curl/8.5 (x)");
        check("/", Some(b""), "PUT / ");
        check("/", Some(b"a\tb\\\xe9"), r"PUT / a\tb\\\xe9");
        let long = "x".repeat(300);
        check(&format!("/{long}"), Some(b"curl"), &format!("PUT /{}", &long[..251]));
        // An escape that does not fit is not cut in two.
        let agent = ["x".repeat(248).as_bytes(), b"\xff\xff"].concat();
        check("/", Some(&agent), &format!("PUT / {}", "x".repeat(248)));
    }
}
