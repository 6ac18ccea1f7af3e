//! Reads limits and durations as people write them.
//!
//! `22 per 20s` · `100/min` · `5/s burst 20` · `100 in flight` · `100 in flight per minute`
//! · `none` · `deny`
//!
//! Whatever is not of this form is an error that says where, what, and what would be right.
//! Nothing here knows which algorithm a rule has chosen: see [`Spec::with`](super::Spec::with).

use std::ops::Range;

use super::{AMOUNT_MAX, Kind, PERIOD_MAX, PERIOD_MIN, Spec};
use crate::time::{DAY, HOUR, MICROSECOND, MILLISECOND, MINUTE, Nanos, SECOND};

/// Why a text is not a limit, a duration or an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct GrammarError {
    /// The bytes of the text that are at fault; empty where something is missing.
    pub span: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub remedy: String,
}

impl GrammarError {
    pub(super) fn new(span: Range<usize>, message: String, remedy: impl Into<String>) -> Self {
        Self { span, message, remedy: remedy.into() }
    }
}

const FORMS: &str = "write for example `22 per 20s`, `100/min`, `5/s burst 20`, `100 in flight`, \
                     `100 in flight per minute`, `none` or `deny`";
const AMOUNTS: &str = "amounts are whole numbers from 1 to 9007199254740992";
const PERIODS: &str = "periods are from 1ms to 366 days, for example `20s`, `minute` or `2 hours`";
const DURATIONS: &str = "write a whole number and a unit, for example `30s`, `10 min` or `250ms`";
const UNITS: &str = "units are ns, us, ms, msec, s, sec, second(s), m, min, minute(s), h, hr, \
                     hour(s), d, day(s)";

fn unit(word: &str) -> Option<Nanos> {
    Some(match word {
        "ns" => 1,
        "us" => MICROSECOND,
        "ms" | "msec" => MILLISECOND,
        "s" | "sec" | "second" | "seconds" => SECOND,
        "m" | "min" | "minute" | "minutes" => MINUTE,
        "h" | "hr" | "hour" | "hours" => HOUR,
        "d" | "day" | "days" => DAY,
        _ => return None,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Number,
    Word,
    Slash,
    Other,
}

fn token(first: char) -> Token {
    match first {
        // Signs, points and the like belong to a number, so that `1.5` is shown whole.
        '0'..='9' | '+' | '-' | '.' | ',' | '_' => Token::Number,
        'a'..='z' | 'A'..='Z' => Token::Word,
        '/' => Token::Slash,
        _ => Token::Other,
    }
}

/// Walks through a text token by token.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next token, not yet taken.
    fn peek(&self) -> Option<(Token, Range<usize>)> {
        let rest = self.text[self.at..].trim_start();
        let start = self.text.len() - rest.len();
        let kind = token(rest.chars().next()?);
        let length = match kind {
            Token::Slash => 1,
            _ => rest.find(|c: char| c.is_whitespace() || token(c) != kind).unwrap_or(rest.len()),
        };
        Some((kind, start..start + length))
    }

    /// Where the next token is, or the end of the text.
    fn here(&self) -> Range<usize> {
        self.peek().map_or(self.text.len()..self.text.len(), |(_, span)| span)
    }

    /// Takes the next token if it is of this kind.
    fn take(&mut self, wanted: Token) -> Option<Range<usize>> {
        let (_, span) = self.peek().filter(|(kind, _)| *kind == wanted)?;
        self.at = span.end;
        Some(span)
    }

    /// Takes the next token if it is this word.
    fn word(&mut self, wanted: &str) -> Option<Range<usize>> {
        let (_, span) = self.peek().filter(|(_, span)| &self.text[span.clone()] == wanted)?;
        self.at = span.end;
        Some(span)
    }

    /// The text of a span, for a message: cut where it is too long to show.
    fn shown(&self, span: &Range<usize>) -> String {
        let text = &self.text[span.clone()];
        match text.char_indices().nth(40) {
            Some((cut, _)) => format!("`{}…`", &text[..cut]),
            None => format!("`{text}`"),
        }
    }

    /// Nothing may be left.
    fn end(&self, remedy: &str) -> Result<(), GrammarError> {
        match self.peek() {
            None => Ok(()),
            Some((_, span)) => {
                let rest = span.start..self.text.trim_end().len();
                let message = format!("{} is not expected here", self.shown(&rest));
                Err(GrammarError::new(rest, message, remedy))
            }
        }
    }

    /// A whole number, if there is a number at all.
    fn number(&mut self, remedy: &str) -> Result<Option<(u64, Range<usize>)>, GrammarError> {
        let Some(span) = self.take(Token::Number) else { return Ok(None) };
        let digits = &self.text[span.clone()];
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let message = format!("{} is not a whole number", self.shown(&span));
            return Err(GrammarError::new(span, message, remedy));
        }
        match digits.parse() {
            Ok(number) => Ok(Some((number, span))),
            Err(_) => {
                let message = format!("{} is too large", self.shown(&span));
                Err(GrammarError::new(span, message, remedy))
            }
        }
    }

    /// A number from 1 to [`AMOUNT_MAX`].
    fn amount(&mut self, what: &str) -> Result<(u64, Range<usize>), GrammarError> {
        let Some((amount, span)) = self.number(AMOUNTS)? else {
            let message = format!("{what} is missing");
            return Err(GrammarError::new(self.here(), message, FORMS));
        };
        let fault = match amount {
            0 => "small",
            1..=AMOUNT_MAX => return Ok((amount, span)),
            _ => "large",
        };
        let message = format!("{} is too {fault}", self.shown(&span));
        Err(GrammarError::new(span, message, AMOUNTS))
    }

    /// A unit, with the whole nanoseconds in it.
    fn unit(&mut self, missing: &str) -> Result<(Nanos, Range<usize>), GrammarError> {
        let Some(span) = self.take(Token::Word) else {
            let message = "a unit of time is missing".to_owned();
            return Err(GrammarError::new(self.here(), message, missing));
        };
        match unit(&self.text[span.clone()]) {
            Some(nanos) => Ok((nanos, span)),
            None => {
                let message = format!("{} is not a unit of time", self.shown(&span));
                let remedy = match &self.text[span.clone()] {
                    "week" | "weeks" | "w" => "write days: `7d` for a week",
                    "month" | "months" | "mo" => "write days: `30d` for a month",
                    "year" | "years" | "y" => "write days: `365d` for a year",
                    _ => UNITS,
                };
                Err(GrammarError::new(span, message, remedy))
            }
        }
    }

    /// `20s`, `20 s`, `minute`.
    fn period(&mut self) -> Result<Nanos, GrammarError> {
        let count = self.number(PERIODS)?;
        let (nanos, last) = self.unit(PERIODS)?;
        let (count, first) = count.unwrap_or((1, last.clone()));
        let span = first.start..last.end;
        let fault = match count.saturating_mul(nanos) {
            period @ PERIOD_MIN..=PERIOD_MAX => return Ok(period),
            ..PERIOD_MIN => "short",
            _ => "long",
        };
        let message = format!("a period of {} is too {fault}", self.shown(&span));
        Err(GrammarError::new(span, message, PERIODS))
    }
}

