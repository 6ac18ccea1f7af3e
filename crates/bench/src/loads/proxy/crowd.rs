//! What a waiting request costs in memory, beside its connection.
//!
//! Connections that have been answered once and sit idle are the measure; then each of them sends
//! a request that must wait. The limit lets one request per connection start in a day.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::config;
use super::speech::Get;
use crate::failure::Failure;
use crate::frame::Frame;
use crate::servers::Server;
use crate::stream::{Speech as _, ask_once};

/// How often the server's memory is looked at until it no longer grows.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOKS_MAX: u32 = 50;

/// Holds so many requests back and prints the memory that each takes.
pub(super) fn run(frame: &Frame<'_>, upstream: SocketAddr, waiting: u32) -> Result<(), Failure> {
    let server = frame.program.serve(&config(upstream, &format!("{waiting} per 1d")))?;
    let mut connections = (0..waiting)
        .map(|_| answered_once(server.address()))
        .collect::<io::Result<Vec<_>>>()
        .context("cannot open the connections")?;
    let idle = settled(&server)?;
    let mut request = Vec::new();
    Get.ask(0, &mut request);
    for connection in &mut connections {
        connection.write_all(&request).context("cannot send")?;
    }
    let held = settled(&server)?;
    let each = held.saturating_sub(idle) / u64::from(waiting);
    let json = json!({
        "waiting": waiting,
        "idle_bytes": idle,
        "waiting_bytes": held,
        "each_bytes": each,
    });
    let page = format!(
        "{waiting} idle connections: {} KiB; the same with a request waiting on each: {} KiB; \
         {each} bytes per waiting request\n",
        idle >> 10,
        held >> 10
    );
    frame.show(&json, &page)
}

/// A connection that has had one answer.
fn answered_once(server: SocketAddr) -> io::Result<TcpStream> {
    let mut request = Vec::new();
    Get.ask(0, &mut request);
    let answer = |bytes: &[u8]| Ok((Get.read(bytes)?.count > 0).then_some(()));
    ask_once(server, &request, answer).map(|(stream, ())| stream)
}

/// The server's memory once it stands still.
fn settled(server: &Server) -> anyhow::Result<u64> {
    let look = || server.memory().context("the server's memory cannot be read");
    let mut last = look()?;
    for _ in 0..LOOKS_MAX {
        thread::sleep(LOOK_EVERY);
        let now = look()?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}
