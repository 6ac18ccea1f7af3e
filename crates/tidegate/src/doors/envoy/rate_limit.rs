//! Decides on a call of the rate limit service. It asks the limiter in one of two ways:
//!
//! - all or nothing ([`RateLimits::decide_together`], in `together`): one request with the keys of
//!   all descriptors;
//! - as envoyproxy/ratelimit counts ([`RateLimits::decide_each`]): one request for each descriptor,
//!   which is counted even if it is refused.

use std::future::poll_fn;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Now;
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};
use tokio::task::JoinHandle;

use super::asked::{AskedCall, AskedDescriptor, CallError, Hits, Limited, override_rule};
use super::settings::{Counting, DomainSettings, EnvoyState};
use super::statuses::DescriptorVerdict;
use super::{answer, in_flight};
use crate::doors::Gate;
use crate::limiter::{self, Decision, InvalidRequest, Key, KeyOp, LimiterHandle, Rows};
use crate::metrics::Door;
use crate::uses::UsesInFlight;

/// The verdicts on the descriptors of a call, in their order.
pub(super) type Verdicts = SmallVec<[DescriptorVerdict; 4]>;

/// Decides on the calls that come to one door.
pub(crate) struct RateLimits {
    door: Door,
    pub(super) limiter: LimiterHandle,
    uses: Arc<UsesInFlight>,
    state: Arc<EnvoyState>,
}

impl RateLimits {
    /// For the calls of `door`.
    pub(crate) fn new(gate: &Gate, door: Door) -> Self {
        let (limiter, uses) = (gate.limiter.handle(door), gate.uses.clone());
        Self { door, limiter, uses, state: EnvoyState::of(gate) }
    }

    /// Decides on a call. An error is counted as bad input of the door.
    pub(crate) async fn decide(
        &self,
        call: &RateLimitRequest,
    ) -> Result<RateLimitResponse, CallError> {
        let decided = self.try_decide(call).await;
        if let Err(CallError { reason, .. }) = &decided {
            self.limiter.limiter().metrics().bad_input(self.door, reason);
        }
        decided
    }

    async fn try_decide(&self, call: &RateLimitRequest) -> Result<RateLimitResponse, CallError> {
        let settings = self.state.settings();
        let configuration = settings.configuration.as_deref();
        let mut asked = AskedCall::read(call, configuration)?;
        if !configuration.is_some_and(|configuration| configuration.has_domain(&call.domain)) {
            if settings.awaits_xds && !self.has_rule(&asked) {
                return Err(CallError::not_configured());
            }
            self.settle_overrides(&mut asked, settings.overrides);
        }
        let domain = settings.of_domain(&call.domain);
        let verdicts = match domain.counting {
            Counting::AllOrNothing => {
                self.find_shared_rules(&mut asked);
                asked.join_same();
                self.decide_together(&asked, domain).await?
            }
            Counting::Envoy => self.decide_each(&asked, domain).await?,
        };
        let refusing = answer::refusing(verdicts.iter());
        if settings.erl_metrics {
            self.state.statistics.count(call, &asked, &verdicts, configuration);
            if refusing.is_some() && settings.shadow {
                self.state.statistics.count_global_shadow();
            }
        }
        let refusing = refusing.filter(|_| !settings.shadow);
        Ok(answer::response(call, &asked, verdicts, refusing, &settings))
    }

    /// Whether a rule of our own configuration matches one of the keys.
    fn has_rule(&self, asked: &AskedCall<'_>) -> bool {
        let rules = self.limiter.limiter().rules();
        asked.descriptors.iter().any(|it| rules.find_matching(asked.key(it)).is_some())
    }

    /// Drops overrides that are not obeyed: an override replaces a rule that matches the key, and
    /// without `are_counted` none does. The descriptor is then decided on as though it had brought
    /// none.
    fn settle_overrides(&self, asked: &mut AskedCall<'_>, are_counted: bool) {
        let is_override = |it: &AskedDescriptor<'_>| matches!(it.limited, Limited::Override(..));
        if !asked.descriptors.iter().any(is_override) {
            return;
        }
        let rules = self.limiter.limiter().rules();
        for at in 0..asked.descriptors.len() {
            let descriptor = &asked.descriptors[at];
            let is_obeyed = || are_counted && rules.find_matching(asked.key(descriptor)).is_some();
            if is_override(descriptor) && !is_obeyed() {
                asked.descriptors[at].limited = Limited::ByRule;
            }
        }
    }

    /// Finds descriptors whose rule has one count for all of its keys: they can be the same
    /// although their keys differ.
    fn find_shared_rules(&self, asked: &mut AskedCall<'_>) {
        if asked.descriptors.len() < 2 {
            return;
        }
        for at in 0..asked.descriptors.len() {
            if let Limited::ByRule = asked.descriptors[at].limited {
                let shared_rule = self.limiter.shared_rule(asked.key(&asked.descriptors[at]));
                asked.descriptors[at].shared_rule = shared_rule;
            }
        }
    }

