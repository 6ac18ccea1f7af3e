//! The configuration of envoyproxy/ratelimit: which limit a descriptor has.
//!
//! - [`load`]: the texts of its YAML files into a [`Configuration`], all of them or none
//! - [`load_nodes`], [`load_beside`]: the same for xDS messages, as [`source`] structures
//! - [`Configuration::find`]: the rule of a descriptor and the key of its count
//! - [`Configuration::write_statistic`], [`Configuration::dump`]: what its own tools show
//! - [`import`]: native rules that decide alike
//!
//! Nothing here reads a file, a socket or a clock.

mod dump;
mod error;
mod identity;
pub mod import;
mod key;
mod lookup;
mod rule;
mod scalar;
mod schema;
pub mod source;
#[cfg(test)]
mod tests;
mod tree;
mod unit;
mod yaml;

use std::collections::HashMap;

pub use error::{ConfigError, Problem};
pub use key::write_key;
pub use lookup::{Found, Override, sanitised};
pub use rule::Rule;
use source::DomainNode;
use tree::{Level, Path};
pub use unit::Unit;

/// The most levels of descriptors: no request has more entries.
pub const DEPTH_MAX: usize = 32;

/// How files are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether several files may have one domain. Their descriptors then follow one another.
    pub merge_domains: bool,
}

/// Which limits there are.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// In the order of the files.
    domains: Vec<(Box<str>, Level)>,
    /// Where the domains are.
    places: HashMap<Box<str>, usize>,
}

/// Loads the texts of files, each with the name that errors show.
///
/// # Errors
/// With the first thing that is wrong in any of them.
pub fn load(files: &[(&str, &str)], options: Options) -> Result<Configuration, ConfigError> {
    let read = |(name, text): &(&str, &str)| match schema::read(text) {
        Ok(node) => Ok(((*name).to_owned(), node)),
        Err(problem) => Err(ConfigError { file: (*name).to_owned(), problem }),
    };
    let nodes: Vec<_> = files.iter().map(read).collect::<Result<_, _>>()?;
    load_nodes(&nodes, options)
}

/// Loads configurations that were read elsewhere, each with the name that errors show.
///
/// # Errors
/// With the first thing that is wrong in any of them.
pub fn load_nodes(
    nodes: &[(String, DomainNode)],
    options: Options,
) -> Result<Configuration, ConfigError> {
    load_beside(&Configuration::default(), nodes, options)
}

/// As [`load_nodes`], beside a configuration from elsewhere, whose rules come first and keep their
/// names. No domain may be in both, whether domains are merged or not.
///
/// # Errors
/// With the first thing that is wrong in any of them.
pub fn load_beside(
    other: &Configuration,
    nodes: &[(String, DomainNode)],
    options: Options,
) -> Result<Configuration, ConfigError> {
    let mut configuration = other.clone();
    for (name, node) in nodes {
        let added = match other.has_domain(&node.domain) {
            true => Err(Problem::DuplicateDomain(node.domain.clone())),
            false => configuration.add(node, options),
        };
        added.map_err(|problem| ConfigError { file: name.clone(), problem })?;
    }
    configuration.name_rules();
    Ok(configuration)
}

impl Configuration {
    /// The domains, in the order of the files.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.iter().map(|(name, _)| &**name)
    }

    /// Whether a file has the domain: its descriptors are then decided here alone.
    #[must_use]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.places.contains_key(domain)
    }

    /// Whether there is no domain at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    fn level(&self, domain: &str) -> Option<&Level> {
        self.places.get(domain).map(|at| &self.domains[*at].1)
    }

    fn add(&mut self, node: &DomainNode, options: Options) -> Result<(), Problem> {
        if node.domain.is_empty() {
            return Err(Problem::EmptyDomain);
        }
        let at = match self.places.get(node.domain.as_str()) {
            Some(_) if !options.merge_domains => {
                return Err(Problem::DuplicateDomain(node.domain.clone()));
            }
            Some(at) => *at,
            None => {
                self.places.insert(node.domain.as_str().into(), self.domains.len());
                self.domains.push((node.domain.as_str().into(), Level::default()));
                self.domains.len() - 1
            }
        };
        self.domains[at].1.load(&Path::of_domain(&node.domain), &node.descriptors)
    }
}
