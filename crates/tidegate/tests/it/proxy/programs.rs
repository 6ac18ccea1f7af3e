//! The proxy between programs that others wrote: nginx behind it, curl and h2load before it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::{eventually, proxy};
use crate::program::Program;

/// nginx, which tells what it was asked. It ends with the test.
struct Nginx {
    address: SocketAddr,
    child: Child,
    _files: TempDir,
}

impl Nginx {
    fn start() -> Self {
        // It cannot tell which port it was given, so one is found for it.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let files = tempfile::tempdir().expect("a folder");
        let config = files.path().join("nginx.conf");
        fs::write(&config, nginx_config(address)).expect("its configuration");
        let child = Command::new("nginx")
            .env("PATH", with_sbin())
            .arg("-p")
            .arg(files.path())
            .arg("-c")
            .arg(&config)
            .args(["-e", "stderr"])
            .stdin(Stdio::null())
            .spawn()
            .expect("nginx starts; `make setup-test` or `apt-get install nginx` installs it");
        eventually(|| TcpStream::connect(address).is_ok());
        Self { address, child, _files: files }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn nginx_config(address: SocketAddr) -> String {
    format!(
        "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr error;\n\
         events {{}}\nhttp {{\naccess_log off;\nclient_body_temp_path body;\n\
         proxy_temp_path proxy;\nfastcgi_temp_path fastcgi;\nuwsgi_temp_path uwsgi;\n\
         scgi_temp_path scgi;\nserver {{\nlisten {address};\n\
         return 200 '$request_method $request_uri $http_host $http_x_forwarded_for';\n}}\n}}\n"
    )
}

/// Debian keeps servers out of the way of people who are not root.
fn with_sbin() -> String {
    format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default())
}

/// What a client says on standard output.
fn ask(program: &str, package: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{program}: {error}; `make setup-test` or `apt-get install {package}` installs it")
    });
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn curl(program: &Program, path: &str, arguments: &[&str]) -> String {
    let url = format!("http://{}{path}", program.address("proxy"));
    let whole = [&["--silent", "--max-time", "30", &url], arguments].concat();
    ask("curl", "curl", &whole)
}

#[test]
fn curl_and_nginx_meet_over_both_versions() {
    let nginx = Nginx::start();
    let settings = "limit = '2 per 1d'\nalgorithm = 'sliding-log'\non_limit = 'reject'";
    let program = proxy(nginx.address, settings);
    let host = program.address("proxy");
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let path = format!("/a%20b/{version}?q=1");
        let said = curl(&program, &path, &[version]);
        assert_eq!(said, format!("GET {path} {host} 127.0.0.1"));
        let said = curl(&program, &path, &[version, "--data", "x=1"]);
        assert_eq!(said, format!("POST {path} {host} 127.0.0.1"));
        let told = "%{http_code} %header{retry-after} %{content_type}";
        let said = curl(&program, &path, &[version, "--output", "/dev/null", "--write-out", told]);
        let (status, rest) = said.split_once(' ').expect("three words");
        let (retry_after, kind) = rest.split_once(' ').expect("three words");
        assert_eq!((status, kind), ("429", "application/problem+json"), "{said}");
        assert!(retry_after.parse::<u64>().is_ok_and(|s| (1..=86_400).contains(&s)), "{said}");
    }
}

#[test]
fn h2load_is_let_through_up_to_the_limit() {
    let nginx = Nginx::start();
    let settings = "limit = '300 per 1d'\nalgorithm = 'sliding-log'\non_limit = 'reject'";
    for version in [&["--h1"][..], &[]] {
        let program = proxy(nginx.address, settings);
        let url = format!("http://{}/a", program.address("proxy"));
        let load = ["-n", "1000", "-c", "10", "-m", "10", &url];
        let said = ask("h2load", "nghttp2-client", &[&load[..], version].concat());
        assert!(said.contains("1000 done"), "{said}");
        assert!(said.contains("status codes: 300 2xx, 0 3xx, 700 4xx, 0 5xx"), "{said}");
    }
}
