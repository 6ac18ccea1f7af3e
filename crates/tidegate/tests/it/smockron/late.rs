//! A master that was stopped, and hears of uses long after they happened.
//!
//! Nobody waits for that long: the messages say that they are old.

use rustix::process::Signal;

use super::peer::{Endpoints, Peer};
use super::{bad_input, metric};
use crate::program::Program;

/// A use of every client each ten seconds is within the limits of `web`, whichever way they count;
/// `other` delays everybody after one request.
fn master(algorithm: &str, burst: &str) -> String {
    format!(
        "[smockron]\naccounting = 'tcp://127.0.0.1:0'\ncontrol = 'tcp://127.0.0.1:0'\n\
         [[rule]]\nmatch = 'web *'\nlimit = '2 per 20s{burst}'\nalgorithm = '{algorithm}'\n\
         [[rule]]\nmatch = 'other *'\nlimit = '1 per hour'\nalgorithm = 'smockron'\n\
         [http]\nlisten = '127.0.0.1:0'\n"
    )
}

/// Tells of a client of `other` until the gatekeeper hears that it must wait. Nothing is heard of
/// the innocent before.
fn barrier(gatekeeper: &mut Peer, client: &str) {
    let start = format!("other\\0|DELAY_UNTIL|{client}|");
    gatekeeper.tell_until(&format!("send other\\0|ACCEPTED|{client}|now||"), |line| {
        assert!(!line.contains("innocent") && !line.contains("ancient"), "{line}");
        line.starts_with(&start)
    });
}

#[test]
fn a_master_that_was_stopped_delays_no_innocent() {
    for (algorithm, burst) in [
        ("gcra", " burst 2"),
        ("fixed-window", ""),
        ("sliding-log", ""),
        ("average", ""),
        ("smockron", " burst 3"),
    ] {
        let program = Program::serve(&master(algorithm, burst));
        let mut gatekeeper = Peer::gatekeeper(&Endpoints::of(&program), &["web", "other"]);
        barrier(&mut gatekeeper, "first");
        program.signal(Signal::STOP);
        for ago in ["50000", "40000", "30000", "20000"] {
            gatekeeper.tell(&format!("send web\\0|ACCEPTED|innocent|now-{ago}||"));
        }
        gatekeeper.tell("send other\\0|ACCEPTED|ancient|now-90000||");
        program.signal(Signal::CONT);
        barrier(&mut gatekeeper, "second");
        assert_eq!(bad_input(&program, "too_old"), 1, "{algorithm}");
        let series = "tidegate_decisions_total{door=\"smockron\",rule=\"web *\"";
        assert_eq!(metric(&program, &format!("{series},verdict=\"allow\"}}")), 4, "{algorithm}");
        assert_eq!(metric(&program, &format!("{series},verdict=\"delay\"}}")), 0, "{algorithm}");
    }
}
