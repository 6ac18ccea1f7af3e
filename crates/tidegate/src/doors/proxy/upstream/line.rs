//! One HTTP/1.1 connection to the upstream, for one request at a time.
//!
//! It has no task of its own: whoever sends a request over it, and then reads the answer's body,
//! moves it on. Only a request whose answer comes before all of it has left goes on leaving by
//! itself, and then the connection is not used again.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, BytesMut};
use hyper::body::{Bytes, Frame, SizeHint};
use hyper::ext::ReasonPhrase;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use tidegate_wire::http1::{self, Chunks, Ending, Field, Head, Part};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _, ReadBuf};
use tokio::task::{JoinHandle, spawn_local};

use super::super::bodies::{Broken, Progress, Upload};
use super::super::streams::Socket;
use super::connect::Counted;
use super::sending::{Sending, Stuck};

/// The most bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Room that is made for a head and what comes with it, and for more of a body in chunks.
const READ_BYTES: usize = 8 << 10;
const CHUNKS_BYTES: usize = 32 << 10;
/// Room that is made for other bodies, and how little of it is worth a read.
const BODY_BYTES: usize = 64 << 10;
const BODY_BYTES_MIN: usize = 4 << 10;
/// Answers that say that the answer is yet to come, for one request.
const INTERIM_MAX: u32 = 32;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The body of the request did not come.
    Body,
    /// The connection ended, before anything of an answer came or in the midst of its head.
    Closed,
    /// What came is no answer.
    Nonsense,
}

/// A connection.
pub(in super::super) struct Line {
    socket: Rc<RefCell<Socket>>,
    /// What was read and is not used.
    incoming: BytesMut,
    /// Room for bodies that need no looking at.
    room: BytesMut,
    sending: Sending<Upload>,
    /// The upstream takes no more of the request.
    stuck: bool,
    to_head: bool,
    interim: u32,
    rest: Rest,
    keeps: bool,
    behind: Option<Behind>,
    /// How far the request's body has come, if there is one.
    progress: Option<Rc<Progress>>,
    _counted: Counted,
}

/// What is left of an answer's body.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Nothing,
    Length(u64),
    Chunks(Chunks),
    UntilClose,
}

/// What goes on leaving after the answer has come, until this is dropped.
struct Behind(JoinHandle<()>);

impl Drop for Behind {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Line {
    pub(super) fn new(socket: Socket, counted: Counted) -> Box<Self> {
        Box::new(Self {
            socket: Rc::new(RefCell::new(socket)),
            incoming: BytesMut::new(),
            room: BytesMut::new(),
            sending: Sending::default(),
            stuck: false,
            to_head: false,
            interim: 0,
            rest: Rest::Nothing,
            keeps: true,
            behind: None,
            progress: None,
            _counted: counted,
        })
    }

    /// Whether another request can go over it, once the answer to the last one is through.
    pub(super) fn is_free(&self) -> bool {
        let read = matches!(self.rest, Rest::Nothing) && self.incoming.is_empty();
        self.keeps && read && !self.stuck && self.behind.is_none() && self.sending.is_over()
    }

    /// Closes it, with the word that TLS wants to be told. What does not leave at once is not
    /// waited for.
    pub(super) fn close(self: Box<Self>) {
        let mut context = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut *self.socket.borrow_mut()).poll_shutdown(&mut context);
    }

    /// Gives back the room that a large answer took.
    pub(super) fn rest(&mut self) {
        self.room = BytesMut::new();
        if self.incoming.capacity() > 2 * READ_BYTES {
            self.incoming = BytesMut::new();
        }
    }

