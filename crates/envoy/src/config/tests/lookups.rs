//! Which rule a descriptor has, and the key of its count.

use sha2::{Digest, Sha256};
use tidegate_core::limit::Algorithm;

use super::{check, find, find_given, loaded};
use crate::config::source::MetadataValue;
use crate::config::{Found, Override, Unit, write_key};

const BASIC: &str = "
domain: d
descriptors:
- {key: key1, value: value1, descriptors: [
    {key: subkey1, rate_limit: {unit: second, requests_per_unit: 5}},
    {key: subkey1, value: subvalue1, rate_limit: {unit: SECOND, requests_per_unit: 10}}]}
- {key: key2, rate_limit: {unit: minute, requests_per_unit: 20}, shadow_mode: true}
- {key: key2, value: value2, rate_limit: {unit: Minute, requests_per_unit: 30}, quota_mode: true}
- {key: key2, value: value3}
- {key: key3, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: key4, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: key5, value: value5, rate_limit: {unit: week, requests_per_unit: 15}, descriptors: [
    {key: subkey5, value: subvalue5, rate_limit: {unit: month, requests_per_unit: 25}}]}
- {key: key6, rate_limit: {unlimited: true}}
- {key: key7, rate_limit: {unit: year, requests_per_unit: 4294967295}}
- {key: key8, value: 007, rate_limit: {unit: day, requests_per_unit: 0x10}}
";

#[test]
fn a_rule_counts_at_its_own_depth() {
    let config = loaded(BASIC);
    assert_eq!(find(&config, "foo", "key2=a"), "unknown domain");
    check(&config, "", "nothing");
    check(&config, "key1=something", "nothing");
    check(&config, "key1=value1", "nothing");
    check(&config, "key2=value2 subkey=subvalue", "nothing");
    check(&config, "key5=value5 subkey5=subvalue", "nothing");
    check(&config, "key1=value1 subkey1=something", "5 SECOND [d key1=value1 subkey1=something]");
    check(&config, "key1=value1 subkey1=subvalue1", "10 SECOND [d key1=value1 subkey1=subvalue1]");
    check(&config, "key1=value2 subkey1=subvalue1", "nothing");
    check(&config, "key2=something", "20 MINUTE shadow [d key2=something]");
    check(&config, "key2", "20 MINUTE shadow [d key2=]");
    check(&config, "key2=value2", "30 MINUTE quota [d key2=value2]");
    check(&config, "key2=value3", "nothing");
    check(&config, "key3=foo", "1 HOUR [d key3=foo]");
    check(&config, "key4=foo", "0 DAY [d key4=foo]");
    check(&config, "key5=value5", "15 WEEK [d key5=value5]");
    check(&config, "key5=value5 subkey5=subvalue5", "25 MONTH [d key5=value5 subkey5=subvalue5]");
    check(&config, "key6=foo", "unlimited []");
    check(&config, "key7=foo", "4294967295 YEAR [d key7=foo]");
    check(&config, "key8=007", "16 DAY [d key8=007]");
    check(&config, "key8=7", "nothing");
    // Joined by `_` this is key2_value2.
    check(&config, "key2_value2=a", "nothing");
}

#[test]
fn an_override_replaces_the_rule_of_a_known_domain() {
    let config = loaded(BASIC);
    let given = |requests_per_unit, unit| Some(Override { requests_per_unit, unit });
    let found = |domain, descriptor, given| find_given(&config, domain, descriptor, given);
    assert_eq!(found("foo", "a=b", given(10, Unit::Day)), "unknown domain");
    assert_eq!(found("d", "key2=a", given(42, Unit::Hour)), "42 HOUR [d key2=a HOUR]");
    assert_eq!(found("d", "key2=a", given(7, Unit::Day)), "7 DAY [d key2=a DAY]");
    assert_eq!(found("d", "new=1 x=", given(0, Unit::Year)), "0 YEAR [d new=1 x= YEAR]");
    assert_eq!(found("d", "", given(1, Unit::Second)), "1 SECOND [d SECOND]");
    // The numbers of overrides have no week and no zero.
    let known: Vec<_> = (-1..9).filter_map(Unit::of_override).map(Unit::number).collect();
    assert_eq!(known, [1, 2, 3, 4, 5, 6]);
    assert_eq!(Unit::of_number(7), Some(Unit::Week));
}

