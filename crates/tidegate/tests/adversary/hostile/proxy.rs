//! What hostile clients say at the proxy door, in HTTP/1.1 and HTTP/2: requests that pass, that are
//! refused, and that wait with their bodies in every state; answers that are not read.

use super::Target;
use super::http2::{DATA, END_HEADERS, END_STREAM, FRAME_BYTES_MAX, HEADERS, frame, greeting};
use crate::server::Doors;

/// The path of `/full` has no use left once the first request has passed: all others wait.
const FULL: &str = "/full";

pub(super) fn add(doors: &Doors, targets: &mut Vec<Target>) {
    for address in [doors.waiting, doors.rejecting] {
        let paths = ["/free", FULL, "/slow"];
        let mut scripts: Vec<Vec<u8>> = paths.iter().flat_map(|path| requests(path)).collect();
        scripts.extend([
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            b"CONNECT a.example:443 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            b"GET /free HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
                .to_vec(),
            [b"GET /", &[b'a'; 9_000][..], b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat(),
        ]);
        let mut burdens = requests(FULL);
        burdens.extend(requests("/slow"));
        burdens.push(get("/large").repeat(3));
        burdens.push(two("/large", 0, true));
        targets.push(Target { address: address.into(), scripts, burdens });
    }
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
}

fn post(path: &str, declared: usize, sent: usize, more: &str) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {declared}\r\n{more}");
    [head.as_bytes(), b"\r\n", &vec![b'b'; sent]].concat()
}

fn chunked(path: &str, chunks: usize, is_whole: bool) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = [b"2710\r\n", &[b'c'; 10_000][..], b"\r\n"].concat().repeat(chunks);
    [head.as_bytes(), &chunk, if is_whole { b"0\r\n\r\n" } else { b"" }].concat()
}

/// Requests for a path with bodies in every state.
fn requests(path: &str) -> Vec<Vec<u8>> {
    vec![
        get(path),
        get(path).repeat(2),
        post(path, 5, 5, ""),
        post(path, 30_000, 30_000, ""),
        post(path, 30_000, 10_000, ""),
        post(path, 30_000, 0, "Expect: 100-continue\r\n"),
        post(path, 60_000, 59_999, ""),
        post(path, 200_000, 200_000, ""),
        post(path, 200_000, 100_000, ""),
        [post(path, 30_000, 30_000, ""), get(path)].concat(),
        chunked(path, 3, true),
        chunked(path, 3, false),
        chunked(path, 10, false),
        two(path, 0, true),
        two(path, 30_000, true),
        two(path, 30_000, false),
        two(path, 65_000, false),
    ]
}

/// An HTTP/2 connection with requests for a path, the last of them with a body.
fn two(path: &str, body: usize, is_whole: bool) -> Vec<u8> {
    let mut bytes = greeting(&[]);
    // POST, http, and two literals: the path and the authority.
    let head = |method: u8| {
        let length = u8::try_from(path.len()).expect("a short path");
        [&[method, 0x86, 0x04, length][..], path.as_bytes(), &[0x01, 1, b'a']].concat()
    };
    let (get, post) = (0x82, 0x83);
    for stream in [1, 3] {
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &head(get)));
    }
    let ends_here = if body == 0 && is_whole { END_STREAM } else { 0 };
    bytes.extend(frame(HEADERS, END_HEADERS | ends_here, 5, &head(post)));
    let body = vec![b'd'; body];
    for (at, piece) in body.chunks(FRAME_BYTES_MAX).enumerate() {
        let is_last = (at + 1) * FRAME_BYTES_MAX >= body.len();
        bytes.extend(frame(DATA, if is_whole && is_last { END_STREAM } else { 0 }, 5, piece));
    }
    bytes
}
