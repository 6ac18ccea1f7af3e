//! The codec against the protocol's page: the framing table, whole and in pieces.

mod replies;
mod requests;

use super::*;

const BOUNDS: RequestBounds = RequestBounds { value_max: 64 << 10, is_authenticated: true };

/// What a stream of bytes means: the arguments of each request, then how it ends.
#[derive(Debug, Default, PartialEq, Eq)]
struct Meaning {
    requests: Vec<Vec<Vec<u8>>>,
    error: Option<String>,
    /// Bytes of an unfinished request.
    left: usize,
}

/// Reads a stream that comes in these pieces, as an event loop does: what was not taken is offered
/// again, with more.
fn read(pieces: &[&[u8]], bounds: &RequestBounds) -> Meaning {
    let mut parser = Parser::default();
    let mut buffer = Vec::new();
    let mut meaning = Meaning::default();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match parser.parse(&buffer[at..], bounds) {
                ParsedFront::Request { arguments, bytes } => {
                    assert!(0 < bytes && bytes <= buffer.len() - at);
                    meaning.requests.push(arguments.iter().map(<[u8]>::to_vec).collect());
                    at += bytes;
                }
                ParsedFront::Empty { bytes } => at += bytes,
                ParsedFront::Incomplete => break,
                ParsedFront::Broken(error) => {
                    let mut reply = Vec::new();
                    error.reply(&mut reply);
                    meaning.error = Some(String::from_utf8(reply).expect("text"));
                    let again = parser.parse(&buffer[at..], bounds);
                    assert!(matches!(again, ParsedFront::Broken(same) if same == error));
                    return meaning;
                }
            }
        }
        buffer.drain(..at);
        assert!(buffer.len() < request_bytes_max(bounds.value_max));
    }
    meaning.left = buffer.len();
    meaning
}

/// The meaning of `bytes`, which must be the same wherever they are cut.
#[track_caller]
fn meaning(bytes: &[u8], bounds: &RequestBounds) -> Meaning {
    let whole = read(&[bytes], bounds);
    for cut in 0..=bytes.len() {
        let (one, other) = bytes.split_at(cut);
        assert_eq!(read(&[one, other], bounds), whole, "cut at {cut}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(read(&single, bounds), whole, "byte by byte");
    whole
}

/// The requests in `bytes`, and nothing else.
#[track_caller]
fn requests(bytes: &[u8], expected: &[&[&[u8]]]) {
    let meaning = meaning(bytes, &BOUNDS);
    let expected: Vec<Vec<Vec<u8>>> =
        expected.iter().map(|words| words.iter().map(|word| word.to_vec()).collect()).collect();
    assert_eq!(meaning, Meaning { requests: expected, ..Meaning::default() });
}

/// The error that ends `bytes`, behind so many requests.
#[track_caller]
fn broken(bytes: &[u8], bounds: &RequestBounds, behind: usize, expected: &str) {
    let meaning = meaning(bytes, bounds);
    assert_eq!(meaning.requests.len(), behind);
    assert_eq!(meaning.error, Some(format!("-ERR Protocol error: {expected}\r\n")));
}
