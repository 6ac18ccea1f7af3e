//! What a file says as a whole, and how its tables fit each other.

use super::{check, check_rule, parse};
use crate::config::Config;

#[test]
fn nothing_passes_under_deny() {
    let text = "[[rule]]\nmatch = 'a *'\nlimit = 'deny'\nreplicas = 3\nalgorithm = 'average'\n\
                strict = true\n[[rule]]\nmatch = 'b'\nlimit = ['deny']\n[default]\nlimit = 'deny'";
    let config = parse(text);
    let shown: Vec<String> = config
        .rules
        .rules()
        .iter()
        .map(|rule| format!("{} {}", rule.name, rule.limits[0]))
        .collect();
    assert_eq!(shown, ["a * deny", "b deny", "default deny"]);
    let again = Config::parse("shown", &config.show().unwrap()).unwrap();
    assert_eq!(again.rules.rules(), config.rules.rules());
}

#[test]
fn deny_stands_alone_and_is_not_for_those_who_only_delay() {
    check_rule(
        "limit = ['1/s', 'deny']",
        &["t:3:17: \"deny\" stands beside other limits; \
           remove it from the list, or write limit = \"deny\" alone"],
    );
    for algorithm in ["jarl", "smockron"] {
        let line = format!(
            "t:3:10: `{algorithm}` delays callers and cannot refuse them; \
             write a limit such as `1 per 60s`, or choose another algorithm"
        );
        check_rule(&format!("limit = 'deny'\nalgorithm = '{algorithm}'"), &[&line]);
    }
    let jarl = "[[jarl]]\nservice = 'a'\nlisten = '127.0.0.1:0'\nlimit = 'deny'\n";
    check(
        jarl,
        &["t:4:10: `jarl` delays callers and cannot refuse them; \
           write a limit such as `1 per 60s`, or choose another algorithm"],
    );
    check(
        &format!("{jarl}algorithm = 'gcra'"),
        &["t:4:9: this door delays callers and cannot refuse them; \
           write a limit such as \"1 per 60s\", or remove the table"],
    );
    check(
        "[smockron]\nalgorithm = 'gcra'\n[smockron.domains]\nweb = 'deny'",
        &["t:4:7: this door delays callers and cannot refuse them; \
           write a limit such as \"1 per 60s\", or remove the table"],
    );
}
