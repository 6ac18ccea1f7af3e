//! Replies of the text protocol, as the server writes them.
//!
//! Each function writes one reply, id first, at the start of the caller's buffer and returns its
//! length. Nothing allocates, and nothing is cut: a buffer that might be too short is an error.
//! A buffer of [`super::REPLY_BYTES_MAX`] bytes is enough for every request that was parsed.

use super::number::{U64_BYTES_MAX, put_tenths, put_u64, tenths};
use super::{LINE_BYTES_MAX, STATS_BYTES_MAX};

/// What an `ok …` line tells about a use of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Whether the key is over its limit, so that the use was refused.
    pub over: bool,
    /// The key's rate in uses per period.
    pub rate: f64,
    /// Uses per period that are allowed.
    pub limit: u64,
    /// The period in nanoseconds. Shown in seconds, rounded up.
    pub period_ns: u64,
}

/// What `get_stats` tells about a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Uses that were tried since the key was remembered.
    pub requests: u64,
    /// How many of them were over the limit.
    pub over: u64,
    /// The highest rate of the previous completed bucket.
    pub last_max_rate: u64,
}

/// What `get_size` tells about the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Slots that are occupied.
    pub used: u64,
    /// Slots that are allocated.
    pub total: u64,
    /// Keys that are remembered.
    pub keys: u64,
}

/// The buffer may be too short for the reply. Nothing in it is meant to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl std::fmt::Display for NoRoom {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("the buffer is too short for the reply")
    }
}

impl std::error::Error for NoRoom {}

/// Answers `over_limit`: `ok Y|N rate limit period`.
///
/// # Errors
/// [`NoRoom`] if the longest such line would not fit.
#[inline]
pub fn over_limit(out: &mut [u8], id: Option<&[u8]>, line: &Line) -> Result<usize, NoRoom> {
    let start = put_id(out, id)?;
    let room = out[start..].first_chunk_mut::<LINE_BYTES_MAX>().ok_or(NoRoom)?;
    Ok(start + put_line(room, line))
}

/// Answers `get_stats`: `n_req=… n_over=… last_max_rate=… key=…`.
///
/// # Errors
/// [`NoRoom`] if the longest such reply for this key would not fit.
pub fn get_stats(
    out: &mut [u8],
    id: Option<&[u8]>,
    stats: &Stats,
    key: &[u8],
) -> Result<usize, NoRoom> {
    let mut at = put_id(out, id)?;
    if out.len() - at < STATS_BYTES_MAX + key.len() {
        return Err(NoRoom);
    }
    at += put_field(&mut out[at..], b"n_req=", stats.requests);
    at += put_field(&mut out[at..], b" n_over=", stats.over);
    at += put_field(&mut out[at..], b" last_max_rate=", stats.last_max_rate);
    at += put(&mut out[at..], b" key=");
    at += put(&mut out[at..], key);
    Ok(at)
}

/// Answers `get_size`: `size=USED/TOTAL keys=N`.
///
/// # Errors
/// [`NoRoom`] if the longest such reply would not fit.
pub fn get_size(out: &mut [u8], id: Option<&[u8]>, size: &Size) -> Result<usize, NoRoom> {
    let mut at = put_id(out, id)?;
    if out.len() - at < "size=/ keys=".len() + 3 * U64_BYTES_MAX {
        return Err(NoRoom);
    }
    at += put_field(&mut out[at..], b"size=", size.used);
    at += put_field(&mut out[at..], b"/", size.total);
    at += put_field(&mut out[at..], b" keys=", size.keys);
    Ok(at)
}

/// Answers `ping`: `pong`.
///
/// # Errors
/// [`NoRoom`] if it does not fit.
pub fn ping(out: &mut [u8], id: Option<&[u8]>) -> Result<usize, NoRoom> {
    let at = put_id(out, id)?;
    let room = out[at..].first_chunk_mut().ok_or(NoRoom)?;
    *room = *b"pong";
    Ok(at + room.len())
}

