//! The configuration that the door's page prints, as it is printed.

use super::asked;
use crate::engines::until;
use crate::envoy::Envoy;
use crate::program::Program;
use crate::upstream::Upstream;

const PAGE: &str = include_str!("../../../../../../docs/doors/grpc.md");
const YAML: &str = include_str!("../../../../../../examples/envoy.yaml");
const TOML: &str = include_str!("../../../../../../examples/envoy.toml");

/// The only block of a language on the page.
fn block(language: &str) -> &'static str {
    let start = format!("```{language}\n");
    let mut blocks = PAGE.split(&start).skip(1);
    let block = blocks.next().and_then(|rest| rest.split("```").next()).expect("a block");
    assert_eq!(blocks.next(), None, "one block");
    block
}

/// A text that has each of these once, with others in their places.
fn replaced(text: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (old, new)| {
        assert_eq!(text.matches(old).count(), 1, "the example has changed: {old}");
        text.replace(old, new)
    })
}

#[test]
fn the_page_has_a_whole_configuration() {
    assert_eq!(block("yaml"), YAML, "the page and the example differ");
    let long = "limit = \"3 per 366d\"";
    let file = replaced(
        TOML,
        &[
            ("127.0.0.1:8081", "127.0.0.1:0"),
            ("127.0.0.1:8080", "127.0.0.1:0"),
            ("limit = \"10/s burst 20\"", long),
            ("limit = [\"5/s burst 10\", \"10000 per day\"]", "limit = \"1 per 366d\""),
        ],
    );
    let program = Program::serve(&format!("{file}[admin]\nlisten = '127.0.0.1:0'\n"));
    let app = Upstream::start();
    let port = |at: std::net::SocketAddr| format!("port_value: {} ", at.port());
    let config = replaced(
        block("yaml"),
        &[
            ("port_value: 9901 ", "port_value: 0 "),
            ("port_value: 10000 ", "port_value: 0 "),
            ("port_value: 8081 ", &port(program.address("grpc"))),
            ("port_value: 3000 ", &port(app.address())),
            // A busy machine must not let a request pass.
            ("timeout: 0.020s", "timeout: 60s"),
        ],
    );
    let envoy = Envoy::start(&config);
    until(|| envoy.figure("cluster.tidegate.membership_healthy") == 1);
    let get = |user: &str| {
        // What a client says of its address is a lie.
        let head = format!("{user}X-Forwarded-For: 6.6.6.6\r\n");
        envoy.get("web", "/", head)
    };
    let anna = "X-User: anna\r\n";
    let first = get(anna);
    assert_eq!(first.status, 204, "{}", first.body);
    assert_eq!(first.header("x-ratelimit-remaining"), "0");
    let second = get(anna);
    assert_eq!((second.status, app.more()), (429, 1), "{}", second.body);
    assert!(!second.header("retry-after").is_empty());
    // The refusal of one user took nothing from the address.
    assert_eq!((get("").status, get("").status, get("").status), (204, 204, 429));
    let keys: Vec<String> = asked(&program).into_keys().collect();
    assert_eq!(keys, ["web remote_address=127.0.0.1", "web user=anna"]);
}
