//! The door's thread: it owns both sockets, takes batches of messages and publishes what follows.
//!
//! One thread with a runtime of its own, so that nothing here is shared with other doors. It yields
//! after every batch: the tasks that read and write for the peers run on the same thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_client::zmq::{self, Batch, PeerEvent, PeerEvents, PubSocket, Sent, SubSocket};
use tidegate_wire::smockron::{Frames, MESSAGE_BYTES_MAX, topic};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::Config;
use super::handler::{ANSWERS_MAX, Handler, Messages, Publish, Settings};
use super::log::UseLog;
use crate::doors::Gate;
use crate::metrics::{Door, Metrics};
use crate::settings::listen::Allow;

/// The most messages of one batch.
const BATCH: usize = 256;
// Answers of a remote store would pile up otherwise.
const _: () = assert!(ANSWERS_MAX >= BATCH);
/// Batches that are still taken after the door began to close, if they are already there.
const DRAIN_TURNS_MAX: usize = 1024;
/// How long closing waits for delays that are not sent yet.
const LINGER: Duration = Duration::from_millis(500);
/// How long closing waits for the answers of a remote store. The store's own timeout is shorter as
/// a rule; this is for one whose timeout is set very long.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(3);
/// How often closing looks whether all answers have come.
const ANSWER_PAUSE: Duration = Duration::from_millis(10);

/// Which peers a socket admits, and how many are connected.
struct Admission {
    /// What the file said when the door was opened.
    first: Allow,
    /// What the file says, once the door serves.
    allow: OnceLock<Arc<ArcSwap<Allow>>>,
    peers: AtomicUsize,
    peers_max: usize,
}

impl Admission {
    fn new(config: &Config) -> Arc<Self> {
        Arc::new(Self {
            first: config.allow.clone(),
            allow: OnceLock::new(),
            peers: AtomicUsize::new(0),
            peers_max: config.max_connections as usize,
        })
    }

    /// Peers that shake hands at the same moment may be admitted beyond the bound.
    fn is_full(&self) -> bool {
        self.peers.load(Relaxed) >= self.peers_max
    }

    fn admits(&self, address: IpAddr) -> bool {
        let permitted = match self.allow.get() {
            Some(allow) => allow.load().permits(address),
            None => self.first.permits(address),
        };
        permitted && !self.is_full()
    }
}

