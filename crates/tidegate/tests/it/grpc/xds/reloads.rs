//! The file and the management server, one beside the other.

use std::fs;

use rustix::process::Signal;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};

use super::management::{Management, resource, yearly};
use super::{Client, call, file, until_decided};
use crate::program::Program;

const FOLDER: &str =
    "domain: files\ndescriptors:\n- key: k\n  rate_limit: {unit: year, requests_per_unit: 3}\n";

#[test]
fn a_folder_and_a_management_server_go_together() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.yaml"), FOLDER).expect("a file");
    let management = Management::new();
    let setting = format!("envoy_config = '{}'", folder.path().display());
    let mut program = Program::serve(&file(&management.url(), &setting));
    let mut client = Client::new(&program);
    let (stream, _) = management.stream();
    assert_eq!(client.ask(call("files", &["k=a"])), (Ok, vec![(Ok, 2)]));
    assert!(client.call(call("d", &["k=a"])).is_err(), "the server has not sent anything yet");
    let told = stream.refused("", "1", vec![resource("r", "files", &[])]);
    assert_eq!(told, "r: duplicate domain 'files' in config file");
    assert_eq!(client.ask(call("files", &["k=a"])), (Ok, vec![(Ok, 1)]));
    stream.accepted("2", vec![resource("r", "d", &[yearly("k", 4)])]);
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 3)]));
    assert_eq!(client.ask(call("files", &["k=a"])), (Ok, vec![(Ok, 0)]));
    // A reload keeps what came, and all counts.
    program.signal(Signal::HUP);
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 2)]));
    assert_eq!(client.ask(call("files", &["k=a"])), (OverLimit, vec![(OverLimit, 0)]));
    // A file for a domain that the server has sent changes nothing.
    let other = folder.path().join("b.yaml");
    fs::write(&other, FOLDER.replace("files", "d")).expect("a file");
    let line = program.wait_for_line(|line| line.contains("not reloaded"));
    assert!(line.contains("r: duplicate domain 'd' in config file"), "{line}");
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 1)]));
    // Once the server gives the domain up, the file holds at the next reload.
    stream.accepted("3", vec![]);
    program.signal(Signal::HUP);
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    assert_eq!(client.ask(call("d", &["k=b"])), (Ok, vec![(Ok, 2)]));
}

#[test]
fn a_reload_follows_another_server_or_none() {
    let (first, second) = (Management::new(), Management::new());
    let mut program = Program::serve(&file(&first.url(), ""));
    let mut client = Client::new(&program);
    let (stream, _) = first.stream();
    stream.accepted("1", vec![resource("r", "d", &[yearly("k", 4), yearly("probe", 0)])]);
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 3)]));
    program.write_config(&file(&second.url(), "shadow = false"));
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    let (stream, _) = second.stream();
    // What the first has sent stays until the second sends.
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 2)]));
    stream.accepted("1", vec![resource("r", "d", &[yearly("k", 4), yearly("probe", 5)])]);
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 1)]));
    let node = file(&second.url(), "").replace("' }", "', node = 'other' }");
    program.write_config(&node);
    let (stream, asked) = second.stream();
    assert_eq!(asked.node.expect("a node").id, "other");
    stream.accepted("2", vec![resource("r", "d", &[yearly("k", 4), yearly("probe", 0)])]);
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 0)]));
    // Without the setting there is nothing that anybody has sent.
    let without =
        file("http://127.0.0.1:1", "").replace("xds = { url = 'http://127.0.0.1:1' }", "");
    program.write_config(&without);
    until_decided(&mut client, "d", (1, 0));
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(call("native", &["k=a"])), (Ok, vec![(Ok, 1)]));
}
