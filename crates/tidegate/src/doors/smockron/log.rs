//! The accounting log: one JSON line for each accounting message, to a file, off unless asked for.
//!
//! The loop never waits for a disk: the lines of a batch go through a bounded channel to a thread
//! that writes them, and what does not fit is counted. The file is put aside when it is large.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use prometheus_client::metrics::counter::Counter;
use tidegate_core::Now;
use tidegate_core::time::MILLISECOND;
use tidegate_wire::smockron::{Accounting, Status};

/// Buffers that wait to be written, and from which size on one is handed over.
const BUFFERS_MAX: usize = 64;
const BUFFER_BYTES: usize = 256 * 1024;
/// So many bytes of a text are written down.
const TEXT_BYTES_MAX: usize = 1024;

/// The lines of one door, on their way.
pub(super) struct UseLog {
    lines: Vec<u8>,
    count: u64,
    queue: SyncSender<(Vec<u8>, u64)>,
    /// Buffers to use again.
    written: Receiver<Vec<u8>>,
    lost: Counter,
}

/// The thread that writes; it ends with its log.
pub(super) type LogWriter = thread::JoinHandle<()>;

impl UseLog {
    /// Opens the file and starts the thread that writes to it.
    pub(super) fn open(
        path: &Path,
        bytes_max: u64,
        keep: u32,
        lost: Counter,
    ) -> io::Result<(Self, LogWriter)> {
        let mut file = LogFile::open(path, bytes_max, keep)?;
        let (queue, lines) = sync_channel::<(Vec<u8>, u64)>(BUFFERS_MAX);
        let (back, written) = sync_channel(BUFFERS_MAX);
        let not_written = lost.clone();
        let writer = thread::Builder::new().name("accounting-log".to_owned()).spawn(move || {
            let mut failing = false;
            while let Ok((mut buffer, count)) = lines.recv() {
                let result = file.write(&buffer);
                if let Err(error) = &result {
                    not_written.inc_by(count);
                    if !failing {
                        tracing::warn!(%error, "cannot write to the accounting log");
                    }
                }
                failing = result.is_err();
                buffer.clear();
                // If the queue for reuse is full, the buffer is freed.
                let _ = back.try_send(buffer);
            }
        })?;
        Ok((Self { lines: Vec::new(), count: 0, queue, written, lost }, writer))
    }

    /// Writes down one message.
    pub(super) fn line(&mut self, told: &Accounting<'_>, now: Now) {
        let (status, until) = match told.status {
            Status::Accepted => ("ACCEPTED", None),
            Status::Delayed { until_ns } => ("DELAYED", Some(until_ns)),
            Status::Rejected => ("REJECTED", None),
        };
        let out = &mut self.lines;
        // Writing to memory does not fail.
        let _ = write!(out, "{{\"at_ms\":{},\"domain\":", now.unix / MILLISECOND);
        text(told.domain, out);
        let _ = write!(out, ",\"status\":\"{status}\",\"identifier\":");
        text(told.identifier, out);
        let _ = write!(out, ",\"received_ms\":{}", told.received_ns / MILLISECOND);
        if let Some(until) = until {
            let _ = write!(out, ",\"delayed_ms\":{}", until / MILLISECOND);
        }
        if let Some(info) = told.log_info.filter(|info| !info.is_empty()) {
            out.extend_from_slice(b",\"log_info\":");
            text(info, out);
        }
        out.extend_from_slice(b"}\n");
        self.count += 1;
        if self.lines.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Hands over what was written down.
    pub(super) fn flush(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let fresh = self.written.try_recv().unwrap_or_default();
        let lines = std::mem::replace(&mut self.lines, fresh);
        let count = std::mem::take(&mut self.count);
        match self.queue.try_send((lines, count)) {
            Ok(()) => {}
            Err(
                TrySendError::Full((mut lines, _)) | TrySendError::Disconnected((mut lines, _)),
            ) => {
                self.lost.inc_by(count);
                lines.clear();
                self.lines = lines;
            }
        }
    }
}

/// A JSON string; bytes that are no text become the replacement character.
fn text(bytes: &[u8], out: &mut Vec<u8>) {
    let shown = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    out.push(b'"');
    for chunk in shown.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' => out.extend_from_slice(b"\\\""),
                '\\' => out.extend_from_slice(b"\\\\"),
                // Line separators end a line for some readers.
                control if control.is_control() || matches!(control, '\u{2028}' | '\u{2029}') => {
                    // Writing to memory does not fail.
                    let _ = write!(out, "\\u{:04x}", u32::from(control));
                }
                plain => {
                    out.extend_from_slice(plain.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out.push(b'"');
}

/// The file, and those that were put aside: `path.1` is the newest of them.
struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
    keep: u32,
}

impl LogFile {
    fn open(path: &Path, bytes_max: u64, keep: u32) -> io::Result<Self> {
        let file = open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, bytes, bytes_max, keep })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + lines.len() as u64 > self.bytes_max {
            self.put_aside()?;
        }
        self.file.write_all(lines)?;
        self.bytes += lines.len() as u64;
        Ok(())
    }

