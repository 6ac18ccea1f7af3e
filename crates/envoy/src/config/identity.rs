//! A name for every rule, by which its counts are found: where it stands in the tree.
//!
//! The names of one configuration differ, and a rule that stays where it is keeps its name when
//! files are read again.

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use super::Configuration;
use super::rule::Rule;
use super::tree::{Level, Path, composite};

/// What the names of a door's own rules begin with.
const PREFIX: &str = "grpc:";
/// A longer path is cut, and a hash of the whole tells it from others.
const PATH_BYTES_MAX: usize = 160;

impl Configuration {
    /// All rules, in the order of the files.
    #[must_use]
    pub fn rules(&self) -> Vec<&Rule> {
        let mut rules = Vec::new();
        for (_, level) in &self.domains {
            collect(level, &mut rules);
        }
        rules
    }

    /// Gives every rule its name.
    pub(super) fn name_rules(&mut self) {
        let mut taken = HashSet::new();
        for (domain, level) in &mut self.domains {
            name_level(level, &Path::of_domain(domain), &mut taken);
        }
    }
}

fn collect<'a>(level: &'a Level, rules: &mut Vec<&'a Rule>) {
    for node in &level.nodes {
        rules.extend(node.rule.as_deref());
        collect(&node.children, rules);
    }
}

fn name_level(level: &mut Level, parent: &Path<'_>, taken: &mut HashSet<Box<str>>) {
    for node in &mut level.nodes {
        let composite = composite(&node.key, &node.value);
        let path = parent.below(&composite);
        if let Some(rule) = &mut node.rule {
            let mut name = format!("{PREFIX}{}", short(path.to_string()));
            // Paths that only look alike: a dot may be in a value.
            while !taken.insert(name.as_str().into()) {
                name.push('\'');
            }
            rule.id = name.into();
        }
        name_level(&mut node.children, &path, taken);
    }
}

fn short(path: String) -> String {
    if path.len() <= PATH_BYTES_MAX {
        return path;
    }
    let hash = Sha256::digest(path.as_bytes());
    let end = path.floor_char_boundary(PATH_BYTES_MAX - 17);
    let digits: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}~{digits}", &path[..end])
}
