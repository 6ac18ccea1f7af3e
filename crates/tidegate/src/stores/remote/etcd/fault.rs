//! What etcd's errors mean: what a caller is told, and whether the connection is still good.

use etcd_client::Error;
use tonic::Code;

use super::super::engine::Fault;

/// Why an exchange came to nothing.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The lease that a write names is gone, and nothing was written.
    LeaseGone,
    /// The answer is longer than what is taken.
    TooLong,
    /// etcd answered, and says no.
    Said(Fault),
    /// The connection is of no more use.
    Broken(Fault),
}

impl From<Trouble> for Fault {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::LeaseGone => Fault::Refused("leases end as soon as they are granted".into()),
            Trouble::TooLong => Fault::Garbage("an answer is too long".into()),
            Trouble::Said(fault) | Trouble::Broken(fault) => fault,
        }
    }
}

/// What the client's error says.
pub(super) fn trouble(error: Error) -> Trouble {
    match error {
        Error::GRpcStatus(status) => said(status.code(), status.message(), || {
            // The outermost sentence is often "transport error"; the cause says more.
            let source = std::error::Error::source(&status);
            let root = source.map(|error| {
                std::iter::successors(Some(error), |error| error.source())
                    .last()
                    .unwrap_or(error)
                    .to_string()
            });
            root.unwrap_or_else(|| status.message().to_owned())
        }),
        Error::LeaseKeepAliveError(_) => Trouble::LeaseGone,
        Error::InvalidMetadataValue(_) | Error::Utf8Error(_) => {
            Trouble::Broken(Fault::Garbage(error.to_string()))
        }
        Error::InvalidArgs(_) | Error::InvalidUri(_) => {
            Trouble::Broken(Fault::Refused(error.to_string()))
        }
        _ => Trouble::Broken(Fault::Unreachable(error.to_string())),
    }
}

/// etcd's own errors begin with its name; whatever else comes with a code is the transport's.
fn said(code: Code, message: &str, cause: impl FnOnce() -> String) -> Trouble {
    let own = message.starts_with("etcdserver:") || message.starts_with("auth:");
    let text = || message.to_owned();
    match code {
        Code::NotFound if message.contains("lease not found") => Trouble::LeaseGone,
        Code::OutOfRange => Trouble::TooLong,
        // It stays as it was for whoever asks again with the same token: a new connection has a
        // new one.
        Code::Unauthenticated => Trouble::Broken(Fault::Refused(text())),
        Code::InvalidArgument
            if message.contains("auth store is old") || message.contains("user name is empty") =>
        {
            Trouble::Broken(Fault::Refused(text()))
        }
        Code::Unavailable | Code::Unknown | Code::DeadlineExceeded
            if own && message.contains("timed out") =>
        {
            Trouble::Said(Fault::Slow)
        }
        Code::Unavailable if own && !message.contains("stopped") => {
            Trouble::Said(Fault::Unreachable(text()))
        }
        Code::Unavailable | Code::Cancelled | Code::Aborted => {
            Trouble::Broken(Fault::Unreachable(cause()))
        }
        Code::DeadlineExceeded => Trouble::Said(Fault::Slow),
        Code::Unknown if own => Trouble::Said(Fault::Refused(text())),
        Code::Unknown => Trouble::Broken(Fault::Unreachable(cause())),
        Code::Internal | Code::DataLoss | Code::Unimplemented | Code::Ok => {
            Trouble::Broken(Fault::Garbage(cause()))
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition => Trouble::Said(Fault::Refused(text())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: Code, message: &str, kind: &str, broken: bool) {
        let trouble = said(code, message, || message.to_owned());
        assert_eq!(matches!(trouble, Trouble::Broken(_)), broken, "{code:?} {message}");
        assert_eq!(Fault::from(trouble).kind(), kind, "{code:?} {message}");
    }

    #[test]
    fn what_etcd_says_is_told_from_what_happens_to_the_connection() {
        check(Code::Unavailable, "etcdserver: no leader", "unreachable", false);
        check(Code::Unavailable, "etcdserver: leader changed", "unreachable", false);
        check(Code::Unavailable, "etcdserver: server stopped", "unreachable", true);
        check(Code::Unavailable, "etcdserver: request timed out", "timeout", false);
        check(Code::Unavailable, "connection refused", "unreachable", true);
        check(Code::Unknown, "transport error", "unreachable", true);
        check(Code::Cancelled, "operation was canceled", "unreachable", true);
        check(Code::Unauthenticated, "etcdserver: invalid auth token", "refused", true);
        check(Code::InvalidArgument, "etcdserver: user name is empty", "refused", true);
        check(Code::PermissionDenied, "etcdserver: permission denied", "refused", false);
        check(Code::ResourceExhausted, "etcdserver: mvcc: database space", "refused", false);
        check(Code::Unimplemented, "unknown service", "garbage", true);
        check(Code::Internal, "h2 protocol error", "garbage", true);
    }

    #[test]
    fn a_lease_that_is_gone_is_told_from_all_else() {
        let gone = "etcdserver: requested lease not found";
        assert!(matches!(said(Code::NotFound, gone, String::new), Trouble::LeaseGone));
        let other = said(Code::NotFound, "etcdserver: user name not found", String::new);
        assert!(matches!(other, Trouble::Said(Fault::Refused(_))));
    }
}
