//! Answers of HTTP/1.1: how many stand whole at the front of a buffer, and how many refuse.

use std::io;

use super::Answers;

/// Heads that are longer than this are not answers to what is asked here.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Reads the answers at the front of `bytes`. Each must have the status `good`, or refuse.
pub(crate) fn read(bytes: &[u8], good: u16) -> io::Result<Answers> {
    let mut answers = Answers::default();
    while let Some(answer) = first(&bytes[answers.bytes..])? {
        let refused = matches!(answer.status, 429 | 503);
        if !refused && answer.status != good {
            return Err(io::Error::other(format!("the answer is {}, not {good}", answer.status)));
        }
        answers.count += 1;
        answers.refused += u64::from(refused);
        answers.bytes += answer.bytes;
    }
    Ok(answers)
}

/// One answer.
pub(crate) struct Answer {
    status: u16,
    /// Bytes of its head, with the empty line.
    pub(crate) head: usize,
    /// Bytes of the whole of it.
    pub(crate) bytes: usize,
}

/// The answer at the front, once it is there whole.
pub(crate) fn first(bytes: &[u8]) -> io::Result<Option<Answer>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(io::Error::other("the answer's head does not end"));
        }
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes[..end]).map_err(io::Error::other)?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(status_of);
    let status = status.ok_or_else(|| io::Error::other("that is no HTTP/1.1 answer"))?;
    let body = if status == 204 { 0 } else { lines.find_map(length_of).unwrap_or(0) };
    let head = end + 4;
    Ok((head + body <= bytes.len()).then_some(Answer { status, head, bytes: head + body }))
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
    use super::{Answers, read};

    #[test]
    fn answers_are_read_whole() {
        let passed = "HTTP/1.1 204 No Content\r\nserver: x\r\n\r\n";
        let refused = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 3\r\n\r\nno!";
        let bytes = [passed, refused, &refused[..refused.len() - 1]].concat();
        let whole = passed.len() + refused.len();
        let expected = Answers { count: 2, refused: 1, bytes: whole };
        assert_eq!(read(bytes.as_bytes(), 204).unwrap(), expected);
        assert!(read(b"HTTP/1.1 500 No\r\n\r\n", 204).is_err());
        assert!(read(passed.as_bytes(), 200).is_err());
        assert!(read(b"220 mail.example\r\n\r\n", 204).is_err());
        assert_eq!(read(b"HTTP/1.1 204 N", 204).unwrap(), Answers::default());
    }
}
