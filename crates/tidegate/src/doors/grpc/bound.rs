//! The door whose addresses are taken, and how it is served. It accepts at every listener. When it
//! closes, it says so, serves clients until they have heard of it, and drains.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::task::JoinSet;
use tonic_health::ServingStatus;

use super::call_counts::CallCounts;
use super::config::Config;
use super::connection::{ConnectionTimes, GrpcServer};
use super::quotas::Quotas;
use super::services;
use crate::doors::envoy::settings::{AnswerSettings, EnvoyState};
use crate::doors::io::accept::Acceptor;
use crate::doors::io::certificates::Certificates;
use crate::doors::io::limits::DoorLimits;
use crate::doors::io::listener::{self, SocketFile, StreamListener};
use crate::doors::io::tcp;
use crate::doors::{BoundDoor, Gate, Serving};
use crate::metrics::Door;
use crate::settings::listen::ListenAddress;

/// The protocol that TLS agrees on (ALPN).
const PROTOCOLS: &[&[u8]] = &[b"h2"];

/// A door that does not answer yet.
pub(super) struct BoundGrpc {
    listeners: Vec<TcpListener>,
    unix: Option<(std::os::unix::net::UnixListener, SocketFile)>,
    certificates: Option<Arc<Certificates>>,
    limits: DoorLimits,
    times: ConnectionTimes,
    settings: AnswerSettings,
    /// The setting `hold`: after this time a use in flight lapses.
    lapse_after: Duration,
}

impl BoundGrpc {
    /// Takes the addresses.
    pub(super) fn bind(config: &Config) -> io::Result<Self> {
        let certificates = Certificates::read(config.tls.as_ref(), PROTOCOLS)?;
        let addresses = config.listen.iter().flat_map(|listen| listen.addresses()).copied();
        let listeners = tcp::bind_each(&addresses.collect::<Vec<_>>())?;
        let unix = match &config.unix {
            Some(path) => match listener::bind_unix(path)? {
                (StreamListener::Unix(listener), file) => Some((listener, file)),
                (StreamListener::Tcp(_), _) => None,
            },
            None => None,
        };
        Ok(Self {
            listeners,
            unix,
            certificates,
            limits: config.connections(),
            times: ConnectionTimes {
                idle_max: config.idle_timeout.map(|span| span.0),
                age_max: config.max_connection_age.0,
            },
            settings: config.answer_settings(),
            lapse_after: config.hold.0,
        })
    }
}

impl BoundDoor for BoundGrpc {
    fn addresses(&self) -> Vec<ListenAddress> {
        let taken = self.listeners.iter().filter_map(|listener| listener.local_addr().ok());
        let unix = self.unix.iter().map(|(_, file)| ListenAddress::Unix(file.path().to_owned()));
        taken.map(ListenAddress::Ip).chain(unix).collect()
    }

    fn certificates(&self) -> Option<Arc<Certificates>> {
        self.certificates.clone()
    }

    fn serve(self: Box<Self>, gate: Gate) -> Serving {
        EnvoyState::of(&gate).put_in_force(self.settings);
        gate.uses.lapse_unnamed_after(self.lapse_after);
        let mut acceptor = Acceptor::of(Door::Grpc, &gate, self.limits, self.certificates);
        // Connections and listeners go on for a while after the door was told to close.
        let closing = std::mem::take(&mut acceptor.shutdown);
        let (listeners, unix, times) = (self.listeners, self.unix, self.times);
        Serving::tasks(vec![tokio::spawn(async move {
            let (routes, reporter) = services::services(&gate).await;
            let (clock, counts) = (gate.clock().clone(), CallCounts::of(&gate));
            let called_at = AtomicU64::new(0);
            let health = Arc::default();
            let server = GrpcServer { acceptor, routes, times, clock, counts, called_at, health };
            let server = Arc::new(server);
            let mut accepting = JoinSet::new();
            for listener in listeners {
                accepting.spawn(server.clone().accept(listener));
            }
            // The file goes when the last client that came through it may have found it.
            let mut file = None;
            if let Some((listener, socket_file)) = unix {
                file = Some(socket_file);
                accepting.spawn(server.clone().accept_unix(listener));
            }
            closing.wait().await;
            services::set_status(&reporter, ServingStatus::NotServing).await;
            server.health.close();
            server.wait_until_clients_left(closing.grace()).await;
            server.acceptor.shutdown.set();
            accepting.join_all().await;
            drop(file);
            server.acceptor.limits.wait_until_empty().await;
            Quotas::of(&gate).settle();
        })])
    }
}
