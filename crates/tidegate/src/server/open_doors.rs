//! The doors that are open, and how a new configuration opens, closes and keeps them.
//!
//! Either every wanted door is open afterwards, or nothing has changed: addresses are taken
//! before anything is given up. Only a door that moves onto an address of its own former self has
//! to close first; if its new addresses cannot be had, it opens again where it was.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::doors::{BoundDoor, Certificates, DoorConfig, DoorSwitches, Gate, Serving, Shutdown};
use crate::settings::listen::ListenAddress;

/// A door could not have its addresses.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the {door} door at {addresses}: {error}")]
pub struct BindError {
    /// The door's name.
    pub door: &'static str,
    /// The addresses it wanted.
    pub addresses: String,
    /// What the system said.
    pub error: io::Error,
}

/// The doors that a change opened and closed: name and address of each.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) opened: Vec<String>,
    pub(super) closed: Vec<String>,
}

struct OpenDoor {
    config: Box<dyn DoorConfig>,
    addresses: Vec<ListenAddress>,
    switches: DoorSwitches,
    serving: Serving,
    certificates: Option<Arc<Certificates>>,
    /// Bound, and not served before the store has answered.
    held: Option<(Box<dyn BoundDoor>, Box<Gate>)>,
}

/// The doors that are open, in the order of the contract.
pub(super) struct OpenDoors {
    open: Vec<OpenDoor>,
    /// Doors that were closed and still have requests to end.
    draining: JoinSet<()>,
    /// What every door gets, but for its own allow list and sign to stop.
    gate: Gate,
    /// Whether doors that need the store are bound only, until [`Self::serve_held`].
    holding: bool,
}

impl OpenDoors {
    pub(super) fn new(gate: Gate) -> Self {
        Self { open: Vec::new(), draining: JoinSet::new(), gate, holding: false }
    }

    /// From now on doors that need the store are bound and not served.
    pub(super) fn hold(&mut self) {
        self.holding = true;
    }

    /// Serves the doors that were held, and from now on every door as it is opened.
    pub(super) fn serve_held(&mut self) {
        self.holding = false;
        for door in &mut self.open {
            if let Some((bound, gate)) = door.held.take() {
                bound.discard_queued(&gate.metrics);
                door.serving = bound.serve(*gate);
            }
        }
    }

    /// Opens, closes and keeps doors so that exactly `wanted` are open, and calls `commit` at the
    /// moment from which nothing can fail any more. On an error nothing has changed. Tells which
    /// doors were opened and closed.
    pub(super) async fn change(
        &mut self,
        wanted: Vec<Box<dyn DoorConfig>>,
        grace: Duration,
        commit: impl FnOnce(),
    ) -> Result<Moved, BindError> {
        let mut leaving: Vec<OpenDoor> = Vec::new();
        let mut staying: Vec<OpenDoor> = Vec::new();
        // Each wanted door keeps one open door at most: there may be two of the same settings.
        let mut arriving: Vec<&dyn DoorConfig> = wanted.iter().map(|config| &**config).collect();
        for door in self.open.drain(..) {
            match arriving.iter().position(|config| config.same_sockets(&*door.config)) {
                Some(kept) => {
                    arriving.remove(kept);
                    staying.push(door);
                }
                None => leaving.push(door),
            }
        }
        let certificates = read_certificates(&staying);
        let mut bound = bind_all(&arriving);
        if let Err(error) = &bound
            && error.error.kind() == io::ErrorKind::AddrInUse
            && leaving.iter().any(|door| arriving.iter().any(|config| door.blocks(*config)))
        {
            // Doors that leave free their addresses first. If that does not help, they open again.
            close(&mut leaving, grace, &mut self.draining).await;
            bound = bind_all(&arriving);
        }
        let (bound, certificates) = match bound.and_then(|bound| Ok((bound, certificates?))) {
            Ok(read) => read,
            Err(error) => {
                self.open = staying;
                self.reopen(leaving);
                return Err(error);
            }
        };
        commit();
        for (certificates, read) in certificates {
            certificates.replace(read);
        }
        let shown = |kind: &'static str, addresses: Vec<ListenAddress>| {
            addresses.into_iter().map(move |address| format!("{kind} {address}"))
        };
        let opened = bound.iter().zip(&arriving);
        let opened = opened.flat_map(|(new, config)| shown(config.door().name(), new.addresses()));
        let mut moved = Moved { opened: opened.collect(), closed: Vec::new() };
        let is_last =
            |door: &&OpenDoor| wanted.iter().all(|config| config.door() != door.config.door());
        leaving.iter().filter(is_last).for_each(|door| door.config.retire(&self.gate));
        self.settle(wanted, staying, bound);
        for door in leaving {
            moved.closed.extend(shown(door.config.door().name(), door.addresses));
            door.switches.shutdown.set_within(grace);
            self.draining.spawn(door.serving.join());
        }
        Ok(moved)
    }

    /// Serves what was bound and takes over new allow lists, in the order of `wanted`.
    fn settle(
        &mut self,
        wanted: Vec<Box<dyn DoorConfig>>,
        mut staying: Vec<OpenDoor>,
        bound: Vec<Box<dyn BoundDoor>>,
    ) {
        let mut bound = bound.into_iter();
        for config in wanted {
            let kept = staying.iter().position(|door| config.same_sockets(&*door.config));
            if let Some(kept) = kept {
                let mut door = staying.remove(kept);
                if door.config.allow() != config.allow() {
                    warn_if_open_to_all(&*config);
                    door.switches.allow.store(Arc::new(config.allow().clone()));
                }
                config.renew(&self.gate);
                door.config = config;
                self.open.push(door);
            } else if let Some(bound) = bound.next() {
                warn_if_open_to_all(&*config);
                self.open(config, bound);
            }
        }
    }

    /// Takes over new settings of a door that stays open as it is.
    pub(super) fn renew(&mut self, config: Box<dyn DoorConfig>) {
        let door = self.open.iter_mut().find(|door| config.same_sockets(&*door.config));
        if let Some(door) = door {
            config.renew(&self.gate);
            door.config = config;
        }
    }

    fn open(&mut self, config: Box<dyn DoorConfig>, bound: Box<dyn BoundDoor>) {
        let (addresses, certificates) = (bound.addresses(), bound.certificates());
        let allow = Arc::new(ArcSwap::from_pointee(config.allow().clone()));
        let switches = DoorSwitches { allow, shutdown: Shutdown::new() };
        let gate = Gate { door: switches.clone(), ..self.gate.clone() };
        config.renew(&gate);
        let (serving, held) = match self.holding && config.waits_for_store() {
            true => (Serving::default(), Some((bound, Box::new(gate)))),
            false => (bound.serve(gate), None),
        };
        for address in &addresses {
            say(&format!("listening door={} addr={address}", config.door().name()));
        }
        self.open.push(OpenDoor { config, addresses, switches, serving, certificates, held });
    }

    /// Opens doors again that were closed for addresses which could not be taken.
    fn reopen(&mut self, doors: Vec<OpenDoor>) {
        for door in doors {
            if !door.switches.shutdown.is_set() {
                self.open.push(door);
                continue;
            }
            match door.config.bind() {
                Ok(bound) => self.open(door.config, bound),
                Err(error) => {
                    let door = door.config.door().name();
                    tracing::error!(door, %error, "a door could not be opened again");
                }
            }
        }
    }

    /// Tells every door to stop and waits until they have drained; `false` if time ran out.
    pub(super) async fn stop(mut self, grace: Duration) -> bool {
        for door in &self.open {
            door.switches.shutdown.set_within(grace);
        }
        for door in self.open {
            self.draining.spawn(door.serving.join());
        }
        let drained = async { while self.draining.join_next().await.is_some() {} };
        timeout(grace, drained).await.is_ok()
    }
}

