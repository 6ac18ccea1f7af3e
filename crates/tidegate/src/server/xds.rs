//! The management server that the configuration names: who listens to it, and what it sent last.
//!
//! The server puts in force what comes. What it took last is laid over the file at every reload,
//! until the file names no management server any more.

use std::sync::Arc;

use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinSet;

use crate::doors::grpc::{Xds, XdsResources, XdsUpdate, follow_xds};
use crate::metrics::Metrics;

/// What comes over xDS.
pub(super) struct XdsFeed {
    metrics: Arc<Metrics>,
    /// Whom it comes from.
    server: Option<Xds>,
    /// What is in force.
    resources: Option<XdsResources>,
    updates: Receiver<XdsUpdate>,
    /// Who listens; ends with this.
    listening: JoinSet<()>,
}

impl XdsFeed {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        let (_, updates) = mpsc::channel(1);
        let (server, resources, listening) = (None, None, JoinSet::new());
        Self { metrics, server, resources, updates, listening }
    }

    /// Listens to this server from now on. What another one sent stays until this one sends.
    pub(super) fn follow(&mut self, server: Option<&Xds>) {
        if self.server.as_ref() == server {
            return;
        }
        self.server = server.cloned();
        // What the server before has sent and is not in force yet is dropped with its channel.
        self.listening = JoinSet::new();
        let (sender, updates) = mpsc::channel(1);
        self.updates = updates;
        match server {
            Some(server) => {
                let metrics = self.metrics.clone();
                _ = self.listening.spawn(follow_xds(server.clone(), sender, metrics));
            }
            None => self.resources = None,
        }
    }

    /// What came last and was good.
    pub(super) fn resources(&self) -> Option<&XdsResources> {
        self.resources.as_ref()
    }

    /// Keeps what is in force now.
    pub(super) fn keep(&mut self, resources: XdsResources) {
        self.resources = Some(resources);
    }

    /// The next configuration; never, if nobody is listened to.
    pub(super) async fn next(&mut self) -> XdsUpdate {
        match self.updates.recv().await {
            Some(update) => update,
            None => std::future::pending().await,
        }
    }
}
