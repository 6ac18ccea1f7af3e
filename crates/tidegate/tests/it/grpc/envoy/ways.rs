//! Ways from Envoy to the program: TLS, certificates of clients, a Unix socket.

use std::path::Path;

use serde_json::{Value, json};

use super::{
    APP, address, cluster, config, header, limiter_of, listener, pipe, route, service, typed, with,
};
use crate::envoy::Envoy;
use crate::papers::Papers;
use crate::program::Program;
use crate::upstream::Upstream;

const RULES: &str = "
[[rule]]
match = 'web once=*'
limit = '1 per 366d'
[grpc]
listen = '127.0.0.1:0'
";

/// How Envoy speaks TLS to a server that must be `gate.example`, with a certificate of its own if
/// there is a name.
fn tls(papers: &Papers, who: Option<&str>) -> Value {
    let file = |name: &str| json!({"filename": papers.path(name)});
    let names = json!([{"san_type": "DNS", "matcher": {"exact": "gate.example"}}]);
    let mut context = json!({"validation_context": {
        "trusted_ca": file("ca.pem"),
        "match_typed_subject_alt_names": names,
    }});
    if let Some(who) = who {
        let (chain, key) = (file(&format!("{who}.pem")), file(&format!("{who}.key")));
        let own = json!([{"certificate_chain": chain, "private_key": key}]);
        context = with(context, json!({"tls_certificates": own}));
    }
    let context = json!({"sni": "gate.example", "common_tls_context": context});
    let context = typed("extensions.transport_sockets.tls.v3.UpstreamTlsContext", context);
    let socket = json!({"name": "envoy.transport_sockets.tls", "typed_config": context});
    json!({"transport_socket": socket})
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn envoy_comes_over_tls_with_a_certificate_and_through_a_unix_socket() {
    let papers = Papers::new();
    papers.sign("gate", "gate.example");
    papers.sign("envoy", "spiffe://example/envoy");
    papers.sign("other", "spiffe://example/other");
    let (cert, key) = (shown(&papers.path("gate.pem")), shown(&papers.path("gate.key")));
    let ca = shown(&papers.path("ca.pem"));
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("grpc.sock");
    let settings =
        format!("unix = '{}'\ntls = {{ cert = '{cert}', key = '{key}' }}\n", shown(&socket));
    let open = Program::serve(&[RULES, &settings].concat());
    let settings = format!(
        "tls = {{ cert = '{cert}', key = '{key}', client_ca = '{ca}', \
         client_names = ['spiffe://example/envoy'] }}\n"
    );
    let guarded = Program::serve(&[RULES, &settings].concat());
    let app = Upstream::start();
    let (open_at, guarded_at) = (address(open.address("grpc")), address(guarded.address("grpc")));
    let clusters = [
        cluster(APP, address(app.address())),
        with(service("tls", open_at.clone()), tls(&papers, None)),
        with(service("mtls", guarded_at.clone()), tls(&papers, Some("envoy"))),
        with(service("other", guarded_at.clone()), tls(&papers, Some("other"))),
        with(service("stranger", guarded_at), tls(&papers, None)),
        service("plain", open_at),
        service("unix", pipe(&socket)),
    ];
    let routes = [route("/", json!([{"actions": [header("x-user", "once")]}]))];
    let listeners = ["tls", "mtls", "other", "stranger", "plain", "unix"]
        .map(|name| listener(name, &[limiter_of(name, "web", json!({}))], &routes));
    let envoy = Envoy::start(&config(&listeners, &clusters));
    let ask =
        |listener: &str, user: &str| envoy.get(listener, "/", format!("X-User: {user}\r\n")).status;
    assert_eq!((ask("tls", "a"), ask("tls", "a")), (204, 429));
    // The socket is another way to the same program.
    assert_eq!((ask("unix", "a"), ask("unix", "b"), ask("unix", "b")), (429, 204, 429));
    assert_eq!((ask("mtls", "a"), ask("mtls", "a")), (204, 429));
    // Without a certificate, without the right name or without TLS there is no answer, and so an
    // error.
    assert_eq!((ask("other", "c"), ask("stranger", "c"), ask("plain", "c")), (500, 500, 500));
}
