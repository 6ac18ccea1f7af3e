//! What gatekeepers are told, in Python and in JavaScript, and how the door is opened and closed.

use std::fs;
use std::net::{TcpListener, TcpStream};

use rustix::process::Signal;

use super::peer::{Endpoints, Peer, addresses};
use super::{MASTER, accepted, bad_input, delays, eventually, metric, pair};
use crate::program::{Program, tidegate};

#[test]
fn both_addresses_are_told_accounting_first() {
    let program = Program::serve(MASTER);
    let told: Vec<&str> = program.listening().iter().map(|(door, _)| door.as_str()).collect();
    assert_eq!(told, ["smockron", "smockron", "http"]);
    // The accounting socket is the one that subscribes: only there is a publisher welcome.
    let mut gatekeeper = Peer::gatekeeper(&Endpoints::of(&program), &["web"]);
    delays(&mut gatekeeper, "me");
}

#[test]
fn gatekeepers_in_python_and_in_javascript_hear_of_each_other() {
    let (program, mut python) = pair();
    let endpoints = Endpoints::of(&program);
    let mut javascript = Peer::javascript(&endpoints, &["web"]);
    delays(&mut python, "1.2.3.4");
    delays(&mut javascript, "5.6.7.8");
    // Each of them is told what the other one's clients have used up.
    delays(&mut python, "second");
    javascript.tell_until(&accepted("third"), |line| line.contains("|third|"));
    python.until(|line| line.contains("|third|"));
    let decisions =
        "tidegate_decisions_total{door=\"smockron\",rule=\"smockron:web\",verdict=\"delay\"}";
    assert!(metric(&program, decisions) >= 4);
    assert!(metric(&program, "tidegate_accounting_total{status=\"accepted\"}") >= 4);
    eventually(|| metric(&program, "tidegate_peers{door=\"smockron\",socket=\"control\"}") == 2);
    drop(javascript);
    eventually(|| metric(&program, "tidegate_peers{door=\"smockron\",socket=\"control\"}") == 1);
}

#[test]
fn other_domains_are_not_disturbed() {
    let (program, mut web) = pair();
    let mut other = Peer::gatekeeper(&Endpoints::of(&program), &["other"]);
    delays(&mut web, "me");
    let line = other.tell_until("send other\\0|ACCEPTED|you|now||", |_| true);
    assert!(line.starts_with("other\\0|DELAY_UNTIL|you|"), "{line}");
}

#[test]
fn what_cannot_be_used_is_counted_by_reason_and_the_rest_goes_on() {
    let (program, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "me");
    for message in [
        "web\\0|ACCEPTED|me",
        "web\\0|ACCEPTED|me|now",
        "web\\0|PERHAPS|me|now||",
        "web\\0|ACCEPTED|me|soon||",
        "\\0|ACCEPTED|me|now||",
        "stranger\\0|ACCEPTED|me|now||",
        "web\\0|ACCEPTED|x*2000|now||",
        "web\\0|REJECTED|rejected|now||",
        "web\\0|ACCEPTED|x*300|now||",
    ] {
        gatekeeper.tell(&format!("send {message}"));
    }
    delays(&mut gatekeeper, "after");
    for (reason, count) in [
        ("few_frames", 2),
        ("status", 1),
        ("timestamp", 1),
        ("domain", 1),
        ("unknown_domain", 1),
        ("key_too_long", 1),
    ] {
        assert_eq!(bad_input(&program, reason), count, "{reason}");
    }
    assert_eq!(metric(&program, "tidegate_accounting_total{status=\"rejected\"}"), 1);
    assert_eq!(metric(&program, "tidegate_lost_total{door=\"smockron\",what=\"long_pair\"}"), 1);
}

#[test]
fn unknown_domains_are_warned_about() {
    let (mut program, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "me");
    gatekeeper.tell("send stranger\\0|ACCEPTED|me|now||");
    let line = program.wait_for_line(|line| line.contains("without a rule"));
    assert!(line.contains("stranger") && line.contains("[smockron.domains]"), "{line}");
}

#[test]
fn whoever_has_just_started_can_ask_who_is_delayed() {
    let (program, mut first) = pair();
    delays(&mut first, "one");
    delays(&mut first, "two");
    let mut second = Peer::gatekeeper(&Endpoints::of(&program), &["web"]);
    // What is said before the question arrives is lost with it, so it is asked again.
    second.tell_until("send web\\0|RESYNC", |line| line == "web\\0|RESYNCSTART");
    let mut told = Vec::new();
    loop {
        let line = second.line();
        if line == "web\\0|RESYNCDONE" {
            break;
        }
        told.push(line.split('|').nth(2).unwrap_or(&line).to_owned());
    }
    told.sort();
    told.dedup();
    assert_eq!(told, ["one", "two"]);
}

#[test]
fn a_client_of_a_gatekeeper_is_a_key_of_all_doors() {
    let (program, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "ip=1.2.3.4");
    let check = |key: &str| tidegate(["check", key, "--server", &program.url()]).status.code();
    assert_eq!(check("web ip=1.2.3.4"), Some(3));
    assert_eq!(check("web ip=5.6.7.8"), Some(0));
    // What another door has used up, the next message of a gatekeeper tells.
    gatekeeper.tell("send web\\0|DELAYED|ip=5.6.7.8|now|now|");
    gatekeeper.until(|line| line.contains("|ip=5.6.7.8|"));
}

