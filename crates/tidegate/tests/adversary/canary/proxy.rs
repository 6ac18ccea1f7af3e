//! Canaries of the proxy door, over HTTP/1.1 and HTTP/2: the upstream answers each request with
//! what only that request can know, and each path is limited by a count that is known.

use std::io::{BufReader, Write as _};
use std::net::SocketAddr;

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::{Canary, Named, PER_LISTENER, Wrong, failed, same};
use crate::clock::WATCHDOG;
use crate::message::Message;
use crate::net::Stream;
use crate::seed::Random;
use crate::server::{Doors, PROXIED};
use crate::upstream::echo;

/// Every so many questions a canary connects anew.
const CONNECT_EVERY: usize = 15;
/// The longest body of a request.
const BODY_BYTES_MAX: usize = 40_000;

pub(super) fn add(doors: &Doors, canaries: &mut Vec<Named>) {
    for number in 0..PER_LISTENER {
        for (door, rejects) in [(doors.waiting, false), (doors.rejecting, true)] {
            let kind = if rejects { "rejecting" } else { "waiting" };
            let name = format!("proxy-{kind}-{number}");
            let paths = Paths { name: name.clone(), rejects, asked: 0 };
            canaries.push((name, Box::new(Http1 { door, paths, connection: None })));
            let name = format!("proxy-{kind}-h2-{number}");
            let paths = Paths { name: name.clone(), rejects, asked: 0 };
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            canaries.push((name, Box::new(Http2 { door, paths, runtime, sender: None })));
        }
    }
}

/// What a canary asks for.
struct Paths {
    name: String,
    rejects: bool,
    asked: usize,
}

/// A request, and the status that it must get.
struct Planned {
    path: String,
    body: Vec<u8>,
    status: u16,
}

impl Paths {
    /// The requests of one question: on a new path where the proxy rejects, on always the same
    /// where it lets them wait.
    fn plan(&mut self, random: &mut Random) -> Vec<Planned> {
        self.asked += 1;
        let (count, path) = if self.rejects {
            let one = format!("/canary/{}/{:016x}", self.name, random.next());
            (PROXIED + random.below(3) as u64, one)
        } else {
            (1 + random.below(4) as u64, format!("/canary/{}", self.name))
        };
        let request = |number| {
            let status = if self.rejects && number >= PROXIED { 429 } else { 200 };
            // A refused body is not read, and the connection need not outlive it: the last only.
            let has_body = random.one_in(2) && (status == 200 || number + 1 == count);
            let length = if has_body { random.below(BODY_BYTES_MAX) } else { 0 };
            let body = random.bytes(length);
            Planned { path: format!("{path}?{:016x}", random.next()), body, status }
        };
        (0..count).map(request).collect()
    }

    fn connects(&self) -> bool {
        self.asked.is_multiple_of(CONNECT_EVERY)
    }
}

impl Planned {
    /// Its bytes in HTTP/1.1.
    fn bytes(&self, random: &mut Random) -> Vec<u8> {
        let Self { path, body, .. } = self;
        let mut bytes = format!("POST {path} HTTP/1.1\r\nHost: canary.example\r\n").into_bytes();
        if body.is_empty() || random.one_in(2) {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            bytes.extend_from_slice(body);
            return bytes;
        }
        bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        for chunk in body.chunks(1 + random.below(BODY_BYTES_MAX)) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        bytes
    }

    fn compare(&self, status: u16, body: &[u8]) -> Result<(), Wrong> {
        let shown = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
        same(&format!("status of {} ({shown})", self.path), status, self.status)?;
        if status != 200 || body == echo("POST", &self.path, &self.body) {
            return Ok(());
        }
        Err(format!("{} with {} bytes got {shown:?}", self.path, self.body.len()))
    }
}

struct Http1 {
    door: SocketAddr,
    paths: Paths,
    connection: Option<BufReader<Stream>>,
}

impl Http1 {
    fn connect(&self) -> Result<BufReader<Stream>, Wrong> {
        Stream::connect(&self.door.into()).map(BufReader::new).map_err(failed("connect"))
    }
}

impl Canary for Http1 {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        let planned = self.paths.plan(random);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        // All at once, or one after the other.
        let refused_body = planned.iter().any(|one| one.status == 429 && !one.body.is_empty());
        let at_once = if random.one_in(2) && !refused_body { planned.len() } else { 1 };
        for requests in planned.chunks(at_once) {
            let bytes: Vec<u8> =
                requests.iter().flat_map(|request| request.bytes(random)).collect();
            connection.get_mut().write_all(&bytes).map_err(failed("send"))?;
            for request in requests {
                let answer = Message::read(&mut connection)
                    .ok_or_else(|| format!("{}: no whole answer", request.path))?;
                request.compare(answer.status(), &answer.body)?;
            }
        }
        // Between two questions it has a connection, so that all canaries have always as many.
        let connects = refused_body || self.paths.connects();
        self.connection = Some(if connects { self.connect()? } else { connection });
        Ok(())
    }
}

struct Http2 {
    door: SocketAddr,
    paths: Paths,
    runtime: Runtime,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Http2 {
    async fn connect(door: SocketAddr) -> Result<SendRequest<Full<Bytes>>, Wrong> {
        let stream = TcpStream::connect(door).await.map_err(failed("connect"))?;
        stream.set_nodelay(true).map_err(failed("connect"))?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|error| format!("handshake: {error}"))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn exchange(mut sender: SendRequest<Full<Bytes>>, planned: Planned) -> Result<(), Wrong> {
        let wrong = |error: hyper::Error| format!("{}: {error:?}", planned.path);
        let request = Request::post(format!("http://canary.example{}", planned.path))
            .body(Full::new(Bytes::from(planned.body.clone())))
            .expect("a request");
        sender.ready().await.map_err(wrong)?;
        let answer = sender.send_request(request).await.map_err(wrong)?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(wrong)?.to_bytes();
        planned.compare(status, &body)
    }
}

impl Canary for Http2 {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        let planned = self.paths.plan(random);
        let kept = self.sender.take().filter(|_| !self.paths.connects());
        // Streams of one connection are not ordered among each other: a count is known only if
        // they come one after the other.
        let in_turn = self.paths.rejects;
        let door = self.door;
        let conversation = async move {
            let sender = match kept {
                Some(sender) => sender,
                None => Self::connect(door).await?,
            };
            if in_turn {
                for planned in planned {
                    Self::exchange(sender.clone(), planned).await?;
                }
                return Ok::<_, Wrong>(sender);
            }
            let streams: Vec<_> = planned
                .into_iter()
                .map(|planned| tokio::spawn(Self::exchange(sender.clone(), planned)))
                .collect();
            for stream in streams {
                stream.await.map_err(|error| error.to_string())??;
            }
            Ok(sender)
        };
        let ended = self.runtime.block_on(async { timeout(WATCHDOG, conversation).await });
        self.sender = Some(ended.map_err(|_| "no answer in time".to_owned())??);
        Ok(())
    }
}
