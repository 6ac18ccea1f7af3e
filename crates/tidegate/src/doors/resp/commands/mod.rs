//! The table of commands. Each has a name, how many arguments it takes, and a function; the
//! functions are in a file for each topic.
//!
//! What the table says of a request is checked before it is run, and before it is queued for EXEC.
//!
//! To add a command: a function in its topic's file, and a line in [`COMMANDS`].

mod counters;
mod expiry;
mod handshake;
mod hold;
mod housekeeping;
mod introspection;
mod keys;
pub(super) mod throttle;
pub(super) mod transaction;
mod verbs;
mod wait;

use std::sync::LazyLock;

use tidegate_core::Now;
use tidegate_wire::resp::{Arguments, ProtocolVersion, reply};

use self::throttle::Shape;
use super::handler::RespHandler;
use super::pending::{LateWork, ReplyLater};
use super::session::RespClient;
use crate::doors::io::handler::{Context, Progress};
use crate::limiter::KEYS_MAX;

/// Commands that clients may send before they have authenticated are marked so.
pub(super) static COMMANDS: &[RespCommand] = &[
    RespCommand::new("auth", -2, handshake::auth).before_auth(),
    RespCommand::new("hello", -1, handshake::hello).before_auth(),
    RespCommand::new("quit", -1, handshake::quit).before_auth().at_once(),
    RespCommand::new("reset", 1, handshake::reset).before_auth().at_once(),
    RespCommand::new("select", 2, handshake::select),
    RespCommand::container("client", CLIENT),
    RespCommand::new("ping", -1, housekeeping::ping),
    RespCommand::new("echo", 2, housekeeping::echo),
    RespCommand::new("time", 1, housekeeping::time),
    RespCommand::new("dbsize", 1, housekeeping::dbsize),
    RespCommand::container("config", CONFIG),
    RespCommand::new("info", -1, introspection::info),
    RespCommand::new("command", -1, introspection::command).with_subcommands(COMMAND),
    // As in redis-cell, the command itself tells how it is used.
    RespCommand::new("cl.throttle", -1, throttle::cl_throttle).with_key().batched(Shape::Cell),
    RespCommand::new("throttle", -5, throttle::throttle)
        .at_most(6)
        .with_key()
        .batched(Shape::Throttlecrab),
    RespCommand::new("incr", 2, counters::incr).with_key(),
    RespCommand::new("incrby", 3, counters::incrby).with_key(),
    RespCommand::new("decr", 2, counters::decr).with_key(),
    RespCommand::new("decrby", 3, counters::decrby).with_key(),
    RespCommand::new("get", 2, counters::get).with_key(),
    RespCommand::new("set", -3, counters::set).with_key(),
    RespCommand::new("setex", 4, counters::setex).with_key(),
    RespCommand::new("psetex", 4, counters::psetex).with_key(),
    RespCommand::new("setnx", 3, counters::setnx).with_key(),
    RespCommand::new("del", -2, keys::del).with_keys_from(1),
    RespCommand::new("unlink", -2, keys::del).with_keys_from(1),
    RespCommand::new("exists", -2, keys::exists).with_keys_from(1),
    RespCommand::new("ttl", 2, keys::ttl).with_key(),
    RespCommand::new("pttl", 2, keys::pttl).with_key(),
    RespCommand::new("expire", -3, expiry::expire).with_key(),
    RespCommand::new("pexpire", -3, expiry::pexpire).with_key(),
    RespCommand::new("expireat", -3, expiry::expireat).with_key(),
    RespCommand::new("pexpireat", -3, expiry::pexpireat).with_key(),
    RespCommand::new("persist", 2, expiry::persist).with_key(),
    RespCommand::new("multi", 1, transaction::multi).at_once(),
    RespCommand::new("exec", 1, transaction::exec).at_once(),
    RespCommand::new("discard", 1, transaction::discard).at_once(),
    RespCommand::new("tg.check", -2, verbs::check).at_most(3).with_key(),
    RespCommand::new("tg.mcheck", -3, verbs::mcheck).at_most(2 + KEYS_MAX).with_keys_from(2),
    RespCommand::new("tg.peek", -2, verbs::peek).at_most(3).with_key(),
    RespCommand::new("tg.wait", -2, wait::wait).at_most(4).with_key(),
    RespCommand::new("tg.hold", -3, hold::hold).at_most(4).with_key(),
    RespCommand::new("tg.release", 2, hold::release),
    RespCommand::new("tg.reset", 2, verbs::reset).with_key(),
];

