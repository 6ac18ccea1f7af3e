//! The snapshot of the real program: what a restart keeps, what a crash loses, and what is said
//! of a file that cannot be used.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program::{DOORS, Program, tidegate};

/// How often a test looks for something that must come before it gives up. A look runs the
/// program, so this is minutes.
const LOOKS_MAX: usize = 20_000;

/// The periods are long, so that no test depends on how fast it runs.
fn config(every: &str) -> String {
    format!(
        "[[rule]]\nname = 'rate'\nmatch = 'k*'\nlimit = ['3 per hour', '9 per day']\n\
         [[rule]]\nname = 'log'\nmatch = 'log*'\nlimit = '2 per hour'\n\
         algorithm = 'sliding-log'\n[snapshot]\npath = 'kept'\nevery = '{every}'\n{DOORS}"
    )
}

fn take(program: &Program, key: &str) -> Option<i32> {
    tidegate(["check", key, "--server", &program.url()]).status.code()
}

fn remaining(program: &Program, key: &str) -> u64 {
    let out = tidegate(["peek", key, "--json", "--admin", &program.admin_url()]);
    let json: Value = serde_json::from_slice(&out.stdout).expect("a verdict");
    json["limits"][0]["remaining"].as_u64().expect("a number")
}

fn snapshot(program: &Program) -> PathBuf {
    program.folder().join("kept")
}

/// Tells one snapshot from the next.
fn identity(program: &Program) -> Option<(u64, SystemTime)> {
    let file = fs::metadata(snapshot(program)).ok()?;
    Some((file.ino(), file.modified().ok()?))
}

/// Looks again and again until `seen`.
fn look_until(what: &str, mut seen: impl FnMut() -> bool) {
    assert!((0..LOOKS_MAX).any(|_| seen()), "in time: {what}");
}

#[test]
fn verdicts_go_on_after_a_clean_restart() {
    let program = Program::serve(&config("1h"));
    for key in ["k1", "k1", "k2", "log x", "log x"] {
        assert_eq!(take(&program, key), Some(0), "{key}");
    }
    assert!(!snapshot(&program).exists(), "nothing is due yet");
    let program = program.restart();
    assert_eq!(remaining(&program, "k2"), 2);
    assert_eq!(take(&program, "k1"), Some(0), "the third");
    for key in ["k1", "log x"] {
        assert_eq!(take(&program, key), Some(3), "{key} has had all its uses");
    }
    // And once more, with what was taken since.
    let program = program.restart();
    assert_eq!(take(&program, "k1"), Some(3));
    assert_eq!(remaining(&program, "k2"), 2);
    let url = program.admin_url();
    assert_eq!(tidegate(["reset", "k1", "--admin", &url]).status.code(), Some(0));
    assert_eq!(take(&program.restart(), "k1"), Some(0), "what was forgotten stays forgotten");
}

/// Takes one of a record's three, for an hour; what is left, or nothing where none was.
fn consume(program: &Program, key: &str) -> Option<u64> {
    let url = format!("{}/v1/records/consume", program.url());
    let asked = json!({"key": key, "quota": 3, "ttl_ms": 3_600_000}).to_string();
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let post = agent.post(&url).header("Content-Type", "application/json");
    let answer = post.send(asked).expect("an answer").body_mut().read_to_string().expect("text");
    let json: Value = serde_json::from_str(&answer).expect("JSON");
    let left = json["ttl_ms"].as_u64().expect("what is left of its life");
    assert!(left > 0 && left <= 3_600_000, "{answer}");
    json["taken"].as_bool().expect("an answer").then(|| json["remaining"].as_u64().expect("one"))
}

#[test]
fn records_live_on_after_a_clean_restart() {
    let program = Program::serve(&config("1h"));
    assert_eq!(consume(&program, "a"), Some(2));
    assert_eq!(consume(&program, "a"), Some(1));
    assert_eq!(consume(&program, "b"), Some(2));
    let program = program.restart();
    assert_eq!(consume(&program, "a"), Some(0));
    assert_eq!(consume(&program, "a"), None);
    assert_eq!(consume(&program, "b"), Some(1));
    let program = program.restart();
    assert_eq!(consume(&program, "a"), None);
    assert_eq!(consume(&program, "c"), Some(2));
}

