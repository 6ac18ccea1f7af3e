//! The doors: one folder for each protocol, and what they all have in common.
//!
//! A door has a `Config` (serde, beside its code), binds it to sockets, and serves a [`Gate`]
//! until its [`Shutdown`] is set. Doors know neither each other nor the store.
//!
//! To add one: a folder here whose `Config` is a [`DoorConfig`], a codec in `tidegate-wire`, a
//! variant in [`Door`], and a field in the configuration's `File`.

pub mod admin;
pub(crate) mod envoy;
pub(crate) mod forwarded;
mod gate;
pub mod grpc;
pub mod http;
pub(crate) mod http_server;
pub(crate) mod io;
pub mod jarl;
pub mod proxy;
pub(crate) mod ratelimit;
pub mod resp;
pub mod smockron;
pub(crate) mod template;
pub mod text;
pub mod throttr;

use std::any::Any;
use std::sync::Arc;
use std::{fmt, thread};

pub use self::gate::{DoorReport, DoorSwitches, Gate, SharedState};
pub use self::io::certificates::Certificates;
use crate::metrics::{Door, Metrics};
use crate::settings::listen::{Allow, ListenAddress};
use crate::settings::tls::Tls;
pub use crate::shutdown::Shutdown;

/// The table of one door, whichever door it is.
pub trait DoorConfig: Any + fmt::Debug {
    /// Which door it is.
    fn door(&self) -> Door;

    /// Where it wants to be reached, in file order, each with the setting that says so.
    fn listens_at(&self) -> Vec<(&'static str, ListenAddress)>;

    /// Who may come in.
    fn allow(&self) -> &Allow;

    /// Whether a door of `other` can become one of `self` without giving up its sockets.
    ///
    /// The allow list, and what [`Self::renew`] takes over, change while the door is open; any
    /// other setting must be compared here.
    fn same_sockets(&self, other: &dyn DoorConfig) -> bool;

    /// Whether it must not be served before a remote store has answered once. A door that answers
    /// for the process' health is served before, and holds all other requests itself.
    fn waits_for_store(&self) -> bool;

    /// Whether it takes datagrams, whose ports are not those of connections.
    fn takes_datagrams(&self) -> bool {
        false
    }

    /// What is wrong with the files that the table names: in which setting, and why.
    fn wrong_files(&self) -> Vec<(&'static str, String)> {
        self.tls().map(Tls::wrong_files).unwrap_or_default()
    }

    /// The certificates that its clients are shown, if they speak TLS.
    fn tls(&self) -> Option<&Tls> {
        None
    }

    /// Whether its clients must show who they are.
    fn authenticates(&self) -> bool {
        self.tls().is_some_and(|tls| tls.client_ca.is_some())
    }

    /// Puts in force what can change while the door is open, beside its allow list.
    fn renew(&self, _gate: &Gate) {}

    /// Takes back what [`Self::renew`] put in force: the last door of this kind closes.
    fn retire(&self, _gate: &Gate) {}

    /// Takes the door's addresses. Nothing is answered yet.
    ///
    /// # Errors
    /// When an address cannot be had; none is kept then.
    fn bind(&self) -> std::io::Result<Box<dyn BoundDoor>>;

    /// The same table once more.
    fn boxed(&self) -> Box<dyn DoorConfig>;

    /// Where it wants to be reached, in file order.
    fn addresses(&self) -> Vec<ListenAddress> {
        self.listens_at().into_iter().map(|(_, address)| address).collect()
    }

    /// Whether it can be reached from other machines.
    fn beyond_loopback(&self) -> bool {
        self.addresses().iter().any(ListenAddress::beyond_loopback)
    }
}

/// `config` as a `T`, if it is the table of that door.
fn table_of<T: DoorConfig>(config: &dyn DoorConfig) -> Option<&T> {
    let config: &dyn Any = config;
    config.downcast_ref()
}

/// A door whose addresses are taken and that does not answer yet.
pub trait BoundDoor {
    /// The addresses, in file order, with real ports.
    fn addresses(&self) -> Vec<ListenAddress>;

    /// The certificates that its clients are shown, if they speak TLS.
    fn certificates(&self) -> Option<Arc<Certificates>> {
        None
    }

    /// Drops what arrived while the door was bound and not served, where answering it late would
    /// be of no use: datagrams. Connections wait in the backlog, messages in their socket.
    fn discard_queued(&self, _metrics: &Metrics) {}

    /// Begins to answer. Must be called on the process' runtime.
    ///
    /// # Panics
    /// If the system refuses a thread or a descriptor.
    fn serve(self: Box<Self>, gate: Gate) -> Serving;
}

/// The threads and tasks of a door that is open. Dropping it leaves them running.
#[derive(Default)]
pub struct Serving {
    threads: Vec<thread::JoinHandle<()>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    released: Option<Shutdown>,
}

impl Serving {
    /// A door of loops on threads of their own.
    #[must_use]
    pub fn threads(threads: Vec<thread::JoinHandle<()>>) -> Self {
        Self { threads, ..Self::default() }
    }

    /// A door of tasks on the process' runtime.
    #[must_use]
    pub fn tasks(tasks: Vec<tokio::task::JoinHandle<()>>) -> Self {
        Self { tasks, ..Self::default() }
    }

    /// For a door that gives its addresses up long before it has drained: `released` is raised
    /// when it has.
    #[must_use]
    pub fn releasing(self, released: Shutdown) -> Self {
        Self { released: Some(released), ..self }
    }

    /// What is raised when the addresses are free, if that comes before the end.
    #[must_use]
    pub fn released(&self) -> Option<Shutdown> {
        self.released.clone()
    }

    /// Waits until the door has drained; its [`Shutdown`] must have been set.
    pub async fn join(self) {
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a door's task failed");
            }
        }
        if self.threads.is_empty() {
            return;
        }
        let threads = self.threads;
        let joined = tokio::task::spawn_blocking(move || {
            threads
                .into_iter()
                .map(thread::JoinHandle::join)
                .fold(true, |well, end| well & end.is_ok())
        });
        if !joined.await.unwrap_or(false) {
            tracing::error!("a door's thread failed");
        }
    }
}
