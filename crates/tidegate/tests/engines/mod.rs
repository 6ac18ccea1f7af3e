//! Real stores for tests: started on free ports in folders of their own, and killed by their
//! process ids when the test lets go of them.
//!
//! Included by the library's own tests and by those that drive the program.

// Each of those that include this uses its share of it.
#![allow(dead_code)]

pub(crate) mod etcd;
pub(crate) mod redis;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long a test waits for something that must happen before it gives up. Never a measure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How often a server is started on other ports because somebody else was there first.
const STARTS_MAX: usize = 20;

/// A port that nobody has at this moment. Somebody may take it before the server does: whoever
/// starts one tries again with another.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// Asks again and again until it is so: for what happens soon, but at no known moment.
#[track_caller]
pub(crate) fn until(mut so: impl FnMut() -> bool) {
    if so() {
        return;
    }
    let watchdog = Watchdog::start();
    while !so() {
        assert!(!watchdog.has_barked(), "it never came to be");
        // A question may be answered in no time: others have their turn before the next.
        thread::yield_now();
    }
}

/// Waits until none of a process' threads runs any more. It was sent SIGSTOP: on a busy machine a
/// thread may go on for a moment, and still answer.
#[track_caller]
pub(crate) fn until_stopped(pid: u32) {
    let threads = format!("/proc/{pid}/task");
    until(|| {
        let mut threads = fs::read_dir(&threads).expect("the process lives");
        threads.all(|thread| {
            let path = thread.expect("a thread").path().join("stat");
            let line = fs::read_to_string(path).unwrap_or_default();
            // Its state follows its name, which is in parentheses.
            line.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    });
}

/// Says when [`PATIENCE`] is over. Ends with whoever started it.
struct Watchdog {
    over: Arc<AtomicBool>,
    _watched: Sender<()>,
}

impl Watchdog {
    fn start() -> Self {
        let (watched, gone) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let barks = over.clone();
        thread::spawn(move || {
            let waited = gone.recv_timeout(PATIENCE);
            barks.store(waited == Err(RecvTimeoutError::Timeout), Relaxed);
        });
        Self { over, _watched: watched }
    }

    fn has_barked(&self) -> bool {
        self.over.load(Relaxed)
    }
}

/// A process that was started by a test.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts a program whose standard output is read line by line.
    pub(crate) fn start(command: &mut Command) -> Self {
        let program = command.get_program().to_string_lossy().into_owned();
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("{program} is missing: `make setup-test` installs it")
            }
            Err(error) => panic!("{program} cannot be started: {error}"),
        };
        let pipe = child.stdout.take().expect("standard output is a pipe");
        let (sender, lines) = channel();
        thread::spawn(move || {
            // Read to the end even if nobody listens: a full pipe would stop the server.
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// Waits for a line that passes. Whether it came before the program ended.
    pub(crate) fn says(&self, passes: impl Fn(&str) -> bool) -> bool {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if passes(&line) => return true,
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => panic!("no such line in time"),
            }
        }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).expect("the process can be signalled");
    }

    /// Stops all of its threads, until it is sent SIGCONT.
    #[track_caller]
    pub(crate) fn halt(&self) {
        self.signal(Signal::STOP);
        until_stopped(self.child.id());
    }

    /// Kills it without any warning, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
