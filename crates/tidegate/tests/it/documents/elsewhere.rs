//! Commands outside of sessions: in the text of a page, in cells of its tables, in other blocks.
//!
//! Each of them is also in a session of a page or in the one below, or is listed with the reason
//! why it is not.

use super::page::{self, ANYTHING, Step};
use super::{faults, of_repository, pages};

/// What begins a command.
const PROGRAMS: [&str; 21] = [
    "apt",
    "apt-get",
    "caddy",
    "cargo",
    "cat",
    "curl",
    "docker",
    "envoy",
    "etcd",
    "export",
    "git",
    "kubectl",
    "make",
    "nc",
    "nginx",
    "python3",
    "redis-cli",
    "redis-server",
    "sudo",
    "systemctl",
    "tidegate",
];

/// Does what pages mention and none of their sessions does.
const SESSION: &str = r#"
Save this as `tidegate.toml`:

```toml
[[rule]]
match = "login ip=*"
limit = "5 per minute"

[text]
listen = "127.0.0.1:2000"

[http]
listen = "127.0.0.1:8080"

[resp]
listen = "127.0.0.1:6380"

[admin]
listen = "127.0.0.1:8090"
```

```console
$ export PATH="$PWD/target/release:$PATH"
$ tidegate serve &
…
ready
$ curl -d '{"key":"user=7"}' -H 'content-type: application/json' 127.0.0.1:8080/v1/check
…
…{"allowed":true,…}…
…
$ redis-cli -p 6380 CL.THROTTLE user:7 15 30 60
0
16
15
-1
2
$ tidegate request "over_limit ws ip=192.0.2.7"
ok …
$ tidegate peek "login ip=192.0.2.7"
allowed
  login ip=192.0.2.7: 5 per minute (login ip=*): rate …, 5 left
$ mkdir site; echo hello > site/path
$ python3 -u -m http.server 3000 --bind 127.0.0.1 --directory site &
Serving HTTP on 127.0.0.1 port 3000 …
$ tidegate proxy --rpm 100 http://127.0.0.1:3000 &
…
ready
$ curl 127.0.0.1:4040/path
…
…hello…
…
```
"#;

/// Commands that no session can run.
const NOT_RUN: [(&str, &str); 6] = [
    ("make run", "it builds the server for minutes"),
    ("make setup", "it installs packages on the machine"),
    ("make deb", "it builds the server for minutes; `packages` tries the package itself"),
    ("apt install ./target/debian/tidegate_*.deb", "`packages` does it in a root of Debian"),
    ("docker build -t tidegate .", "the tests have no container engine"),
    ("cargo install --locked --path crates/tidegate", "it builds the server for minutes"),
];
/// What would run this test within itself.
const RUNS_THIS: &str = "make test";

