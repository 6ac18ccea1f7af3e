//! `tidegate proxy`, also as `rate`: one proxy in front of one upstream.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::builder::RangedU64ValueParser;
use serde_json::{Value, json};
use tidegate_core::limit::AMOUNT_MAX;
use tracing_subscriber::filter::LevelFilter;

use super::{CliError, Code, OK, address};
use crate::config::Config;
use crate::doors::admin;
use crate::doors::proxy::UpstreamUrl;
use crate::logs::Logs;
use crate::server;

/// What the one proxy is called: keys begin with it, and its rule is `proxy:proxy`.
const NAME: &str = "proxy";

/// The arguments of `tidegate proxy`.
#[derive(Debug, clap::Args)]
pub(super) struct ProxyArgs {
    /// Where requests go: http:// or https://, a host, and optionally a port.
    #[arg(value_name = "URL", value_parser = upstream)]
    upstream: UpstreamUrl,
    /// Port to listen on.
    #[arg(long, default_value_t = 4040)]
    port: u16,
    /// Requests that may start in a minute, for each path.
    #[arg(long, default_value_t = 100, value_parser = amount())]
    rpm: u64,
    /// Members of an etcd through which replicas share the limit. While it is down, requests wait.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    etcd_addresses: Vec<String>,
    /// The log level: off, error, warn, info, debug or trace. Without it RUST_LOG, else info.
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    log_level: Option<LevelFilter>,
    /// Address to listen on; 0.0.0.0 or :: for all.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    ip: IpAddr,
    /// Address of the HTTP door, with metrics, such as 127.0.0.1:8080. Without it the HTTP door
    /// stays closed.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    http: Option<SocketAddr>,
    /// Address of administration, such as 127.0.0.1:8090, on loopback only: the proxy's rule, its
    /// keys and its measurements. Without it administration stays closed.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = loopback)]
    admin: Option<SocketAddr>,
}

fn upstream(text: &str) -> Result<UpstreamUrl, String> {
    text.parse().map_err(|wrong: String| wrong.replace('\n', "; "))
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = address(text)?;
    admin::check_loopback(address).map_err(|wrong| wrong.replace('\n', "; "))?;
    Ok(address)
}

fn level(text: &str) -> Result<LevelFilter, String> {
    let word = text.to_ascii_lowercase();
    let known = ["off", "error", "warn", "info", "debug", "trace"];
    let word = if word == "warning" { "warn" } else { word.as_str() };
    let level = known.contains(&word).then(|| word.parse().ok()).flatten();
    level.ok_or_else(|| format!("write one of {}", known.join(", ")))
}

/// The tables that the arguments stand for, as a file has them.
fn tables(args: &ProxyArgs) -> Value {
    let mut tables = json!({ "proxy": [{
        "name": NAME,
        "listen": SocketAddr::new(args.ip, args.port),
        "upstream": args.upstream,
        "limit": format!("{} per minute", args.rpm),
    }] });
    for (door, address) in [("http", args.http), ("admin", args.admin)] {
        if let Some(address) = address {
            tables[door] = json!({ "listen": address });
        }
    }
    if !args.etcd_addresses.is_empty() {
        let url = |address: &String| match address.contains("://") {
            true => address.clone(),
            false => format!("http://{address}"),
        };
        let urls: Vec<String> = args.etcd_addresses.iter().map(url).collect();
        tables["store"] = json!({ "kind": "etcd", "url": urls });
        // All replicas share the limit: a replica that cannot count lets no request pass.
        tables["proxy"][0]["on_store_error"] = "deny".into();
    }
    tables
}

pub(super) fn run(args: &ProxyArgs) -> Result<Code, CliError> {
    let config = Config::of(&tables(args))?;
    server::serve_fixed(config, Logs::start_at(args.log_level))?;
    Ok(OK)
}

/// What a limit may amount to.
fn amount() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=AMOUNT_MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tidegate_core::rules::OnStoreError as Policy;

    use super::*;
    use crate::stores::remote::settings::StoreKind;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: ProxyArgs,
    }

    fn parse(words: &[&str]) -> Result<ProxyArgs, clap::Error> {
        let program = std::iter::once(&"proxy");
        Line::try_parse_from(program.chain(words)).map(|line| line.args)
    }

    #[test]
    fn without_flags_it_is_the_documents_own_proxy() {
        let config = Config::of(&tables(&parse(&["http://127.0.0.1:3000"]).unwrap())).unwrap();
        let rule = &config.rules.rules()[config.rules.find(b"proxy path=/a").unwrap()];
        assert_eq!(
            (&*rule.name, rule.limits[0].to_string().as_str()),
            ("proxy:proxy", "100 per minute")
        );
        assert_eq!(rule.limits[0].algorithm.name(), "fixed-window");
        let [door] = config.file.doors().try_into().unwrap_or_else(|_| panic!("one door"));
        assert_eq!(door.addresses()[0].to_string(), "127.0.0.1:4040");
    }

    #[test]
    fn a_limit_of_all_replicas_is_kept_without_their_store() {
        let policy = |words: &[&str]| {
            let config = Config::of(&tables(&parse(words).unwrap())).unwrap();
            config.rules.rules()[config.rules.find(b"proxy path=/a").unwrap()].on_store_error
        };
        let own = ["http://127.0.0.1:3000"];
        assert_eq!(policy(&own), Policy::Allow);
        let shared = ["--etcd-addresses", "127.0.0.1:2379", own[0]];
        assert_eq!(policy(&shared), Policy::Deny);
    }

    #[test]
    fn flags_say_the_rest() {
        let words = ["--port", "0", "--rpm", "7", "--ip", "::1", "--http", "127.0.0.1:0"];
        let more = ["--admin", "[::1]:0", "--log-level", "WARNING", "https://example.net"];
        let words = [&words[..], &more].concat();
        let args = parse(&words).unwrap();
        assert_eq!(args.log_level, Some(LevelFilter::WARN));
        let config = Config::of(&tables(&args)).unwrap();
        assert_eq!(config.rules.rules()[0].limits[0].to_string(), "7 per minute");
        let told: Vec<String> =
            config.file.doors().iter().map(|d| d.addresses()[0].to_string()).collect();
        assert_eq!(told, ["[::1]:0", "127.0.0.1:0", "[::1]:0"]);
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for words in [
            &[][..],
            &["ftp://a"],
            &["--rpm", "0", "http://a"],
            &["--log-level", "loud", "http://a"],
            &["--admin", "0.0.0.0:8090", "http://a"],
            &["--admin", "localhost", "http://a"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
        let args = parse(&["--etcd-addresses", "a:1,b:2", "http://a"]).unwrap();
        assert_eq!(args.etcd_addresses, ["a:1", "b:2"]);
        let store = Config::of(&tables(&args)).unwrap().file.store;
        assert_eq!(
            (store.kind, store.urls()),
            (StoreKind::Etcd, vec!["http://a:1".to_owned(), "http://b:2".to_owned()])
        );
    }
}
