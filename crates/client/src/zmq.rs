//! ZeroMQ's PUB and SUB sockets, as Smockron's masters and gatekeepers need them.
//!
//! This is the one file that names the ZeroMQ library, and it offers what the two sides use and
//! nothing else: it knows frames and peers, and no word of any protocol that travels in them. It is
//! shared between the crates of this project and promises nothing to other users.
//!
//! Sockets live on the Tokio runtime in which they are made, one driver task for each peer. Nothing
//! here waits for a peer that does not read: what does not fit is dropped.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use omq_tokio::endpoint::{Endpoint, Host};
use omq_tokio::{
    AuthenticationResult, AuthenticationStatus, Authenticator, DisconnectReason, KeepAlive,
    MechanismSetup, Message, MessagePool, MonitorEvent, MonitorRecvError, MonitorStream, Payload,
    ReconnectPolicy, Socket, SocketType, TrySendError,
};

/// Peers that may be shaking hands at the same time. The library makes all that a connection ever
/// needs, some 60 KiB, before it knows the peer; a crowd that starts at once comes again.
const HANDSHAKES_MAX: usize = 1024;
/// How long a peer may take to shake hands.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Tables of frames that are kept for use again, and how many frames each has room for. They are
/// used in turn, so no more of them than stay in the cache.
const TABLES_MAX: usize = 512;
const TABLE_FRAMES: usize = 6;
/// Frames of a message that are allowed for beside its bytes.
const FRAMES_ALLOWED: usize = 8;
/// Messages of one peer that are read and not yet taken, at most. Room for all of them is made with
/// the connection, 64 bytes for each; until they are taken, the others wait in the kernel and then
/// with the peer.
const READ_AHEAD_MAX: u32 = 128;
/// Bytes that wait for a peer which does not read, for each message of the high-water mark, and the
/// least and the most of them.
const WAITING_BYTES_PER_MESSAGE: usize = 128;
const WAITING_BYTES_MIN: usize = 16 * 1024;
const WAITING_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Events that wait in one [`PeerEvents`]; later ones push out earlier ones.
const EVENTS_MAX: usize = 4096;

/// Who may connect, by address.
pub type AddressFilter = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// How a socket behaves.
#[derive(Clone)]
pub struct Options {
    /// Messages that may wait, in each queue and for each peer.
    pub hwm: u32,
    /// The largest message that is taken, in bytes; a peer that sends more is disconnected.
    pub message_bytes_max: usize,
    /// The first and the longest pause before connecting again.
    pub reconnect: (Duration, Duration),
    /// How long closing waits for messages that are not sent yet.
    pub linger: Duration,
    /// How often a connected peer is asked for a sign of life. One that gives none for three times
    /// as long is connected anew.
    pub heartbeat: Option<Duration>,
    /// Who may connect to a bound socket; everybody without.
    pub admission: Option<AddressFilter>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hwm: 1_000,
            message_bytes_max: 16 * 1024,
            reconnect: (Duration::from_millis(100), Duration::from_secs(5)),
            linger: Duration::ZERO,
            heartbeat: None,
            admission: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Options").field("hwm", &self.hwm).finish_non_exhaustive()
    }
}

impl Options {
    fn of_library(&self) -> omq_tokio::Options {
        let waiting = (self.hwm as usize).saturating_mul(WAITING_BYTES_PER_MESSAGE);
        let (min, max) = self.reconnect;
        let keepalive = KeepAlive::Enabled {
            idle: Duration::from_secs(60),
            intvl: Duration::from_secs(15),
            cnt: 4,
        };
        // The library counts the size of its own table of frames as well.
        let frames = FRAMES_ALLOWED * size_of::<Payload>();
        let mut options = omq_tokio::Options::new()
            .send_hwm(self.hwm)
            .recv_hwm(self.hwm.min(READ_AHEAD_MAX))
            .max_message_size(self.message_bytes_max + frames)
            .reconnect(ReconnectPolicy::Exponential { min, max })
            .linger(self.linger)
            .handshake_timeout(HANDSHAKE_TIMEOUT)
            .max_pending_handshakes(HANDSHAKES_MAX)
            .tcp_keepalive(keepalive)
            .transmit_slot_cap(waiting.clamp(WAITING_BYTES_MIN, WAITING_BYTES_MAX))
            .monitor_capacity(EVENTS_MAX);
        if let Some(interval) = self.heartbeat {
            options = options.heartbeat_interval(interval).heartbeat_timeout(interval * 3);
        }
        if let Some(admission) = self.admission.clone() {
            options.mechanism = MechanismSetup::NullServer { authenticator: door_of(admission) };
        }
        options
    }
}

