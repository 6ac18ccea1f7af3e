//! The management server that the configuration names: the task that follows it, and what it sent
//! last.
//!
//! `server/mod.rs` puts in force what comes. At every reload it adds what it took last to the file,
//! until the file names no management server any more.

use std::sync::Arc;

use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinSet;

use crate::doors::grpc::{Xds, XdsResources, XdsUpdate, follow_xds};
use crate::metrics::Metrics;

/// What comes from the management server.
pub(super) struct XdsFeed {
    metrics: Arc<Metrics>,
    /// The management server that is followed, if any.
    server: Option<Xds>,
    /// What it has sent last of what is in force.
    resources: Option<XdsResources>,
    updates: Receiver<XdsUpdate>,
    /// The task that follows it; dropped with this.
    following: JoinSet<()>,
}

impl XdsFeed {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        let (_, updates) = mpsc::channel(1);
        let (server, resources, following) = (None, None, JoinSet::new());
        Self { metrics, server, resources, updates, following }
    }

    /// Follows this server from now on. What another server sent stays in force until this one
    /// sends.
    pub(super) fn follow(&mut self, server: Option<&Xds>) {
        if self.server.as_ref() == server {
            return;
        }
        self.server = server.cloned();
        // An update of the server before that waits in its channel is dropped with the channel.
        self.following = JoinSet::new();
        let (sender, updates) = mpsc::channel(1);
        self.updates = updates;
        match server {
            Some(server) => {
                let metrics = self.metrics.clone();
                _ = self.following.spawn(follow_xds(server.clone(), sender, metrics));
            }
            None => self.resources = None,
        }
    }

    /// What was kept last.
    pub(super) fn resources(&self) -> Option<&XdsResources> {
        self.resources.as_ref()
    }

    /// Keeps what was put in force, for the next reload.
    pub(super) fn keep(&mut self, resources: XdsResources) {
        self.resources = Some(resources);
    }

    /// The next configuration; never, if no server is followed.
    pub(super) async fn next(&mut self) -> XdsUpdate {
        match self.updates.recv().await {
            Some(update) => update,
            None => std::future::pending().await,
        }
    }
}
