//! The JARL door, over TCP. Who connects is told how long to wait.
//!
//! - [`config`]: the `[[jarl]]` tables, and the rule that each of them makes
//! - [`corridor`]: book and encode, without a socket
//! - [`turn`]: one loop: accept, answer, see out
//! - [`linger`]: who has an answer and has not left yet
//!
//! For every address there is one loop for each core, each on a thread of its own with a listener
//! of its own; the kernel spreads clients over them. The bytes of the protocol are the business of
//! `tidegate_wire::jarl`.

mod config;
mod corridor;
mod linger;
mod turn;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::thread;

pub use self::config::{Config, check_service};
pub use self::corridor::Corridor;
use self::turn::Loop;
use super::io::limits::AllDoors;
use super::io::sources::Sources;
use super::io::tcp;
use super::{BoundDoor, DoorConfig, Gate, Serving, table_of};
use crate::metrics::Door;
use crate::settings::listen::{Address, Allow};

impl DoorConfig for Config {
    fn door(&self) -> Door {
        Door::Jarl
    }

    fn listens_at(&self) -> Vec<(&'static str, Address)> {
        self.listen.places()
    }

    fn allow(&self) -> &Allow {
        &self.allow
    }

    fn same_sockets(&self, other: &dyn DoorConfig) -> bool {
        table_of::<Self>(other).is_some_and(|other| self.same_door(other))
    }

    fn waits_for_store(&self) -> bool {
        true
    }

    fn bind(&self) -> io::Result<Box<dyn BoundDoor>> {
        Ok(Box::new(bind(self)?))
    }

    fn boxed(&self) -> Box<dyn DoorConfig> {
        Box::new(self.clone())
    }
}

/// A door whose addresses are taken and that answers nobody yet.
pub struct Bound {
    /// For each address, its sockets: one for each loop.
    listeners: Vec<(SocketAddr, Vec<TcpListener>)>,
    key: Box<[u8]>,
    connections_max: u32,
    per_source: Option<u32>,
}

/// Takes every address of `config`, or none.
///
/// # Errors
/// The address that cannot be had, and why.
pub fn bind(config: &Config) -> io::Result<Bound> {
    let loops = thread::available_parallelism().map_or(1, NonZero::get);
    let bind_one = |&address: &SocketAddr| tcp::bind(address, loops);
    let listeners = config.listen.addresses().iter().map(bind_one).collect::<io::Result<_>>()?;
    Ok(Bound {
        listeners,
        key: config.key().into(),
        connections_max: config.max_connections,
        per_source: config.max_connections_per_source,
    })
}

impl BoundDoor for Bound {
    fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|(address, _)| Address::Ip(*address)).collect()
    }

    fn serve(self: Box<Self>, gate: Gate) -> Serving {
        let Self { listeners, key, connections_max, per_source } = *self;
        let sources = Sources::new(connections_max, per_source, Allow::default());
        let listeners: Vec<TcpListener> = listeners.into_iter().flat_map(|(_, all)| all).collect();
        // Rounded up, so that each loop has room for one at least.
        let share = (connections_max as usize).div_ceil(listeners.len().max(1));
        let start = |(number, listener): (usize, TcpListener)| {
            let corridor = Corridor::of_key(gate.limiter.desk(Door::Jarl), key.clone());
            let (allow, all_doors) = (gate.door.allow.clone(), AllDoors::of(&gate));
            let turning = Loop::new(corridor, listener, allow, share, sources.clone(), all_doors)
                .expect("the system has file descriptors left at start-up");
            let shutdown = gate.door.shutdown.clone();
            thread::Builder::new()
                .name(format!("jarl-{number}"))
                .spawn(move || turning.run(&shutdown))
                .expect("the system has threads left at start-up")
        };
        Serving::threads(listeners.into_iter().enumerate().map(start).collect())
    }
}
