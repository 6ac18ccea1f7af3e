//! From master to gatekeeper: until when a client must wait.

use super::stamp::{self, ms_up};
use super::{Frames, domain};

const DELAY_UNTIL: &[u8] = b"DELAY_UNTIL";
const RESYNC_START: &[u8] = b"RESYNCSTART";
const RESYNC_DONE: &[u8] = b"RESYNCDONE";

/// What a master says to the gatekeepers of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlMessage<'a> {
    /// Requests of a client are not allowed before a time.
    DelayUntil {
        /// What is limited.
        domain: &'a [u8],
        /// The client that must wait.
        identifier: &'a [u8],
        /// Until when, in milliseconds since 1970.
        at_ms: u64,
    },
    /// What follows, up to the end, are all delayed clients of the domain.
    ResyncStart {
        /// What is limited.
        domain: &'a [u8],
    },
    /// All delayed clients of the domain have been named.
    ResyncDone {
        /// What is limited.
        domain: &'a [u8],
    },
}

impl<'a> ControlMessage<'a> {
    /// Reads what a master sent. A command that this gatekeeper does not know, one without its
    /// arguments and a time that is none give nothing: a gatekeeper leaves them alone.
    #[must_use]
    pub fn parse(frames: &[&'a [u8]]) -> Option<Self> {
        let &[first, command, ref rest @ ..] = frames else { return None };
        let domain = domain(first);
        match (command, rest) {
            (DELAY_UNTIL, &[identifier, at, ..]) => {
                let at_ms = ms_up(stamp::parse(at)?);
                Some(Self::DelayUntil { domain, identifier, at_ms })
            }
            (RESYNC_START, _) => Some(Self::ResyncStart { domain }),
            (RESYNC_DONE, _) => Some(Self::ResyncDone { domain }),
            _ => None,
        }
    }

    /// Writes the message: four frames for a delay, two for the others.
    pub fn write(&self, out: &mut Frames) {
        match *self {
            Self::DelayUntil { domain, identifier, at_ms } => {
                out.begin().domain(domain).frame(DELAY_UNTIL).frame(identifier).number(at_ms);
            }
            Self::ResyncStart { domain } => {
                out.begin().domain(domain).frame(RESYNC_START);
            }
            Self::ResyncDone { domain } => {
                out.begin().domain(domain).frame(RESYNC_DONE);
            }
        }
    }
}
