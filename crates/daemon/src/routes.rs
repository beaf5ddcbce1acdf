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
use tokio::sync::Semaphore;

use blockwork_insight::report::Report;
use blockwork_insight::trace::TextMerge;

use crate::arrays::{ArrayGauges, ArrayList, ArrayRequest, Refusal, RefusalKind};
use crate::exports::ExportRequest;
use crate::groups::{GroupList, GroupRequest, PoolList, PoolRequest};
use crate::metrics;
use crate::status::ControlState;
use crate::taking::MayWait;
use crate::trace_body::{Form, TraceBody};

pub(crate) type Answer = Response<BoxBody<Bytes, Infallible>>;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const BINARY: &str = "application/octet-stream";

const ARRAYS: &str = "/v1/arrays";
const GROUPS: &str = "/v1/groups";
const POOLS: &str = "/v1/pools";
const EXPORTS: &str = "/v1/exports";
const TRACE: &str = "/v1/trace";
const PATHS: [&str; 8] = ["/v1/status", "/v1/stats", ARRAYS, GROUPS, POOLS, EXPORTS, TRACE, "/metrics"];

/// Longest body that is read, bytes: names of an array, a group, devices and volumes.
pub const BODY_BYTES_MAX: usize = 64 << 10;

/// Changes, and likewise lists that wait for them, that are under way at once.
pub const UNDER_WAY_MAX: usize = 16;

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
        EXPORTS => "POST",
        path if PATHS.contains(&path) => "GET",
        _ => {
            let error = format!("no such path; there are: {}", PATHS.join(", "));
            return refuse(StatusCode::NOT_FOUND, &json!({ "error": error }));
        }
    };
    // While disks are away, lists are empty, and what needs disks is refused.
    let needs_disks = match *request.method() {
        Method::GET => path == TRACE,
        Method::POST => allowed.contains("POST"),
        _ => false,
    };
    if let Some(why) = state.away().filter(|_| needs_disks) {
        let error = format!("the disks of this server are not open: {why}");
        return refuse(StatusCode::CONFLICT, &json!({ "error": error }));
    }
    match *request.method() {
        // A list of groups waits while one is changed.
        Method::GET if path == GROUPS => {
            let groups = Arc::clone(&state.groups);
            in_its_time(&state.lists, move || Ok(GroupList { groups: groups.list() })).await
        }
        Method::GET if path != EXPORTS => get(state, path, request.uri().query().unwrap_or("")),
        Method::POST if path == ARRAYS => {
            let arrays = Arc::clone(&state.arrays);
            let form = r#"{"array": "md/NAME", "verb": "check"}"#;
            act(&state.changes, request.into_body(), form, move |asked: ArrayRequest| arrays.act(&asked))
                .await
        }
        Method::POST if path == GROUPS => {
            let groups = Arc::clone(&state.groups);
            let form = r#"{"group": "VG", "verb": "remove", "volumes": ["LV"]}"#;
            act(&state.changes, request.into_body(), form, move |asked: GroupRequest| groups.change(&asked))
                .await
        }
        Method::POST if path == POOLS => {
            let groups = Arc::clone(&state.groups);
            let form = r#"{"pool": "dm/NAME", "message": "create_thin 1"}"#;
            let tell = move |asked: PoolRequest| Ok(PoolList { pools: vec![groups.tell(&asked)?] });
            act(&state.changes, request.into_body(), form, tell).await
        }
        Method::POST if path == EXPORTS => {
            let exports = Arc::clone(&state.exports);
            let form = r#"{"verb": "add", "volume": "VOLUME", "vhost_user": "/run/vm.sock"}"#;
            let names = state.names();
            let change = move |mut asked: ExportRequest| {
                if let ExportRequest::Add { volume, .. } = &mut asked
                    && let Some(name) = names.volume_called(volume)
                {
                    *volume = name;
                }
                exports.change(&asked)
            };
            act(&state.changes, request.into_body(), form, change).await
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
            let of_md = state.arrays.list();
            let arrays = of_md.iter().map(ArrayGauges::from).chain(state.arrays.raid_volumes());
            let text = metrics::text(&state.status(), &state.stats, &arrays.collect::<Vec<_>>());
            whole(ok, METRICS, text.into_bytes())
        }
        _ => trace(state, query),
    }
}

