//! Ways to the service: health, reflection, Unix sockets, the end of the server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::Ok;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::{Client, DOORS, call};
use crate::program::Program;

#[test]
fn health_is_told_by_name() {
    let program = Program::serve(DOORS);
    let Client { runtime, .. } = Client::new(&program);
    let endpoint = Endpoint::from_shared(format!("http://{}", program.address("grpc")));
    let channel = runtime.block_on(endpoint.expect("an address").connect()).expect("a connection");
    let mut health = HealthClient::new(channel);
    let mut check = |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        runtime.block_on(health.check(request)).map(|answer| answer.into_inner().status())
    };
    for service in ["", "ratelimit"] {
        assert_eq!(check(service).expect("a status"), ServingStatus::Serving);
    }
    assert_eq!(check("other").expect_err("an error").code(), tonic::Code::NotFound);
}

#[test]
fn reflection_lists_what_is_served() {
    let program = Program::serve(DOORS);
    let Client { runtime, .. } = Client::new(&program);
    let endpoint = Endpoint::from_shared(format!("http://{}", program.address("grpc")));
    let listed = runtime.block_on(async {
        let channel = endpoint.expect("an address").connect().await.expect("a connection");
        let list = MessageRequest::ListServices(String::new());
        let request = ServerReflectionRequest { message_request: Some(list), ..Default::default() };
        let mut reflection = ServerReflectionClient::new(channel);
        let answers = reflection.server_reflection_info(tokio_stream::once(request)).await;
        answers.expect("a stream").into_inner().message().await.expect("an answer")
    });
    let listed = listed.and_then(|answer| answer.message_response).expect("a list");
    let MessageResponse::ListServicesResponse(listed) = listed else { panic!("{listed:?}") };
    let names: Vec<String> = listed.service.into_iter().map(|service| service.name).collect();
    assert_eq!(
        names,
        [
            "envoy.service.ratelimit.v3.RateLimitService",
            "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
            "grpc.health.v1.Health",
        ]
    );
}

#[test]
fn a_client_at_a_unix_socket_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("grpc.sock");
    let program = Program::serve(&format!(
        "[[rule]]\nmatch = 'd *'\nlimit = '3 per 300d'\n[grpc]\nunix = '{}'\n",
        path.display()
    ));
    let mut client =
        Client::of(&Endpoint::from_shared(format!("unix://{}", path.display())).expect("a path"));
    assert_eq!(client.ask(call("d", &["k=v"])), (Ok, vec![(Ok, 2)]));
    drop(program);
}

#[test]
fn the_end_waits_for_no_idle_client() {
    let mut program = Program::serve(DOORS);
    let mut client = Client::new(&program);
    assert_eq!(client.ask(call("d", &["k=v"])), (Ok, vec![(Ok, 0)]));
    program.signal(Signal::TERM);
    assert!(program.exit_status().success());
}

/// The bound on handshakes holds for connections of any age.
#[test]
fn a_client_that_does_not_begin_is_closed_as_idle() {
    let program = Program::serve("[grpc]\nlisten = '127.0.0.1:0'\nidle_timeout = '200ms'\n");
    for begun in [&b""[..], b"PRI * HTTP/2.0\r\n"] {
        let mut client = TcpStream::connect(program.address("grpc")).expect("the door is open");
        client.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        client.write_all(begun).expect("it is read");
        client.read_to_end(&mut Vec::new()).expect("the server closes the connection");
    }
}
