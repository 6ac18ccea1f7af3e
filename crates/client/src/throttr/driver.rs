//! The task behind a client: it owns the connection, and connects again when it is lost.

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

use super::events::{SubscriptionSender, SubscriptionTable};
use super::pipeline::{Ask, Pipeline, Waiter};
use super::socket::{ClientSocket, ServerAddress};
use super::{BACKOFF_MAX, BACKOFF_MIN, Loss, Settings, ThrottrError};

/// The most commands that are taken before what they ask is sent.
const COMMANDS_MAX: usize = 256;

/// What a client tells its driver.
#[derive(Debug)]
pub(super) enum ClientCommand {
    Ask(Ask),
    Subscribe {
        channel: Arc<[u8]>,
        sender: SubscriptionSender,
        ready: oneshot::Sender<Result<(), ThrottrError>>,
    },
    /// A subscription was dropped.
    Sweep,
}

#[derive(Debug)]
pub(super) struct ConnectionDriver {
    address: ServerAddress,
    settings: Settings,
    commands: mpsc::Receiver<ClientCommand>,
    subscriptions: SubscriptionTable,
    /// How long to rest before the next attempt to connect.
    rest: Duration,
}

/// How a connection ends.
enum End {
    /// The last client and the last subscription were dropped.
    Unneeded,
    Lost(Loss),
}

impl ConnectionDriver {
    pub(super) fn new(
        address: ServerAddress,
        settings: Settings,
        commands: mpsc::Receiver<ClientCommand>,
    ) -> Self {
        let (subscriptions, rest) = (SubscriptionTable::default(), Duration::ZERO);
        Self { address, settings, commands, subscriptions, rest }
    }

    /// Drives connections, one after the other, until the last client is dropped.
    pub(super) async fn run(mut self, mut socket: ClientSocket) {
        loop {
            let mut pipeline = Pipeline::new(self.settings);
            let End::Lost(loss) = self.converse(&socket, &mut pipeline).await else { return };
            drop(socket);
            if pipeline.has_understood() {
                self.rest = Duration::ZERO;
            }
            pipeline.end(&loss);
            self.subscriptions.interrupt();
            match self.reconnect(loss).await {
                Some(another) => socket = another,
                None => return,
            }
        }
    }

    async fn converse(&mut self, socket: &ClientSocket, pipeline: &mut Pipeline) -> End {
        for channel in self.subscriptions.channels() {
            pipeline.send_own(Request::Subscribe { channel }, Waiter::Nobody);
        }
        let mut stalled = pin!(sleep(self.settings.stall_timeout));
        let mut commands = Vec::with_capacity(COMMANDS_MAX);
        loop {
            let awaits_replies = pipeline.awaits_replies();
            let interest = match pipeline.has_output() {
                true => Interest::READABLE | Interest::WRITABLE,
                false => Interest::READABLE,
            };
            let asked = &mut self.commands;
            let done = select! {
                ready = socket.ready(interest) => match ready {
                    Ok(ready) if ready.is_readable() || ready.is_read_closed() => {
                        pipeline.read(socket, &mut self.subscriptions)
                    }
                    Ok(_) => Ok(false),
                    Err(error) => Err(Loss::Io(Arc::new(error))),
                },
                taken = asked.recv_many(&mut commands, COMMANDS_MAX), if pipeline.has_room() => {
                    if taken == 0 {
                        return End::Unneeded;
                    }
                    commands.drain(..).for_each(|command| self.execute(command, pipeline));
                    Ok(false)
                }
                () = &mut stalled, if awaits_replies => Err(Loss::Stalled),
            };
            let done = done.and_then(|heard| match pipeline.flush(socket) {
                Ok(()) => Ok(heard),
                Err(loss) => {
                    // A server that closes may have answered before; those replies still count.
                    while let Ok(true) = pipeline.read(socket, &mut self.subscriptions) {}
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
            if self.subscriptions.stale {
                self.sweep(pipeline);
            }
        }
    }

    fn execute(&mut self, command: ClientCommand, pipeline: &mut Pipeline) {
        match command {
            ClientCommand::Ask(ask) => pipeline.send(ask),
            ClientCommand::Subscribe { channel, sender, ready } => {
                if self.subscriptions.add(Arc::clone(&channel), sender) {
                    let request = Request::Subscribe { channel: &channel };
                    pipeline.send_own(request, Waiter::Subscriber(ready));
                } else {
                    Waiter::Subscriber(ready).tell(Err(ThrottrError::TooManySubscriptions));
                }
            }
            ClientCommand::Sweep => self.sweep(pipeline),
        }
    }

    fn sweep(&mut self, pipeline: &mut Pipeline) {
        for channel in self.subscriptions.sweep() {
            pipeline.send_own(Request::Unsubscribe { channel: &channel }, Waiter::Nobody);
        }
    }

    /// Connects again. Requests wait for the first attempt after a connection that worked; between
    /// further ones they are refused. `None` if the last client was dropped.
    async fn reconnect(&mut self, loss: Loss) -> Option<ClientSocket> {
        let mut error = Arc::new(io::Error::other(loss));
        loop {
            if self.rest.is_zero() {
                // A server that answers and closes every time is not connected to in a tight loop.
                sleep(jittered(BACKOFF_MIN)).await;
            } else {
                self.refuse_for(jittered(self.rest), &error).await?;
            }
            // A connection on which nothing is understood counts as a failed attempt.
            self.rest = longer(self.rest);
            match ClientSocket::open(&self.address, self.settings.connect_timeout).await {
                Ok(socket) => return Some(socket),
                Err(failure) => error = Arc::new(failure),
            }
        }
    }

    /// Refuses requests for so long. `None` if the last client was dropped.
    async fn refuse_for(&mut self, rest: Duration, error: &Arc<io::Error>) -> Option<()> {
        let mut rested = pin!(sleep(rest));
        loop {
            let command = select! {
                () = &mut rested => return Some(()),
                command = self.commands.recv() => command?,
            };
            let refusal = || ThrottrError::Unreachable(Arc::clone(error));
            match command {
                ClientCommand::Ask(ask) => ask.waiter.tell(Err(refusal())),
                ClientCommand::Subscribe { ready, .. } => {
                    Waiter::Subscriber(ready).tell(Err(refusal()))
                }
                // There is no connection to unsubscribe from.
                ClientCommand::Sweep => drop(self.subscriptions.sweep()),
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
