//! Which server has a name: the one there is, or the one of a Cluster that has its slot.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::super::engine::EngineFault;
use super::address::{RedisAddress, ServerPlace};
use super::link::{RedisLink, pause};
use super::slots::SLOTS;
use super::{faults, script};

/// How many redirections a request follows.
pub(super) const REDIRECTS_MAX: usize = 4;
/// How long a request waits while its names move to another node.
const TRY_AGAIN: Duration = Duration::from_millis(5);
/// The most nodes of a Cluster.
const NODES_MAX: usize = 1_000;
/// How often a Cluster is asked for its slots, if nothing else asks.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The way to the server of a name.
pub(super) enum Route {
    One(RedisLink),
    Cluster(Cluster),
}

/// A Redis Cluster: a connection to every primary, and who has which slots.
pub(super) struct Cluster {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    /// The nodes to ask first. Their settings are those of every node.
    seeds: Vec<RedisAddress>,
    patience: Duration,
    map: ArcSwap<Map>,
    /// Connections that are there although no slot is known to be theirs.
    links: Mutex<HashMap<ServerPlace, Arc<RedisLink>>>,
    changed: Notify,
}

/// Which node has which slots.
#[derive(Default)]
struct Map {
    /// For each slot the number of its node plus one; 0 if no node has it.
    owners: Vec<u16>,
    nodes: Vec<Arc<RedisLink>>,
}

impl Cluster {
    /// Starts to find out.
    pub(super) fn new(seeds: Vec<RedisAddress>, patience: Duration) -> Self {
        let link = |seed: &RedisAddress| {
            (seed.place.clone(), Arc::new(RedisLink::new(vec![seed.clone()], patience)))
        };
        let links = Mutex::new(seeds.iter().map(link).collect());
        let map = ArcSwap::default();
        let shared = Arc::new(Shared { seeds, patience, map, links, changed: Notify::new() });
        let task = tokio::spawn(follow(shared.clone())).abort_handle();
        Self { shared, task }
    }

    /// The node that has a slot.
    pub(super) fn owner(&self, slot: u16) -> Result<Arc<RedisLink>, EngineFault> {
        let map = self.shared.map.load();
        let owner = map.owners.get(usize::from(slot)).copied().unwrap_or_default();
        let node = usize::from(owner).checked_sub(1).and_then(|node| map.nodes.get(node));
        match node {
            Some(link) => {
                if !link.is_up() {
                    self.ask_again();
                }
                Ok(link.clone())
            }
            None => {
                self.ask_again();
                let text = format!("no node of the Cluster is known to have slot {slot}");
                Err(EngineFault::Unreachable(text))
            }
        }
    }

    /// The node that another one named: `slot host:port`.
    pub(super) fn named(&self, details: &str, from: &RedisLink) -> Option<Arc<RedisLink>> {
        let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
        let place = place(host, port.parse().ok()?, from.address())?;
        Some(self.shared.link(place))
    }

    /// Wants to know who has which slots now.
    pub(super) fn ask_again(&self) {
        self.shared.changed.notify_one();
    }

    /// The nodes that have slots, by their names.
    pub(super) fn primaries(&self) -> BTreeMap<String, Arc<RedisLink>> {
        let named = |link: &Arc<RedisLink>| (link.address().place.to_string(), link.clone());
        self.shared.map.load().nodes.iter().map(named).collect()
    }

