//! The HTTP door without sockets: the router as a service, on a clock that stands still.

mod api;
mod authorize;
mod bounds;
mod connection;
mod crowd;
mod leaving;
mod rate_limit;
mod records;
mod wait;

use super::router::router;
use crate::doors::http_server::tests::{House, Reply, request};
use crate::metrics::Door;

fn door() -> House {
    House::of(Door::Http, router)
}

impl House {
    async fn check(&self, body: impl ToString) -> Reply {
        self.send_json("POST", "/v1/check", body).await
    }
}
