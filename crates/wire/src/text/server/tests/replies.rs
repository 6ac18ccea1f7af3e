//! Replies: their forms, their bounds, and lines against slow formatting.

use proptest::prelude::*;

use super::super::super::{AMPLIFICATION_MAX, REPLY_BYTES_MAX};
use super::super::*;

const SECOND: u64 = 1_000_000_000;

fn line(over: bool, rate: f64, limit: u64, period_ns: u64) -> ReplyLine {
    ReplyLine { over, rate, limit, period_ns }
}

fn written(write: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>) -> String {
    let mut out = [b'#'; REPLY_BYTES_MAX];
    let len = write(&mut out).unwrap();
    String::from_utf8(out[..len].to_vec()).unwrap()
}

#[test]
fn over_limit_lines() {
    let check = |line: ReplyLine, expected: &str| {
        assert_eq!(written(|out| over_limit(out, None, &line)), expected);
        let with_id = written(|out| over_limit(out, Some(b"0042"), &line));
        assert_eq!(with_id, format!("0042 {expected}"));
    };
    check(line(false, 2034.3, 2500, 10 * SECOND), "ok N 2034.3 2500.0 10");
    check(line(false, 1.4, 22, 20 * SECOND), "ok N 1.4 22.0 20");
    check(line(true, 28.1, 22, 20 * SECOND), "ok Y 28.1 22.0 20");
    check(line(false, 0.0, 1, SECOND), "ok N 0.0 1.0 1");
    check(line(false, f64::NAN, 1, 1_000_000), "ok N 0.0 1.0 1");
    check(line(false, 0.25, 1, SECOND + 1), "ok N 0.2 1.0 2");
    check(line(true, f64::INFINITY, 1, 0), "ok Y 9999999.9 1.0 0");
    check(
        line(true, f64::MAX, u64::MAX, u64::MAX),
        "ok Y 9999999.9 18446744073709551615.0 18446744074",
    );
}

#[test]
fn a_line_fits_thirty_bytes_below_a_million_uses_a_day() {
    let line = line(true, f64::MAX, 999_999, 86_400 * SECOND);
    assert!(written(|out| over_limit(out, None, &line)).len() <= 30);
}

#[test]
fn other_replies() {
    let stats = StatsReply { requests: 2, over: 1, last_max_rate: 1 };
    assert_eq!(
        written(|out| get_stats(out, Some(b"78229"), &stats, b"some-key")),
        "78229 n_req=2 n_over=1 last_max_rate=1 key=some-key"
    );
    assert_eq!(
        written(|out| get_stats(out, None, &StatsReply::default(), b"")),
        "n_req=0 n_over=0 last_max_rate=0 key="
    );
    let size = SizeReply { used: 12, total: 1024, keys: 11 };
    assert_eq!(written(|out| get_size(out, None, &size)), "size=12/1024 keys=11");
    assert_eq!(written(|out| get_size(out, Some(b"1"), &size)), "1 size=12/1024 keys=11");
    assert_eq!(written(|out| ping(out, None)), "pong");
    assert_eq!(written(|out| ping(out, Some(b"007"))), "007 pong");
}

const LONGEST_LINE: ReplyLine =
    ReplyLine { over: true, rate: f64::MAX, limit: u64::MAX, period_ns: u64::MAX };
const LONGEST_STATS: StatsReply =
    StatsReply { requests: u64::MAX, over: u64::MAX, last_max_rate: u64::MAX };
const LONGEST_SIZE: SizeReply = SizeReply { used: u64::MAX, total: u64::MAX, keys: u64::MAX };

fn answer(out: &mut [u8], datagram: &[u8]) -> Result<usize, NoRoom> {
    let request = parse(datagram).unwrap();
    match request.command {
        TextCommand::OverLimit(_) => over_limit(out, request.id, &LONGEST_LINE),
        TextCommand::GetStats(key) => get_stats(out, request.id, &LONGEST_STATS, key),
        TextCommand::GetSize => get_size(out, request.id, &LONGEST_SIZE),
        TextCommand::Ping => ping(out, request.id),
        TextCommand::CheckLimit(_) => unreachable!("it has a writer of its own"),
    }
}

/// The bound holds for the longest ids and keys, and is met: it is no guess.
#[test]
fn the_longest_reply_is_the_bound() {
    let mut longest = 0;
    for command in ["over_limit ", "get_stats ", "get_size", "ping"] {
        let room = DATAGRAM_BYTES_MAX - command.len();
        for id_len in [0, 1, 20, room / 2, room - 1] {
            let mut datagram = vec![b'9'; id_len];
            datagram.extend_from_slice(if id_len == 0 { b"" } else { b" " });
            datagram.extend_from_slice(command.as_bytes());
            if command.ends_with(' ') {
                datagram.resize(DATAGRAM_BYTES_MAX, b'k');
            }
            let len = answer(&mut [0; REPLY_BYTES_MAX], &datagram).unwrap();
            longest = longest.max(len);
            for short in 0..len {
                assert_eq!(answer(&mut vec![0; short], &datagram), Err(NoRoom));
            }
            assert_eq!(answer(&mut vec![0; len], &datagram), Ok(len));
        }
    }
    assert_eq!(longest, REPLY_BYTES_MAX);
}

/// The replies that no state of the server can make too long for a forged address. Those of
/// `get_stats` and `get_size` have digits that count; the door looks at them.
#[test]
fn lines_and_pongs_are_within_five_times_their_request() {
    for id in ["", "7 ", "0123456789 "] {
        for command in ["over_limit ", "over_limit \n", "over_limit k", "ping"] {
            let datagram = [id, command].concat();
            let len = answer(&mut [0; REPLY_BYTES_MAX], datagram.as_bytes()).unwrap();
            assert!(len <= AMPLIFICATION_MAX * datagram.len(), "{datagram:?} -> {len}");
        }
    }
}

proptest! {
    /// What real clients read: `^ok ([YN]) ([\d.]+) ([\d.]+) (\d+)$`, with the right values.
    #[test]
    fn lines_are_those_of_slow_formatting(
        over: bool, bits: u64, limit: u64, period_ns: u64, id: Option<u64>
    ) {
        let rate = f64::from_bits(bits);
        let shown = if rate > 0.0 { rate.min(9_999_999.9) } else { 0.0 };
        let mark = if over { "Y" } else { "N" };
        let period_s = period_ns / SECOND + u64::from(period_ns % SECOND > 0);
        let expected = format!("ok {mark} {shown:.1} {limit}.0 {period_s}");
        let id = id.map(|id| id.to_string());
        let expected = match &id {
            Some(id) => format!("{id} {expected}"),
            None => expected,
        };
        let line = ReplyLine { over, rate, limit, period_ns };
        let id = id.as_ref().map(String::as_bytes);
        prop_assert_eq!(written(|out| over_limit(out, id, &line)), expected);
    }
}
