//! From bytes to replies, without a socket: parse, find the command, run it, append its reply.
//!
//! The door's loops, the golden vectors and the tests all go through [`RespHandler::execute`].
//! CL.THROTTLE requests that follow each other in one read are decided together. What the event
//! loop asks of a handler is in `in_loop`.

use std::sync::Arc;

use tidegate_wire::resp::{Arguments, ParsedFront, Parser, RequestBounds, reply};

use super::RespInbox;
use super::commands::throttle::ThrottleBatch;
use super::commands::{self, COMMANDS, Call, Flow};
use super::counts::LoopCounts;
use super::session::{RespClient, Session};
use super::state::{RespState, Settings};
use crate::doors::io::handler::{Context, Progress};
use crate::limiter::{LimiterHandle, Rows};
use crate::metrics::{Door, Metrics};
use crate::records::Records;
use crate::shutdown::Shutdown;
use crate::uses::UsesInFlight;
use crate::waiting::{WaiterLimit, WaitingRequests};

/// With so many bytes of replies, the rest of the input waits until they are written.
pub(super) const OUTPUT_BYTES_MAX: usize = 128 << 10;
/// With so many arguments executed, or empty requests skipped, it is the turn of other clients.
/// Transactions, and what is sent behind TG.WAIT, may have many more.
const TURN_ARGUMENTS_MAX: usize = 8 << 10;
/// The longest part of a client's own words in an error.
const ECHO_BYTES_MAX: usize = 128;

/// What a handler is made of.
pub(super) struct Parts {
    pub(super) limiter: LimiterHandle,
    pub(super) records: Arc<Records>,
    /// For replies that come later.
    pub(super) later: Arc<LaterParts>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) state: Arc<RespState>,
    /// Where replies that come later go.
    pub(super) inbox: Arc<RespInbox>,
    /// The longest argument.
    pub(super) value_max: usize,
}

/// What the work for replies that come later is made of.
pub(super) struct LaterParts {
    pub(super) limiter: LimiterHandle,
    pub(super) uses: Arc<UsesInFlight>,
    pub(super) waiting: Arc<WaitingRequests>,
    /// How many requests may wait at this door.
    pub(super) waiter_limit: Arc<WaiterLimit>,
    /// Set when the door closes.
    pub(super) shutdown: Shutdown,
}

/// The protocol in one loop.
pub(super) struct RespHandler {
    pub(super) parts: Parts,
    /// What the table says, as of the requests that are being executed.
    pub(super) settings: Arc<Settings>,
    pub(super) counts: Arc<LoopCounts>,
    pub(super) throttles: ThrottleBatch,
    /// What each limit said to the last request that asked for it; used again.
    pub(super) rows: Rows,
}

