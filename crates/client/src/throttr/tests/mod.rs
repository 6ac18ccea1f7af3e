//! The client against real sockets whose other end is played by the test, through the codec.
//!
//! No test waits for time to pass. Where an answer must come, the timeout is an hour.

mod asking;
mod door;
mod listening;
mod losing;

use std::time::Duration;

use super::*;
use door::{Door, Peer};

const HOUR: Duration = Duration::from_secs(3600);

fn settings(value_size: ValueSize) -> Settings {
    Settings {
        timeout: HOUR,
        connect_timeout: HOUR,
        stall_timeout: HOUR,
        ..Settings::new(value_size)
    }
}

const SIZE: ValueSize = ValueSize::Bits16;
const MINUTE: Ttl = Ttl::new(60, Unit::Seconds);
