//! The key space: under which name a count lies in a remote store.
//!
//! `<prefix>:1:<rule>:<limits>:<key>`, every part escaped, so that two counts never share a name
//! and no name begins with another's. The limits are there as algorithms and periods: a rule that
//! counts otherwise from now on starts from nothing, on every node, whenever it is reloaded.

use std::sync::Arc;

use tidegate_core::Limit;
use tidegate_core::limit::Duration;
use tidegate_core::rules::Rule;
use tidegate_wire::percent;

/// The version of the names.
const VERSION: &str = "1";

/// The names of one rule's counts.
#[derive(Clone, Debug)]
pub(crate) struct RuleNames {
    prefix: Vec<u8>,
    /// The limits of the rule.
    pub(crate) limits: Arc<[Limit]>,
}

impl RuleNames {
    /// Of a rule, in a store whose names all begin with `all`.
    pub(crate) fn new(all: &str, rule: &Rule) -> Self {
        let mut bytes = Vec::new();
        for part in [all, VERSION, &rule.name] {
            escape(part.as_bytes(), &mut bytes);
            bytes.push(b':');
        }
        for (at, limit) in rule.limits.iter().enumerate() {
            if at > 0 {
                bytes.push(b'+');
            }
            let (algorithm, period) = (limit.algorithm.name(), Duration(limit.period));
            bytes.extend(format!("{algorithm}@{period}").bytes());
        }
        bytes.push(b':');
        Self { prefix: bytes, limits: rule.limits.as_slice().into() }
    }

    /// The name of the count of a key, which is empty where all keys of the rule share one. Names
    /// of longer keys begin with it.
    pub(crate) fn name(&self, key: &[u8]) -> Arc<[u8]> {
        let mut bytes = Vec::with_capacity(self.prefix.len() + key.len() + key.len() / 4);
        bytes.extend(&self.prefix);
        escape(key, &mut bytes);
        bytes.into()
    }

    /// The key of a name of this rule.
    pub(crate) fn key(&self, name: &[u8]) -> Option<Vec<u8>> {
        unescape(name.strip_prefix(self.prefix.as_slice())?)
    }
}

/// Letters, digits and a little punctuation stay; in particular no colon, which parts names, and
/// no brace, which would choose a place in a Redis Cluster. A space, which nearly every key has, is
/// a plus: a store spends its time on the length of names.
fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => out.push(byte),
            b'-' | b'.' | b'_' | b'~' | b'/' | b'=' | b',' | b'@' => out.push(byte),
            b' ' => out.push(b'+'),
            _ => out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
}

fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    for (at, word) in text.split(|&byte| byte == b'+').enumerate() {
        if at > 0 {
            bytes.push(b' ');
        }
        percent::decode(word, &mut bytes)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::limit::Spec;

    use super::*;

    fn names(name: &str, limits: &[&str]) -> RuleNames {
        let limit =
            |text: &&str| Spec::parse(text).unwrap().with(None, None, None).unwrap().unwrap();
        RuleNames::new("tidegate", &Rule::new(name, "k", limits.iter().map(limit).collect()))
    }

    #[test]
    fn a_name_tells_rule_limits_and_key() {
        let name = names("api: a", &["5/s burst 20", "100/min"]).name(b"api path=/foo bar+");
        let text = String::from_utf8(name.to_vec()).unwrap();
        assert_eq!(text, "tidegate:1:api%3A+a:gcra@1s+gcra@1min:api+path=/foo+bar%2B");
    }

    proptest! {
        #[test]
        fn names_are_as_different_as_keys_and_tell_them(one: Vec<u8>, two: Vec<u8>) {
            let names = names("r", &["1/s"]);
            let (name, other) = (names.name(&one), names.name(&two));
            prop_assert_eq!(name == other, one == two);
            prop_assert_eq!(names.key(&name), Some(one));
            let special = name.iter().any(|byte| b"{}* \n".contains(byte));
            prop_assert!(!special);
        }
    }
}
