//! Configuration errors as data: a text, and what must be said about it.

use std::path::Path;

use tidegate_core::limit::AlgorithmName;

use super::*;

mod grpc;
mod messages;
mod whole;

/// Doors that every text below may have added, so that it is whole.
const DOOR: &str = "\n[http]\n";

/// Each of `expected` must be one problem's whole plain line, in order.
fn check(text: &str, expected: &[&str]) {
    let text = format!("{text}{DOOR}");
    let problems = Config::parse("t", &text).map(|_| ()).expect_err(&text);
    assert_eq!(problems.plain().lines().collect::<Vec<_>>(), expected, "{text}");
}

/// `table` at the end of a rule that is right without it.
fn check_rule(table: &str, expected: &[&str]) {
    check(&format!("[[rule]]\nmatch = 'a'\n{table}"), expected);
}

fn parse(text: &str) -> Config {
    Config::parse("t", &format!("{text}{DOOR}")).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn unknown_names_are_told_with_the_nearest_known_one() {
    check(
        "[sever]\n[memory]\nmax_key = 1",
        &[
            "t:1:2: unknown name \"sever\" in the file; did you mean \"server\"?",
            "t:3:1: unknown name \"max_key\" in [memory]; did you mean \"max_keys\"?",
        ],
    );
    check_rule(
        "limt = '1/s'\nlimit = '1/s'",
        &["t:3:1: unknown name \"limt\" in [[rule]]; did you mean \"limit\"?"],
    );
    check(
        "[store]\nxyzzy = 1",
        &["t:2:1: unknown name \"xyzzy\" in [store]; known here: ca, cert, cluster, \
           key, kind, password, prefix, start_timeout, timeout, url, user"],
    );
}

#[test]
fn a_limit_is_marked_where_it_is_wrong() {
    let place = |limit: &str| {
        let text = format!("[[rule]]\nmatch = 'a'\nlimit = {limit}{DOOR}");
        let problems = Config::parse("t", &text).map(|_| ()).expect_err(limit);
        let [problem] = problems.list() else { panic!("{problems}") };
        text[problem.span.clone()].to_owned()
    };
    assert_eq!(place("\"22 per 20x\""), "x");
    assert_eq!(place("'22 per 20x'"), "x");
    assert_eq!(place("['1/s', '22 per 20x']"), "x");
    // With an escape in it, a text is not in the file as it is: all of it is marked.
    assert_eq!(place(r#""22 per 20\u0078""#), r#""22 per 20\u0078""#);
    assert_eq!(place("5"), "5");
    assert_eq!(place("[]"), "[]");
}

#[test]
fn settings_belong_to_their_algorithms() {
    check_rule(
        "limit = '1/s'\nstrict = true",
        &["t:4:10: `strict` belongs to the algorithm `average`; \
           remove it, or write algorithm = \"average\""],
    );
    check_rule(
        "limit = '1/s'\nexact = false\nalgorithm = 'average'",
        &["t:4:9: `exact` belongs to the algorithm `jarl`; \
           remove it, or write algorithm = \"jarl\""],
    );
    check_rule(
        "limit = '5/s burst 7'\nalgorithm = 'fixed-window'",
        &["t:3:14: `burst` has no meaning for `fixed-window`; \
           leave it out, or choose `gcra` or `smockron`"],
    );
    check_rule(
        "limit = '5 in flight'\nalgorithm = 'gcra'",
        &["t:4:13: `gcra` has no effect: it counts no limit of this rule; remove the setting; \
           in flight is chosen by the wording, and \"none\" counts nothing"],
    );
    check_rule(
        "limit = '5/s'\nalgorithm = 'gcrra'",
        &["t:4:13: \"gcrra\" is not the name of an algorithm; did you mean \"gcra\"?"],
    );
}

#[test]
fn rules_are_checked_one_against_the_other() {
    let rule = |name: &str| format!("[[rule]]\n{name}match = 'a'\nlimit = '1/s'\n");
    check(
        &(rule("") + &rule("name = 'a'\n")),
        &["t:5:8: another rule, in line 2, already has the name \"a\"; \
           give each rule a name of its own"],
    );
    check(
        &rule("name = 'default'\n"),
        &["t:2:8: \"default\" is the name of the [default] rule; give the rule another name"],
    );
    check(
        "[[rule]]\nlimit = '1/s'",
        &["t:1:1: `match` is missing here; say which keys it is for: match = \"ws ip=*\""],
    );
    check_rule(
        "",
        &["t:1:1: `limit` is missing here; \
           add a limit: limit = \"22 per 20s\", or limit = \"none\""],
    );
    check_rule(
        "limit = ['1/s', 'none']",
        &["t:3:17: \"none\" cannot be combined with other limits; \
           remove it from the list, or write limit = \"none\" alone"],
    );
    let many = ["'1/s'"; tidegate_core::rules::LIMITS_MAX + 1].join(",");
    check_rule(
        &format!("limit = [{many}]"),
        &["t:3:9: 9 limits are more than a rule may have; keep at most 8, or make several rules"],
    );
}

#[test]
fn the_default_is_a_rule_without_a_name_and_a_match() {
    check(
        "[default]\nmatch = 'a'\nlimit = '1/s'",
        &["t:2:1: unknown name \"match\" in [default]; known here: algorithm, consistency, \
             exact, limit, on_full, on_store_error, replica, replicas, shadow, shared, strict"],
    );
    check(
        "[default]\nshadow = true",
        &["t:1:1: `limit` is missing here; \
           add a limit: limit = \"22 per 20s\", or limit = \"none\""],
    );
    check(
        "[[rule]]\nshadow = true",
        &[
            "t:1:1: `match` is missing here; say which keys it is for: match = \"ws ip=*\"",
            "t:1:1: `limit` is missing here; \
             add a limit: limit = \"22 per 20s\", or limit = \"none\"",
        ],
    );
}

#[test]
fn limits_are_split_among_replicas() {
    let split = |settings: &str| {
        let config = parse(&format!("[[rule]]\nmatch = 'a'\n{settings}\n"));
        let again = Config::parse("shown", &config.show().unwrap()).unwrap();
        assert_eq!(again.rules.rules(), config.rules.rules(), "the whole is shown, not the part");
        config.rules.rules()[0].limits[0].to_string()
    };
    assert_eq!(split("limit = '100/min'\nreplicas = 3"), "33 per minute");
    assert_eq!(split("limit = '100/min'\nreplicas = 3\nreplica = 1"), "34 per minute");
    assert_eq!(split("limit = '100/min'\nreplicas = 3\nreplica = 2"), "33 per minute");
    assert_eq!(split("limit = '2/min'\nreplicas = 3\nreplica = 3"), "0 per minute");
    assert_eq!(split("limit = '9/s burst 4'\nreplicas = 3"), "3 per second burst 1");
    let too_small = "a limit of this rule is too small for 3 replicas; raise the limit, \
                     write it for a longer period, or give each replica its number (replica = 1, \
                     2, ...), so that only the first ones have a part";
    check_rule("limit = ['9/s', '2 in flight']\nreplicas = 3", &[&format!("t:4:12: {too_small}")]);
    check_rule("limit = '9/s burst 2'\nreplicas = 3", &[&format!("t:4:12: {too_small}")]);
    check_rule(
        "limit = '9/s'\nreplicas = -1\nreplica = 4",
        &["t:4:12: -1 is not a valid number of replicas; write a whole number from 1 to 10000"],
    );
    check_rule(
        "limit = '9/s'\nreplicas = 3\nreplica = 0",
        &["t:5:11: `replica` must be from 1 to 3; \
           write the number of this replica, or change `replicas`"],
    );
    check_rule(
        "limit = '9/s'\nreplica = 2",
        &["t:4:11: `replica` must be 1, since there is one replica; \
           write the number of this replica, or change `replicas`"],
    );
}

#[test]
fn addresses_are_addresses() {
    check(
        "[text]\nlisten = 'example.net:2000'",
        &["t:2:10: \"example.net:2000\" is not an address to listen on; \
             an IP address and a port: \"127.0.0.1:2000\", \"[::1]:2000\"; \
             names are not looked up"],
    );
    let listen =
        parse("[text]\nlisten = ['localhost:2000', '[::1]:2000']").file.text.unwrap().listen;
    assert_eq!(listen.addresses()[0], "127.0.0.1:2000".parse().unwrap());
    check(
        "[text]\nlisten = []",
        &["t:2:10: no address to listen on; remove the table to keep the door closed"],
    );
    check(
        "[text]\nallow = []",
        &["t:2:9: an empty allow list would refuse every client; \
           name a network, or remove the setting to accept every client"],
    );
}

#[test]
fn everything_wrong_is_told_at_once_and_only_once() {
    check(
        "[server]\nlog_format = 'jsn'\nshutdown_grace = 5\n[snapshot]\nevery = '10'\n\
         [memory]\nmax_keys = 0\nmax_bytes = '4'",
        &[
            "t:2:14: unknown value \"jsn\"; did you mean \"json\"?",
            "t:3:18: a unit of time is missing; write a span with a unit: \"5s\"",
            "t:5:9: a unit of time is missing; \
             write a whole number and a unit, for example `30s`, `10 min` or `250ms`",
            "t:7:12: 0 is too small; write a whole number, 1 or more",
            "t:8:13: \"4\" is not a size; write a whole number and a unit: \"512MiB\", \"4GiB\"",
        ],
    );
}

#[test]
fn a_file_that_is_no_toml_or_has_no_door_is_told() {
    let wrong = |text: &str| Config::parse("t", text).map(|_| ()).expect_err(text).plain();
    assert!(wrong("[text\n").starts_with("t:1:6: "), "{}", wrong("[text\n"));
    assert!(wrong("").contains("no door is open"));
    assert!(wrong("[[rule]]\nmatch='a'\nlimit='1/s'\n").contains("no door is open"));
    assert!(wrong("rule = 5").contains("write [[rule]] with two brackets"));
    assert!(wrong("text = 5").contains("write it once, as [text]"));
}

#[test]
fn no_text_makes_the_reader_panic() {
    // Every prefix of the example, and the example with each line left out.
    for (at, _) in EXAMPLE.char_indices() {
        let _ = Config::parse("t", &EXAMPLE[..at]).map_err(|problems| problems.drawn(false));
    }
    let lines: Vec<&str> = EXAMPLE.lines().collect();
    for skip in 0..lines.len() {
        let text: Vec<&str> =
            lines.iter().enumerate().filter(|(at, _)| *at != skip).map(|(_, line)| *line).collect();
        let _ = Config::parse("t", &text.join("\n")).map_err(|problems| problems.drawn(false));
    }
}

#[test]
fn rules_become_what_the_law_takes() {
    let config = parse(
        "[[rule]]\nmatch = 'a'\nlimit = ['5/s burst 20', '3 in flight']\nshadow = true\n\
         [default]\nlimit = '9 per day'\nalgorithm = 'jarl'\nexact = true",
    );
    let [rule, default] = config.rules.rules() else { panic!("two rules") };
    assert_eq!(&*rule.name, "a");
    assert!(rule.shadow && !rule.shared);
    let shown: Vec<String> = rule.limits.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["5 per second burst 20", "3 in flight"]);
    assert_eq!(&*default.name, "default");
    assert_eq!(default.limits[0].algorithm.name(), AlgorithmName::Jarl.name());
    let without = parse("[default]\nlimit = 'none'");
    assert!(without.rules.rules().is_empty(), "nothing is looked up for keys without a limit");
}

#[test]
fn the_built_in_default_has_the_documents_rules_and_every_door() {
    let config = ConfigSource::BuiltIn.load().unwrap();
    let shown = |key: &[u8]| {
        let rule = &config.rules.rules()[config.rules.find(key).unwrap()];
        let [limit] = rule.limits.as_slice() else { panic!("one limit") };
        format!("{limit} {:?}", limit.algorithm)
    };
    assert_eq!(shown(b"ws global"), "2500 per 10s Average { strict: false }");
    assert_eq!(shown(b"ws ip=1.2.3.4"), "22 per 20s Average { strict: true }");
    assert_eq!(shown(b"search ip=1"), "22 per 20s Average { strict: true }");
    assert_eq!(shown(b"frontend ip=1"), "45 per 20s Average { strict: true }");
    assert_eq!(config.rules.find(b"other"), None);
    let doors: Vec<&str> = config.file.doors().iter().map(|door| door.door().name()).collect();
    assert_eq!(doors, ["text", "throttr", "smockron", "grpc", "resp", "http", "admin"]);
    assert!(config.file.doors().iter().all(|door| !door.beyond_loopback()));
}

#[test]
fn throttr_tables_are_read_and_told_apart() {
    let doors = |text: &str| {
        let config = parse(text).file;
        let shown = |throttr: &crate::doors::throttr::Config| {
            let at: Vec<String> = throttr.addresses().iter().map(ToString::to_string).collect();
            format!("{} {}", throttr.value_size, at.join(" "))
        };
        config.throttr.iter().map(shown).collect::<Vec<_>>()
    };
    assert_eq!(doors("[[throttr]]"), ["16 127.0.0.1:9000"]);
    let two = "[[throttr]]\nunix = 'a.sock'\nvalue_size = 8\n\
               [[throttr]]\nvalue_size = 64\nunix = 'b'\nlisten = ['127.0.0.1:1', '[::1]:2']";
    assert_eq!(doors(two), ["8 a.sock", "64 127.0.0.1:1 [::1]:2 b"]);
    let long = "x".repeat(108);
    check(
        &format!("[[throttr]]\nvalue_size = 12\nunix = '{long}'\nmax_value = '1GiB'\nport = 1"),
        &[
            "t:2:14: 12 is not a value size; write the bits: 8, 16, 32 or 64",
            "t:3:8: too long for the path of a socket; write a path of 1 to 107 bytes",
            "t:4:13: 1GiB is too long for a value; write a size from 1 to 16MiB",
            "t:5:1: unknown name \"port\" in [[throttr]]; write listen = \"127.0.0.1:1\"",
        ],
    );
}

#[test]
fn a_doors_own_limit_is_a_rule_behind_the_others() {
    let jarl = |service: &str, more: &str| {
        format!(
            "[[jarl]]\nservice = '{service}'\nlisten = '127.0.0.1:0'\nlimit = '3 per 2s'\n{more}"
        )
    };
    let rule = "[[rule]]\nmatch = 'jarl service=taken'\nlimit = '1/s'\n";
    let default = "[default]\nlimit = '9 per day'\n";
    let text = jarl("Pay me 100%", "exact = true\n") + &jarl("taken", "") + rule + default;
    let config = parse(&text);
    let found = |key: &[u8]| {
        let rule = &config.rules.rules()[config.rules.find(key).unwrap()];
        format!("{} {:?}", rule.name, rule.limits[0].algorithm)
    };
    assert_eq!(found(b"jarl service=Pay%20me%20100%25"), "jarl:Pay me 100% Jarl { exact: true }");
    assert_eq!(found(b"jarl service=taken"), "jarl service=taken Gcra { burst: 1 }");
    assert_eq!(found(b"jarl service=other"), "default Gcra { burst: 9 }");
    let shown = config.show().unwrap();
    let again = Config::parse("shown", &shown).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(again.rules.rules(), config.rules.rules());
    let gcra = parse(&jarl("a", "algorithm = 'gcra'"));
    assert_eq!(gcra.rules.rules()[0].limits[0].algorithm.name(), "gcra");
}

#[test]
fn jarl_tables_are_checked() {
    let jarl = "[[jarl]]\nservice = 'a'\nlisten = '127.0.0.1:0'\n";
    check(
        &format!("{jarl}limit = '1/s'\n{jarl}limit = '1/s'"),
        &["t:6:11: another rule, in line 2, already has the name \"jarl:a\"; \
           give each rule a name of its own"],
    );
    check(
        &format!("{jarl}limit = '5 in flight'"),
        &["t:4:9: this door cannot tell when a use ends, so it has no limits in flight; \
           write a limit on uses in a period: limit = \"100 per 1s\""],
    );
    check(
        &format!("{jarl}limit = '1/s'\nexact = true\nalgorithm = 'gcra'\nmax_connections = 0"),
        &[
            "t:5:9: `exact` belongs to the algorithm `jarl`; \
             remove it, or write algorithm = \"jarl\"",
            "t:7:19: 0 is not a valid number of connections; \
             write a whole number from 1 to 1000000",
        ],
    );
    check(
        "[[jarl]]\nservice = ''",
        &[
            "t:1:1: `listen` is missing here; say where: listen = \"127.0.0.1:1234\"",
            "t:1:1: `limit` is missing here; \
             add a limit: limit = \"22 per 20s\", or limit = \"none\"",
            "t:2:11: a service must have a name; write a readable name of 1 to 251 bytes",
        ],
    );
    check(
        "[[jarl]]\nservice = 'a'\nlimit = '1/s'",
        &["t:1:1: `listen` is missing here; say where: listen = \"127.0.0.1:1234\""],
    );
    check(
        "[[jarl]]\nlisten = '127.0.0.1:0'\nlimit = '1/s'",
        &["t:1:1: `service` is missing here; \
           name what callers wait for: service = \"PaymentGateway\""],
    );
    check(
        &format!("{jarl}limit = '10000001 per 1s'"),
        &["t:4:10: `jarl` would have to remember 10000001 uses; \
           `jarl` holds at most 10000000; `gcra` has no such bound"],
    );
}

#[test]
fn proxies_have_rules_of_their_own_behind_the_others() {
    let proxy = |name: &str, more: &str| {
        let place = "listen = '127.0.0.1:0'\nupstream = 'http://127.0.0.1:3000'";
        format!("[[proxy]]\nname = '{name}'\n{place}\n{more}\n")
    };
    let rule = "[[rule]]\nmatch = 'api path=/special'\nlimit = '1/s'\n";
    let jarl = "[[jarl]]\nservice = 'a'\nlisten = '127.0.0.1:0'\nlimit = '3 per 2s'\n";
    let text = proxy("api", "")
        + &proxy("my *", "limit = ['5 in flight', '7 per 2s']\nalgorithm = 'gcra'")
        + &proxy("my other", "limit = '4 in flight per minute'")
        + rule
        + jarl;
    let config = parse(&text);
    let found = |key: &[u8]| {
        let rule = &config.rules.rules()[config.rules.find(key).unwrap()];
        format!(
            "{} {}",
            rule.name,
            rule.limits.iter().map(|l| l.algorithm.name()).collect::<String>()
        )
    };
    assert_eq!(found(b"api path=/special"), "api path=/special gcra");
    assert_eq!(found(b"api path=/a"), "proxy:api fixed-window");
    assert_eq!(found(b"my%20* path=/a"), "proxy:my * in-flightgcra");
    assert_eq!(found(b"my%20other path=/a"), "proxy:my other in-flight");
    assert!(config.rules.find(b"my%20x path=/a").is_none(), "a star in a name is only a star");
    assert_eq!(found(b"jarl service=a"), "jarl:a jarl");
    let shown = config.show().unwrap();
    let again = Config::parse("shown", &shown).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(again.rules.rules(), config.rules.rules());
    assert_eq!(again.show().unwrap(), shown);
}

#[test]
fn proxy_tables_are_checked() {
    let proxy = "[[proxy]]\nname = 'a'\nlisten = '127.0.0.1:0'\nupstream = 'http://a'\n";
    check(
        &format!("{proxy}{proxy}"),
        &["t:6:8: another rule, in line 2, already has the name \"proxy:a\"; \
           give each rule a name of its own"],
    );
    check(
        &format!("{proxy}key = 'path={{pth}}'\nmax_waiters = 0\nhead_timeout = '1ms'"),
        &[
            "t:5:7: \"{pth}\" is not a placeholder for keys; \
             known here: {path}, {raw_path}, {prefix:2}, {client}, {method}, {header:NAME}",
            "t:6:15: 0 is out of range; write a whole number from 1 to 1000000",
            "t:7:16: too short; write a span of at least \"100ms\"",
        ],
    );
    check(
        &format!("{proxy}on_limit = 'drop'\ntls = {{ cert = 'a' }}"),
        &[
            "t:5:12: unknown value \"drop\"; known here: wait, reject",
            "t:6:7: `key` is missing here; see the commented example: tidegate config example",
        ],
    );
    check(
        "[[proxy]]\nname = 'a'\nlisten = '127.0.0.1:0'",
        &["t:1:1: `upstream` is missing here; \
           say where requests go: upstream = \"http://127.0.0.1:3000\""],
    );
    check(
        "[[proxy]]\nname = ''\nlisten = '127.0.0.1:0'\nupstream = 'http://a/b'",
        &[
            "t:2:8: a proxy must have a name; write a readable name of 1 to 250 bytes",
            "t:4:12: \"http://a/b\" has a path, and requests have their own; write http:// or \
             https://, a host, and optionally a port: \"http://127.0.0.1:3000\"",
        ],
    );
}

#[test]
fn what_is_shown_runs_the_same() {
    for text in [BUILT_IN, EXAMPLE] {
        let config = Config::parse("t", text).unwrap();
        let shown = config.show().unwrap();
        let again = Config::parse("shown", &shown).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(again.rules.rules(), config.rules.rules());
        let (doors, shown_doors) = (config.file.doors(), again.file.doors());
        assert_eq!(doors.len(), shown_doors.len());
        for (door, shown) in doors.iter().zip(shown_doors) {
            assert!(door.same_sockets(shown) && door.allow() == shown.allow(), "{door:?}");
        }
        assert_eq!(again.show().unwrap(), shown);
    }
}

#[test]
fn every_example_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut loaded = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            ConfigSource::File(path).load().unwrap_or_else(|problems| panic!("{problems}"));
            loaded += 1;
        }
    }
    assert!(loaded >= 3, "{loaded} examples");
}

