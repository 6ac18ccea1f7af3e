//! Any bytes at the RESP door: requests, the beginning of one, or the end of the connection.
//!
//! The first byte chooses how long arguments may be, and whether the client has authenticated. A
//! stream must mean the same wherever it is cut, and a request that is written as an array must be
//! read as the same request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::resp::{
    ARGUMENTS_MAX, RequestBounds, ParsedFront, Parser, number, request, request_bytes_max,
};

/// The requests of a stream that comes in these pieces, and the error that ends it.
fn read(pieces: &[&[u8]], bounds: &RequestBounds) -> (Vec<Vec<Vec<u8>>>, Vec<u8>) {
    let mut parser = Parser::default();
    let (mut buffer, mut requests, mut error) = (Vec::new(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match parser.parse(&buffer[at..], bounds) {
                ParsedFront::Request { arguments, bytes } => {
                    assert!(0 < bytes && bytes <= buffer.len() - at);
                    assert!((1..=ARGUMENTS_MAX).contains(&arguments.len()));
                    requests.push(arguments.iter().map(<[u8]>::to_vec).collect());
                    at += bytes;
                }
                ParsedFront::Empty { bytes } => {
                    assert!(0 < bytes && bytes <= buffer.len() - at);
                    at += bytes;
                }
                ParsedFront::Incomplete => break,
                ParsedFront::Broken(broken) => {
                    broken.reply(&mut error);
                    assert!(error.starts_with(b"-ERR Protocol error: "));
                    // One line, whatever the client has sent.
                    assert_eq!(error.iter().filter(|byte| **byte == b'\n').count(), 1);
                    return (requests, error);
                }
            }
        }
        buffer.drain(..at);
        assert!(buffer.len() < request_bytes_max(bounds.value_max));
    }
    (requests, error)
}

fuzz_target!(|input: &[u8]| {
    let [choice, bytes @ ..] = input else { return };
    let value_max = usize::from(choice >> 1) * 8;
    let bounds = RequestBounds { value_max, is_authenticated: choice & 1 == 1 };
    let whole = read(&[bytes], &bounds);
    // Cut where the last byte says, and everywhere.
    let cut = bytes.last().map_or(0, |&byte| usize::from(byte).min(bytes.len()));
    let (one, other) = bytes.split_at(cut);
    assert_eq!(read(&[one, other], &bounds), whole);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(read(&single, &bounds), whole);

    let wide = RequestBounds { value_max: 64 << 10, is_authenticated: true };
    for words in &whole.0 {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let mut again = Vec::new();
        request::request(&mut again, &words);
        assert_eq!(read(&[&again], &wide).0, [words.clone()]);
        for word in words {
            let text = std::str::from_utf8(word).ok();
            assert_eq!(number::lenient(word), text.and_then(|text| text.parse().ok()));
        }
    }
});
