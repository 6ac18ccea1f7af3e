//! What a call asks for: the key of each descriptor, and what is to be done with it.

use std::ops::Range;

use smallvec::SmallVec;
use tidegate_core::limit::AMOUNT_MAX;
use tidegate_envoy::config::write_key;
use tidegate_envoy::proto::descriptor::RateLimitDescriptor;
use tidegate_envoy::proto::ratelimit::RateLimitRequest;
use tonic::Status;

/// The most descriptors of one call, and the most entries of one descriptor.
const DESCRIPTORS_MAX: usize = crate::limiter::KEYS_MAX;
const ENTRIES_MAX: usize = 32;

/// A call whose keys are written.
pub(super) struct AskedCall {
    /// All keys, one behind the other.
    keys: Vec<u8>,
    pub(super) descriptors: SmallVec<[AskedDescriptor; 4]>,
}

/// One descriptor of a call.
#[derive(Clone)]
pub(super) struct AskedDescriptor {
    /// Where its key lies.
    key: Range<usize>,
    pub(super) hits: Hits,
}

/// What is to be done with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hits {
    /// Nothing is counted.
    Look,
    Take(u64),
    GiveBack(u64),
}

/// Why a call is answered with an error, and the reason that is counted. Only what an operator has
/// set up is an error: Envoy lets a request pass on any.
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) status: Status,
}

impl Refusal {
    fn unknown(reason: &'static str, text: &str) -> Self {
        Self { reason, status: Status::unknown(text) }
    }

    pub(super) fn invalid(reason: &'static str, text: impl Into<String>) -> Self {
        Self { reason, status: Status::invalid_argument(text) }
    }
}

impl AskedCall {
    /// Writes the keys of a call.
    pub(super) fn read(call: &RateLimitRequest) -> Result<Self, Refusal> {
        if call.domain.is_empty() {
            return Err(Refusal::unknown("no_domain", "rate limit domain must not be empty"));
        }
        if call.descriptors.is_empty() {
            let text = "rate limit descriptor list must not be empty";
            return Err(Refusal::unknown("no_descriptors", text));
        }
        if call.descriptors.len() > DESCRIPTORS_MAX {
            let text = format!("a call has at most {DESCRIPTORS_MAX} descriptors");
            return Err(Refusal::invalid("too_many_keys", text));
        }
        let mut asked = Self { keys: Vec::with_capacity(64), descriptors: SmallVec::new() };
        for descriptor in &call.descriptors {
            if descriptor.entries.len() > ENTRIES_MAX {
                let text = format!("a descriptor has at most {ENTRIES_MAX} entries");
                return Err(Refusal::invalid("too_many_entries", text));
            }
            let start = asked.keys.len();
            let entries = descriptor.entries.iter().map(|entry| (&entry.key[..], &entry.value[..]));
            write_key(&mut asked.keys, &call.domain, entries);
            let hits = Hits::of(descriptor, call.hits_addend);
            asked.descriptors.push(AskedDescriptor { key: start..asked.keys.len(), hits });
        }
        Ok(asked)
    }

    /// The key of a descriptor.
    pub(super) fn key(&self, descriptor: &AskedDescriptor) -> &[u8] {
        &self.keys[descriptor.key.clone()]
    }
}

impl Hits {
    fn of(descriptor: &RateLimitDescriptor, of_call: u32) -> Self {
        let hits = descriptor.hits_addend.unwrap_or(u64::from(of_call.max(1)));
        // More than any limit allows is too much, however much more.
        match hits.min(AMOUNT_MAX) {
            0 => Self::Look,
            hits if descriptor.is_negative_hits => Self::GiveBack(hits),
            hits => Self::Take(hits),
        }
    }
}
