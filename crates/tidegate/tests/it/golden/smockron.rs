//! The Smockron door: gatekeepers' messages, and what the master publishes.
//!
//! - `>> web\0 | ACCEPTED | me | t+0 | | curl` is a message of a gatekeeper, its frames parted by
//!   bars; several in a row arrive in one batch
//! - `<< web\0 | DELAY_UNTIL | me | t+1000` is published
//! - `>> check web me` asks for the key as another door would; the reply is `yes` or `no 1000`,
//!   with the milliseconds until it would be another
//!
//! `t+N` is a time in milliseconds after the beginning, `x*300` is three hundred of them.

use tidegate::clock::Clock;
use tidegate::doors::smockron::{Handler, Messages, Publish, Settings};
use tidegate::limiter::{Decision, Key, LimiterHandle, Request};
use tidegate::metrics::Door;
use tidegate_core::time::MILLISECOND;
use tidegate_wire::smockron::Frames;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use super::notation::{compare, escaped, unescaped};
use super::script::{Exchange, Mismatch};
use super::{Adapter, START, config, limiter};

struct Master {
    clock: Clock,
    handler: Handler,
    other_door: LimiterHandle,
    runtime: Runtime,
}

pub(super) fn open(settings: Option<&str>, clock: &Clock) -> Box<dyn Adapter> {
    let config = config(settings.expect("domains"));
    let limiter = limiter(config.rules, clock);
    let long_pairs = config.file.smockron.is_some_and(|door| door.long_pairs);
    let settings = Settings { long_pairs, ..Settings::default() };
    Box::new(Master {
        clock: clock.clone(),
        handler: Handler::new(limiter.handle(Door::Smockron), settings),
        other_door: limiter.handle(Door::Http),
        runtime: Builder::new_current_thread().build().expect("a runtime"),
    })
}

impl Adapter for Master {
    fn exchange(&mut self, exchange: &Exchange) -> Vec<Mismatch> {
        let requests = &exchange.requests;
        if let Some(key) = requests[0].text.strip_prefix("check ") {
            assert_eq!(requests.len(), 1, "one check at a time");
            return compare(&exchange.replies, &[check(&self.other_door, key)]);
        }
        let batch = Batch(requests.iter().map(|request| message(&request.text)).collect());
        let mut published = Published::default();
        self.handler.take(&batch, self.clock.now(), &mut published);
        self.runtime.block_on(async {
            while self.handler.is_walking() {
                self.handler.publish_found(&mut published);
                yield_now().await;
            }
        });
        if published.0.is_empty() {
            published.0.push(String::new());
        }
        compare(&exchange.replies, &published.0)
    }
}

/// Messages that lie in memory.
struct Batch(Vec<Vec<Vec<u8>>>);

impl Messages for Batch {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn frames<'a, 'r>(&'a self, index: usize, room: &'r mut [&'a [u8]]) -> &'r [&'a [u8]] {
        let mut count = 0;
        for (slot, frame) in room.iter_mut().zip(&self.0[index]) {
            *slot = frame;
            count += 1;
        }
        &room[..count]
    }
}

/// What was published, as files write it.
#[derive(Default)]
struct Published(Vec<String>);

impl Publish for Published {
    fn publish(&mut self, message: &Frames) -> bool {
        let frames: Vec<String> = message.iter().map(written).collect();
        self.0.push(frames.join(" | "));
        true
    }
}

const START_MS: u64 = START.unix / MILLISECOND;

fn written(frame: &[u8]) -> String {
    if let [first, .., last] = frame
        && frame.len() > 50
        && frame.iter().all(|byte| byte == first)
    {
        return format!("{}*{}", char::from(*last), frame.len());
    }
    let number = std::str::from_utf8(frame).ok().and_then(|text| text.parse::<u64>().ok());
    match number {
        // Nothing else in these files is a number as large.
        Some(ms) if ms >= START_MS => format!("t+{}", ms - START_MS),
        _ => escaped(frame),
    }
}

fn message(line: &str) -> Vec<Vec<u8>> {
    // A bar at the end has an empty frame behind it.
    format!("{line} ").split(" |").map(|frame| frame_bytes(frame.trim_matches(' '))).collect()
}

fn frame_bytes(text: &str) -> Vec<u8> {
    if let Some(span) = text.strip_prefix("t+") {
        let (whole, fraction) = span.split_once('.').map_or((span, ""), |(w, f)| (w, f));
        let ms = START_MS + whole.parse::<u64>().expect("milliseconds");
        let point = if fraction.is_empty() { "" } else { "." };
        return format!("{ms}{point}{fraction}").into_bytes();
    }
    if let Some((byte, count)) = text.split_once('*')
        && let Ok(count) = count.parse::<usize>()
    {
        return byte.repeat(count).into_bytes();
    }
    unescaped(text)
}

/// The answer of another door.
fn check(handle: &LimiterHandle, key: &str) -> String {
    let keys = [Key::take(key.as_bytes(), 1)];
    match handle.decide(&Request::all_or_nothing(&keys), handle.now(), None) {
        Ok(Decision::Ready(verdict)) if verdict.is_allowed() => "yes".to_owned(),
        Ok(Decision::Ready(verdict)) => format!("no {}", verdict.delay.div_ceil(MILLISECOND)),
        other => panic!("{other:?}"),
    }
}
