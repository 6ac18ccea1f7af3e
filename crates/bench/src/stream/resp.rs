//! RESP, for the loads that speak it: a request, and how many replies stand whole at the front of a
//! buffer.

use std::io;

use tidegate_wire::resp::request::request;

use super::{Answers, key_of};

/// Appends an INCR of this key.
pub(crate) fn incr(key: u64, out: &mut Vec<u8>) {
    request(out, &[b"INCR", &key_of(key)]);
}

/// Reads the replies at the front of `bytes`: integers, and arrays of five integers, of which the
/// first tells whether the request is refused.
pub(crate) fn read(bytes: &[u8]) -> io::Result<Answers> {
    let mut answers = Answers::default();
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let mut whole = || lines.next().filter(|line| line.ends_with(b"\n"));
    while let Some(line) = whole() {
        let mut refused = false;
        let mut length = line.len();
        match line {
            [b':', ..] => {}
            b"*5\r\n" => {
                for at in 0..5 {
                    let Some(integer) = whole() else { return Ok(answers) };
                    refused |= at == 0 && integer == b":1\r\n";
                    length += integer.len();
                }
            }
            _ => {
                let said = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
                return Err(io::Error::other(format!("the server said {said}")));
            }
        }
        answers.count += 1;
        answers.refused += u64::from(refused);
        answers.bytes += length;
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_replies_are_counted() {
        let check = |bytes: &[u8], count, refused, whole| {
            let expected = Answers { count, refused, bytes: whole };
            assert_eq!(read(bytes).unwrap(), expected, "{}", bytes.escape_ascii());
        };
        check(b":1\r\n:23\r\n:4", 2, 0, 9);
        let throttled = b"*5\r\n:1\r\n:16\r\n:0\r\n:2\r\n:32\r\n";
        check(throttled, 1, 1, throttled.len());
        for cut in 0..throttled.len() {
            check(&throttled[..cut], 0, 0, 0);
        }
        let both = [b"*5\r\n:0\r\n:16\r\n:1\r\n:-1\r\n:32\r\n", &throttled[..]].concat();
        check(&both, 2, 1, both.len());
        let error = read(b":1\r\n-ERR no\r\n").unwrap_err();
        assert_eq!(error.to_string(), "the server said -ERR no");
    }

    #[test]
    fn a_request_names_its_key() {
        let mut out = Vec::new();
        incr(99_999_999_999, &mut out);
        assert_eq!(out, b"*2\r\n$4\r\nINCR\r\n$12\r\nk99999999999\r\n");
    }
}
