//! Any datagram at the text door: it is ignored, or answered within bounds by what a client reads.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::text::ask::{self, ReplyBody};
use tidegate_wire::text::{
    CHECK_REPLY_BYTES_MAX, CheckLimit, KEY_BYTES_MAX, REPLY_BYTES_MAX, ReplyLine, SizeReply,
    StatsReply, TextCommand, parse, server,
};

fuzz_target!(|datagram: &[u8]| {
    let Ok(request) = parse(datagram) else { return };
    let id = request.id;
    // The rate is drawn from the datagram too: any bits may come out of an algorithm.
    let bits = datagram.iter().rev().take(8).fold(0, |bits, &byte| bits << 8 | u64::from(byte));
    let line =
        ReplyLine { over: bits % 2 == 1, rate: f64::from_bits(bits), limit: bits, period_ns: bits };
    let mut out = vec![0; REPLY_BYTES_MAX];
    let written = match request.command {
        TextCommand::OverLimit(_) => server::over_limit(&mut out, id, &line),
        TextCommand::GetStats(key) => {
            let stats = StatsReply { requests: bits, over: bits / 2, last_max_rate: u64::MAX };
            server::get_stats(&mut out, id, &stats, key)
        }
        TextCommand::GetSize => server::get_size(
            &mut out,
            id,
            &SizeReply { used: bits, total: u64::MAX, keys: bits / 2 },
        ),
        TextCommand::Ping => server::ping(&mut out, id),
        TextCommand::CheckLimit(json) => {
            let Ok(check) = CheckLimit::parse(json) else { return };
            assert!(check.keys().iter().all(|key| key.len() <= KEY_BYTES_MAX));
            out.clear();
            check.reply(&mut out, id, &[line; 3]);
            assert!(out.len() <= CHECK_REPLY_BYTES_MAX);
            Ok(out.len())
        }
    };
    out.truncate(written.expect("the buffer has room for every reply"));
    let read = ask::reply(&out).expect("a client reads every reply");
    assert_eq!(read.id, id);
    match (request.command, read.answer) {
        (TextCommand::OverLimit(_), ReplyBody::Line(shown)) => assert_eq!(shown.over, line.over),
        (TextCommand::GetStats(key), ReplyBody::Stats { key: echoed, .. }) => {
            assert_eq!(key, echoed)
        }
        (TextCommand::CheckLimit(_), ReplyBody::Checked(keys)) => assert_eq!(keys.len(), 3),
        (TextCommand::GetSize, ReplyBody::Size { .. }) | (TextCommand::Ping, ReplyBody::Pong) => {}
        (command, answer) => panic!("{command:?} was answered by {answer:?}"),
    }
});
