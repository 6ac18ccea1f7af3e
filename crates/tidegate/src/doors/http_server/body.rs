//! Reading a body: size and time are checked, and of JSON its content type and shape, before
//! anything is done.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use super::problem::HttpProblem;

/// The largest body that is read, unless a handler takes larger ones.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;
/// How much more of a larger body is read and passed over before it is refused.
const BODY_BYTES_PASSED: usize = 1 << 20;
/// How long a client may take to send its body.
pub(crate) const BODY_READ_MAX: Duration = Duration::from_secs(10);

/// Reads the whole body as one JSON object.
pub(crate) async fn read_json<T: DeserializeOwned>(
    request: Request<Body>,
) -> Result<T, HttpProblem> {
    check_type(request.headers())?;
    parse(&read_bytes(request).await?)
}

/// Reads the whole body, whatever it is.
async fn read_bytes(request: Request<Body>) -> Result<Vec<u8>, HttpProblem> {
    read_up_to(BODY_BYTES_MAX, request, |_| true).await
}

/// Reads the whole body, of at most so many bytes, if there `is_room` for each further piece.
pub(crate) async fn read_up_to(
    most: usize,
    request: Request<Body>,
    is_room: impl Fn(usize) -> bool,
) -> Result<Vec<u8>, HttpProblem> {
    check_length(request.headers(), most)?;
    let mut kept = Vec::new();
    let read = read_whole(request.into_body(), most, &mut kept, is_room);
    match tokio::time::timeout(BODY_READ_MAX, read).await {
        _ if kept.len() > most => Err(too_large(most)),
        Err(_) => {
            let detail = "the body did not arrive in time";
            Err(HttpProblem::new(StatusCode::REQUEST_TIMEOUT, "body_slow", detail))
        }
        Ok(Err(_)) => Err(HttpProblem::bad_request("body", "the body ended early")),
        Ok(Ok(false)) => {
            let detail = "there is no room for large bodies";
            Err(HttpProblem::new(StatusCode::SERVICE_UNAVAILABLE, "overload", detail))
        }
        Ok(Ok(true)) => Ok(kept),
    }
}

/// Keeps the body up to one byte over its bound, and passes over some of what follows: closing
/// on a client that still sends would take the answer away from it. `false`: there was no room.
async fn read_whole(
    mut body: Body,
    most: usize,
    kept: &mut Vec<u8>,
    is_room: impl Fn(usize) -> bool,
) -> Result<bool, axum::Error> {
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let room = (most + 1).saturating_sub(kept.len());
        let data_kept = &data[..data.len().min(room)];
        if !is_room(data_kept.len()) {
            return Ok(false);
        }
        kept.extend_from_slice(data_kept);
        seen += data.len();
        if seen > most + BODY_BYTES_PASSED {
            break;
        }
    }
    Ok(true)
}

fn check_type(headers: &HeaderMap) -> Result<(), HttpProblem> {
    let unsupported =
        |detail| Err(HttpProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", detail));
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return unsupported("the body must be sent as Content-Type: application/json");
    }
    match headers.get(CONTENT_ENCODING) {
        Some(coding) if coding != "identity" => unsupported("the body must not be compressed"),
        _ => Ok(()),
    }
}

/// Refuses a declared length before the first byte is read, where the client still waits to be
/// told to go on or means to send more than would be passed over.
fn check_length(headers: &HeaderMap, most: usize) -> Result<(), HttpProblem> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let passed = if headers.contains_key(EXPECT) { 0 } else { BODY_BYTES_PASSED };
    match declared.map(str::parse::<usize>) {
        Some(Ok(length)) if length > most + passed => Err(too_large(most)),
        _ => Ok(()),
    }
}

fn too_large(most: usize) -> HttpProblem {
    let detail = format!("a body has at most {most} bytes");
    HttpProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HttpProblem> {
    // Without this an array would be read as the fields in order.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(HttpProblem::bad_request("json", "the body must be one JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        if !error.is_data() {
            HttpProblem::bad_request("json", format!("the body is not JSON: {error}"))
        } else if path == "." {
            HttpProblem::bad_request("field", error.to_string())
        } else {
            // A cost is never zero.
            let number = format!("expected a whole number from {}", u8::from(path == "cost"));
            let told = error.to_string().replace("expected u64", &number);
            let told = told.rsplit_once(" at line ").map_or(told.as_str(), |(told, _)| told);
            HttpProblem::bad_request("field", format!("{path}: {told}"))
        }
    })?;
    json.end().map_err(|error| {
        HttpProblem::bad_request("json", format!("there is more after the JSON object: {error}"))
    })?;
    Ok(value)
}
