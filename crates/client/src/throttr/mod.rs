//! A client of the Throttr protocol, over TCP or a Unix socket.
//!
//! All clones of a client share one connection and one task that drives it. Requests of many
//! callers are in flight at once; replies come in order and are matched so. A connection that is
//! lost is made again, with a pause between attempts that grows to [`BACKOFF_MAX`]. A request is
//! never sent twice: its caller learns that the reply is [lost](ThrottrError::Lost), and alone
//! knows whether to ask again. While there is no connection, requests fail at once.

mod driver;
mod events;
mod pipeline;
mod replies;
mod requests;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use tidegate_wire::throttr::ask::BrokenReply;
pub use tidegate_wire::throttr::figures::{ConnectionRecord, CountRate as Rate, Info, Transport};
pub use tidegate_wire::throttr::fragments::RecordKind;
pub use tidegate_wire::throttr::reply::{ChannelSubscriber as Subscriber, Stat};
pub use tidegate_wire::throttr::{
    Attribute, ID_BYTES, Request, RequestKind as Kind, Take, Takes, Ttl, Unit, Unwritable,
    UpdateChange as Change, ValueSize,
};

use tidegate_wire::throttr::ask::Expected;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use driver::{ClientCommand, ConnectionDriver};
pub use events::{ChannelEvent, ChannelSubscription};
use pipeline::{Ask, Waiter};
pub use replies::{
    Buffer, Channel, ConsumeManyResult, ConsumeResult, CounterState, Left, ListedRecord,
    RecordStats, Reply,
};
use socket::{ClientSocket, ServerAddress};

/// How long a request may take unless told otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// The most requests of one [`ThrottrClient::pipeline`].
pub const PIPELINE_MAX: usize = 16 * 1024;

/// The most callers whose requests wait to be sent. More wait for a place, within their timeout.
pub const CALLERS_MAX: usize = 1024;

/// While more requests than this are in flight, no further ones are sent.
pub const IN_FLIGHT_MAX: usize = 16 * 1024;

/// The longest rest between two attempts to connect.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The shortest one.
const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The value size of the listener. The protocol does not announce it, and with a wrong one
    /// neither side understands the other.
    pub value_size: ValueSize,
    /// How long a request may take, from the call to its reply: [`TIMEOUT`].
    pub timeout: Duration,
    /// How long an attempt to connect may take: a second.
    pub connect_timeout: Duration,
    /// After so long without a byte although replies are due, the connection is given up: ten
    /// seconds.
    pub stall_timeout: Duration,
    /// The longest value or payload that is read: 64 KiB.
    pub value_bytes_max: usize,
    /// The most rows of a list that are kept, a million. A longer list is
    /// [`ThrottrError::TooManyRows`].
    pub rows_max: usize,
    /// The most events that wait in one [`ChannelSubscription`], 1024; further ones are lost and
    /// counted.
    pub events_max: usize,
}

impl Settings {
    /// The usual ones.
    #[must_use]
    pub const fn new(value_size: ValueSize) -> Self {
        Self {
            value_size,
            timeout: TIMEOUT,
            connect_timeout: Duration::from_secs(1),
            stall_timeout: Duration::from_secs(10),
            value_bytes_max: 64 * 1024,
            rows_max: 1_000_000,
            events_max: 1024,
        }
    }
}

/// A client of a Throttr door. Cheap to clone; clones share one connection.
///
/// It belongs to the runtime on which it was connected. The connection is closed when the last
/// clone and the last [`ChannelSubscription`] are dropped.
///
/// ```no_run
/// use tidegate_client::throttr::{ThrottrClient, Ttl, Unit, ValueSize};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = ThrottrClient::connect("127.0.0.1:9000", ValueSize::Bits16).await?;
/// let minute = Ttl::new(60, Unit::Seconds);
/// let use_of = client.consume(b"ip=1.2.3.4", 1, 100, minute).await?;
/// if !use_of.taken {
///     println!("429 Too Many Requests, again in {} s", use_of.left + 1);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ThrottrClient {
    commands: mpsc::Sender<ClientCommand>,
    settings: Settings,
}

