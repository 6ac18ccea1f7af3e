//! The Throttr door: records over TCP and Unix sockets, one value size per listener.
//!
//! - [`config`]: the `[[throttr]]` table
//! - [`handler`]: the protocol as an event loop drives it; [`conversation`] is a client without a
//!   socket
//! - [`session`], [`channels`]: what a connection is subscribed to, and events between loops
//! - [`state`], [`connection_stats`], [`counts`], [`series`]: what all loops share and count
//! - [`background`]: the answers that list the server's state; [`permits`] bounds their memory
//!
//! Sockets, buffers and clients that are slow or idle are the business of `doors::io`, the bytes of
//! the protocol that of `tidegate_wire::throttr`.

mod background;
mod channels;
mod config;
mod connection_stats;
mod conversation;
mod counts;
mod handler;
mod permits;
mod series;
mod session;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidegate_wire::throttr::ValueSize;

pub use self::config::{Bits, Config};
pub use self::conversation::Conversation;
use self::handler::ThrottrHandler;
use self::session::LocalSubscriptions;
pub use self::state::ThrottrState;
use super::io::certificates::Certificates;
use super::io::inbox::InboxOf;
use super::io::limits::DoorLimits;
use super::io::listeners::{Listeners, LoopSettings};
use super::io::settings::places;
use super::{BoundDoor, DoorConfig, Gate, Serving, table_of};
use crate::metrics::Door;
use crate::settings::listen::{Allow, ListenAddress};
use crate::settings::tls::Tls;

/// What other threads leave for a loop of this door.
type ThrottrInbox = InboxOf<ThrottrHandler>;

impl From<Bits> for ValueSize {
    fn from(bits: Bits) -> Self {
        match bits {
            Bits::Eight => ValueSize::Bits8,
            Bits::Sixteen => ValueSize::Bits16,
            Bits::ThirtyTwo => ValueSize::Bits32,
            Bits::SixtyFour => ValueSize::Bits64,
        }
    }
}

impl DoorConfig for Config {
    fn door(&self) -> Door {
        Door::Throttr
    }

    fn listens_at(&self) -> Vec<(&'static str, ListenAddress)> {
        places(self.listen.as_ref(), self.unix.as_deref())
    }

    fn allow(&self) -> &Allow {
        &self.allow
    }

    fn same_sockets(&self, other: &dyn DoorConfig) -> bool {
        table_of::<Self>(other).is_some_and(|other| self.same_door(other))
    }

    fn waits_for_store(&self) -> bool {
        // Its records lie in no store.
        false
    }

    fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
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
    listeners: Listeners,
    size: ValueSize,
    value_max: usize,
    idle_max: Duration,
    connections: DoorLimits,
}

/// Takes every address of `config`, or none.
///
/// # Errors
/// The address that cannot be had, and why.
pub fn bind(config: &Config) -> io::Result<Bound> {
    let listen = config.listen.iter().flat_map(|listen| listen.addresses());
    Ok(Bound {
        listeners: Listeners::bind(listen, config.unix.as_deref(), config.tls.as_ref())?,
        size: config.value_size.into(),
        value_max: usize::try_from(config.max_value.0).unwrap_or(usize::MAX),
        idle_max: config.idle_timeout.0,
        connections: config.connections(),
    })
}

impl BoundDoor for Bound {
    fn addresses(&self) -> Vec<ListenAddress> {
        self.listeners.addresses()
    }

    fn certificates(&self) -> Option<Arc<Certificates>> {
        self.listeners.certificates()
    }

    fn serve(self: Box<Self>, gate: Gate) -> Serving {
        let Self { listeners, size, value_max, idle_max, connections } = *self;
        let settings = LoopSettings::of::<ThrottrHandler>(&gate, connections, idle_max);
        let (state, shutdown) = (ThrottrState::of(&gate), &gate.door.shutdown);
        Serving::threads(listeners.serve(settings, shutdown, |inbox: &Arc<ThrottrInbox>| {
            let local = LocalSubscriptions::new(inbox.clone());
            let (records, state) = (gate.records.clone(), state.clone());
            ThrottrHandler::new(records, state, local, gate.metrics.clone(), size, value_max)
        }))
    }
}
