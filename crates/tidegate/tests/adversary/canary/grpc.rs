//! Canaries of the gRPC door: calls about keys that no other client has, so that every code and
//! every count in the answer is known, one after another and many at once on one connection.

use std::sync::Arc;

use tidegate_envoy::proto::descriptor::RateLimitDescriptor;
use tidegate_envoy::proto::descriptor::rate_limit_descriptor::Entry;
use tidegate_envoy::proto::ratelimit::rate_limit_response::{Code, DescriptorStatus};
use tidegate_envoy::proto::ratelimit::rate_limit_service_client::RateLimitServiceClient;
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{Canary, Named, PER_LISTENER, Wrong, same};
use crate::clock::WATCHDOG;
use crate::net::Address;
use crate::seed::Random;
use crate::server::{Doors, USES};

/// Calls beyond the limit.
const BEYOND: u64 = 2;
/// Questions on one connection before it is opened anew.
const QUESTIONS_MAX: usize = 20;
/// A value as long as Envoy passes on.
const LONG_VALUE_BYTES: usize = 60 << 10;

pub(super) fn add(doors: &Doors, canaries: &mut Vec<Named>) {
    let runtime = runtime();
    for (at, address) in doors.grpc.iter().enumerate() {
        for number in 0..PER_LISTENER {
            let name = format!("grpc-{at}-{number}");
            // Some connect for each question.
            let questions_max = if number == 0 { 1 } else { QUESTIONS_MAX };
            let canary = Calls {
                runtime: runtime.clone(),
                address: address.clone(),
                name: name.clone(),
                channel: None,
                questions: 0,
                questions_max,
            };
            canaries.push((name, Box::new(canary)));
        }
    }
}

/// Connections answer pings while their canaries pause.
pub(super) fn runtime() -> Arc<Runtime> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    Arc::new(runtime.expect("a runtime"))
}

struct Calls {
    runtime: Arc<Runtime>,
    address: Address,
    name: String,
    channel: Option<Channel>,
    /// Asked on this connection.
    questions: usize,
    questions_max: usize,
}

/// Opens a connection.
pub(super) fn connect(runtime: &Runtime, address: &Address) -> Result<Channel, Wrong> {
    let uri = match address {
        Address::Tcp(address) => format!("http://{address}"),
        Address::Unix(path) => format!("unix://{}", path.display()),
    };
    let endpoint = Endpoint::from_shared(uri).map_err(|error| error.to_string())?;
    let endpoint = endpoint.connect_timeout(WATCHDOG).tcp_nodelay(true);
    runtime.block_on(endpoint.connect()).map_err(|error| format!("connect: {error:?}"))
}

/// What a status says: its code, what is left, and the limit.
type Brief = (Code, u32, Option<u32>);

/// Runs a call, and says so if it fails or takes too long.
async fn in_time<T>(
    what: &str,
    call: impl Future<Output = Result<T, tonic::Status>>,
) -> Result<T, Wrong> {
    let told = tokio::time::timeout(WATCHDOG, call).await;
    told.map_err(|_| format!("{what}: no answer"))?.map_err(|error| format!("{what}: {error}"))
}

async fn ask(channel: Channel, call: RateLimitRequest) -> Result<RateLimitResponse, Wrong> {
    let mut client = RateLimitServiceClient::new(channel);
    in_time("a call", client.should_rate_limit(call)).await.map(tonic::Response::into_inner)
}

/// The codes of an answer, after a look at what no answer may have.
fn briefs(answer: &RateLimitResponse) -> Result<(Code, Vec<Brief>), Wrong> {
    let brief = |status: &DescriptorStatus| {
        let limit = status.current_limit.as_ref().map(|limit| limit.requests_per_unit);
        (status.code(), status.limit_remaining, limit)
    };
    let extra = (answer.response_headers_to_add.len(), answer.raw_body.len());
    same("headers and body that nobody asked for", extra, (0, 0))?;
    Ok((answer.overall_code(), answer.statuses.iter().map(brief).collect()))
}

/// The status of a descriptor of which so many uses are left.
fn left(uses: u64) -> Brief {
    (Code::Ok, u32::try_from(uses).expect("a few"), u32::try_from(USES).ok())
}

/// The status of a descriptor that is over its limit.
fn over() -> Brief {
    (Code::OverLimit, 0, u32::try_from(USES).ok())
}

