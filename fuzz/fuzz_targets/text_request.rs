//! Any datagram at the text door: it is ignored, or answered within bounds by what a client reads.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::text::ask::{self, Answer};
use tidegate_wire::text::{
    CHECK_REPLY_BYTES_MAX, Check, Command, KEY_BYTES_MAX, Line, REPLY_BYTES_MAX, Size, Stats,
    parse, server,
};

fuzz_target!(|datagram: &[u8]| {
    let Ok(request) = parse(datagram) else { return };
    let id = request.id;
    // The rate is drawn from the datagram too: any bits may come out of an algorithm.
    let bits = datagram.iter().rev().take(8).fold(0, |bits, &byte| bits << 8 | u64::from(byte));
    let line =
        Line { over: bits % 2 == 1, rate: f64::from_bits(bits), limit: bits, period_ns: bits };
    let mut out = vec![0; REPLY_BYTES_MAX];
    let written = match request.command {
        Command::OverLimit(_) => server::over_limit(&mut out, id, &line),
        Command::GetStats(key) => {
            let stats = Stats { requests: bits, over: bits / 2, last_max_rate: u64::MAX };
            server::get_stats(&mut out, id, &stats, key)
        }
        Command::GetSize => {
            server::get_size(&mut out, id, &Size { used: bits, total: u64::MAX, keys: bits / 2 })
        }
        Command::Ping => server::ping(&mut out, id),
        Command::CheckLimit(json) => {
            let Ok(check) = Check::parse(json) else { return };
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
        (Command::OverLimit(_), Answer::Line(shown)) => assert_eq!(shown.over, line.over),
        (Command::GetStats(key), Answer::Stats { key: echoed, .. }) => assert_eq!(key, echoed),
        (Command::CheckLimit(_), Answer::Checked(keys)) => assert_eq!(keys.len(), 3),
        (Command::GetSize, Answer::Size { .. }) | (Command::Ping, Answer::Pong) => {}
        (command, answer) => panic!("{command:?} was answered by {answer:?}"),
    }
});
