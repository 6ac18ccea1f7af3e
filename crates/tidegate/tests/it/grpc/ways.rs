//! Ways to the service: health, reflection, Unix sockets, the end of the server.

use rustix::process::Signal;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::Ok;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

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
