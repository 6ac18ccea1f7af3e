//! The gRPC door: Envoy's rate limit and quota services, over TCP and Unix sockets, on the process'
//! runtime.
//!
//! - [`config`]: the `[grpc]` table; [`envoy_files`]: the folder of YAML that it may name
//! - [`xds`], [`xds_stream`]: the management server that may send such a configuration
//! - [`bound`], [`connection`]: from listening sockets to gRPC calls
//! - [`calls`], [`call_body`], [`held`]: what is counted of calls, and what they may hold
//! - [`health_askers`]: who must hear of the end
//! - [`services`]: which services the door has
//! - [`rate_limit_service`]: one call of the rate limit service, which `doors/envoy` decides on
//! - [`quota_service`], [`quotas`]: the quota service, and the one division of the process;
//!   [`quota_bank`], [`quota_messages`]: what that takes uses from, and what it sends
//!
//! Messages and keys are `tidegate_envoy`'s. The door knows neither the store nor other doors.

mod bound;
mod call_body;
mod calls;
mod config;
mod connection;
mod envoy_files;
mod health_askers;
mod held;
mod quota_bank;
mod quota_messages;
mod quota_service;
mod quotas;
mod rate_limit_service;
mod services;
mod xds;
mod xds_stream;

use std::io;

use self::bound::BoundGrpc;
pub use self::config::{Config, DomainTable};
pub use self::envoy_files::{load_folder, native_rules};
pub use self::xds::{Xds, XdsResources};
pub use self::xds_stream::{XdsUpdate, follow as follow_xds};
use super::envoy::settings::{AnswerSettings, EnvoyState};
pub use super::envoy::settings::{Counting, HeaderNames};
use super::{BoundDoor, DoorConfig, Gate, table_of};
use crate::metrics::Door;
use crate::settings::listen::{Allow, ListenAddress};
use crate::settings::tls::Tls;

impl DoorConfig for Config {
    fn door(&self) -> Door {
        Door::Grpc
    }

    fn listens_at(&self) -> Vec<(&'static str, ListenAddress)> {
        let listen = self.listen.iter().flat_map(|listen| listen.places());
        let unix = self.unix.iter().map(|path| ("unix", ListenAddress::Unix(path.clone())));
        listen.chain(unix).collect()
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

    fn wrong_files(&self) -> Vec<(&'static str, String)> {
        self.wrong_files()
    }

    fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    fn renew(&self, gate: &Gate) {
        gate.uses.lapse_unnamed_after(self.hold.0);
        EnvoyState::of(gate).put_in_force(self.answers());
    }

    fn retire(&self, gate: &Gate) {
        EnvoyState::of(gate).put_in_force(AnswerSettings::default());
    }

    fn bind(&self) -> io::Result<Box<dyn BoundDoor>> {
        Ok(Box::new(BoundGrpc::bind(self)?))
    }

    fn boxed(&self) -> Box<dyn DoorConfig> {
        Box::new(self.clone())
    }
}
