//! A call of the rate limit service: asks the limiter for its descriptors, in one of two ways.
//!
//! All or nothing: one request with all keys. As envoyproxy/ratelimit counts: each descriptor is a
//! request of its own, and counts even if it is refused.

use std::future::poll_fn;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Now;
use tidegate_envoy::proto::ratelimit::{RateLimitRequest, RateLimitResponse};
use tokio::task::JoinHandle;

use super::asked::{AskedCall, AskedDescriptor, Hits, Limited, Refusal, override_rule};
use super::settings::{Counting, EnvoyState, Manner};
use super::statuses::DescriptorVerdict;
use super::{answer, in_flight};
use crate::doors::Gate;
use crate::limiter::{self, Decision, InvalidRequest, Key, KeyOp, LimitRow, LimiterHandle, Rows};
use crate::metrics::Door;
use crate::uses::UsesInFlight;

/// The verdicts on the descriptors of a call, in their order.
type Verdicts = SmallVec<[DescriptorVerdict; 4]>;

/// What decides on the calls that come to a door.
pub(crate) struct RateLimits {
    door: Door,
    limiter: LimiterHandle,
    uses: Arc<UsesInFlight>,
    state: Arc<EnvoyState>,
}

impl RateLimits {
    /// For the calls of `door`.
    pub(crate) fn new(gate: &Gate, door: Door) -> Self {
        let (limiter, uses) = (gate.limiter.handle(door), gate.uses.clone());
        Self { door, limiter, uses, state: EnvoyState::of(gate) }
    }

