//! The body of an upstream's response, over HTTP/1.1 or HTTP/2.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};

use super::connection::UpstreamConnection;

/// What is left of a response, and the connection or stream that it comes over.
pub(in super::super) enum UpstreamBody {
    Http1(Box<UpstreamConnection>),
    /// The second part counts the stream until the body is dropped.
    Http2(Incoming, #[expect(dead_code, reason = "it is held until the end")] Rc<()>),
}

impl UpstreamBody {
    pub(in super::super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self {
            UpstreamBody::Http1(connection) => connection.poll_body(context),
            UpstreamBody::Http2(incoming, _) => {
                Pin::new(incoming).poll_frame(context).map_err(io::Error::other)
            }
        }
    }

    pub(in super::super) fn is_end_stream(&self) -> bool {
        match self {
            UpstreamBody::Http1(connection) => connection.is_body_over(),
            UpstreamBody::Http2(incoming, _) => incoming.is_end_stream(),
        }
    }

    pub(in super::super) fn size_hint(&self) -> SizeHint {
        match self {
            UpstreamBody::Http1(connection) => connection.size_hint(),
            UpstreamBody::Http2(incoming, _) => incoming.size_hint(),
        }
    }
}
