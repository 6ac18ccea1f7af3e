//! A client of the UDP text protocol.
//!
//! Datagrams get lost and servers restart, so a client must be able to do without an answer: an
//! `over_limit` that is not answered in time counts as allowed, and [`Reading`] says so. Replies
//! that match no open request, late ones among them, are ignored.

mod open_requests;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use tidegate_wire::text::StatsReply as Stats;
pub use tidegate_wire::text::ask::{
    CheckFields as Fields, Checked, LineShown, UnwritableText as Unwritable,
};
use tidegate_wire::text::{CHECK_REPLY_BYTES_MAX, DATAGRAM_BYTES_MAX, TextCommand, ask};
use tokio::net::{ToSocketAddrs, UdpSocket, lookup_host};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use open_requests::{OpenRequests, ReplySender};

/// How long a request waits for its reply unless told otherwise.
pub const TIMEOUT: Duration = Duration::from_millis(100);

/// The most requests of one client that are open at once. More wait for a place, within their
/// timeout.
pub const OUTSTANDING_MAX: usize = 1024;

/// How long the reader rests after an error that is not one lost datagram's.
const READ_ERROR_REST: Duration = Duration::from_millis(10);

/// A client of a text door. Cheap to clone; clones share one socket.
///
/// It belongs to the runtime on which it was connected. Dropping the last clone closes the socket.
///
/// ```
/// use tidegate_client::text::{Reading, TextClient};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let door = tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
/// # let door_address = door.local_addr()?;
/// # tokio::spawn(async move {
/// #     let mut datagram = [0; 1000];
/// #     while let Ok((len, from)) = door.recv_from(&mut datagram).await {
/// #         let request = String::from_utf8_lossy(&datagram[..len]);
/// #         let id = request.split(' ').next().unwrap();
/// #         door.send_to(format!("{id} ok Y 28.1 22.0 20").as_bytes(), from).await.unwrap();
/// #     }
/// # });
/// let client = TextClient::connect(door_address).await?;
/// # let client = client.with_timeout(std::time::Duration::from_secs(3600));
/// let reading = client.over_limit(b"ws ip=1.2.3.4").await?;
/// if reading.is_over() {
///     println!("429 Too Many Requests");
/// }
/// match reading {
///     Reading::Answered(line) => println!("{} of {} uses", line.rate, line.limit),
///     Reading::Assumed => println!("no answer in time: allowed"),
/// }
/// # assert!(reading.is_over());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TextClient {
    connection: Arc<Connection>,
    timeout: Duration,
}

/// What is known about a use: the server's answer, or what is assumed without one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading<T> {
    /// The server answered.
    Answered(T),
    /// No answer came in time, or the request could not be sent: treat the use as allowed.
    Assumed,
}

impl Reading<LineShown> {
    /// Whether the use should be refused. Without an answer it should not.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Reading::Answered(line) if line.over)
    }
}

impl Reading<Vec<Checked>> {
    /// Whether the use should be refused, because some key is over its limit. Without an answer
    /// it should not.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Reading::Answered(keys) if keys.iter().any(|checked| checked.line.over))
    }
}

/// What `get_size` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeShown {
    /// How full the table is, in the server's own words; Tidegate says `USED/TOTAL` in slots.
    pub size: String,
    /// Keys that are remembered.
    pub keys: u64,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The protocol cannot carry the question. Asking again will not help.
    #[error(transparent)]
    Unwritable(#[from] Unwritable),
    /// The question could not be sent.
    #[error("cannot send to the text door: {0}")]
    Unsent(io::Error),
    /// No answer came in time.
    #[error("the text door did not answer in time")]
    TimedOut,
}

impl TextClient {
    /// Connects to a text door: the first of the addresses that can be used.
    ///
    /// Nothing is sent; a server that is not there shows as requests that are not answered.
    ///
    /// # Errors
    /// If no address resolves or no socket can be had for any of them.
    pub async fn connect(server: impl ToSocketAddrs) -> io::Result<TextClient> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in lookup_host(server).await? {
            match connect(address).await {
                Ok(socket) => return Ok(TextClient::over(socket)),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn over(socket: UdpSocket) -> TextClient {
        let shared = Arc::new(Shared { socket, open: OpenRequests::default() });
        let reader = tokio::spawn(read_replies(Arc::clone(&shared))).abort_handle();
        let connection = Connection {
            shared,
            reader,
            // A port may have had another owner before: replies to its ids must not match ours.
            next_id: AtomicU64::new(RandomState::new().hash_one(()) >> 32),
            places: Semaphore::new(OUTSTANDING_MAX),
        };
        TextClient { connection: Arc::new(connection), timeout: TIMEOUT }
    }

    /// The same client with another timeout than [`TIMEOUT`]. It shares the socket with `self`.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> TextClient {
        TextClient { connection: Arc::clone(&self.connection), timeout }
    }

    /// The address from which this client asks.
    ///
    /// # Errors
    /// If the operating system does not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection.shared.socket.local_addr()
    }

