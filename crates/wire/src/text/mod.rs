//! The UDP text protocol: one datagram asks, one datagram answers.
//!
//! - [`server`]: the server's side: reading requests, writing replies
//! - [`check`]: `check_limit`, the request that asks about several keys in JSON
//! - [`ask`]: the client's side: writing requests, reading replies
//! - [`number`]: the decimal forms that replies use
//!
//! Nothing but `check_limit` allocates. A request borrows from its datagram.

pub mod ask;
pub mod check;
pub mod number;
pub mod server;

pub use check::CheckLimit;
pub use server::{Ignored, NoRoom, ReplyLine, Request, SizeReply, StatsReply, TextCommand, parse};
/// The longest key that may be asked about.
pub use tidegate_core::key::KEY_BYTES_MAX;

/// The longest datagram that is read. Longer ones are ignored, not cut and answered.
pub const DATAGRAM_BYTES_MAX: usize = 1000;

/// The longest `ok …` line without its id.
pub const LINE_BYTES_MAX: usize = "ok Y 9999999.9 18446744073709551615.0 18446744074".len();

/// A reply of more than so many times its request's payload is for trusted sources only: the
/// address of a datagram may be forged, and sending us a victim's address must not pay.
pub const AMPLIFICATION_MAX: usize = 5;

// The reply to the one request on the hot path needs no check there: it is never too long.
const _: () = assert!(LINE_BYTES_MAX <= AMPLIFICATION_MAX * "over_limit ".len());

/// The longest `n_req=… key=` without its id and key.
pub(crate) const STATS_BYTES_MAX: usize =
    "n_req= n_over= last_max_rate= key=".len() + 3 * number::U64_BYTES_MAX;

/// The longest reply to any request of up to [`DATAGRAM_BYTES_MAX`] bytes except `check_limit`.
///
/// `get_stats` has the longest: it echoes the id, the space and the key, which are all of its
/// datagram but the command's name, and adds the most words and numbers of its own.
pub const REPLY_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - "get_stats ".len() + STATS_BYTES_MAX;

/// The longest reply to `check_limit`.
///
/// Its id, its last line, and three keys, each twice. The only bytes of a key that JSON writes
/// longer than they are are `"` and `\`, which take two bytes; control bytes are refused.
pub const CHECK_REPLY_BYTES_MAX: usize = DATAGRAM_BYTES_MAX
    + LINE_BYTES_MAX
    + check::KEYS * (2 * (2 * KEY_BYTES_MAX) + LINE_BYTES_MAX + 64);
