//! Masters that share their counts in a Redis.

use super::peer::{Endpoints, Peer};
use super::{MASTER, accepted, bad_input, delays, eventually, metric};
use crate::engines::redis::Server;
use crate::program::Program;
use crate::remote::{store, until_store_answers};

fn master(url: &str, timeout: &str) -> (Program, Peer) {
    let config = MASTER.replace("other = \"1/hour burst 1\"", "other = \"1/hour burst 2\"");
    let program = Program::serve(&[&config, &*store(url, timeout)].concat());
    let gatekeeper = Peer::gatekeeper(&Endpoints::of(&program), &["web", "other", "strange"]);
    (program, gatekeeper)
}

#[test]
fn what_one_master_is_told_another_tells_who_has_just_started() {
    let redis = Server::start(&[]);
    let ((_one, mut first), (two, mut second)) =
        (master(&redis.url(), "1m"), master(&redis.url(), "1m"));
    until_store_answers(two.address("http"));
    // More than a page of a search, and one whose name must be written otherwise in keys.
    let names: Vec<String> = (0..800).map(|number| format!("client {number} %")).collect();
    delays(&mut first, &names[0]);
    first.tell("flood 800 web\\0|ACCEPTED|client # %|now||");
    let last = format!("web\\0|DELAY_UNTIL|{}|", names[799]);
    first.until(|line| line.starts_with(&last));
    let start = |line: &str| line == "web\\0|RESYNCSTART";
    second.tell_until("send web\\0|RESYNC", start);
    let mut heard = Vec::new();
    loop {
        let line = second.line();
        if line == "web\\0|RESYNCDONE" {
            break;
        }
        if let Some(rest) = line.strip_prefix("web\\0|DELAY_UNTIL|") {
            heard.push(rest.rsplit_once('|').expect("a time").0.to_owned());
        }
    }
    heard.sort_unstable();
    heard.dedup();
    let mut names = names;
    names.sort_unstable();
    assert_eq!(heard, names);
    // The other domain has nobody who waits, and is answered too.
    second.tell_until("send other\\0|RESYNC", |line| line == "other\\0|RESYNCDONE");
    assert_eq!(metric(&two, "tidegate_lost_total{door=\"smockron\",what=\"resync\"}"), 0);
}

#[test]
fn uses_told_to_two_masters_are_counted_together() {
    let redis = Server::start(&[]);
    let ((_one, mut first), (two, mut second)) =
        (master(&redis.url(), "1m"), master(&redis.url(), "1m"));
    // Both are heard, and both hear.
    delays_other(&mut first, "one");
    delays_other(&mut second, "two");
    first.tell("send other\\0|ACCEPTED|shared|now||");
    eventually(|| redis.ask(&["keys", "*shared*"]).contains("shared"));
    second.tell("send other\\0|ACCEPTED|shared|now||");
    second.until(|line| line.starts_with("other\\0|DELAY_UNTIL|shared|"));
    second.tell("send strange\\0|ACCEPTED|a|now||");
    eventually(|| bad_input(&two, "unknown_domain") == 1);
}

/// Lets a gatekeeper tell of a client of the domain that delays after two requests.
fn delays_other(gatekeeper: &mut Peer, identifier: &str) {
    let start = format!("other\\0|DELAY_UNTIL|{identifier}|");
    let told = format!("send other\\0|ACCEPTED|{identifier}|now||");
    gatekeeper.tell_until(&told, |line| line.starts_with(&start));
}

#[test]
fn a_store_that_is_away_holds_up_nobody_and_is_used_when_it_is_there() {
    let mut redis = Server::start(&[]);
    redis.kill();
    let (program, mut gatekeeper) = master(&redis.url(), "2s");
    let accepted_so_far = || metric(&program, "tidegate_accounting_total{status=\"accepted\"}");
    eventually(|| {
        gatekeeper.tell(&accepted("early"));
        accepted_so_far() > 100
    });
    gatekeeper.tell("send web\\0|RESYNC");
    eventually(|| metric(&program, "tidegate_lost_total{door=\"smockron\",what=\"resync\"}") > 0);
    redis.start_again();
    delays(&mut gatekeeper, "late");
    // Silent from now on: messages are taken nevertheless.
    redis.halt();
    let before = accepted_so_far();
    eventually(|| {
        gatekeeper.tell(&accepted("silent"));
        accepted_so_far() > before + 100
    });
    redis.go_on();
    delays(&mut gatekeeper, "later");
}
