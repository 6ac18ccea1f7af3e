//! Keys of which nothing is remembered: their rule limits nothing, or lets nothing pass.
//!
//! No slot is looked for and no store is asked, so neither a full table nor an outage changes the
//! answer.

use tidegate_core::{Nanos, Now, Op};

use super::catalog::{Catalog, creates};
use super::decision::Opinion;
use super::desk::Run;
use super::{Answer, Delay, Desk, Line, Take, Taken, Tried};
use crate::metrics::Counted;
use crate::stores::memory::{Body, Bucket, Place};

impl Catalog {
    /// What a rule that lets nothing pass thinks of an operation; `None` if it limits nothing.
    fn opinion_without_slot(&self, rule: Option<usize>, op: Op, now: Now) -> Option<Opinion<1>> {
        let rule = self.rule(rule.filter(|rule| self.denies(*rule))?);
        let (body, moment) = (&mut Body::default(), (now, Bucket::of(now)));
        Some(Opinion::settled(rule, body, Place::Own, op, moment))
    }

    /// Whether one of these rules, which let nothing pass, refuses the whole request: then nobody
    /// else is asked. `places` are a request's keys and their rules.
    pub(super) fn refuses_all(&self, places: &[(usize, usize)], op: Op) -> bool {
        let asks = !matches!(op, Op::Release { .. } | Op::Refund(_));
        asks && places.iter().any(|(_, rule)| !self.rule(*rule).shadow)
    }

    /// How long until the next use, after one that has already happened.
    pub(super) fn next_without_slot(&self, rule: usize) -> Nanos {
        if self.denies(rule) { Nanos::MAX } else { 0 }
    }
}

impl Desk {
    /// One decision, in the few words that a text line has.
    #[cold]
    #[inline(never)]
    pub(super) fn line_without_slot(
        &self,
        catalog: &Catalog,
        rule: Option<usize>,
        op: Op,
        now: Now,
        run: &mut Run,
    ) -> Line {
        let opinion = catalog.opinion_without_slot(rule, op, now);
        if !matches!(op, Op::Peek(_)) {
            let counted = opinion.as_ref().map_or(Counted::Allow, Opinion::counted);
            run.count(self, catalog, rule, counted);
        }
        let over = opinion.map(|opinion| opinion.refuses());
        over.map_or(Line::UNLIMITED, |over| Line { over, limit: 0, ..Line::UNLIMITED })
    }

    /// One decision, as how long the caller must wait.
    pub(super) fn delay_without_slot(
        &self,
        catalog: &Catalog,
        rule: Option<usize>,
        op: Op,
        now: Now,
        run: &mut Run,
    ) -> Delay {
        let opinion = catalog.opinion_without_slot(rule, op, now);
        if creates(op) {
            let counted = opinion.as_ref().map_or(Counted::Allow, Opinion::counted);
            run.count(self, catalog, rule, counted);
        }
        match (opinion, rule) {
            (Some(opinion), Some(rule)) => {
                opinion.delay(catalog.rule(rule), &Body::default(), op, now)
            }
            _ => Delay::NONE,
        }
    }

    /// A try of a request that may wait. It is decided at once: there is nothing to wait for.
    pub(super) fn try_without_slot(
        &self,
        catalog: &Catalog,
        rule: Option<usize>,
        take: &Take<'_>,
        now: Now,
    ) -> Tried {
        let counted = match catalog.opinion_without_slot(rule, Op::Take(take.cost), now) {
            Some(opinion) if opinion.refuses() => return Tried::TooLong,
            Some(opinion) => opinion.counted(),
            None if take.waited => Counted::Delay,
            None => Counted::Allow,
        };
        catalog.counts.add(self.lane, rule, counted, 1);
        Tried::Taken(Taken { held: None, booked: 0, window_start: None })
    }

    /// Whether no use of the key will ever pass under the rules in force.
    pub(crate) fn denies(&self, key: &[u8]) -> bool {
        let catalog = self.limiter.catalog.load();
        let rule = catalog.find(key, Op::Peek(1), true).ok().flatten();
        rule.is_some_and(|rule| catalog.denies(rule) && !catalog.rule(rule).shadow)
    }
}

impl Answer {
    /// Whether the rule that refused lets nothing pass, so that nobody need come back.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        let refusing = |rule| self.refused_by.as_ref() == Some(rule);
        self.limits.iter().any(|limit| limit.limit.denies() && refusing(&limit.rule))
    }
}