    /// Decides on each descriptor by itself.
    async fn decide_each(
        &self,
        asked: &AskedCall<'_>,
        domain: DomainSettings,
    ) -> Result<Verdicts, CallError> {
        let now = self.limiter.now();
        let mut answers: SmallVec<[Option<LimiterAnswer>; 4]> = SmallVec::new();
        for descriptor in &asked.descriptors {
            let op = match descriptor.hits {
                Hits::Look => KeyOp::Peek(1),
                Hits::Take(hits) => KeyOp::TakeOrRecord(hits),
                Hits::GiveBack(hits) => {
                    self.end_or_give_back(asked, descriptor, hits, now).await?;
                    answers.push(None);
                    continue;
                }
            };
            let key = limiter_key(asked, descriptor, op);
            answers.push(key.map(|key| self.ask_and_hold(key, now)).transpose()?);
        }
        let mut verdicts = Verdicts::new();
        for (descriptor, answer) in asked.descriptors.iter().zip(answers) {
            let rows = match answer {
                None => Rows::default(),
                Some(answer) => answer.rows().await,
            };
            let rows = rows.limits.iter();
            verdicts.push(DescriptorVerdict::of(descriptor, rows, domain));
        }
        Ok(verdicts)
    }

    /// Asks the limiter. Where a remote store must answer first, [`LimiterAnswer::rows`] waits for
    /// it.
    pub(super) fn ask(
        &self,
        request: &limiter::Request<'_>,
        now: Now,
    ) -> Result<LimiterAnswer, CallError> {
        let mut rows = Rows::default();
        let (decision, _) =
            self.limiter.decide_or_refuse(request, now, Some(&mut rows)).map_err(invalid)?;
        Ok(match decision {
            Decision::Ready(_) => LimiterAnswer::Ready(rows),
            Decision::Pending(pending) => LimiterAnswer::Pending(pending, now),
        })
    }

    /// Asks for one key, and remembers the use if it is one in flight: Envoy reports its end even
    /// if the use was refused, or the answer came too late.
    fn ask_and_hold(&self, key: Key<'_>, now: Now) -> Result<LimiterAnswer, CallError> {
        let answer = self.ask(&limiter::Request::all_or_nothing(&[key]).with_end(), now)?;
        let is_use = matches!(key.op, KeyOp::TakeOrRecord(_));
        Ok(match answer {
            LimiterAnswer::Ready(mut rows) => {
                in_flight::hold(&self.uses, &key, &mut rows);
                LimiterAnswer::Ready(rows)
            }
            LimiterAnswer::Pending(pending, now) if is_use && self.limiter.is_in_flight(&key) => {
                LimiterAnswer::Detached(in_flight::hold_when_answered(
                    self.uses.clone(),
                    &key,
                    pending,
                    now,
                ))
            }
            answer => answer,
        })
    }

    /// Ends uses in flight if the key has such a limit; else gives uses back.
    async fn end_or_give_back(
        &self,
        asked: &AskedCall<'_>,
        descriptor: &AskedDescriptor<'_>,
        hits: u64,
        now: Now,
    ) -> Result<(), CallError> {
        let key = limiter_key(asked, descriptor, KeyOp::Peek(1));
        if key.is_some_and(|key| self.limiter.is_in_flight(&key)) {
            let mut left = hits;
            loop {
                left = self.uses.end_oldest(asked.key(descriptor), left);
                if left == 0 {
                    return Ok(());
                }
                tokio::task::yield_now().await;
            }
        }
        self.give_back(asked, descriptor, hits, now)
    }

    pub(super) fn give_back(
        &self,
        asked: &AskedCall<'_>,
        descriptor: &AskedDescriptor<'_>,
        hits: u64,
        now: Now,
    ) -> Result<(), CallError> {
        if hits == 0 {
            return Ok(());
        }
        let refund = KeyOp::Refund { cost: hits, taken: now, in_flight: false };
        let Some(key) = limiter_key(asked, descriptor, refund) else { return Ok(()) };
        let keys = [key];
        let request = limiter::Request::all_or_nothing(&keys);
        match self.limiter.decide(&request, now, None).map_err(invalid)? {
            Decision::Ready(_) => {}
            // The store is told when it can be. The client does not wait for that.
            Decision::Pending(pending) => pending.forget(),
        }
        Ok(())
    }
}

/// What to ask the limiter for a descriptor; `None` if there is nothing to count.
pub(super) fn limiter_key<'a>(
    asked: &'a AskedCall<'_>,
    descriptor: &'a AskedDescriptor<'_>,
    op: KeyOp,
) -> Option<Key<'a>> {
    let key = Key::new(asked.key(descriptor), op);
    match &descriptor.limited {
        Limited::ByRule => Some(key),
        Limited::Configured(rule) => rule.limit.map(|_| key.under(&rule.id, None)),
        Limited::Override(limit, unit) if limit.amount > 0 => {
            Some(key.under(override_rule(*unit), Some(limit)))
        }
        // An amount of 0 is always over.
        Limited::Override(..) | Limited::Nothing => None,
    }
}

/// What the limiter said, now or later.
pub(super) enum LimiterAnswer {
    Ready(Rows),
    Pending(limiter::PendingVerdict, Now),
    /// A task waits for the answer, even if the client has left.
    Detached(JoinHandle<Rows>),
}

impl LimiterAnswer {
    /// What each limit said.
    pub(super) async fn rows(self) -> Rows {
        match self {
            Self::Ready(rows) => rows,
            Self::Pending(mut pending, now) => {
                poll_fn(|context| pending.poll_answer(now, context)).await.rows
            }
            // A task ends without rows only when the process stops.
            Self::Detached(task) => task.await.unwrap_or_default(),
        }
    }
}

/// The error for a request that the limiter cannot decide on, because of how an operator has set up
/// rules and Envoy's actions.
fn invalid(why: InvalidRequest) -> CallError {
    let text = match why {
        InvalidRequest::NeedsEnd => {
            "this key limits uses in flight: set counting = \"envoy\" for its domain, and let \
             Envoy end each use with is_negative_hits and apply_on_stream_done"
                .to_owned()
        }
        why => why.to_string(),
    };
    CallError::invalid(why.reason(), text)
}
