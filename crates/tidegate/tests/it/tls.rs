//! TLS at every door that is not the proxy's own affair: Throttr, JARL, HTTP and administration.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustix::process::Signal;
use rustls::ClientConfig;

use crate::papers::{Papers, TlsClient, connect};
use crate::program::{Program, tidegate};

/// What a client says at each door, and what the answer begins with. JARL's callers say nothing.
const SPOKEN: [(&str, &[u8], &[u8]); 4] = [
    ("throttr", b"\x01\x07\x00\x04\x3c\x00\x03abc\x02\x03abc", b"\x01\x01\x07\x00\x04\x3b\x00"),
    ("jarl", b"", b"0.000"),
    ("http", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"HTTP/1.1 200 OK"),
    ("admin", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"HTTP/1.1 200 OK"),
];

/// All doors with TLS, and one of administration's questions in the clear: at Unix sockets and
/// UDP there is none.
fn file(papers: &Papers, client_ca: bool) -> String {
    let shown = |name: &str| papers.path(name).display().to_string();
    let (cert, key, ca) = (shown("gate.pem"), shown("gate.key"), shown("ca.pem"));
    let ca = if client_ca { format!(", client_ca = '{ca}'") } else { String::new() };
    let tls = format!("listen = '127.0.0.1:0'\ntls = {{ cert = '{cert}', key = '{key}'{ca} }}\n");
    format!(
        "[[throttr]]\nunix = 'throttr.sock'\n{tls}[http]\n{tls}[admin]\n{tls}\
         [[jarl]]\nservice = 'a'\nlimit = '1000 per 1s'\nexact = true\n{tls}"
    )
}

/// Speaks with a door; what it answered, as far as that was expected.
fn ask(client: &mut TlsClient, request: &[u8], expected: &[u8]) -> std::io::Result<Vec<u8>> {
    client.write_all(request)?;
    client.flush()?;
    let mut answer = vec![0; expected.len()];
    client.read_exact(&mut answer)?;
    Ok(answer)
}

/// The value of a series that administration tells over TLS.
fn metric(config: &Arc<ClientConfig>, admin: SocketAddr, series: &str) -> f64 {
    let mut client = connect(config.clone(), admin);
    let request = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    client.write_all(request).expect("it is read");
    let mut page = String::new();
    client.read_to_string(&mut page).expect("a page");
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0.0, |value| value.trim().parse().expect("a number"))
}

#[test]
fn every_door_speaks_tls() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let program = Program::serve(&file(&papers, false));
    let config = papers.client(None);
    for (door, request, expected) in SPOKEN {
        let mut client = connect(config.clone(), program.address(door));
        let answer = ask(&mut client, request, expected);
        assert_eq!(answer.expect(door), expected, "{door}");
    }
    // An answer that ends the connection ends as TLS wants it.
    let mut caller = connect(config.clone(), program.address("jarl"));
    let mut answer = String::new();
    caller.read_to_string(&mut answer).expect("no end before its time");
    assert_eq!(answer, "0.000");
    // A client that ends its side has its replies, and then the end.
    let mut leaving = connect(config, program.address("throttr"));
    leaving.write_all(b"\x02\x00\x02\x00").expect("it is read");
    leaving.conn.send_close_notify();
    leaving.flush().expect("it is read");
    let mut replies = Vec::new();
    leaving.read_to_end(&mut replies).expect("a clean end");
    assert_eq!(replies, [0, 0]);
}

#[test]
fn a_client_must_show_a_certificate_where_one_is_asked_for() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    papers.sign("client", "client.example");
    let program = Program::serve(&file(&papers, true));
    let known = papers.client(Some("client"));
    for (door, request, expected) in SPOKEN {
        let address = program.address(door);
        let stranger = ask(&mut connect(papers.client(None), address), request, expected);
        assert!(stranger.is_err(), "{door}: {stranger:?}");
        let answer = ask(&mut connect(known.clone(), address), request, expected);
        assert_eq!(answer.expect(door), expected, "{door}");
    }
}

/// Many requests and long replies: more than one record, and more than the socket takes at once.
#[test]
fn long_replies_are_whole() {
    const REQUESTS: usize = 200_000;
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let program = Program::serve(&file(&papers, false));
    let mut client = connect(papers.client(None), program.address("throttr"));
    let value = [7; 60_000];
    let head = [&[5, 6, 9, 0, 1][..], &60_000_u16.to_le_bytes(), b"k"].concat();
    client.write_all(&[&head[..], &value].concat()).expect("it is read");
    client.write_all(&b"\x06\x01k".repeat(100)).expect("it is read");
    let mut replies = vec![0; 1 + 100 * (6 + value.len())];
    client.read_exact(&mut replies).expect("all replies");
    assert_eq!(replies[0], 1);
    for reply in replies[1..].chunks(6 + value.len()) {
        assert!(reply[0] == 1 && reply[6..] == value);
    }
    client.write_all(&b"\x02\x00".repeat(REQUESTS)).expect("it is read");
    let mut replies = vec![1; REQUESTS];
    client.read_exact(&mut replies).expect("all replies");
    assert!(replies.iter().all(|reply| *reply == 0));
}

#[test]
fn what_is_no_tls_is_counted_and_closed() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let program = Program::serve(&file(&papers, false));
    for (door, ..) in SPOKEN {
        let mut client = TcpStream::connect(program.address(door)).expect("somebody listens");
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is read");
        let mut told = Vec::new();
        // An alert, and the end or a reset.
        let _ = client.read_to_end(&mut told);
        let series = format!("tidegate_bad_input_total{{door=\"{door}\",reason=\"tls\"}}");
        assert_eq!(metric(&papers.client(None), program.address("admin"), &series), 1.0, "{door}");
    }
}

#[test]
fn a_reload_reads_certificates_again_and_disturbs_nobody() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let mut program = Program::serve(&file(&papers, false));
    let config = papers.client(None);
    let shown = |client: &TlsClient| client.conn.peer_certificates().expect("one").to_vec();
    let mut staying = connect(config.clone(), program.address("throttr"));
    let (_, request, expected) = SPOKEN[0];
    ask(&mut staying, request, expected).expect("an answer");
    let old = shown(&staying);
    papers.sign("gate", "gate.example");
    program.signal(Signal::HUP);
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    for (door, request, expected) in SPOKEN {
        let mut client = connect(config.clone(), program.address(door));
        let _ = ask(&mut client, request, expected);
        assert_ne!(shown(&client), old, "{door}");
    }
    assert_eq!(ask(&mut staying, b"\x02\x00", &[0]).expect("it is still there"), [0]);

    // Files that are of no use change nothing.
    std::fs::write(papers.path("gate.key"), "no key").expect("a file");
    program.signal(Signal::HUP);
    program.wait_for_line(|line| line.contains("configuration not reloaded"));
    let mut client = connect(config, program.address("throttr"));
    ask(&mut client, b"\x02\x00", &[0]).expect("an answer");
}

#[test]
fn files_that_are_no_certificates_are_told_with_their_table() {
    let listen = "listen = '127.0.0.1:0'\ntls = { cert = 'none.pem', key = 'none.key' }\n";
    let service = "service = 'a'\nlimit = '1 per 1s'\n";
    for table in ["[[throttr]]\n", &format!("[[jarl]]\n{service}"), "[http]\n", "[admin]\n"] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tidegate.toml");
        std::fs::write(&path, format!("{table}{listen}")).expect("a file");
        let out = tidegate(["config", "check", &path.display().to_string()]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success(), "{table}");
        assert!(said.contains("cannot read the certificate none.pem"), "{said}");
    }
}