pub(super) fn parse_spec(text: &str) -> Result<Spec, GrammarError> {
    let mut reader = Reader::new(text);
    if let Some(span) = reader.word("none") {
        reader.end("`none` must stand alone")?;
        return Ok(Spec { kind: Kind::None, amount_span: span, ..Spec::default() });
    }
    if let Some(span) = reader.word("deny") {
        reader.end("`deny` must stand alone")?;
        return Ok(Spec { kind: Kind::Deny, amount_span: span, ..Spec::default() });
    }
    let (amount, amount_span) = reader.amount("the amount").map_err(|error| {
        let remedy = whole_amount(text).unwrap_or(error.remedy);
        GrammarError { remedy, ..error }
    })?;
    let mut spec = Spec { kind: Kind::Rate, amount, amount_span, ..Spec::default() };
    if reader.word("in").is_some() {
        if reader.word("flight").is_none() {
            let message = "`flight` is missing after `in`".to_owned();
            return Err(GrammarError::new(reader.here(), message, FORMS));
        }
        spec.kind = Kind::InFlight;
    }
    if reader.word("per").or_else(|| reader.take(Token::Slash)).is_some() {
        spec.period = Some(reader.period()?);
    } else if spec.kind == Kind::Rate {
        let message = "a period is missing".to_owned();
        let remedy = format!("write `{amount} per minute`, `{amount}/s` or `{amount} in flight`");
        return Err(GrammarError::new(reader.here(), message, remedy));
    }
    if let Some(word) = reader.word("burst") {
        let (burst, number) = reader.amount("the number after `burst`")?;
        let span = word.start..number.end;
        if spec.kind == Kind::InFlight {
            let message = "`burst` has no meaning for uses in flight".to_owned();
            return Err(GrammarError::new(span, message, "leave it out"));
        }
        spec.burst = Some((burst, span));
    }
    reader.end(FORMS)?;
    Ok(spec)
}

/// What to write for an amount with decimals: `0.5/s` is `1 per 2s`.
fn whole_amount(text: &str) -> Option<String> {
    let mut reader = Reader::new(text);
    let span = reader.take(Token::Number)?;
    let (whole, decimals) = text[span].split_once('.')?;
    let digits = |text: &str| text.len() <= 6 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return None;
    }
    let uses: u64 = format!("0{whole}{decimals}").parse().ok()?;
    let mut periods = 10_u64.pow(u32::try_from(decimals.len()).ok()?);
    let mut amount = uses;
    for prime in [2, 5] {
        while amount > 0 && amount.is_multiple_of(prime) && periods.is_multiple_of(prime) {
            (amount, periods) = (amount / prime, periods / prime);
        }
    }
    reader.word("per").or_else(|| reader.take(Token::Slash))?;
    let period = reader.period().ok()?.checked_mul(periods)?;
    let fits = amount > 0 && period <= PERIOD_MAX;
    fits.then(|| format!("write a whole amount: `{amount} per {}`", super::Duration(period)))
}

/// Reads a duration: `30s`, `10 min`, `250ms`. A unit is required.
///
/// # Errors
/// Where the text is anything else, or longer than 64 bits of nanoseconds (584 years).
pub fn parse_duration(text: &str) -> Result<Nanos, GrammarError> {
    let mut reader = Reader::new(text);
    let Some((count, first)) = reader.number(DURATIONS)? else {
        let message = "a duration begins with a whole number".to_owned();
        return Err(GrammarError::new(reader.here(), message, DURATIONS));
    };
    let (nanos, last) = reader.unit(DURATIONS)?;
    reader.end(DURATIONS)?;
    count.checked_mul(nanos).ok_or_else(|| {
        let span = first.start..last.end;
        let message = format!("{} is too long", reader.shown(&span));
        GrammarError::new(span, message, "durations are less than 584 years")
    })
}
