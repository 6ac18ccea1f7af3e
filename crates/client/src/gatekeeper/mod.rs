//! The gatekeeper of the Smockron protocol: decides locally, in memory, whether a request passes,
//! waits or is rejected, by what a master said last about its client.
//!
//! - `core`: the decision, and what all tasks share; [`Config`]: masters and bounds
//! - `table`: until when clients must wait; `queue`: accounting to be sent; [`Delay`]: a request
//!   that waits
//! - `master_connection`: the task that sends
//! - `control`: the tasks that receive, and that ask for delays after a restart
//! - [`GatekeeperStats`]: what is counted
//!
//! It is permissive when something fails. No master, a slow one, a full queue or a lost message
//! never delays or rejects a request that would have passed, and no request waits for a socket.

mod config;
mod control;
mod core;
mod delay;
mod master_connection;
mod queue;
mod stats;
mod table;
#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

pub use self::config::{
    Config, ConnectError, DOMAIN_BYTES_MAX, DOMAINS_MAX, GATHER, HELD_MAX, IDENTIFIERS_MAX,
    MAX_DELAY, Master, QUEUE_BYTES,
};
use self::core::Core;
pub use self::core::{IDENTIFIER_BYTES_MAX, LOG_INFO_BYTES_MAX};
pub use self::delay::Delay;
pub use self::stats::{BadControl, GatekeeperStats};
use crate::zmq::SubSocket;

/// What becomes of a request.
#[derive(Debug)]
#[must_use]
pub enum Decision {
    /// It passes.
    Accept,
    /// It is held until a time and then passes.
    Delay(Delay),
    /// It is rejected; its client may come back after so long.
    Reject(Duration),
}

impl Decision {
    /// Whether it passes at once.
    #[must_use]
    pub fn is_accept(&self) -> bool {
        matches!(self, Decision::Accept)
    }
}

/// A domain that a gatekeeper knows, looked up once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain(u16);

/// A gatekeeper. Cheap to clone; its thread ends when the last clone is dropped.
///
/// ```
/// use tidegate_client::gatekeeper::{Config, Decision, Gatekeeper, Master};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let master = Master::new("tcp://127.0.0.1:10004", "tcp://127.0.0.1:10005", ["api"]);
/// // Whether the master is there makes no difference to requests.
/// let gatekeeper = Gatekeeper::connect(&Config::new([master]))?;
///
/// match gatekeeper.decide("api", b"198.51.100.7") {
///     Decision::Accept => println!("passes"),
///     Decision::Delay(delay) => delay.wait().await, // and then it passes
///     Decision::Reject(retry_after) => println!("503, come back in {retry_after:?}"),
/// }
/// # assert_eq!(gatekeeper.stats().accepted, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Gatekeeper {
    shared: Arc<Shared>,
}

struct Shared {
    core: Arc<Core>,
    /// The thread of the tasks ends when this is dropped.
    _stays: oneshot::Sender<()>,
}

impl Gatekeeper {
    /// Starts a thread that talks to the masters; no timer or socket of it is on the application's
    /// runtime. It does not wait for masters: all requests pass until a master delays a client.
    ///
    /// # Errors
    /// If the configuration is wrong, or the system refuses a thread.
    pub fn connect(config: &Config) -> Result<Self, ConnectError> {
        config.check()?;
        let core = Arc::new(Core::new(config));
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ConnectError::NoThread)?;
        let (stays, leaves) = oneshot::channel();
        let (tasks_core, masters, gather) = (core.clone(), config.masters.clone(), config.gather);
        let work = move || {
            runtime.block_on(async move {
                talk(&tasks_core, masters, gather);
                drop(tasks_core);
                // Ends when the other half is dropped, and the tasks end with the runtime.
                let _ = leaves.await;
            });
        };
        let thread = thread::Builder::new().name("gatekeeper".to_owned()).spawn(work);
        thread.map_err(ConnectError::NoThread)?;
        Ok(Self { shared: Arc::new(Shared { core, _stays: stays }) })
    }

    /// Decides about a request that is here now, and accounts for it to the domain's master.
    ///
    /// The answer is found in memory: nothing here waits, allocates or touches a socket.
    #[inline]
    pub fn decide(&self, domain: &str, identifier: &[u8]) -> Decision {
        match self.domain(domain) {
            Some(domain) => self.decide_in(domain, identifier),
            None => {
                self.shared.core.pass_unknown();
                Decision::Accept
            }
        }
    }

    /// [`Gatekeeper::decide`] for a domain that was looked up before.
    #[inline]
    pub fn decide_in(&self, domain: Domain, identifier: &[u8]) -> Decision {
        self.decide_with(domain, identifier, b"")
    }

    /// [`Gatekeeper::decide_in`], with a few words for the master's log, a user agent perhaps.
    #[inline]
    pub fn decide_with(&self, domain: Domain, identifier: &[u8], log_info: &[u8]) -> Decision {
        let core = &self.shared.core;
        match core.pass(domain, identifier, log_info) {
            None => Decision::Accept,
            Some(until) => core.hold_or_reject(domain, identifier, log_info, until),
        }
    }

    /// A domain that is served, for [`Gatekeeper::decide_in`] of this gatekeeper.
    #[inline]
    #[must_use]
    pub fn domain(&self, name: &str) -> Option<Domain> {
        self.shared.core.domain(name.as_bytes())
    }

    /// The last that is known about a client: until when it must wait, in milliseconds since 1970.
    /// It may be past. Nothing is accounted for.
    #[inline]
    #[must_use]
    pub fn until_ms(&self, domain: Domain, identifier: &[u8]) -> Option<i64> {
        self.shared.core.until(domain, identifier)
    }

    /// Delays a client as if the domain's master had said so: for tests, and for applications that
    /// learn of a delay in another way. `false` if there is no room for it.
    pub fn remember(&self, domain: Domain, identifier: &[u8], until_ms: i64) -> bool {
        self.shared.core.remember(domain, identifier, until_ms)
    }

    /// Returns when the domain's master takes accounting and has begun to send its delays. Requests
    /// need not wait for that. It never returns for a master that cannot send them.
    pub async fn synced(&self, domain: Domain) {
        let core = &self.shared.core;
        let served = &core.domains[usize::from(domain.0)];
        self.until(domain, || served.heard.load(Relaxed) && served.synced.load(Relaxed)).await;
    }

    /// Returns when the domain's master takes accounting.
    pub async fn heard(&self, domain: Domain) {
        let served = &self.shared.core.domains[usize::from(domain.0)];
        self.until(domain, || served.heard.load(Relaxed)).await;
    }

    async fn until(&self, domain: Domain, is_so: impl Fn() -> bool) {
        let core = &self.shared.core;
        let master = core.domains[usize::from(domain.0)].master;
        loop {
            let mut changed = pin!(core.masters[usize::from(master)].changed.notified());
            changed.as_mut().enable();
            if is_so() {
                return;
            }
            changed.await;
        }
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> GatekeeperStats {
        self.shared.core.stats()
    }
}

/// Starts the tasks that talk to masters.
fn talk(core: &Arc<Core>, masters: Vec<Master>, gather: Duration) {
    for (number, master) in masters.into_iter().enumerate() {
        let subscriber = SubSocket::new(&control::options());
        tokio::spawn(control::run(core.clone(), number, subscriber, master.control));
        tokio::spawn(control::resync(core.clone(), number));
        // Checked before.
        if let Ok(address) = config::address(&master.accounting) {
            tokio::spawn(master_connection::run(core.clone(), number, address, gather));
        }
    }
}

impl std::fmt::Debug for Gatekeeper {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Gatekeeper").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
