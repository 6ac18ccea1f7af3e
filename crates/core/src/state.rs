//! What is remembered of one key under one limit.
//!
//! Each algorithm owns its variant; no other code reads the fields. The durable encoding at the
//! bottom is what snapshots and remote stores hold: versioned, fixed little-endian words.

use crate::algorithms::aligned::Aligned;
use crate::algorithms::stamps::Stamps;
use crate::algorithms::{
    average, fixed_window, gcra, in_flight, jarl, sliding_log, sliding_window, smockron, throttle,
};
use crate::time::Nanos;

/// The memory of one limit of one key. `None` is a key never used.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum State {
    /// Nothing is remembered.
    #[default]
    None,
    /// Token bucket.
    Gcra(gcra::GcraDebt),
    /// One counter in an aligned window.
    FixedWindow(fixed_window::Window),
    /// Two counters in aligned windows.
    SlidingWindow(sliding_window::Windows),
    /// Every use of the last period.
    SlidingLog(Box<sliding_log::LoggedUses>),
    /// An exponentially weighted rate.
    Average(average::AverageRate),
    /// Bookings of callers that wait.
    Jarl(Box<jarl::Bookings>),
    /// The last `burst` uses.
    Smockron(Box<smockron::History>),
    /// Uses that have not ended.
    InFlight(in_flight::HeldUses),
    /// Token bucket whose limit comes with each request.
    Throttle(throttle::Empty),
}

// A slot of the memory store holds a state inline: its size is bytes per key.
const _: () = assert!(size_of::<State>() == 32);

#[deny(clippy::wildcard_enum_match_arm)]
impl State {
    /// Bytes that this state holds outside of itself, counted towards `max_bytes`.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            State::SlidingLog(log) => size_of_val(&**log) + log.heap_bytes(),
            State::Jarl(bookings) => size_of_val(&**bookings) + bookings.heap_bytes(),
            State::Smockron(history) => size_of_val(&**history) + history.heap_bytes(),
            State::None | State::Gcra(_) | State::FixedWindow(_) | State::SlidingWindow(_) => 0,
            State::Average(_) | State::InFlight(_) | State::Throttle(_) => 0,
        }
    }

    /// Says that several keys count here, so that it must hold for each of them alone. Only
    /// algorithms that follow the wall clock make a difference: it may step back into a window
    /// in which one of the keys has uses and the count itself no longer has.
    pub fn share(&mut self) {
        match self {
            State::FixedWindow(m) => m.common = true,
            State::SlidingWindow(m) => m.common = true,
            State::None | State::Gcra(_) | State::SlidingLog(_) | State::Average(_) => {}
            State::Jarl(_) | State::Smockron(_) | State::InFlight(_) | State::Throttle(_) => {}
        }
    }
}

/// Uses in flight that several holders have of one key: what each has is kept apart, so that it can
/// end with its holder.
impl State {
    /// Adds the uses of another holder.
    pub fn add_held(&mut self, other: &State) {
        match (&*self, other) {
            (State::InFlight(one), State::InFlight(two)) => *self = State::InFlight(one.and(two)),
            (State::None, State::InFlight(_)) => *self = other.clone(),
            _ => {}
        }
    }

    /// The part of one holder in these uses of all, given what the others have and what it had
    /// before.
    #[must_use]
    pub fn held_beside(&self, others: &State, before: &State, now: Nanos) -> State {
        let State::InFlight(all) = self else { return State::None };
        let first = match before {
            State::InFlight(own) if own.window().start == all.window().start => own.first(),
            _ => now,
        };
        let own = match others {
            State::InFlight(others) => all.without(others, first),
            _ => Some(in_flight::HeldUses::new(all.window(), first, all.count())),
        };
        own.map_or(State::None, State::InFlight)
    }
}

/// The version that is written; others are not read.
const VERSION: u8 = 1;

/// The byte that names the algorithm. A byte once used never comes to mean another.
mod tag {
    pub(super) const NONE: u8 = 0;
    pub(super) const GCRA: u8 = 1;
    pub(super) const FIXED_WINDOW: u8 = 2;
    pub(super) const SLIDING_WINDOW: u8 = 3;
    pub(super) const SLIDING_LOG: u8 = 4;
    pub(super) const AVERAGE: u8 = 5;
    pub(super) const JARL: u8 = 6;
    pub(super) const SMOCKRON: u8 = 7;
    pub(super) const IN_FLIGHT: u8 = 8;
    pub(super) const THROTTLE: u8 = 9;
}

