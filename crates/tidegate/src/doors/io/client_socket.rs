//! A client's socket on tokio, which hyper reads and writes. A request that waits can watch at the
//! same time whether the client closes the connection.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The socket. The reading half is tokio's own: it knows when a read has emptied the socket, and
/// saves the read that would find nothing.
pub(crate) struct ClientSocket {
    reader: OwnedReadHalf,
    writer: Arc<OwnedWriteHalf>,
}

/// Watches for the end of what a client sends.
#[derive(Clone)]
pub(crate) struct CloseWatch {
    socket: Arc<OwnedWriteHalf>,
    tls: Option<Arc<dyn PollEnd>>,
}

/// Looks for an end that is not that of the socket.
pub(super) trait PollEnd: Send + Sync {
    fn poll_end(&self, context: &mut Context<'_>) -> Poll<()>;
}

impl CloseWatch {
    /// The same for a client that may end TLS and leave its socket open.
    pub(super) fn with_tls(self, tls: Arc<dyn PollEnd>) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Waits until the client has closed its sending side, whether or not all before that was read.
    pub(crate) async fn closed(&self) {
        // This interest includes the end of the stream and not what there is to read before it.
        let socket = self.socket.ready(Interest::PRIORITY);
        match &self.tls {
            None => drop(socket.await),
            Some(tls) => tokio::select! {
                _ = socket => {}
                () = poll_fn(|context| tls.poll_end(context)) => {}
            },
        }
    }
}

impl ClientSocket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { reader, writer: Arc::new(writer) }
    }

    pub(crate) fn close_watch(&self) -> CloseWatch {
        CloseWatch { socket: self.writer.clone(), tls: None }
    }

    fn poll_write_with(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let stream: &TcpStream = (*self.writer).as_ref();
        loop {
            ready!(stream.poll_write_ready(context))?;
            match write(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A head without a body is one part, and a plain write costs the kernel less.
        if let [whole] = parts {
            return self.poll_write(context, whole);
        }
        self.poll_write_with(context, |stream| stream.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream: &TcpStream = (*self.writer).as_ref();
        Poll::Ready(rustix::net::shutdown(stream, rustix::net::Shutdown::Write).map_err(Into::into))
    }
}
