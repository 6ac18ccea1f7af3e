//! The text door: a request is a datagram, and several in a row arrive in one batch.
//!
//! Without settings the built-in rules hold. Each request has a line for its reply.

use tidegate::clock::Clock;
use tidegate::config::ConfigSource;
use tidegate::doors::text::TextHandler;
use tidegate::metrics::Door;

use super::notation::{compare, escaped, unescaped};
use super::script::{Exchange, Mismatch};
use super::{Adapter, config, limiter};

pub(super) fn open(settings: Option<&str>, clock: &Clock) -> Box<dyn Adapter> {
    let config = match settings {
        Some(settings) => config(&format!("{settings}\n[text]\nlisten = \"127.0.0.1:0\"\n")),
        None => ConfigSource::BuiltIn.load().expect("the built-in rules"),
    };
    let handle = limiter(config.rules, clock).handle(Door::Text);
    Box::new(TextHandler::<()>::new(handle).expect("a notifier"))
}

impl Adapter for TextHandler<()> {
    fn exchange(&mut self, exchange: &Exchange) -> Vec<Mismatch> {
        let packets: Vec<Vec<u8>> =
            exchange.requests.iter().map(|request| unescaped(&request.text)).collect();
        let packets: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        let mut replies = vec![String::new(); packets.len()];
        for (packet, reply) in self.on_datagrams(&packets, |_| (), |()| true).iter() {
            assert!(replies[packet].is_empty(), "two replies to one request");
            replies[packet] = escaped(reply);
        }
        compare(&exchange.replies, &replies)
    }
}
