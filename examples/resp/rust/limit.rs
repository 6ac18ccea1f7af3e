//! Limits for each user, with redis-rs (`cargo add redis`): one that the application sets, and one
//! that the operator sets by a rule in the server's file. Without the rule all logins are allowed.
//!
//!     [[rule]]
//!     match = "login:*"
//!     limit = "1 per hour"
//!
//!     cargo run --example resp [redis://127.0.0.1:6380]

use std::collections::HashMap;

use redis::{Client, Connection, FromRedisValue as _, RedisResult, Value};

/// Uses one of the user's three requests an hour: `None`, or in how many seconds there is one.
fn wait_s(connection: &mut Connection, user: &str) -> RedisResult<Option<i64>> {
    let (burst, count, period_s) = (2, 3, 3600);
    let (limited, _limit, _remaining, retry_s, _reset_s): (i64, i64, i64, i64, i64) =
        redis::cmd("CL.THROTTLE")
            .arg(format!("user:{user}"))
            .arg(&[burst, count, period_s])
            .query(connection)?;
    Ok((limited == 1).then_some(retry_s))
}

/// The same by the operator's rule.
fn login_wait_s(connection: &mut Connection, user: &str) -> RedisResult<Option<i64>> {
    let reply: HashMap<String, Value> =
        redis::cmd("TG.CHECK").arg(format!("login:{user}")).query(connection)?;
    let is_allowed = bool::from_redis_value_ref(&reply["allowed"])?;
    let retry_ms = i64::from_redis_value_ref(&reply["retry_ms"])?;
    Ok((!is_allowed).then_some((retry_ms + 999) / 1000))
}

fn line(what: &str, number: u32, wait_s: Option<i64>) -> String {
    match wait_s {
        None => format!("{what} {number}: allowed"),
        Some(seconds) => {
            let minutes = (seconds + 59) / 60;
            format!("{what} {number}: refused, try again in {minutes} minutes")
        }
    }
}

/// What each of four requests and two logins came to.
pub(crate) fn run(url: &str) -> RedisResult<Vec<String>> {
    let mut connection = Client::open(url)?.get_connection()?;
    let mut lines = Vec::new();
    for number in 1..=4 {
        lines.push(line("request", number, wait_s(&mut connection, "ada")?));
    }
    for number in 1..=2 {
        lines.push(line("login", number, login_wait_s(&mut connection, "ada")?));
    }
    Ok(lines)
}

fn main() -> RedisResult<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6380".to_owned());
    for line in run(&url)? {
        println!("{line}");
    }
    Ok(())
}
