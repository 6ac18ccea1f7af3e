//! `GET` and `DELETE /v1/records/{key}`: counters and buffers shown and removed.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::keys::key_behind;
use super::router::AdminContext;
use crate::doors::http_server::json::{millis, respond, shown};
use crate::doors::http_server::problem::HttpProblem;
use crate::records::{KEY_BYTES_MAX, ListedRecord, RecordKind, Stat};

#[derive(Serialize)]
struct RecordJson<'a> {
    key: Cow<'a, str>,
    kind: &'static str,
    /// There only for a counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<u64>,
    /// There only for a buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    ttl_ms: Option<u64>,
    stats: StatJson,
}

#[derive(Serialize)]
struct StatJson {
    reads_per_minute: u64,
    writes_per_minute: u64,
    reads: u64,
    writes: u64,
}

impl From<Stat> for StatJson {
    fn from(stat: Stat) -> Self {
        let Stat { reads_per_minute, writes_per_minute, reads, writes } = stat;
        Self { reads_per_minute, writes_per_minute, reads, writes }
    }
}

impl<'a> RecordJson<'a> {
    fn new(record: &'a ListedRecord) -> Self {
        let counter = record.kind == RecordKind::Counter;
        Self {
            key: shown(record.key()),
            kind: if counter { "counter" } else { "buffer" },
            quota: counter.then_some(record.quota),
            bytes: (!counter).then_some(record.value_bytes),
            ttl_ms: millis(record.left_nanos),
            stats: record.stat.into(),
        }
    }
}

fn key_in(uri: &Uri) -> Result<Vec<u8>, HttpProblem> {
    let key = key_behind("/v1/records/", uri)?;
    if key.len() > KEY_BYTES_MAX {
        return Err(HttpProblem::record_key_too_long());
    }
    Ok(key)
}

/// Looks at one record. That counts as no use of it.
pub(super) async fn show(
    State(context): State<Arc<AdminContext>>,
    uri: Uri,
) -> Result<Response, HttpProblem> {
    let key = key_in(&uri)?;
    let records = &context.gate.records;
    match records.look(&key, records.probe(&key), context.handle.now()) {
        Some(record) => Ok(respond(StatusCode::OK, &RecordJson::new(&record))),
        None => {
            let detail = "there is no such record; it may have expired";
            Err(HttpProblem::new(StatusCode::NOT_FOUND, "unknown_record", detail))
        }
    }
}

/// Removes one record. One that was not there counts as removed.
pub(super) async fn purge(
    State(context): State<Arc<AdminContext>>,
    uri: Uri,
) -> Result<Response, HttpProblem> {
    let key = key_in(&uri)?;
    let records = &context.gate.records;
    records.purge(&key, records.probe(&key), context.handle.now());
    Ok(StatusCode::NO_CONTENT.into_response())
}