/// What stands behind CLIENT.
const CLIENT: &[Subcommand] = &[
    Subcommand::new("getname", 2, handshake::client_getname),
    Subcommand::new("id", 2, handshake::client_id),
    Subcommand::new("info", 2, handshake::client_info),
    Subcommand::new("list", -2, handshake::client_list),
    Subcommand::new("no-evict", 3, handshake::client_switch),
    Subcommand::new("no-touch", 3, handshake::client_switch),
    Subcommand::new("reply", 3, handshake::client_reply),
    Subcommand::new("setinfo", 4, handshake::client_setinfo),
    Subcommand::new("setname", 3, handshake::client_setname),
];

/// What stands behind CONFIG.
const CONFIG: &[Subcommand] = &[Subcommand::new("get", -3, housekeeping::config_get)];

/// What may stand behind COMMAND.
const COMMAND: &[Subcommand] = &[
    Subcommand::new("count", 2, introspection::command_count),
    Subcommand::new("docs", -2, introspection::command_docs),
    Subcommand::new("info", -2, introspection::command_info),
    Subcommand::new("list", -2, introspection::command_list),
];

/// What answers a request.
type Run = fn(&mut Call<'_>) -> Flow;

/// One command.
pub(super) struct RespCommand {
    /// In lower case.
    pub(super) name: &'static str,
    /// As Redis says it: how many arguments, the name included; negative: so many at least.
    pub(super) arity: i64,
    /// How many arguments at most, the name included.
    arguments_max: usize,
    run: Run,
    /// Requests with a second word are for one of these, if there are any.
    subcommands: &'static [Subcommand],
    /// Whether clients may send it that have not authenticated.
    pub(super) before_auth: bool,
    /// Whether it runs between MULTI and EXEC, where others are queued.
    pub(super) at_once: bool,
    /// The first argument that is a key, and the last; -1: the last of all.
    pub(super) keys: Option<(i64, i64)>,
    /// Whether requests that follow each other are decided together, and the form of replies.
    pub(super) batch: Option<Shape>,
}

/// One of several commands with the same first word.
pub(super) struct Subcommand {
    /// In lower case.
    name: &'static str,
    /// Both words are counted.
    arity: i64,
    run: Run,
}

impl Subcommand {
    const fn new(name: &'static str, arity: i64, run: Run) -> Self {
        Self { name, arity, run }
    }
}

/// Why a request is no request of its command.
pub(super) enum Misfit {
    /// It has too many arguments or too few.
    Arity,
    /// So has the request of this subcommand.
    SubcommandArity(&'static str),
    UnknownSubcommand,
}

impl RespCommand {
    const fn new(name: &'static str, arity: i64, run: Run) -> Self {
        Self {
            name,
            arity,
            arguments_max: usize::MAX,
            run,
            subcommands: &[],
            before_auth: false,
            at_once: false,
            keys: None,
            batch: None,
        }
    }

    /// A command that is nothing without a subcommand.
    const fn container(name: &'static str, all: &'static [Subcommand]) -> Self {
        // The arity asks for a second word, so this is never run.
        Self::new(name, -2, |_| Flow::Done).with_subcommands(all)
    }

    const fn with_subcommands(self, subcommands: &'static [Subcommand]) -> Self {
        Self { subcommands, ..self }
    }

    const fn at_most(self, arguments_max: usize) -> Self {
        Self { arguments_max, ..self }
    }

    const fn before_auth(self) -> Self {
        Self { before_auth: true, ..self }
    }

    const fn at_once(self) -> Self {
        Self { at_once: true, ..self }
    }

    const fn with_key(self) -> Self {
        Self { keys: Some((1, 1)), ..self }
    }

    const fn with_keys_from(self, first: i64) -> Self {
        Self { keys: Some((first, -1)), ..self }
    }

    const fn batched(self, shape: Shape) -> Self {
        Self { batch: Some(shape), ..self }
    }

    /// What answers a request with these arguments. As in Redis, the subcommand is looked up
    /// before arguments are counted.
    pub(super) fn find_run(&self, arguments: &Arguments<'_>) -> Result<Run, Misfit> {
        if let (Some(word), [_, ..]) = (arguments.get(1), self.subcommands) {
            let is = |known: &&Subcommand| word.eq_ignore_ascii_case(known.name.as_bytes());
            let found = self.subcommands.iter().find(is).ok_or(Misfit::UnknownSubcommand)?;
            let takes = takes(found.arity, arguments.len());
            return if takes { Ok(found.run) } else { Err(Misfit::SubcommandArity(found.name)) };
        }
        let takes = takes(self.arity, arguments.len()) && arguments.len() <= self.arguments_max;
        if takes { Ok(self.run) } else { Err(Misfit::Arity) }
    }
}

/// Whether an arity allows so many arguments, the name included.
fn takes(arity: i64, arguments: usize) -> bool {
    let arguments = arguments as i64;
    match arity {
        exactly @ 0.. => arguments == exactly,
        at_least => arguments >= -at_least,
    }
}

/// What comes after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// It is answered.
    Done,
    /// It will be answered; see [`Call::reply_later`]. The commands behind it wait.
    Pending,
    /// The same, and it is of no use any more once the client sends no more.
    Waiting,
    /// The replies are written, and the connection is over.
    Close,
}

impl From<Flow> for Progress {
    fn from(flow: Flow) -> Self {
        match flow {
            Flow::Done => Progress::More,
            Flow::Pending => Progress::Pending,
            Flow::Waiting => Progress::Waiting,
            Flow::Close => Progress::Close,
        }
    }
}

/// One request of a command.
pub(super) struct Call<'a> {
    pub(super) handler: &'a mut RespHandler,
    pub(super) client: &'a mut RespClient,
    pub(super) arguments: Arguments<'a>,
    /// Replies go here, behind earlier ones.
    pub(super) out: &'a mut Vec<u8>,
    pub(super) context: &'a Context,
}

