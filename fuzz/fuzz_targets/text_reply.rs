//! Any datagram at a client of the text protocol: it is no reply, or one with sane numbers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::text::ask::{self, LineShown, ReplyBody};

fn sane(line: &LineShown) {
    assert!(line.rate.is_finite() && line.rate.is_sign_positive());
    assert!(line.limit.is_finite() && line.limit.is_sign_positive());
}

fuzz_target!(|datagram: &[u8]| {
    let Some(reply) = ask::reply(datagram) else { return };
    assert_eq!(reply.id.is_some(), datagram[0].is_ascii_digit());
    assert!(reply.id.is_none_or(|id| id.iter().all(u8::is_ascii_digit)));
    match reply.answer {
        ReplyBody::Line(line) => sane(&line),
        ReplyBody::Checked(keys) => {
            assert!(!keys.is_empty());
            keys.iter().for_each(|checked| sane(&checked.line));
        }
        ReplyBody::Stats { key, .. } => assert!(datagram.ends_with(key)),
        ReplyBody::Size { size, .. } => assert!(!size.contains(&b' ')),
        ReplyBody::Pong => assert!(datagram.ends_with(b"pong")),
    }
});
