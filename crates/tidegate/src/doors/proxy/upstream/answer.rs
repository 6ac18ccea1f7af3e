//! The body of an answer, however it comes, and what it comes over.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};

use super::super::bodies::Broken;
use super::super::streams::Socket;
use super::Stream;
use super::line::Line;

/// What is left of an answer.
pub(in super::super) enum Answer {
    /// Over a connection of its own.
    Line(Box<Line>),
    /// Over a stream of one that others use, too.
    Stream(Incoming, #[expect(dead_code, reason = "it is held for its end")] Stream),
}

impl Answer {
    /// The next part of it.
    pub(in super::super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self {
            Answer::Line(line) => line.poll_body(context),
            Answer::Stream(incoming, _) => {
                Pin::new(incoming).poll_frame(context).map_err(Broken::from)
            }
        }
    }

    /// Whether nothing more will come.
    pub(in super::super) fn is_end_stream(&self) -> bool {
        match self {
            Answer::Line(line) => line.is_through(),
            Answer::Stream(incoming, _) => incoming.is_end_stream(),
        }
    }

    pub(in super::super) fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Line(line) => line.size_hint(),
            Answer::Stream(incoming, _) => incoming.size_hint(),
        }
    }

    /// Whether what it comes over can go on as something else than HTTP.
    pub(in super::super) fn may_switch(&self) -> bool {
        matches!(self, Answer::Line(line) if line.may_switch())
    }

    /// What it comes over once it does, with what was read of that already.
    pub(in super::super) fn into_socket(self) -> Option<(Socket, BytesMut)> {
        match self {
            Answer::Line(line) => line.into_socket(),
            Answer::Stream(..) => None,
        }
    }
}
