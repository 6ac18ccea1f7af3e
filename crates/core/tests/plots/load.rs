//! The load that every picture shows, and how much of it an algorithm admits. A manual clock.

use tidegate_core::algorithms::{apply, explain, judge};
use tidegate_core::time::SECOND;
use tidegate_core::{Algorithm, JointOutcome, Limit, Nanos, Now, Op, State};

/// How long the load goes on.
pub(crate) const SECONDS: u64 = 60;
/// The bars of a picture count so long each.
const BAR: Nanos = SECOND / 2;
/// How long a use lasts where the limit is about uses in flight.
const USE: Nanos = 4 * SECOND;
/// The epoch of the pictures: a multiple of every period, so that windows begin at 0.
const START: Now = Now { mono: 1_000_000 * SECOND, unix: 1_700_000_000 * SECOND };

/// When requests come, in nanoseconds from the start.
pub(crate) struct Load(Vec<Nanos>);

/// Two a second, a pause, two bursts around the end of a window, a pause, one in two seconds, and
/// four a second.
pub(crate) fn offered() -> Load {
    let mut times = Vec::new();
    let mut add = |from: u64, to: u64, every: Nanos| {
        times.extend((from * SECOND..to * SECOND).step_by(every as usize));
    };
    add(0, 20, SECOND / 2);
    add(28, 29, SECOND / 10);
    add(30, 31, SECOND / 10);
    add(38, 48, 2 * SECOND);
    add(48, SECONDS, SECOND / 4);
    Load(times)
}

impl Load {
    /// How many requests come in each bar.
    pub(crate) fn bars(&self) -> Vec<u64> {
        bars(self.0.iter().copied())
    }

    /// How many are admitted in each bar; under an algorithm that books, how many start.
    pub(crate) fn admitted(&self, algorithm: Algorithm) -> Vec<u64> {
        let limit = match algorithm {
            Algorithm::InFlight { .. } => Limit { amount: 4, period: 0, algorithm },
            _ => Limit { amount: 10, period: 10 * SECOND, algorithm },
        };
        let mut state = State::None;
        let mut ask = |op: Op, now: Now| {
            let judgement = judge(&limit, &state, op, now);
            let granted = judgement.allowed;
            let outcome = if granted { JointOutcome::Granted } else { JointOutcome::Refused };
            apply(&limit, &mut state, op, &judgement, outcome, now);
            explain(&limit, &state, op, &judgement, now)
        };
        let (mut starts, mut running) = (Vec::new(), Vec::new());
        for &time in &self.0 {
            running.retain(|&started: &Nanos| {
                let over = limit.ends() && started + USE <= time;
                if over {
                    let release = Op::Release { cost: 1, started: START.after(started) };
                    ask(release, START.after(started + USE));
                }
                !over
            });
            let verdict = ask(Op::Take(1), START.after(time));
            if verdict.allowed {
                running.push(time);
                starts.push(time);
            } else if matches!(algorithm, Algorithm::Jarl { .. }) {
                starts.push(time + verdict.delay);
            }
        }
        bars(starts.into_iter().filter(|&start| start < SECONDS * SECOND))
    }
}

fn bars(times: impl Iterator<Item = Nanos>) -> Vec<u64> {
    let mut bars = vec![0; (SECONDS * SECOND / BAR) as usize];
    for time in times {
        bars[(time / BAR) as usize] += 1;
    }
    bars
}
