//! Messages about what was given back: names are channels, on a connection of its own.
//!
//! The connection is opened when the first name is watched. Messages may be missed while it is
//! broken: once it is back, all waiting requests try again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::super::engine::EngineFault;
use super::address::RedisAddress;
use super::link::{connect, pause};
use super::route::Route;

/// A name that is watched.
type Name = Arc<[u8]>;

/// How long the server may take to open a connection or to confirm what is watched.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many names are put into one command.
const NAMES_MAX: usize = 1_000;

/// Subscribes to watched names, and keeps the messages until they are taken.
pub(super) struct FreedListener {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Default)]
struct Shared {
    names: Mutex<Names>,
    /// What is watched has changed.
    changed: Notify,
    /// Something was heard.
    heard: Notify,
}

#[derive(Default)]
struct Names {
    watched: HashSet<Arc<[u8]>>,
    /// Heard and not told yet: watched names, or the empty one.
    freed: HashSet<Arc<[u8]>>,
}

impl FreedListener {
    pub(super) fn new(route: Arc<Route>) -> Self {
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(keep(shared.clone(), route)).abort_handle();
        Self { shared, task }
    }

    pub(super) fn watch(&self, name: &Arc<[u8]>) {
        if self.shared.names.lock().watched.insert(name.clone()) {
            self.shared.changed.notify_one();
        }
    }

    pub(super) fn unwatch(&self, name: &Arc<[u8]>) {
        let mut names = self.shared.names.lock();
        names.freed.remove(name);
        if names.watched.remove(name) {
            self.shared.changed.notify_one();
        }
    }

    pub(super) async fn freed(&self) -> Arc<[u8]> {
        loop {
            let heard = self.shared.heard.notified();
            {
                let mut names = self.shared.names.lock();
                if let Some(name) = names.freed.iter().next().cloned() {
                    names.freed.remove(&name);
                    if !names.freed.is_empty() {
                        self.shared.heard.notify_one();
                    }
                    return name;
                }
            }
            heard.await;
        }
    }
}

impl Drop for FreedListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    /// Something may have been given back to this name.
    fn hear(&self, name: &[u8]) {
        let mut names = self.names.lock();
        let known = names.watched.get(name).cloned();
        if let Some(name) = known {
            names.freed.insert(name);
            self.heard.notify_one();
        }
    }

    /// Something may have been given back to any name.
    fn hear_all(&self) {
        self.names.lock().freed.insert(Arc::default());
        self.heard.notify_one();
    }

    fn pushed(&self, info: PushInfo) {
        if let (PushKind::Message, Some(Value::BulkString(name))) = (info.kind, info.data.first()) {
            self.hear(name);
        }
    }
}

/// Where to listen, and a sign of when that is over.
fn server(route: &Route, attempt: usize) -> Option<(RedisAddress, watch::Receiver<u64>)> {
    match route {
        Route::One(link) => link.is_up().then(|| (link.reached().clone(), link.turns())),
        Route::Cluster(cluster) => {
            // What is published on one node is heard on all.
            let up = cluster.up();
            let link = up.get(attempt % up.len().max(1))?;
            Some((link.address().clone(), link.turns()))
        }
    }
}

/// Listens whenever a name is watched.
async fn keep(shared: Arc<Shared>, route: Arc<Route>) {
    let mut was_there = false;
    for attempt in 0.. {
        while shared.names.lock().watched.is_empty() {
            shared.changed.notified().await;
            // No name was watched, so no message was missed: there is nothing to catch up on.
            was_there = false;
        }
        if let Some((address, turns)) = server(&route, attempt) {
            // Commands and messages share a fate: a server that is silent on one is on both.
            let mut turns = turns;
            turns.mark_unchanged();
            let listening = listen(&shared, &address, &mut was_there);
            tokio::select! {
                _ = listening => {}
                _ = turns.changed() => {}
            }
        }
        tokio::time::sleep(pause()).await;
    }
}

/// Listens until the connection breaks.
async fn listen(
    shared: &Arc<Shared>,
    address: &RedisAddress,
    was_there: &mut bool,
) -> Result<(), EngineFault> {
    let ear = shared.clone();
    let opened = timeout(PATIENCE, connect(address, Some(Box::new(move |info| ear.pushed(info)))));
    let (mut connection, driver) = opened.await.map_err(|_| EngineFault::Slow)??;
    let following = async {
        let mut subscribed = HashSet::new();
        follow(shared, &mut connection, &mut subscribed).await?;
        if std::mem::replace(was_there, true) {
            shared.hear_all();
        }
        loop {
            shared.changed.notified().await;
            follow(shared, &mut connection, &mut subscribed).await?;
        }
    };
    tokio::select! {
        told = following => told,
        () = driver => Err(EngineFault::Unreachable("the connection was closed".to_owned())),
    }
}

/// Subscribes to what is watched and no longer to what is not.
async fn follow(
    shared: &Shared,
    connection: &mut MultiplexedConnection,
    subscribed: &mut HashSet<Arc<[u8]>>,
) -> Result<(), EngineFault> {
    let (new, old): (Vec<Name>, Vec<Name>) = {
        let watched = &shared.names.lock().watched;
        (
            watched.difference(subscribed).cloned().collect(),
            subscribed.difference(watched).cloned().collect(),
        )
    };
    let failed = |_| EngineFault::Slow;
    for names in new.chunks(NAMES_MAX) {
        let bytes: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let done = timeout(PATIENCE, connection.subscribe(bytes)).await.map_err(failed)?;
        done.map_err(|error| super::faults::broken(&error))?;
        subscribed.extend(names.iter().cloned());
        // What was given back before the server knew of us was not heard.
        for name in names {
            shared.hear(name);
        }
    }
    for names in old.chunks(NAMES_MAX) {
        let bytes: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let done = timeout(PATIENCE, connection.unsubscribe(bytes)).await.map_err(failed)?;
        done.map_err(|error| super::faults::broken(&error))?;
        for name in names {
            subscribed.remove(name);
        }
    }
    Ok(())
}