    /// Whether the upstream has not closed it. Whatever it says unasked ends it.
    pub(super) fn lives(&self) -> bool {
        match &mut *self.socket.borrow_mut() {
            // Asks the kernel only if something has happened.
            Socket::Plain(stream) => {
                let read = stream.try_read(&mut [0]);
                read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            Socket::Tls(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                let mut byte = [0];
                let mut room = ReadBuf::new(&mut byte);
                tokio::io::AsyncRead::poll_read(Pin::new(stream), &mut context, &mut room)
                    .is_pending()
            }
        }
    }

    /// Makes ready to send a request, whose body it takes.
    pub(super) fn begin(&mut self, request: &mut Request<Upload>, progress: Option<&Rc<Progress>>) {
        self.progress = progress.cloned();
        let body = mem::replace(request.body_mut(), Upload::none());
        self.sending.begin(request, Some(body).filter(|body| !body.is_none()));
        self.to_head = *request.method() == Method::HEAD;
        self.interim = 0;
    }

    /// Makes ready to send what another connection did not.
    pub(super) fn take_over(&mut self, other: &mut Self) {
        self.sending = mem::take(&mut other.sending);
        self.sending.rewind();
        (self.to_head, self.progress) = (other.to_head, other.progress.take());
    }

    /// Whether nothing of the request has left, for sure: TLS does not say how much has.
    pub(super) fn is_untouched(&self) -> bool {
        let plain = matches!(&*self.socket.borrow(), Socket::Plain(_));
        plain && self.sending.is_untouched()
    }

    /// Whether the request has, or had, a body.
    pub(super) fn has_body(&self) -> bool {
        self.sending.has_body()
    }

    /// Whether anything of an answer has come.
    pub(super) fn has_heard(&self) -> bool {
        self.interim > 0 || !self.incoming.is_empty()
    }

    /// Sends, and reads the head of the answer; `headers` is a map that may be used for it.
    pub(super) fn poll_answer(
        &mut self,
        context: &mut Context<'_>,
        headers: &mut HeaderMap,
    ) -> Poll<Result<Response<()>, Lost>> {
        if !self.stuck && !self.sending.is_over() {
            match self.sending.poll(context, &mut *self.socket.borrow_mut()) {
                Poll::Ready(Err(Stuck::Body)) => return Poll::Ready(Err(Lost::Body)),
                // It may have said why before it closed.
                Poll::Ready(Err(Stuck::Upstream)) => self.stuck = true,
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        loop {
            if !self.incoming.is_empty()
                && let Some(answer) = self.head(headers)?
            {
                self.leave_behind();
                return Poll::Ready(Ok(answer));
            }
            if self.incoming.len() >= HEAD_BYTES_MAX {
                return Poll::Ready(Err(Lost::Nonsense));
            }
            if !matches!(ready!(self.read(context, READ_BYTES)), Ok(1..)) {
                return Poll::Ready(Err(Lost::Closed));
            }
        }
    }

    /// The head of the answer, if all of it has come.
    fn head(&mut self, headers: &mut HeaderMap) -> Result<Option<Response<()>>, Lost> {
        let nonsense = |_: http1::Fault| Lost::Nonsense;
        loop {
            let mut fields = http1::fields();
            let Some(head) = http1::head(&self.incoming, &mut fields).map_err(nonsense)? else {
                return Ok(None);
            };
            let used = head.bytes;
            if used > HEAD_BYTES_MAX {
                return Err(Lost::Nonsense);
            }
            if head.is_interim() {
                self.interim += 1;
                if self.interim > INTERIM_MAX {
                    return Err(Lost::Nonsense);
                }
                self.incoming.advance(used);
                continue;
            }
            let (ending, keeps) = head.ending(self.to_head).map_err(nonsense)?;
            let answer = response(&head, &self.incoming[..used], mem::take(headers));
            self.keeps = keeps;
            self.rest = match ending {
                Ending::Nothing => Rest::Nothing,
                Ending::Length(length) => Rest::Length(length),
                Ending::Chunks => Rest::Chunks(Chunks::default()),
                Ending::Close => Rest::UntilClose,
            };
            self.incoming.advance(used);
            return answer.map(Some).ok_or(Lost::Nonsense);
        }
    }

    /// Reads more, into so much room. How much it was; nothing is the end.
    fn read(&mut self, context: &mut Context<'_>, room: usize) -> Poll<io::Result<usize>> {
        self.incoming.reserve(room);
        let socket = &mut *self.socket.borrow_mut();
        pin!(socket.read_buf(&mut self.incoming)).poll(context)
    }

    /// What has not left yet leaves while the answer is read.
    fn leave_behind(&mut self) {
        if self.stuck || self.sending.is_over() {
            return;
        }
        let (socket, mut sending) = (self.socket.clone(), mem::take(&mut self.sending));
        self.behind = Some(Behind(spawn_local(async move {
            let leaving = poll_fn(|context| sending.poll(context, &mut *socket.borrow_mut()));
            if leaving.await.is_err() {
                // The upstream must not take a part of a body for all of it.
                let shut = |context: &mut Context<'_>| {
                    Pin::new(&mut *socket.borrow_mut()).poll_shutdown(context)
                };
                let _ = poll_fn(shut).await;
            }
        })));
    }

    /// Waits until all of the request has left whose answer is through; what has come of it last is
    /// told by the progress. `None` if all of it has.
    pub(super) fn left_behind(mut self: Box<Self>) -> Option<(Rc<Progress>, impl Future)> {
        let (mut behind, progress) = self.behind.take().zip(self.progress.take())?;
        Some((progress, async move {
            let _left = (&mut behind.0).await;
            drop(self);
        }))
    }

    /// The next part of the answer's body.
    pub(super) fn poll_body(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let polled = match self.rest {
            Rest::Nothing => return Poll::Ready(None),
            Rest::Chunks(chunks) => self.poll_chunks(context, chunks),
            Rest::Length(_) | Rest::UntilClose => self.poll_plain(context),
        };
        polled.map(Result::transpose)
    }

    /// What comes as it is.
    fn poll_plain(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame<Bytes>>, Broken>> {
        let most = match self.rest {
            Rest::Length(left) => usize::try_from(left).unwrap_or(usize::MAX),
            _ => usize::MAX,
        };
        let data = if self.incoming.is_empty() {
            if self.room.capacity() < BODY_BYTES_MIN.min(most) {
                self.room.reserve(BODY_BYTES.min(most));
            }
            let socket = &mut *self.socket.borrow_mut();
            let count = ready!(pin!(socket.read_buf(&mut self.room)).poll(context))?;
            if count == 0 {
                if matches!(self.rest, Rest::Length(_)) {
                    return Poll::Ready(Err(Broken::Cut));
                }
                self.rest = Rest::Nothing;
                return Poll::Ready(Ok(None));
            }
            // What is beyond the end is nobody's; the connection is used no more.
            self.keeps &= count <= most;
            self.room.split().freeze().slice(..count.min(most))
        } else {
            let here = self.incoming.len().min(most);
            let data = Bytes::copy_from_slice(&self.incoming[..here]);
            self.incoming.advance(here);
            data
        };
        if let Rest::Length(left) = &mut self.rest {
            *left -= data.len() as u64;
            if *left == 0 {
                self.rest = Rest::Nothing;
            }
        }
        Poll::Ready(Ok(Some(Frame::data(data))))
    }

    /// What comes in chunks.
    fn poll_chunks(
        &mut self,
        context: &mut Context<'_>,
        mut chunks: Chunks,
    ) -> Poll<Result<Option<Frame<Bytes>>, Broken>> {
        // Whatever it has got to is remembered before anything is waited for.
        loop {
            match chunks.next(&self.incoming).map_err(|_| Broken::Nonsense)? {
                Part::More => ready!(self.read_on(context))?,
                Part::Frame(used) => self.incoming.advance(used),
                Part::Data(data) => {
                    let data = Bytes::copy_from_slice(data);
                    self.incoming.advance(data.len());
                    self.rest = Rest::Chunks(chunks);
                    return Poll::Ready(Ok(Some(Frame::data(data))));
                }
                Part::End => {
                    if let Some(trailers) = self.trailers()? {
                        self.rest = Rest::Nothing;
                        let any = !trailers.is_empty();
                        return Poll::Ready(Ok(any.then(|| Frame::trailers(trailers))));
                    }
                    ready!(self.read_on(context))?;
                }
            }
            self.rest = Rest::Chunks(chunks);
        }
    }

    /// What follows the last chunk, if all of it has come.
    fn trailers(&mut self) -> Result<Option<HeaderMap>, Broken> {
        let mut fields = http1::trailer_fields();
        let found = http1::trailers(&self.incoming, &mut fields).map_err(|_| Broken::Nonsense)?;
        let Some((fields, used)) = found else { return Ok(None) };
        let mut trailers = HeaderMap::new();
        add(&mut trailers, fields.iter(), &self.incoming[..used]).ok_or(Broken::Nonsense)?;
        self.incoming.advance(used);
        Ok(Some(trailers))
    }

    /// Reads more of a body that is not over.
    fn read_on(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        match ready!(self.read(context, CHUNKS_BYTES))? {
            0 => Poll::Ready(Err(Broken::Cut)),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Whether nothing more comes of the answer's body.
    pub(super) fn is_through(&self) -> bool {
        matches!(self.rest, Rest::Nothing)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self.rest {
            Rest::Nothing => SizeHint::with_exact(0),
            Rest::Length(left) => SizeHint::with_exact(left),
            Rest::Chunks(_) | Rest::UntilClose => SizeHint::default(),
        }
    }

    /// Whether it can go on as something else than HTTP: if all of the request has left.
    pub(super) fn may_switch(&self) -> bool {
        self.behind.is_none() && self.sending.is_over()
    }

    /// The socket, once it is no longer HTTP that is spoken, with what was read too far.
    pub(super) fn into_socket(self) -> Option<(Socket, BytesMut)> {
        Some((Rc::into_inner(self.socket)?.into_inner(), self.incoming))
    }
}

/// The head of an answer as the rest of the proxy knows them, in this map.
fn response(head: &Head<'_, '_>, bytes: &[u8], mut headers: HeaderMap) -> Option<Response<()>> {
    headers.clear();
    // What a connection says about itself is understood here, and goes no further.
    let passes = |field: &&Field<'_>| !is_usual_connection(field);
    add(&mut headers, head.fields.iter().filter(passes), bytes)?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    *response.version_mut() = if head.old { Version::HTTP_10 } else { Version::HTTP_11 };
    *response.headers_mut() = headers;
    if response.status().canonical_reason() != Some(head.reason)
        && let Ok(reason) = ReasonPhrase::try_from(head.reason.as_bytes())
    {
        response.extensions_mut().insert(reason);
    }
    Some(response)
}

/// `Connection` with nothing but the usual in it: it names no field.
fn is_usual_connection(field: &Field<'_>) -> bool {
    field.name.len() == 10
        && field.name.eq_ignore_ascii_case("connection")
        && matches!(field.value, b"keep-alive" | b"close")
}

/// Adds fields that lie in `bytes`. Their values share one copy of those.
fn add<'f, 'b: 'f>(
    headers: &mut HeaderMap,
    fields: impl Iterator<Item = &'f Field<'b>>,
    bytes: &[u8],
) -> Option<()> {
    let kept = Bytes::copy_from_slice(bytes);
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let value = match field.value.as_ptr().addr().checked_sub(bytes.as_ptr().addr()) {
            Some(from) if !field.value.is_empty() => kept.slice(from..from + field.value.len()),
            _ => Bytes::new(),
        };
        headers.append(name, HeaderValue::from_maybe_shared(value).ok()?);
    }
    Some(())
}
