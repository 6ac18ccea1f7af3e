//! The certificates that a door shows its clients. A reload replaces them while the door is open.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;

use crate::settings::tls::Tls;

/// What new connections of a door are shown.
pub(crate) struct Certificates {
    current: ArcSwap<ServerConfig>,
}

impl Certificates {
    /// Reads the files of a table. `protocols` are the names that are agreed upon, best first.
    pub(crate) fn read(tls: &Tls, protocols: &[&[u8]]) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { current: ArcSwap::new(tls.for_clients(protocols)?) }))
    }

    /// What a connection that begins now is shown.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }
}