/// Does what a body asks for; `form` is what one may look like.
async fn act<B, T, A>(
    places: &Places,
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
        Ok(asked) => in_its_time(places, move || act(asked)).await,
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

/// Places in threads where something may take its time.
pub(crate) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Places {
        Places(Arc::new(Semaphore::new(UNDER_WAY_MAX)))
    }
}

/// Does something in a thread where it may take its time. What was begun is finished, also where nobody waits for the answer any more: half a
/// change is worse than one of which nobody hears. Its place is free when it has ended.
async fn in_its_time<A>(places: &Places, act: impl FnOnce() -> Result<A, Refusal> + Send + 'static) -> Answer
where
    A: Serialize + Send + 'static,
{
    let Ok(place) = places.0.clone().try_acquire_owned() else { return too_much_under_way() };
    let act = move || {
        let _place = place;
        act()
    };
    match tokio::task::spawn_blocking(act).await {
        Ok(Ok(answer)) => json_of(&answer),
        Ok(Err(refusal)) => {
            let status = match refusal.kind {
                RefusalKind::Invalid => StatusCode::BAD_REQUEST,
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

fn too_much_under_way() -> Answer {
    let error = format!(
        "{UNDER_WAY_MAX} requests of this kind are under way and wait for disks, even if those who asked have gone; see which disks do not \
         answer (in_flight in /v1/stats), and come again"
    );
    refuse(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": error }))
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
    let mut answer = respond(StatusCode::OK, kind, BoxBody::new(body));
    answer.extensions_mut().insert(MayWait);
    answer
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, mpsc};

    use blockwork_engine::Stats;
    use blockwork_insight::trace::TraceHub;

    use super::*;
    use crate::arrays::{ArrayAnswer, ArrayStatus, Arrays};

    /// Arrays whose disks answer when the test lets them.
    struct Slow {
        begun: mpsc::Sender<()>,
        goes_on: Mutex<mpsc::Receiver<()>>,
        done: Arc<AtomicUsize>,
    }

    impl Arrays for Slow {
        fn list(&self) -> Vec<ArrayStatus> {
            Vec::new()
        }

        fn raid_volumes(&self) -> Vec<ArrayGauges> {
            Vec::new()
        }

        fn act(&self, _: &ArrayRequest) -> Result<ArrayAnswer, Refusal> {
            self.begun.send(()).unwrap();
            self.goes_on.lock().unwrap().recv().unwrap();
            self.done.fetch_add(1, Ordering::Relaxed);
            Err(Refusal::new(RefusalKind::Failed, "it was done"))
        }
    }

    fn check() -> Request<Full<Bytes>> {
        let body = Full::new(Bytes::from(r#"{"array": "md/data", "verb": "check"}"#));
        Request::post(ARRAYS).body(body).unwrap()
    }

    #[test]
    fn what_changes_something_is_finished_though_nobody_waits_and_takes_bounded_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stats = Arc::new(Stats::new(Vec::new()));
        let hub = TraceHub::new(&stats.nodes());
        let mut state = ControlState::new(stats, hub);
        let (begun, begins) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let done = Arc::new(AtomicUsize::new(0));
        state.set_arrays(Arc::new(Slow { begun, goes_on: Mutex::new(goes_on), done: done.clone() }));
        let state = Arc::new(state);
        for _ in 0..UNDER_WAY_MAX {
            let asking = state.clone();
            let client = runtime.spawn(async move { answer(&asking, check()).await });
            // It has begun, and the client goes.
            runtime.block_on(async {
                while begins.try_recv().is_err() {
                    tokio::task::yield_now().await
                }
            });
            client.abort();
        }
        let refused = runtime.block_on(answer(&state, check()));
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        let status = runtime.block_on(answer(&state, Request::get(GROUPS).body(Full::default()).unwrap()));
        assert_eq!(status.status(), StatusCode::OK, "others are answered");
        (0..=UNDER_WAY_MAX).for_each(|_| go_on.send(()).unwrap());
        // All places are free when all is done.
        let all = u32::try_from(UNDER_WAY_MAX).unwrap();
        drop(runtime.block_on(state.changes.0.acquire_many(all)).unwrap());
        assert_eq!(done.load(Ordering::Relaxed), UNDER_WAY_MAX);
        let answered = runtime.block_on(answer(&state, check()));
        assert_eq!(answered.status(), StatusCode::INTERNAL_SERVER_ERROR, "it was done, and says so");
    }
}