/// Writes the id and its space. What is left of `out` begins at the returned length.
#[inline]
fn put_id(out: &mut [u8], id: Option<&[u8]>) -> Result<usize, NoRoom> {
    let Some(id) = id else { return Ok(0) };
    if out.len() <= id.len() {
        return Err(NoRoom);
    }
    out[..id.len()].copy_from_slice(id);
    out[id.len()] = b' ';
    Ok(id.len() + 1)
}

/// Writes `ok Y|N rate limit period`. Here, and only here, being over becomes a `Y`.
#[inline]
pub(super) fn put_line(out: &mut [u8; LINE_BYTES_MAX], line: &Line) -> usize {
    out[..5].copy_from_slice(if line.over { b"ok Y " } else { b"ok N " });
    let mut at = 5;
    at += put_tenths(&mut out[at..], tenths(line.rate));
    out[at] = b' ';
    at += 1;
    at += put_u64(&mut out[at..], line.limit);
    out[at..at + 3].copy_from_slice(b".0 ");
    at += 3;
    at + put_u64(&mut out[at..], line.period_ns.div_ceil(1_000_000_000))
}

fn put_field(out: &mut [u8], name: &[u8], n: u64) -> usize {
    let at = put(out, name);
    at + put_u64(&mut out[at..], n)
}

fn put(out: &mut [u8], bytes: &[u8]) -> usize {
    out[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::super::{AMPLIFICATION_MAX, Command, DATAGRAM_BYTES_MAX, REPLY_BYTES_MAX, parse};
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn line(over: bool, rate: f64, limit: u64, period_ns: u64) -> Line {
        Line { over, rate, limit, period_ns }
    }

    fn written(write: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>) -> String {
        let mut out = [b'#'; REPLY_BYTES_MAX];
        let len = write(&mut out).unwrap();
        String::from_utf8(out[..len].to_vec()).unwrap()
    }

    #[test]
    fn over_limit_lines() {
        let check = |line: Line, expected: &str| {
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
        let stats = Stats { requests: 2, over: 1, last_max_rate: 1 };
        assert_eq!(
            written(|out| get_stats(out, Some(b"78229"), &stats, b"some-key")),
            "78229 n_req=2 n_over=1 last_max_rate=1 key=some-key"
        );
        assert_eq!(
            written(|out| get_stats(out, None, &Stats::default(), b"")),
            "n_req=0 n_over=0 last_max_rate=0 key="
        );
        let size = Size { used: 12, total: 1024, keys: 11 };
        assert_eq!(written(|out| get_size(out, None, &size)), "size=12/1024 keys=11");
        assert_eq!(written(|out| get_size(out, Some(b"1"), &size)), "1 size=12/1024 keys=11");
        assert_eq!(written(|out| ping(out, None)), "pong");
        assert_eq!(written(|out| ping(out, Some(b"007"))), "007 pong");
    }

    const LONGEST_LINE: Line =
        Line { over: true, rate: f64::MAX, limit: u64::MAX, period_ns: u64::MAX };
    const LONGEST_STATS: Stats =
        Stats { requests: u64::MAX, over: u64::MAX, last_max_rate: u64::MAX };
    const LONGEST_SIZE: Size = Size { used: u64::MAX, total: u64::MAX, keys: u64::MAX };

    fn answer(out: &mut [u8], datagram: &[u8]) -> Result<usize, NoRoom> {
        let request = parse(datagram).unwrap();
        match request.command {
            Command::OverLimit(_) => over_limit(out, request.id, &LONGEST_LINE),
            Command::GetStats(key) => get_stats(out, request.id, &LONGEST_STATS, key),
            Command::GetSize => get_size(out, request.id, &LONGEST_SIZE),
            Command::Ping => ping(out, request.id),
            Command::CheckLimit(_) => unreachable!("it has a writer of its own"),
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
            let line = Line { over, rate, limit, period_ns };
            let id = id.as_ref().map(String::as_bytes);
            prop_assert_eq!(written(|out| over_limit(out, id, &line)), expected);
        }
    }
}
