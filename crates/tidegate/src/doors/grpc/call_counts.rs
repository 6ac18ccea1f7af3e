//! What the door counts of its calls, and what Prometheus is shown of it.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hyper::header::HeaderMap;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use tidegate_core::Nanos;
use tonic::{Code, Status};

use crate::clock::Clock;
use crate::doors::Gate;
use crate::doors::io::held_bytes::HeldBytes;
use crate::doors::io::limits::AllDoors;
use crate::metrics::{Door, Metrics};

/// Calls are timed that begin at a multiple of so many nanoseconds. A power of two.
const TIMED_AT: Nanos = 64;
/// The bounds of the times that are told, in seconds. Envoy waits for 20 ms if it is not told
/// otherwise.
const CALL_SECONDS: [f64; 11] =
    [1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 1e-2, 1.5e-2, 2e-2, 1e-1];

/// A method that calls are counted by.
pub(super) struct Method {
    /// Empty: any other path.
    path: &'static str,
    pub(super) sends: Sends,
}

/// What clients send in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sends {
    OneMessage,
    /// Messages, at any time.
    Messages,
    /// Reports of any length, at any time.
    Reports,
}

/// The methods of the door. The last one stands for all others.
const METHODS: [Method; 6] = [
    Method::new("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", Sends::OneMessage),
    Method::new(
        "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas",
        Sends::Reports,
    ),
    Method::new("/grpc.health.v1.Health/Check", Sends::OneMessage),
    Method::new("/grpc.health.v1.Health/Watch", Sends::OneMessage),
    Method::new("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Sends::Messages),
    Method::new("", Sends::OneMessage),
];

/// The names of gRPC's codes, by their numbers.
const CODES: [&str; 17] = [
    "ok",
    "cancelled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "aborted",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
];

impl Method {
    const fn new(path: &'static str, sends: Sends) -> Self {
        Self { path, sends }
    }

    /// Which one this path asks for.
    pub(super) fn of(path: &str) -> (usize, &'static Self) {
        let at = METHODS.iter().position(|method| method.path == path);
        let at = at.unwrap_or(METHODS.len() - 1);
        (at, &METHODS[at])
    }

    /// What it is called in series: without its service.
    fn name(&self) -> &'static str {
        self.path.rsplit_once('/').map_or("other", |(_, name)| name)
    }
}

/// The counts of the door.
pub(super) struct CallCounts {
    metrics: Arc<Metrics>,
    pub(super) held: Arc<HeldBytes>,
    answered: [[AtomicU64; CODES.len()]; METHODS.len()],
    /// Of the rate limit service, from the decoded message to the whole answer.
    call_seconds: Histogram,
}

impl CallCounts {
    /// The one of the process.
    pub(super) fn of(gate: &Gate) -> Arc<Self> {
        let doors = AllDoors::of(gate);
        gate.shared.part(|| {
            let counts = Arc::new(Self {
                metrics: gate.metrics.clone(),
                held: Arc::default(),
                answered: Default::default(),
                call_seconds: Histogram::new(CALL_SECONDS),
            });
            gate.metrics.register(Box::new(GrpcSeries(counts.clone(), doors)));
            counts
        })
    }

    /// Counts an answer. A code that stands behind a message is that of a call which went well.
    pub(super) fn answered(&self, method: usize, headers: &HeaderMap) {
        let status = Status::from_header_map(headers);
        let code = status.as_ref().map_or(Code::Ok, Status::code);
        self.answered[method][code as usize].fetch_add(1, Relaxed);
        if let Some(status) = status {
            self.unreadable(&status);
        }
    }

    /// Records how long a call took that has begun at `begun`, if it is one that is timed.
    pub(super) fn time(&self, begun: Nanos, clock: &Clock) {
        // The low bits of a nanosecond clock are random enough to choose by.
        if begun & (TIMED_AT - 1) == 0 {
            let spent = clock.now().mono.saturating_sub(begun);
            self.call_seconds.observe(spent as f64 / 1e9);
        }
    }

    /// Counts a message that could not be read, if that is why a call or its stream has ended. No
    /// service gives these codes by itself: the decoder does. What has a source is a fault of the
    /// connection.
    pub(super) fn unreadable(&self, status: &Status) {
        let reason = match status.code() {
            _ if status.source().is_some() => return,
            Code::OutOfRange => "message_too_long",
            Code::Internal => "message",
            _ => return,
        };
        self.metrics.bad_input(Door::Grpc, reason);
    }

    /// The answer to a call that there is no room for.
    pub(super) fn overload(&self) -> Status {
        self.metrics.bad_input(Door::Grpc, "overload");
        Status::unavailable("too many calls are not over")
    }

    /// The answer to a quota stream whose first report names no domain.
    pub(super) fn no_domain(&self) -> Status {
        self.metrics.bad_input(Door::Grpc, "no_domain");
        Status::unknown("rate limit domain must not be empty")
    }

    /// The answer to a call whose message does not come.
    pub(super) fn too_slow(&self) -> Status {
        self.metrics.bad_input(Door::Grpc, "message_slow");
        Status::deadline_exceeded("the message did not come in time")
    }
}

/// The series of the door.
struct GrpcSeries(Arc<CallCounts>, Arc<AllDoors>);

impl fmt::Debug for GrpcSeries {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("GrpcSeries")
    }
}

impl Collector for GrpcSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let GrpcSeries(counts, doors) = self;
        let counter = ConstCounter::new(0u64).metric_type();
        let help = "gRPC calls that were answered, by method and code";
        let mut calls = encoder.encode_descriptor("grpc_calls", help, None, counter)?;
        for (method, codes) in METHODS.iter().zip(&counts.answered) {
            for (code, count) in CODES.iter().zip(codes) {
                let count = count.load(Relaxed);
                if count > 0 {
                    let labels = [("method", method.name()), ("code", code)];
                    ConstCounter::new(count).encode(calls.encode_family(&labels)?)?;
                }
            }
        }
        let help = "Time from a decoded rate limit call to its whole answer, sampled";
        let kind = counts.call_seconds.metric_type();
        let seconds = encoder.encode_descriptor("grpc_call_seconds", help, None, kind)?;
        counts.call_seconds.encode(seconds)?;
        let gauges = [
            ("grpc_connections", "Connected gRPC clients", doors.connections(Door::Grpc)),
            (
                "grpc_held_bytes",
                "Bytes of gRPC calls beyond each connection's share",
                counts.held.bytes(),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_and_codes_have_names() {
        let (at, method) = Method::of("/grpc.health.v1.Health/Check");
        assert_eq!((at, method.name(), method.sends), (2, "Check", Sends::OneMessage));
        assert_eq!(Method::of("/nobody/Knows").1.name(), "other");
        assert_eq!(CODES[Code::Unavailable as usize], "unavailable");
        assert_eq!(CODES[Code::Unauthenticated as usize], "unauthenticated");
    }
}
