//! TLS at the Throttr, JARL, HTTP and administration doors, and what every door counts of it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use rustix::process::Signal;
use rustls::ClientConfig;

use crate::engines::until;
use crate::papers::{Papers, TlsClient, connect};
use crate::program::{Program, command, tidegate};

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

/// Of those that an authority has signed, only clients with one of these names come in: a DNS name,
/// an address or a URI, whichever.
#[test]
fn a_certificate_must_have_one_of_the_names_that_are_wanted() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let clients = [
        ("dns", "envoy.example", true),
        ("address", "10.0.0.7", true),
        ("uri", "spiffe://example/ns/edge", true),
        ("other-dns", "other.example", false),
        ("other-address", "10.0.0.8", false),
        ("other-uri", "spiffe://example/ns/edge/2", false),
    ];
    clients.iter().for_each(|(who, name, _)| papers.sign(who, name));
    let ca = format!("'{}'", papers.path("ca.pem").display());
    let names = "['envoy.example', '10.0.0.7', 'spiffe://example/ns/edge']";
    let named = format!("{ca}, client_names = {names}");
    let config = file(&papers, true).replace(&ca, &named);
    let mut program = Program::serve(&config);
    let admin = program.address("admin");
    let mut refused = 0.0;
    for (who, _, is_welcome) in clients {
        for (door, request, expected) in SPOKEN {
            let mut client = connect(papers.client(Some(who)), program.address(door));
            let answer = ask(&mut client, request, expected);
            assert_eq!(answer.is_ok(), is_welcome, "{who} at {door}: {answer:?}");
        }
        refused += if is_welcome { 0.0 } else { 1.0 };
    }
    let known = papers.client(Some("dns"));
    for door in ["throttr", "jarl", "http"] {
        until(|| metric(&known, admin, &faults(door)) == refused);
    }
    // Other names hold after a reload.
    program.write_config(&config.replace("envoy.example", "other.example"));
    program.wait_for_line(|line| line.contains("configuration reloaded"));
    for (who, is_welcome) in [("dns", false), ("other-dns", true)] {
        let (door, request, expected) = SPOKEN[0];
        let mut client = connect(papers.client(Some(who)), program.address(door));
        assert_eq!(ask(&mut client, request, expected).is_ok(), is_welcome, "{who}");
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

/// As [`file`], with RESP and with a proxy whose upstream nobody is.
fn file_with_all(papers: &Papers) -> String {
    let (cert, key) = (papers.path("gate.pem"), papers.path("gate.key"));
    let (cert, key) = (cert.display(), key.display());
    format!(
        "{}[resp]\nlisten = '127.0.0.1:0'\ntls = {{ cert = '{cert}', key = '{key}' }}\n\
         [[proxy]]\nname = 'a'\nlisten = '127.0.0.1:0'\nupstream = 'http://127.0.0.1:1'\n\
         tls = {{ cert = '{cert}', key = '{key}' }}\n",
        file(papers, false)
    )
}

fn faults(door: &str) -> String {
    format!("tidegate_bad_input_total{{door=\"{door}\",reason=\"tls\"}}")
}

/// Reads until the server has closed, or reset, the connection.
fn wait_for_end(client: &mut TcpStream) {
    let _ = client.read_to_end(&mut Vec::new());
}

#[test]
fn what_is_no_tls_is_counted_and_a_client_that_leaves_is_not() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let program = Program::serve(&file_with_all(&papers));
    let (config, admin) = (papers.client(None), program.address("admin"));
    let mut hello = Vec::new();
    connect(config.clone(), admin).conn.write_tls(&mut hello).expect("a hello");
    for door in ["throttr", "jarl", "http", "admin", "proxy", "resp"] {
        for sent in [&[][..], &hello[..50], &hello] {
            let mut client = TcpStream::connect(program.address(door)).expect("somebody listens");
            client.write_all(sent).expect("it is read");
            client.shutdown(Shutdown::Write).expect("a socket");
            wait_for_end(&mut client);
        }
        let mut client = TcpStream::connect(program.address(door)).expect("somebody listens");
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is read");
        wait_for_end(&mut client);
        until(|| metric(&config, admin, &faults(door)) > 0.0);
        assert_eq!(metric(&config, admin, &faults(door)), 1.0, "{door}");
    }
}

