//! A client of the JARL protocol: asks how long to wait before a call, and waits.
//!
//! A server that cannot be reached or understood must not stop the caller, who then goes on as
//! without a limiter. [`Advice`] tells that apart from a delay of zero.

use std::io;
use std::time::Duration;

use tidegate_wire::jarl::{READ_BYTES_MAX, parse};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// How long connecting may take unless told otherwise.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the answer may take unless told otherwise.
pub const READ_TIMEOUT: Duration = Duration::from_millis(500);

/// A client of one JARL server, which is one service. Cheap to clone.
///
/// Every question is a connection of its own and books one call: ask once for each.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::jarl::{Advice, JarlClient};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let door = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// # let address = door.local_addr()?.to_string();
/// # tokio::spawn(async move {
/// #     while let Ok((caller, _)) = door.accept().await {
/// #         caller.try_write(b"0.001").unwrap();
/// #     }
/// # });
/// let gateway = JarlClient::new(address).with_timeouts(
///     Duration::from_millis(200), // to connect
///     Duration::from_millis(200), // to be answered
/// );
/// # let gateway = gateway.with_timeouts(Duration::from_secs(3600), Duration::from_secs(3600));
/// match gateway.wait().await {
///     Advice::Wait(delay) => println!("waited {delay:?} as told"),
///     Advice::GoOn(why) => println!("not waited: {why}"),
/// }
/// // Now make the call; after `GoOn`, be ready for the service's own refusal.
/// # assert!(matches!(gateway.ask().await, Advice::Wait(delay) if delay.as_millis() == 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct JarlClient {
    server: String,
    connect_timeout: Duration,
    read_timeout: Duration,
}

/// What to do before a call.
#[derive(Debug)]
#[must_use]
pub enum Advice {
    /// The server's delay, which may be zero.
    Wait(Duration),
    /// The server gave no delay: go on without it, and handle the service's own refusals.
    GoOn(JarlError),
}

impl Advice {
    /// How long to wait: the server's delay, or zero.
    #[must_use]
    pub fn delay(&self) -> Duration {
        match self {
            Advice::Wait(delay) => *delay,
            Advice::GoOn(_) => Duration::ZERO,
        }
    }

    /// Whether the delay is the server's, and the call is booked.
    #[must_use]
    pub fn is_booked(&self) -> bool {
        matches!(self, Advice::Wait(_))
    }
}

/// Why the server gave no delay.
#[derive(Debug, thiserror::Error)]
pub enum JarlError {
    /// No connection could be had, or it broke.
    #[error("cannot reach the JARL server: {0}")]
    Unreachable(#[from] io::Error),
    /// There was no connection in time, or no whole answer.
    #[error("the JARL server did not answer in time")]
    TimedOut,
    /// The answer is not a number of seconds. An empty one is none: the server would not book.
    #[error("the JARL server's answer is not a number of seconds")]
    Unreadable,
}

impl JarlClient {
    /// A client of the server at `HOST:PORT`. Nothing is sent; a name is looked up for every call.
    #[must_use]
    pub fn new(server: impl Into<String>) -> Self {
        let server = server.into();
        Self { server, connect_timeout: CONNECT_TIMEOUT, read_timeout: READ_TIMEOUT }
    }

    /// The same client with other timeouts: for the connection, and for the whole answer.
    #[must_use]
    pub fn with_timeouts(self, connect: Duration, read: Duration) -> Self {
        Self { connect_timeout: connect, read_timeout: read, ..self }
    }

    /// Books one call and returns at once with what to do. The delay runs from now.
    pub async fn ask(&self) -> Advice {
        match self.delay().await {
            Ok(delay) => Advice::Wait(delay),
            Err(error) => Advice::GoOn(error),
        }
    }

    /// Books one call and returns when it may be made, or at once if the server gave no delay.
    pub async fn wait(&self) -> Advice {
        let advice = self.ask().await;
        sleep(advice.delay()).await;
        advice
    }

