//! The folder of envoyproxy/ratelimit's files changes while a real Envoy asks.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;

use serde_json::json;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code;

use super::super::{Client, DOORS, call};
use super::{clusters, config, fixed, limiter, listener, route};
use crate::engines::until;
use crate::envoy::Envoy;
use crate::program::Program;
use crate::upstream::Upstream;

/// How many clients ask all the time.
const AT_ONCE: usize = 4;
const AMOUNT: u32 = 1_000_000;

const FILE: &str = "
domain: web
descriptors:
- {key: all, rate_limit: {unit: year, requests_per_unit: 1000000}}
- {key: never, rate_limit: {unit: year, requests_per_unit: 0}}
";

#[test]
fn files_change_under_load_and_a_wrong_one_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("web.yaml");
    fs::write(&path, FILE).expect("a file");
    let table = format!("envoy_config = '{}'\n[http]", folder.path().display());
    let mut program = Program::serve(&DOORS.replace("[http]", &table));
    let app = Upstream::start();
    let routes = [
        route("/all", json!([{"actions": [fixed("all", "1")]}])),
        route("/never", json!([{"actions": [fixed("never", "1")]}])),
        route("/new", json!([{"actions": [fixed("new", "1")]}])),
    ];
    let web = listener("web", &[limiter("web", json!({}))], &routes);
    let envoy = Envoy::start(&config(&[web], &clusters(app.address(), &program)));
    let status = |path: &str| envoy.get("web", path, "").status;
    let (ended, asked) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    assert_eq!((status("/all"), status("/never")), (204, 429));
                    asked.fetch_add(1, Relaxed);
                }
            });
        }
        for round in 0..5 {
            // Wrong in itself, and wrong beside the other.
            fs::write(&path, FILE.replace("key: never", "kye: never")).expect("a file");
            program.wait_for_line(|line| line.contains("config error, unknown key 'kye'"));
            let second = folder.path().join("second.yaml");
            fs::write(&second, FILE).expect("a file");
            fs::write(&path, FILE).expect("a file");
            program.wait_for_line(|line| line.contains("duplicate domain 'web' in config file"));
            fs::remove_file(&second).expect("it was there");
            assert_eq!(status("/new"), 204, "{round}");
            // A right one holds, and the counts of rules that stay live on.
            let more = "- {key: new, rate_limit: {unit: year, requests_per_unit: 0}}\n";
            fs::write(&path, [FILE, more].concat()).expect("a file");
            until(|| status("/new") == 429);
            fs::write(&path, FILE).expect("a file");
            until(|| status("/new") == 204);
        }
        ended.store(true, Relaxed);
    });
    assert_eq!(envoy.figure("cluster.app.ratelimit.error"), 0);
    let mut look = call("web", &["all=1"]);
    look.descriptors[0].hits_addend = Some(0);
    let left = AMOUNT - asked.into_inner();
    assert_eq!(Client::new(&program).ask(look), (Code::Ok, vec![(Code::Ok, left)]));
}
