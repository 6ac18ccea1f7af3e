//! Writes a request over HTTP/1.1. The head is written anew from what was parsed, and the body is
//! framed in the one way that the head says.
//!
//! It is bound to no connection: as long as no byte was written, another connection can take it.

use std::io::{self, IoSlice, Write as _};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::Request;
use hyper::body::{Body, Bytes, Frame};
use hyper::header::{HeaderMap, HeaderName, HeaderValue, TRAILER};
use tokio::io::AsyncWrite;

/// What follows a chunk, and what follows the last one.
const CHUNK_END: &[u8] = b"\r\n";
const LAST_CHUNK_END: &[u8] = b"\r\n0\r\n\r\n";

/// Why a request was not sent whole.
#[derive(Debug)]
pub(super) enum Stuck {
    /// The client's body did not come.
    Body,
    /// The upstream takes no more.
    Upstream,
}

impl From<io::Error> for Stuck {
    fn from(_: io::Error) -> Self {
        Stuck::Upstream
    }
}

/// A request, or what is left of it.
pub(super) struct Sending<B> {
    /// The head, or the line before a chunk.
    front: Vec<u8>,
    /// How many bytes of it were written.
    written: usize,
    touched: bool,
    /// Whether the socket holds nothing back: TLS buffers what was written.
    flushed: bool,
    /// A part of the body.
    data: Bytes,
    back: &'static [u8],
    /// The rest of the body.
    upload: Option<B>,
    has_body: bool,
    length: Length,
}

/// How the upstream finds the end of the body.
#[derive(Debug, PartialEq, Eq)]
enum Length {
    /// Nothing more comes.
    Over,
    /// So many bytes come.
    Known(u64),
    /// Chunks, and the trailers that were announced.
    Chunks(Vec<HeaderName>),
}

