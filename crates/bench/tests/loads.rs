//! Drives the real program: short runs of every load, on servers and peers that it starts itself.
//!
//! The server is `tidegate` beside the program, which `cargo test --workspace` builds, too.

use std::ffi::OsStr;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The program with these words, ready to be started.
fn command<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-bench"));
    command.args(words).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn run<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Output {
    command(words).output().expect("the program can be started")
}

/// What the program printed as JSON.
#[track_caller]
fn json<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Value {
    let out = run(words);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// The server that the loads start by themselves.
fn server() -> &'static str {
    let path = Path::new(env!("CARGO_BIN_EXE_tidegate-bench")).with_file_name("tidegate");
    assert!(path.is_file(), "no {}: run `cargo build --bin tidegate`", path.display());
    path.to_str().expect("text").to_owned().leak()
}

/// Whether all were answered.
#[track_caller]
fn all_answered(json: &Value, count: u64) {
    assert_eq!((&json["sent"], &json["answered"]), (&count.into(), &count.into()), "{json}");
    assert_eq!(json["lost"], 0, "{json}");
}

#[test]
fn text_has_every_burst_answered_joined_or_apart() {
    for join in [&[][..], &["--join"]] {
        let short = ["text", "--count", "1280", "--keys", "500", "--json"];
        let bursts = ["--burst", "32", "--clients", "5", "--window", "64", "--threads", "1"];
        all_answered(&json([&short[..], &bursts, join].concat()), 1280);
    }
}

#[test]
fn text_takes_turns_with_an_echo_and_another_build() {
    let short = ["text", "--peer", "echo", "--count", "500", "--keys", "500", "--rounds", "2"];
    let json = json([&short[..], &["--json", "--baseline", server()]].concat());
    for name in ["tidegate", "baseline", "echo"] {
        all_answered(&json["rounds"][1][name], 500);
    }
    assert!(json["ratio"]["baseline"].is_number() && json["ratio"]["echo"].is_number(), "{json}");
}

#[test]
fn a_load_on_nobody_fails() {
    // Taken and silent: what is sent there is never answered.
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("an address").to_string();
    let words = ["text", "--address", &address, "--clients", "1", "--count", "1"];
    let out = run(words.into_iter().chain(["--seconds", "1"]));
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(stderr(&out).contains(&format!("no answer from the server at {address}")), "{out:?}");
}

#[test]
fn a_server_that_is_missing_is_told_with_what_to_run() {
    for flag in ["--server", "--baseline"] {
        let words = ["jarl", "--count", "1", "--server", server()];
        let words = if flag == "--server" { &words[..3] } else { &words[..] };
        let out = run([words, &[flag, "/nowhere/tidegate"]].concat());
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        let said = stderr(&out);
        assert!(said.contains("there is no server at /nowhere/tidegate"), "{said}");
        assert!(said.contains("make dist"), "{said}");
    }
}

#[test]
fn throttr_measures_a_server_of_its_own() {
    for request in ["query", "update", "insert", "consume"] {
        let short = ["throttr", "--request", request, "--count", "1000", "--keys", "5000"];
        let small = ["--connections", "3", "--pipeline", "7", "--value-size", "32", "--json"];
        let json = json([&short[..], &small].concat());
        all_answered(&json, 1000);
        assert_eq!(json["refused"], 0, "{request}: every counter is there, and every insert new");
        assert!(json["server_cpu_ns_per_request"].is_number(), "{json}");
    }
}

#[test]
fn throttr_takes_turns_with_an_echo() {
    let load = ["throttr", "--peer", "echo", "--request", "insert", "--rounds", "2"];
    let out = run([&load[..], &["--count", "1000", "--keys", "1000"]].concat());
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let told = String::from_utf8_lossy(&out.stdout);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert!(lines[1].starts_with("round 2: tidegate "), "{told}");
    assert_eq!(lines[1].matches("(1000 answered, 0 lost)").count(), 2, "no key is used twice");
    assert!(lines[2].starts_with("median server CPU per request: tidegate "), "{told}");
    assert!(lines[2].contains(" ns, echo ") && lines[2].contains("; ratio to echo "), "{told}");
}

#[test]
fn throttr_tells_what_expiring_records_do_to_others() {
    let short = ["throttr", "--expire", "1000", "--seconds", "1", "--count", "100", "--keys", "10"];
    let json = json([&short[..], &["--json"]].concat());
    assert_eq!(json["records"]["before"], 1010, "{json}");
    assert_eq!(json["expiring"]["answered"], 100, "{json}");
}

#[test]
fn resp_takes_turns_with_redis() {
    for request in ["throttle", "incr"] {
        let short = ["resp", "--request", request, "--count", "1000", "--keys", "500"];
        let small = ["--connections", "3", "--peer", "redis", "--rounds", "1", "--json"];
        let json = json([&short[..], &small].concat());
        for name in ["tidegate", "redis"] {
            all_answered(&json["rounds"][0][name], 1000);
            assert_eq!(json["rounds"][0][name]["refused"], 0, "{json}");
        }
        assert!(json["ratio"]["redis"].is_number(), "{json}");
    }
    let out = run(["resp", "--keys", "1", "--module", "/nowhere/cell.so"]);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(stderr(&out).contains("redis-server did not start"), "{out:?}");
}