const WILD: &str = "
domain: d
descriptors:
- {key: noVal, rate_limit: &m {unit: minute, requests_per_unit: 20}}
- {key: wild, value: foo*, rate_limit: *m}
- {key: noWild, value: foo, rate_limit: *m}
- {key: mid, value: bar*b, rate_limit: *m}
- {key: multi, value: foo*bar*baz, rate_limit: *m}
- {key: order, value: a*, rate_limit: {<<: *m, requests_per_unit: 1}}
- {key: order, value: '*b', rate_limit: {<<: *m, requests_per_unit: 2}}
- {key: order, value: ab, rate_limit: {<<: *m, requests_per_unit: 3}}
- {key: order, rate_limit: {<<: *m, requests_per_unit: 4}}
- {key: nested, value: v, descriptors: [{key: wild, value: goo*, rate_limit: *m}]}
- {key: any*, rate_limit: *m}
- {key: 'back\\slash', value: 'a\\*', rate_limit: *m}
";

#[test]
fn stars_match_any_run() {
    let config = loaded(WILD);
    for hit in [
        "noVal=foo1",
        "wild=foo1",
        "wild=foo",
        "nested=v wild=goo2",
        "mid=barab",
        "mid=bar123b",
        "mid=barb",
        "multi=foo123bar456baz",
        "multi=foobarbaz",
        "anything=x",
        "any=",
        r"back\slash=a\b",
    ] {
        check(&config, hit, &format!("20 MINUTE [d {hit}]"));
    }
    for miss in [
        "wild=bar",
        "noWild=foo1",
        "nested=v wild=foo1",
        "mid=bara",
        "mid=xbarb",
        "mid=ba",
        "multi=foo123baz",
        "multi=bar456baz",
        "multi=fobarbaz",
        "an=x",
        r"back\slash=a*",
    ] {
        check(&config, miss, "nothing");
    }
    check(&config, "order=ab", "3 MINUTE [d order=ab]");
    check(&config, "order=axb", "1 MINUTE [d order=axb]");
    check(&config, "order=xb", "2 MINUTE [d order=xb]");
    check(&config, "order=x", "4 MINUTE [d order=x]");
}

#[test]
fn own_keys_hold_before_merged_ones() {
    let config = loaded(
        "
domain: d
descriptors:
- {key: a, rate_limit: &a {unit: day, requests_per_unit: 1}}
- {key: b, rate_limit: &b {unit: hour, requests_per_unit: 2}}
- {key: c, rate_limit: {requests_per_unit: 3, <<: *a}}
- {key: e, rate_limit: {<<: [*a, *b]}}
- {key: f, rate_limit: {unit: day, requests_per_unit: 5, unit: hour}}
",
    );
    check(&config, "c=v", "3 DAY [d c=v]");
    check(&config, "e=v", "1 DAY [d e=v]");
    check(&config, "f=v", "5 HOUR [d f=v]");
}

