//! The JARL door of the real program, asked over real sockets.
//!
//! Limits are per hour wherever it matters, so that no test depends on how fast it runs.

mod closing;
mod doors;
mod program;
mod remote;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::program::{PATIENCE, Program};

/// So many calls that nobody ever waits.
const PLENTY: &str = "10000000 per 1s";

/// A table for one service at a free port.
fn table(service: &str, limit: &str, more: &str) -> String {
    format!("[[jarl]]\nservice = '{service}'\nlisten = '127.0.0.1:0'\nlimit = '{limit}'\n{more}\n")
}

fn connect(door: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(door).expect("the door is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// The whole answer, up to a clean end.
fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer and a clean end");
    answer
}

fn ask(door: SocketAddr) -> String {
    read(connect(door))
}

/// The delay in seconds.
pub(crate) fn delay(door: SocketAddr) -> f64 {
    let answer = ask(door);
    let (_, decimals) = answer.split_once('.').expect("a point");
    assert_eq!(decimals.len(), 3, "{answer}");
    answer.parse().expect("a number")
}

/// The value of one series of the program, 0 if it is not there.
fn metric(program: &Program, series: &str) -> u64 {
    let mut stream = connect(program.address("http"));
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("the door reads");
    let page = read(stream);
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0, |value| value.trim().parse().expect("a number"))
}

fn bad_input(program: &Program, reason: &str) -> u64 {
    let series = format!("tidegate_bad_input_total{{door=\"jarl\",reason=\"{reason}\"}}");
    metric(program, &series)
}
