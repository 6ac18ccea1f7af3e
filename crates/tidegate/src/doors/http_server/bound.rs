//! An HTTP door whose addresses are taken, and the two ways to serve it.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use axum::Router;
use tokio::runtime::Builder;

use super::connections::{HTTP_PROTOCOLS, HttpBounds, HttpServer};
use crate::doors::io::certificates::Certificates;
use crate::doors::io::tcp;
use crate::doors::{BoundDoor, Gate, Serving};
use crate::metrics::Door;
use crate::settings::listen::{Listen, ListenAddress};
use crate::settings::tls::Tls;

/// Where the connections of a door are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// On the process' runtime.
    Shared,
    /// On a thread and a runtime of the door's own: nothing at another door keeps it from
    /// answering.
    Own,
}

/// An HTTP door that does not answer yet.
pub(crate) struct BoundHttp {
    door: Door,
    listeners: Vec<TcpListener>,
    certificates: Option<Arc<Certificates>>,
    bounds: HttpBounds,
    router: fn(&Gate) -> Router,
    runtime: Runtime,
}

impl BoundHttp {
    /// Takes the addresses. Another program on one of them is an error, so that is never shared.
    ///
    /// # Errors
    /// When an address cannot be had; none is kept then.
    pub(crate) fn bind(
        door: Door,
        (listen, tls): (&Listen, Option<&Tls>),
        bounds: HttpBounds,
        router: fn(&Gate) -> Router,
        runtime: Runtime,
    ) -> io::Result<Box<dyn BoundDoor>> {
        let certificates = Certificates::read(tls, HTTP_PROTOCOLS)?;
        let listeners = tcp::bind_each(listen.addresses())?;
        Ok(Box::new(Self { door, listeners, certificates, bounds, router, runtime }))
    }
}

impl BoundDoor for BoundHttp {
    fn addresses(&self) -> Vec<ListenAddress> {
        let taken = self.listeners.iter().filter_map(|listener| listener.local_addr().ok());
        taken.map(ListenAddress::Ip).collect()
    }

    fn certificates(&self) -> Option<Arc<Certificates>> {
        self.certificates.clone()
    }

    fn serve(self: Box<Self>, gate: Gate) -> Serving {
        let Self { door, listeners, certificates, bounds, router, runtime } = *self;
        let server = HttpServer::new(door, &gate, router(&gate), bounds, certificates);
        let serve = server.serve(listeners);
        match runtime {
            Runtime::Shared => Serving::tasks(vec![tokio::spawn(serve)]),
            Runtime::Own => serve_alone(door, serve),
        }
    }
}

/// Serves on a thread and a runtime of the door's own.
fn serve_alone(door: Door, serve: impl Future<Output = ()> + Send + 'static) -> Serving {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(door = door.name(), %error, "cannot serve");
            return Serving::default();
        }
    };
    let run = move || {
        runtime.block_on(serve);
        // A scan whose client has left is not waited for.
        runtime.shutdown_background();
    };
    let thread = thread::Builder::new()
        .name(door.name().to_owned())
        .spawn(run)
        .expect("the system has threads left at start-up");
    Serving::threads(vec![thread])
}