impl<'a> Call<'a> {
    /// The argument at `index`, the name being at 0; empty if there is none.
    pub(super) fn argument(&self, index: usize) -> &'a [u8] {
        self.arguments.get(index).unwrap_or_default()
    }

    /// Whether the argument at `index` is this word, in small letters or capitals.
    pub(super) fn is_word(&self, index: usize, word: &str) -> bool {
        self.argument(index).eq_ignore_ascii_case(word.as_bytes())
    }

    pub(super) fn now(&self) -> Now {
        self.context.now
    }

    /// The version of the protocol that the client speaks.
    pub(super) fn version(&self) -> ProtocolVersion {
        self.client.version
    }

    /// Answers `+OK`.
    pub(super) fn ok(&mut self) -> Flow {
        reply::simple(self.out, "OK");
        Flow::Done
    }

    /// Answers with an integer.
    pub(super) fn integer(&mut self, number: i64) -> Flow {
        reply::integer(self.out, number);
        Flow::Done
    }

    /// Queues this request for EXEC.
    pub(super) fn queue(&mut self, request: &[u8]) -> Flow {
        let Some(transaction) = &mut self.client.transaction else { return Flow::Done };
        if transaction.add(request) {
            reply::simple(self.out, "QUEUED");
            return Flow::Done;
        }
        transaction.break_off();
        let (commands, mebibytes) = (transaction::COMMANDS_MAX, transaction::BYTES_MAX >> 20);
        self.error(&format!(
            "ERR a transaction has at most {commands} commands and {mebibytes} MiB"
        ))
    }

    /// Answers with an error: its first word, in capitals, and a text.
    pub(super) fn error(&mut self, text: &str) -> Flow {
        reply::error(self.out, text.as_bytes());
        Flow::Done
    }

    /// The same for input that is wrong, which is counted by reason.
    pub(super) fn bad_input(&mut self, reason: &'static str, text: &str) -> Flow {
        self.handler.bad_input(reason);
        self.error(text)
    }

    /// Answers why this is no request of a command.
    pub(super) fn refuse(&mut self, command: &RespCommand, why: &Misfit) -> Flow {
        let name = command.name;
        match why {
            Misfit::Arity => self.wrong_arity(name),
            Misfit::SubcommandArity(subcommand) => {
                self.wrong_arity(&format!("{name}|{subcommand}"))
            }
            Misfit::UnknownSubcommand => {
                self.handler.bad_input("unknown_command");
                let mut text = b"ERR unknown subcommand '".to_vec();
                text.extend_from_slice(super::handler::cut(self.argument(1), 128));
                let name = name.to_ascii_uppercase();
                text.extend_from_slice(format!("'. Try {name} HELP.").as_bytes());
                reply::error(self.out, &text);
                Flow::Done
            }
        }
    }

    /// Answers that a command takes more or fewer arguments.
    pub(super) fn wrong_arity(&mut self, command: &str) -> Flow {
        self.handler.bad_input("arity");
        self.error(&format!("ERR wrong number of arguments for '{command}' command"))
    }

    /// Answers with an error that has words of the client in it, byte for byte.
    pub(super) fn error_about(&mut self, text: &str, said: &[u8], end: &str) -> Flow {
        reply::error(self.out, &[text.as_bytes(), said, end.as_bytes()].concat());
        Flow::Done
    }

    /// Answers with the reply that `work` makes, now or later.
    pub(super) fn reply_by(&mut self, work: LateWork) -> Flow {
        let inbox = &self.handler.parts.inbox;
        self.client.pending.begin(work, inbox, self.context.id, self.out)
    }

    /// The right to answer this request later. The command must return [`Flow::Pending`] or
    /// [`Flow::Waiting`].
    pub(super) fn reply_later(&mut self) -> ReplyLater {
        let inbox = &self.handler.parts.inbox;
        ReplyLater::new(inbox, self.context.id, &mut self.client.pending)
    }
}

