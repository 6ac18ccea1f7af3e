//! The JARL door, over TCP. A client that connects is told how long to wait.
//!
//! - [`config`]: the `[[jarl]]` tables, and the rule that each of them makes
//! - [`handler`]: book and encode, without a socket
//!
//! Sockets, and clients that have an answer and have not left yet, are the business of `doors::io`,
//! the bytes of the protocol that of `tidegate_wire::jarl`.

mod config;
mod handler;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use self::config::{Config, check_service};
pub use self::handler::JarlHandler;
use super::io::certificates::Certificates;
use super::io::limits::DoorLimits;
use super::io::listeners::{Listeners, LoopSettings};
use super::{BoundDoor, DoorConfig, Gate, Serving, table_of};
use crate::metrics::Door;
use crate::settings::listen::{Allow, ListenAddress};
use crate::settings::tls::Tls;

/// How long a client may take to begin TLS.
const IDLE_MAX: Duration = Duration::from_secs(5);

impl DoorConfig for Config {
    fn door(&self) -> Door {
        Door::Jarl
    }

    fn listens_at(&self) -> Vec<(&'static str, ListenAddress)> {
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

    fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    fn bind(&self) -> io::Result<Box<dyn BoundDoor>> {
        Ok(Box::new(Bound {
            listeners: Listeners::bind(self.listen.addresses(), None, self.tls.as_ref())?,
            key: self.key().into(),
            connections: self.connections(),
        }))
    }

    fn boxed(&self) -> Box<dyn DoorConfig> {
        Box::new(self.clone())
    }
}

/// A door whose sockets are bound and that does not serve yet.
struct Bound {
    listeners: Listeners,
    key: Box<[u8]>,
    connections: DoorLimits,
}

impl BoundDoor for Bound {
    fn addresses(&self) -> Vec<ListenAddress> {
        self.listeners.addresses()
    }

    fn certificates(&self) -> Option<Arc<Certificates>> {
        self.listeners.certificates()
    }

    fn serve(self: Box<Self>, gate: Gate) -> Serving {
        let Self { listeners, key, connections } = *self;
        let settings = LoopSettings::of::<JarlHandler>(&gate, connections, IDLE_MAX);
        Serving::threads(listeners.serve(settings, &gate.door.shutdown, |inbox| {
            JarlHandler::of_key(gate.limiter.handle(Door::Jarl), key.clone(), inbox.clone())
        }))
    }
}