/// Why bytes are not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by another version: start from nothing, or read it with the version that wrote it.
    #[error("the state has version {0}, this program reads version {VERSION}")]
    Version(u8),
    /// An algorithm that this program does not have.
    #[error("the state is of an unknown algorithm ({0})")]
    Algorithm(u8),
    /// Cut off, or with something behind it.
    #[error("the state has the wrong length")]
    Length,
    /// Bytes that no state is encoded as: damaged.
    #[error("the state has an impossible value")]
    Value,
}

impl State {
    /// Appends the durable form: version, algorithm, then little-endian words to the end.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |tag: u8, words: &[u64], stamps: Option<&Stamps>| {
            out.reserve(2 + 8 * words.len() + 16 * stamps.map_or(0, Stamps::len));
            out.extend([VERSION, tag]);
            for word in words {
                out.extend(word.to_le_bytes());
            }
            for (at, uses) in stamps.into_iter().flat_map(Stamps::iter) {
                out.extend(at.to_le_bytes());
                out.extend(uses.to_le_bytes());
            }
        };
        match self {
            State::None => put(tag::NONE, &[], None),
            State::Gcra(m) => {
                let words = [m.at(), m.debt() as u64, (m.debt() >> 64) as u64, m.busy()];
                // Mostly a bucket has owed for no time at all, and then nothing is said of it.
                put(tag::GCRA, &words[..if m.busy() == 0 { 3 } else { 4 }], None);
            }
            State::FixedWindow(m) => {
                let count = marked(m.count(), m.common);
                put(tag::FIXED_WINDOW, &[m.window.start, m.window.ends, count], None);
            }
            State::SlidingWindow(m) => {
                let Aligned { start, ends } = m.window();
                let current = marked(m.current(), m.common);
                put(tag::SLIDING_WINDOW, &[start, ends, m.previous(), current], None);
            }
            State::SlidingLog(m) => put(tag::SLIDING_LOG, &[], Some(&m.stamps)),
            State::Average(m) => put(tag::AVERAGE, &[m.at, m.rate.to_bits()], None),
            State::Jarl(m) => put(tag::JARL, &[m.latest, m.backoff], Some(&m.stamps)),
            State::Smockron(m) => put(tag::SMOCKRON, &[m.latest, m.next], Some(&m.stamps)),
            State::InFlight(m) => {
                let Aligned { start, ends } = m.window();
                put(tag::IN_FLIGHT, &[start, ends, m.first(), m.count()], None);
            }
            State::Throttle(m) => put(tag::THROTTLE, &[m.at, m.rest, m.parts], None),
        }
    }

    /// Reads what [`State::encode`] wrote. Allocates no more than the bytes that are there.
    ///
    /// # Errors
    /// Where the bytes are not a whole state of this version.
    pub fn decode(bytes: &[u8]) -> Result<State, DecodeError> {
        let &[version, tag, ref rest @ ..] = bytes else { return Err(DecodeError::Length) };
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let state = match tag {
            tag::NONE => words::<0>(rest).map(|_| State::None)?,
            tag::GCRA => {
                let ([at, low, high], rest) = leading_words(rest)?;
                let [busy] = if rest.is_empty() { [0] } else { words(rest)? };
                let debt = u128::from(low) | u128::from(high) << 64;
                let possible = debt <= gcra::DEBT_MAX && (busy > 0 || rest.is_empty());
                let bucket = gcra::GcraDebt::new(at, debt, busy);
                possible.then_some(State::Gcra(bucket)).ok_or(DecodeError::Value)?
            }
            tag::FIXED_WINDOW => {
                let [start, ends, count] = words(rest)?;
                let (count, common) = unmarked(count);
                let window = fixed_window::Window::new(Aligned { start, ends }, count, common);
                let whole = window.count() == count;
                whole.then_some(State::FixedWindow(window)).ok_or(DecodeError::Value)?
            }
            tag::SLIDING_WINDOW => {
                let [start, ends, previous, current] = words(rest)?;
                let (current, common) = unmarked(current);
                let window = Aligned { start, ends };
                let windows = sliding_window::Windows::new(window, previous, current, common);
                // Counts have seven bytes: more than that was never written.
                let whole = (windows.previous(), windows.current()) == (previous, current);
                whole.then_some(State::SlidingWindow(windows)).ok_or(DecodeError::Value)?
            }
            tag::SLIDING_LOG => {
                State::SlidingLog(Box::new(sliding_log::LoggedUses { stamps: stamps(rest)? }))
            }
            tag::AVERAGE => {
                let [at, rate] = words(rest)?;
                let rate = f64::from_bits(rate);
                let possible = rate.is_finite() && rate > -1.0;
                let memory = average::AverageRate { at, rate };
                possible.then_some(State::Average(memory)).ok_or(DecodeError::Value)?
            }
            tag::JARL => {
                let ([latest, backoff], rest) = leading_words(rest)?;
                let stamps = stamps(rest)?;
                State::Jarl(Box::new(jarl::Bookings { stamps, latest, backoff }))
            }
            tag::SMOCKRON => {
                let ([latest, next], rest) = leading_words(rest)?;
                let stamps = stamps(rest)?;
                State::Smockron(Box::new(smockron::History { stamps, latest, next }))
            }
            tag::IN_FLIGHT => {
                let [start, ends, first, count] = words(rest)?;
                let held = in_flight::HeldUses::new(Aligned { start, ends }, first, count);
                let whole = held.count() == count;
                whole.then_some(State::InFlight(held)).ok_or(DecodeError::Value)?
            }
            tag::THROTTLE => {
                let [at, rest, parts] = words(rest)?;
                let empty = throttle::Empty { at, rest, parts };
                (rest < parts).then_some(State::Throttle(empty)).ok_or(DecodeError::Value)?
            }
            unknown => return Err(DecodeError::Algorithm(unknown)),
        };
        Ok(state)
    }

    /// Moves every monotonic moment by `offset` nanoseconds, for a state that is restored under
    /// another boot. What would lie before the boot becomes its very beginning: later than it
    /// was, so nothing is forgiven.
    pub fn shift(&mut self, offset: i64) {
        let moved = |at: Nanos| at.saturating_add_signed(offset);
        match self {
            State::None => {}
            State::Gcra(m) => *m = m.moved(moved(m.at())),
            State::FixedWindow(m) => m.window.shift(offset),
            State::SlidingWindow(m) => {
                let mut window = m.window();
                window.shift(offset);
                *m = m.moved(window);
            }
            State::SlidingLog(m) => m.stamps.shift(offset),
            State::Average(m) => m.at = moved(m.at),
            State::Jarl(m) => {
                m.stamps.shift(offset);
                m.latest = moved(m.latest);
            }
            State::Smockron(m) => {
                m.stamps.shift(offset);
                m.latest = moved(m.latest);
                // 0 is no moment but says that there is nothing to wait for.
                m.next = if m.next == 0 { 0 } else { moved(m.next) };
            }
            State::InFlight(m) => {
                let mut window = m.window();
                window.shift(offset);
                *m = in_flight::HeldUses::new(window, moved(m.first()), m.count());
            }
            State::Throttle(m) => m.at = moved(m.at),
        }
    }
}

