//! Many records that expire in the same second, and how long others wait meanwhile.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tidegate_core::time::SECOND;
use tidegate_wire::throttr::ask::{Expected, Incoming, Piece, ReplyReader};
use tidegate_wire::throttr::figures::Info;
use tidegate_wire::throttr::{Request, ValueSize};

use super::speech::Speech;
use crate::clock;
use crate::failure::Failure;
use crate::frame::measure::{Run, measure};
use crate::frame::{Contender, Frame, Load as _, report};
use crate::stream::{StreamLoad, ask_once};

/// Records that are made in a second, at the least.
const MADE_PER_SECOND: u64 = 400_000;

/// Seconds that records must live so that `count` can be made, and a load of `seconds` be measured,
/// before the first of them expires.
pub(super) fn life_s(count: u64, seconds: u64) -> u64 {
    seconds + 2 + count.div_ceil(MADE_PER_SECOND)
}

/// Puts the load on the server twice: before the `doomed` expire, and from then on.
pub(super) fn run(
    frame: &Frame<'_>,
    ours: &Contender<StreamLoad<Speech>>,
    doomed: &StreamLoad<Speech>,
    life_s: u64,
    size: ValueSize,
) -> Result<(), Failure> {
    let Contender { server, load, .. } = ours;
    let start = clock::now();
    let expire = start + life_s * SECOND;
    doomed.all_new().context("cannot make the records that expire")?;
    let made = (clock::now() - start) as f64 / SECOND as f64;
    let held = records_held(server.address(), size).context("cannot ask for INFO")?;
    let usual = measure(frame.name, server, load)?;
    let left = expire.checked_sub(clock::now()).context("making the records took too long")?;
    thread::sleep(Duration::from_nanos(left));
    let then = measure(frame.name, server, load)?;
    let kept = records_held(server.address(), size).context("cannot ask for INFO")?;
    let p99 = |run: &Run| run.tally.latency.value_at_quantile(0.99) as f64;
    let to_usual = p99(&then) / p99(&usual);
    let json = json!({
        "usual": report::json(&usual),
        "expiring": report::json(&then),
        "records": { "before": held, "after": kept },
        "p99_to_usual": to_usual,
    });
    let page = format!(
        "{}\nmade in {made:.2} s, and expire as quickly; records: {held} before, {kept} after\n\
         usual    {}\nexpiring {}\np99 to usual: {to_usual:.2}\n",
        load.title(),
        report::latency(&usual),
        report::latency(&then)
    );
    frame.show(&json, &page)
}

/// How many records the server holds, expired ones that were not swept yet included.
fn records_held(server: SocketAddr, size: ValueSize) -> io::Result<u64> {
    let mut request = Vec::new();
    Request::Info.encode(size, &mut request).map_err(io::Error::other)?;
    let answer = |bytes: &[u8]| {
        let expected = Expected::of(&Request::Info, size);
        match ReplyReader::new(size, 0).next(bytes, Some(expected)) {
            Incoming::Piece { piece: Piece::Info(bytes), .. } => Ok(Some(Info::read(bytes).keys)),
            Incoming::Incomplete => Ok(None),
            _ => Err(io::Error::other("an answer that does not belong to INFO")),
        }
    };
    ask_once(server, &request, answer).map(|(_, keys)| keys)
}