#[test]
fn a_crash_loses_at_most_what_came_after_the_last_snapshot() {
    let program = Program::serve(&config("1s"));
    assert_eq!(take(&program, "k1"), Some(0));
    assert_eq!(take(&program, "k1"), Some(0));
    // The first that appears may have been begun before the uses were taken; the second was begun
    // when the first was done, and holds them.
    for _ in 0..2 {
        let before = identity(&program);
        look_until("another snapshot", || {
            assert!(tidegate(["healthcheck", "--server", &program.url()]).status.success());
            identity(&program).is_some_and(|now| Some(now) != before)
        });
    }
    let program = program.crash_and_restart();
    assert_eq!(remaining(&program, "k1"), 1);
}

/// Damages the newest snapshot; returns what it is then. A clean end would write a sound one over
/// it, so the program has to crash next.
fn damage(program: &Program) -> Vec<u8> {
    let path = snapshot(program);
    let mut bytes = fs::read(&path).expect("the snapshot of the clean end");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    fs::write(&path, &bytes).expect("written");
    bytes
}

fn page(program: &Program, path: &str) -> String {
    let reply = ureq::get(format!("{}{path}", program.url())).call();
    reply.expect("an answer").body_mut().read_to_string().expect("text")
}

fn readiness(program: &Program) -> Value {
    let ready: Value = serde_json::from_str(&page(program, "/readyz")).expect("JSON");
    assert_eq!(ready["ready"], true, "work may be sent here all the same");
    ready
}

/// The value of a series, by its whole name.
fn series(program: &Program, name: &str) -> f64 {
    let page = page(program, "/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {page}")).parse().expect("a number")
}

const LAST_SUCCESS: &str = "tidegate_snapshot_last_success_timestamp_seconds";
const FAILURES: &str = "tidegate_snapshot_failures_total";

#[test]
fn a_damaged_file_is_kept_aside_and_the_server_goes_on() {
    let program = Program::serve(&config("1h"));
    assert_eq!(series(&program, LAST_SUCCESS), 0.0, "nothing is written yet");
    assert_eq!(take(&program, "k1"), Some(0));
    let program = program.restart();
    let bytes = damage(&program);
    let mut program = program.crash_and_start();
    let line = program.wait_for_line(|line| line.contains("snapshot not restored"));
    assert!(line.contains("damaged: ") && line.contains("kept.damaged"), "{line}");
    program.wait_until_ready();
    assert_eq!(fs::read(program.folder().join("kept.damaged")).expect("kept"), bytes);
    assert_eq!(remaining(&program, "k1"), 3, "it starts from nothing");
    assert_eq!(readiness(&program)["snapshot_restored_from"], "nothing");
    assert_eq!(series(&program, "tidegate_snapshot_restored{from=\"nothing\"}"), 1.0);
    assert_eq!(take(&program, "k1"), Some(0));
    let program = program.restart();
    assert_eq!(remaining(&program, "k1"), 2, "and the next snapshot is sound");
    assert_eq!(readiness(&program).get("snapshot_restored_from"), None);
}

#[test]
fn a_damaged_file_costs_only_what_came_after_the_previous_one() {
    let program = Program::serve(&config("1h"));
    assert_eq!(take(&program, "k1"), Some(0));
    let program = program.restart();
    assert_eq!(take(&program, "k1"), Some(0));
    let program = program.restart();
    assert_eq!(remaining(&program, "k1"), 1);
    damage(&program);
    let mut program = program.crash_and_start();
    let line = program.wait_for_line(|line| line.contains("previous snapshot is restored"));
    assert!(line.contains("kept"), "{line}");
    program.wait_until_ready();
    assert_eq!(remaining(&program, "k1"), 2, "as of the snapshot before");
    assert_eq!(readiness(&program)["snapshot_restored_from"], "previous");
    assert_eq!(series(&program, "tidegate_snapshot_restored{from=\"previous\"}"), 1.0);
    assert!(series(&program, LAST_SUCCESS) > 0.0, "there is one on disk");
    // The same without any newest file, as a crash between two renames leaves it.
    let program = program.crash_and_restart();
    assert_eq!(remaining(&program, "k1"), 2);
}

