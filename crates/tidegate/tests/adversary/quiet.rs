//! What a server takes and holds, seen from outside: time of the processor, memory, files, waiters
//! and uses. After a round all of it must be back where it was.

use std::fmt;
use std::fs;
use std::io::{BufReader, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use crate::ask::remaining;
use crate::clock::{Moment, pause, pause_ms};
use crate::message::Message;
use crate::net::Stream;
use crate::server::Server;

/// Ticks of the processor's time that a quiet server may take in [`WINDOW`].
const TICKS_MAX: u64 = 2;
const WINDOW: Duration = Duration::from_secs(1);
/// Memory that a server may have more than before, beside keys and records, whose bytes are a
/// figure in `/metrics`: allocators keep some of what they were given back.
const GROWTH_KIB_MAX: u64 = 64 << 10;

/// What a server holds.
#[derive(Clone, Debug)]
pub(crate) struct Holdings {
    /// Resident memory without that of keys and records.
    resident_kib: u64,
    files: usize,
    /// What comes and goes, with how much of it there is.
    gauges: Vec<(String, f64)>,
}

/// Series whose values must be back where they were.
const GAUGES: [&str; 4] = [
    "tidegate_waiting{",
    "tidegate_proxy_connections{",
    "tidegate_peers{",
    "tidegate_grpc_held_bytes ",
];

/// Keys whose uses end when hostile clients leave or let them lapse, and their limits.
const USES_IN_FLIGHT: [(&str, u64); 2] = [("wait path=/slow", 2), ("hostile-use", 5)];

impl Holdings {
    fn of(server: &Server) -> Self {
        let pid = server.program.pid();
        let kib = memory_kib(pid, "VmRSS:");
        let page = metrics(server.doors.http);
        let kept = page.lines().find_map(|line| line.strip_prefix("tidegate_memory_bytes "));
        let kept: u64 = kept.and_then(|bytes| bytes.parse().ok()).expect("a number");
        let gauges = page.lines().filter(|line| GAUGES.iter().any(|name| line.starts_with(name)));
        let gauges = gauges.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        let uses = USES_IN_FLIGHT.iter().map(|(key, amount)| {
            let held = amount - remaining(server.doors.http, key);
            (format!("uses of {key} in flight"), held as f64)
        });
        let gauges = gauges.chain(uses).collect();
        let resident_kib = kib.saturating_sub(kept >> 10);
        Self { resident_kib, files: server.program.files(), gauges }
    }

    /// What is more than before.
    fn more_than(&self, before: &Self) -> Vec<String> {
        let mut more = Vec::new();
        if self.resident_kib > before.resident_kib + GROWTH_KIB_MAX {
            more.push(format!(
                "{} KiB of memory, before {}",
                self.resident_kib, before.resident_kib
            ));
        }
        if self.files > before.files {
            more.push(format!("{} open files, before {}", self.files, before.files));
        }
        for (series, value) in &self.gauges {
            let was = before.gauges.iter().find(|(name, _)| name == series);
            let was = was.map_or(0.0, |(_, value)| *value);
            if *value > was {
                more.push(format!("{series} {value}, before {was}"));
            }
        }
        more
    }
}

impl fmt::Display for Holdings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB, {} files, {:?}", self.resident_kib, self.files, self.gauges)
    }
}

/// What `/proc` says about a server's memory.
fn memory_kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the server lives");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// The most memory that a server has ever had resident.
pub(crate) fn peak_kib(server: &Server) -> u64 {
    memory_kib(server.program.pid(), "VmHWM:")
}

/// The page of `/metrics`.
pub(crate) fn metrics(http: SocketAddr) -> String {
    let mut stream = Stream::connect(&http.into()).expect("the HTTP door is open");
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("the HTTP door reads");
    Message::read(&mut BufReader::new(stream)).expect("the page of /metrics").text()
}

/// Ticks that all threads of a process have taken so far.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the server lives");
    // The name, in brackets, may hold anything; user and system time are the 14th and 15th field.
    let (_, rest) = stat.rsplit_once(')').expect("a name in brackets");
    let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3);
    let number =
        |field: Option<&str>| -> u64 { field.and_then(|f| f.parse().ok()).expect("ticks") };
    number(field(14)) + number(field(15))
}

/// Waits until the server takes next to no time, and nothing disturbs it.
#[track_caller]
fn until_quiet(server: &Server) {
    let begun = Moment::now();
    loop {
        let before = ticks(server.program.pid());
        pause(WINDOW);
        let taken = ticks(server.program.pid()) - before;
        if taken <= TICKS_MAX {
            return;
        }
        assert!(
            !begun.is_overdue(),
            "the server is not quiet: it takes {taken} ticks in {WINDOW:?}, and nobody asks it"
        );
    }
}

/// Waits until nothing waits, no use is in flight and the server is quiet; returns what it holds.
#[track_caller]
pub(crate) fn holdings(server: &Server) -> Holdings {
    let begun = Moment::now();
    loop {
        let held = Holdings::of(server);
        let left: Vec<_> =
            held.gauges.iter().filter(|(name, value)| comes_to_none(name, *value)).collect();
        if left.is_empty() {
            until_quiet(server);
            return held;
        }
        assert!(!begun.is_overdue(), "the server still holds what left long ago: {left:?}");
        pause_ms(50);
    }
}

/// Whether there is some of what there must be none of while nobody asks.
fn comes_to_none(name: &str, value: f64) -> bool {
    (name.starts_with("tidegate_waiting") || name.starts_with("uses of")) && value > 0.0
}

/// Waits until the server is quiet and holds no more than before.
#[track_caller]
pub(crate) fn returns_to(server: &Server, before: &Holdings) {
    let begun = Moment::now();
    loop {
        let more = Holdings::of(server).more_than(before);
        if more.is_empty() {
            break;
        }
        assert!(!begun.is_overdue(), "the server still holds what left long ago: {more:?}");
        pause_ms(50);
    }
    until_quiet(server);
}
