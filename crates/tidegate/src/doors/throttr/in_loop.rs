//! The protocol as an event loop drives it: sessions, events from other loops, listings that are
//! written in the background, and slow readers.

use std::sync::Arc;

use tidegate_core::time::SECOND;
use tidegate_core::{Nanos, Now};
use tidegate_wire::throttr::reply;

use super::background::{Answer, Job};
use super::channels::Event;
use super::counts::Figure;
use super::handler::{OUTPUT_BYTES_MAX, Pause, ThrottrHandler};
use super::session::{Listing, Session};
use crate::doors::io::handler::{Context, Handler, Linger, Policy, Progress, SlowReader};
use crate::doors::io::listener::Peer;
use crate::doors::io::pushes::{Pushed, Pushes};
use crate::metrics::Door;

/// The most bytes of events that wait for a connection, unless a single one is longer.
const EVENT_BYTES_MAX: usize = 256 << 10;
/// How long a client may leave a listing unread.
const LISTING_STALL_MAX: Nanos = 30 * SECOND;
/// The same while other connections wait for one.
const LISTING_STALL_WANTED_MAX: Nanos = SECOND;
/// How slowly a client may read a listing.
const LISTING_BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// How long a client that was told to go may take to read what it was sent.
pub(super) const LINGER_MAX: Nanos = 2 * SECOND;

impl Handler for ThrottrHandler {
    type Session = Session;
    type Message = Arc<Event>;
    type Answer = Answer;

    const DOOR: Door = Door::Throttr;
    const POLICY: Policy = Policy {
        brief: false,
        reads_on: false,
        refusal: b"",
        output_bytes: OUTPUT_BYTES_MAX,
        push_bytes_max: EVENT_BYTES_MAX,
        drain_max: 30 * SECOND,
        linger: Linger {
            span: LINGER_MAX,
            span_at_end: 0,
            bytes_max: 1 << 20,
            slow: Some("slow_to_leave"),
            too_much: None,
        },
    };

    fn on_open(
        &mut self,
        peer: Peer,
        _: &mut Vec<u8>,
        context: &Context,
    ) -> Result<(Session, Progress), &'static str> {
        let slot = context.id.slot;
        match Session::open(peer, slot, &self.state, &mut self.local, context.now) {
            Ok(session) => Ok((session, Progress::More)),
            Err(error) => {
                tracing::error!(%error, "throttr: the system has no randomness for an id");
                Err("no_randomness")
            }
        }
    }

    #[inline]
    fn on_bytes(
        &mut self,
        session: &mut Session,
        input: &[u8],
        output: &mut Vec<u8>,
        context: &Context,
    ) -> (usize, Progress) {
        if context.fresh_bytes > 0 {
            session.stats.has_read(context.fresh_bytes);
            self.lane.add(Figure::Read, context.fresh_bytes as u64);
        }
        let (taken, pause) = self.execute(session, input, context.now, output);
        let progress = match pause {
            Pause::Starved => Progress::More,
            Pause::Full | Pause::Flush => Progress::Flush,
            Pause::Broken => Progress::Close,
            Pause::Ask(question) => {
                let taken = self.state.background.run(Job {
                    question,
                    from: context.id,
                    size: self.size,
                    state: self.state.clone(),
                    records: self.records.clone(),
                    inbox: self.local.inbox.clone(),
                });
                if taken { Progress::Pending } else { Progress::Close }
            }
        };
        (taken, progress)
    }

    fn on_answer(
        &mut self,
        session: &mut Session,
        answer: Answer,
        output: &mut Vec<u8>,
        now: Now,
    ) -> Progress {
        let Answer { bytes, permit } = answer;
        session.listing = Some(Listing { permit, answered_at: now.mono });
        if output.is_empty() {
            *output = bytes;
        } else {
            output.extend_from_slice(&bytes);
        }
        Progress::More
    }

    /// Hands an event to the subscribers in this loop.
    fn on_message(&mut self, event: Arc<Event>, pushes: &mut Pushes<'_, Self>) -> usize {
        self.encoded.clear();
        let encoded = &mut self.encoded;
        let fits = reply::event(encoded, self.size, &event.name, &event.payload).is_ok();
        let (mut delivered, mut lost) = (0, 0);
        for (slot, member) in self.local.audience(&event) {
            match if fits { pushes.push(slot, encoded) } else { Pushed::Full } {
                Pushed::Gone => {}
                Pushed::Full => lost += 1,
                Pushed::Closing => delivered += 1,
                Pushed::Taken => {
                    event.got_by(member);
                    delivered += 1;
                }
            }
        }
        self.lane.add(Figure::Delivered, delivered);
        self.lane.add(Figure::Lost, lost);
        (delivered + lost) as usize
    }

    #[inline]
    fn on_written(&mut self, session: &mut Session, bytes: usize, all: bool) {
        session.stats.has_written(bytes);
        self.lane.add(Figure::Written, bytes as u64);
        if all {
            session.listing = None;
        }
    }

    #[inline]
    fn on_buffers(&mut self, session: &Session, allocated: usize, used: usize) {
        session.stats.holds(allocated, used);
    }

    #[inline]
    fn is_listening(&self, session: &Session) -> bool {
        session.has_chosen()
    }

    /// A listing takes memory that others wait for, so it must be read sooner than replies.
    fn is_too_slow(&self, session: &Session, reader: &SlowReader) -> bool {
        let SlowReader { now, stalled, idle_max } = *reader;
        let Some(Listing { permit, answered_at }) = &session.listing else {
            return stalled > idle_max;
        };
        let stall_max =
            if permit.is_wanted() { LISTING_STALL_WANTED_MAX } else { LISTING_STALL_MAX };
        let reading_max = permit.bytes() as u64 * SECOND / LISTING_BYTES_PER_SECOND_MIN;
        stalled > stall_max.min(idle_max)
            || now.saturating_sub(*answered_at) > stall_max + reading_max
    }

    fn on_close(&mut self, session: Session) {
        session.close(&self.state, &mut self.local);
    }

    fn on_end(&mut self) {
        self.state.leave_lane(self.lane.clone());
    }
}