impl Messages for Batch {
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn frames<'a, 'r>(&'a self, index: usize, room: &'r mut [&'a [u8]]) -> &'r [&'a [u8]] {
        Batch::frames(self, index, room)
    }
}

/// The control socket.
struct ControlSocket(PubSocket);

impl Publish for ControlSocket {
    fn publish(&mut self, message: &Frames) -> bool {
        self.0.send(message.iter()) == Sent::Queued
    }
}

/// Both sockets, bound.
pub(super) struct Sockets {
    accounting: SubSocket,
    control: PubSocket,
    addresses: [SocketAddr; 2],
    /// Of the accounting socket, and of the control socket.
    admission: [Arc<Admission>; 2],
}

impl Sockets {
    /// Takes both addresses, or none.
    pub(super) async fn bind(config: &Config) -> io::Result<Self> {
        let admission = [Admission::new(config), Admission::new(config)];
        let [to_accounting, to_control] = admission.clone();
        let options = zmq::Options {
            hwm: config.hwm,
            message_bytes_max: MESSAGE_BYTES_MAX,
            linger: LINGER,
            admission: Some(Arc::new(move |address| to_accounting.admits(address))),
            ..zmq::Options::default()
        };
        let accounting = SubSocket::new(&options);
        for domain in &config.subscribe {
            accounting.subscribe(&topic(domain.as_bytes())).await.map_err(system)?;
        }
        if config.subscribe.is_empty() {
            accounting.subscribe(b"").await.map_err(system)?;
        }
        // What one turn of the loop publishes must fit before the runtime's other tasks run.
        let hwm = config.hwm.max(4 * BATCH as u32);
        let admits: zmq::AddressFilter = Arc::new(move |address| to_control.admits(address));
        let options = zmq::Options { hwm, admission: Some(admits), ..options };
        let control = PubSocket::new(&options);
        let addresses = [
            accounting.bind(&config.accounting.to_string()).await.map_err(system)?,
            control.bind(&config.control.to_string()).await.map_err(system)?,
        ];
        Ok(Self { accounting, control, addresses, admission })
    }

    pub(super) fn addresses(&self) -> [SocketAddr; 2] {
        self.addresses
    }
}

fn system(error: zmq::Error) -> io::Error {
    match error {
        zmq::Error::Bind(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// Serves from the moment at which a gate comes until it is closed.
pub(super) async fn run(sockets: Sockets, config: Config, gate: oneshot::Receiver<Gate>) {
    // The bound door was dropped before it served: give its addresses up.
    let Ok(gate) = gate.await else { return };
    let metrics = &gate.limiter.metrics().clone();
    let events = [sockets.accounting.events(), sockets.control.events()];
    let watched = ["accounting", "control"].into_iter().zip(events);
    for (admission, (socket, events)) in sockets.admission.iter().zip(watched) {
        let _ = admission.allow.set(gate.door.allow.clone());
        tokio::spawn(watch(events, admission.clone(), metrics.clone(), socket));
    }
    let (log, writer) = match open_log(&config, metrics) {
        Some((log, writer)) => (Some(log), Some(writer)),
        None => (None, None),
    };
    let settings = Settings {
        max_delay: u64::try_from(config.max_delay.0.as_nanos()).unwrap_or(u64::MAX),
        long_pairs: config.long_pairs,
    };
    let handler = Handler::new(gate.limiter.handle(Door::Smockron), settings).with_log(log);
    serve(sockets, handler, &gate).await;
    if let Some(writer) = writer {
        // The log's end has gone with the handler.
        let _ = tokio::task::spawn_blocking(move || writer.join()).await;
    }
}

async fn serve(sockets: Sockets, mut handler: Handler, gate: &Gate) {
    let Sockets { accounting, control, .. } = sockets;
    let mut control = ControlSocket(control);
    let mut batch = Batch::new();
    let closing = gate.door.shutdown.wait();
    tokio::pin!(closing);
    loop {
        tokio::select! {
            biased;
            () = &mut closing => break,
            received = accounting.receive(&mut batch, BATCH) => match received {
                Ok(_) => handler.take(&batch, handler.now(), &mut control),
                // The library's own end: there is nothing left to serve.
                Err(error) => {
                    tracing::error!(%error, "smockron: the accounting socket ended");
                    break;
                }
            },
            () = handler.ready() => {}
        }
        // In every turn, so that many messages keep neither answers nor walks waiting.
        handler.publish_answers(&mut control);
        handler.publish_found(&mut control);
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
        handler.take(&batch, handler.now(), &mut control);
        handler.publish_answers(&mut control);
        yield_now().await;
    }
    let last = async {
        while handler.has_pending() {
            // Nothing tells of an answer without a delay, so it is looked for now and then.
            let _ = timeout(ANSWER_PAUSE, handler.answered()).await;
            handler.publish_answers(&mut control);
            yield_now().await;
        }
    };
    let _ = timeout(LAST_ANSWERS_MAX, last).await;
    accounting.close().await;
    control.0.close().await;
}

/// The accounting log, if there is one. One that cannot be opened is no reason not to serve.
fn open_log(config: &Config, metrics: &Metrics) -> Option<(UseLog, super::log::LogWriter)> {
    let path = config.accounting_log.as_ref()?;
    let lost = metrics.lost(Door::Smockron, "log");
    let opened = UseLog::open(path, config.accounting_log_size.0, config.accounting_log_keep, lost);
    opened.inspect_err(|error| tracing::error!(%error, "smockron: nothing is logged")).ok()
}

/// Counts the peers of a socket, and those that behave as no peer should.
async fn watch(
    mut events: PeerEvents,
    admission: Arc<Admission>,
    metrics: Arc<Metrics>,
    socket: &'static str,
) {
    let shown = metrics.peers(Door::Smockron, socket);
    shown.set(0);
    let mut peers = 0_usize;
    while let Some(event) = events.next().await {
        let (change, reason) = match event {
            PeerEvent::Ready => (1, None),
            PeerEvent::Lost => (-1, None),
            PeerEvent::Faulty => (-1, Some("broken_stream")),
            PeerEvent::TooLarge => (-1, Some("message_too_large")),
            PeerEvent::Refused => (0, Some("handshake")),
            PeerEvent::NotAdmitted if admission.is_full() => (0, Some("too_many_connections")),
            PeerEvent::NotAdmitted => (0, Some("not_allowed")),
            _ => (0, None),
        };
        if let Some(reason) = reason {
            metrics.bad_input(Door::Smockron, reason);
        }
        peers = peers.saturating_add_signed(change);
        admission.peers.store(peers, Relaxed);
        shown.set(i64::try_from(peers).unwrap_or(i64::MAX));
    }
    shown.set(0);
}
