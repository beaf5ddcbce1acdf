//! The server's end: a thread with a small runtime, a listener, and a task for each connection.
//!
//! A connection carries one request: so a slot is free again when its answer is out, and nobody holds one by being idle, or by not reading
//! (`taking`).

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use blockwork_engine::Errno;
use blockwork_uring::{Shortage, clock};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::directory::shown;
use crate::routes::{self, Answer};
use crate::status::ControlState;
use crate::taking::{MayWait, OVER_TIME, Taking, is_over_time};

/// Connections at once. As many more are told to come again, and what comes beyond those is closed.
pub const CONNECTIONS_MAX: u32 = 16;

/// Longest head of a request, bytes: its line and all its headers.
pub const HEAD_BYTES_MAX: usize = 8 << 10;

const HEADERS_MAX: usize = 32;

/// A head must be there after that time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers that are on their way when the server stops may take that long.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// After a failed accept (no descriptor left), that long is waited before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the log calls it.
const NAME: &str = "the control API";

/// Why the control API could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket.
    #[error(
        "{path}: the control socket cannot be made: {source}; set BLOCKWORK_RUN_DIR to a folder of yours, with a short path"
    )]
    Socket {
        /// The socket, escaped.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The thread or its runtime.
    #[error("the thread for the control API cannot be started: {0}")]
    Thread(io::Error),
}

/// The control API. See [`Control::start`].
pub struct Control;

impl Control {
    /// Answers at the socket `path` (see [`socket_path`](crate::socket_path)) until the handle is dropped.
    ///
    /// # Errors
    ///
    /// The socket cannot be made there, another server answers there, or there can be no more threads.
    pub fn start(state: ControlState, path: &Path) -> Result<ControlHandle, ControlError> {
        let socket = |source| ControlError::Socket { path: shown(path), source };
        let listener = listen(path).map_err(socket)?;
        let bound = Bound(path.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ControlError::Thread)?;
        let (stop, stopped) = oneshot::channel();
        let state = Arc::new(state);
        let shared = state.clone();
        let thread = std::thread::Builder::new()
            .name("blockwork-ctl".to_owned())
            .spawn(move || {
                runtime.block_on(serve(shared, listener, stopped));
                // What an array does not finish is finished by the workers, or not at all.
                runtime.shutdown_timeout(STOP_TIMEOUT);
            })
            .map_err(ControlError::Thread)?;
        Ok(ControlHandle { state, stop: Some(stop), thread: Some(thread), bound })
    }
}

/// A running control API. Dropped, it ends all traces, stops, and removes the socket.
pub struct ControlHandle {
    state: Arc<ControlState>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    bound: Bound,
}

impl ControlHandle {
    /// The socket.
    pub fn path(&self) -> &Path {
        &self.bound.0
    }
}

impl Drop for ControlHandle {
    fn drop(&mut self) {
        self.state.trace.close();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the control API's thread has panicked");
        }
    }
}

/// Removes the socket when it is dropped.
struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("{}: the control socket cannot be removed: {error}", shown(&self.0));
        }
    }
}

/// A listener at `path`, in place of a dead server's.
fn listen(path: &Path) -> io::Result<StdListener> {
    match StdStream::connect(path) {
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server answers there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
        Err(_) => {} // nothing there, most likely; if something is, bind says what
    }
    let listener = StdListener::bind(path)?;
    // The folder keeps others out until this is done.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(state: Arc<ControlState>, listener: StdListener, stopped: oneshot::Receiver<()>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            log::error!("the control API cannot listen: {error}");
            return;
        }
    };
    let accepting = tokio::spawn(accept(state, listener, slots.clone()));
    // It ends by the sender being dropped.
    let _ = stopped.await;
    accepting.abort();
    // All slots are free when all answers are out.
    let _ = tokio::time::timeout(STOP_TIMEOUT, slots.acquire_many(CONNECTIONS_MAX)).await;
}

