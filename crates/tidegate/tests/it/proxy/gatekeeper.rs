//! The proxy as a gatekeeper, with a real master behind it.

use super::*;
use crate::program::tidegate;

/// A master of `api` and `slow` at free ports.
const MASTER: &str = r#"
[smockron]
accounting = "tcp://127.0.0.1:0"
control = "tcp://127.0.0.1:0"
[smockron.domains]
api = "1/hour burst 2"
[admin]
listen = "127.0.0.1:0"
"#;

/// The setting that makes a proxy obey a master.
fn obeying(master: &Program, more: &str) -> String {
    let told = master.listening().iter().filter(|(door, _)| door == "smockron");
    let told: Vec<SocketAddr> = told.map(|(_, address)| *address).collect();
    let [accounting, control] = *told.last_chunk().expect("both addresses are told");
    format!(
        "gatekeeper = {{ accounting = 'tcp://{accounting}', control = 'tcp://{control}'{more} }}"
    )
}

/// Asks until the master has said that it is enough.
fn until_turned_away(client: &mut Client, path: &str) -> Message {
    let mut last = None;
    eventually(|| {
        let answer = client.get(path);
        let done = answer.status() != 200;
        last = Some(answer);
        done
    });
    last.expect("it was asked")
}

#[test]
fn a_master_limits_clients_by_address() {
    let master = Program::serve(MASTER);
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, &obeying(&master, ""));
    let mut client = Client::of(&program);
    let answer = until_turned_away(&mut client, "/a");
    assert_eq!(answer.status(), 503);
    let after: u64 = answer.header("retry-after").expect("when to come back").parse().unwrap();
    assert!((1_000..=7_200).contains(&after), "{after}");
    assert!(answer.text().contains("\"reason\":\"delayed\""), "{}", answer.text());
    // All paths of one client are one, and there is no limit besides: 100 per minute is for others.
    assert_eq!(client.get("/b").status(), 503);
    let told = "tidegate_accounting_total{status=\"accepted\"}";
    eventually(|| metric(&master, told) >= 2.0);
    let rejected = "tidegate_accounting_total{status=\"rejected\"}";
    eventually(|| metric(&master, rejected) >= 2.0);
}

#[test]
fn a_master_is_told_what_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("accounting.jsonl");
    let log = format!("accounting_log = '{}'\n[smockron.domains]", file.display());
    let mut master = Program::serve(&MASTER.replace("[smockron.domains]", &log));
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, &obeying(&master, ""));
    let mut client = Client::of(&program);
    let told = "tidegate_accounting_total{status=\"accepted\"}";
    eventually(|| {
        let _ = client.get("/a/b?token=secret");
        metric(&master, told) >= 1.0
    });
    // It is written whole before the master ends.
    master.signal(rustix::process::Signal::TERM);
    assert!(master.exit_status().success());
    let lines = std::fs::read_to_string(file).unwrap();
    let first = lines.lines().next().expect("a line");
    assert!(first.contains("\"log_info\":\"GET /a/b\""), "{first}");
}

#[test]
fn keys_say_otherwise_and_an_own_limit_applies_too() {
    let master = Program::serve(MASTER);
    let upstream = Upstream::mirror();
    let own =
        "key = 'path={path}'\nlimit = '3 per hour'\nalgorithm = 'gcra'\non_limit = 'reject'\n";
    let program = proxy(upstream.address, &format!("{own}{}", obeying(&master, "")));
    let mut client = Client::of(&program);
    // Whichever comes first; the master's word needs its time, the own limit does not.
    let answer = until_turned_away(&mut client, "/a");
    assert!([429, 503].contains(&answer.status()), "{}", answer.first);
    assert_eq!(client.get("/b").status(), 200, "another path is another client");
    let series = "tidegate_decisions_total{door=\"proxy\",rule=\"proxy:api\",verdict=\"allow\"}";
    assert!(metric(&program, series) >= 2.0);
}

#[test]
fn short_delays_are_waited_for() {
    // The second request is told to wait for a second, which is less than five.
    let master = Program::serve(&MASTER.replace("1/hour burst 2", "1/sec burst 1"));
    let upstream = Upstream::mirror();
    let program = proxy(upstream.address, &obeying(&master, ", reject_every = 0"));
    let mut client = Client::of(&program);
    let waited = "tidegate_accounting_total{status=\"delayed\"}";
    eventually(|| {
        assert_eq!(client.get("/a").status(), 200);
        metric(&master, waited) >= 1.0
    });
}

#[test]
fn without_its_master_everything_passes() {
    let upstream = Upstream::mirror();
    let settings =
        "gatekeeper = { accounting = 'tcp://127.0.0.1:1', control = 'tcp://127.0.0.1:1' }";
    let program = proxy(upstream.address, settings);
    let mut client = Client::of(&program);
    for _ in 0..300 {
        assert_eq!(client.get("/a").status(), 200);
    }
}

#[test]
fn wrong_endpoints_are_told_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.toml");
    let wrong = "gatekeeper = { accounting = 'tcp://*:10004', control = 'tcp://127.0.0.1:10005' }";
    std::fs::write(&file, config("http://127.0.0.1:1", wrong)).unwrap();
    let output = tidegate(["config".as_ref(), "check".as_ref(), file.as_os_str()]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("tcp://*:10004") && told.contains("is not an endpoint"), "{told}");
}
