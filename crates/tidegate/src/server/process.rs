//! What doors see of the process: its state, and the rules in force, which are what the file says
//! and what was changed since over the API.
//!
//! A change is laid over what is in force, compiled aside and put in force whole, so that no
//! decision ever sees half of it. Changes and reloads take turns on one lock that no decision and
//! no reader takes. A reload takes everything back to what the file says.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::rules::{Consistency, Rule};
use tidegate_core::time::MILLISECOND;

use crate::config::too_long_for_remote_store;
use crate::control::{ADDED_MAX, ChangeError, Changed, Control, ProcessState};
use crate::limiter::{Limiter, keeps_counts};
use crate::settings::change::{self, FieldError, JsonFields};
use crate::settings::draft::{self, CompiledRule};
use crate::settings::in_force::{RuleEntry, RulesInForce};

/// The process, as doors may ask it.
pub struct Process {
    pub(crate) state: Arc<ProcessState>,
    limiter: Arc<Limiter>,
    in_force: ArcSwap<RulesInForce>,
    /// Held while the rules change.
    writing: Mutex<()>,
}

/// What a reload changed, by the names of the rules.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
    pub(crate) changed: Vec<String>,
    /// Those of the changed ones whose counts begin anew.
    pub(crate) anew: Vec<String>,
    /// Those of the changed ones that count in the remote store from now on: what other nodes, and
    /// this one before, have counted there holds.
    pub(crate) from_store: Vec<String>,
    /// How many changes over the API were taken back.
    pub(crate) taken_back: usize,
}

impl Difference {
    fn between(before: &[Arc<RuleEntry>], after: &[CompiledRule], has_store: bool) -> Self {
        let name = |written: &CompiledRule| written.draft.name.clone();
        let old: HashMap<&str, &Arc<RuleEntry>> =
            before.iter().map(|old| (old.name(), old)).collect();
        let kept: HashSet<&str> = after.iter().map(|new| new.draft.name.as_str()).collect();
        let is_gone = |old: &&Arc<RuleEntry>| !kept.contains(old.name());
        let removed = before.iter().filter(is_gone).map(|old| name(&old.now)).collect();
        let mut difference = Self { removed, ..Self::default() };
        for new in after {
            match old.get(new.draft.name.as_str()) {
                None => difference.added.push(name(new)),
                Some(old) if old.is(new) => {}
                Some(old) => {
                    difference.changed.push(name(new));
                    let counted = !old.now.rule.limits.is_empty() && !new.rule.limits.is_empty();
                    if counted && !keeps_counts(&new.rule, &old.now.rule) {
                        let exact = |rule: &Rule| rule.consistency == Consistency::Exact;
                        match has_store && exact(&new.rule) && !exact(&old.now.rule) {
                            true => difference.from_store.push(name(new)),
                            false => difference.anew.push(name(new)),
                        }
                    }
                }
            }
        }
        let taken_back =
            |old: &&Arc<RuleEntry>| old.changed() && !after.iter().any(|new| old.is(new));
        difference.taken_back = before.iter().filter(taken_back).count();
        difference
    }
}

impl Process {
    /// A process that is not ready, with no rules until the first reload.
    #[must_use]
    pub fn new(limiter: Arc<Limiter>) -> Arc<Self> {
        let begun_at = limiter.clock().now().unix;
        // A version that a client has kept from before a restart must not fit by accident.
        let version = begun_at / MILLISECOND;
        let in_force = ArcSwap::from_pointee(RulesInForce { version, entries: Vec::new() });
        let state = ProcessState::new(begun_at);
        Arc::new(Self { state, limiter, in_force, writing: Mutex::new(()) })
    }

    /// Puts the rules of a file in force, and returns what that changed.
    pub(crate) fn install(&self, written: Vec<CompiledRule>) -> Difference {
        let _turn = self.writing.lock();
        let before = self.in_force.load_full();
        let difference = Difference::between(&before.entries, &written, self.limiter.has_store());
        let entry = |now: CompiledRule| Arc::new(RuleEntry { in_file: Some(now.clone()), now });
        self.put_in_force(before.version, written.into_iter().map(entry).collect());
        difference
    }

