//! The connection to one of etcd's members, and its repair.
//!
//! One task looks for a member that answers, hands out the line to it, and looks for another when
//! the line breaks or falls silent. A request that comes while there is none fails at once.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::time::Duration;

use etcd_client::{Client, Error, GetOptions, KvClient, ResponseHeader};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time;

use super::access::EtcdAccess;
use super::etcd_error::{EtcdError, etcd_error};
use crate::stores::remote::engine::EngineFault;
use crate::stores::remote::settings::without_login;

/// The next member is tried when one has not answered for so long.
const STAGGER: Duration = Duration::from_millis(250);
/// Between two rounds over all members: no shorter, and up to so much longer.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MORE_MS: u64 = 150;
/// Before a member without a leader is asked again.
const LEADERLESS: Duration = Duration::from_millis(50);

/// A line that broke after fewer answers than this was never good.
const HEARD_MIN: u64 = 4;

/// A connection to one member.
pub(super) struct EtcdConnection {
    client: Client,
    /// Which of the urls it leads to.
    pub(super) member: usize,
    /// How many answers came.
    heard: AtomicU64,
    /// The latest revision that was heard of.
    revision: AtomicI64,
    over: AtomicBool,
    gone: Notify,
}

impl EtcdConnection {
    pub(super) fn kv(&self) -> KvClient {
        self.client.kv_client()
    }

    /// Translates an answer, and learns from it how the connection is.
    pub(super) fn told<T>(&self, answer: Result<T, Error>) -> Result<T, EtcdError> {
        let answer = answer.map_err(etcd_error);
        match &answer {
            Err(EtcdError::Broken(_)) => self.give_up(),
            _ => _ = self.heard.fetch_add(1, Relaxed),
        }
        answer
    }

    /// Remembers the revision that an answer speaks of, and says it.
    pub(super) fn revision_of(&self, header: Option<&ResponseHeader>) -> Result<i64, EtcdError> {
        let Some(header) = header else {
            return Err(EtcdError::Said(EngineFault::Garbage("an answer has no header".into())));
        };
        self.revision.fetch_max(header.revision(), Relaxed);
        Ok(header.revision())
    }

    pub(super) async fn grant(&self, ttl: i64) -> Result<i64, EtcdError> {
        let granted = self.told(self.client.lease_client().grant(ttl, None).await)?;
        // A lease without a number would be none: what hangs on it would stay for ever.
        match granted.id() {
            0 => Err(EtcdError::Said(EngineFault::Garbage("a lease has no number".into()))),
            id if granted.ttl() < ttl => {
                let text = format!("lease {id:x} was granted for {} s of {ttl}", granted.ttl());
                Err(EtcdError::Said(EngineFault::Garbage(text)))
            }
            id => Ok(id),
        }
    }

    /// Prolongs a lease by its own length.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<(), EtcdError> {
        self.told(self.client.lease_client().keep_alive(lease).await).map(drop)
    }

    pub(super) async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        self.told(self.client.lease_client().revoke(lease).await).map(drop)
    }

    /// Whether a majority of members still answers through this one.
    async fn probe(&self, name: &[u8]) -> Result<(), EtcdError> {
        let options = GetOptions::new().with_count_only();
        let answer = self.told(self.kv().get(name, Some(options)).await)?;
        self.revision_of(answer.header()).map(drop)
    }

    /// Closes the connection for use: requests that wait for an answer fail.
    fn give_up(&self) {
        if !self.over.swap(true, AcqRel) {
            self.gone.notify_waiters();
        }
    }

    /// Waits until it is given up.
    pub(super) async fn ended(&self) {
        let gone = self.gone.notified();
        if !self.over.load(Acquire) {
            gone.await;
        }
    }
}

/// Whether there is a line.
#[derive(Clone)]
enum State {
    Up(Arc<EtcdConnection>),
    Down(EngineFault),
}

/// The line to etcd, whichever member it leads to.
pub(super) struct EtcdLink {
    access: EtcdAccess,
    state: watch::Sender<State>,
    doubted: Notify,
    bound: Duration,
    /// A line on which nothing was heard for so long is doubted.
    patience: Duration,
}

impl EtcdLink {
    /// Nothing is connected yet: [`Self::keep`] does it.
    pub(super) fn new(access: EtcdAccess, timeout: Duration) -> Self {
        let bound = Self::bound_of(timeout);
        let down = State::Down(EngineFault::Unreachable("not connected yet".into()));
        let state = watch::Sender::new(down);
        Self { access, state, doubted: Notify::new(), bound, patience: bound / 8 }
    }

    /// The line, or why there is none.
    pub(super) fn line(&self) -> Result<Arc<EtcdConnection>, EngineFault> {
        match &*self.state.borrow() {
            State::Up(line) if line.over.load(Acquire) => {
                Err(EngineFault::Unreachable("the connection broke".into()))
            }
            State::Up(line) => Ok(line.clone()),
            State::Down(fault) => Err(fault.clone()),
        }
    }

    /// Waits for a line.
    pub(super) async fn connected(&self) -> Arc<EtcdConnection> {
        let mut state = self.state.subscribe();
        loop {
            if let Ok(line) = self.line() {
                return line;
            }
            // The sender lives as long as this.
            let _ = state.changed().await;
        }
    }

    /// What exchanges are bounded by where a decision waits for `timeout`.
    pub(super) fn bound_of(timeout: Duration) -> Duration {
        (timeout * 2).max(Duration::from_millis(100))
    }

    /// What every exchange is bounded by.
    pub(super) fn bound(&self) -> Duration {
        self.bound
    }

    pub(super) fn access(&self) -> &EtcdAccess {
        &self.access
    }

    /// The latest revision that is known, or zero.
    pub(super) fn revision(&self) -> i64 {
        self.line().map_or(0, |line| line.revision.load(Relaxed))
    }

