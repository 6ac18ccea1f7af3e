//! The task behind a client: it owns the connection, and makes it again when it is lost.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_wire::throttr::Request;
use tokio::io::Interest;
use tokio::select;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::events::{Listener, Listeners};
use super::link::{Endpoint, Link};
use super::talk::{Ask, Talk, Waiter};
use super::{AskError, BACKOFF_MAX, BACKOFF_MIN, Loss, Settings};

/// The most commands that are taken before what they ask is sent.
const COMMANDS_MAX: usize = 256;

/// What a client tells its driver.
#[derive(Debug)]
pub(super) enum Command {
    Ask(Ask),
    Listen {
        channel: Arc<[u8]>,
        listener: Listener,
        ready: oneshot::Sender<Result<(), AskError>>,
    },
    /// Somebody has stopped listening.
    Sweep,
}

#[derive(Debug)]
pub(super) struct Driver {
    endpoint: Endpoint,
    settings: Settings,
    commands: mpsc::Receiver<Command>,
    listeners: Listeners,
    /// How long to rest before the next attempt to connect.
    rest: Duration,
}

/// How a conversation ends.
enum End {
    /// Nobody is left who could ask.
    Unneeded,
    Lost(Loss),
}

impl Driver {
    pub(super) fn new(
        endpoint: Endpoint,
        settings: Settings,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        let (listeners, rest) = (Listeners::default(), Duration::ZERO);
        Self { endpoint, settings, commands, listeners, rest }
    }

    /// Drives connections, one after the other, until nobody is left who could ask.
    pub(super) async fn run(mut self, mut link: Link) {
        loop {
            let mut talk = Talk::new(self.settings);
            let End::Lost(loss) = self.converse(&link, &mut talk).await else { return };
            drop(link);
            if talk.has_understood() {
                self.rest = Duration::ZERO;
            }
            talk.end(&loss);
            self.listeners.interrupt();
            match self.reconnect(loss).await {
                Some(another) => link = another,
                None => return,
            }
        }
    }

    async fn converse(&mut self, link: &Link, talk: &mut Talk) -> End {
        for channel in self.listeners.channels() {
            talk.send_own(Request::Subscribe { channel }, Waiter::Nobody);
        }
        let mut stalled = pin!(sleep(self.settings.stall_timeout));
        let mut commands = Vec::with_capacity(COMMANDS_MAX);
        loop {
            let awaits_replies = talk.awaits_replies();
            let interest = match talk.has_output() {
                true => Interest::READABLE | Interest::WRITABLE,
                false => Interest::READABLE,
            };
            let asked = &mut self.commands;
            let done = select! {
                ready = link.ready(interest) => match ready {
                    Ok(ready) if ready.is_readable() || ready.is_read_closed() => {
                        talk.read(link, &mut self.listeners)
                    }
                    Ok(_) => Ok(false),
                    Err(error) => Err(Loss::Io(Arc::new(error))),
                },
                taken = asked.recv_many(&mut commands, COMMANDS_MAX), if talk.has_room() => {
                    if taken == 0 {
                        return End::Unneeded;
                    }
                    commands.drain(..).for_each(|command| self.obey(command, talk));
                    Ok(false)
                }
                () = &mut stalled, if awaits_replies => Err(Loss::Stalled),
            };
            let done = done.and_then(|heard| match talk.flush(link) {
                Ok(()) => Ok(heard),
                Err(loss) => {
                    // A server that closes may have answered before; those replies still count.
                    while let Ok(true) = talk.read(link, &mut self.listeners) {}
                    Err(loss)
                }
            });
            match done {
                Ok(heard) if heard || !awaits_replies => {
                    stalled.set(sleep(self.settings.stall_timeout));
                }
                Ok(_) => {}
                Err(loss) => return End::Lost(loss),
            }
            if self.listeners.stale {
                self.sweep(talk);
            }
        }
    }

    fn obey(&mut self, command: Command, talk: &mut Talk) {
        match command {
            Command::Ask(ask) => talk.send(ask),
            Command::Listen { channel, listener, ready } => {
                if self.listeners.add(Arc::clone(&channel), listener) {
                    let request = Request::Subscribe { channel: &channel };
                    talk.send_own(request, Waiter::Listener(ready));
                } else {
                    Waiter::Listener(ready).tell(Err(AskError::TooManySubscriptions));
                }
            }
            Command::Sweep => self.sweep(talk),
        }
    }

    fn sweep(&mut self, talk: &mut Talk) {
        for channel in self.listeners.sweep() {
            talk.send_own(Request::Unsubscribe { channel: &channel }, Waiter::Nobody);
        }
    }

    /// Connects again. Requests wait for the first attempt after a connection that worked; between
    /// further ones they are refused. `None` if nobody is left who could ask.
    async fn reconnect(&mut self, loss: Loss) -> Option<Link> {
        let mut error = Arc::new(io::Error::other(loss));
        loop {
            if self.rest.is_zero() {
                // A server that answers and closes every time is not asked in a tight circle.
                sleep(jittered(BACKOFF_MIN)).await;
            } else {
                self.refuse_for(jittered(self.rest), &error).await?;
            }
            // A connection on which nothing is understood counts as a failed attempt.
            self.rest = longer(self.rest);
            match Link::open(&self.endpoint, self.settings.connect_timeout).await {
                Ok(link) => return Some(link),
                Err(failure) => error = Arc::new(failure),
            }
        }
    }

    /// Refuses what is asked for so long. `None` if nobody is left who could ask.
    async fn refuse_for(&mut self, rest: Duration, error: &Arc<io::Error>) -> Option<()> {
        let mut rested = pin!(sleep(rest));
        loop {
            let command = select! {
                () = &mut rested => return Some(()),
                command = self.commands.recv() => command?,
            };
            let refusal = || AskError::Unreachable(Arc::clone(error));
            match command {
                Command::Ask(ask) => ask.waiter.tell(Err(refusal())),
                Command::Listen { ready, .. } => Waiter::Listener(ready).tell(Err(refusal())),
                // There is no connection to unsubscribe from.
                Command::Sweep => drop(self.listeners.sweep()),
            }
        }
    }
}

fn longer(rest: Duration) -> Duration {
    (rest * 2).clamp(BACKOFF_MIN, BACKOFF_MAX)
}

/// At least half of the rest, so that many clients do not come back at the same time.
fn jittered(rest: Duration) -> Duration {
    let share = RandomState::new().hash_one(()) % 1024;
    rest / 2 + rest / 2 * u32::try_from(share).unwrap_or(0) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_to_their_bound() {
        let mut rest = Duration::ZERO;
        let mut rests = Vec::new();
        for _ in 0..9 {
            rest = longer(rest);
            rests.push(rest.as_millis());
        }
        assert_eq!(rests, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        for _ in 0..100 {
            let jittered = jittered(BACKOFF_MAX);
            assert!(BACKOFF_MAX / 2 <= jittered && jittered <= BACKOFF_MAX);
        }
    }
}
