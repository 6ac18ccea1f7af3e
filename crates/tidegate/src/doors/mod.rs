//! The doors: one folder for each protocol, and what they all have in common.
//!
//! A door has a `Config` (serde, beside its code), binds it to sockets, and serves a [`Gate`]
//! until its [`Shutdown`] is set. Doors know neither each other nor the store.
//!
//! To add one: a folder here, a codec in `tidegate-wire`, a variant in [`DoorConfig`] and in
//! [`Bound`], and a field in the configuration's `File`.

pub mod admin;
pub(crate) mod forwarded;
mod gate;
pub mod http;
pub(crate) mod http_server;
pub(crate) mod io;
pub mod jarl;
pub(crate) mod mailbox;
pub mod proxy;
pub(crate) mod ratelimit;
pub mod smockron;
pub(crate) mod template;
pub mod text;
pub mod throttr;

use std::thread;

pub use self::gate::{DoorSwitches, Gate, Report, SharedState};
use crate::metrics::{Door, Metrics};
use crate::settings::listen::{Address, Allow, Listen};
pub use crate::shutdown::Shutdown;

/// The configuration of one door, whichever it is.
#[derive(Clone, Debug, PartialEq)]
pub enum DoorConfig {
    /// Limits over UDP, one line per datagram.
    Text(text::Config),
    /// Records over TCP and Unix sockets.
    Throttr(throttr::Config),
    /// Delays over TCP.
    Jarl(jarl::Config),
    /// The master of gatekeepers, over ZeroMQ.
    Smockron(Box<smockron::Config>),
    /// A reverse proxy.
    Proxy(Box<proxy::Config>),
    /// Asking over JSON, `/metrics`, `/healthz` and `/readyz`.
    Http(http::Config),
    /// Administration over JSON.
    Admin(admin::Config),
}

impl DoorConfig {
    /// Which door it is.
    #[must_use]
    pub fn door(&self) -> Door {
        match self {
            DoorConfig::Text(_) => Door::Text,
            DoorConfig::Throttr(_) => Door::Throttr,
            DoorConfig::Jarl(_) => Door::Jarl,
            DoorConfig::Smockron(_) => Door::Smockron,
            DoorConfig::Proxy(_) => Door::Proxy,
            DoorConfig::Http(_) => Door::Http,
            DoorConfig::Admin(_) => Door::Admin,
        }
    }

    /// Where it wants to be reached, in file order.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        let ip = |listen: &Listen| listen.addresses().iter().copied().map(Address::Ip).collect();
        match self {
            DoorConfig::Text(config) => ip(&config.listen),
            DoorConfig::Throttr(config) => config.addresses(),
            DoorConfig::Jarl(config) => ip(&config.listen),
            DoorConfig::Smockron(config) => config.addresses(),
            DoorConfig::Proxy(config) => ip(&config.listen),
            DoorConfig::Http(config) => ip(&config.listen),
            DoorConfig::Admin(config) => ip(&config.listen),
        }
    }

    /// Whether it can be reached from other machines.
    #[must_use]
    pub fn beyond_loopback(&self) -> bool {
        self.addresses().iter().any(Address::beyond_loopback)
    }

    /// Who may come in.
    #[must_use]
    pub fn allow(&self) -> &Allow {
        match self {
            DoorConfig::Text(config) => &config.allow,
            DoorConfig::Throttr(config) => &config.allow,
            DoorConfig::Jarl(config) => &config.allow,
            DoorConfig::Smockron(config) => &config.allow,
            DoorConfig::Proxy(config) => &config.allow,
            DoorConfig::Http(config) => &config.allow,
            DoorConfig::Admin(config) => &config.allow,
        }
    }

    /// Whether a door of `other` can become one of `self` without giving up its sockets.
    ///
    /// Allow lists and host names are swapped while the door is open; a setting that is not must
    /// be compared here.
    #[must_use]
    pub fn same_sockets(&self, other: &DoorConfig) -> bool {
        match (self, other) {
            (DoorConfig::Throttr(ours), DoorConfig::Throttr(theirs)) => ours.same_door(theirs),
            (DoorConfig::Jarl(ours), DoorConfig::Jarl(theirs)) => ours.same_door(theirs),
            (DoorConfig::Smockron(ours), DoorConfig::Smockron(theirs)) => ours.same_door(theirs),
            (DoorConfig::Proxy(ours), DoorConfig::Proxy(theirs)) => ours.same_door(theirs),
            (DoorConfig::Http(ours), DoorConfig::Http(theirs)) => ours.same_door(theirs),
            (DoorConfig::Admin(ours), DoorConfig::Admin(theirs)) => ours.same_door(theirs),
            _ => self.door() == other.door() && self.addresses() == other.addresses(),
        }
    }

    /// Whether it must not be served before a remote store has answered once. The HTTP door and
    /// administration are served before: they answer for the process' health meanwhile and hold
    /// all other requests themselves. Throttr's records lie in no store.
    #[must_use]
    pub fn waits_for_store(&self) -> bool {
        match self {
            DoorConfig::Text(_)
            | DoorConfig::Jarl(_)
            | DoorConfig::Smockron(_)
            | DoorConfig::Proxy(_) => true,
            DoorConfig::Throttr(_) | DoorConfig::Http(_) | DoorConfig::Admin(_) => false,
        }
    }

    /// Puts in force what can change while the door is open, beside its allow list.
    pub fn renew(&self, gate: &Gate) {
        if let DoorConfig::Http(config) = self {
            config.renew(gate);
        }
    }

    /// Takes the door's addresses. Nothing is answered yet.
    pub fn bind(&self) -> std::io::Result<Bound> {
        Ok(match self {
            DoorConfig::Text(config) => Bound::Text(text::bind(config)?),
            DoorConfig::Throttr(config) => Bound::Throttr(throttr::bind(config)?),
            DoorConfig::Jarl(config) => Bound::Jarl(jarl::bind(config)?),
            DoorConfig::Smockron(config) => Bound::Smockron(smockron::bind(config)?),
            DoorConfig::Proxy(config) => Bound::Proxy(Box::new(proxy::bind(config)?)),
            DoorConfig::Http(config) => Bound::Http(http::bind(config)?),
            DoorConfig::Admin(config) => Bound::Admin(admin::bind(config)?),
        })
    }
}

