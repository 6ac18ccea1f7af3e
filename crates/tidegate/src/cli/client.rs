//! A client of the HTTP API, for the commands that ask a running server.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::http::uri::Authority;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use tidegate_wire::percent;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::CliError;
use super::tls::{self, CertificateArgs};
use crate::doors::io::tcp;

/// How long the server may take to answer: it decides in microseconds.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// How long a server may leave what it is sent unacknowledged, the kernel's keep-alive probes too:
/// a server that vanished is noticed while the command waits for its answer.
const UNHEARD_MAX: Duration = Duration::from_secs(60);

/// Which server is asked for uses.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServerArgs {
    /// The server's HTTP door.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    #[arg(env = "TIDEGATE_SERVER", hide_env_values = true)]
    server: String,
    #[command(flatten)]
    certificate: CertificateArgs,
}

/// Which server is administered.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AdminArgs {
    /// The server's admin listener.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8090")]
    #[arg(env = "TIDEGATE_ADMIN", hide_env_values = true)]
    admin: String,
    #[command(flatten)]
    certificate: CertificateArgs,
}

impl ServerArgs {
    pub(super) fn client(&self) -> Result<ApiClient, CliError> {
        ApiClient::new(&self.server, &self.certificate)
    }
}

impl AdminArgs {
    pub(super) fn client(&self) -> Result<ApiClient, CliError> {
        ApiClient::new(&self.admin, &self.certificate)
    }
}

/// `POST /v1/check`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CheckBody<'a> {
    pub(super) keys: &'a [String],
    pub(super) cost: u64,
    pub(super) peek: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hold_ms: Option<u64>,
}

/// `POST /v1/wait`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct WaitBody<'a> {
    pub(super) key: &'a str,
    pub(super) cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_wait_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hold_ms: Option<u64>,
}

/// What the server answers. Also printed as it came, so unknown fields are kept in `raw`.
#[derive(Debug, Deserialize)]
pub(super) struct VerdictJson {
    pub(super) allowed: bool,
    /// Null where the delay is unknown, as for uses in flight.
    pub(super) delay_ms: Option<u64>,
    pub(super) refused_by: Option<String>,
    /// Decided without the remote store that has the counts.
    #[serde(default)]
    pub(super) degraded: bool,
    pub(super) limits: Vec<LimitJson>,
    #[serde(rename = "use")]
    pub(super) use_id: Option<String>,
    #[serde(skip)]
    pub(super) raw: String,
}

/// One limit of a verdict.
#[derive(Debug, Deserialize)]
pub(super) struct LimitJson {
    pub(super) key: String,
    pub(super) rule: String,
    pub(super) limit: String,
    /// Null where nothing was counted.
    pub(super) remaining: Option<u64>,
    pub(super) rate: f64,
    pub(super) retry_after_ms: Option<u64>,
    /// Decided without the remote store that has the counts.
    #[serde(default)]
    pub(super) degraded: bool,
}

impl LimitJson {
    /// Whether it refuses because too many uses are in flight.
    pub(super) fn is_in_flight(&self) -> bool {
        self.retry_after_ms.is_none() && self.limit.contains("in flight")
    }
}

#[derive(Deserialize)]
struct ProblemJson {
    /// Only Tidegate's problems have one.
    #[serde(rename = "reason")]
    _reason: String,
    title: Option<String>,
    detail: Option<String>,
}

/// A server that is asked, over a connection for each question.
pub(super) struct ApiClient {
    /// As it was written.
    server: String,
    authority: Authority,
    is_https: bool,
    certificate: CertificateArgs,
    /// What paths begin with.
    base: String,
}

type Sender = http1::SendRequest<Full<Bytes>>;

/// What the server is asked, and for how long; without a time, for as long as it is there.
struct Question {
    method: Method,
    path: String,
    json: Vec<u8>,
    patience: Option<Duration>,
}

impl Question {
    fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), json: Vec::new(), patience: Some(ANSWER_WAIT) }
    }

    fn post(path: &str, json: &impl Serialize) -> Result<Self, CliError> {
        let json = serde_json::to_vec(json).map_err(anyhow::Error::from)?;
        Ok(Self { json, ..Self::new(Method::POST, path) })
    }
}

impl ApiClient {
    fn new(server: &str, certificate: &CertificateArgs) -> Result<Self, CliError> {
        let server = server.trim_end_matches('/').to_owned();
        let url = server.parse::<Uri>().unwrap_or_default();
        let authority = url.authority().filter(|authority| is_place(authority));
        let (Some(scheme @ ("http" | "https")), Some(authority), None) =
            (url.scheme_str(), authority, url.query())
        else {
            let wrong = format!("\"{server}\" is not a server: write http://ADDRESS:PORT");
            return Err(CliError::Usage(wrong));
        };
        let base = url.path().trim_end_matches('/').to_owned();
        let (authority, certificate) = (authority.clone(), certificate.clone());
        let is_https = scheme == "https";
        Ok(Self { authority, is_https, certificate, base, server })
    }

    pub(super) fn check(&self, check: &CheckBody) -> Result<VerdictJson, CliError> {
        self.verdict(Question::post("/v1/check", check)?)
    }

    /// Waits for a use. The server has a little longer to answer than it may let us wait.
    pub(super) fn wait(&self, wait: &WaitBody) -> Result<VerdictJson, CliError> {
        let max_wait = wait.max_wait_ms.map(Duration::from_millis);
        let patience = max_wait.map(|span| span.saturating_add(ANSWER_WAIT));
        self.verdict(Question { patience, ..Question::post("/v1/wait", wait)? })
    }

    pub(super) fn peek(&self, key: &str) -> Result<VerdictJson, CliError> {
        self.verdict(Question::new(Method::GET, key_path(key)))
    }

