//! The commands of rules as each client library sees them: one conversation for all, in both
//! protocols.
//!
//! A client reads a command from each line and prints the reply in one line: `[a b]` is an array,
//! `{name value}` a map; `true` and `false` are booleans and `nil` is null; an error is `error` and
//! its text.

/// Periods are long, so that no test depends on how fast it runs.
pub(super) const RULES: &str = "
[[rule]]
match = 'api:*'
limit = '2 per 300d'
[[rule]]
match = 'job:*'
limit = '1 in flight'
";

/// Each command, and its reply in RESP3. A time that is not over is `later`, and `ID` the id of a
/// use. At the end all is as it was.
const CONVERSATION: &[(&str, &str)] = &[
    (
        "TG.CHECK api:a",
        "{allowed true limit 2 remaining 1 retry_ms 0 reset_ms later delay_ms 0 rule api:* \
         degraded false}",
    ),
    (
        "TG.PEEK api:a 2",
        "{allowed false limit 2 remaining 1 retry_ms later reset_ms later delay_ms later \
         rule api:* degraded false}",
    ),
    (
        "TG.MCHECK 1 api:a api:b",
        "{allowed true limit 2 remaining 0 retry_ms 0 reset_ms later delay_ms 0 rule api:* \
         degraded false}",
    ),
    (
        "TG.MCHECK 1 api:b api:a",
        "{allowed false limit 2 remaining 0 retry_ms later reset_ms later delay_ms later \
         rule api:* degraded false}",
    ),
    (
        "TG.PEEK api:b",
        "{allowed true limit 2 remaining 1 retry_ms 0 reset_ms later delay_ms 0 rule api:* \
         degraded false}",
    ),
    (
        "TG.WAIT api:a 1 1",
        "{allowed false limit 2 remaining 0 retry_ms later reset_ms later delay_ms later \
         rule api:* degraded false}",
    ),
    (
        "TG.CHECK api:a 3",
        "{allowed false limit 2 remaining 0 retry_ms -1 reset_ms later delay_ms nil rule api:* \
         degraded false}",
    ),
    (
        "TG.CHECK other",
        "{allowed true limit nil remaining nil retry_ms 0 reset_ms 0 delay_ms 0 rule nil \
         degraded false}",
    ),
    ("TG.RESET api:a", "1"),
    ("TG.RESET api:a", "0"),
    (
        "TG.WAIT api:a",
        "{allowed true limit 2 remaining 1 retry_ms 0 reset_ms later delay_ms 0 rule api:* \
         degraded false}",
    ),
    (
        "TG.HOLD job:a 86400000",
        "{allowed true limit 1 remaining 0 retry_ms 0 reset_ms nil delay_ms 0 rule job:* use ID \
         degraded false}",
    ),
    (
        "TG.HOLD job:a 86400000",
        "{allowed false limit 1 remaining 0 retry_ms nil reset_ms nil delay_ms nil rule job:* \
         use nil degraded false}",
    ),
    ("TG.CHECK job:a", "error this key limits uses in flight: use TG.HOLD"),
    ("TG.RELEASE ID", "1"),
    ("TG.RELEASE ID", "0"),
    ("MULTI", "OK"),
    ("TG.CHECK api:c", "QUEUED"),
    ("TG.RESET api:c", "QUEUED"),
    (
        "EXEC",
        "[{allowed true limit 2 remaining 1 retry_ms 0 reset_ms later delay_ms 0 rule api:* \
         degraded false} 1]",
    ),
    ("TG.RESET api:a", "1"),
    ("TG.RESET api:b", "1"),
];

/// Has the conversation with a client of this protocol. `ask` takes a command and returns the
/// reply.
#[track_caller]
pub(super) fn converse(protocol: &str, mut ask: impl FnMut(&str) -> String) {
    let mut id = String::new();
    for (command, expected) in CONVERSATION {
        let reply = ask(&command.replace("ID", &id));
        if let Some(told) = value(&reply, "use").filter(|told| *told != "nil") {
            told.clone_into(&mut id);
        }
        assert_eq!(without_times(&reply, &id), in_protocol(protocol, expected), "{command}");
    }
}

/// What stands behind this name.
fn value<'r>(reply: &'r str, name: &str) -> Option<&'r str> {
    let mut words = reply.strip_prefix(['{', '['])?.split(' ').skip_while(|word| *word != name);
    words.nth(1)
}

fn without_times(reply: &str, id: &str) -> String {
    // Some libraries take the first word of an error away.
    let reply = reply.replace("error ERR ", "error ");
    let mut words: Vec<&str> = reply.split(' ').collect();
    for at in 1..words.len() {
        let is_time = words[at - 1].ends_with("_ms");
        if is_time && words[at].parse::<i64>().is_ok_and(|time| time > 0) {
            words[at] = "later";
        }
        if words[at - 1] == "use" && words[at] == id {
            words[at] = "ID";
        }
    }
    words.join(" ")
}

/// RESP2 has pairs in an array, and numbers for booleans.
fn in_protocol(protocol: &str, reply: &str) -> String {
    match protocol {
        "3" => reply.to_owned(),
        _ => {
            let flat = reply.replace('{', "[").replace('}', "]");
            flat.replace("true", "1").replace("false", "0")
        }
    }
}
