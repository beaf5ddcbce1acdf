//! What can be asked, and the answers. Documented in `docs/control-api.md`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use blockwork_insight::report::Report;
use blockwork_insight::trace::TextMerge;

use crate::arrays::{ArrayList, ArrayRequest, RefusalKind};
use crate::metrics;
use crate::status::ControlState;
use crate::trace_body::{Form, TraceBody};

pub(crate) type Answer = Response<BoxBody<Bytes, Infallible>>;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const BINARY: &str = "application/octet-stream";

const ARRAYS: &str = "/v1/arrays";
const PATHS: [&str; 5] = ["/v1/status", "/v1/stats", ARRAYS, "/v1/trace", "/metrics"];

/// Longest body that is read, bytes: names of an array and of devices.
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
        ARRAYS => "GET, POST",
        path if PATHS.contains(&path) => "GET",
        _ => {
            let error = format!("no such path; there are: {}", PATHS.join(", "));
            return refuse(StatusCode::NOT_FOUND, &json!({ "error": error }));
        }
    };
    match *request.method() {
        Method::GET => get(state, path, request.uri().query().unwrap_or("")),
        Method::POST if path == ARRAYS => match read_request(request.into_body()).await {
            Ok(asked) => act(state, asked).await,
            Err((status, error)) => refuse(status, &json!({ "error": error })),
        },
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
            let report = Report::new(&state.stats.snapshot())
                .with_rings(&state.stats.rings())
                .with_linearize(&state.stats.linearize());
            whole(ok, JSON, report.json().into_bytes())
        }
        ARRAYS => json_of(&ArrayList { arrays: state.arrays.list() }),
        "/metrics" => {
            let text = metrics::text(&state.status(), &state.stats, &state.arrays.list());
            whole(ok, METRICS, text.into_bytes())
        }
        _ => trace(state, query),
    }
}

/// What is asked of an array, from a body of bounded length that comes in time.
async fn read_request<B>(body: B) -> Result<ArrayRequest, (StatusCode, String)>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let body = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let body = body
        .map_err(|_| (StatusCode::REQUEST_TIMEOUT, format!("no body within {} s", BODY_TIMEOUT.as_secs())))?;
    let body =
        body.map_err(|error| (StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}")))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| {
        let form = r#"{"array": "md/NAME", "verb": "check"}"#;
        (
            StatusCode::BAD_REQUEST,
            format!("the body is not understood: {error}; expected JSON such as {form}"),
        )
    })
}

/// In a thread where it may take its time.
async fn act(state: &ControlState, asked: ArrayRequest) -> Answer {
    let arrays = Arc::clone(&state.arrays);
    let done = tokio::task::spawn_blocking(move || arrays.act(&asked)).await;
    match done {
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
