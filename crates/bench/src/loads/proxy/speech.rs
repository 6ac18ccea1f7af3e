//! What is said to the proxy: one path for each key.

use std::io;

use crate::stream::{Answers, Speech, http1, key_of};

/// GET of `/k<number>`, which the upstream answers with 204.
#[derive(Clone, Copy, Debug)]
pub(super) struct Get;

impl Speech for Get {
    fn ask(&mut self, key: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"GET /");
        out.extend_from_slice(&key_of(key));
        out.extend_from_slice(b" HTTP/1.1\r\nHost: bench.example\r\n\r\n");
    }

    fn read(&mut self, bytes: &[u8]) -> io::Result<Answers> {
        http1::read(bytes, 204)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_a_path() {
        let mut out = Vec::new();
        Get.ask(77, &mut out);
        assert!(out.starts_with(b"GET /k00000000077 HTTP/1.1\r\n"));
    }
}