    pub(super) fn reset(&self, key: &str) -> Result<(), CliError> {
        self.done(Question::new(Method::DELETE, key_path(key)))
    }

    /// Gives back a use in flight.
    pub(super) fn end(&self, use_id: &str) -> Result<(), CliError> {
        self.done(Question::new(Method::DELETE, format!("/v1/uses/{use_id}")))
    }

    /// Whether the server is ready, and what it says about that.
    pub(super) fn readiness(&self) -> Result<(bool, String), CliError> {
        let (status, body) = self.ask(Question::new(Method::GET, "/readyz"))?;
        Ok((status.is_success(), body))
    }

    fn verdict(&self, question: Question) -> Result<VerdictJson, CliError> {
        let (status, raw) = self.ask(question)?;
        if status.is_success() || status == StatusCode::TOO_MANY_REQUESTS {
            let verdict: VerdictJson =
                serde_json::from_str(&raw).map_err(|error| self.odd(&error))?;
            return Ok(VerdictJson { raw, ..verdict });
        }
        Err(self.refusal(status, &raw))
    }

    fn done(&self, question: Question) -> Result<(), CliError> {
        let (status, body) = self.ask(question)?;
        if status.is_success() { Ok(()) } else { Err(self.refusal(status, &body)) }
    }

    fn ask(&self, question: Question) -> Result<(StatusCode, String), CliError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(anyhow::Error::from)?;
        let asked = runtime.block_on(async {
            match question.patience {
                Some(patience) => in_time(patience, self.exchange(question)).await,
                None => self.exchange(question).await,
            }
        });
        // The connection ends here in any case; a name that is still looked up is not waited for.
        runtime.shutdown_background();
        asked.map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &anyhow::Error) -> CliError {
        let server = &self.server;
        let is_parse = |cause: &hyper::Error| cause.is_parse();
        CliError::Unreachable(if let Some(fault) = tls::fault(error) {
            format!("TLS with {server} failed: {fault}")
        } else if error.downcast_ref().is_some_and(is_parse) {
            format!("what answers at {server} is not HTTP; if it has `tls`, write https://")
        } else {
            format!("no server at {server}: {error:#}")
        })
    }

    async fn exchange(&self, question: Question) -> anyhow::Result<(StatusCode, String)> {
        let Question { method, path, json, .. } = question;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(HOST, self.authority.as_str());
        if !json.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(json)))?;
        let mut sender = in_time(ANSWER_WAIT, self.connect()).await?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(anyhow::Error::from_boxed)?.to_bytes();
        Ok((status, String::from_utf8(body.into())?))
    }

    async fn connect(&self) -> anyhow::Result<Sender> {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        let usual = if self.is_https { 443 } else { 80 };
        let stream = TcpStream::connect((host, self.authority.port_u16().unwrap_or(usual))).await?;
        tcp::set_stream_options(&stream)?;
        SockRef::from(&stream).set_tcp_user_timeout(Some(UNHEARD_MAX))?;
        match self.is_https {
            true => speak(tls::connect(host, stream, &self.certificate).await?).await,
            false => speak(stream).await,
        }
    }

    /// Why the server refused, in its own words.
    fn refusal(&self, status: StatusCode, body: &str) -> CliError {
        let Ok(problem) = serde_json::from_str::<ProblemJson>(body) else {
            return self.odd(&format!("it answered {status}"));
        };
        let words = problem.detail.or(problem.title);
        let words = words.unwrap_or_else(|| format!("the server answered {status}"));
        if status.is_client_error() { CliError::Usage(words) } else { CliError::Unreachable(words) }
    }

    fn odd(&self, error: &dyn std::fmt::Display) -> CliError {
        let server = &self.server;
        CliError::Unreachable(format!("what answers at {server} is not Tidegate: {error}"))
    }
}

/// Begins to speak HTTP on a connection.
async fn speak<T>(stream: T) -> anyhow::Result<Sender>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn in_time<T, E: Into<anyhow::Error>>(
    patience: Duration,
    asked: impl Future<Output = Result<T, E>>,
) -> anyhow::Result<T> {
    match timeout(patience, asked).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(anyhow::anyhow!("no answer in time")),
    }
}

/// Whether it is a host, perhaps with a port, without a user's name.
fn is_place(authority: &Authority) -> bool {
    let port = authority.as_str().strip_prefix(authority.host());
    port.is_some_and(|port| port.is_empty() || authority.port_u16().is_some())
}

/// A key as one segment of a path.
fn key_path(key: &str) -> String {
    // Dots are encoded too: a segment of dots alone would be a step to another folder.
    format!("/v1/keys/{}", percent::encoded(key.as_bytes(), b"-_~"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_place_and_perhaps_a_path() {
        let none = CertificateArgs { client_cert: None, client_key: None };
        let client = |server: &str| ApiClient::new(server, &none).ok();
        for right in ["http://127.0.0.1:8080", "http://[::1]:1/", "http://a", "https://a:1/b/"] {
            assert!(client(right).is_some(), "{right}");
        }
        assert_eq!(client("http://a:1/b/").map(|client| client.base), Some("/b".to_owned()));
        for wrong in
            ["", "a", "a:1", "ftp://a", "http://", "http://u:p@a", "http://a:99999", "http://a?b"]
        {
            assert!(client(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn keys_are_one_segment_of_a_path_whatever_is_in_them() {
        assert_eq!(key_path("ws ip=1.2?/%é"), "/v1/keys/ws%20ip%3D1%2E2%3F%2F%25%C3%A9");
        assert_eq!(key_path(".."), "/v1/keys/%2E%2E");
    }
}
