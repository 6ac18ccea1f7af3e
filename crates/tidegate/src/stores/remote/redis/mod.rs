//! The Redis engine: one server and those it fails over to, or a Cluster.
//!
//! - [`address`]: where servers are, TLS and users
//! - [`link`]: one connection, which reconnects by itself
//! - [`route`]: which server has a name; Clusters
//! - [`script`]: the script that changes values, its arguments and its answers
//! - [`listen`]: messages about what was given back
//! - [`faults`], [`slots`]: what errors mean, and which slot a name is in
//!
//! A value is stored behind eight bytes of version. One script compares and writes; one call of it
//! carries many requests, because to the server a call costs more than a request.

mod address;
mod faults;
mod link;
mod listen;
mod route;
mod script;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use redis::Value;
use tidegate_core::Nanos;
use tokio::time::{Interval, MissedTickBehavior, interval};

use self::address::RedisAddress;
use self::link::RedisLink;
use self::listen::FreedListener;
use self::route::{Cluster, Route};
use self::script::{BEAT, Versions};
use super::engine::{ABSENT, CellChange, EngineFault, Swapped, Timed, Version};
use super::settings::Settings;

/// How often the server is asked for its time.
const TIME_EVERY: Duration = Duration::from_millis(50);
/// How many names a page of a scan has, roughly.
const PAGE: usize = 500;

/// A Redis that several nodes share.
#[derive(Clone)]
pub(crate) struct Redis(Arc<Inner>);

struct Inner {
    route: Arc<Route>,
    versions: Versions,
    /// Ready when the time may be asked for again.
    time_due: Mutex<Interval>,
    /// The name of the set of living nodes.
    nodes: Vec<u8>,
    listener: FreedListener,
}

/// The names of a page with their values, and where the next one begins.
type Page = (Vec<(Vec<u8>, Vec<u8>)>, Option<Vec<u8>>);

/// What the settings lack.
pub(super) fn check(settings: &Settings) -> Result<(), String> {
    RedisAddress::all(settings).map(drop)
}

impl Redis {
    /// Starts to connect. Must be called inside of the runtime that will use it.
    pub(crate) fn new(settings: &Settings) -> Result<Self, String> {
        let addresses = RedisAddress::all(settings)?;
        let patience = settings.timeout();
        let route = Arc::new(match settings.is_cluster() {
            true => Route::Cluster(Cluster::new(addresses, patience)),
            false => Route::One(RedisLink::new(addresses, patience)),
        });
        let mut time_due = interval(TIME_EVERY);
        time_due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self(Arc::new(Inner {
            listener: FreedListener::new(route.clone()),
            route,
            versions: Versions::new()?,
            time_due: Mutex::new(time_due),
            nodes: format!("{}:nodes", settings.prefix()).into_bytes(),
        })))
    }

    /// Whether it is a Cluster of which some node at least is connected.
    pub(crate) fn is_partly_up(&self) -> bool {
        matches!(&*self.0.route, Route::Cluster(cluster) if !cluster.up().is_empty())
    }

    pub(crate) async fn swap(
        &self,
        requests: Vec<Vec<CellChange>>,
    ) -> Vec<Result<Timed<Swapped>, EngineFault>> {
        let (calls, apart) = self.0.calls(&requests);
        let running = calls.iter().map(|call| Box::pin(self.0.perform(call, &requests)));
        let parting = apart.iter().map(|&at| Box::pin(self.0.swap_apart(&requests[at])));
        let (called, parted) = tokio::join!(all(running.collect()), all(parting.collect()));
        let mut answers = vec![Err(EngineFault::Slow); requests.len()];
        for (call, answered) in calls.iter().zip(called) {
            for (&number, answer) in call.requests.iter().zip(answered) {
                answers[number] = answer;
            }
        }
        for (at, answer) in apart.into_iter().zip(parted) {
            answers[at] = answer;
        }
        answers
    }

    pub(crate) async fn remove(&self, name: &[u8]) -> Result<bool, EngineFault> {
        let make = |_| redis::cmd("DEL").arg(name).take();
        match self.0.route.call(slots::slot(name), make).await? {
            Value::Int(count) => Ok(count > 0),
            other => Err(script::unexpected(&other)),
        }
    }

    pub(crate) async fn scan(&self, prefix: &[u8], mark: Vec<u8>) -> Result<Page, EngineFault> {
        match &*self.0.route {
            Route::One(link) => {
                let (page, next) = page(link, prefix, cursor(&mark)?).await?;
                Ok((page, (next != 0).then(|| next.to_be_bytes().to_vec())))
            }
            Route::Cluster(cluster) => {
                // The primaries one after another, in the order of their names.
                let primaries = cluster.primaries();
                let from = String::from_utf8_lossy(mark.get(8..).unwrap_or_default()).into_owned();
                let Some((name, link)) = primaries.range(from.clone()..).next() else {
                    // There was one, or there must be one.
                    let unknown =
                        || EngineFault::Unreachable("no node of the Cluster is known".into());
                    return if mark.is_empty() { Err(unknown()) } else { Ok((Vec::new(), None)) };
                };
                let start = if *name == from { cursor(&mark)? } else { 0 };
                let (page, next) = page(link, prefix, start).await?;
                let after = || primaries.range(format!("{name}\0")..).next().map(|(name, _)| name);
                let next =
                    if next == 0 { after().map(|name| (0, name)) } else { Some((next, name)) };
                let mark =
                    |(next, name): (u64, &String)| [&next.to_be_bytes(), name.as_bytes()].concat();
                Ok((page, next.map(mark)))
            }
        }
    }

    pub(crate) async fn beat(
        &self,
        node: u64,
        lives: Nanos,
    ) -> Result<Timed<Vec<u64>>, EngineFault> {
        let name = &self.0.nodes;
        let lives = script::milliseconds(lives);
        let make = |whole| BEAT.call(whole).arg(1).arg(name).arg(node).arg(lives).take();
        let answer = self.0.route.call(slots::slot(name), make).await?;
        let Value::Array(told) = &answer else { return Err(script::unexpected(&answer)) };
        let [seconds, micros, nodes @ ..] = &told[..] else {
            return Err(script::unexpected(&answer));
        };
        let number = |value: &Value| match value {
            Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        };
        let what: Option<Vec<u64>> = nodes.iter().map(number).collect();
        match (what, script::time(seconds, micros)) {
            (Some(what), time @ Some(_)) => Ok(Timed { what, time }),
            _ => Err(script::unexpected(&answer)),
        }
    }

    pub(crate) async fn leave(&self, node: u64) {
        let name = &self.0.nodes;
        let make = |_| redis::cmd("ZREM").arg(name).arg(node).take();
        // If this fails, the node's last report runs out soon.
        let _ = self.0.route.call(slots::slot(name), make).await;
    }

    pub(crate) fn watch(&self, name: &Arc<[u8]>) {
        self.0.listener.watch(name);
    }

    pub(crate) fn unwatch(&self, name: &Arc<[u8]>) {
        self.0.listener.unwatch(name);
    }

    pub(crate) async fn freed(&self) -> Arc<[u8]> {
        self.0.listener.freed().await
    }
}

