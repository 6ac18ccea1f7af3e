//! Rules that change: what stays in force, what is counted on, and who comes first.

use std::thread;

use serde_json::{Value, json};
use tidegate_core::Now;
use tidegate_core::time::MINUTE;

use super::*;
use crate::clock::Clock;
use crate::config::Config;
use crate::limiter::{Key, Request, Rows};
use crate::metrics::{Door, Metrics};
use crate::stores::memory;

struct House {
    limiter: Arc<Limiter>,
    process: Arc<Process>,
}

impl House {
    fn new(text: &str) -> Self {
        let clock = Clock::manual(Now { mono: MINUTE, unix: 1_000 * MINUTE });
        let settings = memory::Settings { max_keys: 10_000, max_bytes: 16 << 20 };
        let rules = tidegate_core::rules::RuleSet::default();
        let limiter = Limiter::new(clock, Arc::new(Metrics::default()), rules, settings);
        let house = Self { process: Process::new(limiter.clone()), limiter };
        house.reload(text);
        house
    }

    fn reload(&self, text: &str) -> usize {
        self.difference(text).taken_back
    }

    fn difference(&self, text: &str) -> Difference {
        let text = format!("{text}\n[http]\n");
        self.process
            .install(Config::parse("t", &text).unwrap_or_else(|wrong| panic!("{wrong}")).written)
    }

    fn set(&self, name: &str, fields: Value) -> Result<Changed, ChangeError> {
        self.process.set_rule(name, fields.as_object().unwrap().clone(), None)
    }

    /// Whether a use of `key` is allowed, and which rule says so.
    fn take(&self, key: &str) -> (bool, String) {
        let handle = self.limiter.handle(Door::Http);
        let (keys, mut rows) = ([Key::take(key.as_bytes(), 1)], Rows::default());
        let request = Request::all_or_nothing(&keys).with_end();
        let decision = handle.decide(&request, handle.now(), Some(&mut rows)).unwrap();
        let rule = rows.limits.first().map_or(String::new(), |row| row.rule.to_string());
        (decision.ready().unwrap().is_allowed(), rule)
    }

    /// How many uses of `key` are allowed.
    fn take_all(&self, key: &str) -> usize {
        (0..100).take_while(|_| self.take(key).0).count()
    }

    /// The rules in order, those that differ from the file with a star.
    fn names(&self) -> Vec<String> {
        let rules = self.process.rules();
        let name = |entry: &Arc<RuleEntry>| {
            format!("{}{}", entry.name(), if entry.changed() { "*" } else { "" })
        };
        rules.entries.iter().map(name).collect()
    }
}

const FILE: &str = "[[rule]]\nname = 'r'\nmatch = 'k*'\nlimit = '2 per hour'\n\
                    algorithm = 'fixed-window'\n\
                    [[jarl]]\nservice = 's'\nlisten = '127.0.0.1:0'\nlimit = '3 per hour'\n";

#[test]
fn counts_live_on_where_algorithm_and_period_do() {
    let house = House::new(FILE);
    assert_eq!(house.take_all("k"), 2);
    house.set("r", json!({"limit": "5 per hour"})).unwrap();
    assert_eq!(house.take_all("k"), 3);
    house.set("r", json!({"shadow": true})).unwrap();
    assert_eq!(house.take_all("k"), 100);
    house.set("r", json!({"shadow": false, "limit": "5 per day"})).unwrap();
    assert_eq!(house.take_all("k"), 5);
}

#[test]
fn a_split_counts_on_and_what_is_left_with_nothing_refuses() {
    let house = House::new(FILE);
    assert_eq!(house.take_all("k"), 2);
    let set = |fields| house.set("r", fields).map(|changed| changed.entry).unwrap();
    set(json!({"limit": "10 per hour", "replicas": 2}));
    assert_eq!(house.take_all("k"), 3);
    set(json!({"replicas": 3, "replica": 1}));
    assert_eq!(house.take_all("k"), 0, "five of four were used");
    let none = set(json!({"limit": "2 per hour", "replica": 3}));
    assert_eq!(none.now.rule.limits[0].to_string(), "0 per hour");
    assert_eq!(house.take("k new"), (false, "r".to_owned()));
    set(json!({"limit": "10 per hour", "replicas": 1, "replica": null}));
    assert_eq!(house.take_all("k"), 5, "nothing was forgotten on the way");
}

