//! HTTP/1.1 responses as a proxy reads them from its upstream: heads, how their bodies end, and
//! bodies in chunks.
//!
//! httparse reads the lines. This codec decides where a message ends. A response whose end could be
//! understood in two ways is invalid.

use std::mem::MaybeUninit;

pub use httparse::Header as Field;
use httparse::{EMPTY_HEADER, ParserConfig, Response, Status};

/// The most fields of a head, or trailers of a body.
pub const FIELDS_MAX: usize = 100;
/// The longest line with the size of a chunk.
pub const SIZE_LINE_BYTES_MAX: usize = 4 << 10;
/// The most bytes of all trailers.
pub const TRAILER_BYTES_MAX: usize = 16 << 10;

/// Room for the fields of a head.
pub type FieldBuffer<'b> = [MaybeUninit<Field<'b>>; FIELDS_MAX];

/// Room for fields, empty.
#[must_use]
pub const fn fields<'b>() -> FieldBuffer<'b> {
    [const { MaybeUninit::uninit() }; FIELDS_MAX]
}

/// Why a response is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidResponse {
    /// The head is no head of HTTP/1.
    Head,
    /// Its Content-Length is no number, or there are several.
    Length,
    /// A transfer coding other than chunked, or one in HTTP/1.0.
    Coding,
    /// A chunk or the trailers are malformed.
    Chunk,
}

/// The head of a response.
#[derive(Debug)]
pub struct ResponseHead<'f, 'b> {
    /// The status, of three digits.
    pub status: u16,
    /// The reason phrase.
    pub reason: &'b str,
    /// Whether the version is HTTP/1.0.
    pub old: bool,
    /// Its fields, in order.
    pub fields: &'f [Field<'b>],
    /// How many bytes it takes.
    pub bytes: usize,
}

/// How the body of a response ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It has none.
    Nothing,
    /// After so many bytes.
    Length(u64),
    /// With the last chunk.
    Chunks,
    /// With the connection.
    Close,
}

/// Parses a head, if all of it is there.
///
/// # Errors
/// If it is no head, whatever follows.
pub fn head<'f, 'b>(
    bytes: &'b [u8],
    fields: &'f mut FieldBuffer<'b>,
) -> Result<Option<ResponseHead<'f, 'b>>, InvalidResponse> {
    let mut response = Response::new(&mut []);
    let parsed =
        ParserConfig::default().parse_response_with_uninit_headers(&mut response, bytes, fields);
    let Status::Complete(bytes) = parsed.map_err(|_| InvalidResponse::Head)? else {
        return Ok(None);
    };
    let status = response.code.filter(|code| *code >= 100).ok_or(InvalidResponse::Head)?;
    let (reason, old) = (response.reason.unwrap_or(""), response.version == Some(0));
    Ok(Some(ResponseHead { status, reason, old, fields: response.headers, bytes }))
}

impl ResponseHead<'_, '_> {
    /// Whether it is an interim response (1xx), before the real one.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// How the body ends, and whether the connection may be used for another request after it.
    /// `to_head`: the request was a HEAD, whose responses describe a body and have none.
    ///
    /// # Errors
    /// If the end could be understood in two ways.
    pub fn ending(&self, to_head: bool) -> Result<(Ending, bool), InvalidResponse> {
        let (mut length, mut coded) = (None, false);
        let (mut keeps, mut closes) = (!self.old, false);
        for field in self.fields {
            let name = field.name;
            // The lengths tell nearly all names apart.
            match name.len() {
                10 if name.eq_ignore_ascii_case("connection") => {
                    keeps |= has_token(field.value, "keep-alive");
                    closes |= has_token(field.value, "close");
                }
                14 if name.eq_ignore_ascii_case("content-length") => {
                    let number_found = number(field.value).ok_or(InvalidResponse::Length)?;
                    if length.replace(number_found).is_some_and(|before| before != number_found) {
                        return Err(InvalidResponse::Length);
                    }
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    let chunked = field.value.eq_ignore_ascii_case(b"chunked");
                    if coded || self.old || !chunked {
                        return Err(InvalidResponse::Coding);
                    }
                    coded = true;
                }
                _ => {}
            }
        }
        let ending = match length {
            _ if to_head || self.status < 200 || matches!(self.status, 204 | 304) => {
                Ending::Nothing
            }
            // With a length beside it, the coding counts and the connection is closed.
            _ if coded => Ending::Chunks,
            Some(0) => Ending::Nothing,
            Some(length) => Ending::Length(length),
            None => Ending::Close,
        };
        // An upstream that announces a body with 204 may send one.
        let impossible_body =
            self.status == 204 && (coded || length.is_some_and(|length| length > 0));
        closes |= ending == Ending::Close || coded && length.is_some() || impossible_body;
        Ok((ending, keeps && !closes))
    }
}

