//! The proto3 JSON of envoyproxy/ratelimit's `POST /json`: a request is read, an answer written.
//!
//! Nothing here decides: what is well-formed JSON of the message is taken as the message would be
//! from the wire. `serde_json` refuses what is nested deeper than 128 levels.

mod read;
mod write;

use crate::proto::ratelimit::{RateLimitRequest, RateLimitResponse};

/// The text is not the JSON of a request.
#[derive(Debug, thiserror::Error)]
#[error("invalid JSON request: {0}")]
pub struct InvalidJson(#[from] serde_json::Error);

/// Reads a request. Names are in camelCase or snake_case, null stands for an absent field, and an
/// unknown or repeated field is an error.
pub fn parse_request(text: &[u8]) -> Result<RateLimitRequest, InvalidJson> {
    let request: read::Object<read::Request> = serde_json::from_slice(text)?;
    Ok(request.0.into())
}

/// Writes an answer in camelCase without fields that are zero. Metadata nested deeper than
/// 64 levels are written as null.
pub fn write_response(response: &RateLimitResponse) -> String {
    // Numbers that JSON lacks are null before they come here, so writing cannot fail.
    serde_json::to_string(&write::Response::from(response)).unwrap_or_default()
}
