//! Administration without sockets: the router as a service, on a clock that stands still.

mod fence;
mod keys;
mod records;
mod rules;

use tidegate_core::Op;

use super::router::router;
use crate::doors::http_server::tests::House;
use crate::metrics::Door;

fn door() -> House {
    House::of(Door::Admin, router)
}

impl House {
    /// Uses a key as a door would.
    async fn take(&self, key: &str, times: usize) {
        let desk = self.gate.limiter.desk(Door::Http);
        for _ in 0..times {
            desk.decided(&[key.as_bytes()], Op::Take(1), false, desk.now()).await.unwrap();
        }
    }
}
