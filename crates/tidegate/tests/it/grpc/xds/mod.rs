//! Configuration over xDS, from a management server.

mod management;
mod reloads;
mod streams;

use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};

use self::management::{Management, Place, limited, resource, yearly};
use super::{Client, DOORS, call};
use crate::engines::until;
use crate::papers::Papers;
use crate::program::{Program, tidegate};

/// A file that names a management server at `url`, with more settings of the door.
fn file(url: &str, settings: &str) -> String {
    let table = format!("xds = {{ url = '{url}' }}\n{settings}\n[http]");
    let rule = "\n[[rule]]\nmatch = 'native k=*'\nlimit = '2 per 300d'\n";
    [rule, &DOORS.replace("[http]", &table)].concat()
}

/// A management server, a program that follows it, and its client.
fn started() -> (Management, management::Stream, Program, Client) {
    let management = Management::new();
    let program = Program::serve(&file(&management.url(), ""));
    let (stream, first) = management.stream();
    assert_eq!(first.node.expect("a node").id, "default");
    let client = Client::new(&program);
    (management, stream, program, client)
}

/// The facts of the basic configuration of envoyproxy/ratelimit's own tests, which it has over xDS
/// as from a folder. Its windows of seconds and minutes are years here.
#[test]
fn what_a_management_server_sends_is_decided() {
    let (_management, stream, _program, mut client) = started();
    let basic = resource("basic", "basic", &[yearly("key1", 50)]);
    let mut nested = yearly("key2", 3);
    nested.descriptors = vec![yearly("key3=b", 1)];
    let another = [yearly("key2", 20), yearly("key3", 10), yearly("key4", 20)];
    stream.accepted("1", vec![basic, resource("another", "another", &another)]);
    assert_eq!(client.ask(call("foo", &["hello=world"])), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(call("basic", &["key1=foo"])), (Ok, vec![(Ok, 49)]));
    for hit in 1..=25_u32 {
        let expected = if hit <= 20 { (Ok, 20 - hit) } else { (OverLimit, 0) };
        assert_eq!(client.ask(call("another", &["key2=a"])), (expected.0, vec![expected]));
    }
    // Each descriptor is counted by itself, as from a folder.
    for hit in 1..=15_u32 {
        let second = if hit <= 10 { (Ok, 10 - hit) } else { (OverLimit, 0) };
        let both = client.ask(call("another", &["key2=b", "key3=b"]));
        assert_eq!(both, (second.0, vec![(Ok, 20 - hit), second]));
    }
    let answer = client.call(call("another", &["key4=a"])).expect("an answer");
    let shown = answer.statuses[0].current_limit.clone().expect("a limit");
    assert_eq!((shown.requests_per_unit, shown.unit), (20, 6));
    // The native rules hold beside it.
    assert_eq!(client.ask(call("native", &["k=a"])), (Ok, vec![(Ok, 1)]));
    // All that a descriptor can say.
    let mut shadow = yearly("shadow", 0);
    shadow.shadow_mode = true;
    let mut free = yearly("free", 0);
    let policy = free.rate_limit.as_mut().expect("a limit");
    (policy.unlimited, policy.unit) = (true, 0);
    let mut all = [shadow, free, yearly("never", 0), nested, limited("weekly", 7, 9)];
    all[4].value = "/shared/*".to_owned();
    stream.accepted("2", vec![resource("all", "all", &all)]);
    for (descriptor, expected) in [
        ("shadow=1", (Ok, 0)),
        ("free=1", (Ok, u32::MAX)),
        ("never=1", (OverLimit, 0)),
        ("key2=1,key3=b", (Ok, 0)),
        ("key2=1", (Ok, 2)),
        ("weekly=/shared/1", (Ok, 8)),
        ("weekly=/other", (Ok, 0)),
    ] {
        let (code, statuses) = client.ask(call("all", &[descriptor]));
        assert_eq!((code, statuses), (expected.0, vec![expected]), "{descriptor}");
    }
}

