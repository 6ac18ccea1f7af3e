//! The script that changes values, as it is called: how requests are put into its arguments, and
//! what its answer says about each of them.

use std::io::Write as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{Cmd, RedisWrite, Script, ToRedisArgs, ToSingleRedisArg, Value};
use tidegate_core::Nanos;
use tidegate_core::time::{MICROSECOND, MILLISECOND, SECOND};

use super::super::engine::{ABSENT, CellChange, EngineFault, StoredValue, Swapped, Timed, Version};
use super::faults;

/// How many requests one call carries: the server does nothing else while it runs.
pub(super) const REQUESTS_MAX: usize = 64;
/// How many bytes of arguments one call carries, unless a single request has more.
pub(super) const BYTES_MAX: usize = 256 * 1024;
/// A value is stored behind its version.
const VERSION_BYTES: usize = 8;

pub(super) static SWAP: LazyLock<ScriptText> =
    LazyLock::new(|| ScriptText::new(include_str!("swap.lua")));
pub(super) static BEAT: LazyLock<ScriptText> =
    LazyLock::new(|| ScriptText::new(include_str!("beat.lua")));

/// A script, and the name that servers know it by.
pub(super) struct ScriptText {
    text: &'static str,
    hash: String,
}

impl ScriptText {
    fn new(text: &'static str) -> Self {
        let hash = Script::new(text).get_hash().to_owned();
        Self { text, hash }
    }

    /// The beginning of a call: by name, or whole, which also teaches the server.
    pub(super) fn call(&self, whole: bool) -> Cmd {
        match whole {
            true => redis::cmd("EVAL").arg(self.text).take(),
            false => redis::cmd("EVALSHA").arg(&self.hash).take(),
        }
    }
}

/// Versions that no other process makes: a random beginning and a random, odd step.
pub(super) struct Versions {
    next: AtomicU64,
    step: u64,
}

impl Versions {
    pub(super) fn new() -> Result<Self, String> {
        let random = || getrandom::u64().map_err(|error| format!("no random number: {error}"));
        Ok(Self { next: AtomicU64::new(random()?), step: random()? | 1 })
    }

    fn next(&self) -> Version {
        match self.next.fetch_add(self.step, Ordering::Relaxed) {
            // An odd step comes by once in the whole round.
            ABSENT => self.next(),
            version => version,
        }
    }

    /// What a request's names will have if it is done.
    pub(super) fn after(&self, request: &[CellChange]) -> Vec<Version> {
        let version = |change: &CellChange| match &change.write {
            None => change.seen,
            Some(write) if write.value.is_empty() => ABSENT,
            Some(_) => self.next(),
        };
        request.iter().map(version).collect()
    }
}

/// Roughly what a request adds to a call.
pub(super) fn bytes(request: &[CellChange]) -> usize {
    let bytes = |change: &CellChange| {
        change.name.len() + change.write.as_ref().map_or(0, |write| write.value.len()) + 64
    };
    request.iter().map(bytes).sum()
}

/// A call with these requests, and the versions that they write.
pub(super) fn call<'a>(
    requests: impl Iterator<Item = (&'a [CellChange], &'a [Version])> + Clone,
    time: bool,
    whole: bool,
) -> Cmd {
    let form = requests.clone().map(|(request, _)| Form::of(request)).max().unwrap_or(Form::Keeps);
    let names = requests.clone().flat_map(|(request, _)| request);
    let mut cmd = SWAP.call(whole);
    cmd.arg(names.clone().count());
    for change in names {
        cmd.arg(&*change.name);
    }
    cmd.arg(match (form, time) {
        (Form::Keeps, false) => "k",
        (Form::Keeps, true) => "kt",
        (Form::Plain, false) => "p",
        (Form::Plain, true) => "pt",
        (Form::General, false) => "g",
        (Form::General, true) => "gt",
    });
    for (request, versions) in requests {
        if form == Form::General {
            cmd.arg(request.len());
        }
        for (change, &version) in request.iter().zip(versions) {
            add(&mut cmd, change, version, form);
        }
    }
    cmd
}

/// How much must be said of a request; of several together as much as of any.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// It writes over one value in place, and sends no message to watchers.
    Keeps,
    /// It writes one value, and sends no message to watchers.
    Plain,
    General,
}

impl Form {
    fn of(request: &[CellChange]) -> Self {
        match request {
            [CellChange { write: Some(write), .. }] if !write.value.is_empty() && !write.frees => {
                if write.keeps {
                    Form::Keeps
                } else {
                    Form::Plain
                }
            }
            _ => Form::General,
        }
    }
}

