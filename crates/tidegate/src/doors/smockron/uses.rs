//! The uses of one batch of messages: their keys lie in one buffer, which is used again.

use smallvec::SmallVec;
use tidegate_core::key::{KeyBuilder, KeyTooLong};
use tidegate_core::time::{MINUTE, SECOND};
use tidegate_core::{Nanos, Now};

use crate::limiter::{Key, KeyOp};

/// How old a use may be, and how far ahead of the master's a gatekeeper's time.
const OLDEST: Nanos = MINUTE;
const AHEAD: Nanos = 5 * SECOND;
/// How many uses are recorded in one call: their keys fit the stack.
const GROUP: usize = 64;

/// Uses that have happened, in the order of their messages.
#[derive(Default)]
pub(super) struct RecordedUses {
    /// The keys, back to back.
    keys: Vec<u8>,
    uses: Vec<Use>,
}

struct Use {
    /// Where its key ends; it begins where the one before ends.
    key_end: usize,
    record: KeyOp,
    message: usize,
}

impl RecordedUses {
    /// Forgets the last batch.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.uses.clear();
    }

    /// Adds a use of the key `<domain> <identifier>` that a message tells of.
    ///
    /// # Errors
    /// If the key is too long: nothing is added.
    #[inline]
    pub(super) fn add(
        &mut self,
        domain: &[u8],
        identifier: &[u8],
        record: KeyOp,
        message: usize,
    ) -> Result<(), KeyTooLong> {
        KeyBuilder::behind(&mut self.keys, domain).word(identifier).finish()?;
        self.uses.push(Use { key_end: self.keys.len(), record, message });
        Ok(())
    }

    /// The uses in groups: the keys of each, and the numbers of their messages.
    pub(super) fn groups(
        &self,
    ) -> impl Iterator<Item = (SmallVec<[Key<'_>; GROUP]>, impl Iterator<Item = usize>)> {
        let mut start = 0;
        self.uses.chunks(GROUP).map(move |group| {
            let keys = group.iter().map(|one| {
                let key = &self.keys[start..one.key_end];
                start = one.key_end;
                Key::new(key, one.record)
            });
            (keys.collect(), group.iter().map(|one| one.message))
        })
    }
}

/// The record of a use that was asked for at `received_ns` and made at `used_ns`, on the clock that
/// limits decide by; nothing, if it is too old to be counted. A time too far ahead is not believed.
#[inline]
pub(super) fn record(received_ns: u64, used_ns: u64, ahead_max: Nanos, now: Now) -> Option<KeyOp> {
    let oldest = now.unix.saturating_sub(OLDEST);
    if used_ns < oldest {
        return None;
    }
    let latest = now.unix.saturating_add(AHEAD).saturating_add(ahead_max);
    let used_ns = used_ns.min(latest);
    let at = match used_ns.checked_sub(now.unix) {
        Some(ahead) => now.mono.saturating_add(ahead),
        None => now.mono.saturating_sub(now.unix - used_ns),
    };
    // A gatekeeper tells when it gets a request, or after a long delay when that is over.
    let told_ns = if received_ns < oldest { used_ns } else { received_ns };
    Some(KeyOp::Record { cost: 1, at, late: now.unix.saturating_sub(told_ns) })
}
