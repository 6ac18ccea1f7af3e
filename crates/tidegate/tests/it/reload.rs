//! Reloads: by a changed file, by a swapped link, by SIGHUP; and those that change nothing.

use std::os::unix::fs::symlink;

use rustix::fs::{CWD, mkfifoat};
use rustix::process::Signal;
use serde_json::json;

use crate::http::send_to;
use crate::papers::Papers;
use crate::program::{DOORS, Program, command, tidegate};

fn rule(limit: &str) -> String {
    format!("[[rule]]\nname = 'r'\nmatch = 'k*'\nlimit = '{limit}'\n{DOORS}")
}

/// What the server says the limit of a key is.
fn limit_of(program: &Program, key: &str) -> String {
    let out = tidegate(["peek", key, "--json", "--admin", &program.admin_url()]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("a verdict");
    json["limits"][0]["limit"].as_str().unwrap_or("none").to_owned()
}

fn take(program: &Program, key: &str) -> Option<i32> {
    tidegate(["check", key, "--server", &program.url()]).status.code()
}

fn readiness(program: &Program) -> serde_json::Value {
    let out = tidegate(["healthcheck", "--server", &program.url()]);
    assert!(out.status.success(), "a failed reload does not make it unready");
    serde_json::from_slice(&out.stdout).expect("details")
}

fn reloaded(line: &str) -> bool {
    line.contains("configuration reloaded")
}

fn not_reloaded(line: &str) -> bool {
    line.contains("configuration not reloaded")
}

#[test]
fn a_changed_file_takes_effect_and_counts_live_on() {
    let mut program = Program::serve(&rule("2 per hour"));
    assert_eq!(take(&program, "k1"), Some(0));
    assert_eq!(take(&program, "k1"), Some(0));
    assert_eq!(take(&program, "k1"), Some(3));
    program.write_config(&rule("3 per hour"));
    program.wait_for_line(reloaded);
    assert_eq!(limit_of(&program, "k1"), "3 per hour");
    assert_eq!(take(&program, "k1"), Some(0), "one more than before");
    assert_eq!(take(&program, "k1"), Some(3), "and not three more");
}

#[test]
fn a_file_written_in_place_is_noticed_too() {
    let mut program = Program::serve(&rule("2 per hour"));
    std::fs::write(program.config_path(), rule("4 per hour")).unwrap();
    program.wait_for_line(reloaded);
    assert_eq!(limit_of(&program, "k"), "4 per hour");
}

#[test]
fn a_swapped_link_is_noticed() {
    // As Kubernetes mounts ConfigMaps: the file is a link through a folder that is a link.
    let folder = tempfile::tempdir().unwrap();
    let version = |name: &str, text: &str| {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        std::fs::write(folder.path().join(name).join("tidegate.toml"), text).unwrap();
    };
    version("..1", &rule("2 per hour"));
    symlink("..1", folder.path().join("..data")).unwrap();
    symlink("..data/tidegate.toml", folder.path().join("tidegate.toml")).unwrap();
    let mut serve = command(["serve"]);
    serve.current_dir(folder.path());
    let path = folder.path().to_owned();
    version("..2", &rule("5 per hour"));
    let mut program = Program::spawn(serve, folder);
    program.wait_until_ready();
    assert_eq!(limit_of(&program, "k"), "2 per hour");
    symlink("..2", path.join("..data_tmp")).unwrap();
    std::fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    program.wait_for_line(reloaded);
    assert_eq!(limit_of(&program, "k"), "5 per hour");
}

#[test]
fn a_bad_file_changes_nothing_and_is_visible_until_a_good_one_comes() {
    let mut program = Program::serve(&rule("2 per hour"));
    assert!(readiness(&program)["last_reload_error"].is_null());
    program.write_config(&rule("2 pr hour"));
    let line = program.wait_for_line(not_reloaded);
    assert!(line.contains("tidegate.toml:4:"), "{line}");
    let error = readiness(&program)["last_reload_error"].as_str().unwrap().to_owned();
    assert!(error.contains("tidegate.toml:4:"), "{error}");
    assert_eq!(limit_of(&program, "k"), "2 per hour");
    program.write_config(&rule("3 per hour"));
    program.wait_for_line(reloaded);
    assert!(readiness(&program)["last_reload_error"].is_null());
    assert_eq!(limit_of(&program, "k"), "3 per hour");
}

#[test]
fn a_file_that_went_away_changes_nothing() {
    let mut program = Program::serve(&rule("2 per hour"));
    std::fs::remove_file(program.config_path()).unwrap();
    let line = program.wait_for_line(not_reloaded);
    assert!(line.contains("cannot read the file"), "{line}");
    assert_eq!(limit_of(&program, "k"), "2 per hour");
}

#[test]
fn a_hang_up_reloads_whether_or_not_the_file_changed() {
    let mut program = Program::serve(&rule("2 per hour"));
    for _ in 0..2 {
        program.signal(Signal::HUP);
        program.wait_for_line(reloaded);
    }
    assert_eq!(take(&program, "k"), Some(0));
}

#[test]
fn doors_are_opened_and_closed_and_kept() {
    let mut program = Program::serve(&rule("2 per hour"));
    let (text, http) = (program.address("text"), program.address("http"));
    let ping = |address: String| {
        let out = tidegate(["request", "ping", "--text", &address, "--timeout", "20s"]);
        (out.status.code(), String::from_utf8_lossy(&out.stdout).trim_end().to_owned())
    };
    assert_eq!(ping(text.to_string()), (Some(0), "pong".to_owned()));

    program.write_config("[http]\nlisten = '127.0.0.1:0'\n");
    program.wait_for_line(reloaded);
    assert_eq!(program.address("http"), http, "kept");
    // The socket is closed soon after; then the kernel says so at once.
    while ping(text.to_string()).0 != Some(1) {}

    let both = "[text]\nlisten = ['127.0.0.1:0', '127.0.0.1:0']\n[http]\nlisten = '127.0.0.1:0'\n";
    program.write_config(both);
    program.wait_for_line(reloaded);
    let told = program.listening();
    assert_eq!(told.len(), 5, "two more, and http only once: {told:?}");
    for (_, address) in &told[3..] {
        assert_eq!(ping(address.to_string()), (Some(0), "pong".to_owned()));
    }
}

#[test]
fn a_door_grows_onto_a_second_address_beside_its_own() {
    let mut program = Program::serve(DOORS);
    let text = program.address("text");
    let grown = format!("[text]\nlisten = ['{text}', '[::1]:0']\n[http]\nlisten = '127.0.0.1:0'\n");
    program.write_config(&grown);
    program.wait_for_line(reloaded);
    for (_, address) in &program.listening()[3..] {
        let address = address.to_string();
        let out = tidegate(["request", "ping", "--text", &address, "--timeout", "20s"]);
        assert_eq!(out.stdout, b"pong\n", "{address}");
    }
}

#[test]
fn a_door_that_cannot_open_changes_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let blocked = taken.local_addr().unwrap();
    let mut program = Program::serve(&rule("2 per hour"));
    let http = program.address("http");
    // It would have to give up its own address for one that it cannot have.
    for listen in [format!("'{blocked}'"), format!("['{http}', '{blocked}']")] {
        let config = rule("9 per hour")
            .replace("[http]\nlisten = \"127.0.0.1:0\"", &format!("[http]\nlisten = {listen}"));
        assert!(config.contains(&listen), "{config}");
        program.write_config(&config);
        let line = program.wait_for_line(not_reloaded);
        assert!(line.contains(&blocked.to_string()), "{line}");
        assert_eq!(limit_of(&program, "k"), "2 per hour");
        assert!(readiness(&program)["last_reload_error"].is_string());
    }
}

