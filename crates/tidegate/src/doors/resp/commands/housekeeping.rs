//! What clients ask of any Redis: whether it is there, the time, how much it holds, and a few
//! settings.

use tidegate_core::time::{MICROSECOND, SECOND};
use tidegate_wire::resp::reply;

use super::{Call, Flow};

/// `PING [message]`
pub(super) fn ping(call: &mut Call<'_>) -> Flow {
    match call.arguments.len() {
        1 => reply::simple(call.out, "PONG"),
        2 => reply::bulk(call.out, call.argument(1)),
        _ => return call.wrong_arity("ping"),
    }
    Flow::Done
}

/// `ECHO message`
pub(super) fn echo(call: &mut Call<'_>) -> Flow {
    reply::bulk(call.out, call.argument(1));
    Flow::Done
}

/// `TIME`: seconds and microseconds of the wall clock.
pub(super) fn time(call: &mut Call<'_>) -> Flow {
    let now = call.now().unix;
    reply::array(call.out, 2);
    for number in [now / SECOND, now % SECOND / MICROSECOND] {
        reply::bulk(call.out, number.to_string().as_bytes());
    }
    Flow::Done
}

/// `DBSIZE`: records.
pub(super) fn dbsize(call: &mut Call<'_>) -> Flow {
    let records = call.handler.parts.records.size().records();
    reply::integer(call.out, records as i64);
    Flow::Done
}

/// `CONFIG GET name …`
pub(super) fn config_get(call: &mut Call<'_>) -> Flow {
    let max_bytes = call.handler.parts.limiter.limiter().budget().max_bytes();
    let known = [
        ("save", String::new()),
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxmemory", max_bytes.to_string()),
    ];
    let is_wanted = |name: &str| {
        let mut wanted = call.arguments.iter().skip(2);
        wanted.any(|wanted| wanted == b"*" || wanted.eq_ignore_ascii_case(name.as_bytes()))
    };
    let found: Vec<&(&str, String)> = known.iter().filter(|(name, _)| is_wanted(name)).collect();
    let version = call.version();
    reply::map(call.out, version, found.len());
    for (name, value) in found {
        reply::bulk(call.out, name.as_bytes());
        reply::bulk(call.out, value.as_bytes());
    }
    Flow::Done
}