impl RespHandler {
    /// A handler for one loop.
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            settings: parts.state.settings.load_full(),
            counts: parts.state.loop_counts(),
            throttles: ThrottleBatch::default(),
            rows: Rows::default(),
            parts,
        }
    }

    /// Counts input that is wrong.
    pub(super) fn bad_input(&self, reason: &'static str) {
        self.parts.metrics.bad_input(Door::Resp, reason);
    }

    /// Takes over settings that a reload has changed.
    pub(super) fn renew_settings(&mut self) {
        let settings = self.parts.state.settings.load();
        if !Arc::ptr_eq(&settings, &self.settings) {
            self.settings = Arc::clone(&settings);
        }
    }

    /// Executes the whole requests at the front of `input`, appends their replies to `out`, and
    /// says how many bytes it took and what comes next.
    pub(super) fn execute(
        &mut self,
        session: &mut Session,
        input: &[u8],
        out: &mut Vec<u8>,
        context: &Context,
    ) -> (usize, Progress) {
        self.renew_settings();
        let Session { parser, client } = session;
        let mut taken = 0;
        loop {
            if let Some(progress) = self.execute_transaction(client, out, context) {
                return (taken, progress);
            }
            let input = &input[taken..];
            let (bytes, progress) = self.execute_requests(parser, client, input, out, context);
            taken += bytes;
            if client.execution.is_none() || progress != Progress::More {
                return (taken, progress);
            }
        }
    }

    /// Goes on with the commands that EXEC runs. `None` if there are none, or all are done.
    fn execute_transaction(
        &mut self,
        client: &mut RespClient,
        out: &mut Vec<u8>,
        context: &Context,
    ) -> Option<Progress> {
        let mut execution = client.execution.take()?;
        let requests = &execution.requests[execution.done..];
        client.is_executing = true;
        let (done, progress) =
            self.execute_requests(&mut execution.parser, client, requests, out, context);
        client.is_executing = false;
        execution.done += done;
        if execution.done < execution.requests.len() {
            client.execution = Some(execution);
            return Some(progress);
        }
        (progress != Progress::More).then_some(progress)
    }

    /// Executes requests until they end, one is pending, or EXEC has commands to run.
    fn execute_requests(
        &mut self,
        parser: &mut Parser,
        client: &mut RespClient,
        input: &[u8],
        out: &mut Vec<u8>,
        context: &Context,
    ) -> (usize, Progress) {
        let (mut taken, mut last, mut executed) = (0, None, 0);
        while out.len() < OUTPUT_BYTES_MAX {
            let bounds = RequestBounds {
                value_max: self.parts.value_max,
                is_authenticated: client.is_authenticated,
            };
            let front = parser.parse(&input[taken..], &bounds);
            let request = match front {
                ParsedFront::Request { arguments, bytes } => Some((arguments, bytes)),
                _ => None,
            };
            let command =
                request.and_then(|(arguments, _)| commands::find_again(arguments.name(), last));
            last = command;
            if let Some((arguments, bytes)) = request
                && self.put_off(client, command, &arguments, taken)
            {
                taken += bytes;
                if !self.throttles.is_full() {
                    continue;
                }
            }
            // Whatever comes next stands behind the requests that were put off.
            if !self.throttles.is_empty() {
                match self.decide_throttles(client, input, out, context) {
                    // The request that ended the batch is read again.
                    Flow::Done => continue,
                    flow => return (taken, flow.into()),
                }
            }
            match (front, request) {
                (_, Some((arguments, bytes))) => {
                    let request = &input[taken..taken + bytes];
                    taken += bytes;
                    executed += arguments.len();
                    match self.run(client, command, arguments, request, out, context) {
                        Flow::Done if executed > TURN_ARGUMENTS_MAX => {
                            return (taken, Progress::Yield);
                        }
                        Flow::Done if client.execution.is_none() => {}
                        flow => return (taken, flow.into()),
                    }
                }
                (ParsedFront::Empty { bytes }, _) => {
                    taken += bytes;
                    executed += 1;
                    if executed > TURN_ARGUMENTS_MAX {
                        return (taken, Progress::Yield);
                    }
                }
                (ParsedFront::Broken(error), _) => {
                    self.bad_input("protocol");
                    error.reply(out);
                    return (taken, Progress::Close);
                }
                _ => return (taken, Progress::More),
            }
        }
        (taken, Progress::Flush)
    }

    /// Runs a command for a client, or queues its request for EXEC. What ends here is answered at
    /// once, or pending.
    fn run(
        &mut self,
        client: &mut RespClient,
        command: Option<usize>,
        arguments: Arguments<'_>,
        request: &[u8],
        out: &mut Vec<u8>,
        context: &Context,
    ) -> Flow {
        let found = command.map(|position| &COMMANDS[position]);
        let is_queued = client.transaction.is_some() && !found.is_some_and(|found| found.at_once);
        if !is_queued || found.is_none() {
            self.counts.count(command, 1);
        }
        if found.is_none() && commands::is_of_browser(arguments.name()) {
            self.bad_input("protocol");
            return Flow::Close;
        }
        if !client.is_authenticated && !found.is_some_and(|found| found.before_auth) {
            self.bad_input("not_authenticated");
            reply::error(out, b"NOAUTH Authentication required.");
            return Flow::Done;
        }
        let Some(found) = found else {
            self.refuse_unknown(&arguments, out);
            client.break_transaction();
            return Flow::Done;
        };
        let mut call = Call { handler: self, client, arguments, out, context };
        let run = match found.find_run(&arguments) {
            Ok(run) => run,
            Err(_) if found.name == "exec" => return call.abort_transaction(found.name),
            Err(why) => {
                call.client.break_transaction();
                return call.refuse(found, &why);
            }
        };
        if is_queued {
            return call.queue(request);
        }
        let flow = run(&mut call);
        let waits = matches!(flow, Flow::Pending | Flow::Waiting);
        debug_assert_eq!(waits, !call.client.pending.is_empty(), "{}: {flow:?}", found.name);
        flow
    }

    fn refuse_unknown(&self, arguments: &Arguments<'_>, out: &mut Vec<u8>) {
        if commands::is_script(arguments.name()) {
            self.bad_input("script");
            let text = b"ERR scripts are not supported: use CL.THROTTLE or TG.CHECK";
            return reply::error(out, text);
        }
        self.bad_input("unknown_command");
        let mut text = b"ERR unknown command '".to_vec();
        text.extend_from_slice(cut(arguments.name(), ECHO_BYTES_MAX));
        text.extend_from_slice(b"', with args beginning with: ");
        let begin = text.len();
        for argument in arguments.iter().skip(1) {
            let room = ECHO_BYTES_MAX.saturating_sub(text.len() - begin);
            if room == 0 {
                break;
            }
            text.push(b'\'');
            text.extend_from_slice(cut(argument, room));
            text.extend_from_slice(b"' ");
        }
        reply::error(out, &text);
    }
}

/// The first bytes of `text`.
pub(super) fn cut(text: &[u8], bytes_max: usize) -> &[u8] {
    &text[..text.len().min(bytes_max)]
}
