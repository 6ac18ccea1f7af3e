//! HTTP/1.1 as the load speaks it: one path for each key, and answers that may have a body.

use std::io;

use super::super::stream::{self, Answers, key_of};

/// Heads that are longer than this are not answers to what is asked here.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// GET of `/k<number>`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speech;

impl stream::Speech for Speech {
    fn ask(self, key: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"GET /");
        out.extend_from_slice(&key_of(key));
        out.extend_from_slice(b" HTTP/1.1\r\nHost: bench.example\r\n\r\n");
    }

    fn read(self, bytes: &[u8]) -> io::Result<Answers> {
        let mut answers = Answers::default();
        while let Some(answer) = first(&bytes[answers.bytes..])? {
            answers.count += 1;
            answers.refused += u64::from(answer.status == 429 || answer.status == 503);
            answers.bytes += answer.bytes;
        }
        Ok(answers)
    }
}

struct Answer {
    status: u16,
    bytes: usize,
}

/// The answer at the front, once it is there whole.
fn first(bytes: &[u8]) -> io::Result<Option<Answer>> {
    let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(io::Error::other("the answer's head does not end"));
        }
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes[..head]).map_err(io::Error::other)?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(status_of);
    let status = status.ok_or_else(|| io::Error::other("that is no HTTP/1.1 answer"))?;
    if !matches!(status, 204 | 429 | 503) {
        return Err(io::Error::other(format!("the answer is {status}, not 204")));
    }
    let body = if status == 204 { 0 } else { lines.find_map(length_of).unwrap_or(0) };
    let whole = head + 4 + body;
    Ok((whole <= bytes.len()).then_some(Answer { status, bytes: whole }))
}

fn status_of(line: &str) -> Option<u16> {
    line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

fn length_of(line: &str) -> Option<usize> {
    let (name, value) = line.split_once(':')?;
    name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::Speech;
    use super::stream::{Answers, Speech as _};

    #[test]
    fn answers_are_read_whole() {
        let passed = "HTTP/1.1 204 No Content\r\nserver: x\r\n\r\n";
        let refused = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 3\r\n\r\nno!";
        let bytes = [passed, refused, &refused[..refused.len() - 1]].concat();
        let whole = passed.len() + refused.len();
        let expected = Answers { count: 2, refused: 1, bytes: whole };
        assert_eq!(Speech.read(bytes.as_bytes()).unwrap(), expected);
        assert!(Speech.read(b"HTTP/1.1 500 No\r\n\r\n").is_err());
        assert!(Speech.read(b"220 mail.example\r\n\r\n").is_err());
        assert_eq!(Speech.read(b"HTTP/1.1 204 N").unwrap(), Answers::default());
    }

    #[test]
    fn each_key_is_a_path() {
        let mut out = Vec::new();
        Speech.ask(77, &mut out);
        assert!(out.starts_with(b"GET /k00000000077 HTTP/1.1\r\n"));
    }
}