/// As the tests of reloads there: domains come and go, and the others are not touched.
#[test]
fn updates_keep_counts_and_mistakes_keep_the_last_configuration() {
    let (_management, stream, mut program, mut client) = started();
    let one = |amount| resource("one", "d", &[yearly("k", amount)]);
    let two = || resource("two", "e", &[yearly("k", 1)]);
    stream.accepted("1", vec![one(9)]);
    let line = program.wait_for_line(|line| line.contains("xDS configuration in force"));
    assert!(line.contains("version") && line.contains("grpc:d.k"), "{line}");
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 8)]));
    assert_eq!(client.ask(call("e", &["k=a"])), (Ok, vec![(Ok, 0)]));
    stream.accepted("2", vec![one(9), two()]);
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 7)]));
    assert_eq!(client.ask(call("e", &["k=a"])), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(call("e", &["k=a"])), (OverLimit, vec![(OverLimit, 0)]));
    let torn = |text: &[u8]| {
        let mut torn = one(9);
        torn.value = text.to_vec();
        torn
    };
    for (version, resources, expected) in [
        ("3", vec![one(5), resource("x", "d", &[])], "x: duplicate domain 'd' in config file"),
        ("4", vec![one(5), resource("x", "", &[])], "x: config file cannot have empty domain"),
        ("5", vec![resource("x", "f", &[yearly("", 1)])], "x: descriptor has empty key"),
        (
            "6",
            vec![resource("x", "f", &[limited("k", 0, 1)])],
            "x: invalid rate limit unit 'UNKNOWN'",
        ),
        ("7", vec![torn(b"\x0a\x05a")], "resource 0 cannot be read: "),
    ] {
        let told = stream.refused("2", version, resources);
        assert!(told.starts_with(expected), "{told}");
        let line = program.wait_for_line(|line| line.contains("xDS configuration refused"));
        assert!(line.contains(expected), "{line}");
    }
    // Some servers send it again as soon as it is refused: they are answered, and not at once.
    for _ in 0..2 {
        stream.refused("2", "7", vec![torn(b"\x0a\x05a")]);
    }
    // Nothing of what was refused is in force, and the counts go on.
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 6)]));
    assert_eq!(client.ask(call("e", &["k=a"])), (OverLimit, vec![(OverLimit, 0)]));
    stream.send_as("type.googleapis.com/other", "8", vec![]);
    assert!(stream.refusal("2", "8").contains("RateLimitConfig"));
    // A larger amount, and a domain that is gone.
    stream.accepted("9", vec![one(20)]);
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 16)]));
    assert_eq!(client.ask(call("e", &["k=a"])), (Ok, vec![(Ok, 0)]));
    let page = super::series::metrics(&program);
    for line in [
        "tidegate_xds_updates_total{result=\"ok\"} 3",
        "tidegate_xds_updates_total{result=\"error\"} 8",
        "tidegate_peers{door=\"grpc\",socket=\"xds\"} 1",
    ] {
        assert!(page.lines().any(|told| told == line), "no {line} in {page}");
    }
    // No resources are a configuration, too.
    stream.accepted("10", vec![]);
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 0)]));
}

#[test]
fn before_the_first_configuration_domains_are_unknown() {
    // Nobody is at this address until the server has started.
    let place = Place::reserve();
    let program = Program::serve(&file(&format!("http://{}", place.address), ""));
    let mut client = Client::new(&program);
    let error = client.call(call("d", &["k=a"])).expect_err("nothing is known of it");
    assert_eq!(error.code(), tonic::Code::Unknown);
    assert_eq!(error.message(), "no rate limit configuration loaded");
    // One descriptor that a native rule is for is enough.
    assert_eq!(client.ask(call("native", &["k=a"])), (Ok, vec![(Ok, 1)]));
    assert_eq!(client.ask(call("native", &["k=a", "x=y"])), (Ok, vec![(Ok, 0), (Ok, 0)]));
    let management = Management::at(place, None);
    let (stream, _) = management.stream();
    assert!(client.call(call("d", &["k=a"])).is_err());
    stream.accepted("1", vec![resource("r", "d", &[yearly("k", 3)])]);
    assert_eq!(client.ask(call("d", &["k=a"])), (Ok, vec![(Ok, 2)]));
    assert_eq!(client.ask(call("other", &["k=a"])), (Ok, vec![(Ok, 0)]));
}

#[test]
fn the_setting_is_checked_and_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.toml");
    let run = |text: &str, command: &str| {
        std::fs::write(&path, text).expect("a file");
        let output = tidegate(["config", command, path.to_str().expect("a path")]);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let (code, said) = run("[grpc]\nxds = { url = 'http://127.0.0.1:1' }\n", "check");
    assert_eq!(code, Some(0), "nobody is asked: {said}");
    let (_, said) = run("[grpc]\nxds = { url = 'http://127.0.0.1:1' }\n", "show");
    assert!(said.contains("http://127.0.0.1:1") && said.contains("node = \"default\""), "{said}");
    for (setting, word) in [
        ("{ url = '127.0.0.1:1' }", "write url = "),
        ("{ node = 'a' }", "url"),
        ("{ url = 'https://a', ca = 'none.pem' }", "none.pem"),
    ] {
        let (code, said) = run(&format!("[grpc]\nxds = {setting}\n"), "check");
        assert_eq!(code, Some(2), "{setting}: {said}");
        assert!(said.contains(word), "{setting}: {said}");
    }
}

#[test]
fn the_example_of_envoy_gateway_has_a_configuration() {
    let example = include_str!("../../../../../../examples/envoy-gateway.yaml");
    let (_, block) = example.split_once("  tidegate.toml: |\n").expect("a configuration");
    let papers = Papers::new();
    papers.sign("tls", "envoy-ratelimit");
    let lines = block.lines().map(|line| line.strip_prefix("    ").unwrap_or(line));
    let text = lines.collect::<Vec<_>>().join("\n");
    let text = text.replace("/certs/ca.crt", &papers.path("ca.pem").display().to_string());
    let text = text.replace("/certs/tls.crt", &papers.path("tls.pem").display().to_string());
    let text = text.replace("/certs/tls.key", &papers.path("tls.key").display().to_string());
    let path = papers.path("t.toml");
    std::fs::write(&path, text).expect("a file");
    let output = tidegate(["config", "check", path.to_str().expect("a path")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Asks until the count of a domain that comes over xDS is as expected.
fn until_decided(client: &mut Client, domain: &str, expected: (i32, u32)) {
    until(|| {
        let answer = client.call(call(domain, &["probe=1"]));
        answer.is_ok_and(|answer| {
            let status = &answer.statuses[0];
            (status.code, status.limit_remaining) == expected
        })
    });
}