/// Peers that are not admitted are disconnected without an error: an error would make some of them
/// stop trying, and admission can change.
fn door_of(admission: AddressFilter) -> Authenticator {
    Authenticator::new_with_result(move |peer| {
        let address = peer.peer_address.as_deref().and_then(|text| text.parse().ok());
        let admitted = address.is_some_and(|address: IpAddr| admission(address.to_canonical()));
        let mut result = AuthenticationResult::allow();
        if !admitted {
            result.status = AuthenticationStatus::TemporaryFailure;
        }
        result
    })
}

/// What can go wrong with a socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint is not `tcp://host:port`; another one may be.
    #[error("`{0}` is not an endpoint: expected `tcp://host:port`")]
    Endpoint(String),
    /// The address cannot be bound.
    #[error("{0}")]
    Bind(std::io::Error),
    /// The socket is closed.
    #[error("the socket is closed")]
    Closed,
}

/// Checks and reads an endpoint. `*` stands for every address.
fn endpoint(text: &str) -> Result<Endpoint, Error> {
    match text.parse() {
        Ok(endpoint @ Endpoint::Tcp { .. }) => Ok(endpoint),
        _ => Err(Error::Endpoint(text.to_owned())),
    }
}

/// What happened to a socket's peers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerEvent {
    /// A peer shook hands.
    Ready,
    /// A peer subscribed to something: what is published from now on reaches it.
    Subscribed,
    /// A peer is gone, as peers go.
    Lost,
    /// A peer was disconnected because of what it sent, or did not answer.
    Faulty,
    /// A peer was disconnected because it sent a message that is too large.
    TooLarge,
    /// A peer did not shake hands as it should.
    Refused,
    /// A peer was not admitted.
    NotAdmitted,
    /// As many events were missed.
    Missed(u64),
}

/// Tells what happens to a socket's peers, from the moment it is made.
#[derive(Debug)]
pub struct PeerEvents {
    stream: MonitorStream,
}

impl PeerEvents {
    /// The next event; none when the socket is closed.
    pub async fn next(&mut self) -> Option<PeerEvent> {
        loop {
            return Some(match self.stream.recv().await {
                Ok(MonitorEvent::HandshakeSucceeded { .. }) => PeerEvent::Ready,
                Ok(MonitorEvent::SubscribeReceived { .. }) => PeerEvent::Subscribed,
                // The library tells these apart in its words only.
                Ok(MonitorEvent::HandshakeFailed { reason, .. }) => {
                    let refused = reason.contains("authentication failed");
                    if refused { PeerEvent::NotAdmitted } else { PeerEvent::Refused }
                }
                Ok(MonitorEvent::Disconnected { reason, .. }) => match reason {
                    DisconnectReason::Error(error) if error.contains("too large") => {
                        PeerEvent::TooLarge
                    }
                    DisconnectReason::Error(_) => PeerEvent::Faulty,
                    _ => PeerEvent::Lost,
                },
                Ok(MonitorEvent::Closed) | Err(MonitorRecvError::Closed) => return None,
                Err(MonitorRecvError::Lagged(missed)) => PeerEvent::Missed(missed),
                Ok(_) | Err(_) => continue,
            });
        }
    }
}

/// What both kinds of sockets can do.
#[derive(Debug)]
pub struct AnySocket {
    socket: Socket,
}

impl AnySocket {
    fn new(kind: SocketType, options: omq_tokio::Options) -> Self {
        // The options are ours, and none of them can be wrong.
        Self { socket: Socket::new(kind, options) }
    }

    /// Listens, and returns the address with its real port.
    ///
    /// # Errors
    /// If the endpoint is none, or cannot be bound.
    pub async fn bind(&self, text: &str) -> Result<SocketAddr, Error> {
        match self.socket.bind(endpoint(text)?).await {
            Ok(Endpoint::Tcp { host: Host::Ip(ip), port }) => Ok(SocketAddr::new(ip, port)),
            Ok(_) => Err(Error::Endpoint(text.to_owned())),
            Err(omq_tokio::Error::Io(error)) => Err(Error::Bind(error)),
            Err(omq_tokio::Error::Closed) => Err(Error::Closed),
            Err(other) => Err(Error::Bind(std::io::Error::other(other.to_string()))),
        }
    }

