//! Who must wait at this moment, found by a walk through all keys in small pieces.

use std::sync::Arc;

use tidegate_core::rules::Rule;
use tidegate_core::{Nanos, Now, Op, State, algorithms};

use super::Limiter;
use super::catalog::Catalog;
use crate::stores::memory::{Body, Mark};

/// What is asked of each key.
const NEXT_USE: Op = Op::Peek(1);

/// How far a search for delayed keys has come.
#[derive(Debug, Default)]
pub struct Search {
    mark: Mark,
}

impl Search {
    /// From the beginning.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// How far a search for delayed keys in a remote store has come: rule by rule, page by page.
pub(crate) struct SearchElsewhere {
    catalog: Arc<Catalog>,
    /// What the keys begin with that are searched for.
    beginning: Vec<u8>,
    rule: usize,
    mark: Vec<u8>,
}

impl Limiter {
    /// Begins a search in a remote store, among keys that begin like this.
    pub(crate) fn search_elsewhere(&self, beginning: Vec<u8>) -> SearchElsewhere {
        let catalog = self.catalog.load_full();
        SearchElsewhere { catalog, beginning, rule: 0, mark: Vec::new() }
    }

    /// As [`Self::find_delayed`], in a remote store: looks at a page of it.
    ///
    /// # Errors
    /// Why the store cannot be searched.
    pub(crate) async fn find_delayed_elsewhere(
        &self,
        search: &mut SearchElsewhere,
        wanted: impl Fn(&[u8]) -> bool,
        mut tell: impl FnMut(&[u8], Nanos),
    ) -> Result<bool, String> {
        let Some(remote) = self.remote.get() else { return Ok(true) };
        let SearchElsewhere { catalog, beginning, rule: position, mark } = search;
        while *position < catalog.set().rules().len() && !can_tell(catalog, *position, beginning) {
            *position += 1;
        }
        let Some(rule) = catalog.set().rules().get(*position) else { return Ok(true) };
        let Some((prefix, limits)) = catalog.prefix_elsewhere(*position) else { return Ok(true) };
        // The longer of the two: keys of this rule that are searched for begin with both.
        let own = rule.pattern.beginning();
        let longer = if own.len() > beginning.len() { own } else { beginning };
        let page = remote.look(prefix.beginning(longer), std::mem::take(mark), limits).await;
        let page = page.map_err(|fault| fault.to_string())?;
        for (name, held) in &page.counts {
            if let Some(key) = prefix.key(name)
                && wanted(&key)
                && catalog.find(&key, NEXT_USE, true) == Ok(Some(*position))
                && let Some(next) = delay(rule, held.states(), page.at)
            {
                tell(&key, next);
            }
        }
        match page.next {
            Some(next) => *mark = next,
            None => *position += 1,
        }
        Ok(*position == catalog.set().rules().len())
    }

    /// Looks at a piece of the table, some `cells` of it, and tells of each key that `wanted` names
    /// how long until its next use, if it must wait. A key may be told twice; one that waits all
    /// the while is told once at least. `true` when all has been looked at.
    pub fn find_delayed(
        &self,
        search: &mut Search,
        cells: usize,
        now: Now,
        wanted: impl Fn(&[u8]) -> bool,
        mut tell: impl FnMut(&[u8], Nanos),
    ) -> bool {
        let catalog = self.catalog.load();
        self.memory().scan_on(&mut search.mark, cells, |name, body| {
            if wanted(name)
                && let Some(next) = next_use(&catalog, name, body, now)
            {
                tell(name, next);
            }
        })
    }
}

/// How long until a key may be used again, if its slot has a say in that and it is not now.
fn next_use(catalog: &Catalog, name: &[u8], body: &Body, now: Now) -> Option<Nanos> {
    // Another rule may be for the key since the slot was made.
    let position = catalog.find(name, NEXT_USE, true).ok()??;
    let rule = catalog.rule_of(body.tally.rule())?;
    if rule.name != catalog.rule(position).name || rule.shadow || rule.shared {
        return None;
    }
    delay(rule, body.held.states(), now)
}

fn delay(rule: &Rule, states: &[State], now: Now) -> Option<Nanos> {
    let states = rule.limits.iter().zip(states);
    let delays = states.map(|(limit, state)| {
        let judgement = algorithms::judge(limit, state, NEXT_USE, now);
        algorithms::explain(limit, state, NEXT_USE, &judgement, now).delay
    });
    delays.max().filter(|delay| *delay > 0)
}

/// Whether the rule at this position can delay a key that begins like this. Uses in flight are not
/// waited for by those who are told.
fn can_tell(catalog: &Catalog, position: usize, beginning: &[u8]) -> bool {
    let rule = catalog.rule(position);
    let own = rule.pattern.beginning();
    let meets = own.starts_with(beginning) || beginning.starts_with(own);
    meets && !rule.shadow && !rule.shared && !rule.limits.is_empty() && !catalog.in_flight(position)
}
