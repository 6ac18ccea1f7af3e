//! Administration without sockets: the router as a service, on a clock that stands still.

mod fence;
mod keys;
mod records;
mod rules;

use super::router::router;
use crate::doors::http_server::tests::House;
use crate::limiter::{Key, Request};
use crate::metrics::Door;

fn door() -> House {
    House::of(Door::Admin, router)
}

impl House {
    /// Uses a key as a door would.
    fn take(&self, key: &str, times: usize) {
        let handle = self.gate.limiter.handle(Door::Http);
        let keys = [Key::take(key.as_bytes(), 1)];
        for _ in 0..times {
            handle.decide(&Request::all_or_nothing(&keys), handle.now(), None).unwrap();
        }
    }
}
