//! The certificates that a door shows its clients. A reload reads them again while the door is
//! open: connections that are there keep what they were shown.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;

use crate::settings::tls::Tls;

/// What new connections of a door are shown.
pub struct Certificates {
    tls: Tls,
    /// The names of protocols that are agreed upon, best first.
    protocols: &'static [&'static [u8]],
    current: ArcSwap<ServerConfig>,
}

impl Certificates {
    /// Reads the files of a table, if it has one.
    pub(crate) fn read(
        tls: Option<&Tls>,
        protocols: &'static [&'static [u8]],
    ) -> io::Result<Option<Arc<Self>>> {
        let Some(tls) = tls.cloned() else { return Ok(None) };
        let current = ArcSwap::new(tls.for_clients(protocols)?);
        Ok(Some(Arc::new(Self { tls, protocols, current })))
    }

    /// Reads the files again. Nothing changes before [`Self::replace`].
    pub(crate) fn read_again(&self) -> io::Result<Arc<ServerConfig>> {
        self.tls.for_clients(self.protocols)
    }

    /// From now on new connections are shown what was read.
    pub(crate) fn replace(&self, read: Arc<ServerConfig>) {
        self.current.store(read);
    }

    /// What a connection that begins now is shown.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }
}
