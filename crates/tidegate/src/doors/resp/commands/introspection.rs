//! What the server tells of itself: INFO and COMMAND.

use std::fmt::Write as _;

use tidegate_core::time::SECOND;
use tidegate_wire::resp::reply;

use super::counters::SYNTAX;
use super::handshake::REDIS_VERSION;
use super::{COMMANDS, Call, Flow, RespCommand, find};

/// `INFO [section …]`
pub(super) fn info(call: &mut Call<'_>) -> Flow {
    let all = ["default", "all", "everything"];
    let is_wanted = |section: &str| {
        let mut wanted = call.arguments.iter().skip(1);
        let is = |given: &[u8], word: &str| given.eq_ignore_ascii_case(word.as_bytes());
        call.arguments.len() == 1
            || wanted.any(|given| is(given, section) || all.iter().any(|word| is(given, word)))
    };
    let mut text = String::new();
    for (section, lines) in sections(call) {
        if is_wanted(section) {
            let gap = if text.is_empty() { "" } else { "\r\n" };
            // Writing to a string does not fail.
            let _ = write!(text, "{gap}# {section}\r\n");
            for (name, value) in lines {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
    }
    reply::verbatim(call.out, call.version(), &text);
    Flow::Done
}

/// Every section with its lines.
fn sections(call: &Call<'_>) -> [(&'static str, Vec<(&'static str, String)>); 7] {
    let parts = &call.handler.parts;
    let (records, keys) = (parts.records.size(), parts.limiter.limiter().size());
    let sum = parts.state.sum();
    let uptime = call.now().unix.saturating_sub(parts.state.started_at) / SECOND;
    let max_bytes = parts.limiter.limiter().budget().max_bytes();
    let keyspace = format!("keys={},expires=0,avg_ttl=0", records.records());
    [
        (
            "Server",
            vec![
                ("redis_version", REDIS_VERSION.to_owned()),
                ("tidegate_version", env!("CARGO_PKG_VERSION").to_owned()),
                ("redis_mode", "standalone".to_owned()),
                ("process_id", std::process::id().to_string()),
                ("uptime_in_seconds", uptime.to_string()),
            ],
        ),
        (
            "Clients",
            vec![
                ("connected_clients", parts.state.connected().to_string()),
                ("maxclients", call.handler.settings.max_connections.to_string()),
            ],
        ),
        (
            "Memory",
            vec![
                ("used_memory", keys.bytes.saturating_add(records.bytes).to_string()),
                ("maxmemory", max_bytes.to_string()),
            ],
        ),
        ("Persistence", vec![("loading", "0".to_owned())]),
        (
            "Stats",
            vec![
                ("total_commands_processed", sum.commands.iter().sum::<u64>().to_string()),
                ("total_net_input_bytes", sum.read_bytes.to_string()),
                ("total_net_output_bytes", sum.written_bytes.to_string()),
            ],
        ),
        ("Replication", vec![("role", "master".to_owned()), ("connected_slaves", "0".to_owned())]),
        ("Keyspace", vec![("db0", keyspace)]),
    ]
}

/// `COMMAND`: all of them.
pub(super) fn command(call: &mut Call<'_>) -> Flow {
    reply::array(call.out, COMMANDS.len());
    COMMANDS.iter().for_each(|command| describe(call.out, command));
    Flow::Done
}

/// `COMMAND COUNT`
pub(super) fn command_count(call: &mut Call<'_>) -> Flow {
    call.integer(COMMANDS.len() as i64)
}

/// `COMMAND DOCS [name …]`: there are none.
pub(super) fn command_docs(call: &mut Call<'_>) -> Flow {
    reply::map(call.out, call.version(), 0);
    Flow::Done
}

/// `COMMAND INFO [name …]`
pub(super) fn command_info(call: &mut Call<'_>) -> Flow {
    if call.arguments.len() == 2 {
        return command(call);
    }
    let version = call.version();
    let names = call.arguments.iter().skip(2);
    reply::array(call.out, names.len());
    for name in names {
        match find(name) {
            Some(position) => describe(call.out, &COMMANDS[position]),
            None => reply::null(call.out, version),
        }
    }
    Flow::Done
}

/// `COMMAND LIST`, without Redis's filters.
pub(super) fn command_list(call: &mut Call<'_>) -> Flow {
    if call.arguments.len() > 2 {
        return call.error(SYNTAX);
    }
    reply::array(call.out, COMMANDS.len());
    COMMANDS.iter().for_each(|command| reply::bulk(call.out, command.name.as_bytes()));
    Flow::Done
}

/// What COMMAND tells of one command: name, arity, flags, first and last key and the step between
/// keys, categories, tips, key specifications and subcommands.
fn describe(out: &mut Vec<u8>, command: &RespCommand) {
    let (first, last) = command.keys.unwrap_or_default();
    reply::array(out, 10);
    reply::bulk(out, command.name.as_bytes());
    reply::integer(out, command.arity);
    reply::array(out, 0);
    for position in [first, last, first.min(1)] {
        reply::integer(out, position);
    }
    for _ in 0..4 {
        reply::array(out, 0);
    }
}
