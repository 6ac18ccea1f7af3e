//! Decides on all descriptors of a call together: it takes from the counts of all or of none, and
//! passes over those that are over their limit and do not refuse the call.

use smallvec::SmallVec;
use tidegate_core::Now;

use super::answer;
use super::asked::{AskedCall, AskedDescriptor, CallError, Hits, Limited};
use super::rate_limit::{LimiterAnswer, RateLimits, Verdicts, limiter_key};
use super::settings::DomainSettings;
use super::statuses::DescriptorVerdict;
use crate::limiter::{Key, KeyOp, LimitRow, Request, Rows};

/// Verdicts that were made before anything is taken, each with the place of its descriptor.
type Looks = SmallVec<[(usize, DescriptorVerdict); 2]>;

/// What is asked of the limiter: one key for each count.
#[derive(Default)]
struct Counts<'a> {
    keys: SmallVec<[Key<'a>; 4]>,
    /// Of each count the descriptor whose limit is asked for.
    owners: SmallVec<[usize; 4]>,
    /// Of each descriptor the place of its count, if it has one.
    places: SmallVec<[Option<usize>; 4]>,
}

impl RateLimits {
    /// Takes from the counts of all descriptors, or of none. What a descriptor gives back is given
    /// back even if the call is refused.
    pub(super) async fn decide_together(
        &self,
        asked: &AskedCall<'_>,
        domain: DomainSettings,
    ) -> Result<Verdicts, CallError> {
        let now = self.limiter.now();
        for descriptor in &asked.descriptors {
            if let Hits::GiveBack(hits) = descriptor.hits {
                self.give_back(asked, descriptor, hits, now)?;
            }
        }
        let mut counts = Counts::of(asked, domain);
        let looks = self.look_before(asked, &counts, domain, now).await?;
        let takes_each = domain.skips_what_is_over();
        let refusing = answer::refusing(looks.iter().map(|(_, verdict)| verdict));
        let is_refused = !takes_each && refusing.is_some();
        if is_refused {
            // Nothing of the call is counted.
            counts.keys.iter_mut().for_each(|key| key.op = KeyOp::Peek(key.op.cost()));
        }
        let rows = match (counts.keys.is_empty(), takes_each) {
            (true, _) => Rows::default(),
            (false, true) => self.take_each(&counts.keys, now).await?,
            (false, false) => self.ask(&Request::all_or_nothing(&counts.keys), now)?.rows().await,
        };
        let verdict = |(descriptor, place): (&AskedDescriptor<'_>, &Option<usize>)| {
            let rows = rows.limits.iter().filter(|row| Some(row.key) == *place);
            DescriptorVerdict::of(descriptor, rows, domain)
        };
        let mut verdicts: Verdicts =
            asked.descriptors.iter().zip(&counts.places).map(verdict).collect();
        let is_counted = !is_refused && (takes_each || answer::refusing(verdicts.iter()).is_none());
        for (at, mut verdict) in looks {
            let Some(owner) = counts.other_owner(asked, at) else { continue };
            let owner = &verdicts[owner];
            if is_counted && !owner.is_over {
                verdict.count_with(&asked.descriptors[at], owner);
            }
            verdicts[at] = verdict;
        }
        Ok(verdicts)
    }

    /// Takes from each key by itself: one that is over counts nothing, and does not keep the others
    /// from counting.
    async fn take_each(&self, keys: &[Key<'_>], now: Now) -> Result<Rows, CallError> {
        let ask = |key: &Key<'_>| self.ask(&Request::all_or_nothing(&[*key]), now);
        let answers = keys.iter().map(ask).collect::<Result<SmallVec<[LimiterAnswer; 4]>, _>>()?;
        let mut all = Rows::default();
        for (key, answer) in answers.into_iter().enumerate() {
            let rows = answer.rows().await;
            all.limits.extend(rows.limits.into_iter().map(|row| LimitRow { key, ..row }));
        }
        Ok(all)
    }

    /// Looks, before anything is taken, at what the limiter does not decide when it takes: limits
    /// of 0, limits beside another one of the same count, and quotas, which refuse the call if all
    /// of them are over.
    async fn look_before(
        &self,
        asked: &AskedCall<'_>,
        counts: &Counts<'_>,
        domain: DomainSettings,
        now: Now,
    ) -> Result<Looks, CallError> {
        let mut answers: SmallVec<[(usize, Option<LimiterAnswer>); 2]> = SmallVec::new();
        for (at, descriptor) in asked.descriptors.iter().enumerate() {
            let is_apart = match descriptor.limited {
                Limited::Configured(rule) => rule.quota && !domain.skips_what_is_over(),
                Limited::Override(limit, _) => {
                    limit.amount == 0 || counts.other_owner(asked, at).is_some()
                }
                Limited::ByRule | Limited::Nothing => false,
            };
            let op = match descriptor.hits {
                Hits::Look => KeyOp::Peek(1),
                Hits::Take(hits) => KeyOp::Peek(hits),
                Hits::GiveBack(_) => continue,
            };
            if is_apart {
                let key = limiter_key(asked, descriptor, op);
                let ask = |key| self.ask(&Request::all_or_nothing(&[key]), now);
                answers.push((at, key.map(ask).transpose()?));
            }
        }
        let mut looks = Looks::new();
        for (at, answer) in answers {
            let rows = match answer {
                None => Rows::default(),
                Some(answer) => answer.rows().await,
            };
            let rows = rows.limits.iter();
            looks.push((at, DescriptorVerdict::of(&asked.descriptors[at], rows, domain)));
        }
        Ok(looks)
    }
}

impl<'a> Counts<'a> {
    /// The counts of a call. Descriptors that are the same are one use of one count. If they have
    /// brought limits that differ, the one is asked for that decides whether it is counted: the
    /// smallest if each of them refuses the call, else the largest.
    fn of(asked: &'a AskedCall<'_>, domain: DomainSettings) -> Self {
        let mut counts = Self::default();
        for (at, descriptor) in asked.descriptors.iter().enumerate() {
            let op = match descriptor.hits {
                Hits::Look => Some(KeyOp::Peek(1)),
                Hits::Take(hits) => Some(KeyOp::Take(hits)),
                Hits::GiveBack(_) => None,
            };
            let Some(key) = op.and_then(|op| limiter_key(asked, descriptor, op)) else {
                counts.places.push(None);
                continue;
            };
            let is_same = |owner: &usize| asked.are_same(&asked.descriptors[*owner], descriptor);
            let place = counts.owners.iter().position(is_same);
            counts.places.push(Some(place.unwrap_or(counts.keys.len())));
            match place {
                None => {
                    counts.keys.push(key);
                    counts.owners.push(at);
                }
                Some(place) => {
                    let amount = |at: usize| {
                        asked.descriptors[at].limited.given().map_or(0, |limit| limit.amount)
                    };
                    let (one, other) = (amount(counts.owners[place]), amount(at));
                    let decides =
                        if domain.skips_what_is_over() { one < other } else { other < one };
                    if decides {
                        (counts.keys[place], counts.owners[place]) = (key, at);
                    }
                }
            }
        }
        counts
    }

    /// The descriptor whose limit is asked for in place of that which this one has brought.
    fn other_owner(&self, asked: &AskedCall<'_>, at: usize) -> Option<usize> {
        let owner = self.owners[self.places[at]?];
        let limit = |at: usize| asked.descriptors[at].limited.given();
        (limit(owner) != limit(at)).then_some(owner)
    }
}
