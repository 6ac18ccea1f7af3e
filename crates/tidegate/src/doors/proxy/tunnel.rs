//! A tunnel: a client's connection and one to the upstream that have switched to another protocol,
//! say WebSocket. Bytes are copied in both directions as they come.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;

use super::MaybeTls;
use super::bodies::Finish;
use super::connection::read_early;
use super::ticks::{Deadline, Tick, Ticks};

/// Bytes that are held in each direction while the other side is slow.
const TUNNEL_BYTES_MAX: usize = 16 << 10;

/// A tunnel that begins once the response to its request is sent.
pub(super) struct Tunnel {
    upstream: MaybeTls<TcpStream>,
    /// What the upstream has sent already.
    early: BytesMut,
    /// The use is held for as long as the tunnel is open.
    finish: Finish,
}

impl Tunnel {
    pub(super) fn new((upstream, early): (MaybeTls<TcpStream>, BytesMut), finish: Finish) -> Self {
        Self { upstream, early, finish }
    }

    /// Copies until both sides have closed, one breaks off, or neither has sent anything for
    /// `timeout`.
    pub(super) async fn run<C>(self, client: C, ticks: &Rc<Ticks>, timeout: Tick)
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let Self { upstream, early, mut finish } = self;
        let deadline = &ticks.deadline();
        deadline.set(timeout);
        let mut client = Side { stream: client, early: BytesMut::new(), deadline, timeout };
        let mut upstream = Side { stream: upstream, early, deadline, timeout };
        let size = TUNNEL_BYTES_MAX;
        let mut copying =
            pin!(copy_bidirectional_with_sizes(&mut client, &mut upstream, size, size));
        let copied = poll_fn(|context| match copying.as_mut().poll(context) {
            Poll::Ready(copied) => Poll::Ready(copied.ok()),
            Poll::Pending => deadline.poll(context).map(|()| None),
        });
        if let Some((_, to_client)) = copied.await {
            finish.sent(usize::try_from(to_client).unwrap_or(usize::MAX));
            finish.complete();
        }
    }
}

/// One side of a tunnel. Whatever it sends puts the deadline of the tunnel off.
struct Side<'a, S> {
    stream: S,
    /// What was read of it before the tunnel began.
    early: BytesMut,
    deadline: &'a Deadline,
    timeout: Tick,
}

impl<S: AsyncRead + Unpin> AsyncRead for Side<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if read_early(&mut self.early, buffer) {
            return Poll::Ready(Ok(()));
        }
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.deadline.set(self.timeout);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Side<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
