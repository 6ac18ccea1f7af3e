//! The RESP door: real clients, and clients that mean harm.

mod beside_redis;
mod by_rule;
mod cell;
mod clients;
mod hostile;
mod interactive;
mod libraries;
mod reload;
mod remote;
mod verbs;
mod ways;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tidegate_wire::resp::request::request;

use crate::program::{PATIENCE, Program};

/// The door on a free port, and where its figures are told.
pub(crate) const DOOR: &str = "[resp]\nlisten = '127.0.0.1:0'\n[admin]\nlisten = '127.0.0.1:0'\n";

/// A client that counts bytes.
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) fn new(program: &Program) -> Self {
        let stream = TcpStream::connect(program.address("resp")).expect("the door is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the door takes it");
    }

    pub(crate) fn read(&mut self, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.0.read_exact(&mut read).expect("a reply");
        read
    }

    /// Everything up to these bytes.
    pub(crate) fn read_until(&mut self, end: &[u8]) -> Vec<u8> {
        let mut read = Vec::new();
        while !read.ends_with(end) {
            read.extend(self.read(1));
        }
        read
    }

    /// Everything until the door closes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut read = Vec::new();
        self.0.read_to_end(&mut read).expect("an end");
        read
    }

    /// Sends a command and expects this reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str, expected: &str) {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let mut bytes = Vec::new();
        request(&mut bytes, &words);
        self.send(&bytes);
        let reply = self.read(expected.len());
        assert_eq!(String::from_utf8_lossy(&reply), expected, "{command}");
    }
}

/// The value of a series of `/metrics`, 0 if it is not there.
pub(crate) fn metric(program: &Program, series: &str) -> u64 {
    let mut page = ureq::get(format!("{}/metrics", program.admin_url())).call().expect("the page");
    let page = page.body_mut().read_to_string().expect("text");
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().expect("a number"))
}

/// Bad input that was counted under this reason.
pub(crate) fn bad_input(program: &Program, reason: &str) -> u64 {
    let series = format!("tidegate_bad_input_total{{door=\"resp\",reason=\"{reason}\"}}");
    metric(program, &series)
}
