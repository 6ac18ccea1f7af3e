//! Thousands of gatekeepers, and several masters behind one ZeroMQ proxy.

use super::peer::{Endpoints, Peer};
use super::{MASTER, Split, accepted, bad_input, delays, eventually, metric, pair};
use crate::program::Program;

/// Members of a crowd, in each of two processes.
const MEMBERS: usize = 1000;

#[test]
fn two_thousand_gatekeepers_hear_what_one_tells() {
    let (program, mut gatekeeper) = pair();
    let control = Endpoints::of(&program).control;
    let mut crowds = [(); 2].map(|()| {
        let mut crowd = Peer::python(&["crowd", &control, "web", &MEMBERS.to_string()]);
        assert_eq!(crowd.line(), "started");
        crowd
    });
    let peers = 2 * MEMBERS as u64 + 1;
    let series = "tidegate_peers{door=\"smockron\",socket=\"control\"}";
    eventually(|| metric(&program, series) == peers);
    delays(&mut gatekeeper, "me");
    for crowd in &mut crowds {
        // Some may be connected and not heard to listen yet: they have missed the first.
        let all = MEMBERS.to_string();
        crowd.hears(|| gatekeeper.tell(&accepted("me")), |line| line == all);
    }
    drop(crowds);
    eventually(|| metric(&program, series) == 1);
    delays(&mut gatekeeper, "after");
}

#[test]
fn no_more_gatekeepers_are_held_than_the_file_allows() {
    let few = MASTER.replace("[smockron.domains]", "max_connections = 2\n[smockron.domains]");
    let program = Program::serve(&few);
    let endpoints = Endpoints::of(&program);
    let mut held = [(); 2].map(|()| Peer::gatekeeper(&endpoints, &["web"]));
    delays(&mut held[0], "first");
    delays(&mut held[1], "second");
    let mut late = Peer::gatekeeper(&endpoints, &["web"]);
    eventually(|| bad_input(&program, "too_many_connections") >= 2);
    assert_eq!(metric(&program, "tidegate_peers{door=\"smockron\",socket=\"control\"}"), 2);
    // As soon as one leaves there is room.
    let [stays, leaves] = held;
    drop(leaves);
    delays(&mut late, "late");
    drop(stays);
}

#[test]
fn two_masters_share_domains_through_a_proxy() {
    let Split { web, other, endpoints, proxy: _proxy } = Split::new();
    let mut gatekeeper = Peer::gatekeeper(&endpoints, &["web", "other"]);
    delays(&mut gatekeeper, "me");
    let told = "send other\\0|ACCEPTED|you|now||";
    gatekeeper.tell_until(told, |line| line.starts_with("other\\0|DELAY_UNTIL|you|"));
    // A question goes to the master of its domain, and so does every message.
    gatekeeper.tell_until("send web\\0|RESYNC", |line| line == "web\\0|RESYNCDONE");
    for (program, rule) in [(&web, "web"), (&other, "other")] {
        assert_eq!(bad_input(program, "unknown_domain"), 0, "{rule}");
        let told = metric(program, "tidegate_accounting_total{status=\"accepted\"}");
        assert!(told >= 1, "{rule}");
    }
    // One of them goes and comes back, and the proxy finds it.
    let free = "[smockron]\naccounting = \"tcp://127.0.0.1:0\"\ncontrol = \"tcp://127.0.0.1:0\"\n";
    let config =
        MASTER.replace(free, &format!("{}subscribe = ['web']\n", Endpoints::of(&web).table()));
    web.write_config(&config.replace("other = \"1/hour burst 1\"\n", ""));
    let _web = web.crash_and_restart();
    delays(&mut gatekeeper, "after");
}
