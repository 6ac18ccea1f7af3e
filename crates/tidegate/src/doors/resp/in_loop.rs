//! The protocol as an event loop drives it: sessions, replies that come later, and clients that
//! leave replies unread.

use std::convert::Infallible;

use tidegate_core::time::{MINUTE, SECOND};
use tidegate_core::{Nanos, Now};

use super::handler::{OUTPUT_BYTES_MAX, RespHandler};
use super::pending::LateReply;
use super::session::Session;
use super::state::{KEPT_BYTES_ALWAYS, KEPT_BYTES_MAX};
use crate::doors::io::handler::{Context, Handler, Linger, Policy, Progress, SlowReader};
use crate::doors::io::listener::Peer;
use crate::doors::io::pushes::Pushes;
use crate::metrics::Door;

/// A client that leaves replies unread, and sends nothing either, is closed after this time.
const UNREAD_MAX: Nanos = 10 * MINUTE;

impl Handler for RespHandler {
    type Session = Session;
    type Message = Infallible;
    type Answer = LateReply;

    const DOOR: Door = Door::Resp;
    const POLICY: Policy = Policy {
        brief: false,
        // Clients write whole pipelines before they read: a server that stops reading would wait
        // for a client that waits for it.
        reads_on: true,
        refusal: b"-ERR max number of clients reached\r\n",
        output_bytes: OUTPUT_BYTES_MAX,
        push_bytes_max: 0,
        drain_max: 30 * SECOND,
        linger: Linger {
            span: 2 * SECOND,
            span_at_end: 0,
            bytes_max: 1 << 20,
            slow: None,
            too_much: None,
        },
    };

    fn on_open(
        &mut self,
        peer: Peer,
        _: &mut Vec<u8>,
        context: &Context,
    ) -> Result<(Session, Progress), &'static str> {
        self.renew_settings();
        let is_open = !self.settings.credentials.are_required();
        let id = self.parts.state.enter();
        Ok((Session::new(id, peer, is_open, context.now.mono), Progress::More))
    }

    #[inline]
    fn on_bytes(
        &mut self,
        session: &mut Session,
        input: &[u8],
        output: &mut Vec<u8>,
        context: &Context,
    ) -> (usize, Progress) {
        self.execute(session, input, output, context)
    }

    fn on_answer(
        &mut self,
        session: &mut Session,
        answer: LateReply,
        output: &mut Vec<u8>,
        _: Now,
    ) -> Progress {
        session.client.pending.take(answer, output).into()
    }

    fn on_message(&mut self, message: Infallible, _: &mut Pushes<'_, Self>) -> usize {
        match message {}
    }

    #[inline]
    fn on_read(&mut self, _: &mut Session, bytes: usize) {
        self.counts.has_read(bytes);
    }

    #[inline]
    fn on_written(&mut self, _: &mut Session, bytes: usize, _: bool) {
        self.counts.has_written(bytes);
    }

    #[inline]
    fn on_kept(&mut self, session: &mut Session, bytes: usize, room: usize) -> bool {
        let queued = session.client.queued_bytes();
        let room = room + queued;
        let before = std::mem::replace(&mut session.client.kept_bytes, room);
        let has_room = before == room || self.parts.state.keeps(before, room);
        has_room && bytes + queued <= KEPT_BYTES_MAX
    }

    fn is_listening(&self, _: &Session) -> bool {
        false
    }

    fn is_too_slow(&self, _: &Session, reader: &SlowReader) -> bool {
        reader.stalled > reader.idle_max.min(UNREAD_MAX)
    }

    fn keeps_too_much(&self, session: &Session) -> bool {
        let kept = session.client.kept_bytes;
        kept > KEPT_BYTES_ALWAYS && !self.parts.state.has_room_for(kept)
    }

    fn on_close(&mut self, session: Session) {
        self.parts.state.leave(session.client.kept_bytes);
    }

    fn on_end(&mut self) {
        self.parts.state.end_loop(self.counts.clone());
    }
}
