//! Masters and gatekeepers that are killed, stopped and started again while others go on.

use rustix::process::{Pid, Signal, kill_process};

use super::peer::{Endpoints, Peer};
use super::{MASTER, accepted, delays, eventually, metric, pair};
use crate::program::Program;

/// A master that comes back at the same ports.
fn fixed(program: &Program) -> String {
    let endpoints = Endpoints::of(program);
    let free = "[smockron]\naccounting = \"tcp://127.0.0.1:0\"\ncontrol = \"tcp://127.0.0.1:0\"\n";
    MASTER.replace(free, &endpoints.table())
}

fn restarts() -> usize {
    if std::env::var_os("TIDEGATE_SOAK").is_some() { 1000 } else { 100 }
}

#[test]
fn a_gatekeeper_lives_through_a_hundred_masters() {
    let (mut program, mut gatekeeper) = pair();
    let mut javascript = Peer::javascript(&Endpoints::of(&program), &["web"]);
    delays(&mut gatekeeper, "first");
    program.write_config(&fixed(&program));
    program = program.crash_and_restart();
    for number in 0..restarts() {
        // Nothing is kept, so whoever comes is new to every master.
        let identifier = format!("client-{number}");
        delays(&mut gatekeeper, &identifier);
        if number % 10 == 0 {
            delays(&mut javascript, &format!("script-{number}"));
        }
        program = match number % 2 {
            0 => program.crash_and_restart(),
            _ => program.restart(),
        };
    }
    delays(&mut gatekeeper, "last");
    delays(&mut javascript, "last too");
}

#[test]
fn a_master_that_stands_still_under_load_goes_on() {
    let (program, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "before");
    let heard = metric(&program, "tidegate_accounting_total{status=\"accepted\"}");
    program.signal(Signal::STOP);
    gatekeeper.tell("flood 100000 web\\0|ACCEPTED|flood-#|now||");
    // The gatekeeper does not wait for a master that does not read.
    gatekeeper.until(|line| line == "flooded");
    program.signal(Signal::CONT);
    delays(&mut gatekeeper, "after");
    let more = metric(&program, "tidegate_accounting_total{status=\"accepted\"}") - heard;
    assert!(more > 1, "what was on its way arrives: {more}");
}

#[test]
fn a_gatekeeper_that_stands_still_holds_up_nobody() {
    let (program, mut first) = pair();
    delays(&mut first, "before");
    let mut second = Peer::gatekeeper(&Endpoints::of(&program), &["web"]);
    delays(&mut second, "second");
    let stopped = Pid::from_raw(i32::try_from(second.pid()).unwrap()).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    // Far more delays than fit on the way to one that does not read.
    for _ in 0..5 {
        first.tell("flood 20000 web\\0|ACCEPTED|flood-#|now||");
        first.until(|line| line == "flooded");
    }
    delays(&mut first, "meanwhile");
    kill_process(stopped, Signal::CONT).unwrap();
    delays(&mut second, "after");
    delays(&mut first, "after too");
}

#[test]
fn gatekeepers_that_die_are_forgotten() {
    let (program, mut stays) = pair();
    delays(&mut stays, "before");
    for number in 0..5 {
        let mut dies = Peer::gatekeeper(&Endpoints::of(&program), &["web"]);
        delays(&mut dies, &format!("of {number}"));
        dies.tell("flood 100000 web\\0|ACCEPTED|flood-#|now||");
        drop(dies);
    }
    delays(&mut stays, "after");
    eventually(|| metric(&program, "tidegate_peers{door=\"smockron\",socket=\"accounting\"}") == 1);
    stays.tell(&accepted("more"));
}

#[test]
fn what_was_told_before_a_clean_end_is_remembered_after_it() {
    let (program, mut gatekeeper) = pair();
    delays(&mut gatekeeper, "me");
    let snapshot = format!("{}\n[snapshot]\npath = 'counts'\n", fixed(&program));
    program.write_config(&snapshot);
    // The first restart reads the file, the second one has something to read back.
    let program = program.crash_and_restart();
    delays(&mut gatekeeper, "kept");
    let _program = program.restart();
    gatekeeper
        .tell_until("send web\\0|RESYNC", |line| line.starts_with("web\\0|DELAY_UNTIL|kept|"));
}
