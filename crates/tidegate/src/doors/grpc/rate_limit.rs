//! The rate limit service: asks the limiter for the descriptors of a call, in one of two ways.
//!
//! All or nothing: one request with all keys. As envoyproxy/ratelimit counts: each descriptor is a
//! request of its own, and counts even if it is refused.

use std::future::poll_fn;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Now;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code;
use tidegate_envoy::proto::ratelimit::rate_limit_service_server::RateLimitService;
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

use super::answer;
use super::asked::{AskedCall, AskedDescriptor, Hits, Refusal};
use super::config::Counting;
use super::settings::GrpcState;
use super::statuses::DescriptorVerdict;
use crate::doors::Gate;
use crate::limiter::{self, Decision, InvalidRequest, Key, KeyOp, LimiterHandle, Rows};
use crate::metrics::Door;

/// The verdicts on the descriptors of a call, in their order.
type Verdicts = SmallVec<[DescriptorVerdict; 4]>;

/// The service behind all connections of the door.
pub(super) struct RateLimits {
    limiter: LimiterHandle,
    state: Arc<GrpcState>,
}

impl RateLimits {
    pub(super) fn new(gate: &Gate) -> Self {
        Self { limiter: gate.limiter.handle(Door::Grpc), state: GrpcState::of(gate) }
    }

    async fn decide(&self, call: &RateLimitRequest) -> Result<RateLimitResponse, Refusal> {
        let asked = AskedCall::read(call)?;
        let settings = self.state.answers.load_full();
        let verdicts = match settings.counting(&call.domain) {
            Counting::AllOrNothing => self.decide_together(&asked).await?,
            Counting::Envoy => self.decide_each(&asked).await?,
        };
        Ok(answer::response(call, &asked, verdicts, &settings))
    }

    /// Takes from all keys or from none. What is given back is given back in any case.
    async fn decide_together(&self, asked: &AskedCall) -> Result<Verdicts, Refusal> {
        let now = self.limiter.now();
        let mut keys: SmallVec<[Key<'_>; 4]> = SmallVec::new();
        // Which key of the limiter's request a descriptor is.
        let mut places: SmallVec<[Option<usize>; 4]> = SmallVec::new();
        for descriptor in &asked.descriptors {
            let key = asked.key(descriptor);
            let place = match descriptor.hits {
                Hits::GiveBack(hits) => {
                    self.give_back(key, hits, now)?;
                    None
                }
                hits => {
                    let op = match hits {
                        Hits::Take(hits) => KeyOp::Take(hits),
                        _ => KeyOp::Peek(1),
                    };
                    // The same descriptor twice is counted once.
                    match keys.iter().position(|other| other.bytes == key) {
                        Some(before) => {
                            if let KeyOp::Peek(_) = keys[before].op {
                                keys[before].op = op;
                            }
                            Some(before)
                        }
                        None => {
                            keys.push(Key::new(key, op));
                            Some(keys.len() - 1)
                        }
                    }
                }
            };
            places.push(place);
        }
        let rows = match keys.is_empty() {
            true => Rows::default(),
            false => self.ask(&keys, now)?.rows().await,
        };
        let verdict = |(descriptor, place): (&AskedDescriptor, &Option<usize>)| match place {
            None => DescriptorVerdict::bare(Code::Ok),
            Some(place) => {
                let rows = rows.limits.iter().filter(|row| row.key == *place);
                DescriptorVerdict::of(rows, descriptor.hits, Counting::AllOrNothing)
            }
        };
        Ok(asked.descriptors.iter().zip(&places).map(verdict).collect())
    }

    /// Decides on each descriptor by itself.
    async fn decide_each(&self, asked: &AskedCall) -> Result<Verdicts, Refusal> {
        let now = self.limiter.now();
        let mut asking: SmallVec<[Option<Asking>; 4]> = SmallVec::new();
        for descriptor in &asked.descriptors {
            let key = asked.key(descriptor);
            asking.push(match descriptor.hits {
                Hits::Look => Some(self.ask(&[Key::peek(key, 1)], now)?),
                Hits::Take(hits) => {
                    Some(self.ask(&[Key::new(key, KeyOp::TakeOrRecord(hits))], now)?)
                }
                Hits::GiveBack(hits) => {
                    self.give_back(key, hits, now)?;
                    None
                }
            });
        }
        let mut verdicts = Verdicts::new();
        for (descriptor, asking) in asked.descriptors.iter().zip(asking) {
            verdicts.push(match asking {
                None => DescriptorVerdict::bare(Code::Ok),
                Some(asking) => {
                    let rows = asking.rows().await;
                    DescriptorVerdict::of(rows.limits.iter(), descriptor.hits, Counting::Envoy)
                }
            });
        }
        Ok(verdicts)
    }

    /// Asks the limiter; a remote store's answer is waited for by the future.
    fn ask(&self, keys: &[Key<'_>], now: Now) -> Result<Asking, Refusal> {
        let mut rows = Rows::default();
        let request = limiter::Request::all_or_nothing(keys);
        let (decision, _) =
            self.limiter.decide_or_refuse(&request, now, Some(&mut rows)).map_err(invalid)?;
        Ok(match decision {
            Decision::Ready(_) => Asking::Answered(rows),
            Decision::Pending(pending) => Asking::Pending(pending, now),
        })
    }

    fn give_back(&self, key: &[u8], hits: u64, now: Now) -> Result<(), Refusal> {
        let refund = KeyOp::Refund { cost: hits, taken: now, in_flight: false };
        let keys = [Key::new(key, refund)];
        let request = limiter::Request::all_or_nothing(&keys);
        match self.limiter.decide(&request, now, None).map_err(invalid)? {
            Decision::Ready(_) => {}
            // The store gets it when it can. The client does not wait for that.
            Decision::Pending(pending) => pending.forget(),
        }
        Ok(())
    }
}

/// A request to the limiter on its way.
enum Asking {
    Answered(Rows),
    Pending(limiter::PendingVerdict, Now),
}

impl Asking {
    /// What each limit said.
    async fn rows(self) -> Rows {
        match self {
            Self::Answered(rows) => rows,
            Self::Pending(mut pending, now) => {
                poll_fn(|context| pending.poll_answer(now, context)).await.rows
            }
        }
    }
}

/// A request that the limiter cannot decide on, because of how rules and actions are set up.
fn invalid(why: InvalidRequest) -> Refusal {
    Refusal::invalid(why.reason(), why.to_string())
}

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        match self.decide(request.get_ref()).await {
            Ok(response) => Ok(Response::new(response)),
            Err(Refusal { reason, status }) => {
                self.limiter.limiter().metrics().bad_input(Door::Grpc, reason);
                Err(status)
            }
        }
    }
}
