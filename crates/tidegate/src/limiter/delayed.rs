//! Which keys must wait at this moment: a search through all counts, page by page.
//!
//! Counts in a remote store are searched first, rule by rule, then the table in memory. So a search
//! that the store does not answer fails before it has found anything.

use std::sync::Arc;

use tidegate_core::rules::Rule;
use tidegate_core::{Nanos, Now, Op, State, algorithms};

use super::Limiter;
use super::catalog::Catalog;
use crate::stores::memory::{Body, Mark};

/// What is asked of each key.
const NEXT_USE: Op = Op::Peek(1);

/// A search for keys that must wait, wherever their counts lie.
pub struct DelayedSearch {
    limiter: Arc<Limiter>,
    /// The rules that were in force when the search began.
    catalog: Arc<Catalog>,
    /// What the keys begin with.
    prefix: Vec<u8>,
    /// The rule whose counts in the remote store are searched, and where its next page begins.
    rule: usize,
    mark: Vec<u8>,
    /// Where the next page of the table begins; `None` if there is none.
    table: Option<Mark>,
    /// How many cells of the table a page has.
    cells: usize,
}

/// What a page of a search has found.
#[derive(Debug, PartialEq, Eq)]
pub struct DelayedPage {
    /// Keys that must wait, and how long from `at` until the next use of each.
    pub keys: Vec<(Vec<u8>, Nanos)>,
    /// When the counts were looked at.
    pub at: Now,
}

impl DelayedSearch {
    /// A search among the keys that begin with `prefix`. A page looks at `cells` cells of the table
    /// in memory; how large those of a remote store are is the store's choice.
    #[must_use]
    pub fn new(limiter: &Arc<Limiter>, prefix: Vec<u8>, cells: usize) -> Self {
        let catalog = limiter.catalog.load_full();
        let in_memory = |rule: usize| {
            let names = catalog.names(rule);
            names.is_none() && can_delay(&catalog, rule) && meets(&catalog, rule, &prefix)
        };
        let table = (0..catalog.set().rules().len()).any(in_memory).then(Mark::default);
        let (limiter, mark) = (limiter.clone(), Vec::new());
        Self { limiter, catalog, prefix, rule: 0, mark, table, cells }
    }

    /// The next page with the keys that `wanted` names; `None` at the end. A key may be found
    /// twice; one that must wait all the while is found once at least.
    ///
    /// # Errors
    /// Why a remote store cannot be searched.
    pub async fn next_page(
        &mut self,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<DelayedPage>, String> {
        match self.next_remote_page(&wanted).await? {
            Some(page) => Ok(Some(page)),
            None => Ok(self.next_table_page(&wanted)),
        }
    }

    async fn next_remote_page(
        &mut self,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<DelayedPage>, String> {
        let Self { limiter, catalog, prefix, rule: position, mark, .. } = self;
        let searched = |rule: usize| can_delay(catalog, rule) && meets(catalog, rule, prefix);
        let rules = catalog.set().rules();
        let found = (*position..rules.len()).find_map(|rule| {
            let names = catalog.names(rule).filter(|_| searched(rule))?;
            Some((rule, names))
        });
        *position = found.map_or(rules.len(), |(rule, _)| rule);
        let (Some((_, names)), Some(remote)) = (found, limiter.remote.get()) else {
            return Ok(None);
        };
        let rule = &rules[*position];
        // The longer of the two: keys of this rule that are searched for begin with both.
        let own = rule.pattern.beginning();
        let longer = if own.len() > prefix.len() { own } else { prefix };
        let page = remote.look(names, longer, std::mem::take(mark)).await;
        let page = page.map_err(|fault| fault.to_string())?;
        let mut keys = Vec::new();
        for (name, held) in &page.counts {
            if let Some(key) = names.key(name)
                && wanted(&key)
                && catalog.find(&key, NEXT_USE, true) == Ok(Some(*position))
                && let Some(delay) = delay(rule, held.states(), page.at)
            {
                keys.push((key.to_vec(), delay));
            }
        }
        match page.next {
            Some(next) => *mark = next,
            None => *position += 1,
        }
        Ok(Some(DelayedPage { keys, at: limiter.clock.now() }))
    }

    fn next_table_page(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Option<DelayedPage> {
        let mark = self.table.as_mut()?;
        // Slots are known by the rules in force, which a reload may have changed meanwhile.
        let (catalog, at) = (self.limiter.catalog.load(), self.limiter.clock.now());
        let mut keys = Vec::new();
        let is_end = self.limiter.memory().scan_on(mark, self.cells, |key, body| {
            if key.starts_with(&self.prefix)
                && wanted(key)
                && let Some(delay) = delay_in_memory(&catalog, key, body, at)
            {
                keys.push((key.to_vec(), delay));
            }
        });
        if is_end {
            self.table = None;
        }
        Some(DelayedPage { keys, at })
    }
}

/// How long until a key may be used again, if its slot has a say in that and it is not now.
fn delay_in_memory(catalog: &Catalog, key: &[u8], body: &Body, now: Now) -> Option<Nanos> {
    // Another rule may be for the key since the slot was made.
    let position = catalog.find(key, NEXT_USE, true).ok()??;
    let rule = catalog.rule_of(body.tally.rule())?;
    let is_current = rule.name == catalog.rule(position).name;
    // A slot of a rule whose counts lie in a remote store has statistics, and what was counted
    // while that store was away.
    let is_counted_here = catalog.names(position).is_none();
    if !is_current || !is_counted_here || !can_delay(catalog, position) {
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

/// Whether the rule at this position delays single keys for a time. A count that keys share delays
/// no key in particular, and when a use in flight ends is unknown.
fn can_delay(catalog: &Catalog, position: usize) -> bool {
    let rule = catalog.rule(position);
    !rule.shadow && !rule.shared && !rule.limits.is_empty() && !catalog.in_flight(position)
}

/// Whether keys of the rule at this position can begin like this.
fn meets(catalog: &Catalog, position: usize, prefix: &[u8]) -> bool {
    let own = catalog.rule(position).pattern.beginning();
    own.starts_with(prefix) || prefix.starts_with(own)
}