fn add(cmd: &mut Cmd, change: &CellChange, version: Version, form: Form) {
    match change.seen {
        ABSENT => cmd.arg(""),
        seen => cmd.arg(&seen.to_be_bytes()),
    };
    match &change.write {
        None => {
            cmd.arg("").arg("-");
        }
        Some(write) if write.value.is_empty() => {
            cmd.arg("").arg("1");
        }
        Some(write) => {
            cmd.arg(Stored { version, value: &write.value });
            if !write.keeps {
                cmd.arg(milliseconds(write.lives));
            } else if form != Form::Keeps {
                cmd.arg("");
            }
        }
    }
    if form == Form::General {
        let frees = change.write.as_ref().is_some_and(|write| write.frees);
        cmd.arg(if frees { "1" } else { "" });
    }
}

/// A value behind its version, as an argument.
struct Stored<'a> {
    version: Version,
    value: &'a [u8],
}

impl ToRedisArgs for Stored<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut bytes = out.writer_for_next_arg();
        // What an argument is written to is memory.
        let _ = bytes.write_all(&self.version.to_be_bytes());
        let _ = bytes.write_all(self.value);
    }
}

impl ToSingleRedisArg for Stored<'_> {}

/// Rounded up; at least one.
pub(super) fn milliseconds(nanos: Nanos) -> u64 {
    nanos.div_ceil(MILLISECOND).max(1)
}

/// What the answer to a call says about each of its requests, given the versions they wrote.
pub(super) fn read(
    answer: Value,
    sent: Vec<Vec<Version>>,
) -> Vec<Result<Timed<Swapped>, EngineFault>> {
    let mut told = match answer {
        Value::Int(0) => Vec::new().into_iter(),
        Value::Array(values) if values.len() >= 2 => values.into_iter(),
        other => return vec![Err(unexpected(&other)); sent.len()],
    };
    let time = match (told.next(), told.next()) {
        (Some(seconds), Some(micros)) => time(&seconds, &micros),
        _ => None,
    };
    let mut stale = told.next();
    let mut answers = Vec::with_capacity(sent.len());
    for (number, versions) in (1..).zip(sent) {
        if stale != Some(Value::Int(number)) {
            answers.push(Ok(Timed { what: Swapped::Done(versions), time }));
            continue;
        }
        // All are taken, whatever they are: the next request's number stands behind them.
        let values: Vec<_> = told.by_ref().take(versions.len()).collect();
        stale = told.next();
        let answer = match values.len() == versions.len() {
            true => values.into_iter().map(found).collect(),
            false => Err(faults::nonsense("the answer ends too early")),
        };
        answers.push(answer.map(|found| Timed { what: Swapped::Stale(found), time }));
    }
    // A value is left that belongs to no request: then no answer can be trusted.
    match stale {
        None => answers,
        Some(value) => vec![Err(unexpected(&value)); answers.len()],
    }
}

/// A value as it is stored.
fn found(value: Value) -> Result<StoredValue, EngineFault> {
    match value {
        Value::Nil => Ok(StoredValue::default()),
        Value::BulkString(mut bytes) => {
            let version = version(&bytes).ok_or_else(|| faults::nonsense("a value too short"))?;
            bytes.drain(..VERSION_BYTES);
            Ok(StoredValue { version, value: bytes })
        }
        other => Err(unexpected(&other)),
    }
}

fn version(bytes: &[u8]) -> Option<Version> {
    let (first, _) = bytes.split_first_chunk::<VERSION_BYTES>()?;
    Some(u64::from_be_bytes(*first)).filter(|&version| version != ABSENT)
}

/// The value of what is stored, without its version; nothing if it is none of ours.
pub(super) fn value(mut stored: Vec<u8>) -> Option<Vec<u8>> {
    version(&stored)?;
    stored.drain(..VERSION_BYTES);
    Some(stored)
}

/// The server's time from its two parts.
pub(super) fn time(seconds: &Value, micros: &Value) -> Option<Nanos> {
    let number = |value: &Value| match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse::<u64>().ok(),
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let seconds = number(seconds)?.checked_mul(SECOND)?;
    seconds.checked_add(number(micros)?.checked_mul(MICROSECOND)?)
}

/// An answer that is none.
pub(super) fn unexpected(value: &Value) -> EngineFault {
    match value {
        Value::ServerError(error) if error.code() == "WRONGTYPE" => {
            EngineFault::Garbage(faults::text(error))
        }
        Value::ServerError(error) => faults::refused(error),
        _ => EngineFault::Garbage("an answer of another kind than was asked for".to_owned()),
    }
}