impl<B> Default for Sending<B> {
    fn default() -> Self {
        Self {
            front: Vec::new(),
            written: 0,
            touched: false,
            flushed: true,
            data: Bytes::new(),
            back: b"",
            upload: None,
            has_body: false,
            length: Length::Over,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Sending<B> {
    /// Begins with the head of a request, and with its body if it has one.
    pub(super) fn begin<T>(&mut self, request: &Request<T>, body: Option<B>) {
        self.front.clear();
        (self.written, self.touched) = (0, false);
        let front = &mut self.front;
        // The path of a target that has none is `/`.
        let target = request.uri().path_and_query();
        let (path, query) = target.map_or(("/", None), |target| (target.path(), target.query()));
        let mark = if query.is_some() { "?" } else { "" };
        let target = [" ", path, mark, query.unwrap_or(""), " HTTP/1.1\r\n"];
        front.extend_from_slice(request.method().as_str().as_bytes());
        target.iter().for_each(|part| front.extend_from_slice(part.as_bytes()));
        let mut sized = false;
        for (name, value) in request.headers() {
            // The length is written from the body that is sent.
            match name.as_str() {
                "content-length" => sized = true,
                "transfer-encoding" => {}
                _ => write_field(front, name, value),
            }
        }
        self.has_body = body.is_some();
        self.length = match body.as_ref().map(|body| body.size_hint().exact()) {
            None => {
                if sized {
                    front.extend_from_slice(b"content-length: 0\r\n");
                }
                Length::Over
            }
            Some(Some(length)) => {
                // Writing to a vector does not fail.
                let _ = write!(front, "content-length: {length}\r\n");
                Length::Known(length)
            }
            Some(None) => {
                front.extend_from_slice(b"transfer-encoding: chunked\r\n");
                Length::Chunks(announced(request.headers()))
            }
        };
        self.upload = body;
        front.extend_from_slice(b"\r\n");
    }

    /// Whether no byte was written.
    pub(super) fn is_untouched(&self) -> bool {
        !self.touched
    }

    /// Whether all of it was sent.
    pub(super) fn is_over(&self) -> bool {
        self.length == Length::Over && self.is_written() && self.flushed
    }

    /// Whether it has, or had, a body.
    pub(super) fn has_body(&self) -> bool {
        self.has_body
    }

    /// Goes back to the beginning, for another connection. With a body, only while it is untouched.
    pub(super) fn rewind(&mut self) {
        (self.written, self.touched) = (0, false);
    }

    fn is_written(&self) -> bool {
        self.written == self.front.len() && self.data.is_empty() && self.back.is_empty()
    }

    /// Sends until all of it is sent.
    pub(super) fn poll<S: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        socket: &mut S,
    ) -> Poll<Result<(), Stuck>> {
        loop {
            // The first part of a body is sent together with the head, if it is there.
            let fetched = match self.data.is_empty() && self.back.is_empty() {
                true => self.fetch(context)?,
                false => Poll::Ready(()),
            };
            if self.is_written() {
                ready!(Pin::new(&mut *socket).poll_flush(context))?;
                self.flushed = true;
                ready!(fetched);
                return Poll::Ready(Ok(()));
            }
            ready!(self.write(context, socket))?;
        }
    }

    /// Takes the next part of the body, if there is one and it has come.
    fn fetch(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, Stuck> {
        while self.length != Length::Over
            && let Some(upload) = &mut self.upload
        {
            let frame = match Pin::new(upload).poll_frame(context) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Some(Err(_))) => return Err(Stuck::Body),
                Poll::Ready(Some(Ok(frame))) => Some(frame),
                Poll::Ready(None) => None,
            };
            if self.is_written() {
                self.front.clear();
                self.written = 0;
            }
            match frame.map(Frame::into_data) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    self.add(data)?;
                    break;
                }
                Some(Err(frame)) => self.end(frame.trailers_ref())?,
                None => self.end(None)?,
            }
        }
        Ok(Poll::Ready(()))
    }

    fn add(&mut self, data: Bytes) -> Result<(), Stuck> {
        let last = self.upload.as_ref().is_none_or(Body::is_end_stream);
        match &mut self.length {
            Length::Over => return Err(Stuck::Body),
            Length::Known(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(Stuck::Body)?;
                if *left == 0 {
                    self.length = Length::Over;
                } else if last {
                    return Err(Stuck::Body);
                }
            }
            Length::Chunks(_) => {
                // Writing to a vector does not fail.
                let _ = write!(self.front, "{:x}\r\n", data.len());
                self.back = if last { LAST_CHUNK_END } else { CHUNK_END };
                if last {
                    self.length = Length::Over;
                }
            }
        }
        self.data = data;
        self.drop_if_over();
        Ok(())
    }

    /// Drops the body once all of it has come: that ends the client's request.
    fn drop_if_over(&mut self) {
        if self.length == Length::Over {
            self.upload = None;
        }
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), Stuck> {
        match mem::replace(&mut self.length, Length::Over) {
            Length::Known(1..) => return Err(Stuck::Body),
            Length::Known(0) | Length::Over => {}
            Length::Chunks(announced) => {
                self.front.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten() {
                    if announced.contains(name) {
                        write_field(&mut self.front, name, value);
                    }
                }
                self.front.extend_from_slice(b"\r\n");
            }
        }
        self.drop_if_over();
        Ok(())
    }

    /// Writes once.
    fn write<S: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        socket: &mut S,
    ) -> Poll<io::Result<()>> {
        let front = &self.front[self.written..];
        let socket = Pin::new(socket);
        // A plain write costs the kernel less.
        let mut written = if self.data.is_empty() && self.back.is_empty() {
            ready!(socket.poll_write(context, front))?
        } else {
            let parts = [front, &self.data, self.back].map(IoSlice::new);
            ready!(socket.poll_write_vectored(context, &parts))?
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        (self.touched, self.flushed) = (true, false);
        let of_front = written.min(front.len());
        self.written += of_front;
        written -= of_front;
        let of_data = written.min(self.data.len());
        self.data = self.data.slice(of_data..);
        self.back = &self.back[written - of_data..];
        Poll::Ready(Ok(()))
    }
}

fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// The trailers that the head announces.
fn announced(headers: &HeaderMap) -> Vec<HeaderName> {
    let lists = headers.get_all(TRAILER).iter();
    let names = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::task::Waker;

    use hyper::body::SizeHint;
    use proptest::prelude::*;

    use super::super::versions::origin_form;
    use super::*;

    /// A body whose parts come one by one, with a pause before those that are `None`.
    struct Parts {
        parts: VecDeque<Option<Vec<u8>>>,
        length: Option<u64>,
    }

    impl Body for Parts {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.parts.pop_front() {
                None => Poll::Ready(None),
                Some(None) => Poll::Pending,
                Some(Some(part)) => Poll::Ready(Some(Ok(Frame::data(part.into())))),
            }
        }

        fn size_hint(&self) -> SizeHint {
            self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
        }
    }

    /// A socket that takes so many bytes at a time, and none now and then.
    struct Narrow {
        takes: Vec<usize>,
        turn: usize,
        /// What it has taken, and how much of that it has sent: all of it at the second request.
        taken: Vec<u8>,
        asked: usize,
        sent: usize,
    }

    impl AsyncWrite for Narrow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let most = self.takes[self.turn % self.takes.len()].min(bytes.len());
            self.turn += 1;
            if most == 0 {
                return Poll::Pending;
            }
            self.taken.extend_from_slice(&bytes[..most]);
            Poll::Ready(Ok(most))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            parts: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            self.poll_write(context, &bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            let taken = self.taken.len();
            if self.asked < taken {
                self.asked = taken;
                return Poll::Pending;
            }
            self.sent = taken;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn request(lines: &[(&'static str, &'static str)]) -> Request<()> {
        let mut request = Request::new(());
        *request.uri_mut() = "/a?b".parse().unwrap();
        for (name, value) in lines {
            request.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        request
    }

    /// All that is written, or why not.
    fn written(sending: &mut Sending<Parts>, takes: Vec<usize>) -> Result<Vec<u8>, Stuck> {
        let mut socket = Narrow { takes, turn: 0, taken: Vec::new(), asked: 0, sent: 0 };
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..10_000 {
            let over = sending.poll(&mut context, &mut socket)?.is_ready();
            assert_eq!(over, sending.is_over());
            if over {
                assert_eq!(socket.sent, socket.taken.len());
                return Ok(socket.taken);
            }
        }
        panic!("it does not end: {:?}", socket.taken.escape_ascii().to_string());
    }

    #[test]
    fn the_body_alone_says_how_long_it_is() {
        let lies = [("host", "h"), ("content-length", "7"), ("transfer-encoding", "chunked")];
        let head = "GET /a?b HTTP/1.1\r\nhost: h\r\n";
        let parts = || VecDeque::from([Some(b"hi".to_vec())]);
        for (body, rest) in [
            (None, "content-length: 0\r\n\r\n"),
            (Some(Parts { parts: parts(), length: Some(2) }), "content-length: 2\r\n\r\nhi"),
            (
                Some(Parts { parts: parts(), length: None }),
                "transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            ),
        ] {
            let mut sending = Sending::default();
            let has_body = body.is_some();
            sending.begin(&request(&lies), body);
            assert!(sending.is_untouched() && sending.has_body() == has_body);
            let bytes = written(&mut sending, vec![1000]).unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), format!("{head}{rest}"));
            assert!(!sending.is_untouched() && sending.has_body() == has_body);
        }
        let mut sending = Sending::default();
        sending.begin(&request(&lies[..1]), None);
        assert_eq!(written(&mut sending, vec![7]).unwrap(), format!("{head}\r\n").as_bytes());
        sending.rewind();
        assert_eq!(written(&mut sending, vec![9]).unwrap(), format!("{head}\r\n").as_bytes());
    }

    #[test]
    fn a_target_without_a_path_gets_one() {
        for (target, path) in [
            ("/", "/"),
            ("*", "*"),
            ("/a%20b?c=?d", "/a%20b?c=?d"),
            ("/a?", "/a?"),
            ("http://h", "/"),
            ("http://h?x=1", "/?x=1"),
            ("http://h#x", "/"),
        ] {
            let mut request = Request::new(());
            *request.uri_mut() = origin_form(&target.parse().unwrap());
            let mut sending = Sending::<Parts>::default();
            sending.begin(&request, None);
            let expected = format!("GET {path} HTTP/1.1\r\n\r\n");
            assert_eq!(written(&mut sending, vec![99]).unwrap(), expected.as_bytes());
        }
    }

    #[test]
    fn a_body_that_is_shorter_or_longer_than_it_says_is_not_sent_as_if_it_were() {
        for length in [1, 3] {
            let parts = [None, Some(b"hi".to_vec()), None].into();
            let mut sending = Sending::default();
            sending.begin(&request(&[]), Some(Parts { parts, length: Some(length) }));
            assert!(matches!(written(&mut sending, vec![5]), Err(Stuck::Body)), "{length}");
        }
    }

    proptest! {
        /// Whatever comes when and whatever the socket takes, the upstream reads the same body.
        #[test]
        fn what_was_given_is_what_is_sent(
            parts in prop::collection::vec(prop::option::of(
                prop::collection::vec(any::<u8>(), 0..50)), 0..8),
            known in any::<bool>(),
            mut takes in prop::collection::vec(0..40_usize, 1..6),
        ) {
            takes.push(1);
            let body: Vec<u8> = parts.iter().flatten().flatten().copied().collect();
            let length = known.then_some(body.len() as u64);
            let mut sending = Sending::default();
            sending.begin(&request(&[]), Some(Parts { parts: parts.into(), length }));
            let bytes = written(&mut sending, takes).unwrap();
            let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let mut read = Vec::new();
            if known {
                read.extend_from_slice(&bytes[head..]);
            } else {
                use tidegate_wire::http1::{Chunks, Part};
                let (mut chunks, mut at) = (Chunks::default(), head);
                loop {
                    match chunks.next(&bytes[at..]).unwrap() {
                        Part::Frame(used) => at += used,
                        Part::Data(data) => {
                            read.extend_from_slice(data);
                            at += data.len();
                        }
                        Part::More => prop_assert!(false, "it is cut off"),
                        Part::End => break,
                    }
                }
                prop_assert_eq!(&bytes[at..], b"\r\n");
            }
            prop_assert_eq!(read, body);
        }
    }
}
