//! What can be asked, and the answers. Documented in `docs/control-api.md`.

use std::convert::Infallible;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use blockwork_insight::report::{self, Report};
use blockwork_insight::trace::TextMerge;

use crate::status::ControlState;
use crate::trace_body::{Form, TraceBody};

pub(crate) type Answer = Response<BoxBody<Bytes, Infallible>>;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const BINARY: &str = "application/octet-stream";

const PATHS: [&str; 4] = ["/v1/status", "/v1/stats", "/v1/trace", "/metrics"];

/// Answers one request. Its body, should it have one, is ignored.
pub(crate) fn answer<B>(state: &ControlState, request: &Request<B>) -> Answer {
    let path = request.uri().path();
    if !PATHS.contains(&path) {
        let error = format!("no such path; there are: {}", PATHS.join(", "));
        return refuse(StatusCode::NOT_FOUND, &json!({ "error": error }));
    }
    if request.method() != Method::GET {
        let mut answer =
            refuse(StatusCode::METHOD_NOT_ALLOWED, &json!({ "error": "only GET is answered here" }));
        answer.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET"));
        return answer;
    }
    let ok = StatusCode::OK;
    match path {
        "/v1/status" => {
            let json = serde_json::to_vec(&state.status()).expect("a status is JSON");
            whole(ok, JSON, json)
        }
        "/v1/stats" => whole(ok, JSON, Report::new(&state.stats.snapshot()).json().into_bytes()),
        "/metrics" => whole(ok, METRICS, metrics(state).into_bytes()),
        _ => trace(state, request.uri().query().unwrap_or("")),
    }
}

/// The answer to those who come while all slots are taken.
pub(crate) fn too_many() -> Answer {
    let error = json!({ "error": "too many connections at once; come again when a trace has ended" });
    refuse(StatusCode::SERVICE_UNAVAILABLE, &error)
}

/// The counters, and what a scraper wants to know of a server besides.
fn metrics(state: &ControlState) -> String {
    let status = state.status();
    let mut text = report::prometheus(&state.stats.snapshot());
    text.push_str("# HELP blockwork_info Always 1; the version is a label\n# TYPE blockwork_info gauge\n");
    text.push_str(&format!("blockwork_info{{version=\"{}\"}} 1\n", status.version));
    text.push_str("# HELP blockwork_uptime_seconds Since the server began to serve\n");
    text.push_str("# TYPE blockwork_uptime_seconds gauge\n");
    text.push_str(&format!("blockwork_uptime_seconds {}\n", status.uptime_seconds));
    let failed = status.disks.iter().filter(|disk| disk.failed).count();
    text.push_str("# HELP blockwork_failed_disks Disks that refuse writes because a flush has failed\n");
    text.push_str("# TYPE blockwork_failed_disks gauge\n");
    text.push_str(&format!("blockwork_failed_disks {failed}\n"));
    text
}

/// `volume` (everything, where it is left out) and `format`.
fn trace(state: &ControlState, query: &str) -> Answer {
    let (mut nodes, mut form) = (None, Form::Binary);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match (&*key, &*value) {
            ("volume", name) => match state.nodes(name) {
                Some(found) => nodes = Some(found.clone()),
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
