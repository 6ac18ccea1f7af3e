//! Names that requests wait for: one stream that tells of their changes.
//!
//! Any change counts, whoever made it: etcd does not say what a change was for. The stream goes to
//! the member that the link uses, over a connection of its own, and is opened again when it ends;
//! changes may have been missed then, so all waiting requests try again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Error, WatchOptions, WatchRequestSender, WatchResponse};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time;

use super::etcd_error::etcd_error;
use super::link::{EtcdConnection, EtcdLink};
use crate::stores::remote::engine::EngineFault;

type Name = Arc<[u8]>;

/// Before the stream is opened again. Doubled each time that etcd permits nothing, up to so often.
const PAUSE: Duration = Duration::from_millis(100);
const DOUBLED_MAX: u32 = 6;
/// The number of the watch that only keeps the stream open.
const SENTINEL: i64 = 1;

/// What to ask the stream for.
#[derive(Clone)]
enum Step {
    /// Changes from this revision on; zero: from now on.
    Watch(Name, i64),
    Unwatch(Name),
}

#[derive(Default)]
struct Wanted {
    names: HashSet<Name>,
    /// What the stream has not been asked for. Kept while there is a stream only: a new one is
    /// asked for all names.
    steps: VecDeque<Step>,
    has_stream: bool,
}

impl Wanted {
    fn without_stream(&mut self) {
        self.steps.clear();
        self.has_stream = false;
    }
}

/// What is to be told: bounded by the names that are watched.
#[derive(Default)]
struct News {
    names: VecDeque<Name>,
    told: HashSet<Name>,
    all: bool,
}

/// The names that are watched, and what happened to them.
#[derive(Default)]
pub(super) struct Watches {
    wanted: Mutex<Wanted>,
    changed: Notify,
    news: Mutex<News>,
    notifier: Notify,
}

impl Watches {
    /// Begins to watch. `revision` is what the caller may have seen: nothing after it is missed.
    pub(super) fn watch(&self, name: &Name, revision: i64) {
        let mut wanted = self.wanted.lock();
        if wanted.names.insert(name.clone()) && wanted.has_stream {
            let from = if revision > 0 { revision + 1 } else { 0 };
            wanted.steps.push_back(Step::Watch(name.clone(), from));
            self.changed.notify_one();
        }
    }

    pub(super) fn unwatch(&self, name: &Name) {
        let mut wanted = self.wanted.lock();
        if wanted.names.remove(name) && wanted.has_stream {
            wanted.steps.push_back(Step::Unwatch(name.clone()));
            self.changed.notify_one();
        }
    }

    /// Waits until something was given back to a watched name. Cancel-safe.
    pub(super) async fn freed(&self) -> Name {
        loop {
            let notified = self.notifier.notified();
            if let Some(name) = self.next() {
                return name;
            }
            notified.await;
        }
    }

    fn next(&self) -> Option<Name> {
        let mut news = self.news.lock();
        let name = if std::mem::take(&mut news.all) {
            Some(Name::from([]))
        } else {
            let name = news.names.pop_front()?;
            news.told.remove(&name);
            Some(name)
        };
        // Wakes the next waiter for the rest.
        if !news.names.is_empty() {
            self.notifier.notify_one();
        }
        name
    }

    fn notify(&self, name: &Name) {
        let mut news = self.news.lock();
        if !news.all && news.told.insert(name.clone()) {
            news.names.push_back(name.clone());
            self.notifier.notify_one();
        }
    }

    fn notify_all(&self) {
        let mut news = self.news.lock();
        *news = News { all: true, ..News::default() };
        self.notifier.notify_one();
    }

    /// Keeps a stream open. Never returns.
    pub(super) async fn keep(&self, link: &EtcdLink) {
        let mut refusals = 0;
        loop {
            let line = link.connected().await;
            let mut live = Live::default();
            let ended = tokio::select! {
                ended = self.listen(link, &line, &mut live) => ended,
                () = line.ended() => {
                    Err(EngineFault::Unreachable("the connection was given up".into()))
                }
            };
            self.wanted.lock().without_stream();
            // A token that has expired since is of no use for further names; a new one may be.
            let is_refused = matches!(ended, Err(EngineFault::Refused(_))) && !live.was_good;
            refusals = if is_refused { (refusals + 1).min(DOUBLED_MAX) } else { 0 };
            if let Err(fault) = ended {
                tracing::debug!(%fault, "the watch ended");
            }
            // It ends with its member more often than not.
            link.doubt();
            time::sleep(PAUSE * 2_u32.pow(refusals)).await;
        }
    }