#[test]
fn an_allow_list_takes_effect_on_an_open_door() {
    let mut program = Program::serve(DOORS);
    let text = program.address("text").to_string();
    let config = DOORS.replace("[text]\n", "[text]\nallow = ['192.0.2.0/24']\n");
    program.write_config(&config);
    program.wait_for_line(reloaded);
    assert_eq!(program.listening().len(), 3, "no door was opened anew");
    let out = tidegate(["request", "ping", "--text", &text, "--timeout", "300ms"]);
    assert_eq!(out.status.code(), Some(1));
}

/// Takes from a record, which is made and stays: 503 if there is no room for it.
fn consume(program: &Program, record: &str) -> u16 {
    let body = json!({"key": record, "quota": 9, "ttl_ms": 3_600_000}).to_string();
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    send_to(program.address("http"), "POST", "/v1/records/consume", headers, &body).status
}

#[test]
fn each_bound_of_memory_changes_by_itself() {
    let memory = |bounds: &str| format!("[memory]\n{bounds}\n{DOORS}");
    let mut program = Program::serve(&memory("max_keys = 5000\nmax_records = 10"));
    assert_eq!(consume(&program, "first"), 200);
    for (bounds, stay, status) in [
        ("max_keys = 6000\nmax_records = 1", &["max_keys"][..], 503),
        ("max_keys = 6000\nmax_records = 10", &["max_keys"], 200),
        ("max_keys = 6000\nmax_records = 11\nmax_bytes = 1", &["max_keys", "max_records"], 503),
        ("max_keys = 5000\nmax_records = 10", &[], 200),
    ] {
        program.write_config(&memory(bounds));
        let mut told = Vec::new();
        program.wait_for_line(|line| {
            let new = line.split_once("the new ").map_or("", |(_, new)| new);
            let told_of = new.split_once(" of [memory] needs a restart");
            told.extend(told_of.map(|(name, _)| name.to_owned()));
            reloaded(line)
        });
        assert_eq!(told, stay, "{bounds}");
        assert_eq!(consume(&program, bounds), status, "{bounds}");
    }
}

