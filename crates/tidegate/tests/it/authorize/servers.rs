//! Real servers: Debian's nginx with the example's own file, and Debian's Caddy.

use std::net::SocketAddr;
use std::process::Command;
use std::thread;

use rustix::process::Signal;

use super::{Server, asked, program, two_of_three};
use crate::http::send_to;
use crate::program::Program;
use crate::upstream::Upstream;

const FOR_NGINX: &str = "refuse = 403\n";

/// nginx by the example, but for where things are.
fn nginx(tidegate: SocketAddr, application: SocketAddr) -> Server {
    let config = |address: SocketAddr| {
        let alone = "daemon off; master_process off; pid nginx.pid; error_log stderr crit;";
        let files = "access_log off; client_body_temp_path body; proxy_temp_path proxy; \
                     fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;";
        let mut text = include_str!("../../../../../examples/nginx-auth.conf").to_owned();
        for (old, new) in [
            ("worker_processes auto;", alone),
            ("http {", &format!("http {{ {files}")),
            ("127.0.0.1:8080", &tidegate.to_string()),
            ("127.0.0.1:3000", &application.to_string()),
            ("listen 8000;", &format!("listen {address};")),
            ("proxy_read_timeout 2s;", "proxy_read_timeout 60s;"),
        ] {
            assert!(text.contains(old), "the example has changed: {old}");
            text = text.replacen(old, new, 1);
        }
        text
    };
    nginx_with(config)
}

fn nginx_with(config: impl FnOnce(SocketAddr) -> String) -> Server {
    Server::start(config, "apt-get install nginx", |path, folder| {
        let mut nginx = Command::new("nginx");
        nginx.arg("-p").arg(folder).arg("-c").arg(path).args(["-e", "stderr"]);
        nginx
    })
}

fn caddy(tidegate: SocketAddr, application: SocketAddr) -> Server {
    let config = |address: SocketAddr| {
        format!(
            "{{\n admin off\n auto_https off\n}}\nhttp://{address} {{\n bind 127.0.0.1\n \
             forward_auth {tidegate} {{\n  uri /v1/authorize/api\n  \
             header_up Host {{upstream_hostport}}\n  transport http {{\n   dial_timeout 60s\n   \
             response_header_timeout 60s\n  }}\n }}\n reverse_proxy {application}\n}}\n"
        )
        // The client asks for a name, and the site is for all of them.
        .replace("http://127.0.0.1", "http://")
    };
    Server::start(config, "apt-get install caddy", |path, _| {
        let mut caddy = Command::new("caddy");
        caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(path);
        caddy.stderr(std::process::Stdio::null());
        caddy
    })
}

fn reset(program: &Program, key: &str) {
    let path = format!("/v1/keys/{}", key.replace(' ', "%20"));
    let head = "Host: localhost\r\n";
    assert_eq!(send_to(program.address("admin"), "DELETE", &path, head, "").status, 204);
}

#[test]
fn nginx_refuses_by_429_what_is_over_its_limit() {
    let (program, application) = (program(FOR_NGINX), Upstream::start());
    let nginx = nginx(program.address("http"), application.address());
    let refused = two_of_three(&nginx, &application);
    assert_eq!(refused.header("ratelimit-policy"), "\"api-client\";q=2;w=86400");
    assert!(refused.header("ratelimit").starts_with("\"api-client\";r=0;t="));
    assert_eq!(asked(&program, "api client=127.0.0.1"), 3);
    reset(&program, "api client=127.0.0.1");
    let reply = nginx.get("/f");
    assert_eq!(reply.status, 204);
    assert!(reply.header("ratelimit").starts_with("\"api-client\";r=1;t="));
}

#[test]
fn nginx_lets_requests_go_while_there_is_nobody_to_ask() {
    let (mut program, application) = (program(FOR_NGINX), Upstream::start());
    let nginx = nginx(program.address("http"), application.address());
    two_of_three(&nginx, &application);
    program.signal(Signal::KILL);
    program.exit_status();
    for path in ["/g", "/h", "/i"] {
        assert_eq!(nginx.get(path).status, 204);
        assert_eq!(application.next(), format!("GET {path} HTTP/1.1"));
    }
}

#[test]
fn nginx_holds_a_request_for_as_long_as_its_table_lets_it_wait() {
    let settings = format!("{FOR_NGINX}max_wait = \"1d\"\n");
    let (program, application) = (program(&settings), Upstream::start());
    let nginx = nginx(program.address("http"), application.address());
    for _ in 0..2 {
        assert_eq!(nginx.get("/a").status, 204);
        application.next();
    }
    thread::scope(|scope| {
        let held = scope.spawn(|| nginx.get("/held"));
        let waits = || {
            let head = "Host: localhost\r\n";
            let metrics = send_to(program.address("http"), "GET", "/metrics", head, "");
            metrics.body.contains("tidegate_waiting{door=\"http\"} 1")
        };
        while !waits() {
            thread::yield_now();
        }
        assert_eq!(application.more(), 0);
        reset(&program, "api client=127.0.0.1");
        assert_eq!(held.join().expect("an answer").status, 204);
    });
    assert_eq!(application.next(), "GET /held HTTP/1.1");
}

#[test]
fn paths_are_counted_as_nginx_understands_them() {
    let config = |address: SocketAddr| {
        format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr crit; events {{}}\n\
             http {{ access_log off; client_body_temp_path body; proxy_temp_path proxy;\n\
             fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
             server {{ listen {address}; location / {{ return 200 $uri; }} }} }}\n"
        )
    };
    let nginx = nginx_with(config);
    for path in [
        "/login",
        "//login",
        "/./login",
        "/%2e/login",
        "/a/../login",
        "/a/b/../../login",
        "/a//../login",
        "/a/%2e%2E/login",
        "/%6c%6Fgin",
        "/a%2flogin",
        "/a%2f%2flogin",
        "/a%2f..%2flogin",
        "/login/",
        "/login//",
        "/login/.",
        "/login/x/..",
        "/login/..",
        "/.",
        "/.login",
        "/..login",
        "/login..",
        "/.../login",
        "/%252e/login",
        "/login%20%3f%23%25%2B+",
        "/Login",
    ] {
        let mut counted = Vec::new();
        tidegate_wire::path::normalise(path.as_bytes(), &mut counted);
        let reply = nginx.get(path);
        assert_eq!((reply.status, reply.body.as_bytes()), (200, &*counted), "{path}");
    }
}

#[test]
fn caddy_hands_a_refusal_on_as_it_is() {
    let (program, application) = (program(""), Upstream::start());
    let caddy = caddy(program.address("http"), application.address());
    let refused = two_of_three(&caddy, &application);
    assert_eq!(refused.header("x-tidegate-refused-by"), "api-client");
    assert_eq!(refused.json()["reason"], "over_limit");
    assert_eq!(asked(&program, "api client=127.0.0.1"), 3);
}
