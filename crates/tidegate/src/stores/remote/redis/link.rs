//! One connection to one server.
//!
//! A task connects, drives the connection, and connects again when it broke, one attempt at a time.
//! Requests that come while it is down fail at once.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::super::engine::EngineFault;
use super::address::RedisAddress;
use super::faults;

/// How many exchanges are in flight over one connection.
const IN_FLIGHT_MAX: usize = 256;
/// How long an attempt to connect may take, at least.
const ATTEMPT_MIN: Duration = Duration::from_millis(500);
/// How long an exchange may take, at least.
const EXCHANGE_MIN: Duration = Duration::from_millis(100);
/// The pause between two attempts: so much, and a random part of so much more.
const PAUSE_MIN_MS: u64 = 100;
const PAUSE_MORE_MS: u64 = 150;

/// A connection that reconnects until this is dropped.
pub(super) struct RedisLink {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    /// Tried in turn.
    addresses: Vec<RedisAddress>,
    /// The longest that an exchange may take.
    patience: Duration,
    state: Mutex<State>,
    /// Which connection it is: counts up with each. Odd while it is up.
    turns: watch::Sender<u64>,
    given_up: Notify,
    /// The address of the last attempt.
    reached: AtomicUsize,
    /// Whether the server has answered over this connection.
    useful: AtomicBool,
}

enum State {
    Down(EngineFault),
    Up(MultiplexedConnection),
}

impl RedisLink {
    /// Starts to connect. The addresses are of one server, or of those that it fails over to.
    pub(super) fn new(addresses: Vec<RedisAddress>, patience: Duration) -> Self {
        let waiting = EngineFault::Unreachable("it has not been connected to yet".to_owned());
        let shared = Arc::new(Shared {
            addresses,
            patience: (2 * patience).max(EXCHANGE_MIN),
            state: Mutex::new(State::Down(waiting)),
            turns: watch::Sender::new(0),
            given_up: Notify::new(),
            reached: AtomicUsize::new(0),
            useful: AtomicBool::new(false),
        });
        let task = tokio::spawn(keep(shared.clone())).abort_handle();
        Self { shared, task }
    }

    /// Changes whenever the connection comes up or breaks.
    pub(super) fn turns(&self) -> watch::Receiver<u64> {
        self.shared.turns.subscribe()
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.shared.state.lock(), State::Up(_))
    }

    /// Where it leads at this moment, of several.
    pub(super) fn reached(&self) -> &RedisAddress {
        let reached = self.shared.reached.load(Ordering::Relaxed);
        &self.shared.addresses[reached % self.shared.addresses.len()]
    }

    /// Where it leads.
    pub(super) fn address(&self) -> &RedisAddress {
        &self.shared.addresses[0]
    }

    /// Sends one command. An error that the server answers with is a value here.
    pub(super) async fn ask(&self, cmd: &Cmd) -> Result<Value, EngineFault> {
        let (mut connection, turn) = self.connection()?;
        let asked = timeout(self.shared.patience, connection.send_packed_command(cmd)).await;
        self.heard(turn, asked.map_err(|_| EngineFault::Slow))
    }

    /// Sends several commands at once, in order.
    pub(super) async fn ask_all(&self, pipeline: &Pipeline) -> Result<Vec<Value>, EngineFault> {
        let (mut connection, turn) = self.connection()?;
        let count = pipeline.len();
        let asking = connection.send_packed_commands(pipeline, 0, count);
        let asked = timeout(self.shared.patience, asking).await;
        let values = self.heard(turn, asked.map_err(|_| EngineFault::Slow))?;
        if values.len() == count { Ok(values) } else { Err(faults::nonsense("too few answers")) }
    }

    fn connection(&self) -> Result<(MultiplexedConnection, u64), EngineFault> {
        match &*self.shared.state.lock() {
            State::Up(connection) => Ok((connection.clone(), *self.shared.turns.borrow())),
            State::Down(fault) => Err(fault.clone()),
        }
    }

    fn heard<T>(
        &self,
        turn: u64,
        asked: Result<redis::RedisResult<T>, EngineFault>,
    ) -> Result<T, EngineFault> {
        let fault = match asked {
            Ok(Ok(value)) => {
                self.shared.useful.store(true, Ordering::Relaxed);
                return Ok(value);
            }
            Ok(Err(error)) => faults::broken(&error),
            Err(fault) => fault,
        };
        self.shared.give_up(turn, &fault);
        Err(fault)
    }

    /// Closes the connection: it leads to the wrong server.
    pub(super) fn give_up(&self, fault: &EngineFault) {
        let turn = *self.shared.turns.borrow();
        self.shared.useful.store(false, Ordering::Relaxed);
        self.shared.give_up(turn, fault);
    }
}