    /// Tries to make one use of `key`.
    ///
    /// # Errors
    /// Only if the protocol cannot carry the key. Everything that may happen on the way is
    /// [`Reading::Assumed`].
    pub async fn over_limit(&self, key: &[u8]) -> Result<Reading<LineShown>, Unwritable> {
        assume(self.ask(TextCommand::OverLimit(key), ReplySender::Line).await)
    }

    /// Tries to make one use of each key that the fields stand for, up to the first that is over
    /// its limit. A server answers this to loopback and to addresses that its `allow` list names.
    ///
    /// # Errors
    /// Only if the protocol cannot carry the fields. Everything that may happen on the way is
    /// [`Reading::Assumed`].
    pub async fn check_limit(
        &self,
        fields: Fields<'_>,
    ) -> Result<Reading<Vec<Checked>>, Unwritable> {
        let json = fields.json();
        assume(self.ask(TextCommand::CheckLimit(json.as_bytes()), ReplySender::Checked).await)
    }

    /// Asks for the statistics of `key`.
    ///
    /// # Errors
    /// [`TextError`] if there is no answer.
    pub async fn get_stats(&self, key: &[u8]) -> Result<Stats, TextError> {
        self.ask(TextCommand::GetStats(key), ReplySender::Stats).await
    }

    /// Asks how full the server's table is.
    ///
    /// # Errors
    /// [`TextError`] if there is no answer.
    pub async fn get_size(&self) -> Result<SizeShown, TextError> {
        self.ask(TextCommand::GetSize, ReplySender::Size).await
    }

    /// Asks whether the server is there.
    ///
    /// # Errors
    /// [`TextError`] if there is no answer.
    pub async fn ping(&self) -> Result<(), TextError> {
        self.ask(TextCommand::Ping, ReplySender::Pong).await
    }

    /// Sends one request and waits for the reply that matches its id and its kind.
    async fn ask<T>(
        &self,
        command: TextCommand<'_>,
        waiting: fn(oneshot::Sender<T>) -> ReplySender,
    ) -> Result<T, TextError> {
        let Connection { shared, next_id, places, .. } = &*self.connection;
        let id = next_id.fetch_add(1, Ordering::Relaxed);
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        let len = ask::request(&mut datagram, Some(id), command)?;
        let exchange = async {
            let Ok(_place) = places.acquire().await else { return Err(TextError::TimedOut) };
            let (answer, answered) = oneshot::channel();
            // Closed when this future ends or is dropped, so that a late reply matches no request.
            let _ticket = shared.open.enter(id, waiting(answer));
            send(&shared.socket, &datagram[..len]).await.map_err(TextError::Unsent)?;
            answered.await.map_err(|_| TextError::TimedOut)
        };
        timeout(self.timeout, exchange).await.unwrap_or(Err(TextError::TimedOut))
    }
}

/// Without an answer a use is allowed, as the protocol's client processing says.
fn assume<T>(answer: Result<T, TextError>) -> Result<Reading<T>, Unwritable> {
    match answer {
        Ok(answer) => Ok(Reading::Answered(answer)),
        Err(TextError::Unwritable(error)) => Err(error),
        Err(TextError::Unsent(_) | TextError::TimedOut) => Ok(Reading::Assumed),
    }
}

/// What all clones of a client share.
#[derive(Debug)]
struct Connection {
    shared: Arc<Shared>,
    reader: AbortHandle,
    next_id: AtomicU64,
    places: Semaphore,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// What the clones share with their reader.
#[derive(Debug)]
struct Shared {
    socket: UdpSocket,
    open: OpenRequests,
}

async fn connect(server: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    // A connected socket receives from this server alone.
    socket.connect(server).await?;
    Ok(socket)
}

/// Sends one datagram. A refusal that an earlier datagram met is reported here once and says
/// nothing about this one, so it is tried again.
async fn send(socket: &UdpSocket, datagram: &[u8]) -> io::Result<()> {
    match socket.send(datagram).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            socket.send(datagram).await.map(drop)
        }
        sent => sent.map(drop),
    }
}

/// Hands each reply to the request that waits for it, until the last client is dropped.
async fn read_replies(shared: Arc<Shared>) {
    // One byte more than any reply, so that a longer datagram is not cut into a shorter reply.
    let mut datagram = vec![0; CHECK_REPLY_BYTES_MAX + 1];
    loop {
        match shared.socket.recv(&mut datagram).await {
            Ok(len) if len <= CHECK_REPLY_BYTES_MAX => shared.open.deliver(&datagram[..len]),
            Ok(_) => {}
            // The server is not there. The requests that met this end by their timeouts.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => sleep(READ_ERROR_REST).await,
        }
    }
}
