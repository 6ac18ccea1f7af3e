//! What a descriptor's rule says, made of a limit as it is written.
//!
//! It checks a limit by itself; where the rule stands in the tree is for `tree.rs`.

use tidegate_core::limit::{Algorithm, AlgorithmName, GrammarError, Limit, Spec};
use tidegate_core::time::SECOND;

use super::error::Problem;
use super::source::{DescriptorNode, Metadata, RateLimitNode};
use super::unit::Unit;

/// A rule: what limits the descriptors that end at one place of the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Where it stands in the tree; no other rule of the configuration has the same.
    pub id: Box<str>,
    /// What is counted; `None` where there is no limit. An amount of 0 is always over.
    pub limit: Option<Limit>,
    /// The amount as answers show it.
    pub requests_per_unit: u32,
    /// The unit as answers show it.
    pub unit: Unit,
    /// The name of the limit, empty if it has none.
    pub name: Box<str>,
    /// The names of limits that do not count where this rule is matched, unlimited or not.
    pub replaces: Box<[Box<str>]>,
    /// Whether descriptors over the limit pass.
    pub shadow: bool,
    /// Whether descriptors over the limit pass unless all such descriptors are over.
    pub quota: bool,
    /// What answers carry if the rule lets a request pass.
    pub metadata: Option<Metadata>,
    /// Whether all values are in the name of the statistics.
    pub(super) detailed_metric: bool,
}

impl Rule {
    pub(super) fn new(node: &DescriptorNode, rate: &RateLimitNode) -> Result<Self, Problem> {
        let (limit, unit) = match &rate.limit {
            Some(text) => own_limit(text, rate)?,
            None => unit_limit(rate)?,
        };
        for name in &rate.replaces {
            if name.is_empty() {
                return Err(Problem::EmptyReplaces);
            }
            if *name == rate.name {
                return Err(Problem::ReplacesItself);
            }
        }
        let amount = limit.filter(|_| rate.limit.is_some()).map(|limit| limit.amount);
        Ok(Self {
            id: Box::default(),
            limit,
            requests_per_unit: amount
                .map_or(rate.requests_per_unit, |it| u32::try_from(it).unwrap_or(u32::MAX)),
            unit,
            name: rate.name.as_str().into(),
            replaces: rate.replaces.iter().map(|name| name.as_str().into()).collect(),
            shadow: node.shadow_mode,
            quota: node.quota_mode,
            metadata: node.metadata.clone(),
            detailed_metric: node.detailed_metric,
        })
    }
}

/// A limit of a unit, with windows of that length unless an algorithm is chosen.
pub(super) fn windows(requests_per_unit: u32, unit: Unit) -> Option<Limit> {
    let period = unit.period()?;
    let algorithm = Algorithm::FixedWindow;
    Some(Limit { amount: requests_per_unit.into(), period, algorithm })
}

fn unit_limit(rate: &RateLimitNode) -> Result<(Option<Limit>, Unit), Problem> {
    let algorithm = rate.algorithm.as_deref().map(algorithm_name).transpose()?;
    let limit = Unit::of_name(&rate.unit)
        .and_then(|unit| windows(rate.requests_per_unit, unit).map(|limit| (limit, unit)));
    match limit {
        Some(_) if rate.unlimited => Err(Problem::UnlimitedWithUnit),
        None if rate.unlimited => Ok((None, Unit::Unknown)),
        None => Err(Problem::InvalidUnit(rate.unit.clone())),
        // Nothing passes under an amount of 0, however it would be counted.
        Some((limit, unit)) if limit.amount == 0 => Ok((Some(limit), unit)),
        Some((limit, unit)) => {
            let text = format!("{} per {}s", limit.amount, limit.period / SECOND);
            Ok((parse(&text, algorithm)?, unit))
        }
    }
}

fn own_limit(text: &str, rate: &RateLimitNode) -> Result<(Option<Limit>, Unit), Problem> {
    if !rate.unit.is_empty() || rate.requests_per_unit > 0 || rate.unlimited {
        let reason = "write either this or unit and requests_per_unit".to_owned();
        return Err(Problem::InvalidLimit { limit: text.to_owned(), reason });
    }
    let algorithm = rate.algorithm.as_deref().map(algorithm_name).transpose()?;
    let limit = parse(text, algorithm)?;
    Ok((limit, limit.map_or(Unit::Unknown, |limit| Unit::of_period(limit.period))))
}

fn parse(text: &str, algorithm: Option<AlgorithmName>) -> Result<Option<Limit>, Problem> {
    let algorithm = algorithm.unwrap_or(AlgorithmName::FixedWindow);
    let spec = Spec::parse(text).map_err(|error| invalid(text, &error))?;
    spec.with(Some(algorithm), None, None).map_err(|error| invalid(text, &error))
}

fn algorithm_name(text: &str) -> Result<AlgorithmName, Problem> {
    AlgorithmName::parse(text).map_err(|error| invalid(text, &error))
}

fn invalid(text: &str, error: &GrammarError) -> Problem {
    let reason = format!("{}; {}", error.message, error.remedy);
    Problem::InvalidLimit { limit: text.to_owned(), reason }
}