/// Requests that one call carries to a server.
struct Call {
    slot: u16,
    /// Their places among all.
    requests: Vec<usize>,
    bytes: usize,
}

impl Inner {
    fn is_single(&self) -> bool {
        matches!(*self.route, Route::One(_))
    }

    /// Puts requests together: not too many, not too large, and those of one slot only. Also
    /// returns the numbers of requests whose names are in several slots.
    fn calls(&self, requests: &[Vec<CellChange>]) -> (Vec<Call>, Vec<usize>) {
        let (mut calls, mut apart): (Vec<Call>, _) = (Vec::new(), Vec::new());
        // The open call of each slot.
        let mut open = HashMap::<u16, usize, RandomState>::default();
        for (number, request) in requests.iter().enumerate() {
            let slot = match self.is_single() {
                true => Some(0),
                false => common_slot(request.iter().map(|change| &*change.name)),
            };
            let Some(slot) = slot else {
                apart.push(number);
                continue;
            };
            let bytes = script::bytes(request);
            let fits = |call: &Call| {
                call.requests.len() < script::REQUESTS_MAX
                    && call.bytes + bytes <= script::BYTES_MAX
            };
            let at = match open.get(&slot) {
                Some(&at) if fits(&calls[at]) => at,
                _ => {
                    calls.push(Call { slot, requests: Vec::new(), bytes: 0 });
                    open.insert(slot, calls.len() - 1);
                    calls.len() - 1
                }
            };
            calls[at].requests.push(number);
            calls[at].bytes += bytes;
        }
        (calls, apart)
    }

