//! What the front of a buffer holds: a request, the beginning of one, or what ends a connection.
//!
//! A [`Parser`] remembers how far it got, so that a request that comes in many pieces is looked at
//! once. A header is judged as soon as its line is there: no client waits, and the server makes no
//! room, for what will be refused.

use super::arguments::{ArgumentSpan, Arguments};
use super::{
    ARGUMENTS_MAX, LINE_BYTES_MAX, REQUEST_BYTES_MAX, UNAUTHENTICATED_ARGUMENTS_MAX,
    UNAUTHENTICATED_BYTES_MAX, inline, number,
};

/// Arguments for which a parser keeps room between two requests.
const KEEP_ARGUMENTS: usize = 32;
/// Bytes of an inline command for which a parser keeps room between two requests.
const KEEP_TEXT_BYTES: usize = 256;

/// What the front of a buffer holds.
#[derive(Clone, Copy, Debug)]
pub enum ParsedFront<'a> {
    /// A whole request.
    Request {
        /// Its arguments, the command's name first.
        arguments: Arguments<'a>,
        /// How many bytes of the buffer it is.
        bytes: usize,
    },
    /// An empty line or an empty array, which gets no reply.
    Empty {
        /// How many bytes of the buffer it is.
        bytes: usize,
    },
    /// The beginning of a request, or nothing: read more. It never has as many bytes as
    /// [`request_bytes_max`](super::request_bytes_max).
    Incomplete,
    /// No request, and nothing behind it can be understood: write the replies so far and this
    /// error, and close.
    Broken(ProtocolError),
}

/// Why a stream of requests cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number of arguments is no number, or too large.
    ArgumentCount,
    /// The length of an argument is no number, or too large.
    ArgumentLength,
    /// Another byte than `$` where an argument must begin.
    ExpectedDollar(u8),
    /// A quote of an inline command is open, or text stands right behind a closing one.
    UnbalancedQuotes,
    /// An inline command has no end, or too long an argument.
    InlineTooLong,
    /// The line with the number of arguments has no end.
    CountLineTooLong,
    /// The line with the length of an argument has no end.
    LengthLineTooLong,
    /// Too many arguments for a client that has not authenticated.
    UnauthenticatedCount,
    /// Too long an argument for a client that has not authenticated.
    UnauthenticatedLength,
    /// An argument is not followed by CR LF.
    ExpectedCrLf,
}

impl ProtocolError {
    /// Appends the error as a reply.
    pub fn reply(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-ERR Protocol error: ");
        if let Self::ExpectedDollar(byte) = self {
            out.extend_from_slice(b"expected '$', got '");
            super::reply::push_clean(out, &[byte]);
            out.push(b'\'');
        } else {
            out.extend_from_slice(self.text().as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }

    fn text(self) -> &'static str {
        match self {
            Self::ArgumentCount => "invalid multibulk length",
            Self::ArgumentLength => "invalid bulk length",
            Self::ExpectedDollar(_) => "expected '$'",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
            Self::InlineTooLong => "too big inline request",
            Self::CountLineTooLong => "too big mbulk count string",
            Self::LengthLineTooLong => "too big bulk count string",
            Self::UnauthenticatedCount => "unauthenticated multibulk length",
            Self::UnauthenticatedLength => "unauthenticated bulk length",
            Self::ExpectedCrLf => "expected CRLF after a bulk",
        }
    }
}

/// How much a client may send.
#[derive(Clone, Copy, Debug)]
pub struct RequestBounds {
    /// The longest argument.
    pub value_max: usize,
    /// Whether the client has authenticated, or need not.
    pub is_authenticated: bool,
}

/// Reads the requests of one connection.
#[derive(Debug, Default)]
pub struct Parser {
    /// Bytes of the request that were understood.
    at: usize,
    /// Bytes in which no end of a line was found.
    searched: usize,
    /// Arguments that are still to come.
    missing: usize,
    /// The length of the argument at `at`, once its header was read.
    length: Option<usize>,
    spans: Vec<ArgumentSpan>,
    /// The words of an inline command.
    text: Vec<u8>,
    /// The last call found a request.
    is_done: bool,
    /// What ended the stream.
    error: Option<ProtocolError>,
}

/// What a step of a parser ends with before the request is whole.
enum Stop {
    Incomplete,
    Broken(ProtocolError),
}

impl From<ProtocolError> for Stop {
    fn from(error: ProtocolError) -> Self {
        Self::Broken(error)
    }
}

impl Parser {
    /// Reads the front of `bytes`: the same bytes as in the last call, and more, if that was
    /// [`ParsedFront::Incomplete`]; otherwise those behind what it returned. A broken stream stays
    /// broken.
    #[inline]
    pub fn parse<'a>(&'a mut self, bytes: &'a [u8], bounds: &RequestBounds) -> ParsedFront<'a> {
        if self.is_done {
            self.reset();
        }
        if let Some(error) = self.error {
            return ParsedFront::Broken(error);
        }
        let is_inline = match bytes.first() {
            None => return ParsedFront::Incomplete,
            Some(byte) => *byte != b'*',
        };
        let read = match is_inline {
            true => self.read_line(bytes, bounds),
            false => self.read_array(bytes, bounds),
        };
        match read {
            Ok(()) => {}
            Err(Stop::Incomplete) => return ParsedFront::Incomplete,
            Err(Stop::Broken(error)) => {
                self.error = Some(error);
                return ParsedFront::Broken(error);
            }
        }
        self.is_done = true;
        let bytes_read = self.at;
        if self.spans.is_empty() {
            return ParsedFront::Empty { bytes: bytes_read };
        }
        let text = if is_inline { &self.text[..] } else { &bytes[..bytes_read] };
        let arguments = Arguments::new(text, &self.spans, is_inline);
        ParsedFront::Request { arguments, bytes: bytes_read }
    }

