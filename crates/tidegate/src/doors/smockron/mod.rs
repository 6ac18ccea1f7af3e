//! The Smockron door: the master. Gatekeepers report the uses that they let pass, and the master
//! publishes which clients must wait.
//!
//! - [`config`]: the `[smockron]` table, and the rules that its domains make
//! - [`handler`]: parse, record and publish, without a socket
//! - [`uses`]: the uses of one batch of messages
//! - [`resync`]: the delayed clients, for gatekeepers that have just started
//! - [`log`]: every accounting message in a file
//! - [`event_loop`]: the thread that owns both sockets
//!
//! The frames of the protocol are the business of `tidegate_wire::smockron`, ZeroMQ that of
//! `tidegate_client::zmq`.

mod config;
mod event_loop;
mod handler;
mod log;
mod resync;
#[cfg(test)]
mod tests;
mod uses;

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;

use tokio::runtime;
use tokio::sync::oneshot;

pub use self::config::{Config, ZmqEndpoint};
use self::event_loop::Sockets;
pub use self::handler::{Handler, Messages, Publish, Settings};
use super::{BoundDoor, DoorConfig, Gate, Serving, table_of};
use crate::metrics::Door;
use crate::settings::listen::{Allow, ListenAddress};

impl DoorConfig for Config {
    fn door(&self) -> Door {
        Door::Smockron
    }

    fn listens_at(&self) -> Vec<(&'static str, ListenAddress)> {
        vec![
            ("accounting", ListenAddress::Ip(self.accounting.0)),
            ("control", ListenAddress::Ip(self.control.0)),
        ]
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

/// A door whose sockets are bound and that does not serve yet.
pub struct Bound {
    addresses: [SocketAddr; 2],
    /// Dropped without a gate, the thread ends and gives the addresses up.
    gate: Option<oneshot::Sender<Gate>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Takes both addresses of `config`, or none.
///
/// The sockets live on the runtime of the door's thread, so the thread is started here already.
///
/// # Errors
/// The address that cannot be had, and why.
pub fn bind(config: &Config) -> io::Result<Bound> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (gate, comes) = oneshot::channel();
    let (tell, told) = mpsc::sync_channel(1);
    let config = config.clone();
    let work = move || {
        runtime.block_on(async {
            let bound = Sockets::bind(&config).await;
            // The caller below waits for this; it is sent once.
            let _ = match bound {
                Ok(sockets) => {
                    let _ = tell.send(Ok(sockets.addresses()));
                    event_loop::run(sockets, config, comes).await;
                    Ok(())
                }
                Err(error) => tell.send(Err(error)),
            };
        });
    };
    let thread = thread::Builder::new().name("smockron".to_owned()).spawn(work)?;
    match told.recv() {
        Ok(Ok(addresses)) => Ok(Bound { addresses, gate: Some(gate), thread: Some(thread) }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other("the door's thread ended")),
    }
}

impl BoundDoor for Bound {
    fn addresses(&self) -> Vec<ListenAddress> {
        self.addresses.map(ListenAddress::Ip).to_vec()
    }

    fn serve(mut self: Box<Self>, gate: Gate) -> Serving {
        if let Some(send) = self.gate.take() {
            // The thread waits for it.
            let _ = send.send(gate);
        }
        Serving::threads(self.thread.take().into_iter().collect())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        drop(self.gate.take());
        if let Some(thread) = self.thread.take() {
            // The addresses are free when it has ended.
            let _ = thread.join();
        }
    }
}