/// Whether a list field holds `token`, in any case.
fn has_token(list: &[u8], token: &str) -> bool {
    let mut tokens = list.split(|byte| *byte == b',');
    tokens.any(|found| found.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// A number in digits alone.
fn number(digits: &[u8]) -> Option<u64> {
    let more = |sum: u64, digit: &u8| {
        sum.checked_mul(10)?.checked_add(u64::from(digit.checked_sub(b'0').filter(|d| *d < 10)?))
    };
    digits.iter().try_fold(0, more).filter(|_| !digits.is_empty())
}

/// The position in a body in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunks(Place);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before a chunk's size.
    #[default]
    Size,
    /// Within a chunk, so many bytes before its end.
    Within(u64),
    /// Before the end of a chunk's line.
    After,
    /// Behind the last chunk.
    Last,
}

/// What comes next of a body in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'b> {
    /// Nothing: more bytes are needed.
    More,
    /// So many bytes of framing, to be skipped.
    Frame(usize),
    /// Data, to be skipped too.
    Data(&'b [u8]),
    /// The end of the data. Trailers follow, see [`trailers`].
    End,
}

impl Chunks {
    /// Looks at the bytes that come next.
    ///
    /// # Errors
    /// If they are no chunks.
    pub fn next<'b>(&mut self, bytes: &'b [u8]) -> Result<Part<'b>, InvalidResponse> {
        match self.0 {
            Place::Size => self.size(bytes),
            Place::Within(_) if bytes.is_empty() => Ok(Part::More),
            Place::Within(left) => {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left - here as u64;
                self.0 = if left > 0 { Place::Within(left) } else { Place::After };
                Ok(Part::Data(&bytes[..here]))
            }
            Place::After => match bytes {
                [b'\r', b'\n', ..] => {
                    self.0 = Place::Size;
                    Ok(Part::Frame(2))
                }
                [] | [b'\r'] => Ok(Part::More),
                _ => Err(InvalidResponse::Chunk),
            },
            Place::Last => Ok(Part::End),
        }
    }

    fn size<'b>(&mut self, bytes: &'b [u8]) -> Result<Part<'b>, InvalidResponse> {
        match bytes.first() {
            None => return Ok(Part::More),
            // The parser takes a line without a digit for a size.
            Some(first) if !first.is_ascii_hexdigit() => return Err(InvalidResponse::Chunk),
            Some(_) => {}
        }
        match httparse::parse_chunk_size(bytes) {
            Ok(Status::Complete((used, size))) => {
                self.0 = if size > 0 { Place::Within(size) } else { Place::Last };
                Ok(Part::Frame(used))
            }
            Ok(Status::Partial) if bytes.len() < SIZE_LINE_BYTES_MAX => Ok(Part::More),
            _ => Err(InvalidResponse::Chunk),
        }
    }
}

/// Room for trailers.
pub type TrailerFields<'b> = [Field<'b>; FIELDS_MAX];

/// Room for them, empty.
#[must_use]
pub const fn trailer_fields<'b>() -> TrailerFields<'b> {
    [EMPTY_HEADER; FIELDS_MAX]
}