/// A door whose addresses are taken and that answers nobody yet.
pub enum Bound {
    /// Limits over UDP, one line per datagram.
    Text(text::Bound),
    /// Records over TCP and Unix sockets.
    Throttr(throttr::Bound),
    /// Delays over TCP.
    Jarl(jarl::Bound),
    /// The master of gatekeepers, over ZeroMQ.
    Smockron(smockron::Bound),
    /// A reverse proxy.
    Proxy(Box<proxy::Bound>),
    /// Asking over JSON.
    Http(http::Bound),
    /// Administration over JSON.
    Admin(admin::Bound),
}

impl Bound {
    /// The addresses, in file order, with real ports.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        match self {
            Bound::Text(bound) => bound.addresses().into_iter().map(Address::Ip).collect(),
            Bound::Throttr(bound) => bound.addresses(),
            Bound::Jarl(bound) => bound.addresses().into_iter().map(Address::Ip).collect(),
            Bound::Smockron(bound) => bound.addresses().into_iter().map(Address::Ip).collect(),
            Bound::Proxy(bound) => bound.addresses().into_iter().map(Address::Ip).collect(),
            Bound::Http(bound) => bound.addresses().into_iter().map(Address::Ip).collect(),
            Bound::Admin(bound) => bound.addresses().into_iter().map(Address::Ip).collect(),
        }
    }

    /// Drops what arrived while the door was bound and not served, where answering it late would
    /// be of no use: datagrams. Connections wait in the backlog, messages in their socket.
    pub fn discard_queued(&self, metrics: &Metrics) {
        if let Bound::Text(bound) = self {
            bound.discard_queued(metrics);
        }
    }

    /// Begins to answer. Must be called on the process' runtime.
    #[must_use]
    pub fn serve(self, gate: Gate) -> Serving {
        match self {
            Bound::Text(bound) => bound.serve(gate),
            Bound::Throttr(bound) => bound.serve(gate),
            Bound::Jarl(bound) => bound.serve(gate),
            Bound::Smockron(bound) => bound.serve(gate),
            Bound::Proxy(bound) => bound.serve(gate),
            Bound::Http(bound) => bound.serve(gate),
            Bound::Admin(bound) => bound.serve(gate),
        }
    }
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
                tracing::error!(%error, "a door's task ended badly");
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
            tracing::error!("a door's thread ended badly");
        }
    }
}
