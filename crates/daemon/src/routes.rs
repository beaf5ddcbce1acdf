//! What can be asked, and the answers. Documented in `docs/control-api.md`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use blockwork_insight::report::Report;
use blockwork_insight::trace::TextMerge;

use crate::arrays::{ArrayList, ArrayRequest, Refusal, RefusalKind};
use crate::groups::{GroupList, GroupRequest, PoolList, PoolRequest};
use crate::metrics;
use crate::status::ControlState;
use crate::trace_body::{Form, TraceBody};

pub(crate) type Answer = Response<BoxBody<Bytes, Infallible>>;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const BINARY: &str = "application/octet-stream";

const ARRAYS: &str = "/v1/arrays";
const GROUPS: &str = "/v1/groups";
const POOLS: &str = "/v1/pools";
const PATHS: [&str; 7] = ["/v1/status", "/v1/stats", ARRAYS, GROUPS, POOLS, "/v1/trace", "/metrics"];

/// Longest body that is read, bytes: names of an array, a group, devices and volumes.
pub const BODY_BYTES_MAX: usize = 64 << 10;

/// A body must be there after that time.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers one request. What has a body without need is answered all the same, and the body ignored.
pub(crate) async fn answer<B>(state: &ControlState, request: Request<B>) -> Answer
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let path = request.uri().path();
    let allowed = match path {
        ARRAYS | GROUPS | POOLS => "GET, POST",
        path if PATHS.contains(&path) => "GET",
        _ => {
            let error = format!("no such path; there are: {}", PATHS.join(", "));
            return refuse(StatusCode::NOT_FOUND, &json!({ "error": error }));
        }
    };
    match *request.method() {
        // A list of groups waits while one is changed.
        Method::GET if path == GROUPS => {
            let groups = Arc::clone(&state.groups);
            in_its_time(move || Ok(GroupList { groups: groups.list() })).await
        }
        Method::GET => get(state, path, request.uri().query().unwrap_or("")),
        Method::POST if path == ARRAYS => {
            let arrays = Arc::clone(&state.arrays);
            let form = r#"{"array": "md/NAME", "verb": "check"}"#;
            act(request.into_body(), form, move |asked: ArrayRequest| arrays.act(&asked)).await
        }
        Method::POST if path == GROUPS => {
            let groups = Arc::clone(&state.groups);
            let form = r#"{"group": "VG", "verb": "remove", "volumes": ["LV"]}"#;
            act(request.into_body(), form, move |asked: GroupRequest| groups.change(&asked)).await
        }
        Method::POST if path == POOLS => {
            let groups = Arc::clone(&state.groups);
            let form = r#"{"pool": "dm/NAME", "message": "create_thin 1"}"#;
            let tell = move |asked: PoolRequest| Ok(PoolList { pools: vec![groups.tell(&asked)?] });
            act(request.into_body(), form, tell).await
        }
        _ => {
            let error = json!({ "error": format!("only {allowed} is answered here") });
            let mut answer = refuse(StatusCode::METHOD_NOT_ALLOWED, &error);
            answer.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static(allowed));
            answer
        }
    }
}

fn get(state: &ControlState, path: &str, query: &str) -> Answer {
    let ok = StatusCode::OK;
    match path {
        "/v1/status" => json_of(&state.status()),
        "/v1/stats" => {
            let stats = &state.stats;
            let report = Report::new(&stats.snapshot())
                .with_rings(&stats.rings(blockwork_uring::clock()))
                .with_decisions(&stats.decisions())
                .with_choices(&stats.choices())
                .with_locks(&stats.locks());
            whole(ok, JSON, report.json().into_bytes())
        }
        ARRAYS => json_of(&ArrayList { arrays: state.arrays.list() }),
        POOLS => json_of(&PoolList { pools: state.groups.pools() }),
        "/metrics" => {
            let text = metrics::text(&state.status(), &state.stats, &state.arrays.list());
            whole(ok, METRICS, text.into_bytes())
        }
        _ => trace(state, query),
    }
}