    /// Opens a stream and follows it to its end.
    async fn listen(
        &self,
        link: &EtcdLink,
        line: &EtcdConnection,
        live: &mut Live,
    ) -> Result<(), EngineFault> {
        let bound = link.bound();
        let opened = time::timeout(bound, async {
            let client = link.access().connect(line.member, bound, true).await?;
            let sentinel = WatchOptions::new().with_watch_id(SENTINEL);
            let probe = link.access().probe();
            client.watch_client().watch(probe, Some(sentinel)).await.map_err(etcd_error)
        });
        let (mut sender, mut stream) = match opened.await {
            Ok(opened) => opened.map_err(EngineFault::from)?.split(),
            Err(_) => return Err(EngineFault::Slow),
        };
        live.open(&self.wanted);
        loop {
            let next = self.wanted.lock().steps.front().cloned();
            tokio::select! {
                message = stream.message() => match message.map_err(etcd_error)? {
                    Some(message) => self.heard(live, &message)?,
                    None => return Ok(()),
                },
                sent = live.send(&mut sender, next.as_ref()), if next.is_some() => {
                    sent.map_err(etcd_error).map_err(EngineFault::from)?;
                    live.sent(self.wanted.lock().steps.pop_front());
                }
                () = self.changed.notified(), if next.is_none() => {}
            }
        }
    }

    fn heard(&self, live: &mut Live, message: &WatchResponse) -> Result<(), EngineFault> {
        let number = message.watch_id();
        if message.canceled() {
            // What is not permitted is cancelled as it is created, without its number.
            let refused = || EngineFault::Refused(message.cancel_reason().to_owned());
            if message.created() {
                return Err(refused());
            }
            // One that we cancelled is known no longer. One that etcd cancelled had fallen behind
            // what etcd keeps.
            let Some(name) = live.forget(number) else { return Ok(()) };
            if message.compact_revision() == 0 {
                return Err(refused());
            }
            self.wanted.lock().steps.push_back(Step::Watch(name, 0));
            self.changed.notify_one();
            return Ok(());
        }
        if message.created() && live.notifies_at == Some(number) {
            live.notifies_at = None;
            self.notify_all();
        }
        live.was_good |= live.notifies_at.is_none();
        if let Some(name) = live.names.get(&number)
            && (!message.events().is_empty() || message.created() && live.missed.remove(name))
        {
            self.notify(name);
        }
        Ok(())
    }
}

/// What one stream has been asked for.
#[derive(Default)]
struct Live {
    numbers: HashMap<Name, i64>,
    names: HashMap<i64, Name>,
    last: i64,
    /// All waiting requests try again once this watch is set: those before it are set, too.
    notifies_at: Option<i64>,
    /// Whose changes may have been missed: they are told of when they are watched.
    missed: HashSet<Name>,
    /// Whether etcd permitted everything at first.
    was_good: bool,
}

impl Live {
    /// There is a new stream, which is to be asked for all names.
    fn open(&mut self, wanted: &Mutex<Wanted>) {
        let mut wanted = wanted.lock();
        wanted.has_stream = true;
        wanted.steps = wanted.names.iter().map(|name| Step::Watch(name.clone(), 0)).collect();
        let count = i64::try_from(wanted.steps.len()).unwrap_or(0);
        self.last = SENTINEL;
        self.notifies_at = (count > 0).then_some(SENTINEL + count);
    }

    /// Asks for one step. Nothing has changed if it is given up.
    async fn send(
        &self,
        sender: &mut WatchRequestSender,
        step: Option<&Step>,
    ) -> Result<(), Error> {
        match step {
            Some(Step::Watch(name, from)) => {
                let options = WatchOptions::new().with_watch_id(self.last + 1);
                sender.watch(&**name, Some(options.with_start_revision(*from))).await
            }
            Some(Step::Unwatch(name)) => match self.numbers.get(name) {
                Some(&number) => sender.cancel(number).await,
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// A step was asked for.
    fn sent(&mut self, step: Option<Step>) {
        match step {
            Some(Step::Watch(name, from)) => {
                self.last += 1;
                // What happened before etcd began to watch is not told, unless by all of them.
                if from == 0 && self.notifies_at.is_none_or(|at| at < self.last) {
                    self.missed.insert(name.clone());
                }
                self.names.insert(self.last, name.clone());
                self.numbers.insert(name, self.last);
            }
            Some(Step::Unwatch(name)) => {
                if let Some(number) = self.numbers.remove(&name) {
                    self.names.remove(&number);
                }
            }
            None => {}
        }
    }

    fn forget(&mut self, number: i64) -> Option<Name> {
        let name = self.names.remove(&number)?;
        self.numbers.remove(&name);
        Some(name)
    }
}
