//! Native rules that were imported decide as the configuration does.

use proptest::prelude::*;
use tidegate_core::rules::Pattern;

use super::loaded;
use super::model::{self, descriptor_trees, descriptors, pairs};
use crate::config::import::{native_rules, to_toml};
use crate::config::{Found, write_key};

#[test]
fn rules_are_written_as_toml() {
    let config = loaded(
        r#"
domain: my domain
descriptors:
- {key: user, rate_limit: {unit: month, requests_per_unit: 5, name: per user}, shadow_mode: true}
- {key: user, value: 'a"\b', rate_limit: {unlimited: true}}
- {key: banned, value: 1*, rate_limit: {unit: day}}
- {key: shared, value: 2*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 7}}
- {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1, name: twice}}
- {key: old, rate_limit: {limit: 5/s burst 9, algorithm: gcra, name: twice, replaces: [{name: x}]}}
"#,
    );
    let (text, unsupported) = to_toml(&config);
    let expected = r##"# Rules of envoyproxy/ratelimit. They are ordered: the first match decides.

[[rule]]
match = "my%20domain *=* *=*"
limit = "none"

[[rule]]
match = "my%20domain user=a\"\\\\b"
limit = "none"

[[rule]]
match = "my%20domain banned=1*"
limit = "deny"

[[rule]]
match = "my%20domain shared=2*"
limit = "7 per hour"
algorithm = "fixed-window"
shared = true

[[rule]]
name = "per user"
match = "my%20domain user=*"
limit = "5 per 30d"
algorithm = "fixed-window"
shadow = true

[[rule]]
# `quota_mode` has no native form: the limit is left out.
# the `name` is left out: it is that of several limits, and names of rules differ.
match = "my%20domain quota=*"
limit = "none"

[[rule]]
# `replaces` has no native form: the other limits count as well.
# the `name` is left out: it is that of several limits, and names of rules differ.
match = "my%20domain old=*"
limit = "5 per second burst 9"
algorithm = "gcra"

# As in envoyproxy/ratelimit: each descriptor is counted separately, and refused calls count.
[grpc.domains."my domain"]
counting = "envoy"
"##;
    assert_eq!(text, expected);
    let reported: Vec<_> = unsupported.iter().map(|it| it.rule.as_str()).collect();
    let (quota, old) = ("my%20domain quota=*", "my%20domain old=*");
    assert_eq!(reported, [quota, quota, old, old]);
    let (text, unsupported) = to_toml(&loaded("domain: d"));
    assert!(unsupported.is_empty() && !text.contains("[grpc"), "{text}");
}

proptest! {
    #[test]
    fn imported_rules_decide_alike(tree in descriptor_trees(), entries in descriptors()) {
        let config = model::loaded(tree);
        let found = config.find("d", pairs(&entries), None, &mut Vec::new());
        let expected = match found {
            Found::Rule(rule) => rule.limit.map(|limit| limit.to_string()),
            _ => None,
        };
        let mut key = Vec::new();
        write_key(&mut key, "d", pairs(&entries));
        let rules = native_rules(&config);
        let matched = rules.iter().find(|rule| Pattern::new(&rule.pattern).matches(&key));
        prop_assert_eq!(matched.and_then(|rule| rule.limit.clone()), expected);
    }
}
