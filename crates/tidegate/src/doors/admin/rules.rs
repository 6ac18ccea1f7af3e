//! `GET /v1/rules`, and `GET`, `PUT` and `DELETE /v1/rules/{name}`: rules, shown and changed.

use std::fmt;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ETAG, IF_MATCH};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::keys::key_behind;
use super::router::AdminContext;
use crate::control::{ChangeError, Changed};
use crate::doors::http_server::body::read_json;
use crate::doors::http_server::connections::PeerAddress;
use crate::doors::http_server::json::respond;
use crate::doors::http_server::problem::HttpProblem;
use crate::settings::change::{self, JsonFields};
use crate::settings::in_force::RuleEntry;
use crate::settings::rule::RuleTable;

#[derive(Serialize)]
struct RulesJson<'a> {
    version: u64,
    rules: Vec<RuleJson<'a>>,
}

#[derive(Serialize)]
struct RuleJson<'a> {
    name: &'a str,
    #[serde(flatten)]
    table: RuleTable,
    /// The limits after they were split among replicas.
    in_force: Vec<String>,
    from: &'static str,
    changed: bool,
}

impl<'a> RuleJson<'a> {
    fn new(entry: &'a RuleEntry) -> Self {
        Self {
            name: entry.name(),
            table: change::shown(&entry.now),
            in_force: entry.now.rule.limits.iter().map(ToString::to_string).collect(),
            from: entry.from(),
            changed: entry.changed(),
        }
    }
}

/// The fields of a body, none of them twice.
struct FieldsJson(JsonFields);

impl<'de> Deserialize<'de> for FieldsJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Once;
        impl<'de> Visitor<'de> for Once {
            type Value = JsonFields;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("the settings of a rule")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonFields, A::Error> {
                let mut fields = JsonFields::new();
                while let Some((name, value)) = map.next_entry::<String, _>()? {
                    if fields.contains_key(&name) {
                        return Err(de::Error::custom(format!("{name}: given twice")));
                    }
                    fields.insert(name, value);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Once).map(Self)
    }
}

impl From<ChangeError> for HttpProblem {
    fn from(error: ChangeError) -> Self {
        let (status, reason) = match &error {
            ChangeError::Unknown => (StatusCode::NOT_FOUND, "unknown_rule"),
            ChangeError::Outdated => (StatusCode::PRECONDITION_FAILED, "outdated"),
            ChangeError::TooMany => (StatusCode::CONFLICT, "rules_full"),
            ChangeError::Wrong(_) => (StatusCode::BAD_REQUEST, "field"),
        };
        match error {
            ChangeError::Wrong(wrong) => Self::fields(wrong),
            error => Self::new(status, reason, error.to_string()),
        }
    }
}

/// The name in the path: any text, percent-encoded.
fn name_in(uri: &Uri) -> Result<String, HttpProblem> {
    // No rule has a name that is not UTF-8.
    String::from_utf8(key_behind("/v1/rules/", uri)?).map_err(|_| ChangeError::Unknown.into())
}

/// The version that the caller has seen, if it wants to change only that.
fn expected(headers: &HeaderMap) -> Result<Option<u64>, HttpProblem> {
    // A star stands for whatever is there.
    let Some(value) = headers.get(IF_MATCH).filter(|value| *value != "*") else { return Ok(None) };
    let version = value
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix('"')?.strip_suffix('"')?.parse().ok());
    // What is not one of our versions is not the one in force.
    version.map(Some).ok_or_else(|| ChangeError::Outdated.into())
}

fn tagged(mut response: Response, version: u64) -> Response {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// Lists all rules in the order in which they are tried.
pub(super) async fn list(State(context): State<Arc<AdminContext>>) -> Response {
    let in_force = context.gate.control.rules();
    let rules = in_force.entries.iter().map(|entry| RuleJson::new(entry)).collect();
    let json = RulesJson { version: in_force.version, rules };
    tagged(respond(StatusCode::OK, &json), in_force.version)
}

/// Shows one rule.
pub(super) async fn show(
    State(context): State<Arc<AdminContext>>,
    uri: Uri,
) -> Result<Response, HttpProblem> {
    let name = name_in(&uri)?;
    let in_force = context.gate.control.rules();
    let entry = in_force.find(&name).ok_or(ChangeError::Unknown)?;
    Ok(tagged(respond(StatusCode::OK, &RuleJson::new(entry)), in_force.version))
}

/// Changes one rule, or adds it.
pub(super) async fn set(
    State(context): State<Arc<AdminContext>>,
    Extension(PeerAddress(peer)): Extension<PeerAddress>,
    request: Request<Body>,
) -> Result<Response, HttpProblem> {
    let name = name_in(request.uri())?;
    let expected = expected(request.headers())?;
    let FieldsJson(fields) = read_json(request).await?;
    let change =
        move |context: &AdminContext| context.gate.control.set_rule(&name, fields, expected);
    let Changed { entry, created, version } = on_the_side(&context, change).await?;
    let json = RuleJson::new(&entry);
    context.gate.metrics.rule_change("set");
    let limits = json.in_force.join(", ");
    tracing::info!(rule = json.name, limits, %peer, "rule changed over the API");
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(tagged(respond(status, &json), version))
}

/// Takes one rule back to what the file says.
pub(super) async fn restore(
    State(context): State<Arc<AdminContext>>,
    Extension(PeerAddress(peer)): Extension<PeerAddress>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, HttpProblem> {
    let name = name_in(&uri)?;
    let expected = expected(&headers)?;
    let rule = name.clone();
    on_the_side(&context, move |context| context.gate.control.restore_rule(&rule, expected))
        .await?;
    context.gate.metrics.rule_change("restored");
    tracing::info!(rule = name, %peer, "rule restored over the API");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Compiles and waits for its turn off the loops that answer.
async fn on_the_side<T: Send + 'static>(
    context: &Arc<AdminContext>,
    change: impl FnOnce(&AdminContext) -> Result<T, ChangeError> + Send + 'static,
) -> Result<T, HttpProblem> {
    let context = context.clone();
    let changed = tokio::task::spawn_blocking(move || change(&context));
    changed
        .await
        .map_err(|_| {
            let detail = "the rule could not be changed";
            HttpProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "rules", detail)
        })?
        .map_err(HttpProblem::from)
}
