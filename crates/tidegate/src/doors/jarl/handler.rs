//! From callers to their answers, without a socket: book, encode.
//!
//! The door's loops, the golden vectors and the allocation test all go through
//! [`JarlHandler::book`]. A caller that connects is answered at once and asked nothing; where
//! bookings lie in a remote store, it is answered when that has answered.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Now;
use tidegate_core::time::{MILLISECOND, SECOND};
use tidegate_wire::jarl::{self as wire, ANSWER_BYTES_MAX, Rounding};

use super::config;
use crate::doors::io::handler::{ConnectionId, Context, Handler, Linger, Policy, Progress};
use crate::doors::io::inbox::{InboxOf, LoopInbox};
use crate::doors::io::listener::Peer;
use crate::doors::io::pushes::Pushes;
use crate::limiter::{Decision, InvalidRequest, Key, LimiterHandle, Verdict};
use crate::metrics::Door;

/// Callers that are booked together without an allocation.
const BATCH: usize = 64;
/// How long an answered caller may stay.
pub(super) const LINGER_MAX: u64 = SECOND;

/// The callers of one service in one loop.
pub struct JarlHandler {
    limiter: LimiterHandle,
    key: Box<[u8]>,
    /// Where the remote store's answers go.
    inbox: Arc<InboxOf<Self>>,
    /// What was decided for callers that are yet to be answered, the first of them last.
    decisions: Vec<Result<Decision, InvalidRequest>>,
}

impl JarlHandler {
    /// For the callers of `service`, without a loop.
    ///
    /// # Errors
    /// If the system has no eventfd.
    pub fn new(limiter: LimiterHandle, service: &str) -> io::Result<Self> {
        Ok(Self::of_key(limiter, config::key(service).into(), LoopInbox::new()?))
    }

    pub(super) fn of_key(
        limiter: LimiterHandle,
        key: Box<[u8]>,
        inbox: Arc<InboxOf<Self>>,
    ) -> Self {
        Self { limiter, key, inbox, decisions: Vec::new() }
    }

    /// Books `calls` at `now`.
    fn book(&mut self, calls: usize, now: Now) {
        let call = Key::take(&self.key, 1);
        let calls: SmallVec<[Key<'_>; BATCH]> = std::iter::repeat_n(call, calls).collect();
        self.limiter.decide_batch(&calls, now, &mut self.decisions);
        self.decisions.reverse();
    }

    /// Books `calls` at `now` in memory, and calls `tell` with each caller's answer, in order.
    ///
    /// # Errors
    /// If the rule of the service is one that this door cannot ask: nothing is booked.
    pub fn answer(
        &mut self,
        calls: usize,
        now: Now,
        mut tell: impl FnMut(&[u8]),
    ) -> Result<(), InvalidRequest> {
        self.book(calls, now);
        while let Some(decided) = self.decisions.pop() {
            if let Some(verdict) = decided?.ready() {
                tell(encode(&mut [0; ANSWER_BYTES_MAX], &verdict));
            }
        }
        Ok(())
    }
}

impl Handler for JarlHandler {
    type Session = ();
    type Message = Infallible;
    type Answer = Verdict;

    const DOOR: Door = Door::Jarl;
    const POLICY: Policy = Policy {
        brief: true,
        reads_on: false,
        refusal: b"",
        output_bytes: ANSWER_BYTES_MAX,
        push_bytes_max: 0,
        // The store has a say of its own in how long answers take; this is for one whose time is
        // set very long.
        drain_max: 3 * SECOND,
        linger: Linger {
            span: LINGER_MAX,
            span_at_end: 250 * MILLISECOND,
            bytes_max: 16 << 20,
            slow: None,
            too_much: Some("too_much_input"),
        },
    };

    fn before_open(&mut self, count: usize, now: Now) {
        self.book(count, now);
    }

    #[inline]
    fn on_open(
        &mut self,
        _: Peer,
        output: &mut Vec<u8>,
        context: &Context,
    ) -> Result<((), Progress), &'static str> {
        match self.decisions.pop() {
            Some(Ok(Decision::Ready(verdict))) => {
                output.extend_from_slice(encode(&mut [0; ANSWER_BYTES_MAX], &verdict));
                Ok(((), Progress::Close))
            }
            Some(Ok(Decision::Pending(pending))) => {
                let (inbox, id): (_, ConnectionId) = (self.inbox.clone(), context.id);
                pending.0.forward(move |answered| inbox.answer(id, answered.verdict));
                Ok(((), Progress::Pending))
            }
            Some(Err(invalid)) => Err(invalid.reason()),
            None => Err("not_booked"),
        }
    }

    /// The protocol has no requests: what callers send is thrown away.
    fn on_bytes(
        &mut self,
        (): &mut (),
        input: &[u8],
        _: &mut Vec<u8>,
        _: &Context,
    ) -> (usize, Progress) {
        (input.len(), Progress::More)
    }

    fn on_answer(
        &mut self,
        (): &mut (),
        verdict: Verdict,
        output: &mut Vec<u8>,
        _: Now,
    ) -> Progress {
        output.extend_from_slice(encode(&mut [0; ANSWER_BYTES_MAX], &verdict));
        Progress::Close
    }

    fn on_message(&mut self, message: Infallible, _: &mut Pushes<'_, Self>) -> usize {
        match message {}
    }

    fn is_listening(&self, (): &()) -> bool {
        false
    }

    fn on_close(&mut self, (): ()) {}
}

#[inline]
fn encode<'a>(bytes: &'a mut [u8; ANSWER_BYTES_MAX], verdict: &Verdict) -> &'a [u8] {
    let rounding = if verdict.firm { Rounding::Up } else { Rounding::Nearest };
    wire::encode(bytes, verdict.delay, rounding)
}