async fn accept(state: Arc<ControlState>, listener: UnixListener, slots: Arc<Semaphore>) {
    let refusals = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    let mut shortage = Shortage::default();
    loop {
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                shortage.begins(clock(), NAME, Errno::from_io(&error));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        shortage.is_over(clock(), NAME);
        if let Ok(slot) = slots.clone().try_acquire_owned() {
            let state = state.clone();
            let answer = move |request| {
                let state = state.clone();
                async move { routes::answer(&state, request).await }
            };
            tokio::spawn(talk(connection, slot, answer));
        } else if let Ok(slot) = refusals.clone().try_acquire_owned() {
            tokio::spawn(talk(connection, slot, async |_| routes::too_many()));
        }
    }
}

/// Answers the one request of a connection, and gives its slot back.
async fn talk<A: Future<Output = Answer>>(
    connection: UnixStream,
    slot: OwnedSemaphorePermit,
    answer: impl Fn(Request<Incoming>) -> A,
) {
    let may_wait = Arc::new(AtomicBool::new(false));
    let service = service_fn(|request| {
        let (answer, may_wait) = (answer(request), may_wait.clone());
        async move {
            let answer = answer.await;
            may_wait.store(answer.extensions().get::<MayWait>().is_some(), Ordering::Relaxed);
            Ok::<_, Infallible>(answer)
        }
    });
    let result = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(Taking::new(connection, may_wait.clone())), service)
        .await;
    match result {
        Ok(()) => {}
        Err(error) if is_over_time(&error) => log::warn!("{NAME}: a client is let go: {OVER_TIME}"),
        Err(error) => log::debug!("{NAME}: a client: {error}"),
    }
    drop(slot);
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};
    use hyper::Response;
    use hyper::body::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;
    use crate::taking::TAKING_TIME;

    const ANSWER_BYTES: usize = 4 << 20;

    /// That of `/may-wait` may be left lying.
    async fn much(request: Request<Incoming>) -> Answer {
        let mut answer = Response::new(Full::new(Bytes::from(vec![7; ANSWER_BYTES])).boxed());
        if request.uri().path() == "/may-wait" {
            answer.extensions_mut().insert(MayWait);
        }
        answer
    }

    /// A client that reads so many bytes of an answer each time that so much time has passed, and how many it has got when the server is done with
    /// it; and how long that took. The clock goes as fast as there is nothing to do.
    fn read_slowly(path: &str, bytes: usize, pause: Duration) -> (usize, Duration) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let slots = Arc::new(Semaphore::new(1));
            let (slot, start) = (slots.clone().try_acquire_owned().unwrap(), Instant::now());
            let server = tokio::spawn(talk(theirs, slot, much));
            let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            ours.write_all(head.as_bytes()).await.unwrap();
            let client = tokio::spawn(async move {
                let (mut got, mut into) = (0, vec![0; bytes]);
                loop {
                    tokio::time::sleep(pause).await;
                    match ours.read(&mut into).await {
                        Ok(0) | Err(_) => return got,
                        Ok(more) => got += more,
                    }
                }
            });
            server.await.unwrap();
            let took = start.elapsed();
            assert_eq!(slots.available_permits(), 1);
            (client.await.unwrap(), took)
        })
    }

    #[test]
    fn a_client_that_takes_nothing_is_let_go_and_a_slow_one_is_not() {
        let (got, took) = read_slowly("/", 128 << 10, TAKING_TIME / 4);
        assert!(got > ANSWER_BYTES, "{got} bytes of the answer");
        assert!(took > 2 * TAKING_TIME, "it was slow: {took:?}");
        let (got, took) = read_slowly("/", 1 << 20, 100 * TAKING_TIME);
        assert!(got < ANSWER_BYTES, "{got} bytes of the answer");
        assert!(took >= TAKING_TIME && took < 2 * TAKING_TIME, "{took:?}");
        let (got, took) = read_slowly("/may-wait", 1 << 20, 100 * TAKING_TIME);
        assert!(
            got > ANSWER_BYTES && took > 200 * TAKING_TIME,
            "a trace in a pager: {got} bytes in {took:?}"
        );
    }
}