    /// Changes names of several slots one after the other, in their order, until one of them is not
    /// as seen.
    async fn swap_apart(&self, changes: &[CellChange]) -> Result<Timed<Swapped>, EngineFault> {
        let mut order: Vec<usize> = (0..changes.len()).collect();
        order.sort_by(|a, b| changes[*a].name.cmp(&changes[*b].name));
        let mut versions = vec![ABSENT; changes.len()];
        let mut written = Vec::new();
        for at in order {
            let request = vec![changes[at].clone()];
            let call = Call { slot: slots::slot(&request[0].name), requests: vec![0], bytes: 0 };
            let answer = self.perform(&call, &[request]).await.pop();
            let missing = || Err(faults::nonsense("an answer is missing"));
            let Timed { what, time } = answer.unwrap_or_else(missing)?;
            match what {
                Swapped::Done(done) => versions[at] = done.first().copied().unwrap_or_default(),
                Swapped::Stale(mut found) => {
                    let found = found.pop().unwrap_or_default();
                    return Ok(Timed { what: Swapped::Broken { written, at, found }, time });
                }
                broken @ Swapped::Broken { .. } => return Ok(Timed { what: broken, time }),
            }
            // A change that only compared has nothing to be taken back.
            written.extend(changes[at].write.is_some().then_some(at));
        }
        Ok(Timed { what: Swapped::Done(versions), time: None })
    }

    async fn perform(
        &self,
        call: &Call,
        requests: &[Vec<CellChange>],
    ) -> Vec<Result<Timed<Swapped>, EngineFault>> {
        let sent: Vec<Vec<Version>> =
            call.requests.iter().map(|&number| self.versions.after(&requests[number])).collect();
        let time = self.wants_time(call.slot);
        let make = |whole| {
            let changes = call.requests.iter().map(|&number| requests[number].as_slice());
            script::call(changes.zip(sent.iter().map(Vec::as_slice)), time, whole)
        };
        match self.route.call(call.slot, make).await {
            Ok(answer) => script::read(answer, sent),
            Err(fault) => vec![Err(fault); sent.len()],
        }
    }

    /// Whether this call should ask for the time: now and then, and in a Cluster always the same
    /// node, because two may not have the same time.
    fn wants_time(&self, slot: u16) -> bool {
        if let Route::Cluster(cluster) = &*self.route {
            let clock = cluster.owner(slots::slot(&self.nodes));
            let same = clock.is_ok_and(|clock| {
                cluster.owner(slot).is_ok_and(|owner| Arc::ptr_eq(&owner, &clock))
            });
            if !same {
                return false;
            }
        }
        let mut nobody = Context::from_waker(Waker::noop());
        self.time_due.lock().poll_tick(&mut nobody).is_ready()
    }
}

/// The slot that all of these names are in. No names are together anywhere.
fn common_slot<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Option<u16> {
    let mut slots = names.into_iter().map(slots::slot);
    let first = slots.next().unwrap_or_default();
    slots.all(|slot| slot == first).then_some(first)
}

/// Where a scan goes on, from its mark.
fn cursor(mark: &[u8]) -> Result<u64, EngineFault> {
    match mark {
        [] => Ok(0),
        mark => match mark.first_chunk() {
            Some(bytes) => Ok(u64::from_be_bytes(*bytes)),
            None => Err(EngineFault::Garbage("no mark of a scan".to_owned())),
        },
    }
}

/// A page of one server.
async fn page(
    link: &RedisLink,
    prefix: &[u8],
    cursor: u64,
) -> Result<(Vec<(Vec<u8>, Vec<u8>)>, u64), EngineFault> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(pattern(prefix)).arg("COUNT").arg(PAGE);
    let answer = link.ask(&scan).await?;
    let Value::Array(parts) = &answer else { return Err(script::unexpected(&answer)) };
    let [Value::BulkString(next), Value::Array(names)] = &parts[..] else {
        return Err(script::unexpected(&answer));
    };
    let next = std::str::from_utf8(next).ok().and_then(|next| next.parse().ok());
    let next = next.ok_or_else(|| script::unexpected(&answer))?;
    // One by one: the names are in many slots.
    let mut pipeline = redis::Pipeline::with_capacity(names.len());
    for name in names {
        let Value::BulkString(name) = name else { return Err(script::unexpected(name)) };
        pipeline.cmd("GET").arg(name);
    }
    if names.is_empty() {
        return Ok((Vec::new(), next));
    }
    let values = link.ask_all(&pipeline).await?;
    let named = names.iter().cloned().zip(values).filter_map(|pair| match pair {
        // What is gone meanwhile, or none of ours, is left out.
        (Value::BulkString(name), Value::BulkString(stored)) => {
            Some((name, script::value(stored)?))
        }
        _ => None,
    });
    Ok((named.collect(), next))
}

/// A pattern for whatever begins with `prefix`.
fn pattern(prefix: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(prefix.len() + 8);
    for &byte in prefix {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^') {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern.push(b'*');
    pattern
}

/// The outputs of all futures, which run at once.
async fn all<F: Future>(futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (future, None)).collect();
    poll_fn(|context| {
        let mut ready = true;
        for (future, output) in running.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *output = Some(value),
                Poll::Pending => ready = false,
            }
        }
        if ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
}