/// Examples of the table of doors that are no commands: files that tests compile or run have them.
const IN_FILES: [(&str, &str); 3] = [
    ("grpc_service: { envoy_grpc: { cluster_name: tidegate } }", "examples/envoy.yaml"),
    (
        r#"ThrottrClient::connect("127.0.0.1:9000", ValueSize::Bits16).await?"#,
        "crates/client/src/throttr/mod.rs",
    ),
    (r#"gatekeeper.decide("api", b"198.51.100.7")"#, "crates/client/src/gatekeeper/mod.rs"),
];

/// Whether this is a command, and not merely a program's name.
fn is_command(text: &str) -> bool {
    text.split_once(' ').is_some_and(|(program, _)| PROGRAMS.contains(&program))
}

/// The code spans of a piece of text.
fn spans(text: &str) -> Vec<String> {
    let words = |span: &str| span.split_whitespace().collect::<Vec<_>>().join(" ");
    text.split('`').skip(1).step_by(2).map(words).collect()
}

/// The commands of a page that are in no session of it.
fn mentioned(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut paragraph = String::new();
    let mut block = None;
    for line in text.lines().chain([""]) {
        match (line.strip_prefix("```"), block) {
            (Some(language), None) => block = Some(language),
            (Some(_), Some(_)) => block = None,
            (None, Some("console")) => {}
            (None, Some(_)) => found.push(line.strip_prefix("$ ").unwrap_or(line).to_owned()),
            (None, None) => paragraph = format!("{paragraph}\n{line}"),
        }
        if block.is_some() || line.is_empty() || line.starts_with('|') {
            found.extend(spans(&std::mem::take(&mut paragraph)));
        }
    }
    found.retain(|text| is_command(text));
    found
}

/// The commands of a page's sessions, each in one line.
fn run_by(text: &str) -> Vec<String> {
    let command = |step| match step {
        Step::Run(typed) => Some(typed.command.replace("\\\n", " ")),
        Step::Write { .. } => None,
    };
    let one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    page::read(text).steps.into_iter().filter_map(command).map(one_line).collect()
}

/// Whether a command has this in it, where a word in capitals stands for anything.
fn has(command: &str, text: &str) -> bool {
    let is_placeholder = |word: &str| word.bytes().all(|byte| byte.is_ascii_uppercase());
    let word = |word| if is_placeholder(word) { ANYTHING } else { word };
    let pattern: Vec<&str> = text.split(' ').map(word).collect();
    let mut left = command;
    pattern.join(" ").split(ANYTHING).all(|piece| {
        let behind = left.split_once(piece).map(|(_, behind)| behind);
        left = behind.unwrap_or_default();
        behind.is_some()
    })
}

#[test]
fn what_the_pages_mention_does_what_it_should() {
    assert_eq!(faults(SESSION), Vec::<String>::new());
}

#[test]
fn every_command_is_run_or_cannot_be() {
    let pages = pages();
    let mut run: Vec<String> = pages.iter().flat_map(|(_, text)| run_by(text)).collect();
    run.extend(run_by(SESSION));
    let is_run = |text: &str| run.iter().any(|command| has(command, text));
    let mut mentions = Vec::new();
    for (name, text) in &pages {
        mentions.extend(mentioned(text).into_iter().map(|command| (name, command)));
    }
    let listed: Vec<&str> = NOT_RUN.iter().map(|(command, _)| *command).collect();
    for (name, command) in &mentions {
        let known = listed.contains(&command.as_str()) || command == RUNS_THIS;
        assert!(known || is_run(command), "{name}: no test runs `{command}`");
    }
    for command in listed {
        let is_mentioned = mentions.iter().any(|(_, mention)| mention == command);
        assert!(is_mentioned, "no page has `{command}` any more");
        assert!(!is_run(command), "`{command}` is run, and needs no reason");
    }
    // The session has nothing that no page has.
    for command in run_by(SESSION).iter().filter(|command| is_command(command)) {
        let is_mentioned = mentions.iter().any(|(_, mention)| has(command, mention));
        let prepares =
            ["tidegate serve &", "python3 "].iter().any(|start| command.starts_with(start));
        assert!(is_mentioned || prepares, "no page has `{command}` any more");
    }
}

#[test]
fn every_client_of_the_doors_is_tried() {
    let readme = std::fs::read_to_string(of_repository("README.md")).expect("the README");
    let (_, table) = readme.split_once("## Doors").expect("the doors");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| [`")).collect();
    assert_eq!(rows.len(), 9, "{rows:#?}");
    for row in rows {
        let (_, cell) = row.trim_end_matches(" |").rsplit_once(" | ").expect("cells");
        let clients = spans(cell);
        assert!(!clients.is_empty(), "no client: {row}");
        for client in clients.iter().filter(|client| !is_command(client)) {
            let file = IN_FILES.iter().find(|(text, _)| text == client);
            let (text, path) = file.unwrap_or_else(|| panic!("nothing tries `{client}`"));
            let file = std::fs::read_to_string(of_repository(path)).expect("a file");
            assert!(file.contains(text), "{path} has no `{text}`");
        }
    }
}

#[test]
fn commands_are_found_wherever_they_are() {
    let text = "Run `make\nrun`, or `make`.\n\n| `curl 1` | x |\n| a | `no command` |\n\n\
        ```console\n$ tidegate serve\n```\n\n```\ntidegate one\n$ nc 2\nx\n```\nThen `apt y`.\n";
    assert_eq!(mentioned(text), ["make run", "curl 1", "tidegate one", "nc 2", "apt y"]);
    assert_eq!(run_by("```console\n$ curl -s \\\n    there\nx\n```"), ["curl -s there"]);
    assert!(has("x=$(tidegate exec a -- b)", "tidegate exec KEY --"));
    assert!(!has("tidegate exec a", "tidegate exec KEY --"));
}
