//! What doors see of the process: its state, and the rules in force.

use std::sync::Arc;

use super::rulebook::Rulebook;
use crate::control::{ChangeError, Changed, Control, ProcessState};
use crate::limiter::Limiter;
use crate::settings::change::JsonFields;
use crate::settings::in_force::RulesInForce;

/// The process, as doors may ask it.
pub struct Process {
    pub(crate) state: Arc<ProcessState>,
    pub(crate) rulebook: Rulebook,
}

impl Process {
    /// A process that is not ready, with no rules until the first reload.
    #[must_use]
    pub fn new(limiter: Arc<Limiter>) -> Arc<Self> {
        let state = ProcessState::new(limiter.clock().now().unix);
        Arc::new(Self { state, rulebook: Rulebook::new(limiter) })
    }
}

impl Control for Process {
    fn state(&self) -> &Arc<ProcessState> {
        &self.state
    }

    fn rules(&self) -> Arc<RulesInForce> {
        self.rulebook.pages()
    }

    fn set_rule(
        &self,
        name: &str,
        fields: JsonFields,
        expected: Option<u64>,
    ) -> Result<Changed, ChangeError> {
        self.rulebook.set(name, fields, expected)
    }

    fn restore_rule(&self, name: &str, expected: Option<u64>) -> Result<(), ChangeError> {
        self.rulebook.restore(name, expected)
    }
}
