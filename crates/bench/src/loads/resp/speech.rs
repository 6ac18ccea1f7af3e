//! The bytes that are sent. Every server is asked for the same keys. No sockets here.

use std::io;

use clap::ValueEnum;
use tidegate_wire::resp::request::request;

use crate::stream::{self, Answers, key_of, resp};

/// The burst, the count and the period in seconds: a use lasts for six minutes, so that no key is
/// forgotten between two uses, and nothing is refused.
const LIMIT: [&[u8]; 3] = [b"1000000", b"10", b"3600"];

/// What a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Speech {
    /// CL.THROTTLE: takes 1 by a limit that is part of the request.
    Throttle,
    /// INCR: adds 1 to a counter.
    Incr,
}

impl stream::Speech for Speech {
    fn ask(&mut self, key: u64, out: &mut Vec<u8>) {
        match self {
            Speech::Throttle => {
                let [burst, count, period] = LIMIT;
                request(out, &[b"CL.THROTTLE", &key_of(key), burst, count, period]);
            }
            Speech::Incr => resp::incr(key, out),
        }
    }

    fn read(&mut self, bytes: &[u8]) -> io::Result<Answers> {
        resp::read(bytes)
    }
}
