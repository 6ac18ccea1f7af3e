//! `tidegate check KEY…`: ask for a use and print the verdict.

use super::client::{CheckBody, LimitJson, ServerArgs, VerdictJson};
use super::output::{print, print_line};
use super::{CliError, Code, OK, REFUSED, cost};

/// The arguments of `tidegate check`.
#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    /// The keys; all of them must be allowed, or nothing is taken.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    /// How many uses to take.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = cost)]
    cost: u64,
    /// Take nothing, only show the decision.
    #[arg(long)]
    peek: bool,
    /// Print the server's JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &CheckArgs) -> Result<Code, CliError> {
    let client = args.server.client()?;
    let check = CheckBody { keys: &args.keys, cost: args.cost, peek: args.peek, hold_ms: None };
    let verdict = client.check(&check)?;
    show(&verdict, args.json)?;
    Ok(if verdict.allowed { OK } else { REFUSED })
}

/// Prints a verdict for people, or the server's own JSON.
pub(super) fn show(verdict: &VerdictJson, json: bool) -> Result<(), CliError> {
    if json { print_line(verdict.raw.trim_end()) } else { print(readable(verdict).as_bytes()) }
}

/// A verdict in a few words.
pub(super) fn outcome(verdict: &VerdictJson) -> String {
    let mut text = match &verdict.refused_by {
        _ if verdict.allowed => "allowed".to_owned(),
        Some(rule) => format!("refused by {rule}"),
        None => "refused".to_owned(),
    };
    let denied = verdict.limits.iter().any(|limit| limit.limit == "deny");
    match verdict.delay_ms {
        Some(0) => {}
        Some(delay) if verdict.allowed => text.push_str(&format!(", after {}", seconds(delay))),
        Some(delay) => text.push_str(&format!(", try again in {}", seconds(delay))),
        None if denied => {}
        None if verdict.limits.iter().any(LimitJson::is_in_flight) => {
            text.push_str("; it is free when a use in flight ends");
        }
        None => text.push_str(", it is not known for how long"),
    }
    if verdict.degraded {
        text.push_str(", decided without the store");
    }
    text
}

fn readable(verdict: &VerdictJson) -> String {
    let mut text = outcome(verdict);
    text.push('\n');
    if verdict.limits.is_empty() {
        text.push_str("  no limit\n");
    }
    for limit_verdict in &verdict.limits {
        let LimitJson { key, rule, limit, retry_after_ms, .. } = limit_verdict;
        let standing = standing(limit_verdict);
        let retry = match retry_after_ms {
            Some(0) => String::new(),
            Some(wait) => format!(", again in {}", seconds(*wait)),
            None => ", full".to_owned(),
        };
        if limit == "deny" {
            text.push_str(&format!("  {key}: {limit} ({rule}): nothing passes\n"));
            continue;
        }
        text.push_str(&format!("  {key}: {limit} ({rule}): {standing}{retry}\n"));
    }
    text
}

/// How a key stands with one limit.
fn standing(verdict: &LimitJson) -> String {
    let rate = verdict.rate;
    match verdict.remaining {
        Some(left) if verdict.degraded => {
            format!("no answer from the store, counted by this node: rate {rate:.1}, {left} left")
        }
        Some(left) => format!("rate {rate:.1}, {left} left"),
        None => "no answer from the store, not counted".to_owned(),
    }
}

fn seconds(millis: u64) -> String {
    format!("{}.{:03} s", millis / 1000, millis % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(json: &str) -> VerdictJson {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn verdicts_are_readable() {
        let limit = r#"{"key":"ws global","rule":"ws","limit":"2 per 10s","amount":2,
            "period_ms":10000,"remaining":1,"rate":1.0,"retry_after_ms":0,"reset_ms":5}"#;
        let allowed =
            format!(r#"{{"allowed":true,"delay_ms":0,"refused_by":null,"limits":[{limit}]}}"#);
        let text = "allowed\n  ws global: 2 per 10s (ws): rate 1.0, 1 left\n";
        assert_eq!(readable(&verdict(&allowed)), text);
        let refused = r#"{"allowed":false,"delay_ms":1500,"refused_by":"ws","limits":[]}"#;
        let text = "refused by ws, try again in 1.500 s\n  no limit\n";
        assert_eq!(readable(&verdict(refused)), text);
        let denied = r#"{"allowed":false,"delay_ms":null,"refused_by":"ws","limits":[{"key":"ws a",
            "rule":"ws","limit":"deny","amount":0,"period_ms":null,"remaining":0,"rate":0.0,
            "retry_after_ms":null,"reset_ms":null}]}"#;
        let text = "refused by ws\n  ws a: deny (ws): nothing passes\n";
        assert_eq!(readable(&verdict(denied)), text);
        let full = r#"{"allowed":false,"delay_ms":null,"refused_by":"jobs","limits":[{"key":"jobs",
            "rule":"jobs","limit":"1 in flight","remaining":0,"rate":1.0,
            "retry_after_ms":null}]}"#;
        let text = "refused by jobs; it is free when a use in flight ends\n\
            \x20 jobs: 1 in flight (jobs): rate 1.0, 0 left, full\n";
        assert_eq!(readable(&verdict(full)), text);
        let costs = ["0", "-1", "1.5", "", "2"].map(|text| cost(text).ok());
        assert_eq!(costs, [None, None, None, None, Some(2)]);
    }

    #[test]
    fn what_was_decided_without_the_store_is_said() {
        let limit = |remaining: &str| {
            format!(
                r#"{{"key":"k","rule":"k","limit":"2/s","remaining":{remaining},"rate":0.0,
                "retry_after_ms":0,"degraded":true}}"#
            )
        };
        let limits = [limit("null"), limit("1")].join(",");
        let allowed = format!(
            r#"{{"allowed":true,"delay_ms":0,"refused_by":null,"degraded":true,
            "limits":[{limits}]}}"#
        );
        let text = "allowed, decided without the store\n\
            \x20 k: 2/s (k): no answer from the store, not counted\n\
            \x20 k: 2/s (k): no answer from the store, counted by this node: rate 0.0, 1 left\n";
        assert_eq!(readable(&verdict(&allowed)), text);
    }
}
