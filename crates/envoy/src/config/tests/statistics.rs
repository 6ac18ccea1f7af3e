//! The names of statistics, and the lines of `/rlconfig`.

use super::{entries, loaded};

/// Whether descriptors of a domain `d` have these names; empty for none.
fn check(descriptors: &str, names: &[(&str, &str)]) {
    // Where it stands the limit means nothing; the descriptors refer to it.
    let limit = "rate_limit: &m {unit: minute, requests_per_unit: 1}";
    let config = loaded(&format!("domain: d\n{limit}\ndescriptors:\n{descriptors}"));
    for (descriptor, name) in names {
        let mut out = "left over".to_owned();
        config.write_statistic("d", entries(descriptor).iter().copied(), &mut out);
        assert_eq!(out, *name, "{descriptor}");
    }
}

#[test]
fn the_file_says_which_values_are_shown() {
    check(
        "- {key: a, value: 1, descriptors: [
    {key: b, rate_limit: *m}, {key: b, value: 2, rate_limit: *m}]}
- {key: wild, value: foo*, rate_limit: *m}
- {key: multi, value: foo*bar*, rate_limit: *m, value_to_metric: true}
- {key: none, value: x}",
        &[
            ("a=1 b=x", "d.a_1.b"),
            ("a=1 b=2", "d.a_1.b_2"),
            ("a=1", ""),
            ("a=1 b=2 c=3", ""),
            ("none=x", ""),
            ("wild=foo1", "d.wild_foo*"),
            ("multi=foo123bar4", "d.multi_foo123bar4"),
        ],
    );
}

#[test]
fn value_to_metric_shows_the_value_of_its_entry() {
    check(
        "- {key: route, value_to_metric: true, descriptors: [{key: method, value_to_metric: true,
    descriptors: [{key: subject, rate_limit: *m}]}]}
- {key: k1, descriptors: [{key: k2, value_to_metric: true,
    descriptors: [{key: k3, rate_limit: *m}]}]}
- {key: user, value_to_metric: true, descriptors: [{key: action, value: read*,
    value_to_metric: true, descriptors: [{key: resource, rate_limit: *m}]}]}
- {key: wild, value: foo*, descriptors: [{key: other, value_to_metric: true,
    descriptors: [{key: limit, rate_limit: *m}]}]}",
        &[
            ("route=draw method=GET subject=123", "d.route_draw.method_GET.subject"),
            ("route= method=GET subject=123", "d.route.method_GET.subject"),
            ("route= method= subject=123", "d.route.method.subject"),
            ("k1=X k2=Y k3=Z", "d.k1.k2_Y.k3"),
            ("user=alice action=readfile resource=doc", "d.user_alice.action_readfile.resource"),
            ("wild=foo1 other=bar limit=X", "d.wild_foo*.other_bar.limit"),
        ],
    );
}

#[test]
fn detailed_metric_shows_all_values() {
    check(
        "- {key: key_1, detailed_metric: true, rate_limit: *m}
- {key: key_1, value: some, rate_limit: *m}
- {key: key_2, detailed_metric: true, rate_limit: *m, descriptors: [
    {key: key_3, detailed_metric: true},
    {key: key_3, value: req, detailed_metric: true, rate_limit: *m}]}
- {key: route, value_to_metric: true, descriptors: [
    {key: id, detailed_metric: true, rate_limit: *m}]}
- {key: plain, detailed_metric: false, rate_limit: *m}",
        &[
            ("key_1=v", "d.key_1_v"),
            ("key_1=", "d.key_1_"),
            ("key_1=some", "d.key_1_some"),
            ("key_2=v", "d.key_2_v"),
            ("key_2=v key_3=req", "d.key_2_v.key_3_req"),
            ("key_2=v key_3=other", ""),
            ("route=draw id=123", "d.route_draw.id_123"),
            ("plain=v", "d.plain"),
        ],
    );
}

#[test]
fn shared_values_are_shown_as_their_pattern() {
    check(
        "- {key: route, value: api/*, share_threshold: true, value_to_metric: true,
    descriptors: [{key: method, rate_limit: *m}]}
- {key: service, value: svc/*, share_threshold: true,
    descriptors: [{key: endpoint, detailed_metric: true, rate_limit: *m}]}
- {key: path, value: path/*, share_threshold: true, descriptors: [{key: file, value: file/*,
    descriptors: [{key: type, rate_limit: *m}]}]}
- {key: mid, value: /api*v2, share_threshold: true, value_to_metric: true, rate_limit: *m}",
        &[
            ("route=api/v1 method=GET", "d.route_api/*.method"),
            ("service=svc/user endpoint=read", "d.service_svc/*.endpoint_read"),
            ("service=svc/user endpoint=", "d.service_svc/*.endpoint"),
            ("path=path/foo file=file/doc type=pdf", "d.path_path/*.file_file/*.type"),
            ("mid=/api-beta-v2", "d.mid_/api*v2"),
        ],
    );
}

#[test]
fn names_keep_clear_of_what_parts_them() {
    check(
        "- {key: ip, value_to_metric: true, rate_limit: *m}",
        &[
            ("ip=10.0.0.1", "d.ip_10_0_0_1"),
            ("ip=1234.5.6.7890", "d.ip_1234_5_6_7890"),
            ("ip=1.2.3", "d.ip_1.2.3"),
            ("ip=1.2.3.4.5.6.7.8", "d.ip_1_2_3_4.5_6_7_8"),
            ("ip=é:|1.", "d.ip_é__1."),
        ],
    );
}

#[test]
fn what_is_not_utf8_is_shown_as_such() {
    let config = loaded(
        "{domain: d, descriptors: [{key: 'k*', value: '*', value_to_metric: true,
        rate_limit: {unit: minute, requests_per_unit: 1}}]}",
    );
    let mut out = String::new();
    let entry = (&b"k\xff"[..], &b"a:\xfe1.2.3.4\xc3"[..]);
    config.write_statistic("d", [entry].into_iter(), &mut out);
    assert_eq!(out, "d.k\u{fffd}_a_\u{fffd}1_2_3_4\u{fffd}");
}

#[test]
fn the_dump_has_a_line_for_each_rule() {
    let config = loaded(
        "
domain: rl
descriptors:
- {key: foo, value: bar_banned, rate_limit: {unit: minute}}
- {key: foo, shadow_mode: true, quota_mode: true, rate_limit: {unit: week, requests_per_unit: 5},
   descriptors: [{key: x, value: '1:2', rate_limit: {unlimited: true}}]}
- {key: ours, rate_limit: {limit: 22 per 20s, algorithm: gcra}}
",
    );
    let mut out = String::new();
    config.dump(&mut out).unwrap();
    let expected = "\
rl.foo_bar_banned: unit=MINUTE requests_per_unit=0, shadow_mode: false, quota_mode: false
rl.foo: unit=WEEK requests_per_unit=5, shadow_mode: true, quota_mode: true
rl.foo.x_1:2: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false
rl.ours: unit=UNKNOWN requests_per_unit=22, shadow_mode: false, quota_mode: false, \
limit: 22 per 20s, algorithm: gcra
";
    assert_eq!(out, expected);
}
