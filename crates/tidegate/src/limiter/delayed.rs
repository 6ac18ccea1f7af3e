//! Who must wait at this moment, found by a walk through all keys in small pieces.

use tidegate_core::{Nanos, Now, Op, algorithms};

use super::Limiter;
use super::catalog::Catalog;
use crate::stores::memory::{Body, Mark};

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

impl Limiter {
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
    let op = Op::Peek(1);
    // Another rule may be for the key since the slot was made.
    let position = catalog.find(name, op, true).ok()??;
    let rule = catalog.rule_of(body.tally.rule())?;
    if rule.name != catalog.rule(position).name || rule.shadow || rule.shared {
        return None;
    }
    let states = rule.limits.iter().zip(body.held.states());
    let delays = states.map(|(limit, state)| {
        let judgement = algorithms::judge(limit, state, op, now);
        algorithms::explain(limit, state, op, &judgement, now).delay
    });
    delays.max().filter(|delay| *delay > 0)
}