    /// Puts the rules of a file in force together with what came beside it. What was changed over
    /// the API stays, unless its rule is another now.
    pub(crate) fn renew(&self, written: Vec<CompiledRule>) -> Difference {
        let _turn = self.writing.lock();
        let before = self.in_force.load_full();
        let names: HashSet<&str> = written.iter().map(|new| new.draft.name.as_str()).collect();
        let is_ours =
            |entry: &&Arc<RuleEntry>| entry.in_file.is_none() && !names.contains(entry.name());
        // Those that were added are tried first.
        let mut entries: Vec<_> = before.entries.iter().filter(is_ours).cloned().collect();
        let old: HashMap<&str, &Arc<RuleEntry>> =
            before.entries.iter().map(|old| (old.name(), old)).collect();
        entries.extend(written.into_iter().map(|new| match old.get(new.draft.name.as_str()) {
            Some(old) if old.is_of(&new) => (*old).clone(),
            _ => Arc::new(RuleEntry { in_file: Some(new.clone()), now: new }),
        }));
        let after: Vec<CompiledRule> = entries.iter().map(|entry| entry.now.clone()).collect();
        let difference = Difference::between(&before.entries, &after, self.limiter.has_store());
        self.put_in_force(before.version, entries);
        difference
    }

    fn current(&self, expected: Option<u64>) -> Result<Arc<RulesInForce>, ChangeError> {
        let before = self.in_force.load_full();
        match expected {
            Some(version) if version != before.version => Err(ChangeError::Outdated),
            _ => Ok(before),
        }
    }

    /// The caller must hold the lock `writing`. Returns the version of `entries`.
    fn put_in_force(&self, before: u64, entries: Vec<Arc<RuleEntry>>) -> u64 {
        self.limiter.install(draft::rule_set(entries.iter().map(|entry| &entry.now)));
        let version = before + 1;
        self.in_force.store(Arc::new(RulesInForce { version, entries }));
        version
    }
}

impl Control for Process {
    fn state(&self) -> &Arc<ProcessState> {
        &self.state
    }

    fn rules(&self) -> Arc<RulesInForce> {
        self.in_force.load_full()
    }

    fn set_rule(
        &self,
        name: &str,
        fields: JsonFields,
        expected: Option<u64>,
    ) -> Result<Changed, ChangeError> {
        let _turn = self.writing.lock();
        let before = self.current(expected)?;
        let mut entries = before.entries.clone();
        let at = entries.iter().position(|entry| entry.name() == name);
        let changed = match at.map(|at| &entries[at]) {
            Some(old) => change::change(&old.now, fields)
                .map(|now| RuleEntry { now, in_file: old.in_file.clone() }),
            None => change::create(name, fields).map(|now| RuleEntry { now, in_file: None }),
        };
        let entry = Arc::new(changed.map_err(ChangeError::Wrong)?);
        if let Some(problem) =
            too_long_for_remote_store(&entry.now).filter(|_| self.limiter.has_store())
        {
            return Err(ChangeError::Wrong(vec![FieldError::of("limit", problem)]));
        }
        match at {
            Some(at) => entries[at] = entry.clone(),
            None if added(&entries) >= ADDED_MAX => return Err(ChangeError::TooMany),
            None => entries.insert(0, entry.clone()),
        }
        let version = self.put_in_force(before.version, entries);
        Ok(Changed { entry, created: at.is_none(), version })
    }

    fn restore_rule(&self, name: &str, expected: Option<u64>) -> Result<(), ChangeError> {
        let _turn = self.writing.lock();
        let before = self.current(expected)?;
        let mut entries = before.entries.clone();
        let at = entries.iter().position(|entry| entry.name() == name);
        let at = at.ok_or(ChangeError::Unknown)?;
        match entries[at].in_file.clone() {
            Some(_) if !entries[at].changed() => return Ok(()),
            Some(now) => entries[at] = Arc::new(RuleEntry { in_file: Some(now.clone()), now }),
            None => drop(entries.remove(at)),
        }
        self.put_in_force(before.version, entries);
        Ok(())
    }
}

fn added(entries: &[Arc<RuleEntry>]) -> usize {
    entries.iter().filter(|entry| entry.in_file.is_none()).count()
}

#[cfg(test)]
mod tests;
