//! The configuration as envoyproxy/ratelimit prints it at `/rlconfig`.
//!
//! That server prints in no order; here it is the order of the files.

use std::fmt::{self, Write};

use super::Configuration;
use super::rule::Rule;
use super::tree::{Level, Path, composite};
use super::unit::Unit;

impl Configuration {
    /// Writes a line for each rule. A writer that has enough ends it with an error.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn dump(&self, out: &mut dyn Write) -> fmt::Result {
        self.domains
            .iter()
            .try_for_each(|(domain, level)| dump_level(level, &Path::of_domain(domain), out))
    }
}

fn dump_level(level: &Level, parent: &Path<'_>, out: &mut dyn Write) -> fmt::Result {
    for node in &level.nodes {
        let composite = composite(&node.key, &node.value);
        let path = parent.below(&composite);
        if let Some(rule) = &node.rule {
            write!(out, "{path}: ")?;
            dump_rule(rule, out)?;
        }
        dump_level(&node.children, &path, out)?;
    }
    Ok(())
}

fn dump_rule(rule: &Rule, out: &mut dyn Write) -> fmt::Result {
    let Rule { unit, requests_per_unit, shadow, quota, .. } = rule;
    write!(
        out,
        "unit={} requests_per_unit={requests_per_unit}, shadow_mode: {shadow}, quota_mode: {quota}",
        unit.name()
    )?;
    // What its units cannot say follows.
    match rule.limit {
        Some(limit) if *unit == Unit::Unknown || limit.algorithm.name() != "fixed-window" => {
            writeln!(out, ", limit: {limit}, algorithm: {}", limit.algorithm.name())
        }
        _ => writeln!(out),
    }
}
