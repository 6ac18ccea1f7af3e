//! Which nodes live: each has a name under a lease that it prolongs.

use std::collections::HashMap;

use etcd_client::proto::PbTxnOpResponse;
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};
use parking_lot::Mutex;
use tidegate_core::Nanos;
use tidegate_core::time::SECOND;

use super::etcd_error::EtcdError;
use super::link::EtcdConnection;
use crate::stores::remote::engine::EngineFault;

/// More nodes than this do not share counts.
const NODES_MAX: i64 = 4_096;

/// The nodes' names, and the leases of this one's.
pub(super) struct EtcdNodes {
    folder: Vec<u8>,
    leases: Mutex<HashMap<u64, Granted>>,
}

#[derive(Clone, Copy)]
struct Granted {
    id: i64,
    seconds: i64,
}

impl EtcdNodes {
    pub(super) fn new(prefix: &str) -> Self {
        let folder = format!("{prefix}:nodes:").into_bytes();
        Self { folder, leases: Mutex::default() }
    }

    /// What the names of nodes begin with.
    pub(super) fn folder(&self) -> &[u8] {
        &self.folder
    }

    /// Prolongs the lease, or asks for one, and returns whose names are there.
    pub(super) async fn beat(
        &self,
        line: &EtcdConnection,
        node: u64,
        lives: Nanos,
    ) -> Result<Vec<u64>, EtcdError> {
        let seconds = i64::try_from(lives.div_ceil(SECOND).max(1)).unwrap_or(i64::MAX);
        let known = self.leases.lock().get(&node).copied();
        let kept = match known {
            Some(lease) if lease.seconds == seconds => match line.keep_alive(lease.id).await {
                Ok(()) => Some(lease),
                Err(EtcdError::LeaseGone) => None,
                Err(etcd_error) => return Err(etcd_error),
            },
            _ => None,
        };
        let lease = match kept {
            Some(lease) => lease,
            None => Granted { id: line.grant(seconds).await?, seconds },
        };
        self.leases.lock().insert(node, lease);
        let listed = self.list(line, node, lease.id).await?;
        // The name has moved to the new lease, so that the end of the old one takes nothing along.
        if let Some(old) = known.filter(|old| old.id != lease.id) {
            let _ = line.revoke(old.id).await;
        }
        Ok(listed)
    }

    /// Forgets the node and all that hangs on its lease.
    pub(super) async fn leave(&self, line: &EtcdConnection, node: u64) -> Result<(), EtcdError> {
        let lease = self.leases.lock().remove(&node);
        match lease {
            Some(lease) => line.revoke(lease.id).await,
            None => Ok(()),
        }
    }

    /// Writes the node's name, unless it is there, and reads all.
    async fn list(
        &self,
        line: &EtcdConnection,
        node: u64,
        lease: i64,
    ) -> Result<Vec<u64>, EtcdError> {
        let name = [&*self.folder, format!("{node:016x}").as_bytes()].concat();
        let read = || {
            let options = GetOptions::new().with_prefix().with_keys_only().with_limit(NODES_MAX);
            TxnOp::get(&*self.folder, Some(options))
        };
        let put = TxnOp::put(&*name, "", Some(PutOptions::new().with_lease(lease)));
        let txn = Txn::new()
            .when([Compare::lease(&*name, CompareOp::Equal, lease)])
            .and_then([read()])
            .or_else([put, read()]);
        let answer = line.told(line.kv().txn(txn).await)?;
        line.revision_of(answer.header())?;
        let Some(PbTxnOpResponse::ResponseRange(range)) =
            answer.0.responses.into_iter().last().and_then(|answer| answer.response)
        else {
            return Err(EtcdError::Said(EngineFault::Garbage(
                "the nodes have not been read".into(),
            )));
        };
        // Names that are not ours are no nodes.
        Ok(range.kvs.iter().filter_map(|value| self.node(&value.key)).collect())
    }

    fn node(&self, name: &[u8]) -> Option<u64> {
        let digits = name.strip_prefix(&*self.folder)?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 16)?;
        u64::from_str_radix(digits, 16).ok()
    }
}