#[test]
fn the_example_has_every_setting() {
    let example: toml::Table = EXAMPLE.parse().unwrap();
    let schema = schema().to_value();
    let properties = schema["properties"].as_object().unwrap();
    for name in properties.keys() {
        assert!(example.contains_key(name), "[{name}] is missing in the example");
    }
}

#[test]
fn the_tables_of_a_master_are_checked() {
    let check_smockron = |table: &str, expected: &[&str]| {
        check(&format!("[smockron]\n{table}"), expected);
    };
    let remedy = "an IP address and a port: \"tcp://127.0.0.1:10004\", \"tcp://*:10004\"; \
                  names are not looked up";
    for wrong in ["tcp://example.net:1", "ipc://a", "tcp://127.0.0.1", "", "tcp://*"] {
        let line = format!("t:2:14: \"{wrong}\" is not an endpoint; {remedy}");
        check_smockron(&format!("accounting = '{wrong}'"), &[&line]);
    }
    check_smockron(
        "control = '127.0.0.1:10005'",
        &["t:2:11: \"127.0.0.1:10005\" is not an endpoint; write \"tcp://127.0.0.1:10005\""],
    );
    check_smockron(
        "hwm = 0",
        &["t:2:7: 0 is not a valid number of messages that may wait; \
           write a whole number from 1 to 1000000"],
    );
    check_smockron(
        "accounting_log_size = '1kB'",
        &["t:2:23: files of 1kB are too small; write at least \"64KiB\""],
    );
    check_smockron(
        "[smockron.domains]\nweb = '1 per fortnight'",
        &["t:3:14: `fortnight` is not a unit of time; units are ns, us, ms, msec, s, sec, \
           second(s), m, min, minute(s), h, hr, hour(s), d, day(s)"],
    );
    check_smockron(
        "[smockron.domains]\nweb = '5 in flight'",
        &["t:3:7: this door cannot tell when a use ends, so it has no limits in flight; \
           write a limit on uses in a period: limit = \"100 per 1s\""],
    );
    check_smockron(
        "acounting = 'tcp://127.0.0.1:1'",
        &["t:2:1: unknown name \"acounting\" in [smockron]; did you mean \"accounting\"?"],
    );
}

