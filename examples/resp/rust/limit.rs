//! A limit for each user, with redis-rs (`cargo add redis`).
//!
//!     cargo run --example resp [redis://127.0.0.1:6380]

use redis::{Client, Connection, RedisResult};

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

/// What each of four requests came to.
pub(crate) fn run(url: &str) -> RedisResult<Vec<String>> {
    let mut connection = Client::open(url)?.get_connection()?;
    let mut line = |number| {
        Ok(match wait_s(&mut connection, "ada")? {
            None => format!("request {number}: allowed"),
            Some(seconds) => {
                let minutes = (seconds + 59) / 60;
                format!("request {number}: refused, try again in {minutes} minutes")
            }
        })
    };
    (1..=4).map(&mut line).collect()
}

fn main() -> RedisResult<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6380".to_owned());
    for line in run(&url)? {
        println!("{line}");
    }
    Ok(())
}
