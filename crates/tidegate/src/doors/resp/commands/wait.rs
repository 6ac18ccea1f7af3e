//! TG.WAIT: takes a use as soon as it may be had, in the order of arrival.
//!
//! The connection waits with it, as with BLPOP. A client that closes the connection, or its sending
//! side, is out of the line and has taken nothing. A transaction only tries, and gets its reply.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;

use tidegate_core::limit::AMOUNT_MAX;
use tidegate_core::time::MILLISECOND;
use tidegate_wire::resp::{ProtocolVersion, reply};

use super::throttle::text_of;
use super::verbs::{Answer, natural};
use super::{Call, Flow};
use crate::doors::resp::handler::LaterParts;
use crate::doors::resp::pending::LateWork;
use crate::limiter::{InvalidRequest, Key, KeyOp, Request, Rows};
use crate::metrics::Door;
use crate::waiting::{Admitted, NotAdmitted, WaitRequest};

/// `TG.WAIT key [cost [timeout_ms]]`
pub(super) fn wait(call: &mut Call<'_>) -> Flow {
    let arguments = call.arguments.len();
    let mut cost = 1;
    if arguments > 2 {
        let Some(given) = natural(call, 2, 1, AMOUNT_MAX) else { return Flow::Done };
        cost = given;
    }
    let mut max_wait = None;
    if arguments > 3 {
        let Some(timeout_ms) = natural(call, 3, 0, u64::MAX) else { return Flow::Done };
        max_wait = (timeout_ms > 0).then(|| timeout_ms.saturating_mul(MILLISECOND));
    }
    if call.client.is_executing {
        // The commands of a transaction run one behind the other: it only tries.
        max_wait = Some(0);
    }
    let (key, version) = (call.argument(1).to_vec(), call.version());
    let later = call.handler.parts.later.clone();
    let in_line = Arc::new(AtomicBool::new(false));
    call.reply_by(LateWork::in_line(in_line.clone(), async move {
        let request = WaitRequest { key: &key, cost, max_wait, can_end: false };
        let mut out = Vec::new();
        match admit(&later, request, &in_line).await {
            Some((admitted, rows)) => {
                answer(&later, request, admitted, rows, version, &mut out).await;
            }
            None => reply::error(&mut out, b"ERR draining"),
        }
        out
    }))
}

/// Waits until the use is taken or refused; `None` if the door closes before that. With a use that
/// was taken comes what its limits said.
async fn admit(
    later: &LaterParts,
    request: WaitRequest<'_>,
    in_line: &AtomicBool,
) -> Option<(Result<Admitted, NotAdmitted>, Option<Rows>)> {
    let admitting = later.waiting.admit(&later.limiter, &later.waiter_limit, request);
    let mut admitting = pin!(admitting.with_rows());
    let mut closing = pin!(later.shutdown.wait());
    let may_wait = request.max_wait != Some(0);
    poll_fn(|cx| {
        let admitted = admitting.as_mut().poll(cx);
        // Also while its store is asked: what that takes is given back if the client is gone.
        in_line.store(admitted.is_pending() && may_wait, Relaxed);
        match admitted {
            Poll::Ready(admitted) => Poll::Ready(Some((admitted, admitting.take_rows()))),
            Poll::Pending => closing.as_mut().poll(cx).map(|()| None),
        }
    })
    .await
}

async fn answer(
    later: &LaterParts,
    request: WaitRequest<'_>,
    admitted: Result<Admitted, NotAdmitted>,
    rows: Option<Rows>,
    version: ProtocolVersion,
    out: &mut Vec<u8>,
) {
    let WaitRequest { key, cost, .. } = request;
    let limiter = &later.limiter;
    let (decided, is_impossible) = match admitted {
        Ok(admitted) => (Ok(admitted.look(limiter, key, cost, rows).await), false),
        Err(NotAdmitted::TooLate(refusal)) => (Ok((refusal.verdict, refusal.rows)), false),
        Err(NotAdmitted::TooManyWaiters { .. }) => return reply::error(out, b"ERR crowded"),
        Err(NotAdmitted::Invalid(InvalidRequest::CostAboveLimit { .. })) => {
            let (keys, mut rows) = ([Key::new(key, KeyOp::Refuse(1))], Rows::default());
            let look = Request::all_or_nothing(&keys).with_end();
            let verdict = limiter.decide_async(&look, limiter.now(), &mut rows).await;
            (verdict.map(|verdict| (verdict, rows)), true)
        }
        Err(NotAdmitted::Invalid(invalid)) => (Err(invalid), false),
    };
    match decided {
        Ok((verdict, rows)) => {
            let answer = Answer { verdict: &verdict, rows: &rows, cost, is_impossible };
            answer.reply(out, version, None);
        }
        Err(invalid) => {
            limiter.limiter().metrics().bad_input(Door::Resp, invalid.reason());
            reply::error(out, text_of(invalid).as_bytes());
        }
    }
}
