//! Our own gatekeeper with real masters: obeyed and told, stopped and started, through libzmq.

use std::future::Future;
use std::time::Duration;

use rustix::process::Signal;
use tidegate_client::gatekeeper::{Config, Decision, Domain, Gatekeeper, Master};

use super::peer::Endpoints;
use super::{MASTER, Split, metric};
use crate::program::{PATIENCE, Program};

fn at(endpoints: &Endpoints, domains: &[&str]) -> Master {
    Master::new(&endpoints.accounting, &endpoints.control, domains.iter().copied())
}

fn connect(endpoints: &Endpoints, domains: &[&str]) -> (Gatekeeper, Vec<Domain>) {
    let gatekeeper = Gatekeeper::connect(&Config::new([at(endpoints, domains)])).unwrap();
    let domains = domains.iter().map(|name| gatekeeper.domain(name).unwrap()).collect();
    (gatekeeper, domains)
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it happens at all")
}

/// Sends requests of one client until one is turned away: the limit is one per hour. Those on the
/// way before a master's word is here pass, and that is how it must be.
async fn limited(gatekeeper: &Gatekeeper, domain: Domain, identifier: &str) -> u64 {
    soon(async {
        for passed in 0.. {
            match gatekeeper.decide_in(domain, identifier.as_bytes()) {
                Decision::Accept => tokio::task::yield_now().await,
                Decision::Reject(after) => {
                    assert!(after > Duration::from_secs(3000), "{after:?}");
                    return passed;
                }
                Decision::Delay(delay) => panic!("{delay:?}: an hour is more than five seconds"),
            }
        }
        unreachable!()
    })
    .await
}

#[tokio::test]
async fn a_burst_ends_at_the_gate() {
    let program = Program::serve(MASTER);
    let (gatekeeper, domains) = connect(&Endpoints::of(&program), &["web", "other"]);
    for domain in domains {
        soon(gatekeeper.synced(domain)).await;
        assert!(limited(&gatekeeper, domain, "me").await >= 1);
        assert!(gatekeeper.decide_in(domain, b"you").is_accept());
    }
    let accepted = gatekeeper.stats().accepted;
    soon(async {
        let series = "tidegate_accounting_total{status=\"accepted\"}";
        while metric(&program, series) < accepted {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(gatekeeper.stats().dropped(), 0, "every request was told");
    // Whoever comes later learns it by asking.
    let (late, domains) = connect(&Endpoints::of(&program), &["web"]);
    soon(async {
        while late.until_ms(domains[0], b"me").is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!late.decide_in(domains[0], b"me").is_accept());
}

#[tokio::test]
async fn masters_that_crash_are_obeyed_again() {
    let program = Program::serve(MASTER);
    let endpoints = Endpoints::of(&program);
    let free = "[smockron]\naccounting = \"tcp://127.0.0.1:0\"\ncontrol = \"tcp://127.0.0.1:0\"\n";
    program.write_config(&MASTER.replace(free, &endpoints.table()));
    let (gatekeeper, domains) = connect(&endpoints, &["web"]);
    let mut program = program;
    for number in 0..10 {
        limited(&gatekeeper, domains[0], &format!("client-{number}")).await;
        program = if number % 2 == 0 { program.crash_and_restart() } else { program.restart() };
        // Nobody to ask, or somebody who knows nothing: who passed before passes.
        for other in 0..100 {
            let identifier = format!("other-{number}-{other}");
            assert!(gatekeeper.decide_in(domains[0], identifier.as_bytes()).is_accept());
        }
    }
    limited(&gatekeeper, domains[0], "last").await;
}

#[tokio::test]
async fn a_master_that_is_stopped_delays_nobody_and_is_obeyed_when_it_goes_on() {
    let program = Program::serve(MASTER);
    let (gatekeeper, domains) = connect(&Endpoints::of(&program), &["web"]);
    limited(&gatekeeper, domains[0], "before").await;
    program.signal(Signal::STOP);
    let before = gatekeeper.stats();
    // More than the way holds; each of a client of its own, so none of them is over a limit.
    for number in 0..200_000_u32 {
        let identifier = format!("client-{number}-that-has-a-rather-long-name");
        assert!(gatekeeper.decide_in(domains[0], identifier.as_bytes()).is_accept());
        if number % 1_000 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let stats = gatekeeper.stats();
    assert_eq!((stats.delayed, stats.rejected), (before.delayed, before.rejected));
    program.signal(Signal::CONT);
    limited(&gatekeeper, domains[0], "after").await;
}

#[tokio::test]
async fn domains_are_split_among_masters_by_a_proxy_of_libzmq() {
    let Split { web, other, endpoints, proxy: _proxy } = Split::new();
    let (gatekeeper, domains) = connect(&endpoints, &["web", "other"]);
    for (domain, program) in domains.iter().zip([&web, &other]) {
        limited(&gatekeeper, *domain, "me").await;
        assert!(metric(program, "tidegate_accounting_total{status=\"accepted\"}") >= 1);
    }
    // And two masters without a proxy in between.
    let masters = [at(&Endpoints::of(&web), &["web"]), at(&Endpoints::of(&other), &["other"])];
    let gatekeeper = Gatekeeper::connect(&Config::new(masters)).unwrap();
    for name in ["web", "other"] {
        let domain = gatekeeper.domain(name).unwrap();
        limited(&gatekeeper, domain, "you").await;
    }
}