#[test]
fn a_remote_store_holds_shorter_logs() {
    let with = |kind: &str| {
        format!(
            "[http]\n[store]\n{kind}\n[[rule]]\nmatch = 'k'\n\
             limit = '10001 per 1h'\nalgorithm = 'sliding-log'"
        )
    };
    assert!(Config::parse("t", &with("kind = 'memory'")).is_ok());
    let redis = with("kind = 'redis'; url = 'redis://a'").replace("; ", "\n");
    let told = Config::parse("t", &redis).unwrap_err().plain();
    assert!(told.contains("t:7:9: `sliding-log` would have to keep 10001 uses"), "{told}");
    let bare = "[http]\n[store]\nkind = 'etcd'\nurl = 'redis://a'";
    assert!(Config::parse("t", bare).unwrap_err().plain().contains("http://127.0.0.1:2379"));
}

#[test]
fn domains_are_rules_of_the_documents_kind_behind_the_others() {
    let config = parse(
        "[[rule]]\nmatch = 'web vip'\nlimit = '9/sec'\n[smockron]\naccounting = 'tcp://*:0'\n\
         [smockron.domains]\nweb = '1/sec burst 10'\n'a *b' = ['10 per min', '100 per hr']",
    );
    let named = |key: &str| {
        let position = config.rules.find(key.as_bytes());
        position.map(|position| config.rules.rules()[position].name.to_string())
    };
    assert_eq!(named("web vip").as_deref(), Some("web vip"));
    assert_eq!(named("web me").as_deref(), Some("smockron:web"));
    assert_eq!(named("web a%20b").as_deref(), Some("smockron:web"));
    assert_eq!(named("web"), None);
    assert_eq!(named("webs me"), None);
    assert_eq!(named("a%20*b me").as_deref(), Some("smockron:a *b"));
    assert_eq!(named("a%20xb me"), None);
    let rule = |name: &str| config.rules.rules().iter().find(|rule| &*rule.name == name).unwrap();
    let algorithm = |name| rule(name).limits[0].algorithm;
    assert_eq!(algorithm("smockron:web"), tidegate_core::Algorithm::Smockron { burst: 10 });
    assert_eq!(rule("smockron:a *b").limits.len(), 2);
    let door = config.file.smockron.as_ref().unwrap();
    assert_eq!(door.accounting.to_string(), "tcp://0.0.0.0:0");
    assert_eq!(door.control.to_string(), "tcp://127.0.0.1:10005");
    // What is shown is read as the same.
    let shown = Config::parse("shown", &config.show().unwrap()).unwrap();
    assert_eq!(shown.rules.rules(), config.rules.rules());
    let gcra = parse("[smockron]\nalgorithm = 'gcra'\n[smockron.domains]\nweb = '1/s burst 3'");
    assert_eq!(gcra.rules.rules()[0].limits[0].algorithm.name(), "gcra");
}