/// Why a request has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ThrottrError {
    /// The protocol cannot carry the request at this value size. Asking again will not help.
    #[error(transparent)]
    Unwritable(#[from] Unwritable),
    /// A pipeline has more than [`PIPELINE_MAX`] requests. Nothing was sent: send it in parts.
    #[error("a pipeline of more than {PIPELINE_MAX} requests")]
    PipelineTooLong,
    /// There is no connection, and the last attempt to make one failed. Nothing was sent.
    #[error("cannot reach the Throttr door: {0}")]
    Unreachable(Arc<io::Error>),
    /// The connection was lost before the reply came. The request may have been executed.
    #[error("the connection to the Throttr door was lost: {0}")]
    Lost(Loss),
    /// No reply came in time. The request may have been executed.
    #[error("the Throttr door did not answer in time")]
    TimedOut,
    /// The list has more rows than [`Settings::rows_max`].
    #[error("the list has more rows than this client keeps")]
    TooManyRows,
    /// The client has as many subscriptions as it may have.
    #[error("more than {} subscriptions", events::SUBSCRIPTIONS_MAX)]
    TooManySubscriptions,
    /// The runtime on which the client was connected is gone.
    #[error("the client's runtime has ended")]
    Ended,
}

/// How a connection was lost.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Loss {
    /// The server closed it. It does so on a request that it does not know, and on a value that is
    /// longer than it takes.
    #[error("the server closed it")]
    Closed,
    /// Reading or writing failed.
    #[error(transparent)]
    Io(Arc<io::Error>),
    /// Replies were due, and nothing came for [`Settings::stall_timeout`].
    #[error("the server stopped answering")]
    Stalled,
    /// What came is no reply; perhaps the value sizes differ.
    #[error("{0} (is the value size right?)")]
    Broken(BrokenReply),
}

impl ThrottrClient {
    /// Connects to a Throttr door at `HOST:PORT`. The name is looked up again for every attempt.
    ///
    /// # Errors
    /// If no connection can be had. Later ones are made again by themselves.
    pub async fn connect(server: &str, value_size: ValueSize) -> io::Result<Self> {
        Self::connect_with(server, Settings::new(value_size)).await
    }

    /// The same with other settings than the usual ones.
    ///
    /// # Errors
    /// If no connection can be had. Later ones are made again by themselves.
    pub async fn connect_with(server: &str, settings: Settings) -> io::Result<Self> {
        Self::open(ServerAddress::Tcp(server.into()), settings).await
    }

    /// Connects to a Throttr door at a Unix socket.
    ///
    /// # Errors
    /// If no connection can be had. Later ones are made again by themselves.
    pub async fn connect_unix(path: impl AsRef<Path>, settings: Settings) -> io::Result<Self> {
        Self::open(ServerAddress::Unix(path.as_ref().into()), settings).await
    }

    async fn open(address: ServerAddress, settings: Settings) -> io::Result<Self> {
        let socket = ClientSocket::open(&address, settings.connect_timeout).await?;
        let (commands, receiver) = mpsc::channel(CALLERS_MAX);
        tokio::spawn(ConnectionDriver::new(address, settings, receiver).run(socket));
        Ok(Self { commands, settings })
    }

    /// The same client with another timeout. It shares the connection with `self`.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let settings = Settings { timeout, ..self.settings };
        Self { commands: self.commands.clone(), settings }
    }

    /// The settings of this client.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sends one request and waits for its reply. The methods named like the requests do this and
    /// say what the reply means.
    ///
    /// # Errors
    /// [`ThrottrError`] if there is no answer.
    pub async fn ask(&self, request: Request<'_>) -> Result<Reply, ThrottrError> {
        let mut replies = self.pipeline(&[request]).await?;
        // The driver answers each request of a pipeline, or none of them.
        replies.pop().ok_or(ThrottrError::Ended)
    }

    /// Sends several requests in one go and waits for all of their replies, which come in the same
    /// order. What others ask may be executed between them, if the server reads in two parts.
    ///
    /// # Errors
    /// [`ThrottrError`] if there is no answer to all of them; some may have been executed.
    pub async fn pipeline(&self, requests: &[Request<'_>]) -> Result<Vec<Reply>, ThrottrError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        if requests.len() > PIPELINE_MAX {
            return Err(ThrottrError::PipelineTooLong);
        }
        let size = self.settings.value_size;
        let mut bytes = Vec::new();
        let mut expected = Vec::with_capacity(requests.len());
        for request in requests {
            request.encode(size, &mut bytes)?;
            expected.push(Expected::of(request, size));
        }
        let (answer, answered) = oneshot::channel();
        let ask = ClientCommand::Ask(Ask { bytes, expected, waiter: Waiter::Caller(answer) });
        self.exchange(ask, answered).await
    }

    /// Hands the driver a command and waits for its answer.
    async fn exchange<T>(
        &self,
        command: ClientCommand,
        answered: oneshot::Receiver<Result<T, ThrottrError>>,
    ) -> Result<T, ThrottrError> {
        let exchange = async {
            self.commands.send(command).await.map_err(|_| ThrottrError::Ended)?;
            answered.await.unwrap_or(Err(ThrottrError::Ended))
        };
        timeout(self.settings.timeout, exchange).await.unwrap_or(Err(ThrottrError::TimedOut))
    }
}
