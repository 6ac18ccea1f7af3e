//! Any bytes at a publisher, from a peer that says it is a subscriber.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::zmtp::{FRAME_BYTES_MAX, Said, parse, write_frame, write_pong};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some((frame, used))) = parse(rest) {
        assert!(used > 0 && used <= rest.len() && used <= FRAME_BYTES_MAX + 9);
        let _ = frame.check_ready();
        if let Said::Ping(context) = frame.said() {
            let mut pong = Vec::new();
            write_pong(context, &mut pong);
            assert!(matches!(parse(&pong), Ok(Some((_, used))) if used == pong.len()));
        }
        rest = &rest[used..];
    }
    let body = &bytes[..bytes.len().min(FRAME_BYTES_MAX)];
    let mut written = Vec::new();
    write_frame(false, body, &mut written);
    assert!(matches!(parse(&written), Ok(Some((_, used))) if used == written.len()));
});