impl OpenDoor {
    /// Whether it sits on an address that `config` wants.
    fn blocks(&self, config: &dyn DoorConfig) -> bool {
        let wanted = config.addresses();
        self.addresses.iter().any(|taken| wanted.iter().any(|wanted| wanted.overlaps(taken)))
    }
}

type Read = (Arc<Certificates>, Arc<rustls::ServerConfig>);

/// Reads the certificates of doors that stay open, which may have been renewed.
fn read_certificates(staying: &[OpenDoor]) -> Result<Vec<Read>, BindError> {
    let with_tls = staying.iter().filter_map(|door| Some((door, door.certificates.as_ref()?)));
    let read = with_tls.map(|(door, certificates)| match certificates.read_again() {
        Ok(read) => Ok((certificates.clone(), read)),
        Err(error) => Err(BindError::new(&*door.config, error)),
    });
    read.collect()
}

fn bind_all(arriving: &[&dyn DoorConfig]) -> Result<Vec<Box<dyn BoundDoor>>, BindError> {
    let bind_one =
        |config: &&dyn DoorConfig| config.bind().map_err(|error| BindError::new(*config, error));
    arriving.iter().map(bind_one).collect()
}

impl BindError {
    fn new(config: &dyn DoorConfig, error: io::Error) -> Self {
        let addresses = config.addresses().iter().map(ToString::to_string).collect::<Vec<_>>();
        let addresses = addresses.join(", ");
        Self { door: config.door().name(), addresses, error }
    }
}

/// Closes doors and waits until their sockets are free, but not for ever.
async fn close(doors: &mut [OpenDoor], grace: Duration, draining: &mut JoinSet<()>) {
    for door in doors.iter() {
        door.switches.shutdown.set_within(grace);
    }
    for door in doors {
        let serving = std::mem::take(&mut door.serving);
        let free = match serving.released() {
            Some(released) => {
                // Its requests may take as long to end as at any other close.
                draining.spawn(serving.join());
                timeout(grace, released.wait()).await
            }
            None => timeout(grace, serving.join()).await,
        };
        if free.is_err() {
            tracing::warn!(door = door.config.door().name(), "a door is slow to close");
        }
    }
}

fn warn_if_open_to_all(config: &dyn DoorConfig) {
    if config.beyond_loopback() && config.allow().is_open() && !config.authenticates() {
        let door = config.door().name();
        tracing::warn!(
            door,
            "this door listens beyond loopback and accepts every client: \
             any client that reaches it can use up and read limits; set `allow` in [{door}]"
        );
    }
}

/// A plain line on standard error, whatever the log level. If it is closed, nothing happens.
pub(super) fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