/// A count of seven bytes, with a mark in the eighth if several keys count there.
fn marked(count: u64, common: bool) -> u64 {
    count | u64::from(common) << 63
}

fn unmarked(word: u64) -> (u64, bool) {
    (word & !(1 << 63), word >> 63 == 1)
}

/// The first `N` words, and what is behind them.
fn leading_words<const N: usize>(bytes: &[u8]) -> Result<([u64; N], &[u8]), DecodeError> {
    let (chunks, rest) = bytes.split_at_checked(8 * N).ok_or(DecodeError::Length)?;
    let mut words = [0; N];
    for (word, chunk) in words.iter_mut().zip(chunks.as_chunks().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    Ok((words, rest))
}

/// Exactly `N` words.
fn words<const N: usize>(bytes: &[u8]) -> Result<[u64; N], DecodeError> {
    match leading_words(bytes)? {
        (words, []) => Ok(words),
        _ => Err(DecodeError::Length),
    }
}

/// Runs of moment and uses to the end: moments rise, and every run has uses.
fn stamps(bytes: &[u8]) -> Result<Stamps, DecodeError> {
    let (runs, []) = bytes.as_chunks::<16>() else { return Err(DecodeError::Length) };
    let mut stamps = Stamps::default();
    for run in runs {
        let [at, uses] = words(run)?;
        let rises = stamps.newest().is_none_or(|newest| newest < at);
        if !rises || uses == 0 || stamps.total().checked_add(uses).is_none() {
            return Err(DecodeError::Value);
        }
        stamps.push(at, uses);
    }
    Ok(stamps)
}
