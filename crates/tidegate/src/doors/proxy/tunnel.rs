//! A connection that has stopped being HTTP: bytes in both directions, as they come, for as long as
//! some do.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};

use super::finish::Finish;
use super::streams::{Socket, read_early};
use super::ticks::{Deadline, Tick, Ticks};

/// Bytes that are held in each direction while the other side is slow.
const TUNNEL_BYTES_MAX: usize = 16 << 10;

/// What is needed once the answer that agreed to it is sent.
pub(super) struct Tunnel {
    upstream: Socket,
    /// What the upstream has said already.
    early: BytesMut,
    /// The use is held for as long as the tunnel is open.
    finish: Finish,
}

impl Tunnel {
    pub(super) fn new((upstream, early): (Socket, BytesMut), finish: Finish) -> Self {
        Self { upstream, early, finish }
    }

    /// Copies until both sides have said their last, one breaks off, or both were silent for
    /// `patience`.
    pub(super) async fn run<C>(self, client: C, ticks: &Rc<Ticks>, patience: Tick)
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let Self { upstream, early, mut finish } = self;
        let silence = Silence { deadline: ticks.deadline(), patience };
        silence.begins();
        let mut client = Heard { side: client, early: BytesMut::new(), silence: &silence };
        let mut upstream = Heard { side: upstream, early, silence: &silence };
        let size = TUNNEL_BYTES_MAX;
        let mut copying =
            pin!(copy_bidirectional_with_sizes(&mut client, &mut upstream, size, size));
        let copied = poll_fn(|context| match copying.as_mut().poll(context) {
            Poll::Ready(copied) => Poll::Ready(copied.ok()),
            Poll::Pending => silence.deadline.poll(context).map(|()| None),
        });
        if let Some((_, to_client)) = copied.await {
            finish.sent(usize::try_from(to_client).unwrap_or(usize::MAX));
            finish.whole();
        }
    }
}

/// Since when nobody has said anything.
struct Silence {
    deadline: Deadline,
    patience: Tick,
}

impl Silence {
    fn begins(&self) {
        self.deadline.set(self.patience);
    }
}

/// One side of a tunnel; what it says breaks the silence.
struct Heard<'a, S> {
    side: S,
    /// What it said before it was listened to here.
    early: BytesMut,
    silence: &'a Silence,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if read_early(&mut self.early, buffer) {
            return Poll::Ready(Ok(()));
        }
        let polled = Pin::new(&mut self.side).poll_read(context, buffer);
        if polled.is_ready() {
            self.silence.begins();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.side).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.side).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.side).poll_shutdown(context)
    }
}