    /// Connects, now or as soon as a socket listens there, and again whenever that ends.
    ///
    /// # Errors
    /// If the endpoint is none.
    pub async fn connect(&self, text: &str) -> Result<(), Error> {
        self.socket.connect(endpoint(text)?).await.map_err(|_| Error::Closed)
    }

    /// Watches the peers.
    #[must_use]
    pub fn events(&self) -> PeerEvents {
        PeerEvents { stream: self.socket.monitor() }
    }

    async fn close(self) {
        // Closing twice is the only failure.
        let _ = self.socket.close().await;
    }
}

/// A PUB socket.
#[derive(Debug)]
pub struct PubSocket {
    any: AnySocket,
    tables: MessagePool,
}

impl Deref for PubSocket {
    type Target = AnySocket;

    fn deref(&self) -> &AnySocket {
        &self.any
    }
}

/// What became of a message that was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sent {
    /// It is queued for the subscribers. One that reads too slowly may still miss it.
    Queued,
    /// The queue is full, and the message is dropped.
    Dropped,
}

impl PubSocket {
    /// A socket on the runtime of the caller.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let any = AnySocket::new(SocketType::Pub, options.of_library());
        Self { any, tables: MessagePool::new(TABLES_MAX, TABLE_FRAMES) }
    }

    /// Publishes a message under its first frame, never waiting. The queue is emptied when the
    /// runtime's other tasks run: a caller that sends many yields in between.
    pub fn send<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> Sent {
        let message = self.tables.multipart_payloads(frames.map(Payload::from_slice));
        match self.any.socket.try_send(message) {
            Ok(()) => Sent::Queued,
            Err(TrySendError::Full(_) | TrySendError::Closed | TrySendError::Error(_)) => {
                Sent::Dropped
            }
        }
    }

    /// Closes the socket, after what is queued is sent or the time for it is over.
    pub async fn close(self) {
        self.any.close().await;
    }
}

/// A SUB socket.
#[derive(Debug)]
pub struct SubSocket {
    any: AnySocket,
}

impl Deref for SubSocket {
    type Target = AnySocket;

    fn deref(&self) -> &AnySocket {
        &self.any
    }
}

impl SubSocket {
    /// A socket on the runtime of the caller.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let tables = MessagePool::new(TABLES_MAX, TABLE_FRAMES);
        let options = options.of_library().recv_message_pool(tables).recv_batching(true);
        Self { any: AnySocket::new(SocketType::Sub, options) }
    }

    /// Wants the messages whose first frame begins so, of every peer now and later.
    ///
    /// # Errors
    /// If the socket is closed.
    pub async fn subscribe(&self, prefix: &[u8]) -> Result<(), Error> {
        self.any.socket.subscribe(prefix.to_vec()).await.map_err(|_| Error::Closed)
    }

    /// Waits for a message, and takes what else is there without waiting, up to `most` in all.
    /// What was in the batch is gone. Dropping the future loses nothing.
    ///
    /// # Errors
    /// If the socket is closed.
    pub async fn receive(&self, batch: &mut Batch, most: usize) -> Result<usize, Error> {
        batch.messages.clear();
        let received = self.any.socket.recv_many_into(most, &mut batch.messages).await;
        received.map_err(|_| Error::Closed)
    }

    /// Closes the socket.
    pub async fn close(self) {
        self.any.close().await;
    }
}

/// Messages that were received together; the memory is used again.
#[derive(Debug, Default)]
pub struct Batch {
    messages: Vec<Message>,
}

impl Batch {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many messages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The frames of a message, as many as there is room for in `room`.
    ///
    /// # Panics
    /// If there are not so many messages.
    #[inline]
    pub fn frames<'a, 'r>(&'a self, index: usize, room: &'r mut [&'a [u8]]) -> &'r [&'a [u8]] {
        let message = &self.messages[index];
        let mut count = 0;
        for slot in room.iter_mut() {
            let Some(frame) = message.part_slice(count) else { break };
            *slot = frame;
            count += 1;
        }
        &room[..count]
    }
}

#[cfg(test)]
mod tests;