#[test]
fn shared_values_have_one_count() {
    let config = loaded(
        "
domain: d
descriptors:
- {key: files, value: files/*, share_threshold: true,
   rate_limit: &m {unit: minute, requests_per_unit: 1}}
- {key: files, value: top/*, share_threshold: true, descriptors: [
    {key: files, value: nested/*, share_threshold: true, rate_limit: *m}]}
- {key: path, value: path/*, share_threshold: true, descriptors: [
    {key: file, value: file/*, descriptors: [{key: type, rate_limit: *m}]}]}
- {key: file, value: test1, rate_limit: *m}
- {key: file, value: test*, share_threshold: true, rate_limit: *m}
- {key: mid, value: /api*v1, share_threshold: true, rate_limit: *m}
- {key: host*, share_threshold: true, rate_limit: *m}
",
    );
    for (descriptor, key) in [
        ("files=files/a.pdf", "files=files/*"),
        ("files=files/b", "files=files/*"),
        ("files=top/1 files=nested/2", "files=top/* files=nested/*"),
        ("path=path/foo file=file/doc type=pdf", "path=path/* file=file/doc type=pdf"),
        ("file=test1", "file=test1"),
        ("file=test2", "file=test*"),
        ("mid=/api/v1", "mid=/api*v1"),
        ("hosts=a", "hosts=*"),
    ] {
        check(&config, descriptor, &format!("1 MINUTE [d {key}]"));
    }
    check(&config, "mid=/api/v2", "nothing");
}

#[test]
fn a_rule_has_a_name_and_says_what_it_replaces() {
    let config = loaded(
        "
domain: d
descriptors:
- key: a
  rate_limit: {unit: day, requests_per_unit: 1, name: one, replaces: [{name: two}, {name: 3}]}
  metadata: {name: service, quota: {of: [1, true, ~, 1.5]}}
- key: b
  rate_limit: {limit: 5/s burst 20, algorithm: gcra}
- key: c
  rate_limit: {limit: 22 per 20s}
- key: e
  rate_limit: {limit: deny}
- key: f
  rate_limit: {limit: none}
- key: g
  rate_limit: {unit: hour, requests_per_unit: 9, algorithm: sliding-window}
",
    );
    let rule = |key: &str| {
        let entry = (key.as_bytes(), &b"v"[..]);
        match config.find("d", [entry].into_iter(), None, &mut Vec::new()) {
            Found::Rule(rule) => rule,
            other => panic!("{other:?}"),
        }
    };
    let a = rule("a");
    assert_eq!((&*a.name, a.replaces.len()), ("one", 2));
    assert_eq!([&*a.replaces[0], &*a.replaces[1]], ["two", "3"]);
    let metadata = a.metadata.as_ref().unwrap();
    assert_eq!(metadata["name"], MetadataValue::Text("service".into()));
    let MetadataValue::Map(quota) = &metadata["quota"] else { panic!() };
    let MetadataValue::List(of) = &quota["of"] else { panic!() };
    let wanted = [MetadataValue::Number(1.0), MetadataValue::Bool(true), MetadataValue::Null];
    assert_eq!(of[..3], wanted);

    assert_eq!(rule("b").limit.unwrap().algorithm, Algorithm::Gcra { burst: 20 });
    assert_eq!((rule("b").unit, rule("b").requests_per_unit), (Unit::Second, 5));
    assert_eq!(rule("c").limit.unwrap().algorithm, Algorithm::FixedWindow);
    assert_eq!((rule("c").unit, rule("c").requests_per_unit), (Unit::Unknown, 22));
    assert!(rule("e").limit.unwrap().denies());
    assert_eq!(rule("f").limit, None);
    assert_eq!(rule("g").limit.unwrap().algorithm, Algorithm::SlidingWindow);
}

#[test]
fn keys_are_encoded_and_never_too_long() {
    let config = loaded(BASIC);
    let mut key = b"before".to_vec();
    config.find("d", [(&b"key2"[..], &b"a b%="[..])].into_iter(), None, &mut key);
    assert_eq!(key, b"befored key2=a%20b%25=");

    let long = |name: &str, value: &str| {
        let mut key = b"x".to_vec();
        write_key(&mut key, "d", [(name.as_bytes(), value.as_bytes())].into_iter());
        key.split_off(1)
    };
    // The longest that fits, and one byte more.
    let fits = "v".repeat(1024 - 4);
    assert_eq!(long("k", &fits), format!("d k={fits}").as_bytes());
    for (name, value) in
        [("k", "v".repeat(1021)), ("a=b", " ".repeat(60_000)), ("k", "é=".repeat(700))]
    {
        let key = long(name, &value);
        let mut whole = format!("d {}=", name.replace('=', "%3D"));
        whole.push_str(&value.replace(' ', "%20"));
        let hash: String =
            Sha256::digest(&whole).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(key.len(), 1023);
        assert_eq!(key[..990], whole.as_bytes()[..990]);
        assert_eq!(key[990..], *format!("~{hash}").as_bytes());
    }
}

#[test]
fn values_that_are_not_utf8_have_rules_and_keys_of_their_own() {
    let config = loaded(
        "
domain: d
descriptors:
- {key: any, rate_limit: &m {unit: minute, requests_per_unit: 1}}
- {key: some, value: 'x*y', rate_limit: *m}
- {key: exact, value: \u{fffd}, rate_limit: *m}
- {key: shared, value: '*', share_threshold: true, rate_limit: *m}
- {key: 'key*', rate_limit: *m}
",
    );
    let check = |name: &[u8], value: &[u8], expected: Option<&[u8]>| {
        let mut key = Vec::new();
        let found = config.find("d", [(name, value)].into_iter(), None, &mut key);
        assert_eq!(matches!(found, Found::Rule(_)), expected.is_some(), "{name:?} {value:?}");
        assert_eq!(key, expected.unwrap_or_default(), "{name:?} {value:?}");
    };
    check(b"any", b"\xff", Some(b"d any=\xff"));
    check(b"any", b"\xfe \xff", Some(b"d any=\xfe%20\xff"));
    check(b"any", "\u{fffd}".as_bytes(), Some("d any=\u{fffd}".as_bytes()));
    check(b"some", b"x\xff\xc3y", Some(b"d some=x\xff\xc3y"));
    check(b"some", b"x\xff", None);
    check(b"exact", b"\xff", None);
    check(b"shared", b"\xff", Some(b"d shared=*"));
    check(b"key\xff", b"\xfe", Some(b"d key\xff=\xfe"));
    check(b"an\xff", b"", None);

    // Long ones, which begin alike and differ in a byte that is no text.
    let long = |last: u8| {
        let value = [&[b'v'; 2000][..], &[last]].concat();
        let mut key = Vec::new();
        write_key(&mut key, "d", [(&b"any"[..], &value[..])].into_iter());
        key
    };
    assert_eq!(long(0xff).len(), 1023);
    assert_ne!(long(0xff), long(0xfe));
}
