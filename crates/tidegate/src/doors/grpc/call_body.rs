//! What a client sends in one call: its bytes are counted as held, and its messages must be whole
//! in time. What they say is the business of the services.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming};
use tidegate_envoy::proto::MESSAGE_BYTES_MAX;
use tidegate_envoy::report_pieces::ReportPieces;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::call_counts::{CallCounts, Sends};
use crate::doors::io::held_bytes::CallBytes;

/// How long a client may take for a message, and for the end of a call that has only one.
const MESSAGE_WAIT_MAX: Duration = Duration::from_secs(10);
/// What stands before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// The body of a call. A message is kept until it is whole, and then handed on at once: the decoder
/// would make room for its length, which a client may declare without sending it.
pub(super) struct CallBody {
    body: Incoming,
    has_ended: bool,
    held: Arc<CallBytes>,
    counts: Arc<CallCounts>,
    /// Whether the client may send many messages, at any time.
    is_stream: bool,
    messages: Messages,
    /// What has come of a message that is not whole.
    begun: BytesMut,
    /// In place of both: reports are handed on in pieces.
    reports: Option<ReportPieces>,
    /// What came behind it and is no data.
    trailers: Option<Frame<Bytes>>,
    /// When the client is too slow. Set only when something is waited for: most calls are whole
    /// when they are seen.
    too_slow: Option<Pin<Box<Sleep>>>,
}

impl CallBody {
    pub(super) fn new(
        body: Incoming,
        held: Arc<CallBytes>,
        counts: Arc<CallCounts>,
        sends: Sends,
    ) -> Self {
        Self {
            body,
            has_ended: false,
            held,
            counts,
            is_stream: sends != Sends::OneMessage,
            messages: Messages::default(),
            begun: BytesMut::new(),
            reports: (sends == Sends::Reports).then(ReportPieces::default),
            trailers: None,
            too_slow: None,
        }
    }

    /// Takes in what has come, and returns what can be handed on.
    fn see(&mut self, bytes: Bytes) -> Result<Option<Bytes>, Status> {
        if !self.held.take(bytes.len()) {
            return Err(self.counts.overload());
        }
        if let Some(reports) = &mut self.reports {
            reports.add(&bytes);
            return Ok(self.next_piece());
        }
        let (held, ended) = (self.begun.len() + bytes.len(), self.messages.see(&bytes));
        let left = match ended {
            // The decoder refuses it by its length.
            _ if self.messages.lacking > MESSAGE_BYTES_MAX => 0,
            Some(left) => left,
            None => held,
        };
        if ended.is_some() && self.is_stream {
            // What was whole is answered and forgotten, and the next message has its own time.
            self.held.give_back(held - left);
            self.too_slow = None;
        }
        if left == 0 && self.begun.is_empty() {
            return Ok(Some(bytes));
        }
        self.begun.extend_from_slice(&bytes);
        let whole = self.begun.split_to(held - left);
        Ok((!whole.is_empty()).then(|| whole.freeze()))
    }

    /// The next piece of a report. It is answered and forgotten, and what follows has its own time.
    fn next_piece(&mut self) -> Option<Bytes> {
        let reports = self.reports.as_mut()?;
        let held = reports.held();
        let piece = reports.next_piece()?;
        self.held.give_back(held - reports.held());
        self.too_slow = None;
        Some(piece)
    }

    /// Whether the client owes nothing.
    fn is_between(&self) -> bool {
        match &self.reports {
            Some(reports) => reports.is_between(),
            None => self.is_stream && self.messages.is_between(),
        }
    }

    /// Waits for the client, but not for ever.
    fn poll_too_slow(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        if self.is_between() {
            return Poll::Pending;
        }
        let sleep = self.too_slow.get_or_insert_with(|| Box::pin(sleep(MESSAGE_WAIT_MAX)));
        ready!(sleep.as_mut().poll(context));
        Poll::Ready(self.counts.too_slow())
    }

    /// What is left when the client has ended its stream: a message that is not whole is handed on
    /// for the decoder to refuse, before what came behind it.
    fn rest(&mut self) -> Option<Frame<Bytes>> {
        let begun = match &mut self.reports {
            Some(reports) => reports.rest(),
            None => self.begun.split().freeze(),
        };
        if begun.is_empty() { self.trailers.take() } else { Some(Frame::data(begun)) }
    }
}

impl Body for CallBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(piece) = self.next_piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        while !self.has_ended {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
                return self.poll_too_slow(context).map(|status| Some(Err(status.into())));
            };
            match frame.transpose()?.map(Frame::into_data) {
                Some(Ok(bytes)) => {
                    if let Some(bytes) = self.see(bytes)? {
                        return Poll::Ready(Some(Ok(Frame::data(bytes))));
                    }
                }
                Some(Err(trailers)) => self.trailers = Some(trailers),
                None => self.has_ended = true,
            }
        }
        Poll::Ready(self.rest().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        let held = self.reports.as_ref().map_or(0, ReportPieces::held) + self.begun.len();
        self.body.is_end_stream() && held == 0 && self.trailers.is_none()
    }
}

/// Where messages begin and end in the bytes of a call.
#[derive(Debug, Default)]
struct Messages {
    /// Bytes of a prefix that is not whole, and the length that they say so far.
    prefix: usize,
    length: usize,
    /// Bytes that the message still lacks.
    lacking: usize,
    has_seen_one: bool,
}

impl Messages {
    /// Takes in the next bytes. If a message ended in them: how many bytes there are of the next.
    fn see(&mut self, bytes: &[u8]) -> Option<usize> {
        let (mut rest, mut begun) = (bytes, None);
        while let Some((byte, behind)) = rest.split_first() {
            if self.lacking > 0 {
                let taken = self.lacking.min(rest.len());
                self.lacking -= taken;
                rest = &rest[taken..];
            } else {
                if self.prefix > 0 {
                    self.length = self.length << 8 | usize::from(*byte);
                }
                self.prefix += 1;
                rest = behind;
                if self.prefix == PREFIX_BYTES {
                    (self.prefix, self.lacking, self.length) = (0, self.length, 0);
                }
            }
            if self.prefix == 0 && self.lacking == 0 {
                self.has_seen_one = true;
                begun = Some(rest.len());
            }
        }
        begun
    }

    /// Whether the client owes nothing: there was a message, and no other has begun.
    fn is_between(&self) -> bool {
        self.has_seen_one && self.prefix == 0 && self.lacking == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two messages, one of them empty, in pieces of every size.
    #[test]
    fn messages_end_where_their_prefixes_say() {
        let said = b"\0\0\0\0\x03abc\0\0\0\0\0\0\0\0\x01\0";
        let ends = [8, 13];
        for size in 1..=said.len() {
            let (mut messages, mut seen) = (Messages::default(), 0);
            for piece in said.chunks(size) {
                let before = seen;
                seen += piece.len();
                let last = ends.iter().rev().find(|end| (before + 1..=seen).contains(*end));
                assert_eq!(messages.see(piece), last.map(|end| seen - end), "{size}: {seen}");
                assert_eq!(messages.is_between(), ends.contains(&seen), "{size}: {seen}");
            }
        }
    }
}
