//! A client of the HTTP API, for the commands that ask a running server.

use std::io::Read as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use super::Failure;

/// How long the server may take to answer: it decides in microseconds.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// The largest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Which server is asked.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServerArgs {
    /// The server's HTTP door.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(super) server: String,
}

/// `POST /v1/check`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check<'a> {
    pub(super) keys: &'a [String],
    pub(super) cost: u64,
    pub(super) peek: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hold_ms: Option<u64>,
}

/// `POST /v1/wait`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Wait<'a> {
    pub(super) key: &'a str,
    pub(super) cost: u64,
    pub(super) max_wait_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hold_ms: Option<u64>,
}

/// What the server answers. Also printed as it came, so unknown fields are kept in `raw`.
#[derive(Debug, Deserialize)]
pub(super) struct Verdict {
    pub(super) allowed: bool,
    /// Null where nobody can tell, as for uses in flight.
    pub(super) delay_ms: Option<u64>,
    pub(super) refused_by: Option<String>,
    pub(super) limits: Vec<LimitVerdict>,
    #[serde(rename = "use")]
    pub(super) use_id: Option<String>,
    #[serde(skip)]
    pub(super) raw: String,
}

/// One limit of a verdict.
#[derive(Debug, Deserialize)]
pub(super) struct LimitVerdict {
    pub(super) key: String,
    pub(super) rule: String,
    pub(super) limit: String,
    pub(super) remaining: u64,
    pub(super) rate: f64,
    pub(super) retry_after_ms: Option<u64>,
}

#[derive(Deserialize)]
struct ProblemJson {
    title: Option<String>,
    detail: Option<String>,
}

/// A server, and a connection to it that is kept.
pub(super) struct Client {
    agent: Agent,
    server: String,
}

impl Client {
    pub(super) fn new(args: &ServerArgs) -> Result<Self, Failure> {
        let server = args.server.trim_end_matches('/').to_owned();
        if !server.starts_with("http://") {
            let wrong = format!("\"{server}\" is not a server: write http://ADDRESS:PORT");
            return Err(Failure::Usage(wrong));
        }
        // A proxy for the web is no way to a limiter on loopback.
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(ANSWER_WAIT))
            .proxy(None)
            .build()
            .new_agent();
        Ok(Self { agent, server })
    }

    pub(super) fn check(&self, check: &Check) -> Result<Verdict, Failure> {
        let body = serde_json::to_vec(check).map_err(anyhow::Error::from)?;
        let request = self.agent.post(self.url("/v1/check"));
        let answer = request.header("content-type", "application/json").send(&body[..]);
        self.verdict(answer)
    }

    /// Waits for a use. The server has a little longer to answer than it may let us wait.
    pub(super) fn wait(&self, wait: &Wait) -> Result<Verdict, Failure> {
        let body = serde_json::to_vec(wait).map_err(anyhow::Error::from)?;
        let patience = Duration::from_millis(wait.max_wait_ms).saturating_add(ANSWER_WAIT);
        let request = self.agent.post(self.url("/v1/wait"));
        let request = request.config().timeout_global(Some(patience)).build();
        let answer = request.header("content-type", "application/json").send(&body[..]);
        self.verdict(answer)
    }

    pub(super) fn peek(&self, key: &str) -> Result<Verdict, Failure> {
        self.verdict(self.agent.get(self.key_url(key)).call())
    }

    pub(super) fn reset(&self, key: &str) -> Result<(), Failure> {
        self.done(self.agent.delete(self.key_url(key)).call())
    }

    /// Gives back a use in flight.
    pub(super) fn end(&self, use_id: &str) -> Result<(), Failure> {
        self.done(self.agent.delete(self.url(&format!("/v1/uses/{use_id}"))).call())
    }

    /// Whether the server is ready, and what it says about that.
    pub(super) fn readiness(&self) -> Result<(bool, String), Failure> {
        let (status, body) = self.read(self.agent.get(self.url("/readyz")).call())?;
        Ok((status.is_success(), body))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server)
    }

    fn key_url(&self, key: &str) -> String {
        self.url(&format!("/v1/keys/{}", percent_encoded(key)))
    }

    fn verdict(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<Verdict, Failure> {
        let (status, raw) = self.read(answer)?;
        if status.is_success() || status == StatusCode::TOO_MANY_REQUESTS {
            let verdict: Verdict = serde_json::from_str(&raw).map_err(|error| self.odd(&error))?;
            return Ok(Verdict { raw, ..verdict });
        }
        Err(refusal(status, &raw))
    }

    fn done(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<(), Failure> {
        let (status, body) = self.read(answer)?;
        if status.is_success() { Ok(()) } else { Err(refusal(status, &body)) }
    }

    fn read(
        &self,
        answer: Result<Response<Body>, ureq::Error>,
    ) -> Result<(StatusCode, String), Failure> {
        let unreachable =
            |error: &dyn std::fmt::Display| format!("no server at {}: {error}", self.server);
        let mut answer = answer.map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure::Usage(error.to_string()),
            error => Failure::Unreachable(unreachable(&error)),
        })?;
        let mut body = String::new();
        let mut reader = answer.body_mut().as_reader().take(ANSWER_BYTES_MAX);
        reader
            .read_to_string(&mut body)
            .map_err(|error| Failure::Unreachable(unreachable(&error)))?;
        Ok((answer.status(), body))
    }

    fn odd(&self, error: &dyn std::fmt::Display) -> Failure {
        let server = &self.server;
        Failure::Unreachable(format!("what answers at {server} is not Tidegate: {error}"))
    }
}

/// What the server did not want, in its own words.
fn refusal(status: StatusCode, body: &str) -> Failure {
    let problem = serde_json::from_str::<ProblemJson>(body).ok();
    let words = problem.and_then(|problem| problem.detail.or(problem.title));
    let words = words.unwrap_or_else(|| format!("the server answered {status}"));
    if status.is_client_error() { Failure::Usage(words) } else { Failure::Unreachable(words) }
}

/// A key as one segment of a path.
fn percent_encoded(key: &str) -> String {
    let mut encoded = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Dots too: a segment of dots alone would be a step to another folder.
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_one_segment_of_a_path_whatever_is_in_them() {
        assert_eq!(percent_encoded("ws ip=1.2?/%é"), "ws%20ip%3D1%2E2%3F%2F%25%C3%A9");
        assert_eq!(percent_encoded(".."), "%2E%2E");
    }
}
