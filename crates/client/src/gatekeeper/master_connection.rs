//! The connection to a master: one task connects, shakes hands and sends what the queue holds.
//!
//! No request waits for it. While there is no master, or one that does not read, accounting is
//! dropped; once a master is there again, accounting is sent again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tidegate_wire::zmtp::{
    GREETING_BYTES, Said, ZmtpFault, check_greeting, greeting, parse, write_pong, write_ready,
};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::core::Core;
use super::queue::SendBuffer;
use super::stats::count;

/// How long connecting and shaking hands may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The connection to a master that reads nothing for so long is closed and made again.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The first and the longest pause before connecting again.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Room for what a master sends here; a frame that does not fit ends the connection.
const READ_BYTES: usize = 8 << 10;
/// The most topics that a master may subscribe to.
const TOPICS_MAX: usize = 8192;

/// Sends accounting to the master of this number for ever.
pub(super) async fn run(core: Arc<Core>, master: usize, address: String, gather: Duration) {
    let mut pause = PAUSE_MIN;
    loop {
        let shaking = timeout(HANDSHAKE_TIMEOUT, MasterConnection::open(&core, master, &address));
        if let Ok(Ok(mut connection)) = shaking.await {
            count(&core.counts.connects);
            pause = PAUSE_MIN;
            // Whatever ended it, the connection is made again.
            let _ = connection.serve(gather).await;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// One connection.
struct MasterConnection<'a> {
    core: &'a Core,
    master: usize,
    stream: TcpStream,
    /// Bytes from the master that are not parsed yet.
    heard: Vec<u8>,
    topics: Vec<Box<[u8]>>,
    spare: SendBuffer,
}

impl Drop for MasterConnection<'_> {
    fn drop(&mut self) {
        self.topics.clear();
        self.apply_topics();
        // What is still in the queue was meant for this connection.
        let queue = &self.core.masters[self.master].queue;
        for stripe in 0..queue.stripes() {
            self.lose();
            queue.take(stripe, &mut self.spare);
        }
        self.lose();
    }
}

impl<'a> MasterConnection<'a> {
    async fn open(core: &'a Core, master: usize, address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let spare = core.masters[master].queue.spare();
        let heard = Vec::with_capacity(READ_BYTES);
        let mut connection = Self { core, master, stream, heard, topics: Vec::new(), spare };
        let mut own = greeting().to_vec();
        write_ready(&mut own);
        connection.send(&own).await?;
        while connection.heard.len() < GREETING_BYTES {
            connection.read().await?;
        }
        let (theirs, _) =
            connection.heard.split_first_chunk().ok_or_else(|| wrong(ZmtpFault::Greeting))?;
        check_greeting(theirs).map_err(wrong)?;
        connection.heard.drain(..GREETING_BYTES);
        loop {
            if let Some((frame, used)) = parse(&connection.heard).map_err(wrong)? {
                frame.check_ready().map_err(wrong)?;
                connection.heard.drain(..used);
                return Ok(connection);
            }
            connection.read().await?;
        }
    }

    /// Sends until the connection ends.
    async fn serve(&mut self, gather: Duration) -> io::Result<()> {
        loop {
            self.listen().await?;
            while self.read_some()? {
                self.listen().await?;
            }
            // While there is much to send it is gathered; after a pause it is sent at once.
            if self.flush().await? {
                if !gather.is_zero() {
                    sleep(gather).await;
                }
                continue;
            }
            let queue = &self.core.masters[self.master].queue;
            tokio::select! {
                () = queue.wait_for_messages() => {}
                ready = self.stream.readable() => ready?,
            }
        }
    }

    /// Sends what the queue holds. `false` if that was nothing.
    async fn flush(&mut self) -> io::Result<bool> {
        let queue = &self.core.masters[self.master].queue;
        let mut any = false;
        for stripe in 0..queue.stripes() {
            if queue.take(stripe, &mut self.spare) {
                any = true;
                let buffer = std::mem::take(&mut self.spare);
                let sent = self.send(buffer.bytes()).await;
                self.spare = buffer;
                sent?;
                self.core.counts.sent.fetch_add(self.spare.messages(), Relaxed);
                self.spare.clear();
            }
        }
        Ok(any)
    }

    /// TaskCounters what was taken to be sent and will not be.
    fn lose(&mut self) {
        self.core.counts.dropped_lost.fetch_add(self.spare.messages(), Relaxed);
        self.spare.clear();
    }

    async fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            match self.stream.try_write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) if written == bytes.len() => return Ok(()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    timeout(STALL_TIMEOUT, self.stream.writable()).await??;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for more bytes from the master.
    async fn read(&mut self) -> io::Result<()> {
        while !self.read_some()? {
            self.stream.readable().await?;
        }
        Ok(())
    }

    /// Reads what the master has sent. `false` if there is nothing new.
    fn read_some(&mut self) -> io::Result<bool> {
        let mut room = [0; 2048];
        let most = room.len().min(READ_BYTES - self.heard.len());
        if most == 0 {
            return Err(wrong(ZmtpFault::Frame));
        }
        match self.stream.try_read(&mut room[..most]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.heard.extend_from_slice(&room[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Parses what the master has sent so far, and answers.
    async fn listen(&mut self) -> io::Result<()> {
        let mut answer = Vec::new();
        let (mut at, mut changed) = (0, false);
        while let Some((frame, used)) = parse(&self.heard[at..]).map_err(wrong)? {
            match frame.said() {
                Said::Subscribe(topic) => {
                    if self.topics.len() >= TOPICS_MAX {
                        return Err(wrong(ZmtpFault::Frame));
                    }
                    self.topics.push(topic.into());
                    changed = true;
                }
                Said::Cancel(topic) => {
                    // A topic must be cancelled as often as it was subscribed to.
                    if let Some(place) = self.topics.iter().position(|other| **other == *topic) {
                        self.topics.swap_remove(place);
                        changed = true;
                    }
                }
                Said::Ping(context) => write_pong(context, &mut answer),
                Said::Else => {}
            }
            at += used;
        }
        self.heard.drain(..at);
        if changed {
            self.apply_topics();
        }
        if answer.is_empty() { Ok(()) } else { self.send(&answer).await }
    }

    /// From now on only domains that the master subscribed to are accounted for.
    fn apply_topics(&self) {
        let mut more = false;
        for served in self.core.of(self.master) {
            let heard = self.topics.iter().any(|topic| served.topic.starts_with(topic));
            more |= !served.heard.swap(heard, Relaxed) && heard;
        }
        if more {
            self.core.connection_opened(self.master);
        } else {
            self.core.masters[self.master].changed.notify_waiters();
        }
    }
}

fn wrong(fault: ZmtpFault) -> io::Error {
    let text = match fault {
        ZmtpFault::Greeting => "no ZMTP 3 greeting, or one that asks for security",
        ZmtpFault::Role => "the socket is not a subscriber",
        ZmtpFault::Refused => "the other side refuses",
        ZmtpFault::Frame => "a frame that is malformed or too long",
    };
    io::Error::new(io::ErrorKind::InvalidData, text)
}
