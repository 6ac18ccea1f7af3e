//! The program under test: spawned on free ports, read through its `listening` lines, and killed
//! by its process id when the test lets go of it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a test waits for something that must happen before it gives up. Never a measure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Doors to ask through and the one to administer through, on free ports.
pub(crate) const DOORS: &str = r#"
[text]
listen = "127.0.0.1:0"
[http]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
"#;

/// The path of the binary under test.
pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_tidegate")
}

/// Runs the program to its end and returns all that it said.
pub(crate) fn tidegate<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    command(arguments).output().expect("the program can be started")
}

/// The program with these arguments, ready to be started, without a terminal or anything that it
/// would take from the environment.
pub(crate) fn command<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("RUST_LOG").env("NO_COLOR", "1").stdin(Stdio::null());
    command.env_remove("TIDEGATE_SERVER").env_remove("TIDEGATE_ADMIN");
    command
}

/// A running `tidegate serve`.
pub(crate) struct Program {
    child: Child,
    folder: TempDir,
    stderr: Receiver<String>,
    listening: Vec<(String, SocketAddr)>,
    paths: Vec<PathBuf>,
}

impl Program {
    /// Starts the server with `config` as its file and waits until it is ready.
    pub(crate) fn serve(config: &str) -> Self {
        let mut program = Self::start(config);
        program.wait_until_ready();
        program
    }

    /// Starts the server without waiting for anything.
    pub(crate) fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("tidegate.toml");
        std::fs::write(&path, config).expect("the file can be written");
        let mut serve = command([OsStr::new("serve"), OsStr::new("-c"), path.as_os_str()]);
        serve.current_dir(folder.path());
        Self::spawn(serve, folder)
    }

    /// Ends the server cleanly and starts it again in the same folder, with the same file.
    pub(crate) fn restart(mut self) -> Self {
        self.signal(Signal::TERM);
        assert!(self.exit_status().success(), "a clean end");
        let mut program = self.start_again();
        program.wait_until_ready();
        program
    }

    /// As [`Self::restart`], but the server is killed before it can write anything.
    pub(crate) fn crash_and_restart(self) -> Self {
        let mut program = self.crash_and_start();
        program.wait_until_ready();
        program
    }

    /// As [`Self::crash_and_restart`], without waiting until it is ready.
    pub(crate) fn crash_and_start(mut self) -> Self {
        self.kill();
        self.start_again()
    }

    /// Kills the server before it can write anything; returns its folder.
    pub(crate) fn crash(mut self) -> TempDir {
        self.kill();
        self.take_folder()
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        assert!(!self.exit_status().success(), "no clean end");
    }

    fn take_folder(&mut self) -> TempDir {
        std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"))
    }

    fn start_again(&mut self) -> Self {
        let folder = self.take_folder();
        let path = folder.path().join("tidegate.toml");
        let mut serve = command([OsStr::new("serve"), OsStr::new("-c"), path.as_os_str()]);
        serve.current_dir(folder.path());
        Self::spawn(serve, folder)
    }

    /// Starts the server in `folder`, from a shell that does `first` before.
    pub(crate) fn start_in(folder: TempDir, config: &str, first: &str) -> Self {
        let path = folder.path().join("tidegate.toml");
        std::fs::write(&path, config).expect("the file can be written");
        let serve = format!("{first} exec '{}' serve -c '{}'", binary(), path.display());
        let mut shell = Command::new("sh");
        shell.args(["-c", &serve]).current_dir(folder.path()).env_remove("RUST_LOG");
        Self::spawn(shell, folder)
    }

    /// The server with so few files that they can be used up.
    pub(crate) fn serve_with_few_files(config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut program = Self::start_in(folder, config, "ulimit -n 80 &&");
        program.wait_until_ready();
        program
    }

    /// How many files it has open.
    pub(crate) fn files(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.pid());
        std::fs::read_dir(folder).expect("the program runs").count()
    }

    /// Starts `command`, which must be one that serves; `folder` lives as long as the program.
    pub(crate) fn spawn(mut command: Command, folder: TempDir) -> Self {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let pipe = child.stderr.take().expect("standard error is a pipe");
        let (lines, stderr) = channel();
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, folder, stderr, listening: Vec::new(), paths: Vec::new() }
    }

    /// Reads lines until `ready`, keeping the addresses that were told.
    pub(crate) fn wait_until_ready(&mut self) {
        self.wait_for_line(|line| line == "ready");
    }

    /// Reads lines of standard error until one passes, and returns it.
    pub(crate) fn wait_for_line(&mut self, mut passes: impl FnMut(&str) -> bool) -> String {
        let mut said = Vec::new();
        loop {
            match self.stderr.recv_timeout(PATIENCE) {
                Ok(line) => {
                    self.note_address(&line);
                    if passes(&line) {
                        return line;
                    }
                    said.push(line);
                }
                Err(RecvTimeoutError::Timeout) => panic!("no such line in time: {said:#?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the program ended: {said:#?}"),
            }
        }
    }

    fn note_address(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("listening door=") else { return };
        let (door, address) = rest.split_once(" addr=").expect("a door and an address");
        match address.parse() {
            Ok(address) => self.listening.push((door.to_owned(), address)),
            // A Unix socket, from the folder of the program.
            Err(_) => self.paths.push(self.folder().join(address)),
        }
    }

    /// All `listening` lines so far: door and address.
    pub(crate) fn listening(&self) -> &[(String, SocketAddr)] {
        &self.listening
    }

    /// The paths of Unix sockets in all `listening` lines so far.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The address told last for `door`.
    pub(crate) fn address(&self, door: &str) -> SocketAddr {
        let told = self.listening.iter().rev().find(|(name, _)| name == door);
        told.unwrap_or_else(|| panic!("no {door} door in {:?}", self.listening)).1
    }

    /// The `--server` URL of the HTTP door.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address("http"))
    }

    /// The `--admin` URL of the admin listener.
    pub(crate) fn admin_url(&self) -> String {
        format!("http://{}", self.address("admin"))
    }

    /// The server's configuration file.
    pub(crate) fn config_path(&self) -> PathBuf {
        self.folder().join("tidegate.toml")
    }

    /// The server's working folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The server's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Replaces the configuration file as editors do: written aside, then renamed over.
    pub(crate) fn write_config(&self, config: &str) {
        let aside = self.folder().join("tidegate.toml.new");
        std::fs::write(&aside, config).expect("the file can be written");
        std::fs::rename(aside, self.config_path()).expect("the file can be renamed");
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the process takes signals");
    }

    /// Waits for the end of the process.
    pub(crate) fn exit_status(&mut self) -> ExitStatus {
        self.child.wait().expect("the process ends")
    }

    /// The lines of standard error that were not read yet; waits for the end of the process.
    pub(crate) fn rest_of_stderr(&mut self) -> Vec<String> {
        let _ = self.child.wait();
        self.stderr.iter().collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
