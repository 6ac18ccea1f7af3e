//! The JARL door: a request is the name of a service, whose client connects and sends nothing.

use std::collections::HashMap;

use tidegate::clock::Clock;
use tidegate::doors::jarl::JarlHandler;
use tidegate::metrics::Door;

use super::notation::{compare, escaped};
use super::script::{Exchange, Mismatch};
use super::{Adapter, config, limiter};

struct Services {
    clock: Clock,
    handlers: HashMap<String, JarlHandler>,
}

pub(super) fn open(settings: Option<&str>, clock: &Clock) -> Box<dyn Adapter> {
    let config = config(settings.expect("services"));
    let limiter = limiter(config.rules, clock);
    let mut handlers = HashMap::new();
    for door in &config.file.jarl {
        let service = door.service.get_ref();
        let handler = JarlHandler::new(limiter.handle(Door::Jarl), service).expect("an eventfd");
        handlers.insert(service.clone(), handler);
    }
    Box::new(Services { clock: clock.clone(), handlers })
}

impl Adapter for Services {
    fn exchange(&mut self, exchange: &Exchange) -> Vec<Mismatch> {
        let now = self.clock.now();
        let mut replies = Vec::new();
        for request in &exchange.requests {
            let handler = self.handlers.get_mut(&request.text).expect("a service of the file");
            let mut reply = String::new();
            // A service whose rule this door cannot ask answers nothing.
            let _ = handler.answer(1, now, |bytes: &[u8]| reply.push_str(&escaped(bytes)));
            replies.push(reply);
        }
        compare(&exchange.replies, &replies)
    }
}