impl Drop for RedisLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn down(fault: EngineFault) -> Self {
        let silent = || EngineFault::Unreachable("it did not answer in time".to_owned());
        Self::Down(if fault == EngineFault::Slow { silent() } else { fault })
    }
}

impl Shared {
    /// There is a connection from now on; which one it is.
    fn come_up(&self, connection: MultiplexedConnection) -> u64 {
        let mut state = self.state.lock();
        *state = State::Up(connection);
        self.turns.send_modify(|turn| *turn += 1);
        *self.turns.borrow()
    }

    /// The connection of this turn is down from now on, if it is not already.
    fn give_up(&self, turn: u64, fault: &EngineFault) {
        let mut state = self.state.lock();
        if matches!(*state, State::Up(_)) && *self.turns.borrow() == turn {
            *state = State::down(fault.clone());
            self.turns.send_modify(|turn| *turn += 1);
            self.given_up.notify_one();
        }
    }
}

/// Connects, and again, for ever.
async fn keep(shared: Arc<Shared>) {
    let attempt_max = (2 * shared.patience).max(ATTEMPT_MIN);
    let closed = || EngineFault::Unreachable("the connection was closed".to_owned());
    loop {
        let next = shared.reached.load(Ordering::Relaxed);
        let address = &shared.addresses[next % shared.addresses.len()];
        shared.useful.store(false, Ordering::Relaxed);
        let attempt = timeout(attempt_max, connect(address, None)).await;
        match attempt.unwrap_or(Err(EngineFault::Slow)) {
            Ok((connection, driver)) => {
                let turn = shared.come_up(connection);
                tokio::select! {
                    () = driver => {
                        shared.give_up(turn, &closed());
                        // Takes the notice of what is known here already.
                        shared.given_up.notified().await;
                    }
                    () = shared.given_up.notified() => {}
                }
                if shared.useful.load(Ordering::Relaxed) {
                    // It worked: servers close idle connections, and accept the next one.
                    continue;
                }
            }
            Err(fault) => *shared.state.lock() = State::down(fault),
        }
        shared.reached.store(next.wrapping_add(1), Ordering::Relaxed);
        tokio::time::sleep(pause()).await;
    }
}

/// The pause before the next attempt, with a random part: nodes that lost the same server must not
/// come back at the same moment.
pub(super) fn pause() -> Duration {
    let random = getrandom::u64().unwrap_or_default() % (PAUSE_MORE_MS + 1);
    Duration::from_millis(PAUSE_MIN_MS + random)
}

/// Opens a connection and logs in. The connection works while the driver is polled. `pushed` gets
/// the server's messages.
pub(super) async fn connect(
    address: &RedisAddress,
    pushed: Option<PushHandler>,
) -> Result<(MultiplexedConnection, RedisDriver), EngineFault> {
    let stream = address.open().await.map_err(EngineFault::Unreachable)?;
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_concurrency_limit(IN_FLIGHT_MAX)
        .set_pipeline_buffer_size(IN_FLIGHT_MAX);
    let (config, login) = match pushed {
        None => (config, address.login.clone()),
        Some(pushed) => {
            let login = address.login.clone().set_protocol(redis::ProtocolVersion::RESP3);
            (
                config.set_push_sender(move |info| {
                    pushed(info);
                    Ok::<(), ()>(())
                }),
                login,
            )
        }
    };
    let opened = MultiplexedConnection::new_with_config(&login, stream, config).await;
    let (connection, driver) = opened.map_err(|error| faults::broken(&error))?;
    Ok((connection, Box::pin(driver)))
}

/// Reads and writes as long as it is polled, and ends with the connection.
pub(super) type RedisDriver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes messages of the server that answer no command.
pub(super) type PushHandler = Box<dyn Fn(redis::PushInfo) + Send + Sync>;
