//! The server's end: a thread with a small runtime, a listener, and a task for each connection.
//!
//! A connection carries one request: so a slot is free again when its answer is out, and nobody holds one by being idle.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

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

/// Why the control API could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket.
    #[error(
        "{path}: the control socket cannot be made: {source}; set BLOCKWORK_RUN_DIR to a folder with a short path"
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
    loop {
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                log::warn!("the control API cannot accept a client: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
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
    let service = service_fn(|request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let result = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(connection), service)
        .await;
    if let Err(error) = result {
        log::debug!("a client of the control API: {error}");
    }
    drop(slot);
}