#[test]
fn accounting_is_logged_as_json_lines() {
    let log = "accounting_log = 'accounting.jsonl'\n[smockron.domains]";
    let program = Program::serve(&MASTER.replace("[smockron.domains]", log));
    let mut gatekeeper = Peer::gatekeeper(&Endpoints::of(&program), &["web"]);
    delays(&mut gatekeeper, "me");
    gatekeeper.tell("send web\\0|REJECTED|\"evil\"|now||}{");
    gatekeeper.tell("send stranger\\0|DELAYED|x|now|now|");
    let path = program.folder().join("accounting.jsonl");
    let mut lines = Vec::new();
    eventually(|| {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let parsed = whole.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        lines = parsed.collect::<Vec<serde_json::Value>>();
        lines.last().is_some_and(|line| line["domain"] == "stranger")
    });
    assert_eq!(lines[0]["status"], "ACCEPTED");
    assert_eq!(lines[0]["log_info"], "test");
    let rejected = &lines[lines.len() - 2];
    assert_eq!(
        (&rejected["identifier"], &rejected["log_info"]),
        (&"\"evil\"".into(), &"}{".into())
    );
    assert!(lines.last().is_some_and(|line| line["delayed_ms"].is_u64()));
}

#[test]
fn a_reload_opens_closes_and_moves_the_door() {
    let bare = "[http]\nlisten = '127.0.0.1:0'\n";
    let mut program = Program::serve(bare);
    program.write_config(MASTER);
    program.wait_for_line(|line| line.starts_with("listening door=smockron"));
    program.wait_for_line(|line| line.starts_with("listening door=smockron"));
    let endpoints = Endpoints::of(&program);
    let mut gatekeeper = Peer::gatekeeper(&endpoints, &["web", "new"]);
    delays(&mut gatekeeper, "me");
    // New domains come into force without closing anything.
    let domains = "[smockron.domains]\nnew = '1/hour burst 1'\n";
    program.write_config(&MASTER.replace("[smockron.domains]\n", domains));
    gatekeeper.tell_until("send new\\0|ACCEPTED|me|now||", |line| line.starts_with("new\\0|"));
    // Another setting of the sockets closes them and opens them again at the same addresses.
    let moved = MASTER.replace(
        "[smockron]\naccounting = \"tcp://127.0.0.1:0\"\ncontrol = \"tcp://127.0.0.1:0\"\n",
        &format!("{}hwm = 2000\n", endpoints.table()),
    );
    program.write_config(&moved);
    program.wait_for_line(|line| line.starts_with("listening door=smockron"));
    program.wait_for_line(|line| line.starts_with("listening door=smockron"));
    assert_eq!(Endpoints::of(&program).table(), endpoints.table());
    delays(&mut gatekeeper, "again");
    let [accounting, control] = addresses(&program);
    program.write_config(bare);
    eventually(|| [accounting, control].iter().all(|at| TcpStream::connect(at).is_err()));
}

#[test]
fn a_port_in_use_is_code_1_and_the_same_ports_can_be_had_again_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let table =
        format!("[smockron]\naccounting = 'tcp://127.0.0.1:0'\ncontrol = 'tcp://{address}'");
    let mut program = Program::start(&table);
    assert_eq!(program.exit_status().code(), Some(1));
    let said = program.rest_of_stderr();
    let [line] = said.as_slice() else { panic!("one line: {said:#?}") };
    assert!(line.contains(&address.to_string()) && line.contains("in use"), "{line}");

    let (mut first, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "me");
    let table = Endpoints::of(&first).table();
    let mut second = Program::start(&table);
    assert_eq!(second.exit_status().code(), Some(1), "two masters at one port");
    first.signal(Signal::TERM);
    assert_eq!(first.exit_status().code(), Some(0));
    let again = Program::serve(&table);
    assert_eq!(Endpoints::of(&again).table(), table);
}

#[test]
fn who_is_not_on_the_list_is_not_heard_until_he_is() {
    let closed = MASTER.replace("[smockron.domains]", "allow = ['10.0.0.0/8']\n[smockron.domains]");
    let program = Program::serve(&closed);
    let mut gatekeeper = Peer::gatekeeper(&Endpoints::of(&program), &["web"]);
    gatekeeper.tell(&accepted("me"));
    eventually(|| bad_input(&program, "not_allowed") >= 4);
    gatekeeper.tell(&accepted("me"));
    assert_eq!(metric(&program, "tidegate_accounting_total{status=\"accepted\"}"), 0);
    // The list is swapped without closing the door, and the gatekeeper needs no help.
    program.write_config(&closed.replace("10.0.0.0/8", "127.0.0.0/8"));
    delays(&mut gatekeeper, "me");
}

#[test]
fn a_door_beyond_loopback_without_a_list_says_so() {
    let open = MASTER.replace("control = \"tcp://127.0.0.1:0\"", "control = \"tcp://*:0\"");
    let mut program = Program::start(&open);
    let line = program.wait_for_line(|line| line.contains("beyond loopback"));
    assert!(line.contains("smockron"), "{line}");
    program.wait_until_ready();
}
