//! Streams that end, fall silent or are misused, and TLS.

use std::net::TcpListener;

use rustix::process::Signal;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};
use tonic::transport::Identity;

use super::management::{Management, Place, resource, yearly};
use super::{Client, call, file, started};
use crate::papers::Papers;
use crate::program::Program;

#[test]
fn counts_outlive_the_management_server() {
    let (management, stream, mut program, mut client) = started();
    let domain = || vec![resource("r", "d", &[yearly("k", 3)])];
    stream.accepted("7", domain());
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 2)]));
    let place = management.stop();
    program.wait_for_line(|line| line.contains("no xDS stream"));
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 1)]));
    let gone = "tidegate_peers{door=\"grpc\",socket=\"xds\"} 0";
    assert!(super::super::series::metrics(&program).lines().any(|line| line == gone));
    // The client asks for all anew: a server that has started again may count versions from the
    // beginning.
    let management = Management::at(place, None);
    let (stream, _) = management.stream();
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 0)]));
    stream.accepted("7", domain());
    assert_eq!(client.ask(call("d", &["k=a"])), (OverLimit, vec![(OverLimit, 0)]));
}

#[test]
fn a_stream_that_breaks_is_opened_again() {
    let (management, stream, mut program, mut client) = started();
    stream.accepted("1", vec![resource("r", "d", &[yearly("k", 3)])]);
    // More than the client reads.
    let mut large = resource("r", "d", &[yearly(&"k".repeat(5 << 20), 1)]);
    stream.send("2", vec![large.clone()]);
    let line = program.wait_for_line(|line| line.contains("no xDS stream"));
    assert!(line.contains("OutOfRange") || line.contains("ResourceExhausted"), "{line}");
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 2)]));
    let (stream, _) = management.stream();
    // More resources than may be, in a small message: it can be answered.
    large.value.clear();
    let told = stream.refused("", "3", vec![large; 10_001]);
    assert!(told.contains("10001 resources are more than"), "{told}");
    // A text of any length is told in part.
    let key = "k".repeat(1 << 20);
    let twice = [yearly(&key, 1), yearly(&key, 1)];
    let told = stream.refused("", "4", vec![resource("r", "d", &twice)]);
    assert!(told.starts_with("r: duplicate descriptor composite key 'd.kkk"), "{}", &told[..80]);
    assert_eq!(told.len(), 4 << 10);
    drop(stream);
    let (stream, _) = management.stream();
    stream.accepted("5", vec![resource("r", "d", &[yearly("k", 3)])]);
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 1)]));
}

#[test]
fn a_silent_server_keeps_neither_the_start_nor_the_end() {
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let mut program = Program::serve(&file(&url, ""));
    let (_connection, _) = silent.accept().expect("the client comes");
    assert_eq!(Client::new(&program).ask(call("native", &["k=a"])).0, Ok);
    program.signal(Signal::TERM);
    assert!(program.exit_status().success());
    // It opens the stream, and then says nothing.
    let (_management, _stream, mut program, _client) = started();
    program.signal(Signal::TERM);
    assert!(program.exit_status().success());
}

#[test]
fn a_management_server_may_ask_for_certificates() {
    let papers = Papers::new();
    papers.sign("gate", "localhost");
    papers.sign("client", "envoy-ratelimit");
    let read = |name: &str| std::fs::read(papers.path(name)).expect("a file");
    let identity = Identity::from_pem(read("gate.pem"), read("gate.key"));
    let management = Management::at(Place::reserve(), Some((identity, read("ca.pem"))));
    let port = management.address.port();
    let shown = |name: &str| papers.path(name).display().to_string();
    let table = format!(
        "{{ url = 'https://localhost:{port}', node = 'envoy-ratelimit', ca = '{}', cert = '{}', \
         key = '{}' }}",
        shown("ca.pem"),
        shown("client.pem"),
        shown("client.key")
    );
    let config = file("http://127.0.0.1:1", "").replace("{ url = 'http://127.0.0.1:1' }", &table);
    let program = Program::serve(&config);
    let (stream, first) = management.stream();
    assert_eq!(first.node.expect("a node").id, "envoy-ratelimit");
    stream.accepted("1", vec![resource("r", "d", &[yearly("k", 3)])]);
    assert_eq!(Client::new(&program).ask(call("d", &["k=a"])), (Ok, vec![(Ok, 2)]));
    // A server of another name is not asked anything.
    let other = config.replace("https://localhost", "https://127.0.0.1");
    let mut other = Program::start(&other);
    let line = other.wait_for_line(|line| line.contains("no xDS stream"));
    assert!(line.contains("certificate"), "{line}");
}
