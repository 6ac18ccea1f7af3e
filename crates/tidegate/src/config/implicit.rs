//! Rules that nobody writes as one: a door's own limit, tried after every `[[rule]]`.
//!
//! A door that has a limit of its own gives its `Config` a method that returns an
//! [`ImplicitRule`], and [`File::implicit_rules`](super::File) lists it. All else is done here and
//! in [`rule`](super::rule): names are told apart, limits compiled, places kept.

use std::ops::Range;

use tidegate_core::Limit;
use tidegate_core::rules::{Pattern, Rule};

use super::limits::{self, Counting};
use super::problem::Problem;

/// The rule that a door's own limit makes.
pub(crate) struct ImplicitRule<'a> {
    /// `<door>:<what the door is for>`, as in `jarl:PaymentGateway`.
    pub(crate) name: String,
    /// Where the file gives the rule its name.
    pub(crate) at: Range<usize>,
    /// The keys that the door composes.
    pub(crate) pattern: Pattern,
    /// The door's own words about counting.
    pub(crate) counting: Counting<'a>,
    /// Whether the door can say when a use ends.
    pub(crate) can_end: bool,
}

impl ImplicitRule<'_> {
    /// The rule; what is wrong with its limits is told.
    pub(super) fn compile(&self, source: &str, problems: &mut Vec<Problem>) -> Rule {
        let limits = limits::compile(source, &self.counting, problems);
        if !self.can_end && limits.iter().any(Limit::ends) {
            let message = "this door cannot say when a use ends, so nothing can be in flight";
            let remedy = "write a limit on uses in a time: limit = \"100 per 1s\"";
            problems.push(Problem::new(self.counting.limit.span(), message, remedy));
        }
        Rule { pattern: self.pattern.clone(), ..Rule::new(&self.name, "", limits) }
    }
}
