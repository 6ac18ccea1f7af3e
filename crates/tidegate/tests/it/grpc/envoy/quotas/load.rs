//! Load on Envoys, and an application that says when a request has reached it.

use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::oracle::Use;
use crate::clock::{Moment, pause};
use crate::message::Message;
use crate::program::PATIENCE;

/// An application. Its threads end with the test's process.
pub(super) struct App {
    pub(super) address: SocketAddr,
    pub(super) start: Moment,
}

impl App {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let start = Moment::now();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || answer(stream, start));
            }
        });
        Self { address, start }
    }

    /// Waits until so much time has passed.
    pub(super) fn wait_until(&self, at: Duration) {
        pause(at.saturating_sub(self.start.elapsed()));
    }
}

/// Answers each request with the nanoseconds since the start.
fn answer(stream: TcpStream, start: Moment) {
    let mut stream = BufReader::new(stream);
    while Message::read(&mut stream).is_some() {
        let now = start.elapsed().as_nanos().to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", now.len());
        if stream.get_mut().write_all((head + &now).as_bytes()).is_err() {
            return;
        }
    }
}

/// Clients of one Envoy, each of which asks at an even pace and waits for each answer.
pub(super) struct Load {
    ended: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<Use>>>,
}

impl Load {
    /// So many clients that ask as this user, each once in `every`.
    pub(super) fn start(
        app: &App,
        envoy: SocketAddr,
        user: &str,
        clients: usize,
        every: Duration,
    ) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (start, user) = (app.start, user.to_owned());
        let client = |_| {
            let (ended, user) = (ended.clone(), user.clone());
            thread::spawn(move || {
                let mut uses = Vec::new();
                // An Envoy may be killed: that is the end of its clients.
                let _ = ask(start, envoy, &user, every, &ended, &mut uses);
                uses
            })
        };
        let clients = (0..clients).map(client).collect();
        Self { ended, clients }
    }

    /// Ends the clients, and returns the requests that passed.
    pub(super) fn end(self) -> Vec<Use> {
        self.ended.store(true, Relaxed);
        let clients = self.clients.into_iter();
        clients.flat_map(|client| client.join().expect("a client")).collect()
    }
}

fn ask(
    start: Moment,
    envoy: SocketAddr,
    user: &str,
    every: Duration,
    ended: &AtomicBool,
    uses: &mut Vec<Use>,
) -> std::io::Result<()> {
    let stream = TcpStream::connect(envoy)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut stream = BufReader::new(stream);
    let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\nX-User: {user}\r\n\r\n");
    let mut due = start.elapsed();
    while !ended.load(Relaxed) {
        pause(due.saturating_sub(start.elapsed()));
        let sent = start.elapsed();
        // Who comes late does not ask more often later.
        due = sent.max(due) + every;
        stream.get_mut().write_all(request.as_bytes())?;
        let Some(answer) = Message::read(&mut stream) else { break };
        if answer.first.contains(" 200 ") {
            let text = std::str::from_utf8(&answer.body).expect("text");
            uses.push(Use { sent, arrived: Duration::from_nanos(text.parse().expect("a time")) });
        }
    }
    Ok(())
}