    /// Books one call and returns its delay, for callers with a fall-back of their own.
    ///
    /// # Errors
    /// If the server gave no delay.
    pub async fn delay(&self) -> Result<Duration, JarlError> {
        let connecting = TcpStream::connect(&self.server);
        let stream =
            timeout(self.connect_timeout, connecting).await.map_err(|_| JarlError::TimedOut)??;
        let mut room = [0; READ_BYTES_MAX];
        let reading = read_to_end(&stream, &mut room);
        let answer =
            timeout(self.read_timeout, reading).await.map_err(|_| JarlError::TimedOut)??;
        parse(answer).map_err(|_| JarlError::Unreadable)
    }
}

/// Reads up to the end of the stream, or until there is no room: no answer is that long.
async fn read_to_end<'r>(stream: &TcpStream, room: &'r mut [u8]) -> io::Result<&'r [u8]> {
    let mut held = 0;
    while held < room.len() {
        stream.readable().await?;
        match stream.try_read(&mut room[held..]) {
            Ok(0) => break,
            Ok(count) => held += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(&room[..held])
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::*;

    /// No test is ever this slow.
    const PATIENCE: Duration = Duration::from_secs(3600);

    /// A server that writes these pieces to one caller and closes, or keeps the connection open.
    async fn server(pieces: Vec<&'static [u8]>, closes: bool) -> JarlClient {
        let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = JarlClient::new(door.local_addr().unwrap().to_string());
        tokio::spawn(async move {
            let (caller, _) = door.accept().await.unwrap();
            caller.set_nodelay(true).unwrap();
            for piece in pieces {
                caller.writable().await.unwrap();
                assert_eq!(caller.try_write(piece).unwrap(), piece.len());
                tokio::task::yield_now().await;
            }
            if !closes {
                std::future::pending::<()>().await;
            }
        });
        client.with_timeouts(PATIENCE, PATIENCE)
    }

    async fn told(pieces: Vec<&'static [u8]>) -> Advice {
        server(pieces, true).await.ask().await
    }

    #[tokio::test]
    async fn a_delay_is_told_apart_from_none() {
        for (answer, delay) in [(&b"0.000"[..], 0), (b"0.0", 0), (b"2.667", 2_667), (b"7", 7_000)] {
            let advice = told(vec![answer]).await;
            assert!(advice.is_booked());
            assert_eq!(advice.delay(), Duration::from_millis(delay));
        }
        let advice = told(vec![b"1", b"2.", b"500"]).await;
        assert_eq!(advice.delay(), Duration::from_millis(12_500), "in any pieces");
    }

    #[tokio::test]
    async fn what_is_no_number_is_no_advice() {
        for answer in [&b""[..], b"-1.0", b"nan", b"soon", b"0.000\n", &[b'1'; 4096]] {
            let advice = told(vec![answer]).await;
            assert!(matches!(advice, Advice::GoOn(JarlError::Unreadable)), "{advice:?}");
            assert_eq!(advice.delay(), Duration::ZERO);
        }
    }

    #[tokio::test]
    async fn nobody_there_is_no_advice() {
        let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = door.local_addr().unwrap().to_string();
        drop(door);
        let advice = JarlClient::new(server).wait().await;
        assert!(matches!(advice, Advice::GoOn(JarlError::Unreachable(_))), "{advice:?}");
    }

    #[tokio::test]
    async fn silence_is_no_advice() {
        for pieces in [vec![], vec![&b"0.0"[..]]] {
            let silent = server(pieces, false).await;
            let client = silent.with_timeouts(PATIENCE, Duration::from_millis(10));
            let advice = client.ask().await;
            assert!(matches!(advice, Advice::GoOn(JarlError::TimedOut)), "{advice:?}");
        }
    }

    #[tokio::test]
    async fn it_waits_as_long_as_it_is_told() {
        let client = server(vec![b"0.020"], true).await;
        let before = Instant::now();
        let advice = client.wait().await;
        // A lower bound, which no slow machine can break.
        assert!(before.elapsed() >= Duration::from_millis(20));
        assert_eq!(advice.delay(), Duration::from_millis(20));
    }
}
