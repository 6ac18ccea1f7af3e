//! The RESP door: the Redis protocol over TCP and Unix sockets.
//!
//! - [`config`]: the `[resp]` table; [`credentials`]: passwords
//! - [`handler`]: from bytes to replies, without a socket; [`conversation`] is a client of it
//! - [`in_loop`]: the handler as an event loop drives it
//! - [`commands`]: the table of commands, and a file for each topic
//! - [`session`], [`pending`]: what is kept for a connection, and replies that come later
//! - [`state`], [`counts`], [`series`]: what all loops share and count
//!
//! Sockets, buffers and idle clients are the business of `doors::io`, the bytes of the protocol
//! that of `tidegate_wire::resp`.

mod commands;
mod config;
mod conversation;
mod counts;
mod credentials;
mod handler;
mod in_loop;
mod pending;
mod series;
mod session;
mod state;

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use self::config::Config;
pub use self::conversation::RespConversation;
use self::handler::{LaterParts, Parts, RespHandler};
use self::state::{RespState, Settings};
use super::io::certificates::Certificates;
use super::io::inbox::InboxOf;
use super::io::limits::DoorLimits;
use super::io::listeners::{Listeners, LoopSettings};
use super::io::settings::places;
use super::{BoundDoor, DoorConfig, Gate, Serving, table_of};
use crate::metrics::Door;
use crate::settings::listen::{Allow, ListenAddress};
use crate::settings::tls::Tls;
use crate::waiting::{WaiterBounds, WaiterLimit};

/// What other threads leave for a loop of this door.
type RespInbox = InboxOf<RespHandler>;

impl DoorConfig for Config {
    fn door(&self) -> Door {
        Door::Resp
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
        true
    }

    fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    fn wrong_files(&self) -> Vec<(&'static str, String)> {
        self.wrong_files()
    }

    fn authenticates(&self) -> bool {
        let by_password = self.password.is_some() || !self.users.is_empty();
        by_password || self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    fn renew(&self, gate: &Gate) {
        // Passwords that cannot be read leave the old ones in force; the check has told of them.
        if let Ok(settings) = self.settings() {
            RespState::of(gate).settings.store(Arc::new(settings));
        }
    }

    fn bind(&self) -> io::Result<Box<dyn BoundDoor>> {
        let listen = self.listen.iter().flat_map(|listen| listen.addresses());
        Ok(Box::new(Bound {
            settings: self.settings().map_err(io::Error::other)?,
            listeners: Listeners::bind(listen, self.unix.as_deref(), self.tls.as_ref())?,
            value_max: usize::try_from(self.max_value.0).unwrap_or(usize::MAX),
            idle_max: self.idle_max(),
            connections: self.connections(),
        }))
    }

    fn boxed(&self) -> Box<dyn DoorConfig> {
        Box::new(self.clone())
    }
}

/// A door that has its addresses and answers no client yet.
struct Bound {
    settings: Settings,
    listeners: Listeners,
    value_max: usize,
    idle_max: Duration,
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
        let Self { settings, listeners, value_max, idle_max, connections } = *self;
        let loops = LoopSettings::of::<RespHandler>(&gate, connections, idle_max);
        let state = RespState::of(&gate);
        // Three quarters of all connections, so that others still get in.
        let waiters_max = (settings.max_connections as usize * 3 / 4).max(1);
        let bounds = WaiterBounds { per_key: waiters_max, total: waiters_max };
        let waiter_limit = WaiterLimit::new(&gate.metrics, Door::Resp, bounds);
        state.settings.store(Arc::new(settings));
        Serving::threads(listeners.serve(loops, &gate.door.shutdown, |inbox: &Arc<RespInbox>| {
            RespHandler::new(Parts {
                limiter: gate.limiter.handle(Door::Resp),
                records: gate.records.clone(),
                later: Arc::new(LaterParts {
                    limiter: gate.limiter.handle(Door::Resp),
                    uses: gate.uses.clone(),
                    waiting: gate.waiting.clone(),
                    waiter_limit: waiter_limit.clone(),
                    shutdown: gate.door.shutdown.clone(),
                }),
                metrics: gate.metrics.clone(),
                state: state.clone(),
                inbox: inbox.clone(),
                value_max,
            })
        }))
    }
}