    #[inline]
    fn reset(&mut self) {
        (self.at, self.searched, self.missing) = (0, 0, 0);
        (self.length, self.is_done) = (None, false);
        self.spans.clear();
        self.text.clear();
        // Room that few requests need is not kept for each connection.
        if self.spans.capacity() > KEEP_ARGUMENTS {
            self.spans = Vec::new();
        }
        if self.text.capacity() > KEEP_TEXT_BYTES {
            self.text = Vec::new();
        }
    }

    #[inline]
    fn read_array(&mut self, bytes: &[u8], bounds: &RequestBounds) -> Result<(), Stop> {
        if self.at == 0 {
            let count = self.header(bytes, ProtocolError::CountLineTooLong)?;
            let count = count.filter(|count| *count <= ARGUMENTS_MAX as i64);
            let count = count.ok_or(ProtocolError::ArgumentCount)?.max(0) as usize;
            if count > UNAUTHENTICATED_ARGUMENTS_MAX && !bounds.is_authenticated {
                return Err(ProtocolError::UnauthenticatedCount.into());
            }
            self.missing = count;
        }
        while self.missing > 0 {
            let length = match self.length {
                Some(length) => length,
                None => self.length(bytes, bounds)?,
            };
            let end = self.at + length;
            match bytes.get(end..) {
                Some([b'\r', b'\n', ..]) => {}
                None | Some([] | [b'\r']) => return Err(Stop::Incomplete),
                Some(_) => return Err(ProtocolError::ExpectedCrLf.into()),
            }
            self.spans.push(ArgumentSpan::new(self.at, length));
            (self.at, self.length) = (end + 2, None);
            self.missing -= 1;
        }
        Ok(())
    }

    /// Reads the header of the next argument: its length.
    #[inline]
    fn length(&mut self, bytes: &[u8], bounds: &RequestBounds) -> Result<usize, Stop> {
        match bytes.get(self.at) {
            None => return Err(Stop::Incomplete),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::ExpectedDollar(*other).into()),
        }
        let length = self.header(bytes, ProtocolError::LengthLineTooLong)?;
        let length = length.and_then(|length| usize::try_from(length).ok());
        let room = REQUEST_BYTES_MAX.saturating_add(bounds.value_max).saturating_sub(self.at);
        let length = length
            .filter(|length| *length <= bounds.value_max && *length <= room)
            .ok_or(ProtocolError::ArgumentLength)?;
        if length > UNAUTHENTICATED_BYTES_MAX && !bounds.is_authenticated {
            return Err(ProtocolError::UnauthenticatedLength.into());
        }
        self.length = Some(length);
        Ok(length)
    }

    /// Reads a line of one byte, a number, CR and LF at `at`, and goes behind it. `None`: it has no
    /// number.
    #[inline]
    fn header(&mut self, bytes: &[u8], too_long: ProtocolError) -> Result<Option<i64>, Stop> {
        // Nearly all numbers have one digit or two.
        let (number, line_bytes) = match bytes[self.at..] {
            [_, one @ b'0'..=b'9', b'\r', b'\n', ..] => (i64::from(one - b'0'), 4),
            [_, ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] => {
                (i64::from(ten - b'0') * 10 + i64::from(one - b'0'), 5)
            }
            _ => return self.long_header(bytes, too_long),
        };
        self.at += line_bytes;
        self.searched = self.at;
        Ok(Some(number))
    }

    #[inline(never)]
    fn long_header(&mut self, bytes: &[u8], too_long: ProtocolError) -> Result<Option<i64>, Stop> {
        let cr = self.find(bytes, b'\r', too_long)?;
        match bytes.get(cr + 1) {
            None => {
                self.searched = cr;
                Err(Stop::Incomplete)
            }
            Some(next) => {
                let number = number::strict(&bytes[self.at + 1..cr]).filter(|_| *next == b'\n');
                self.at = cr + 2;
                self.searched = self.at;
                Ok(number)
            }
        }
    }

    /// Reads an inline command.
    fn read_line(&mut self, bytes: &[u8], bounds: &RequestBounds) -> Result<(), Stop> {
        let end = self.find(bytes, b'\n', ProtocolError::InlineTooLong)?;
        let line = &bytes[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        inline::split(line, &mut self.text, &mut self.spans)?;
        if self.spans.iter().any(|span| span.bytes as usize > bounds.value_max) {
            return Err(ProtocolError::InlineTooLong.into());
        }
        self.at = end + 1;
        Ok(())
    }

    /// Where `wanted` stands in the line that begins at `at`.
    fn find(&mut self, bytes: &[u8], wanted: u8, error: ProtocolError) -> Result<usize, Stop> {
        let from = self.searched.max(self.at);
        let most = self.at + LINE_BYTES_MAX + 1;
        let line = &bytes[from..bytes.len().clamp(from, most.max(from))];
        if let Some(found) = line.iter().position(|byte| *byte == wanted) {
            return Ok(from + found);
        }
        if bytes.len() >= most {
            return Err(error.into());
        }
        self.searched = bytes.len();
        Err(Stop::Incomplete)
    }
}