    /// Something suggests that the line is dead.
    pub(super) fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// Bounds an exchange over `line`, and doubts the line when nothing at all is heard.
    pub(super) async fn ask<T>(
        &self,
        line: &EtcdConnection,
        exchange: impl Future<Output = Result<T, EtcdError>>,
    ) -> Result<T, EngineFault> {
        let heard = line.heard.load(Relaxed);
        let is_silent = || line.heard.load(Relaxed) == heard;
        let gone = line.ended();
        let wait = time::sleep(self.patience);
        tokio::pin!(exchange, gone, wait);
        let mut patient = true;
        loop {
            tokio::select! {
                biased;
                answer = &mut exchange => return answer.map_err(EngineFault::from),
                () = &mut gone => {
                    return Err(EngineFault::Unreachable("the connection was given up".into()));
                }
                () = &mut wait => {
                    if !patient {
                        if is_silent() {
                            line.give_up();
                        }
                        return Err(EngineFault::Slow);
                    }
                    patient = false;
                    if is_silent() {
                        self.doubt();
                    }
                    let rest = self.bound - self.patience;
                    wait.set(time::sleep(rest));
                }
            }
        }
    }

    /// Connects, and again whenever that is necessary. Never returns.
    pub(super) async fn keep(&self) {
        let members = self.access.members();
        let mut first = usize::try_from(random() % members as u64).unwrap_or(0);
        loop {
            match self.find((0..members).map(|n| (first + n) % members)).await {
                Ok(line) => {
                    let mut line = Arc::new(line);
                    tracing::info!(
                        member = without_login(self.access.url(line.member)),
                        "connected to etcd"
                    );
                    self.state.send_replace(State::Up(line.clone()));
                    while let Some(better) = self.tend(&line).await {
                        tracing::info!(
                            member = without_login(self.access.url(better.member)),
                            "moved to another member of etcd"
                        );
                        let old = std::mem::replace(&mut line, better);
                        self.state.send_replace(State::Up(line.clone()));
                        old.give_up();
                    }
                    first = (line.member + 1) % members;
                    let broke = EngineFault::Unreachable("the connection broke".into());
                    self.state.send_replace(State::Down(broke));
                    // One that was of use for a while is replaced at once.
                    if line.heard.load(Relaxed) < HEARD_MIN {
                        pause().await;
                    }
                }
                Err(fault) => {
                    self.state.send_replace(State::Down(fault));
                    pause().await;
                }
            }
        }
    }

    /// Watches over a line until it breaks, or until another member is found to be better.
    async fn tend(&self, line: &Arc<EtcdConnection>) -> Option<Arc<EtcdConnection>> {
        loop {
            tokio::select! {
                () = line.ended() => return None,
                () = self.doubted.notified() => {}
            }
            let heard = line.heard.load(Relaxed);
            let members = self.access.members();
            let others = (1..members).map(|n| (line.member + n) % members);
            let probe = time::timeout(self.bound, line.probe(self.access.probe()));
            let other = self.find(others);
            tokio::pin!(probe, other);
            let mut searching = members > 1;
            loop {
                tokio::select! {
                    answer = &mut probe => {
                        if answer.is_err() && line.heard.load(Relaxed) == heard {
                            line.give_up();
                        }
                        break;
                    }
                    found = &mut other, if searching => match found {
                        Ok(better) if line.heard.load(Relaxed) == heard => {
                            return Some(Arc::new(better));
                        }
                        Ok(_) => break,
                        Err(_) => searching = false,
                    },
                }
            }
        }
    }

    /// The first of `members` that answers. Each has a head start before the next one.
    async fn find(
        &self,
        members: impl Iterator<Item = usize>,
    ) -> Result<EtcdConnection, EngineFault> {
        let mut attempts = JoinSet::new();
        let mut fault = EngineFault::Unreachable("there is no other member".into());
        for member in members {
            let (access, bound) = (self.access.clone(), self.bound);
            attempts.spawn(async move {
                match time::timeout(bound, open(&access, member, bound)).await {
                    Ok(opened) => opened.map_err(EngineFault::from),
                    Err(_) => {
                        Err(EngineFault::Unreachable(format!("{} is silent", access.url(member))))
                    }
                }
            });
            match time::timeout(STAGGER, attempts.join_next()).await {
                Ok(Some(Ok(Ok(line)))) => return Ok(line),
                Ok(Some(Ok(Err(why)))) => fault = why,
                _ => {}
            }
        }
        while let Some(attempt) = attempts.join_next().await {
            match attempt {
                Ok(Ok(line)) => return Ok(line),
                Ok(Err(why)) => fault = why,
                Err(_) => {}
            }
        }
        Err(fault)
    }
}

/// Connects to a member, and sees that it answers for a majority.
async fn open(
    access: &EtcdAccess,
    member: usize,
    bound: Duration,
) -> Result<EtcdConnection, EtcdError> {
    let client = access.connect(member, bound, false).await?;
    let line = EtcdConnection {
        client,
        member,
        heard: AtomicU64::new(0),
        revision: AtomicI64::new(0),
        over: AtomicBool::new(false),
        gone: Notify::new(),
    };
    loop {
        match line.probe(access.probe()).await {
            // It answers, but for itself: there may be a leader in a moment.
            Err(EtcdError::Said(EngineFault::Unreachable(_))) => time::sleep(LEADERLESS).await,
            other => return other.map(|()| line),
        }
    }
}

/// Before everything is tried again.
async fn pause() {
    time::sleep(PAUSE + Duration::from_millis(random() % PAUSE_MORE_MS)).await;
}

/// For choices that nodes must not all make alike.
fn random() -> u64 {
    getrandom::u64().unwrap_or(0)
}