    /// Decides on a call. What cannot be decided is counted as bad input.
    pub(crate) async fn decide(
        &self,
        call: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Refusal> {
        let decided = self.try_decide(call).await;
        if let Err(Refusal { reason, .. }) = &decided {
            self.limiter.limiter().metrics().bad_input(self.door, reason);
        }
        decided
    }

    async fn try_decide(&self, call: &RateLimitRequest) -> Result<RateLimitResponse, Refusal> {
        let settings = self.state.answers();
        let configuration = settings.configuration.as_deref();
        let mut asked = AskedCall::read(call, configuration)?;
        if !configuration.is_some_and(|configuration| configuration.has_domain(&call.domain)) {
            if settings.awaits_xds && !self.has_rule(&asked) {
                return Err(Refusal::not_configured());
            }
            self.settle_overrides(&mut asked, settings.overrides);
        }
        let manner = settings.manner(&call.domain);
        let verdicts = match manner.counting {
            Counting::AllOrNothing => self.decide_together(&asked, manner).await?,
            Counting::Envoy => self.decide_each(&asked, manner).await?,
        };
        let is_over = answer::is_over(&verdicts);
        if settings.erl_metrics {
            self.state.statistics.count(call, &asked, &verdicts, configuration);
            if is_over && settings.shadow {
                self.state.statistics.count_global_shadow();
            }
        }
        let is_over = is_over && !settings.shadow;
        Ok(answer::response(call, &asked, verdicts, is_over, &settings))
    }

    /// Whether a rule of the file is for one of the keys.
    fn has_rule(&self, asked: &AskedCall<'_>) -> bool {
        let rules = self.limiter.limiter().rules();
        asked.descriptors.iter().any(|it| rules.find_matching(asked.key(it)).is_some())
    }

    /// A limit of a descriptor holds in place of a rule: where no rule is, it does not hold. If it
    /// cannot be counted, the rule decides.
    fn settle_overrides(&self, asked: &mut AskedCall<'_>, are_counted: bool) {
        let is_override = |it: &AskedDescriptor<'_>| matches!(it.limited, Limited::Override(..));
        if !asked.descriptors.iter().any(is_override) {
            return;
        }
        let rules = self.limiter.limiter().rules();
        for at in 0..asked.descriptors.len() {
            let descriptor = &asked.descriptors[at];
            if !is_override(descriptor) {
                continue;
            }
            let has_rule = rules.find_matching(asked.key(descriptor)).is_some();
            match (has_rule, are_counted) {
                (true, true) => {}
                (true, false) => asked.descriptors[at].limited = Limited::ByRule,
                (false, _) => asked.descriptors[at].limited = Limited::Nothing,
            }
        }
    }

    /// Takes from all keys or from none. What is given back is given back in any case.
    async fn decide_together(
        &self,
        asked: &AskedCall<'_>,
        manner: Manner,
    ) -> Result<Verdicts, Refusal> {
        let now = self.limiter.now();
        let mut keys: SmallVec<[Key<'_>; 4]> = SmallVec::new();
        // Which key of the limiter's request a descriptor is.
        let mut places: SmallVec<[Option<usize>; 4]> = SmallVec::new();
        for descriptor in &asked.descriptors {
            let op = match descriptor.hits {
                Hits::Look => KeyOp::Peek(1),
                Hits::Take(hits) => KeyOp::Take(hits),
                Hits::GiveBack(hits) => {
                    self.give_back(asked, descriptor, hits, now)?;
                    places.push(None);
                    continue;
                }
            };
            let Some(key) = limiter_key(asked, descriptor, op) else {
                places.push(None);
                continue;
            };
            // The same descriptor twice is counted once.
            let before = keys.iter().position(|other| other.bytes == key.bytes);
            let place = before.unwrap_or(keys.len());
            match before {
                None => keys.push(key),
                Some(before) if matches!(keys[before].op, KeyOp::Peek(_)) => keys[before] = key,
                Some(_) => {}
            }
            places.push(Some(place));
        }
        let rows = match (keys.is_empty(), manner.is_quota) {
            (true, _) => Rows::default(),
            (false, true) => self.take_each(&keys, now).await?,
            (false, false) => {
                if self.are_quotas_over(asked, manner, now).await? {
                    // The whole call is over, so nothing of it is counted.
                    keys.iter_mut().for_each(|key| key.op = KeyOp::Peek(key.op.cost()));
                }
                self.ask(&limiter::Request::all_or_nothing(&keys), now)?.rows().await
            }
        };
        let verdict = |(descriptor, place): (&AskedDescriptor<'_>, &Option<usize>)| {
            let rows = rows.limits.iter().filter(|row| Some(row.key) == *place);
            DescriptorVerdict::of(descriptor, rows, manner)
        };
        Ok(asked.descriptors.iter().zip(&places).map(verdict).collect())
    }

    /// Where all are quotas, those that are over are skipped: if all are, nothing is counted.
    async fn take_each(&self, keys: &[Key<'_>], now: Now) -> Result<Rows, Refusal> {
        let ask = |key: &Key<'_>| self.ask(&limiter::Request::all_or_nothing(&[*key]), now);
        let asking = keys.iter().map(ask).collect::<Result<SmallVec<[Asking; 4]>, _>>()?;
        let mut all = Rows::default();
        for (key, asking) in asking.into_iter().enumerate() {
            let rows = asking.rows().await;
            all.limits.extend(rows.limits.into_iter().map(|row| LimitRow { key, ..row }));
        }
        Ok(all)
    }

    /// Whether there are descriptors with quotas, and all of them are over.
    async fn are_quotas_over(
        &self,
        asked: &AskedCall<'_>,
        manner: Manner,
        now: Now,
    ) -> Result<bool, Refusal> {
        let is_quota = |descriptor: &&AskedDescriptor<'_>| match descriptor.limited {
            Limited::Configured(rule) => rule.quota,
            _ => false,
        };
        let mut are_over = false;
        for descriptor in asked.descriptors.iter().filter(is_quota) {
            let Hits::Take(hits) = descriptor.hits else { return Ok(false) };
            let Some(key) = limiter_key(asked, descriptor, KeyOp::Peek(hits)) else {
                return Ok(false);
            };
            let rows = self.ask(&limiter::Request::all_or_nothing(&[key]), now)?.rows().await;
            if !DescriptorVerdict::of(descriptor, rows.limits.iter(), manner).is_over {
                return Ok(false);
            }
            are_over = true;
        }
        Ok(are_over)
    }

    /// Decides on each descriptor by itself.
    async fn decide_each(
        &self,
        asked: &AskedCall<'_>,
        manner: Manner,
    ) -> Result<Verdicts, Refusal> {
        let now = self.limiter.now();
        let mut asking: SmallVec<[Option<Asking>; 4]> = SmallVec::new();
        for descriptor in &asked.descriptors {
            let op = match descriptor.hits {
                Hits::Look => KeyOp::Peek(1),
                Hits::Take(hits) => KeyOp::TakeOrRecord(hits),
                Hits::GiveBack(hits) => {
                    self.end_or_give_back(asked, descriptor, hits, now)?;
                    asking.push(None);
                    continue;
                }
            };
            let key = limiter_key(asked, descriptor, op);
            asking.push(key.map(|key| self.ask_and_hold(key, now)).transpose()?);
        }
        let mut verdicts = Verdicts::new();
        for (descriptor, asking) in asked.descriptors.iter().zip(asking) {
            let rows = match asking {
                None => Rows::default(),
                Some(asking) => asking.rows().await,
            };
            let rows = rows.limits.iter();
            verdicts.push(DescriptorVerdict::of(descriptor, rows, manner));
        }
        Ok(verdicts)
    }

    /// Asks the limiter; a remote store's answer is waited for by the future.
    fn ask(&self, request: &limiter::Request<'_>, now: Now) -> Result<Asking, Refusal> {
        let mut rows = Rows::default();
        let (decision, _) =
            self.limiter.decide_or_refuse(request, now, Some(&mut rows)).map_err(invalid)?;
        Ok(match decision {
            Decision::Ready(_) => Asking::Answered(rows),
            Decision::Pending(pending) => Asking::Pending(pending, now),
        })
    }

    /// Asks for one key, and remembers the use if it is one in flight: Envoy tells of its end, also
    /// if it was refused, or if the answer came too late.
    fn ask_and_hold(&self, key: Key<'_>, now: Now) -> Result<Asking, Refusal> {
        let asking = self.ask(&limiter::Request::all_or_nothing(&[key]).with_end(), now)?;
        let is_use = matches!(key.op, KeyOp::TakeOrRecord(_));
        Ok(match asking {
            Asking::Answered(mut rows) => {
                in_flight::hold(&self.uses, &key, &mut rows);
                Asking::Answered(rows)
            }
            Asking::Pending(pending, now) if is_use && self.limiter.is_in_flight(&key) => {
                Asking::Detached(in_flight::hold_answered(self.uses.clone(), &key, pending, now))
            }
            asking => asking,
        })
    }

    /// Ends uses of a key that limits them in flight, and gives back to any other.
    fn end_or_give_back(
        &self,
        asked: &AskedCall<'_>,
        descriptor: &AskedDescriptor<'_>,
        hits: u64,
        now: Now,
    ) -> Result<(), Refusal> {
        let key = limiter_key(asked, descriptor, KeyOp::Peek(1));
        if key.is_some_and(|key| self.limiter.is_in_flight(&key)) {
            self.uses.end_oldest(asked.key(descriptor), hits);
            return Ok(());
        }
        self.give_back(asked, descriptor, hits, now)
    }

    fn give_back(
        &self,
        asked: &AskedCall<'_>,
        descriptor: &AskedDescriptor<'_>,
        hits: u64,
        now: Now,
    ) -> Result<(), Refusal> {
        let refund = KeyOp::Refund { cost: hits, taken: now, in_flight: false };
        let Some(key) = limiter_key(asked, descriptor, refund) else { return Ok(()) };
        let keys = [key];
        let request = limiter::Request::all_or_nothing(&keys);
        match self.limiter.decide(&request, now, None).map_err(invalid)? {
            Decision::Ready(_) => {}
            // The store gets it when it can. The client does not wait for that.
            Decision::Pending(pending) => pending.forget(),
        }
        Ok(())
    }
}

/// A descriptor as the limiter knows it; `None` if there is nothing to count.
fn limiter_key<'a>(
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

/// A request to the limiter on its way.
enum Asking {
    Answered(Rows),
    Pending(limiter::PendingVerdict, Now),
    /// Waited for whether this call goes on or not.
    Detached(JoinHandle<Rows>),
}

impl Asking {
    /// What each limit said.
    async fn rows(self) -> Rows {
        match self {
            Self::Answered(rows) => rows,
            Self::Pending(mut pending, now) => {
                poll_fn(|context| pending.poll_answer(now, context)).await.rows
            }
            // The runtime ends with the process alone.
            Self::Detached(task) => task.await.unwrap_or_default(),
        }
    }
}

/// A request that the limiter cannot decide on, because of how rules and actions are set up.
fn invalid(why: InvalidRequest) -> Refusal {
    let text = match why {
        InvalidRequest::NeedsEnd => {
            "this key limits uses in flight: set counting = \"envoy\" for its domain, and let \
             Envoy end each use with is_negative_hits and apply_on_stream_done"
                .to_owned()
        }
        why => why.to_string(),
    };
    Refusal::invalid(why.reason(), text)
}
