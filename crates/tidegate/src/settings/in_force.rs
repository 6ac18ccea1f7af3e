//! The rules in force at one moment, each with what the file says about it.

use std::sync::Arc;

use super::change;
use super::draft::{CompiledRule, RuleOrigin};

/// All rules of one moment, in the order in which they are tried; the default last.
#[derive(Clone, Debug)]
pub struct RulesInForce {
    /// Another one after every change and reload, also across restarts.
    pub(crate) version: u64,
    pub(crate) entries: Vec<Arc<RuleEntry>>,
}

/// One rule.
#[derive(Clone, Debug)]
pub(crate) struct RuleEntry {
    pub(crate) now: CompiledRule,
    /// What the file says; `None` for a rule that it does not have.
    pub(crate) in_file: Option<CompiledRule>,
}

impl RuleEntry {
    pub(crate) fn name(&self) -> &str {
        &self.now.draft.name
    }

    /// Whether it differs from what the file says.
    pub(crate) fn changed(&self) -> bool {
        !self.in_file.as_ref().is_some_and(|file| self.is(file))
    }

    /// Whether it says the same, however it is written.
    pub(crate) fn is(&self, other: &CompiledRule) -> bool {
        is_same(&self.now, other)
    }

    /// Whether it is, or was before it was changed, what `file` says.
    pub(crate) fn is_of(&self, file: &CompiledRule) -> bool {
        self.in_file.as_ref().is_some_and(|own| is_same(own, file))
    }

    /// Whose rule it is.
    pub(crate) fn from(&self) -> &'static str {
        match self.now.draft.origin {
            _ if self.in_file.is_none() => "api",
            RuleOrigin::Rule => "rule",
            RuleOrigin::Door { .. } | RuleOrigin::Given => "door",
            RuleOrigin::Default => "default",
        }
    }
}

fn is_same(one: &CompiledRule, other: &CompiledRule) -> bool {
    other.rule == one.rule && change::shown(other) == change::shown(one)
}

impl RulesInForce {
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<RuleEntry>> {
        self.entries.iter().find(|entry| entry.name() == name)
    }
}