    fn put_aside(&mut self) -> io::Result<()> {
        let aside = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        for number in (1..self.keep).rev() {
            ignore_missing(fs::rename(aside(number), aside(number + 1)))?;
        }
        ignore_missing(match self.keep {
            0 => fs::remove_file(&self.path),
            _ => fs::rename(&self.path, aside(1)),
        })?;
        self.file = open(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

fn open(path: &Path) -> io::Result<File> {
    // It names clients and what they asked for: only its owner may read it.
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    opened.map_err(|error| {
        let text = format!("cannot open the accounting log {}: {error}", path.display());
        io::Error::new(error.kind(), text)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const NOW: Now = Now { mono: 1, unix: 1_700_000_000_123 * MILLISECOND };

    fn told<'a>(identifier: &'a [u8], log_info: Option<&'a [u8]>) -> Accounting<'a> {
        let received_ns = 1_700_000_000_000 * MILLISECOND;
        Accounting { domain: b"web", status: Status::Accepted, identifier, received_ns, log_info }
    }

    fn lines(path: &Path, work: impl FnOnce(&mut UseLog)) -> Vec<serde_json::Value> {
        let (mut log, writer) = UseLog::open(path, 1 << 20, 3, Counter::default()).unwrap();
        work(&mut log);
        log.flush();
        drop(log);
        writer.join().unwrap();
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn whatever_is_sent_a_line_is_one_line_of_json() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let nasty = "\"},\n{\"at\r\u{2028}\u{0}\\ü";
        let found = lines(&path, |log| {
            log.line(&told(b"1.2.3.4", None), NOW);
            log.line(&told(nasty.as_bytes(), Some(b"\xff\xfea\n")), NOW);
            let until_ns = 1_700_000_000_250 * MILLISECOND;
            let status = Status::Delayed { until_ns };
            log.line(&Accounting { status, ..told(b"me", Some(&[b'x'; 5000])) }, NOW);
        });
        let first = serde_json::json!({
            "at_ms": 1_700_000_000_123_u64, "domain": "web", "status": "ACCEPTED",
            "identifier": "1.2.3.4", "received_ms": 1_700_000_000_000_u64,
        });
        assert_eq!(found[0], first);
        assert_eq!(found[1]["identifier"], nasty);
        assert_eq!(found[1]["log_info"], "\u{fffd}\u{fffd}a\n");
        assert_eq!(found[2]["delayed_ms"], 1_700_000_000_250_u64);
        assert_eq!(found[2]["log_info"].as_str().unwrap().len(), TEXT_BYTES_MAX);
        assert_eq!(found.len(), 3);
        // A file that is there is gone on with.
        assert_eq!(lines(&path, |log| log.line(&told(b"again", None), NOW)).len(), 4);
    }

    #[test]
    fn large_files_are_put_aside_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = LogFile::open(&path, 10, 2).unwrap();
        for text in
            ["one-one\n", "two-two\n", "three\n", "x\n", "four-four\n", "longer than that\n"]
        {
            file.write(text.as_bytes()).unwrap();
        }
        for name in ["log", "log.1", "log.2"] {
            let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).ok();
        assert_eq!(read("log").as_deref(), Some("longer than that\n"));
        assert_eq!(read("log.1").as_deref(), Some("four-four\n"));
        assert_eq!(read("log.2").as_deref(), Some("three\nx\n"));
        assert_eq!(read("log.3"), None);
        let mut none = LogFile::open(&path, 10, 0).unwrap();
        none.write(b"new\n").unwrap();
        assert_eq!(read("log").as_deref(), Some("new\n"));
        assert_eq!(read("log.1").as_deref(), Some("four-four\n"), "left alone");
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let lost = Counter::default();
        let (mut log, writer) =
            UseLog::open(&folder.path().join("log"), 1 << 20, 1, lost.clone()).unwrap();
        // The writer is gone: as good as a disk that never answers.
        let (queue, lines) = sync_channel(1);
        let before = std::mem::replace(&mut log.queue, queue);
        drop(before);
        writer.join().unwrap();
        for _ in 0..3 {
            log.line(&told(b"me", None), NOW);
            log.line(&told(b"me", None), NOW);
            log.flush();
        }
        assert_eq!(lost.get(), 4);
        drop(lines);
        assert!(UseLog::open(&folder.path().join("no/such"), 1 << 20, 1, lost).is_err());
    }
}
