//! The door's thread: it owns both sockets, takes batches of messages and sends what follows.
//!
//! One thread with a runtime of its own, so that nothing here is shared with other doors. It yields
//! after every batch: the tasks that read and write for the peers run on the same thread.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::metrics::gauge::Gauge;
use tidegate_client::zmq::{self, Batch, Event, Events, Publisher, Sent, Subscriber};
use tidegate_wire::smockron::{Frames, MESSAGE_BYTES_MAX, topic};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::Config;
use super::corridor::{Corridor, Messages, Post, Settings};
use super::log::Log;
use crate::config::listen::Allow;
use crate::doors::Gate;
use crate::metrics::{Door, Metrics};

/// The most messages of one batch.
const BATCH: usize = 512;
/// Batches that are still taken after the door began to close, if they are already there.
const DRAIN_TURNS_MAX: usize = 1024;
/// How long closing waits for delays that are not sent yet.
const LINGER: Duration = Duration::from_millis(500);

/// Who may connect: what the file says, from the moment at which somebody looks after it.
type Admitted = Arc<OnceLock<Arc<ArcSwap<Allow>>>>;

impl Messages for Batch {
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn frames<'a, 'r>(&'a self, index: usize, room: &'r mut [&'a [u8]]) -> &'r [&'a [u8]] {
        Batch::frames(self, index, room)
    }
}

struct Outlet(Publisher);

impl Post for Outlet {
    fn publish(&mut self, message: &Frames) -> bool {
        self.0.send(message.iter()) == Sent::Queued
    }
}

/// Both sockets, bound.
pub(super) struct Sockets {
    accounting: Subscriber,
    control: Publisher,
    addresses: [SocketAddr; 2],
    admitted: Admitted,
}

impl Sockets {
    /// Takes both addresses, or none.
    pub(super) async fn bind(config: &Config) -> io::Result<Self> {
        let admitted = Admitted::default();
        let options = zmq::Options {
            hwm: config.hwm,
            message_bytes_max: MESSAGE_BYTES_MAX,
            linger: LINGER,
            admission: Some(admission(config.allow.clone(), admitted.clone())),
            ..zmq::Options::default()
        };
        let accounting = Subscriber::new(&options);
        for domain in &config.subscribe {
            accounting.subscribe(&topic(domain.as_bytes())).await.map_err(system)?;
        }
        if config.subscribe.is_empty() {
            accounting.subscribe(b"").await.map_err(system)?;
        }
        // A batch and a piece of a search must fit before the runtime's other tasks run.
        let hwm = config.hwm.max(4 * BATCH as u32);
        let control = Publisher::new(&zmq::Options { hwm, ..options });
        let addresses = [
            accounting.bind(&config.accounting.to_string()).await.map_err(system)?,
            control.bind(&config.control.to_string()).await.map_err(system)?,
        ];
        Ok(Self { accounting, control, addresses, admitted })
    }

    pub(super) fn addresses(&self) -> [SocketAddr; 2] {
        self.addresses
    }
}

fn admission(before: Allow, admitted: Admitted) -> zmq::Admission {
    Arc::new(move |address| match admitted.get() {
        Some(allow) => allow.load().permits(address),
        None => before.permits(address),
    })
}

fn system(error: zmq::Error) -> io::Error {
    match error {
        zmq::Error::Bind(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// Serves from the moment at which a gate comes until it is closed.
pub(super) async fn run(sockets: Sockets, config: Config, gate: oneshot::Receiver<Gate>) {
    // Nobody serves what could not be opened whole.
    let Ok(gate) = gate.await else { return };
    let _ = sockets.admitted.set(gate.allow.clone());
    let metrics = &gate.limiter.metrics().clone();
    tokio::spawn(watch(sockets.accounting.events(), metrics.clone(), "accounting"));
    tokio::spawn(watch(sockets.control.events(), metrics.clone(), "control"));
    let (log, writer) = match open_log(&config, metrics) {
        Some((log, writer)) => (Some(log), Some(writer)),
        None => (None, None),
    };
    let settings = Settings {
        max_delay: u64::try_from(config.max_delay.0.as_nanos()).unwrap_or(u64::MAX),
        long_pairs: config.long_pairs,
    };
    let corridor = Corridor::new(gate.limiter.desk(Door::Smockron), settings).with_log(log);
    serve(sockets, corridor, &gate).await;
    if let Some(writer) = writer {
        // The log's end has gone with the corridor.
        let _ = tokio::task::spawn_blocking(move || writer.join()).await;
    }
}

async fn serve(sockets: Sockets, mut corridor: Corridor, gate: &Gate) {
    let Sockets { accounting, control, .. } = sockets;
    let mut outlet = Outlet(control);
    let mut batch = Batch::new();
    let closing = gate.shutdown.wait();
    tokio::pin!(closing);
    loop {
        tokio::select! {
            biased;
            () = &mut closing => break,
            received = accounting.receive(&mut batch, BATCH) => match received {
                Ok(_) => corridor.take(&batch, corridor.now(), &mut outlet),
                // The library's own end: there is nothing left to serve.
                Err(error) => {
                    tracing::error!(%error, "smockron: the accounting socket ended");
                    break;
                }
            },
            () = yield_now(), if corridor.is_searching() => {}
        }
        if corridor.is_searching() {
            corridor.search(corridor.now(), &mut outlet);
        }
        yield_now().await;
    }
    for _ in 0..DRAIN_TURNS_MAX {
        let received = tokio::select! {
            biased;
            received = accounting.receive(&mut batch, BATCH) => received.is_ok(),
            () = yield_now() => false,
        };
        if !received {
            break;
        }
        corridor.take(&batch, corridor.now(), &mut outlet);
        yield_now().await;
    }
    accounting.close().await;
    outlet.0.close().await;
}

/// The accounting log, if there is one. One that cannot be opened is no reason not to serve.
fn open_log(config: &Config, metrics: &Metrics) -> Option<(Log, super::log::Writer)> {
    let path = config.accounting_log.as_ref()?;
    let lost = metrics.lost(Door::Smockron, "log");
    let opened = Log::open(path, config.accounting_log_size.0, config.accounting_log_keep, lost);
    opened.inspect_err(|error| tracing::error!(%error, "smockron: nothing is logged")).ok()
}

/// Counts the peers of a socket, and those that behave as no peer should.
async fn watch(mut events: Events, metrics: Arc<Metrics>, socket: &'static str) {
    let peers: Gauge = metrics.peers(Door::Smockron, socket);
    peers.set(0);
    while let Some(event) = events.next().await {
        let reason = match event {
            Event::Ready => {
                peers.inc();
                None
            }
            Event::Lost => {
                peers.dec();
                None
            }
            Event::Faulty => {
                peers.dec();
                Some("broken_stream")
            }
            Event::TooLarge => {
                peers.dec();
                Some("message_too_large")
            }
            Event::Refused => Some("handshake"),
            Event::NotAdmitted => Some("not_allowed"),
            _ => None,
        };
        if let Some(reason) = reason {
            metrics.bad_input(Door::Smockron, reason);
        }
    }
    peers.set(0);
}
