//! Requests: arrays, inline commands, and everything that ends a connection.

use proptest::prelude::*;

use super::*;

#[test]
fn arrays_hold_any_bytes() {
    requests(b"*2\r\n$4\r\nECHO\r\n$1\r\na\r\n", &[&[b"ECHO", b"a"]]);
    requests(b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n", &[&[b"PING"], &[b"PING"]]);
    requests(
        b"*4\r\n$1\r\na\r\n$0\r\n\r\n$2\r\n\r\n\r\n$10\r\n\0\xff0123456\n\r\n",
        &[&[b"a", b"", b"\r\n", b"\0\xff0123456\n"]],
    );
    let long = [b'x'; 123];
    let mut bytes = Vec::new();
    request::request(&mut bytes, &[b"SET", b"k", &long]);
    requests(&bytes, &[&[b"SET", b"k", &long]]);
}

#[test]
fn empty_requests_get_no_reply() {
    requests(b"\r\n\n*0\r\n*-1\r\n*-10\r\n  \t \r\nPING\r\n", &[&[b"PING"]]);
}

#[test]
fn an_inline_command_is_a_line_of_words() {
    requests(b"PING\n", &[&[b"PING"]]);
    requests(b"  set  a\tb \r\nget a\r\n", &[&[b"set", b"a", b"b"], &[b"get", b"a"]]);
    requests(
        br#"a "b c" "\x41\xfF\n\r\t\b\a\\\"\q" 'it\'s \n' "" x"y z""#
            .iter()
            .chain(b"\n")
            .copied()
            .collect::<Vec<u8>>()
            .as_slice(),
        &[&[b"a", b"b c", b"A\xff\n\r\t\x08\x07\\\"q", b"it's \\n", b"", b"xy z"]],
    );
    // A wrong hexadecimal escape is an x.
    requests(b"\"\\xg1\"\n", &[&[b"xg1"]]);
}

#[test]
fn a_wrong_number_of_arguments_ends_the_connection() {
    for count in ["*abc", "*+1", "*01", "*", "*-0", "*-x", "* 1", "*1 ", "*1025", "*2147483648"] {
        let bytes = format!("PING\r\n{count}\r\nPING\r\n");
        broken(bytes.as_bytes(), &BOUNDS, 1, "invalid multibulk length");
    }
    broken(b"*1\rX", &BOUNDS, 0, "invalid multibulk length");
    broken(b"*99999999999999999999\r\n", &BOUNDS, 0, "invalid multibulk length");
    assert_eq!(read(&[b"*1024\r\n"], &BOUNDS).error, None);
}

#[test]
fn a_wrong_length_ends_the_connection() {
    for length in ["$-1", "$abc", "$", "$+1", "$01", "$65537", "$1073741824", "$1 "] {
        let bytes = format!("*1\r\n{length}\r\n");
        broken(bytes.as_bytes(), &BOUNDS, 0, "invalid bulk length");
    }
    assert_eq!(read(&[b"*1\r\n$65536\r\n"], &BOUNDS).error, None);
}

#[test]
fn another_byte_in_the_place_of_a_dollar_ends_the_connection() {
    broken(b"*1\r\n:5\r\n", &BOUNDS, 0, "expected '$', got ':'");
    broken(b"*2\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n", &BOUNDS, 0, "expected '$', got '*'");
    // What a client sends does not break a line of a reply.
    broken(b"*1\r\n\r\n", &BOUNDS, 0, "expected '$', got ' '");
}

#[test]
fn quotes_must_be_closed_before_a_blank() {
    for line in ["a \"b", "a 'b", "a \"b\"c", "a 'b'c", "\"", "a \"b\\"] {
        broken(format!("{line}\r\n").as_bytes(), &BOUNDS, 0, "unbalanced quotes in request");
    }
}

#[test]
fn a_line_has_an_end() {
    let endless = |first: &str, error: &str| {
        let line = |bytes: usize| [first.as_bytes(), &vec![b'1'; bytes][..]].concat();
        let longest = LINE_BYTES_MAX - (first.len() - first.rfind('\n').map_or(0, |at| at + 1));
        assert_eq!(read(&[&line(longest)], &BOUNDS).error, None, "{error}");
        let meaning = read(&[&line(longest + 1)], &BOUNDS);
        assert_eq!(meaning.error, Some(format!("-ERR Protocol error: {error}\r\n")));
        let pieces = line(longest + 1);
        let pieces: Vec<&[u8]> = pieces.chunks(1000).collect();
        assert_eq!(read(&pieces, &BOUNDS), meaning);
    };
    endless("a", "too big inline request");
    endless("*", "too big mbulk count string");
    endless("*1\r\n$", "too big bulk count string");
}

#[test]
fn a_client_that_has_not_authenticated_may_send_less() {
    let bounds = RequestBounds { is_authenticated: false, ..BOUNDS };
    broken(b"*11\r\n", &bounds, 0, "unauthenticated multibulk length");
    broken(b"*1\r\n$16385\r\n", &bounds, 0, "unauthenticated bulk length");
    broken(b"*1025\r\n", &bounds, 0, "invalid multibulk length");
    broken(b"*1\r\n$65537\r\n", &bounds, 0, "invalid bulk length");
    let most = [b"*10\r\n$16384\r\n".as_slice(), &[b'x'; 16384], b"\r\n"].concat();
    assert_eq!(read(&[&most], &bounds).error, None);
}

#[test]
fn an_argument_is_followed_by_cr_lf() {
    broken(b"*1\r\n$1\r\nabc", &BOUNDS, 0, "expected CRLF after a bulk");
    broken(b"*1\r\n$1\r\na\rb", &BOUNDS, 0, "expected CRLF after a bulk");
    broken(b"*1\r\n$1\r\na\n\n", &BOUNDS, 0, "expected CRLF after a bulk");
}

#[test]
fn a_request_has_a_bound_as_a_whole() {
    let bounds = RequestBounds { value_max: 64 << 10, is_authenticated: true };
    let argument = [b"$65536\r\n".as_slice(), &[b'x'; 65536], b"\r\n"].concat();
    let bytes = [b"*1024\r\n".as_slice(), &argument.repeat(40)].concat();
    let meaning = read(&[&bytes], &bounds);
    assert_eq!(meaning.error.as_deref(), Some("-ERR Protocol error: invalid bulk length\r\n"));
    // As many keys as an array can hold, as long as keys can be.
    let keys = [b"$1024\r\n".as_slice(), &[b'x'; 1024], b"\r\n"].concat().repeat(1023);
    let bytes = [b"*1024\r\n$3\r\nDEL\r\n".as_slice(), &keys].concat();
    assert_eq!(read(&[&bytes], &bounds).requests[0].len(), 1024);
}

#[test]
fn an_inline_command_has_as_many_words_as_an_array() {
    let words = |count: usize| [b"a ".repeat(count), b"\n".to_vec()].concat();
    assert_eq!(read(&[&words(1024)], &BOUNDS).requests[0].len(), 1024);
    let error = "-ERR Protocol error: invalid multibulk length\r\n";
    assert_eq!(read(&[&words(1025)], &BOUNDS).error.as_deref(), Some(error));
}

#[test]
fn an_inline_command_is_no_longer_than_a_line_and_its_words_than_an_argument() {
    let error = "-ERR Protocol error: too big inline request\r\n";
    // The end of the line, 64 KiB behind its beginning, comes with it.
    for (line, argument, is_read) in [
        (LINE_BYTES_MAX, LINE_BYTES_MAX, true),
        (LINE_BYTES_MAX + 1, LINE_BYTES_MAX, false),
        (600, 500, false),
        (600, 595, true),
    ] {
        let bytes = [b"ECHO ".to_vec(), vec![b'x'; line - 5], b"\n".to_vec()].concat();
        let meaning = read(&[&bytes], &RequestBounds { value_max: argument, ..BOUNDS });
        let expected = if is_read { None } else { Some(error) };
        assert_eq!(meaning.error.as_deref(), expected, "{line} bytes, {argument} in an argument");
        assert_eq!(meaning.requests.len(), usize::from(is_read));
    }
}

#[test]
fn what_was_looked_at_is_not_looked_at_again() {
    // Bytes that were seen are replaced by what would end the line or break the request.
    let mut parser = Parser::default();
    let mut line = vec![b'a'; 1000];
    for seen in 1..1000 {
        assert!(matches!(parser.parse(&line[..seen], &BOUNDS), ParsedFront::Incomplete));
        line[1..seen].fill(b'\n');
    }
    let mut parser = Parser::default();
    let mut bytes = b"*3\r\n$1\r\na\r\n$1000\r\n".to_vec();
    let header = bytes.len();
    bytes.resize(header + 1000, b'x');
    for seen in header..header + 1000 {
        assert!(matches!(parser.parse(&bytes[..seen], &BOUNDS), ParsedFront::Incomplete));
        bytes[1..seen].fill(b'!');
    }
    bytes.extend_from_slice(b"\r\n$1\r\nb\r\n");
    match parser.parse(&bytes, &BOUNDS) {
        ParsedFront::Request { arguments, .. } => {
            assert_eq!(arguments.get(2), Some(b"b".as_slice()))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn places_are_told_of_arrays_alone() {
    let mut parser = Parser::default();
    let bytes = b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
    let ParsedFront::Request { arguments, .. } = parser.parse(bytes, &BOUNDS) else { panic!() };
    assert_eq!(arguments.place(1).map(|place| &bytes[place]), Some(b"key".as_slice()));
    assert_eq!((arguments.len(), arguments.place(2)), (2, None));
    let ParsedFront::Request { arguments, .. } = parser.parse(b"GET key\n", &BOUNDS) else {
        panic!()
    };
    assert_eq!((arguments.name(), arguments.place(1)), (b"GET".as_slice(), None));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        sent in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6),
            0..6,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut bytes = Vec::new();
        for words in &sent {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            request::request(&mut bytes, &words);
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            pieces.push(&bytes[from..cut]);
            from = cut;
        }
        let expected = Meaning { requests: sent, ..Meaning::default() };
        prop_assert_eq!(read(&pieces, &BOUNDS), expected);
    }

    #[test]
    fn any_bytes_mean_the_same_wherever_they_are_cut(
        bytes in prop::collection::vec(
            prop::sample::select(b"*$0123-\r\n\"'\\x aP:".to_vec()),
            0..40,
        )
    ) {
        meaning(&bytes, &BOUNDS);
    }
}
