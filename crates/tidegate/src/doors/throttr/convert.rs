//! The wire's words and the records' words for the same things: wire words stop at this door.

use tidegate_wire::throttr::{self as wire, reply};

use crate::records;

/// How long a record shall live; `None` where the unit is unknown.
#[inline]
pub(super) fn life(ttl: wire::Ttl) -> Option<records::Life> {
    let unit = unit(ttl.unit?);
    Some(records::Life { unit, amount: ttl.amount })
}

#[inline]
fn unit(unit: wire::Unit) -> records::Unit {
    match unit {
        wire::Unit::Nanoseconds => records::Unit::Nanoseconds,
        wire::Unit::Microseconds => records::Unit::Microseconds,
        wire::Unit::Milliseconds => records::Unit::Milliseconds,
        wire::Unit::Seconds => records::Unit::Seconds,
        wire::Unit::Minutes => records::Unit::Minutes,
        wire::Unit::Hours => records::Unit::Hours,
    }
}

/// A record's unit as the wire has it.
#[inline]
pub(super) fn unit_to_wire(unit: records::Unit) -> wire::Unit {
    match unit {
        records::Unit::Nanoseconds => wire::Unit::Nanoseconds,
        records::Unit::Microseconds => wire::Unit::Microseconds,
        records::Unit::Milliseconds => wire::Unit::Milliseconds,
        records::Unit::Seconds => wire::Unit::Seconds,
        records::Unit::Minutes => wire::Unit::Minutes,
        records::Unit::Hours => wire::Unit::Hours,
    }
}

/// How an UPDATE changes something.
#[inline]
pub(super) fn change(change: wire::Change) -> records::Change {
    match change {
        wire::Change::Patch => records::Change::Patch,
        wire::Change::Increase => records::Change::Increase,
        wire::Change::Decrease => records::Change::Decrease,
    }
}

/// How often a record was used.
pub(super) fn stat(stat: &records::Stat) -> reply::Stat {
    reply::Stat {
        reads_per_minute: stat.reads_per_minute,
        writes_per_minute: stat.writes_per_minute,
        reads: stat.reads,
        writes: stat.writes,
    }
}
