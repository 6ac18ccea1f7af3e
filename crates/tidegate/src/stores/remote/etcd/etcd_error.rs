//! What etcd's errors mean: what a caller is told, and whether the connection is still good.

use etcd_client::Error;
use tonic::Code;

use super::super::engine::EngineFault;

/// Why an exchange came to nothing.
#[derive(Debug)]
pub(super) enum EtcdError {
    /// The lease that a write names is gone, and nothing was written.
    LeaseGone,
    /// The answer is longer than what is taken.
    TooLong,
    /// etcd answered, and says no.
    Said(EngineFault),
    /// The connection is of no more use.
    Broken(EngineFault),
}

impl From<EtcdError> for EngineFault {
    fn from(etcd_error: EtcdError) -> Self {
        match etcd_error {
            EtcdError::LeaseGone => {
                EngineFault::Refused("leases end as soon as they are granted".into())
            }
            EtcdError::TooLong => EngineFault::Garbage("an answer is too long".into()),
            EtcdError::Said(fault) | EtcdError::Broken(fault) => fault,
        }
    }
}

/// What the client's error says.
pub(super) fn etcd_error(error: Error) -> EtcdError {
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
        Error::LeaseKeepAliveError(_) => EtcdError::LeaseGone,
        Error::InvalidMetadataValue(_) | Error::Utf8Error(_) => {
            EtcdError::Broken(EngineFault::Garbage(error.to_string()))
        }
        Error::InvalidArgs(_) | Error::InvalidUri(_) => {
            EtcdError::Broken(EngineFault::Refused(error.to_string()))
        }
        _ => EtcdError::Broken(EngineFault::Unreachable(error.to_string())),
    }
}

/// etcd's own errors begin with its name; whatever else comes with a code is the transport's.
fn said(code: Code, message: &str, cause: impl FnOnce() -> String) -> EtcdError {
    let own = message.starts_with("etcdserver:") || message.starts_with("auth:");
    let text = || message.to_owned();
    match code {
        Code::NotFound if message.contains("lease not found") => EtcdError::LeaseGone,
        Code::OutOfRange => EtcdError::TooLong,
        // The same token would fail again. A new connection gets a new token.
        Code::Unauthenticated => EtcdError::Broken(EngineFault::Refused(text())),
        Code::InvalidArgument
            if message.contains("auth store is old") || message.contains("user name is empty") =>
        {
            EtcdError::Broken(EngineFault::Refused(text()))
        }
        Code::Unavailable | Code::Unknown | Code::DeadlineExceeded
            if own && message.contains("timed out") =>
        {
            EtcdError::Said(EngineFault::Slow)
        }
        Code::Unavailable if own && !message.contains("stopped") => {
            EtcdError::Said(EngineFault::Unreachable(text()))
        }
        Code::Unavailable | Code::Cancelled | Code::Aborted => {
            EtcdError::Broken(EngineFault::Unreachable(cause()))
        }
        Code::DeadlineExceeded => EtcdError::Said(EngineFault::Slow),
        Code::Unknown if own => EtcdError::Said(EngineFault::Refused(text())),
        Code::Unknown => EtcdError::Broken(EngineFault::Unreachable(cause())),
        Code::Internal | Code::DataLoss | Code::Unimplemented | Code::Ok => {
            EtcdError::Broken(EngineFault::Garbage(cause()))
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition => EtcdError::Said(EngineFault::Refused(text())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: Code, message: &str, kind: &str, broken: bool) {
        let etcd_error = said(code, message, || message.to_owned());
        assert_eq!(matches!(etcd_error, EtcdError::Broken(_)), broken, "{code:?} {message}");
        assert_eq!(EngineFault::from(etcd_error).kind(), kind, "{code:?} {message}");
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
        assert!(matches!(said(Code::NotFound, gone, String::new), EtcdError::LeaseGone));
        let other = said(Code::NotFound, "etcdserver: user name not found", String::new);
        assert!(matches!(other, EtcdError::Said(EngineFault::Refused(_))));
    }
}
