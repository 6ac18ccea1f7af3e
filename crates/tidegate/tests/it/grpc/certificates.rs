//! TLS at the door, as envoyproxy/ratelimit's tests try it: clients show certificates, and new ones
//! of the server hold from the next connection on.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustix::process::Signal;
use rustls::ClientConfig;

use crate::papers::{Papers, TlsClient, connect};
use crate::program::Program;

/// What a client of HTTP/2 says first, and how a server's answer begins: with its settings.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const SETTINGS: u8 = 4;

fn program(papers: &Papers, client_ca: &str) -> Program {
    let shown = |name: &str| papers.path(name).display().to_string();
    let (cert, key) = (shown("gate.pem"), shown("gate.key"));
    Program::serve(&format!(
        "[grpc]\nlisten = '127.0.0.1:0'\ntls = {{ cert = '{cert}', key = '{key}'{client_ca} }}\n"
    ))
}

/// A client that speaks HTTP/2 as gRPC's do.
fn client(papers: &Papers, who: Option<&str>) -> Arc<ClientConfig> {
    let mut config = (*papers.client(who)).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// A connection on which the server has spoken.
fn greet(config: Arc<ClientConfig>, program: &Program) -> std::io::Result<TlsClient> {
    let mut client = connect(config, program.address("grpc"));
    client.write_all(GREETING)?;
    client.flush()?;
    let mut head = [0; 9];
    client.read_exact(&mut head)?;
    assert_eq!(head[3], SETTINGS);
    assert_eq!(client.conn.alpn_protocol(), Some(&b"h2"[..]));
    Ok(client)
}

#[test]
fn a_client_without_a_certificate_of_the_right_authority_is_not_served() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    papers.sign("client", "client.example");
    let ca = papers.path("ca.pem");
    let program = program(&papers, &format!(", client_ca = '{}'", ca.display()));
    greet(client(&papers, Some("client")), &program).expect("it is known");
    assert!(greet(client(&papers, None), &program).is_err());
    // Of another authority, which the server does not know.
    let others = Papers::new();
    others.sign("client", "client.example");
    let (chain, key) = others.own("client");
    let trusting = ClientConfig::builder().with_root_certificates(papers.roots());
    let mut stranger = trusting.with_client_auth_cert(chain, key).expect("a certificate");
    stranger.alpn_protocols = vec![b"h2".to_vec()];
    assert!(greet(Arc::new(stranger), &program).is_err());
}

#[test]
fn a_client_must_have_one_of_the_names() {
    let papers = Papers::new();
    for (who, name) in
        [("gate", "gate.example"), ("known", "envoy.example"), ("other", "b.example")]
    {
        papers.sign(who, name);
    }
    let names = "client_names = ['a.example', 'envoy.example']";
    let ca = papers.path("ca.pem");
    let program = program(&papers, &format!(", client_ca = '{}', {names}", ca.display()));
    greet(client(&papers, Some("known")), &program).expect("it has one of the names");
    assert!(greet(client(&papers, Some("other")), &program).is_err());
    assert!(greet(client(&papers, None), &program).is_err());
}

#[test]
fn certificates_of_another_authority_hold_after_a_reload() {
    let (papers, others) = (Papers::new(), Papers::new());
    papers.sign("gate", "gate.example");
    others.sign("gate", "gate.example");
    let mut program = program(&papers, "");
    let (old, new) = (client(&papers, None), client(&others, None));
    let mut staying = greet(old.clone(), &program).expect("it is trusted");
    assert!(greet(new.clone(), &program).is_err(), "not yet");
    for name in ["gate.pem", "gate.key"] {
        std::fs::copy(others.path(name), papers.path(name)).expect("a file");
    }
    program.signal(Signal::HUP);
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    greet(new, &program).expect("it is trusted");
    assert!(greet(old, &program).is_err(), "no longer");
    // A ping on the connection from before is answered.
    staying.write_all(b"\0\0\x08\x06\0\0\0\0\0tidegate").expect("it is read");
    staying.flush().expect("it is read");
    let mut seen = Vec::new();
    while !seen.ends_with(b"tidegate") {
        let mut byte = [0];
        staying.read_exact(&mut byte).expect("an answer");
        seen.push(byte[0]);
    }
}
