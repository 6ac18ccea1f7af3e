//! The gRPC door: Envoy's rate limit and quota services, over TCP and Unix sockets, on the process'
//! runtime.
//!
//! - [`config`]: the `[grpc]` table; [`envoy_files`]: the folder of YAML that it may name
//! - [`xds`], [`xds_stream`]: the setting for a management server that may send such a
//!   configuration, and the client that follows it
//! - [`bound`], [`connection`]: from listening sockets to gRPC calls
//! - [`call_counts`], [`call_body`]: what is counted of calls, and what clients send in one
//! - [`health_askers`]: the clients that must hear that the door closes
//! - [`services`]: which services the door has; `ShouldRateLimit`, on which `doors/envoy` decides
//! - [`quota_service`]: a stream of the quota service; [`quotas`]: all streams, and the one
//!   division of the process, which takes uses through [`quota_bank`] and answers by
//!   [`quota_messages`]
//! - [`stream_places`], [`bucket_ids`], [`quota_answers`]: how many streams there may be, and what
//!   the ids of buckets and unread answers may take
//!
//! Messages and keys are `tidegate_envoy`'s. The door knows neither the store nor other doors.

mod bound;
mod bucket_ids;
mod call_body;
mod call_counts;
mod config;
mod connection;
mod envoy_files;
mod health_askers;
mod quota_answers;
mod quota_bank;
mod quota_messages;
mod quota_service;
mod quotas;
mod services;
mod stream_places;
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
use super::io::settings::places;
use super::{BoundDoor, DoorConfig, Gate, table_of};
use crate::metrics::Door;
use crate::settings::listen::{Allow, ListenAddress};
use crate::settings::tls::Tls;

impl DoorConfig for Config {
    fn door(&self) -> Door {
        Door::Grpc
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

    fn wrong_files(&self) -> Vec<(&'static str, String)> {
        self.wrong_files()
    }

    fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    fn renew(&self, gate: &Gate) {
        gate.uses.lapse_unnamed_after(self.hold.0);
        EnvoyState::of(gate).put_in_force(self.answer_settings());
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