/// Does what a body asks for; `form` is what one may look like.
async fn act<B, T, A>(
    body: B,
    form: &str,
    act: impl FnOnce(T) -> Result<A, Refusal> + Send + 'static,
) -> Answer
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    T: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
{
    match read_request::<B, T>(body, form).await {
        Ok(asked) => in_its_time(move || act(asked)).await,
        Err((status, error)) => refuse(status, &json!({ "error": error })),
    }
}

/// What is asked, from a body of bounded length that comes in time.
async fn read_request<B, T>(body: B, form: &str) -> Result<T, (StatusCode, String)>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    T: DeserializeOwned,
{
    let body = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let body = body
        .map_err(|_| (StatusCode::REQUEST_TIMEOUT, format!("no body within {} s", BODY_TIMEOUT.as_secs())))?;
    let body =
        body.map_err(|error| (StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}")))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| {
        (
            StatusCode::BAD_REQUEST,
            format!("the body is not understood: {error}; expected JSON such as {form}"),
        )
    })
}

/// Does something in a thread where it may take its time.
async fn in_its_time<A>(act: impl FnOnce() -> Result<A, Refusal> + Send + 'static) -> Answer
where
    A: Serialize + Send + 'static,
{
    match tokio::task::spawn_blocking(act).await {
        Ok(Ok(answer)) => json_of(&answer),
        Ok(Err(refusal)) => {
            let status = match refusal.kind {
                RefusalKind::NotFound => StatusCode::NOT_FOUND,
                RefusalKind::Conflict => StatusCode::CONFLICT,
                RefusalKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            };
            refuse(status, &json!({ "error": refusal.text }))
        }
        Err(_) => {
            let error = "the server has failed at that; its standard error says more";
            refuse(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "error": error }))
        }
    }
}

/// The answer to those who come while all slots are taken.
pub(crate) fn too_many() -> Answer {
    let error = json!({ "error": "too many connections at once; come again when a trace has ended" });
    refuse(StatusCode::SERVICE_UNAVAILABLE, &error)
}

/// `volume` (everything, where it is left out) and `format`.
fn trace(state: &ControlState, query: &str) -> Answer {
    let (mut nodes, mut form) = (None, Form::Binary);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match (&*key, &*value) {
            ("volume", name) => match state.nodes(name) {
                found @ Some(_) => nodes = found,
                None => {
                    let volumes = state.volume_names();
                    let error = json!({ "error": "no volume has that name", "volumes": volumes });
                    return refuse(StatusCode::NOT_FOUND, &error);
                }
            },
            ("format", "binary") => form = Form::Binary,
            ("format", "text") => form = Form::Text(TextMerge::new()),
            ("format", _) => {
                return refuse(StatusCode::BAD_REQUEST, &json!({ "error": "format is binary or text" }));
            }
            _ => {
                let error = json!({ "error": "/v1/trace takes volume and format" });
                return refuse(StatusCode::BAD_REQUEST, &error);
            }
        }
    }
    let kind = if matches!(form, Form::Text(_)) { TEXT } else { BINARY };
    let body = TraceBody { subscription: state.trace.subscribe(nodes), form };
    respond(StatusCode::OK, kind, BoxBody::new(body))
}

fn json_of(answer: &impl serde::Serialize) -> Answer {
    whole(StatusCode::OK, JSON, serde_json::to_vec(answer).expect("our answers are JSON"))
}

fn refuse(status: StatusCode, error: &serde_json::Value) -> Answer {
    whole(status, JSON, error.to_string().into_bytes())
}

fn whole(status: StatusCode, kind: &'static str, mut body: Vec<u8>) -> Answer {
    if kind == JSON {
        body.push(b'\n'); // for those who read it with curl
    }
    respond(status, kind, Full::new(Bytes::from(body)).boxed())
}

fn respond(status: StatusCode, kind: &'static str, body: BoxBody<Bytes, Infallible>) -> Answer {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, kind)
        .header(CACHE_CONTROL, "no-store")
        .body(body)
        .expect("these headers are good ones")
}
