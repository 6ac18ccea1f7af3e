//! What envoyproxy/ratelimit's own tests say of its configuration, as tables, and more.

mod bounds;
mod errors;
mod imported;
mod lookups;
mod model;
mod statistics;

use super::{Configuration, Found, Options, Override, Unit, load};

/// The entries of a descriptor: `k=v k2=v2`.
fn entries(text: &str) -> Vec<(&[u8], &[u8])> {
    { text.split_whitespace() }
        .map(|entry| entry.split_once('=').unwrap_or((entry, "")))
        .map(|(key, value)| (key.as_bytes(), value.as_bytes()))
        .collect()
}

fn loaded(text: &str) -> Configuration {
    load(&[("test.yaml", text)], Options::default()).unwrap()
}

fn error_of(text: &str) -> String {
    load(&[("test.yaml", text)], Options::default()).unwrap_err().to_string()
}

/// What is found, as `amount UNIT` and the modes, and the key of the count.
fn shown(found: Found<'_>, key: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    match found {
        Found::UnknownDomain => "unknown domain".to_owned(),
        Found::Nothing => "nothing".to_owned(),
        Found::Override(limit, unit) => format!("{} {} [{key}]", limit.amount, unit.name()),
        Found::Rule(rule) => match rule.limit {
            None => format!("unlimited [{key}]"),
            Some(limit) => {
                assert!(rule.unit == Unit::Unknown || rule.unit.period() == Some(limit.period));
                let shadow = if rule.shadow { " shadow" } else { "" };
                let quota = if rule.quota { " quota" } else { "" };
                format!("{} {}{shadow}{quota} [{key}]", limit.amount, rule.unit.name())
            }
        },
    }
}

fn find(config: &Configuration, domain: &str, descriptor: &str) -> String {
    find_given(config, domain, descriptor, None)
}

fn find_given(
    config: &Configuration,
    domain: &str,
    descriptor: &str,
    given: Option<Override>,
) -> String {
    let mut key = Vec::new();
    let entries = entries(descriptor);
    shown(config.find(domain, entries.iter().copied(), given, &mut key), &key)
}

fn check(config: &Configuration, descriptor: &str, expected: &str) {
    assert_eq!(find(config, "d", descriptor), expected, "{descriptor}");
}