/// Parses the trailers behind the last chunk, if all of them are there. Returns them, and how many
/// bytes they take with their end.
///
/// # Errors
/// If they are malformed, or too many.
pub fn trailers<'f, 'b>(
    bytes: &'b [u8],
    fields: &'f mut TrailerFields<'b>,
) -> Result<Option<(&'f [Field<'b>], usize)>, InvalidResponse> {
    match httparse::parse_headers(bytes, fields) {
        Ok(Status::Complete((used, fields))) => Ok(Some((fields, used))),
        Ok(Status::Partial) if bytes.len() < TRAILER_BYTES_MAX => Ok(None),
        _ => Err(InvalidResponse::Chunk),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What an answer to a GET means; `None` if there is none yet.
    fn meaning(text: &str) -> Option<Result<(u16, Ending, bool), InvalidResponse>> {
        let mut room = fields();
        let parsed = head(text.as_bytes(), &mut room).transpose()?;
        Some(parsed.and_then(|head| {
            assert_eq!(head.bytes, text.len());
            head.ending(false).map(|(ending, keeps)| (head.status, ending, keeps))
        }))
    }

    fn means(lines: &str) -> Result<(u16, Ending, bool), InvalidResponse> {
        meaning(&format!("{}\r\n\r\n", lines.replace('\n', "\r\n"))).unwrap()
    }

    #[test]
    fn a_head_tells_how_its_body_ends() {
        use Ending::{Chunks, Close, Length, Nothing};
        for (lines, expected) in [
            ("HTTP/1.1 200 OK\nContent-Length: 5", (200, Length(5), true)),
            ("HTTP/1.1 200 OK\nContent-Length: 0", (200, Nothing, true)),
            ("HTTP/1.1 200\nContent-Length: 5\ncontent-length: 5", (200, Length(5), true)),
            ("HTTP/1.1 200 OK\nTransfer-Encoding: Chunked", (200, Chunks, true)),
            (
                "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\nContent-Length: 5",
                (200, Chunks, false),
            ),
            ("HTTP/1.1 200 OK", (200, Close, false)),
            ("HTTP/1.1 204 No Content", (204, Nothing, true)),
            ("HTTP/1.1 204 No Content\nContent-Length: 5", (204, Nothing, false)),
            ("HTTP/1.1 204 No Content\nContent-Length: 0", (204, Nothing, true)),
            ("HTTP/1.1 204 No Content\nTransfer-Encoding: chunked", (204, Nothing, false)),
            ("HTTP/1.1 304 Not Modified\nContent-Length: 5", (304, Nothing, true)),
            ("HTTP/1.1 101 Switching Protocols\nUpgrade: x", (101, Nothing, true)),
            ("HTTP/1.1 204 x\nConnection: x, CLOSE", (204, Nothing, false)),
            ("HTTP/1.1 204 x\nConnection: close\nConnection: keep-alive", (204, Nothing, false)),
            ("HTTP/1.0 204 x", (204, Nothing, false)),
            ("HTTP/1.0 204 x\nConnection: Keep-Alive", (204, Nothing, true)),
            ("HTTP/1.0 200 x\nConnection: keep-alive", (200, Close, false)),
        ] {
            assert_eq!(means(lines), Ok(expected), "{lines}");
        }
    }

    #[test]
    fn an_answer_with_two_ends_is_none() {
        for (lines, fault) in [
            ("HTTP/1.1 200 OK\nContent-Length: 5\nContent-Length: 6", InvalidResponse::Length),
            ("HTTP/1.1 200 OK\nContent-Length: 5, 5", InvalidResponse::Length),
            ("HTTP/1.1 200 OK\nContent-Length: +5", InvalidResponse::Length),
            ("HTTP/1.1 200 OK\nContent-Length:", InvalidResponse::Length),
            ("HTTP/1.1 200 OK\nContent-Length: 18446744073709551616", InvalidResponse::Length),
            ("HTTP/1.1 200 OK\nTransfer-Encoding: gzip, chunked", InvalidResponse::Coding),
            (
                "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked",
                InvalidResponse::Coding,
            ),
            ("HTTP/1.0 200 OK\nTransfer-Encoding: chunked", InvalidResponse::Coding),
            ("HTTP/1.1 099 OK", InvalidResponse::Head),
            ("HTTP/2.0 200 OK", InvalidResponse::Head),
            ("HTTP/1.1 200 OK\nContent-Length : 5", InvalidResponse::Head),
            ("HTTP/1.1 200 OK\n folded", InvalidResponse::Head),
            ("SSH-2.0", InvalidResponse::Head),
        ] {
            assert_eq!(means(lines), Err(fault), "{lines}");
        }
    }

    #[test]
    fn a_head_is_read_once_all_of_it_is_there() {
        let text = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        (0..text.len()).for_each(|end| assert!(meaning(&text[..end]).is_none(), "{end}"));
        let mut room = fields();
        let more = format!("{text}HTTP/1.1 200 OK\r\n\r\n");
        let parsed = head(more.as_bytes(), &mut room).unwrap().unwrap();
        assert!(parsed.is_interim() && parsed.bytes == text.len());
        assert_eq!((parsed.reason, parsed.fields[0].value), ("Early Hints", &b"</a>"[..]));
        let answers_head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let mut room = fields();
        let parsed = head(answers_head.as_bytes(), &mut room).unwrap().unwrap();
        assert_eq!(parsed.ending(true), Ok((Ending::Nothing, true)));
        assert!(!parsed.is_interim());
    }

    #[test]
    fn more_fields_than_there_is_room_for_are_no_head() {
        let lines = |count| format!("HTTP/1.1 204 x\r\n{}\r\n", "a: b\r\n".repeat(count));
        assert!(meaning(&lines(FIELDS_MAX)).unwrap().is_ok());
        assert_eq!(meaning(&lines(FIELDS_MAX + 1)), Some(Err(InvalidResponse::Head)));
    }

    type Read = (Vec<u8>, Option<Vec<(String, Vec<u8>)>>);

    /// Reads chunks that come in pieces of these sizes, again and again.
    fn read(bytes: &[u8], pieces: &[usize]) -> Result<(Read, usize), InvalidResponse> {
        let mut chunks = Chunks::default();
        let (mut at, mut seen) = (0, 0);
        let mut data = Vec::new();
        for piece in pieces.iter().cycle() {
            seen = bytes.len().min(seen + piece);
            loop {
                match chunks.next(&bytes[at..seen])? {
                    Part::More => break,
                    Part::Frame(used) => at += used,
                    Part::Data(more) => {
                        data.extend_from_slice(more);
                        at += more.len();
                    }
                    Part::End => {
                        let mut room = trailer_fields();
                        let Some((fields, used)) = trailers(&bytes[at..seen], &mut room)? else {
                            break;
                        };
                        let own = |field: &Field<'_>| (field.name.to_owned(), field.value.into());
                        let fields = fields.iter().map(own).collect();
                        return Ok(((data, Some(fields)), at + used));
                    }
                }
            }
            if seen == bytes.len() {
                break;
            }
        }
        Ok(((data, None), at))
    }

    #[test]
    fn what_is_no_chunk_is_refused_and_what_is_cut_off_does_not_end() {
        for bad in [
            &b"\r\n"[..],
            b";x\r\n",
            b" 5\r\nhello\r\n",
            b"5\nhello\r\n",
            b"5\r\nhelloX\r\n",
            b"5\r\nhello\n",
            b"g\r\n",
            b"-1\r\n",
            b"11111111111111111\r\n",
            b"0\r\n folded\r\n\r\n",
            b"0\r\nno field\r\n\r\n",
        ] {
            assert_eq!(read(bad, &[1000]), Err(InvalidResponse::Chunk), "{}", bad.escape_ascii());
        }
        let whole = b"5;ext=\"a\"\r\nhello\r\n0\r\nA: b\r\n\r\n";
        for end in 0..whole.len() {
            let ((data, fields), _) = read(&whole[..end], &[3]).unwrap();
            assert!(b"hello".starts_with(&data) && fields.is_none(), "{end}");
        }
        let (told, used) = read(whole, &[1]).unwrap();
        assert_eq!(told, (b"hello".to_vec(), Some(vec![("A".to_owned(), b"b".to_vec())])));
        assert_eq!(used, whole.len());
        let endless = [b"1;".to_vec(), vec![b'x'; SIZE_LINE_BYTES_MAX]].concat();
        assert_eq!(read(&endless, &[100]), Err(InvalidResponse::Chunk));
        let endless = [b"0\r\nA: ".to_vec(), vec![b'x'; TRAILER_BYTES_MAX]].concat();
        assert_eq!(read(&endless, &[100]), Err(InvalidResponse::Chunk));
    }

    proptest! {
        /// However a body is cut into chunks and those into reads, it comes out as it went in, and
        /// what follows it is left alone.
        #[test]
        fn chunks_come_out_as_they_went_in(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8),
            pieces in prop::collection::vec(1..30_usize, 1..6),
            next in prop::collection::vec(any::<u8>(), 0..10),
        ) {
            let mut bytes = Vec::new();
            for part in &parts {
                bytes.extend_from_slice(format!("{:X}\r\n", part.len()).as_bytes());
                bytes.extend_from_slice(part);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
            let whole = bytes.len();
            bytes.extend_from_slice(&next);
            let ((data, fields), used) = read(&bytes, &pieces).unwrap();
            prop_assert_eq!(data, parts.concat());
            prop_assert_eq!((fields, used), (Some(vec![]), whole));
        }
    }
}
