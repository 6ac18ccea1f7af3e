//! The access log: one line for each request, to the log or to a file, off unless asked for.
//!
//! A loop never waits for a disk: lines for a file go through a bounded channel to a thread that
//! writes them. Lines that do not fit are dropped and counted, and the log says how many.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

use hyper::Method;
use tidegate_core::Nanos;
use tidegate_core::time::{DAY, HOUR, MILLISECOND, MINUTE, SECOND};

use super::config::AccessLog;

/// The most lines that wait to be written.
const LINES_MAX: usize = 8192;
/// The longest path that is written down.
const PATH_BYTES_MAX: usize = 2048;

/// What the log says about one request.
pub(super) struct AccessRecord {
    pub(super) unix: Nanos,
    pub(super) client: IpAddr,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) waited: Nanos,
    /// From the sending of the request to the head of its answer.
    pub(super) upstream: Option<Nanos>,
}

impl AccessRecord {
    pub(super) fn new(unix: Nanos, client: IpAddr, method: &Method, path: &str) -> Box<Self> {
        let end = path.floor_char_boundary(PATH_BYTES_MAX);
        Box::new(Self {
            unix,
            client,
            method: method.clone(),
            path: path[..end].to_owned(),
            status: 0,
            bytes: 0,
            waited: 0,
            upstream: None,
        })
    }

    /// Writes it to the log, with a field for each value.
    fn trace(&self, proxy: &str, whole: bool) {
        let ms = |span: Nanos| span as f64 / MILLISECOND as f64;
        tracing::info!(
            target: "access",
            proxy = %proxy,
            client = %self.client,
            method = %self.method,
            path = %self.path,
            status = self.status,
            bytes = self.bytes,
            waited_ms = ms(self.waited),
            upstream_ms = self.upstream.map(ms),
            cut = !whole,
            "request"
        );
    }

    /// The line, without its end.
    fn line(&self, proxy: &str, whole: bool) -> String {
        let mut line = String::with_capacity(160);
        timestamp(self.unix, &mut line);
        let Self { client, method, path, status, bytes, .. } = self;
        let waited = self.waited as f64 / MILLISECOND as f64;
        // Writing to a string does not fail.
        let _ = write!(
            line,
            " proxy={proxy} client={client} method={method} path={path} status={status} \
             bytes={bytes} waited_ms={waited:.3} upstream_ms="
        );
        let _ = match self.upstream {
            Some(upstream) => write!(line, "{:.3}", upstream as f64 / MILLISECOND as f64),
            None => line.write_char('-'),
        };
        if !whole {
            line.push_str(" cut");
        }
        line
    }
}

/// `2026-11-15T16:20:00.000Z`, by the civil calendar.
fn timestamp(unix: Nanos, out: &mut String) {
    let days = (unix / DAY) as i64;
    // The calendar of years that begin in March, so that a leap day comes last.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (unix % DAY / HOUR, unix % HOUR / MINUTE);
    let (second, millis) = (unix % MINUTE / SECOND, unix % SECOND / MILLISECOND);
    // Writing to a string does not fail.
    let _ =
        write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z");
}

/// Where the lines of one proxy go. Clones write to the same place.
#[derive(Clone)]
pub(super) enum AccessLogger {
    /// Nowhere.
    Off,
    /// To the log, as events of the target `access`.
    Log,
    /// To a file.
    File(Arc<LogFile>),
}

/// LogFile on their way to a file.
pub(super) struct LogFile {
    lines: SyncSender<String>,
    lost: Arc<AtomicU64>,
}

impl AccessLogger {
    /// Opens the file, if it is one.
    pub(super) fn open(config: &AccessLog) -> io::Result<Self> {
        let path = match config {
            AccessLog::Log(false) => return Ok(Self::Off),
            AccessLog::Log(true) => return Ok(Self::Log),
            AccessLog::File(path) => path,
        };
        let file = open(path)?;
        let (lines, queue) = sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counter = lost.clone();
        // The thread ends with the last loop that could send.
        thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || write_lines(file, &queue, &counter))?;
        Ok(Self::File(Arc::new(LogFile { lines, lost })))
    }

    pub(super) fn is_off(&self) -> bool {
        matches!(self, AccessLogger::Off)
    }

    pub(super) fn write(&self, proxy: &str, record: &AccessRecord, whole: bool) {
        match self {
            AccessLogger::Off => {}
            AccessLogger::Log => record.trace(proxy, whole),
            AccessLogger::File(file) => {
                if file.lines.try_send(record.line(proxy, whole)).is_err() {
                    file.lost.fetch_add(1, Relaxed);
                }
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Only the owner may read it: it holds paths and addresses.
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    opened.map_err(|error| {
        let text = format!("cannot open the access log {}: {error}", path.display());
        io::Error::new(error.kind(), text)
    })
}

fn write_lines(file: File, queue: &Receiver<String>, lost: &AtomicU64) {
    let mut out = BufWriter::new(file);
    let mut failing = false;
    while let Ok(first) = queue.recv() {
        let mut written = writeln!(out, "{first}");
        let ended = loop {
            match queue.try_recv() {
                Ok(line) => written = written.and_then(|()| writeln!(out, "{line}")),
                Err(TryRecvError::Empty) => break false,
                Err(TryRecvError::Disconnected) => break true,
            }
        };
        written = written.and_then(|()| out.flush());
        let gone = lost.swap(0, Relaxed);
        if gone > 0 {
            tracing::warn!(lines = gone, "the access log was too slow: lines are missing");
        }
        if let (Err(error), false) = (&written, failing) {
            tracing::warn!(%error, "cannot write to the access log");
        }
        failing = written.is_err();
        if ended {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_the_request() {
        let mut record =
            AccessRecord::new(1_700_000_100 * SECOND, [1, 2, 3, 4].into(), &Method::GET, "/a");
        record.status = 200;
        record.bytes = 12;
        record.waited = 1_500_000;
        record.upstream = Some(2_250_000);
        let expected = "2023-11-14T22:15:00.000Z proxy=api client=1.2.3.4 method=GET path=/a \
                        status=200 bytes=12 waited_ms=1.500 upstream_ms=2.250";
        assert_eq!(record.line("api", true), expected);
        record.upstream = None;
        assert!(record.line("api", false).ends_with("upstream_ms=- cut"));
        let long = "é".repeat(PATH_BYTES_MAX);
        let record = AccessRecord::new(0, [1, 2, 3, 4].into(), &Method::GET, &format!("x{long}"));
        assert!(record.path.len() <= PATH_BYTES_MAX);
        assert!(record.line("api", true).starts_with("1970-01-01T00:00:00.000Z"));
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let check = |days: u64, expected: &str| {
            let mut text = String::new();
            timestamp(days * DAY, &mut text);
            assert_eq!(&text[..10], expected);
        };
        check(59, "1970-03-01");
        check(11_016, "2000-02-29");
        check(11_017, "2000-03-01");
        check(19_782, "2024-02-29");
        check(20_454, "2026-01-01");
        check(20_453, "2025-12-31");
    }

    #[test]
    fn a_file_gets_every_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access");
        let access = AccessLogger::open(&AccessLog::File(path.clone())).unwrap();
        let record = AccessRecord::new(0, [1, 2, 3, 4].into(), &Method::GET, "/a");
        (0..100).for_each(|_| access.write("api", &record, true));
        drop(access);
        // The thread ends with the last sender, and closes the file.
        while std::fs::read_to_string(&path).unwrap().lines().count() < 100 {
            thread::yield_now();
        }
        assert!(AccessLogger::open(&AccessLog::File(folder.path().join("no/such"))).is_err());
    }
}
