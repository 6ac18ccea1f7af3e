//! A connection that has stopped being HTTP: bytes in both directions, as they come.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};

use super::finish::Finish;

/// Bytes that are held in each direction while the other side is slow.
const TUNNEL_BYTES_MAX: usize = 16 << 10;

/// What is needed once the answer that agreed to it is sent.
pub(super) struct Tunnel {
    upstream: OnUpgrade,
    /// The use is held for as long as the tunnel is open.
    finish: Finish,
}

impl Tunnel {
    pub(super) fn new(upstream: OnUpgrade, finish: Finish) -> Self {
        Self { upstream, finish }
    }

    /// Copies until both sides have said their last, or one breaks off.
    pub(super) async fn run<C: AsyncRead + AsyncWrite + Unpin>(self, mut client: C) {
        let Self { upstream, mut finish } = self;
        let Ok(upstream) = upstream.await else { return };
        let mut upstream = TokioIo::new(upstream);
        let size = TUNNEL_BYTES_MAX;
        let copied = copy_bidirectional_with_sizes(&mut client, &mut upstream, size, size).await;
        if let Ok((_, to_client)) = copied {
            finish.sent(usize::try_from(to_client).unwrap_or(usize::MAX));
            finish.whole();
        }
    }
}
