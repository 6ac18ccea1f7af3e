//! Runs the steps of a page in one shell: a network and processes of its own, in an empty folder.
//!
//! The network namespace makes the fixed addresses of pages harmless, and the process namespace
//! ends what a page has left running. It does not judge what was said, `Page` does.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use super::page::{ANYTHING, Page, Step, Typed, agrees};
use crate::{peers, program};

/// How long a command may say nothing. Never a measure.
const WATCHDOG: Duration = Duration::from_secs(30);

/// What a command said, and its status; only what it said where no end came.
pub(super) type Said = Result<(Vec<String>, String), Vec<String>>;

/// Does what the page says, and returns what went otherwise than it shows.
pub(super) fn run(page: &Page) -> Vec<String> {
    let fault = |(typed, said): (&Typed, Said)| {
        let fault = match &said {
            Ok((output, status)) => judge(typed, output, status),
            Err(output) => Some(format!("  does not end; it says\n{}", indented(output))),
        };
        fault.map(|fault| format!("line {}: $ {}\n{fault}", typed.line, typed.command))
    };
    play(page).into_iter().filter_map(fault).collect()
}

/// Does what the page says, up to a command that does not end.
pub(super) fn play(page: &Page) -> Vec<(&Typed, Said)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::os::unix::fs::symlink(repository.join("examples"), folder.path().join("examples"))
        .expect("a link");
    let home = tempfile::tempdir().expect("a temporary folder");
    let script = home.path().join("session.sh");
    std::fs::write(&script, script_of(page)).expect("the script can be written");

    let mut shell = namespaces();
    shell.arg("bash").arg(&script).current_dir(folder.path());
    shell.env_clear().env("HOME", home.path()).env("PATH", path()).env("LC_ALL", "C.UTF-8");
    shell.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = shell.spawn().expect("unshare can be started; it is in util-linux");
    let said = lines_of(&mut child);
    let mut played = Vec::new();
    for step in &page.steps {
        let Step::Run(typed) = step else { continue };
        let output = next(&said);
        let is_last = output.is_err();
        played.push((typed, output));
        if is_last {
            break;
        }
    }
    // With `unshare` ends the first process of the namespace, and with that all others.
    let _ = child.kill();
    let _ = child.wait();
    played
}

/// What runs a command with a network and process ids that only it has.
fn namespaces() -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--pid", "--fork", "--kill-child"]);
    if !rustix::process::geteuid().is_root() {
        // The user stays who it is, and may still bring the loopback device up.
        unshare.args(["--map-current-user", "--keep-caps"]);
    }
    unshare
}

/// The program under test first, then what the machine has, then what `make setup-test` adds.
fn path() -> std::ffi::OsString {
    let built = Path::new(program::binary()).parent().expect("a folder").to_owned();
    let machine = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = vec![built];
    folders.extend(std::env::split_paths(&machine));
    folders.extend(["/usr/sbin".into(), "/sbin".into(), peers::folder().join("python")]);
    std::env::join_paths(folders).expect("folders without colons")
}

fn script_of(page: &Page) -> String {
    let mut script = include_str!("session.sh").to_owned();
    for step in &page.steps {
        let call = match step {
            Step::Write { name, text } => format!("put {} {}", quoted(name), quoted(text)),
            Step::Run(typed) if typed.serves() => {
                let command = typed.command.trim_end_matches('&');
                let awaited = typed.shown.last().map_or("", String::as_str);
                format!("serve {} {}", quoted(&format!("{command}&")), quoted(&pattern(awaited)))
            }
            Step::Run(typed) => format!("run {}", quoted(&typed.command)),
        };
        writeln!(script, "{call}").expect("a string grows");
    }
    script
}

/// As one word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// As a pattern of the shell.
fn pattern(line: &str) -> String {
    let escaped = |part: &str| {
        part.chars().fold(String::new(), |mut pattern, c| {
            pattern.extend(c.is_ascii_punctuation().then_some('\\'));
            pattern.push(c);
            pattern
        })
    };
    line.split(ANYTHING).map(escaped).collect::<Vec<_>>().join("*")
}

fn lines_of(child: &mut Child) -> Receiver<String> {
    let pipe = child.stdout.take().expect("standard output is a pipe");
    let (sender, said) = channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    said
}

/// What the next command said.
fn next(said: &Receiver<String>) -> Said {
    let mut output = Vec::new();
    while let Ok(line) = said.recv_timeout(WATCHDOG) {
        let Some((last, status)) = line.split_once('\u{1e}') else {
            output.push(line.trim_end().to_owned());
            continue;
        };
        if !last.is_empty() {
            output.push(last.trim_end().to_owned());
        }
        return Ok((output, status.to_owned()));
    }
    Err(output)
}

fn judge(typed: &Typed, output: &[String], status: &str) -> Option<String> {
    if !agrees(&typed.shown, output) {
        let (shown, output) = (indented(&typed.shown), indented(output));
        return Some(format!("  the page shows\n{shown}  it says\n{output}"));
    }
    // Where nothing is shown, a reader takes it that the command has done its work.
    let failed = typed.shown.is_empty() && status != "0";
    failed.then(|| format!("  fails with {status} and says nothing\n"))
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|line| format!("    {line}\n")).collect()
}