#[test]
fn a_reload_takes_changes_back_and_tells() {
    let house = House::new(FILE);
    assert_eq!(house.names(), ["r", "jarl:s", "default"]);
    house.set("r", json!({"limit": "2 per hour"})).unwrap();
    assert_eq!(house.names(), ["r", "jarl:s", "default"], "that is what the file says");
    house.set("r", json!({"limit": "5 per hour"})).unwrap();
    house.set("jarl:s", json!({"limit": "5 per hour", "shared": true})).unwrap();
    house.set("default", json!({"limit": "1 per hour"})).unwrap();
    assert_eq!(house.names(), ["r*", "jarl:s*", "default*"]);
    assert_eq!(house.take_all("elsewhere"), 1);
    assert_eq!(house.reload(&FILE.replace("2 per hour", "5 per hour")), 2, "the file has one now");
    assert_eq!(house.names(), ["r", "jarl:s", "default"]);
    assert_eq!(house.take_all("elsewhere"), 100);
    assert_eq!(house.reload(FILE), 0);
}

#[test]
fn rules_are_added_before_all_others_and_removed_again() {
    let house = House::new(FILE);
    let added = house.set("block", json!({"match": "k bad*", "limit": "1 per hour"})).unwrap();
    assert!(added.created);
    house.set("newer", json!({"match": "k bad guy", "limit": "1 per hour"})).unwrap();
    assert_eq!(house.names(), ["newer*", "block*", "r", "jarl:s", "default"]);
    assert_eq!(house.take("k bad guy").1, "newer");
    assert_eq!(house.take("k bad girl").1, "block");
    let again = house.set("block", json!({"match": "k worse"})).unwrap();
    assert!(!again.created);
    assert_eq!(house.names(), ["newer*", "block*", "r", "jarl:s", "default"]);
    assert_eq!((house.take("k bad girl").1, house.take("k worse").1), ("r".into(), "block".into()));
    house.process.restore_rule("newer", None).unwrap();
    assert_eq!(house.process.restore_rule("newer", None), Err(ChangeError::Unknown));
    assert_eq!(house.names(), ["block*", "r", "jarl:s", "default"]);
    assert_eq!(house.reload(FILE), 1);
    assert_eq!(house.names(), ["r", "jarl:s", "default"]);
}

#[test]
fn a_door_keeps_its_keys_and_what_it_cannot_do() {
    let house = House::new(FILE);
    let wrong = |fields| match house.set("jarl:s", fields) {
        Err(ChangeError::Wrong(wrong)) => wrong.into_iter().map(|wrong| wrong.field).collect(),
        other => panic!("{other:?}"),
    };
    let fields: Vec<String> = wrong(json!({"match": "other"}));
    assert_eq!(fields, ["match"]);
    assert_eq!(wrong(json!({"limit": "1 in flight"})), ["limit"]);
    house.set("jarl:s", json!({"match": "jarl service=s", "limit": "7 per hour"})).unwrap();
    let rules = house.process.rules();
    let rule = &rules.find("jarl:s").unwrap().now.rule;
    assert_eq!(rule.limits[0].algorithm.name(), "jarl", "its own, where none is named");
    assert_eq!(rule.pattern.literal(), Some(b"jarl service=s".as_slice()));
}

#[test]
fn what_is_wrong_or_outdated_changes_nothing() {
    let house = House::new(FILE);
    let version = house.process.rules().version;
    assert!(house.set("r", json!({"limit": "many"})).is_err());
    assert!(house.set("new", json!({"limit": "1/s"})).is_err());
    assert_eq!(house.process.rules().version, version);
    let fields = || json!({"limit": "4 per hour"}).as_object().unwrap().clone();
    let changed = house.process.set_rule("r", fields(), Some(version)).unwrap();
    assert_eq!(changed.version, house.process.rules().version);
    let late = house.process.set_rule("r", fields(), Some(version)).map(|changed| changed.version);
    assert_eq!(late, Err(ChangeError::Outdated));
    assert_eq!(house.process.restore_rule("r", Some(version)), Err(ChangeError::Outdated));
    house.reload(FILE);
    let late =
        house.process.set_rule("r", fields(), Some(changed.version)).map(|changed| changed.version);
    assert_eq!(late, Err(ChangeError::Outdated), "a reload in between is seen");
    house.process.restore_rule("r", None).unwrap();
    assert_eq!(house.names(), ["r", "jarl:s", "default"]);
}

#[test]
fn the_number_of_added_rules_is_bounded() {
    let house = House::new(FILE);
    let add = |n: usize| house.set(&format!("n{n}"), json!({"match": "x", "limit": "1/s"}));
    for n in 0..ADDED_MAX {
        add(n).unwrap();
    }
    assert_eq!(add(ADDED_MAX).map(|changed| changed.version), Err(ChangeError::TooMany));
    add(0).unwrap();
    house.process.restore_rule("n0", None).unwrap();
    add(ADDED_MAX).unwrap();
}