#[test]
fn a_path_that_cannot_be_used_is_an_error_at_the_start() {
    let refused = |prepare: fn(&Path), path: &str, why: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(folder.path());
        let config = config("1h").replace("'kept'", &format!("'{path}'"));
        let mut program = Program::start_in(folder, &config, "");
        assert_eq!(program.exit_status().code(), Some(2), "{path}");
        let told = program.rest_of_stderr().join("\n");
        assert!(told.contains("[snapshot]") && told.contains(path), "{told}");
        assert!(told.contains(why) && !told.contains("listening"), "{told}");
    };
    refused(|_| {}, "missing/kept", "does not exist");
    refused(|folder| fs::write(folder.join("file"), "").unwrap(), "file/kept", "not a folder");
    let link = |folder: &Path| symlink(folder.join("other"), folder.join("kept")).unwrap();
    refused(link, "kept", "symbolic link");
}

#[test]
fn a_snapshot_that_cannot_be_written_is_counted_and_told_until_one_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    fs::create_dir(&state).expect("a folder");
    let config = config("1s").replace("'kept'", "'state/kept'");
    let mut program = Program::start_in(folder, &config, "");
    program.wait_until_ready();
    fs::remove_dir_all(&state).expect("removed");
    let line = program.wait_for_line(|line| line.contains("snapshot not written"));
    assert!(line.contains("state/kept"), "{line}");
    assert!(series(&program, FAILURES) >= 1.0);
    let why = readiness(&program)["snapshot_error"].clone();
    assert!(why.as_str().is_some_and(|why| why.contains("state/kept")), "{why}");
    fs::create_dir(&state).expect("a folder");
    look_until("a snapshot", || readiness(&program).get("snapshot_error").is_none());
    assert!(series(&program, LAST_SUCCESS) > 0.0);
    assert!(state.join("kept").exists());
}

#[test]
fn a_disk_that_is_full_leaves_the_snapshot_before() {
    let program = Program::serve(&config("1h"));
    assert_eq!(take(&program, "k1"), Some(0));
    let program = program.restart();
    let before = fs::read(snapshot(&program)).expect("the snapshot of the clean end");
    // From here on no file of it may grow beyond a block, and what it keeps is larger.
    let mut program =
        Program::start_in(program.crash(), &config("1h"), "trap '' XFSZ; ulimit -f 1;");
    program.wait_until_ready();
    for n in 0..4 {
        assert_eq!(take(&program, &format!("k{}{n}", "x".repeat(700))), Some(0));
    }
    program.signal(Signal::TERM);
    assert!(program.exit_status().success());
    let told = program.rest_of_stderr().join("\n");
    assert!(told.contains("snapshot not written"), "{told}");
    assert_eq!(fs::read(snapshot(&program)).expect("still there"), before);
    assert!(!program.folder().join("kept.new").exists(), "nothing half written is left");
}

#[test]
fn an_end_leaves_a_snapshot_and_nothing_half_written() {
    let mut program = Program::serve(&config("1s"));
    assert_eq!(take(&program, "k1"), Some(0));
    program.signal(Signal::INT);
    assert!(program.exit_status().success());
    let names = fs::read_dir(program.folder()).expect("a folder");
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("kept.") && name != "kept.previous");
    assert!(names.is_empty(), "nothing half written is left: {names:?}");
    assert!(snapshot(&program).exists());
}

#[test]
fn a_second_signal_to_stop_does_not_cost_the_snapshot() {
    // Takes a request, and never answers it: draining would take its time.
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = upstream.local_addr().expect("an address");
    let mut program = Program::serve(&format!(
        "{}[[proxy]]\nname = 'p'\nlisten = '127.0.0.1:0'\nlimit = 'none'\n\
         upstream = 'http://{address}'\n[server]\nshutdown_grace = '10min'\n",
        config("1h")
    ));
    assert_eq!(take(&program, "k1"), Some(0));
    let mut client = TcpStream::connect(program.address("proxy")).expect("the proxy accepts");
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("the proxy reads");
    let _under_way = upstream.accept().expect("the request reaches the upstream");
    program.signal(Signal::TERM);
    program.wait_for_line(|line| line.contains("stopping"));
    program.signal(Signal::TERM);
    program.wait_for_line(|line| line.contains("second signal to stop"));
    assert!(program.exit_status().success());
    let kept = fs::read(snapshot(&program)).expect("a snapshot");
    assert!(kept.windows(2).any(|bytes| bytes == b"k1"), "with what was used");
}