#[test]
fn a_reload_says_what_it_changed() {
    let extra = "[[rule]]\nname = 'more'\nmatch = 'm*'\nlimit = '1 per hour'\n";
    let mut program = Program::serve(&rule("2 per hour"));
    program.write_config(&format!("{extra}{}", rule("2 per day").replace("[text]", "[[throttr]]")));
    let line = program.wait_for_line(reloaded);
    let (text, throttr) = (program.address("text"), program.address("throttr"));
    for part in [
        "rules_added=\"more\"",
        "rules_changed=\"r\"",
        "counts_begin_anew=\"r\"",
        &format!("doors_opened=\"throttr {throttr}\""),
        &format!("doors_closed=\"text {text}\""),
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    program.write_config(&rule("3 per day").replace("[text]", "[[throttr]]"));
    let line = program.wait_for_line(reloaded);
    assert!(
        line.contains("rules_removed=\"more\"") && line.contains("rules_changed=\"r\""),
        "{line}"
    );
    assert!(!line.contains("anew") && !line.contains("doors"), "{line}");
}

/// Opening a FIFO waits for its writer, and there is none.
#[test]
fn a_file_that_never_comes_changes_nothing_and_does_not_keep_the_server_from_stopping() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let (cert, key) = (papers.path("gate.pem"), papers.path("gate.key"));
    let (cert_text, key_text) = (cert.display(), key.display());
    let tls = format!("tls = {{ cert = '{cert_text}', key = '{key_text}' }}\n");
    let file = format!("[http]\nlisten = '127.0.0.1:0'\n{tls}");
    for path in [Some(cert), Some(key), None] {
        let mut program = Program::serve(&file);
        let path = path.unwrap_or_else(|| program.config_path());
        let good = std::fs::read(&path).expect("a file");
        std::fs::remove_file(&path).expect("a file");
        mkfifoat(CWD, &path, 0o600.into()).expect("a FIFO");
        program.signal(Signal::HUP);
        let line = program.wait_for_line(|line| line.contains("not a regular file"));
        assert!(not_reloaded(&line), "{line}");
        program.signal(Signal::TERM);
        assert!(program.exit_status().success());
        std::fs::remove_file(&path).expect("a FIFO");
        std::fs::write(&path, good).expect("a file");
    }
}
