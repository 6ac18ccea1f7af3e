//! The key space: under which name a count lies in a remote store.
//!
//! `<prefix>:1:<rule>:<limits>:<key>`, every part escaped, so that two counts never share a name
//! and no name begins with another's. The limits are there as algorithms and periods: a rule that
//! counts otherwise from now on starts from nothing, on every node, whenever it is reloaded.

use std::sync::Arc;

use tidegate_core::limit::Duration;
use tidegate_core::rules::Rule;
use tidegate_wire::percent;

/// The version of the names.
const VERSION: &str = "1";

/// What the names of one rule's counts begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix(Vec<u8>);

impl Prefix {
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
        Self(bytes)
    }

    /// The name of the count of a key; empty where all keys of the rule share one.
    pub(crate) fn name(&self, key: &[u8]) -> Arc<[u8]> {
        let mut bytes = Vec::with_capacity(self.0.len() + key.len() + key.len() / 4);
        bytes.extend(&self.0);
        escape(key, &mut bytes);
        bytes.into()
    }

    /// What every name of the rule begins with whose key begins with `key`.
    pub(crate) fn beginning(&self, key: &[u8]) -> Vec<u8> {
        self.name(key).to_vec()
    }

    /// The key of a name of this rule.
    pub(crate) fn key(&self, name: &[u8]) -> Option<Vec<u8>> {
        unescape(name.strip_prefix(self.0.as_slice())?)
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

    fn prefix(name: &str, limits: &[&str]) -> Prefix {
        let limit =
            |text: &&str| Spec::parse(text).unwrap().with(None, None, None).unwrap().unwrap();
        Prefix::new("tidegate", &Rule::new(name, "k", limits.iter().map(limit).collect()))
    }

    #[test]
    fn a_name_tells_rule_limits_and_key() {
        let name = prefix("api: a", &["5/s burst 20", "100/min"]).name(b"api path=/foo bar+");
        let text = String::from_utf8(name.to_vec()).unwrap();
        assert_eq!(text, "tidegate:1:api%3A+a:gcra@1s+gcra@1min:api+path=/foo+bar%2B");
    }

    proptest! {
        #[test]
        fn names_are_as_different_as_keys_and_tell_them(one: Vec<u8>, two: Vec<u8>) {
            let prefix = prefix("r", &["1/s"]);
            let (name, other) = (prefix.name(&one), prefix.name(&two));
            prop_assert_eq!(name == other, one == two);
            prop_assert_eq!(prefix.key(&name), Some(one));
            let special = name.iter().any(|byte| b"{}* \n".contains(byte));
            prop_assert!(!special);
        }
    }
}