impl Calls {
    /// The connection, or a new one.
    fn channel(&mut self) -> Result<Channel, Wrong> {
        self.questions += 1;
        if self.questions > self.questions_max {
            (self.channel, self.questions) = (None, 1);
        }
        if let Some(channel) = &self.channel {
            return Ok(channel.clone());
        }
        let channel = connect(&self.runtime, &self.address)?;
        self.channel = Some(channel.clone());
        Ok(channel)
    }

    /// A descriptor that nobody else has; some are as long as a header may be.
    fn descriptor(&self, random: &mut Random) -> RateLimitDescriptor {
        let mut value = format!("{} {:016x}", self.name, random.next());
        if random.one_in(8) {
            value = value.repeat(LONG_VALUE_BYTES / value.len());
        }
        let entry = Entry { key: "canary".into(), value: value.into() };
        RateLimitDescriptor { entries: vec![entry], ..Default::default() }
    }

    fn call(descriptors: &[&RateLimitDescriptor], hits: u32) -> RateLimitRequest {
        let descriptors = descriptors.iter().map(|one| (*one).clone()).collect();
        RateLimitRequest { domain: "canary".to_owned(), descriptors, hits_addend: hits }
    }

    /// Uses a descriptor up and beyond, one call after another.
    fn in_order(&self, channel: &Channel, random: &mut Random) -> Result<(), Wrong> {
        let descriptor = self.descriptor(random);
        for number in 1..=USES + BEYOND {
            let call = Self::call(&[&descriptor], 0);
            let answer = self.runtime.block_on(ask(channel.clone(), call))?;
            let status = if number > USES { over() } else { left(USES - number) };
            same(&format!("use {number}"), briefs(&answer)?, (status.0, vec![status]))?;
        }
        Ok(())
    }

    /// The same with all calls at once: each count comes once, in any order.
    fn at_once(&self, channel: &Channel, random: &mut Random) -> Result<(), Wrong> {
        let descriptor = self.descriptor(random);
        let mut calls = JoinSet::new();
        for _ in 0..USES + BEYOND {
            let call = Self::call(&[&descriptor], 1);
            calls.spawn_on(ask(channel.clone(), call), self.runtime.handle());
        }
        let mut found = Vec::new();
        for answer in self.runtime.block_on(calls.join_all()) {
            found.extend(briefs(&answer?)?.1);
        }
        found.sort_by_key(|status| (status.0 as i32, status.1));
        let beyond = (0..BEYOND).map(|_| over());
        let expected: Vec<Brief> = (0..USES).map(left).chain(beyond).collect();
        same("uses at once", found, expected)
    }

    /// Two descriptors in one call: a call that is over for one counts for none.
    fn together(&self, channel: &Channel, random: &mut Random) -> Result<(), Wrong> {
        let (one, two) = (self.descriptor(random), self.descriptor(random));
        let say = |what: &str, call: RateLimitRequest, expected: Vec<Brief>| {
            let code = expected.iter().map(|status| status.0).max_by_key(|code| *code as i32);
            let answer = self.runtime.block_on(ask(channel.clone(), call))?;
            same(what, briefs(&answer)?, (code.unwrap_or_default(), expected))
        };
        let took = u32::try_from(USES - 1).expect("a few");
        say("several hits", Self::call(&[&one], took), vec![left(1)])?;
        say("two that fit", Self::call(&[&one, &two], 1), vec![left(0), left(USES - 1)])?;
        say("one that is over", Self::call(&[&two, &one], 1), vec![left(USES - 1), over()])?;
        let mut look = two.clone();
        look.hits_addend = Some(0);
        say("a look", Self::call(&[&look], 0), vec![left(USES - 1)])?;
        look.hits_addend = Some(1);
        look.is_negative_hits = true;
        say("a refund", Self::call(&[&look], 0), vec![(Code::Ok, 0, None)])?;
        say("what is left", Self::call(&[&two], took), vec![left(1)])
    }

    fn health(&self, channel: &Channel) -> Result<(), Wrong> {
        let request = HealthCheckRequest { service: "ratelimit".to_owned() };
        let mut client = HealthClient::new(channel.clone());
        let answer = self.runtime.block_on(in_time("health", client.check(request)))?;
        same("health", answer.into_inner().status(), ServingStatus::Serving)
    }
}

impl Canary for Calls {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        let channel = self.channel()?;
        match random.below(7) {
            0 => self.health(&channel),
            1 | 2 => self.at_once(&channel, random),
            3 | 4 => self.together(&channel, random),
            _ => self.in_order(&channel, random),
        }
    }
}