/// JARL is not among them: it answers and reads no more.
#[test]
fn a_record_that_is_no_tls_is_counted_after_the_handshake_too() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let program = Program::serve(&file_with_all(&papers));
    let (config, admin) = (papers.client(None), program.address("admin"));
    let asked = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    for (door, requests) in [
        ("throttr", &[&b""[..], b"\x02\x00"][..]),
        ("http", &[b"", asked]),
        ("admin", &[b"", asked]),
        ("proxy", &[b"", asked]),
        ("resp", &[b"", b"PING\r\n"]),
    ] {
        for (before, request) in requests.iter().enumerate() {
            let mut client = connect(config.clone(), program.address(door));
            while client.conn.is_handshaking() {
                client.conn.complete_io(&mut client.sock).expect("a handshake");
            }
            if !request.is_empty() {
                client.write_all(request).expect("it is read");
                client.read_exact(&mut [0]).expect("an answer");
            }
            client.sock.write_all(&[&[23, 3, 3, 0, 32][..], &[0; 32]].concat()).expect("sent");
            wait_for_end(&mut client.sock);
            until(|| metric(&config, admin, &faults(door)) > before as f64);
            assert_eq!(metric(&config, admin, &faults(door)), before as f64 + 1.0, "{door}");
        }
    }
}

/// The end that TLS itself has, without that of the socket, and requests before it.
#[test]
fn a_waiting_client_that_ends_its_side_leaves_the_line() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let rule = "[[rule]]\nname = 'r'\nmatch = 'k'\nlimit = '1 per day'\n\
                algorithm = 'fixed-window'\n";
    let program = Program::serve(&format!("{rule}{}", file(&papers, false)));
    let (config, admin) = (papers.client(None), program.address("admin"));
    let ask = |path: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 11\r\n");
        format!("{head}Content-Type: application/json\r\n\r\n{{\"key\":\"k\"}}")
    };
    let mut first = connect(config.clone(), program.address("http"));
    first.write_all(ask("/v1/check").as_bytes()).expect("it is read");
    let mut status = [0; 12];
    first.read_exact(&mut status).expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 200");
    for behind in ["", &ask("/v1/check")] {
        let mut waiting = connect(config.clone(), program.address("http"));
        waiting.write_all((ask("/v1/wait") + behind).as_bytes()).expect("it is read");
        until(|| metric(&config, admin, "tidegate_waiting{door=\"http\"}") == 1.0);
        waiting.conn.send_close_notify();
        waiting.flush().expect("it is read");
        let mut answers = String::new();
        waiting.read_to_string(&mut answers).expect("answers, and the end");
        assert!(answers.starts_with("HTTP/1.1 503 ") && answers.contains("left"), "{answers}");
        let more = if behind.is_empty() { 0 } else { 1 };
        assert_eq!(answers.matches("HTTP/1.1 429 ").count(), more, "{answers}");
    }
}

#[test]
fn a_connection_in_its_handshake_is_counted() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    let program = Program::serve(&file_with_all(&papers));
    let (config, admin) = (papers.client(None), program.address("admin"));
    for (door, series) in
        [("throttr", "tidegate_throttr_connections"), ("resp", "tidegate_resp_connections")]
    {
        let client = TcpStream::connect(program.address(door)).expect("somebody listens");
        until(|| metric(&config, admin, series) == 1.0);
        drop(client);
        until(|| metric(&config, admin, series) == 0.0);
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

#[test]
fn commands_show_a_certificate_and_say_what_tls_refuses() {
    let papers = Papers::new();
    papers.sign("gate", "127.0.0.1");
    papers.sign("client", "client.example");
    let program = Program::serve(&file(&papers, true));
    let ask = |scheme: &str, more: &[&str]| {
        let url = format!("{scheme}://{}", program.address("http"));
        let mut asked = command([&["healthcheck", "--server", &url], more].concat());
        let out = asked.env("SSL_CERT_FILE", papers.path("ca.pem")).output().expect("it starts");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let [cert, key] = ["client.pem", "client.key"].map(|name| papers.path(name));
    let [cert, key] = [&cert, &key].map(|path| path.to_str().expect("text"));
    let (code, said) = ask("https", &["--cert", cert, "--key", key]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = ask("https", &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("TLS with") && said.contains("--cert FILE --key FILE"), "{said}");
    let (code, said) = ask("http", &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("write https://"), "{said}");
    assert_eq!(ask("https", &["--cert", cert]).0, Some(2), "the key is missing");
}
