//! A gatekeeper and masters of its own, on real sockets.

mod deciding;
mod failing;
mod masters;
mod talking;

use std::collections::VecDeque;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use tidegate_wire::smockron::{
    AccountingMessage, ControlMessage, FRAMES_MAX, Frames, MILLISECOND_NS, Status, parse,
};

use super::*;
use crate::clock::UnixClock;
use crate::zmq::{Batch, Options, PubSocket, SubSocket};

/// What the manual clock of these tests reads first.
const T: i64 = 1_700_000_000_000;

/// One accounting message: domain, status, identifier, milliseconds.
type Told = (String, Status, String, i64);

/// As little of a master as the tests need: it hears everything and says what it is told to.
struct TestMaster {
    accounting: SubSocket,
    control: PubSocket,
    addresses: (SocketAddr, SocketAddr),
    batch: Batch,
    told: VecDeque<Result<Told, String>>,
}

impl TestMaster {
    async fn start() -> Self {
        let anywhere = "127.0.0.1:0".parse().unwrap();
        Self::at((anywhere, anywhere)).await
    }

    async fn at((accounting, control): (SocketAddr, SocketAddr)) -> Self {
        let options = Options::default();
        let subscriber = SubSocket::new(&options);
        let publisher = PubSocket::new(&options);
        subscriber.subscribe(b"").await.unwrap();
        let addresses = (
            subscriber.bind(&format!("tcp://{accounting}")).await.unwrap(),
            publisher.bind(&format!("tcp://{control}")).await.unwrap(),
        );
        let (batch, told) = (Batch::new(), VecDeque::new());
        Self { accounting: subscriber, control: publisher, addresses, batch, told }
    }

    async fn stop(self) {
        self.accounting.close().await;
        self.control.close().await;
    }

    fn of(&self, domains: &[&str]) -> Master {
        of(self.addresses, domains)
    }

    /// The next message: an accounting, or the domain of a RESYNC.
    async fn next(&mut self) -> Result<Told, String> {
        while self.told.is_empty() {
            let count = self.accounting.receive(&mut self.batch, 1000).await.unwrap();
            for message in 0..count {
                let mut room = [&b""[..]; FRAMES_MAX];
                let frames = self.batch.frames(message, &mut room);
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                self.told.push_back(match parse(frames).unwrap() {
                    AccountingMessage::Accounting(it) => {
                        assert_eq!(frames.len(), 6);
                        let received_ms = (it.received_ns / MILLISECOND_NS) as i64;
                        Ok((text(it.domain), it.status, text(it.identifier), received_ms))
                    }
                    AccountingMessage::Resync { domain } => Err(text(domain)),
                });
            }
        }
        self.told.pop_front().unwrap()
    }

    /// The next accounting; what is asked in between is answered with nothing.
    async fn next_told(&mut self) -> Told {
        loop {
            match self.next().await {
                Ok(told) => return told,
                Err(domain) => self.answer(&domain, &[]),
            }
        }
    }

    /// Answers the first RESYNC of a domain that comes.
    async fn answer_resync(&mut self, domain: &str, delays: &[(&str, i64)]) {
        loop {
            if self.next().await == Err(domain.to_owned()) {
                self.answer(domain, delays);
                return;
            }
        }
    }

    fn answer(&mut self, domain: &str, delays: &[(&str, i64)]) {
        self.say(ControlMessage::ResyncStart { domain: domain.as_bytes() });
        delays.iter().for_each(|(identifier, at_ms)| self.delay(domain, identifier, *at_ms));
        self.say(ControlMessage::ResyncDone { domain: domain.as_bytes() });
    }

    fn delay(&self, domain: &str, identifier: &str, at_ms: i64) {
        let (domain, identifier) = (domain.as_bytes(), identifier.as_bytes());
        self.say(ControlMessage::DelayUntil { domain, identifier, at_ms: at_ms as u64 });
    }

    fn say(&self, control: ControlMessage<'_>) {
        let mut frames = Frames::new();
        control.write(&mut frames);
        let _ = self.control.send(frames.iter());
    }
}

fn of((accounting, control): (SocketAddr, SocketAddr), domains: &[&str]) -> Master {
    let endpoint = |address: SocketAddr| format!("tcp://{address}");
    Master::new(endpoint(accounting), endpoint(control), domains.iter().copied())
}

/// Addresses at which nobody listens.
fn nowhere() -> (SocketAddr, SocketAddr) {
    let taken = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [accounting, control] = taken.map(|listener| listener.local_addr().unwrap());
    (accounting, control)
}

fn config(masters: impl IntoIterator<Item = Master>) -> (Config, UnixClock) {
    let clock = UnixClock::manual(T);
    (Config { clock: clock.clone(), ..Config::new(masters) }, clock)
}

/// A gatekeeper of `api` without a master, and its clock.
fn alone(change: impl FnOnce(&mut Config)) -> (Gatekeeper, Domain, UnixClock) {
    let (mut config, clock) = config([of(nowhere(), &["api"])]);
    change(&mut config);
    let gatekeeper = Gatekeeper::connect(&config).unwrap();
    let domain = gatekeeper.domain("api").unwrap();
    (gatekeeper, domain, clock)
}

/// No test is ever this slow.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it happens at all")
}

/// Lets the tasks run until something is so.
async fn until(is_so: impl Fn() -> bool) {
    soon(async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn delayed(decision: Decision) -> Delay {
    match decision {
        Decision::Delay(delay) => delay,
        other => panic!("{other:?}"),
    }
}

fn rejected(decision: Decision) -> Duration {
    match decision {
        Decision::Reject(after) => after,
        other => panic!("{other:?}"),
    }
}
