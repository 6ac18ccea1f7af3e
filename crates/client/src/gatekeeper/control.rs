//! What comes from a master: one task receives its delays, and one asks for them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tidegate_wire::smockron::{ControlMessage, FRAMES_MAX, Frames, write_resync};
use tidegate_wire::zmtp::write_frame;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Domain;
use super::core::{Core, DomainState};
use super::stats::count;
use crate::zmq::{Batch, Options, PeerEvent, SubSocket};

/// Messages that are taken together.
const BATCH_MAX: usize = 256;
/// How often a share of the table is swept.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long the answer may take to begin before a master is asked again. A master that does not
/// have the subscription yet sends it to nobody; one that does not know the question never answers.
const ASK_AGAIN_MS: [u64; 9] = [20, 50, 100, 200, 400, 800, 1_600, 3_200, 6_400];

/// How control is received: a master that is gone is looked for once a second.
pub(super) fn options() -> Options {
    Options {
        reconnect: (Duration::from_millis(20), Duration::from_secs(1)),
        heartbeat: Some(Duration::from_secs(10)),
        hwm: 100_000,
        ..Options::default()
    }
}

/// Receives the delays of the master of this number for ever.
pub(super) async fn run(core: Arc<Core>, master: usize, subscriber: SubSocket, endpoint: String) {
    for served in core.of(master) {
        // Only a socket that is closed refuses, and then there is nothing to receive.
        if subscriber.subscribe(&served.topic).await.is_err() {
            return;
        }
    }
    let mut events = subscriber.events();
    if subscriber.connect(&endpoint).await.is_err() {
        return;
    }
    let mut batch = Batch::new();
    let mut sweep = interval(SWEEP_EVERY);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            received = subscriber.receive(&mut batch, BATCH_MAX) => {
                let Ok(messages) = received else { return };
                for message in 0..messages {
                    let mut room = [&b""[..]; FRAMES_MAX];
                    take(&core, master, batch.frames(message, &mut room));
                }
            }
            event = events.next() => match event {
                Some(PeerEvent::Ready | PeerEvent::Missed(_)) => core.connection_opened(master),
                Some(_) => {}
                None => return,
            },
            _ = sweep.tick() => core.sweep(),
        }
    }
}

/// Takes one message.
fn take(core: &Core, master: usize, frames: &[&[u8]]) {
    let known = |name: &[u8]| {
        let domain = core.domain(name);
        domain.filter(|domain| usize::from(core.domains[usize::from(domain.0)].master) == master)
    };
    let known_domain = match ControlMessage::parse(frames) {
        Some(ControlMessage::DelayUntil { domain, identifier, at_ms }) => {
            known(domain).map(|domain| {
                let until_ms = i64::try_from(at_ms).unwrap_or(i64::MAX);
                core.remember(domain, identifier, until_ms);
            })
        }
        Some(ControlMessage::ResyncStart { domain }) => known(domain).map(|Domain(domain)| {
            core.domains[usize::from(domain)].synced.store(true, Relaxed);
            core.masters[master].changed.notify_waiters();
        }),
        // A delay that the master does not mention stays until its time ends.
        Some(ControlMessage::ResyncDone { domain }) => known(domain).map(drop),
        None => {
            count(&core.counts.not_understood);
            return;
        }
    };
    if known_domain.is_none() {
        count(&core.counts.unknown_domain);
    }
}

/// Asks the master of this number for its delays whenever a connection to or from it has opened,
/// until it begins to answer or has been asked often enough.
pub(super) async fn resync(core: Arc<Core>, master: usize) {
    let state = &core.masters[master];
    let questions: Vec<_> =
        core.of(master).map(|served| (served, question(&served.topic))).collect();
    let open = || {
        let asks =
            |served: &DomainState| served.heard.load(Relaxed) && !served.synced.load(Relaxed);
        questions.iter().filter(move |(served, _)| asks(served))
    };
    let (mut opened, mut asked) = (0, 0);
    loop {
        let mut changed = pin!(state.changed.notified());
        changed.as_mut().enable();
        if state.opened() != opened {
            (opened, asked) = (state.opened(), 0);
        }
        if open().next().is_none() || asked == ASK_AGAIN_MS.len() {
            changed.await;
            continue;
        }
        for (_, question) in open() {
            state.queue.push_written(0, question);
        }
        let answered = async {
            while open().next().is_some() && state.opened() == opened {
                changed.as_mut().await;
                changed.set(state.changed.notified());
                changed.as_mut().enable();
            }
        };
        let _ = timeout(Duration::from_millis(ASK_AGAIN_MS[asked]), answered).await;
        asked += 1;
    }
}

/// The message that asks for the delays of a domain, as it is sent.
fn question(topic: &[u8]) -> Vec<u8> {
    let mut frames = Frames::new();
    write_resync(topic.strip_suffix(b"\0").unwrap_or(topic), &mut frames);
    let mut bytes = Vec::new();
    let mut left = frames.iter().len();
    for frame in frames.iter() {
        left -= 1;
        write_frame(left > 0, frame, &mut bytes);
    }
    bytes
}
