//! The text door, over UDP: one datagram asks and one answers.
//!
//! - [`event_loop`]: receive a batch, answer it, send the replies, as many as possible at once
//! - [`handler`]: parse, decide, encode, without a socket
//! - [`socket`]: binding, one socket for each loop
//! - [`mmsg`]: batched system calls
//!
//! For every address there is one loop for each core, each on a thread of its own with a socket
//! of its own; the kernel spreads clients over them. The bytes of the protocol are the business
//! of `tidegate_wire::text`.

mod event_loop;
mod handler;
mod mmsg;
mod socket;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::event_loop::TextLoop;
pub use self::handler::{Replies, TextHandler};
use self::socket::LoopSocket;
use super::io::tcp::loops;
use super::{BoundDoor, DoorConfig, Gate, Serving, table_of};
use crate::metrics::{Door, Metrics};
use crate::settings::listen::{Allow, Listen, ListenAddress};

/// The port of the built-in default.
const PORT: u16 = 2000;

/// The `[text]` table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The addresses to listen on.
    pub listen: Listen,
    /// Clients that are answered. Others get no answer.
    #[serde(skip_serializing_if = "Allow::is_open")]
    pub allow: Allow,
}

impl Default for Config {
    fn default() -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        Self { listen: address.into(), allow: Allow::default() }
    }
}

impl DoorConfig for Config {
    fn door(&self) -> Door {
        Door::Text
    }

    fn listens_at(&self) -> Vec<(&'static str, ListenAddress)> {
        self.listen.places()
    }

    fn allow(&self) -> &Allow {
        &self.allow
    }

    fn same_sockets(&self, other: &dyn DoorConfig) -> bool {
        table_of::<Self>(other).is_some_and(|other| self.listen == other.listen)
    }

    fn waits_for_store(&self) -> bool {
        true
    }

    fn takes_datagrams(&self) -> bool {
        true
    }

    fn bind(&self) -> io::Result<Box<dyn BoundDoor>> {
        Ok(Box::new(bind(self)?))
    }

    fn boxed(&self) -> Box<dyn DoorConfig> {
        Box::new(self.clone())
    }
}

/// A door whose sockets are bound and that does not serve yet.
pub struct Bound {
    /// For each address, its sockets: one for each loop.
    sockets: Vec<Vec<LoopSocket>>,
}

/// Takes every address of `config`, or none.
///
/// # Errors
/// The address that cannot be had, and why.
pub fn bind(config: &Config) -> io::Result<Bound> {
    let sockets = config
        .listen
        .addresses()
        .iter()
        .map(|&address| socket::bind(address, loops()))
        .collect::<io::Result<_>>()?;
    Ok(Bound { sockets })
}

impl BoundDoor for Bound {
    fn addresses(&self) -> Vec<ListenAddress> {
        let first = |sockets: &Vec<LoopSocket>| sockets.first()?.udp.local_addr().ok();
        self.sockets.iter().filter_map(first).map(ListenAddress::Ip).collect()
    }

    fn discard_queued(&self, metrics: &Metrics) {
        for socket in self.sockets.iter().flatten() {
            for _ in 0..socket::discard_queued(&socket.udp) {
                metrics.bad_input(Door::Text, "before_start");
            }
        }
    }

    fn serve(self: Box<Self>, gate: Gate) -> Serving {
        let start = |(number, socket): (usize, LoopSocket)| {
            let gate = gate.clone();
            thread::Builder::new()
                .name(format!("text-{number}"))
                .spawn(move || {
                    let handle = gate.limiter.handle(Door::Text);
                    TextLoop::new(socket, handle, gate.door.allow)
                        .expect("the system has file descriptors left at start-up")
                        .run(&gate.door.shutdown);
                })
                .expect("the system has threads left at start-up")
        };
        Serving::threads(self.sockets.into_iter().flatten().enumerate().map(start).collect())
    }
}