    /// Every node that there is a connection to.
    pub(super) fn up(&self) -> Vec<Arc<RedisLink>> {
        self.shared.up()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn up(&self) -> Vec<Arc<RedisLink>> {
        let links = self.links.lock();
        links.values().filter(|link| link.is_up()).cloned().collect()
    }

    /// The connection to a node: a new one, if there is none yet.
    fn link(&self, place: ServerPlace) -> Arc<RedisLink> {
        let mut links = self.links.lock();
        if links.len() >= NODES_MAX
            && let Some(link) = links.values().next()
        {
            return link.clone();
        }
        let make = || RedisLink::new(vec![self.seeds[0].at(place.clone())], self.patience);
        links.entry(place.clone()).or_insert_with(|| Arc::new(make())).clone()
    }

    /// Makes a new map from a node's answer, and closes connections to nodes that it does not name.
    fn draw(&self, slots: &[Value], from: &RedisLink) -> Option<()> {
        let mut map = Map { owners: vec![0; SLOTS], nodes: Vec::new() };
        let mut numbers: HashMap<ServerPlace, u16> = HashMap::new();
        for range in slots {
            let Value::Array(range) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &range[..]
            else {
                return None;
            };
            let [host, Value::Int(port), ..] = &primary[..] else { return None };
            let host = match host {
                Value::BulkString(host) => std::str::from_utf8(host).ok()?,
                _ => "",
            };
            let place = place(host, u16::try_from(*port).ok()?, from.address())?;
            let number = *numbers.entry(place.clone()).or_insert_with(|| {
                map.nodes.push(self.link(place));
                u16::try_from(map.nodes.len()).unwrap_or_default()
            });
            let range = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
            map.owners.get_mut(range)?.fill(number);
        }
        let seed = |place: &ServerPlace| self.seeds.iter().any(|seed| seed.place == *place);
        self.links.lock().retain(|place, _| numbers.contains_key(place) || seed(place));
        self.map.store(Arc::new(map));
        Some(())
    }
}

/// The place of a node. A node that does not know its own host has the one that was asked.
fn place(host: &str, port: u16, asked: &RedisAddress) -> Option<ServerPlace> {
    match (host, &asked.place) {
        ("" | "?", ServerPlace::Tcp(host, _)) => Some(ServerPlace::Tcp(host.clone(), port)),
        ("" | "?", ServerPlace::Unix(_)) => None,
        (host, _) => Some(ServerPlace::Tcp(host.to_owned(), port)),
    }
}

/// Asks which node has which slots: now and then, and after a redirection.
async fn follow(shared: Arc<Shared>) {
    loop {
        let mut drawn = false;
        for link in shared.up() {
            if let Ok(Value::Array(slots)) = link.ask(&slots_cmd()).await
                && !slots.is_empty()
                && shared.draw(&slots, &link).is_some()
            {
                drawn = true;
                break;
            }
        }
        // A few times a second at most, however many redirections there are.
        tokio::time::sleep(pause()).await;
        if drawn {
            let _ = tokio::time::timeout(ASK_AGAIN, shared.changed.notified()).await;
        }
    }
}

fn slots_cmd() -> Cmd {
    redis::cmd("CLUSTER").arg("SLOTS").take()
}

impl Route {
    /// Calls a script on the server of a slot: by its hash, or whole if the server does not know
    /// it. In a Cluster it follows redirections.
    pub(super) async fn call(
        &self,
        slot: u16,
        make: impl Fn(bool) -> Cmd,
    ) -> Result<Value, EngineFault> {
        let mut link = match self {
            Route::One(_) => None,
            Route::Cluster(cluster) => Some(cluster.owner(slot)?),
        };
        let (mut whole, mut asking) = (false, false);
        for _ in 0..=REDIRECTS_MAX {
            let to = match (&link, self) {
                (Some(link), _) => link,
                (None, Route::One(link)) => link,
                (None, Route::Cluster(_)) => unreachable!("a Cluster has links"),
            };
            let answer = match asking {
                false => to.ask(&make(whole)).await?,
                true => {
                    let mut both = redis::pipe();
                    both.cmd("ASKING").add_command(make(whole));
                    let answers = to.ask_all(&both).await?;
                    answers.into_iter().nth(1).unwrap_or(Value::Nil)
                }
            };
            let Value::ServerError(error) = &answer else { return Ok(answer) };
            match (error.code(), self) {
                ("NOSCRIPT", _) if !whole => whole = true,
                // The names of one request are moving to another node.
                ("TRYAGAIN", _) => tokio::time::sleep(TRY_AGAIN).await,
                (code @ ("MOVED" | "ASK"), Route::Cluster(cluster)) => {
                    asking = code == "ASK";
                    if !asking {
                        cluster.ask_again();
                    }
                    let named = cluster.named(error.details().unwrap_or_default(), to);
                    link = Some(named.ok_or_else(|| script::unexpected(&answer))?);
                }
                (_, Route::Cluster(cluster)) => {
                    // A Cluster that fails changes its map soon.
                    cluster.ask_again();
                    return Err(faults::refused(error));
                }
                (_, Route::One(link)) => {
                    let fault = faults::refused(error);
                    if faults::is_moved(error) {
                        link.give_up(&fault);
                    }
                    return Err(fault);
                }
            }
        }
        Err(EngineFault::Refused("the Cluster redirects requests in circles".to_owned()))
    }
}
