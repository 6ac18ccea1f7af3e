//! From gatekeeper to master: what became of a request.

use super::stamp::{self, MILLISECOND_NS};
use super::{Frames, domain};

const ACCEPTED: &[u8] = b"ACCEPTED";
const DELAYED: &[u8] = b"DELAYED";
const REJECTED: &[u8] = b"REJECTED";
const RESYNC: &[u8] = b"RESYNC";

/// What a gatekeeper did with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It passed at once.
    Accepted,
    /// It passed later.
    Delayed {
        /// When it passed, in nanoseconds since 1970.
        until_ns: u64,
    },
    /// It did not pass.
    Rejected,
}

/// One request, as a gatekeeper tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accounting<'a> {
    /// What is limited.
    pub domain: &'a [u8],
    /// What became of the request.
    pub status: Status,
    /// The client that asked.
    pub identifier: &'a [u8],
    /// When the gatekeeper got the request, in nanoseconds since 1970, by its own clock.
    pub received_ns: u64,
    /// Something worth logging.
    pub log_info: Option<&'a [u8]>,
}

/// What a gatekeeper sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountingMessage<'a> {
    /// What became of a request.
    Accounting(Accounting<'a>),
    /// It has just started and asks which clients are delayed.
    Resync {
        /// What is limited.
        domain: &'a [u8],
    },
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountingFault {
    /// It has fewer than five frames.
    FewFrames,
    /// Its domain is empty or has a NUL inside, which would make it part of another topic.
    Domain,
    /// Its status is none of the three.
    Status,
    /// One of its times is none.
    Timestamp,
}

impl AccountingFault {
    /// A word for metrics.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::FewFrames => "few_frames",
            Self::Domain => "domain",
            Self::Status => "status",
            Self::Timestamp => "timestamp",
        }
    }
}

/// Reads what a gatekeeper sent. Frames after the sixth are not looked at, so a caller may leave
/// them away.
///
/// # Errors
/// If it is no message of this protocol.
#[inline]
pub fn parse<'a>(frames: &[&'a [u8]]) -> Result<AccountingMessage<'a>, AccountingFault> {
    let &[first, status, ref rest @ ..] = frames else { return Err(AccountingFault::FewFrames) };
    let domain = domain(first);
    let resync = status == RESYNC;
    let &[identifier, received, delayed, ref more @ ..] = rest else {
        return if resync {
            checked(domain).map(resync_of)
        } else {
            Err(AccountingFault::FewFrames)
        };
    };
    if resync {
        return checked(domain).map(resync_of);
    }
    let domain = checked(domain)?;
    let stamp = |frame| stamp::parse(frame).ok_or(AccountingFault::Timestamp);
    let status = match status {
        ACCEPTED => Status::Accepted,
        DELAYED => Status::Delayed { until_ns: stamp(delayed)? },
        REJECTED => Status::Rejected,
        _ => return Err(AccountingFault::Status),
    };
    let received_ns = stamp(received)?;
    let log_info = more.first().copied();
    Ok(AccountingMessage::Accounting(Accounting {
        domain,
        status,
        identifier,
        received_ns,
        log_info,
    }))
}

fn checked(domain: &[u8]) -> Result<&[u8], AccountingFault> {
    if domain.is_empty() || domain.contains(&0) { Err(AccountingFault::Domain) } else { Ok(domain) }
}

fn resync_of(domain: &[u8]) -> AccountingMessage<'_> {
    AccountingMessage::Resync { domain }
}

impl Accounting<'_> {
    /// Writes the message, six frames always. Times lose what they have below a millisecond.
    pub fn write(&self, out: &mut Frames) {
        let (status, until_ns) = match self.status {
            Status::Accepted => (ACCEPTED, None),
            Status::Delayed { until_ns } => (DELAYED, Some(until_ns)),
            Status::Rejected => (REJECTED, None),
        };
        out.begin().domain(self.domain).frame(status).frame(self.identifier);
        out.number(self.received_ns / MILLISECOND_NS);
        match until_ns {
            Some(until_ns) => out.number(until_ns / MILLISECOND_NS),
            None => out.frame(b""),
        };
        out.frame(self.log_info.unwrap_or_default());
    }
}

/// Writes the question of a gatekeeper that has just started.
pub fn write_resync(domain: &[u8], out: &mut Frames) {
    out.begin().domain(domain).frame(RESYNC);
}
