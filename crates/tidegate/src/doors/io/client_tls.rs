//! A client's TLS stream on tokio, which hyper reads and writes. A request that waits can watch at
//! the same time whether the client ends TLS: no end of the socket needs to follow.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::accept::is_tls_fault;
use super::client_socket::{CloseWatch, PollEnd};

/// The most bytes behind a waiting request that are read in order to find the end behind them.
const AHEAD_BYTES_MAX: usize = 16 << 10;

/// One handle of the stream: the connection has one, and a request that waits has another. One task
/// polls both, so the lock is always free.
pub(crate) struct ClientTls<S>(Arc<Mutex<Tls<S>>>);

struct Tls<S> {
    stream: TlsStream<S>,
    /// Bytes that were read before hyper asked for them.
    ahead: BytesMut,
    /// What the client sent was no TLS.
    is_broken: bool,
}

impl<S> Clone for ClientTls<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> ClientTls<S> {
    pub(crate) fn new(stream: TlsStream<S>) -> Self {
        Self(Arc::new(Mutex::new(Tls { stream, ahead: BytesMut::new(), is_broken: false })))
    }

    /// Whether something that the client sent was no TLS.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.lock().is_broken
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> ClientTls<S> {
    /// Lets the watch of the socket look for the end of TLS, too.
    pub(crate) fn watched_by(&self, socket: CloseWatch) -> CloseWatch {
        socket.with_tls(self.0.clone())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Tls<S> {
    fn poll_stream(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        self.is_broken |= read.as_ref().is_err_and(is_tls_fault);
        Poll::Ready(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> PollEnd for Mutex<Tls<S>> {
    fn poll_end(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut tls = self.lock();
        loop {
            let mut bytes = [0; 1 << 10];
            let room = bytes.len().min(AHEAD_BYTES_MAX - tls.ahead.len());
            if room == 0 {
                // Only the end of the socket is noticed from here on.
                return Poll::Pending;
            }
            let mut buffer = ReadBuf::new(&mut bytes[..room]);
            let read = ready!(tls.poll_stream(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
            tls.ahead.extend_from_slice(buffer.filled());
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientTls<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut tls = self.0.lock();
        if tls.ahead.is_empty() {
            return tls.poll_stream(context, buffer);
        }
        let count = tls.ahead.len().min(buffer.remaining());
        buffer.put_slice(&tls.ahead[..count]);
        tls.ahead.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientTls<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0.lock().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0.lock().stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_shutdown(context)
    }
}