#[test]
fn changes_and_reloads_do_not_lose_each_other() {
    let house = House::new("");
    let last_reload = thread::scope(|scope| {
        for thread in 0..4 {
            let house = &house;
            scope.spawn(move || {
                for n in 0..20 {
                    let name = format!("{thread}-{n}");
                    house.set(&name, json!({"match": name, "limit": "1 per hour"})).unwrap();
                }
            });
        }
        let reloading = scope.spawn(|| (0..20).map(|_| house.reload("")).sum::<usize>());
        reloading.join().unwrap()
    });
    // Whatever was set was either taken back by a reload, which told, or is in force.
    let standing = house.process.rules().entries.len() - 1;
    assert_eq!(last_reload + standing, 80);
    let rules = house.process.rules();
    assert_eq!(house.limiter.rules().rules().len(), standing, "the limiter has the same");
    for entry in &rules.entries[..standing] {
        assert_eq!(house.take(entry.name()).1, entry.name());
    }
}

#[test]
fn a_reload_tells_what_it_changed_and_which_counts_begin_anew() {
    let rule = |name: &str, limit: &str| {
        format!("[[rule]]\nname = '{name}'\nmatch = '{name}*'\nlimit = '{limit}'\n")
    };
    let house = House::new(&[rule("a", "1/s"), rule("b", "1/s"), rule("c", "1/s")].concat());
    let text = [rule("a", "2/s"), rule("b", "1 per 2s"), rule("d", "1/s")].concat();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected = Difference {
        added: names(&["d"]),
        removed: names(&["c"]),
        changed: names(&["a", "b"]),
        anew: names(&["b"]),
        from_store: Vec::new(),
        taken_back: 0,
    };
    assert_eq!(house.difference(&text), expected);
    assert_eq!(house.difference(&text), Difference::default());
    let limited = format!("{text}[default]\nlimit = '1/s'\n");
    let default = Difference { changed: names(&["default"]), ..Difference::default() };
    assert_eq!(house.difference(&limited), default, "nothing was counted before");
}

#[test]
fn a_rule_that_goes_back_to_the_store_finds_its_counts_there() {
    let rules = |consistency: &str| {
        let text =
            format!("[[rule]]\nname = 'a'\nmatch = 'a'\nlimit = '1/s'\n{consistency}[http]\n");
        Config::parse("t", &text).expect("a configuration").written
    };
    let (exact, local) = (rules(""), rules("consistency = 'local'\n"));
    let change = |from: &[CompiledRule], to: &[CompiledRule], has_store| {
        let entry = |now: &CompiledRule| RuleEntry { in_file: None, now: now.clone() };
        let before: Vec<_> = from.iter().map(|rule| Arc::new(entry(rule))).collect();
        let Difference { anew, from_store, .. } = Difference::between(&before, to, has_store);
        (anew.len(), from_store.len())
    };
    assert_eq!(change(&local, &exact, true), (0, 1));
    assert_eq!(change(&exact, &local, true), (1, 0));
    assert_eq!(change(&local, &exact, false), (1, 0));
}

#[test]
fn what_comes_beside_the_file_leaves_changes_over_the_api() {
    let file =
        "[[rule]]\nname = 'a'\nmatch = 'a*'\nlimit = '5 per 1h'\nalgorithm = 'fixed-window'\n";
    let house = House::new(file);
    let compiled = |text: &str| {
        let text = format!("{text}\n[http]\n");
        Config::parse("t", &text).unwrap_or_else(|wrong| panic!("{wrong}")).written
    };
    let more = "[[rule]]\nname = 'b'\nmatch = 'b*'\nlimit = '2 per 1h'";
    house.set("a", json!({"limit": "3 per 1h"})).unwrap();
    house.set("own", json!({"match": "own*", "limit": "1 per 1h"})).unwrap();
    assert!(house.take("a1").0);
    let added = house.process.renew(compiled(&format!("{file}{more}")));
    assert_eq!((added.added, added.removed, added.changed), (vec!["b".to_owned()], vec![], vec![]));
    assert_eq!((house.take_all("a1"), house.take_all("own"), house.take_all("b")), (2, 1, 2));
    // What the file says of a rule now is no longer what was changed.
    let other = file.replace("5 per", "9 per");
    let changed = house.process.renew(compiled(&other));
    assert_eq!((changed.removed, changed.changed), (vec!["b".to_owned()], vec!["a".to_owned()]));
    assert_eq!((house.take_all("a1"), house.take("own1").0), (6, true));
    // The file's own reload takes everything back.
    house.reload(file);
    assert_eq!((house.take_all("a1"), house.take("own1").1.as_str()), (0, ""));
}