/// The longest name that is looked up.
const NAME_BYTES_MAX: usize = 15;

/// The commands by name, for binary search.
static BY_NAME: LazyLock<Vec<(u128, usize)>> = LazyLock::new(|| {
    let named = |(position, command): (usize, &RespCommand)| {
        packed(command.name.as_bytes()).map(|name| (name, position))
    };
    let mut all: Vec<(u128, usize)> = COMMANDS.iter().enumerate().filter_map(named).collect();
    all.sort_unstable();
    all
});

/// As [`find`], where the command is likely to be `last`: clients ask for the same again and again.
#[inline]
pub(super) fn find_again(name: &[u8], last: Option<usize>) -> Option<usize> {
    match last {
        Some(last) if name.eq_ignore_ascii_case(COMMANDS[last].name.as_bytes()) => Some(last),
        _ => find(name),
    }
}

/// The position of a command in [`COMMANDS`], by its name in small letters or capitals.
pub(super) fn find(name: &[u8]) -> Option<usize> {
    let name = packed(name)?;
    let at = BY_NAME.binary_search_by_key(&name, |(known, _)| *known).ok()?;
    Some(BY_NAME[at].1)
}

/// A name in lower case and its length as one number; `None` if it is too long.
#[inline]
fn packed(name: &[u8]) -> Option<u128> {
    let mut bytes = [0; NAME_BYTES_MAX + 1];
    bytes[..NAME_BYTES_MAX].get_mut(..name.len())?.copy_from_slice(name);
    bytes.make_ascii_lowercase();
    bytes[NAME_BYTES_MAX] = name.len() as u8;
    Some(u128::from_be_bytes(bytes))
}

/// Whether a name is the beginning of a browser's request, which some page may have made it send.
pub(super) fn is_of_browser(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Whether a name is that of a command that runs scripts, which this door has none of.
pub(super) fn is_script(name: &[u8]) -> bool {
    const SCRIPTS: [&[u8]; 8] = [
        b"eval",
        b"evalsha",
        b"eval_ro",
        b"evalsha_ro",
        b"script",
        b"function",
        b"fcall",
        b"fcall_ro",
    ];
    SCRIPTS.iter().any(|script| name.eq_ignore_ascii_case(script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_by_its_name() {
        for (position, command) in COMMANDS.iter().enumerate() {
            assert_eq!(find(command.name.as_bytes()), Some(position), "{}", command.name);
            assert_eq!(find(command.name.to_uppercase().as_bytes()), Some(position));
            assert_eq!(command.name, command.name.to_lowercase());
            for subcommand in command.subcommands {
                assert_eq!(subcommand.name, subcommand.name.to_lowercase());
            }
        }
        for name in ["", "pin", "pingg", "ping\0", "a_name_that_is_longer_than_any"] {
            assert_eq!(find(name.as_bytes()), None, "{name:?}");
        }
    }
}
