//! What an answer of the server, or the lack of one, means to the caller.

use redis::{ErrorKind, RedisError, ServerError, ServerErrorKind};

use super::super::engine::EngineFault;

/// What a failed exchange means. The connection is of no more use.
pub(super) fn broken(error: &RedisError) -> EngineFault {
    match error.kind() {
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
            EngineFault::Garbage(error.to_string())
        }
        ErrorKind::AuthenticationFailed
        | ErrorKind::Server(_)
        | ErrorKind::Extension
        | ErrorKind::RESP3NotSupported => EngineFault::Refused(error.to_string()),
        _ => EngineFault::Unreachable(error.to_string()),
    }
}

/// What an error that the server answered with means.
pub(super) fn refused(error: &ServerError) -> EngineFault {
    EngineFault::Refused(text(error))
}

/// An error as the server said it.
pub(super) fn text(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

/// Whether a server that answers like this may be another one by now, or forgot who we are: after
/// a fail-over the old one only reads. Another connection may lead to the right one.
pub(super) fn is_moved(error: &ServerError) -> bool {
    // Old servers put the error of a script's command inside of their own.
    error.kind() == Some(ServerErrorKind::ReadOnly)
        || error.code() == "NOAUTH"
        || error.details().is_some_and(|details| details.contains("-READONLY"))
}

/// Garbage that could be read, but means nothing.
pub(super) fn nonsense(what: &str) -> EngineFault {
    EngineFault::Garbage(what.to_owned())
}