#[test]
fn wrong_flags_are_a_usage_error() {
    for wrong in [
        &["--value-size", "12"][..],
        &["--request", "list"],
        &["--pipeline", "0"],
        &["--expire", "9", "--request", "insert"],
        &["--expire", "9", "--peer", "echo"],
        &["--peer", "echo", "--address", "127.0.0.1:1"],
        &["--server", "x", "--address", "127.0.0.1:1"],
        &["--pid", "1"],
    ] {
        assert_eq!(run([&["throttr"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_peer_that_is_missing_is_told_with_what_installs_it() {
    for (words, package) in [
        (&["throttr", "--peer", "redis", "--keys", "1"][..], "redis-server"),
        (&["http", "--peer", "nginx", "--keys", "1"], "nginx"),
        (&["store", "redis"], "redis-server"),
        (&["store", "etcd"], "etcd-server"),
    ] {
        let out = command(words).env("PATH", "").output().expect("the program can be started");
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        let said = stderr(&out);
        assert!(said.contains(&format!("{package} is not installed")), "{said}");
        assert!(said.contains("make setup-bench"), "{said}");
    }
}

#[test]
fn jarl_tells_what_each_server_costs() {
    let alone = json(["jarl", "--count", "200", "--clients", "4", "--json"]);
    all_answered(&alone, 200);
    assert!(alone["server_cpu_ns_per_request"].as_f64().is_some_and(|cost| cost > 0.0));
    let peers = ["jarl", "--peer", "plain", "--peer", "abrupt", "--peer", "plain", "--exact"];
    let beside = json([&peers[..], &["--rounds", "2", "--count", "100", "--json"]].concat());
    for (peer, round) in [("plain", 0), ("abrupt", 1), ("tidegate", 1)] {
        all_answered(&beside["rounds"][round][peer], 100);
    }
    for peer in ["plain", "abrupt"] {
        assert!(beside["ratio"][peer].as_f64().is_some_and(|ratio| ratio > 0.0), "{peer}");
    }
    assert_eq!(run(["jarl", "--limit", "nonsense"]).status.code(), Some(1));
}

#[test]
fn http_takes_turns_with_hyper_and_nginx() {
    let short = ["http", "--count", "500", "--keys", "50", "--connections", "3", "--pipeline", "4"];
    let peers = ["--peer", "hyper", "--peer", "nginx", "--rounds", "1", "--json"];
    let json = json([&short[..], &peers].concat());
    for name in ["tidegate", "hyper", "nginx"] {
        all_answered(&json["rounds"][0][name], 500);
        assert_eq!(json["rounds"][0][name]["refused"], 0, "{json}");
    }
    assert!(json["ratio"]["hyper"].is_number() && json["ratio"]["nginx"].is_number(), "{json}");
}

#[test]
fn grpc_takes_turns_with_tonic() {
    let short = ["grpc", "--count", "500", "--keys", "50", "--connections", "2", "--streams", "8"];
    let alone = json([&short[..], &["--json"]].concat());
    all_answered(&alone, 500);
    assert_eq!(alone["refused"], 0, "{alone}");
    let beside = json([&short[..], &["--peer", "tonic", "--rounds", "1", "--json"]].concat());
    for name in ["tidegate", "tonic"] {
        all_answered(&beside["rounds"][0][name], 500);
        assert_eq!(beside["rounds"][0][name]["refused"], 0, "{beside}");
        assert!(beside["median_p999_ns"][name].as_f64() > Some(0.0), "{beside}");
    }
    assert!(beside["ratio"]["tonic"].as_f64() > Some(0.0), "{beside}");
}

#[test]
fn proxy_takes_turns_with_nginx_and_tells_what_waiting_takes() {
    let short = ["proxy", "--count", "300", "--keys", "50", "--connections", "3"];
    let peers = ["--peer", "nginx", "--peer", "unlimited", "--rounds", "1", "--json"];
    let page = json([&short[..], &peers].concat());
    for peer in ["nginx", "unlimited"] {
        assert!(page["ratio"][peer].is_number(), "{page}");
    }
    assert_eq!(json(["proxy", "--waiting", "30", "--json"])["waiting"], 30);
}

#[test]
fn stores_take_turns_with_what_they_do_by_themselves() {
    let small = ["--keys", "100", "--window", "8", "--count", "1000", "--rounds", "1", "--json"];
    let page = json([&["store", "redis"], &small[..]].concat());
    let round = &page["rounds"][0];
    for (name, count) in [("tidegate", "sent"), ("script", "answered")] {
        assert_eq!(round[name][count], 1000, "{page}");
        assert!(page["median_cpu_ns"][name].is_number(), "{page}");
    }
    assert!(round["tidegate"]["node_cpu_ns"].is_number(), "{page}");
    assert!(page["median_node_cpu_ns"]["script"].is_null(), "{page}");

    let small = ["--window", "2", "--seconds", "1", "--rounds", "1", "--json"];
    for keys in ["1", "1000"] {
        let page = json([&["store", "etcd", "--keys", keys], &small[..]].concat());
        for name in ["tidegate", "bare"] {
            assert!(page["median_per_second"][name].as_f64() > Some(0.0), "{page}");
        }
    }
}
