//! The client's end: blocking, for the command line.
//!
//! Servers are trusted as far as their folder is ([`crate::control_dir`]), but not to be quick or brief: answers have a
//! limit in size and time, streams do not.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use blockwork_format::escape;

use crate::arrays::{ArrayAnswer, ArrayList, ArrayRequest, ArrayStatus, volume_called};
use crate::directory::{self, DirectoryError, control_dir, shown};
use crate::exports::{ExportAnswer, ExportRequest};
use crate::groups::{GroupAnswer, GroupList, GroupRequest, GroupStatus, PoolList, PoolRequest};
use crate::status::{Status, VolumeStatus};

/// Longest answer that is read into memory, bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A head, or a whole answer, must be there after that time.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A list of groups waits while one is changed, which takes as long as its disks do.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// What is done with an array may wait for its disks that long.
const VERB_TIMEOUT: Duration = Duration::from_secs(120);

/// Where arrays are asked about, and for something.
const ARRAYS: &str = "/v1/arrays";

/// Where volume groups and thin pools are.
const GROUPS: &str = "/v1/groups";
const POOLS: &str = "/v1/pools";

/// Where exports come and go.
const EXPORTS: &str = "/v1/exports";

/// Sockets in the folder that are looked at.
const SOCKETS_MAX: usize = 1024;

/// Why a server could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The folder of sockets.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Nobody answers, or not in HTTP.
    #[error("{socket}: the server cannot be asked: {source}")]
    Connection {
        /// The socket, escaped.
        socket: String,
        /// What went wrong.
        source: io::Error,
    },
    /// The server was asked to change something, and went, or was too slow, before it said what became of that.
    #[error(
        "{socket}: the server has not answered: {source}; it may have done what it was asked for all the same: look with `blockwork status`, \
         `blockwork lv show` or `blockwork md status` before you ask again"
    )]
    Unanswered {
        /// The socket, escaped.
        socket: String,
        /// What went wrong.
        source: io::Error,
    },
    /// Servers that there are do not answer, so that it is not known what they have.
    #[error("{}; what there is, is not known without {}", listed(.0), if .0.len() == 1 { "it" } else { "them" })]
    Silent(Vec<Silent>),
    /// The server refuses.
    #[error("{socket}: GET {path}: {status}: {text}")]
    Refused {
        /// The socket, escaped.
        socket: String,
        /// What was asked, escaped.
        path: String,
        /// HTTP status.
        status: u16,
        /// What the server says about it, escaped.
        text: String,
    },
    /// What was to be done is not done: why, in the server's words.
    #[error("{0}")]
    Declined(String),
    /// No server serves that array.
    #[error("no running server serves the array {name}; {}", served(.there, "no server of this user has an array"))]
    NoArray {
        /// The array, escaped.
        name: String,
        /// Arrays that are served, escaped.
        there: Vec<String>,
    },
    /// Several servers serve an array of that name.
    #[error("the array {name} is served by several servers: {}; name it by its UUID, md/UUID", .sockets.join(", "))]
    SeveralArrays {
        /// The array, escaped.
        name: String,
        /// The servers' sockets, escaped.
        sockets: Vec<String>,
    },
    /// No server has that.
    #[error("no running server serves the {what} {name}; {}", served(.there, "no server of this user has one"))]
    Nowhere {
        /// What was looked for: `volume group`.
        what: &'static str,
        /// Its name, escaped.
        name: String,
        /// Those that are served, escaped.
        there: Vec<String>,
    },
    /// A server has it when its disks are open.
    #[error("the {what} {name} is on disks of server {pid}, which are not open: {why}")]
    Away {
        /// What was looked for.
        what: &'static str,
        /// Its name, escaped.
        name: String,
        /// The server's process.
        pid: u32,
        /// Why, escaped.
        why: String,
    },
    /// Several servers have it.
    #[error("the {what} {name} is served by several servers: {}; ask one of their sockets", .sockets.join(", "))]
    Several {
        /// What was looked for.
        what: &'static str,
        /// Its name, escaped.
        name: String,
        /// The servers' sockets, escaped.
        sockets: Vec<String>,
    },
    /// No server serves that volume.
    #[error("no running server serves the volume {name}; {}", served(.there, "none is running (of this user)"))]
    NoVolume {
        /// The volume, escaped.
        name: String,
        /// Volumes that are served, escaped.
        there: Vec<String>,
    },
    /// Several servers serve a volume of that name.
    #[error("the volume {name} is served by several servers: {}; name one of their sockets", .sockets.join(", "))]
    Ambiguous {
        /// The volume, escaped.
        name: String,
        /// The servers' sockets, escaped.
        sockets: Vec<String>,
    },
}

fn served(there: &[String], nothing: &str) -> String {
    if there.is_empty() { nothing.to_owned() } else { format!("served are: {}", there.join(", ")) }
}

/// A server of which there is a process, and which does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Its process.
    pub pid: u32,
    /// Its socket, escaped.
    pub socket: String,
    /// What became of asking, and what can be done about it.
    pub why: String,
}

impl Silent {
    fn of(pid: u32, socket: &Path, error: &ClientError) -> Silent {
        let said = match error {
            ClientError::Connection { source, .. } => source.to_string(),
            ClientError::Refused { path, status, text, .. } => format!("GET {path}: {status}: {text}"),
            error => error.to_string(),
        };
        let why = match directory::is_stopped(pid) {
            true => format!("{said}, as it is stopped: `kill -CONT {pid}` has it go on"),
            false => format!("{said}: ask again, or see what it waits for"),
        };
        Silent { pid, socket: shown(socket), why }
    }
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server {} ({}) does not answer: {}", self.pid, self.socket, self.why)
    }
}

fn listed(silent: &[Silent]) -> String {
    silent.iter().map(Silent::to_string).collect::<Vec<_>>().join("; ")
}

/// The servers of this user.
#[derive(Debug, Default)]
pub struct Servers {
    /// Those that answer, by number of process.
    pub answering: Vec<ServerInfo>,
    /// The others, of which there is a process.
    pub silent: Vec<Silent>,
}

impl Servers {
    /// Asks each of those that answer for something more. One that does not answer that is among the silent ones from then on; one that
    /// ends meanwhile has nothing any more.
    pub fn ask<T>(&mut self, what: impl Fn(&ServerInfo) -> Result<T, ClientError>) -> Vec<(ServerInfo, T)> {
        let mut answers = Vec::new();
        for server in &self.answering {
            match what(server) {
                Ok(answer) => answers.push((server.clone(), answer)),
                Err(error) if is_silence(&error) => {
                    self.silent.push(Silent::of(server.pid, &server.socket, &error));
                }
                // One that is ending is no reason not to tell what others have.
                Err(error) => log::warn!("{error}"),
            }
        }
        answers
    }

    /// For those who have told what there is.
    ///
    /// # Errors
    ///
    /// There may be more: some do not answer.
    pub fn complete(self) -> Result<(), ClientError> {
        if self.silent.is_empty() { Ok(()) } else { Err(ClientError::Silent(self.silent)) }
    }

    /// What is not found among those that answer may be what a silent one has.
    fn absent(self, error: ClientError) -> ClientError {
        self.complete().err().unwrap_or(error)
    }

    /// For those who have found what they want, whatever the silent ones have.
    pub fn warn(&self) {
        self.silent.iter().for_each(|silent| log::warn!("{silent}"));
    }
}

/// Whether that is the answer of a server that lives and goes on living: none in time, or none that can be made use of.
fn is_silence(error: &ClientError) -> bool {
    match error {
        ClientError::Connection { source, .. } => matches!(
            source.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock | io::ErrorKind::InvalidData
        ),
        ClientError::Refused { .. } => true,
        _ => false,
    }
}

/// A server that answers.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerInfo {
    /// Its process.
    pub pid: u32,
    /// Its socket.
    pub socket: PathBuf,
    /// How it is.
    pub status: Status,
}

/// All servers of this user. Sockets of dead ones are removed.
///
/// # Errors
///
/// The folder of sockets cannot be read, or others can write to it. None at all, where there is no folder.
pub fn servers() -> Result<Servers, ClientError> {
    servers_in(&control_dir())
}

/// As `servers`, of another folder.
///
/// # Errors
///
/// As for `servers`.
pub fn servers_in(folder: &Path) -> Result<Servers, ClientError> {
    let unusable = |source| DirectoryError::Unusable { folder: shown(folder), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Servers::default()),
        entries => entries.map_err(unusable)?,
    };
    directory::check(folder)?;
    let mut servers = Servers::default();
    for entry in entries.take(SOCKETS_MAX) {
        let socket = entry.map_err(unusable)?.path();
        let Some(pid) = directory::pid_of(&socket) else { continue };
        match get_json::<Status>(&socket, "/v1/status") {
            Ok(status) => servers.answering.push(ServerInfo { pid, socket, status }),
            Err(error) if is_silence(&error) => servers.silent.push(Silent::of(pid, &socket, &error)),
            Err(error) => clean_up(&socket, pid, &error),
        }
    }
    servers.answering.sort_by_key(|server| server.pid);
    servers.silent.sort_by_key(|server| server.pid);
    Ok(servers)
}

/// Removes the socket if its server is dead. One that is just starting refuses for a moment too: it lives.
fn clean_up(socket: &Path, pid: u32, error: &ClientError) {
    let refused = matches!(error, ClientError::Connection { source, .. }
        if source.kind() == io::ErrorKind::ConnectionRefused);
    if !refused {
        log::warn!("{error}");
    } else if directory::is_dead(pid) {
        // Somebody else may have been quicker.
        let _ = fs::remove_file(socket);
    }
}

/// The server that serves the volume `name`; of an array, `md/UUID` will do.
///
/// # Errors
///
/// None does, or several do, or servers cannot be listed.
pub fn find_volume(name: &str) -> Result<ServerInfo, ClientError> {
    find_volume_in(&control_dir(), name)
}

/// As `find_volume`, among the servers in another folder.
///
/// # Errors
///
/// As for `find_volume`.
pub fn find_volume_in(folder: &Path, name: &str) -> Result<ServerInfo, ClientError> {
    let servers = servers_in(folder)?;
    let serves = |server: &&ServerInfo| {
        let volumes = server.status.volumes.iter().map(|volume| &*volume.name);
        // One that does not answer any more serves nothing, either.
        volume_called(name, volumes, || arrays_at(&server.socket).unwrap_or_default()).is_some()
    };
    let mut found: Vec<&ServerInfo> = servers.answering.iter().filter(serves).collect();
    // Where several take turns (`serve --migratable`), it is whose turn it is.
    if found.len() > 1 && found.iter().any(|server| server.status.away.is_none()) {
        found.retain(|server| server.status.away.is_none());
    }
    match found[..] {
        [only] => {
            servers.warn();
            Ok(only.clone())
        }
        [] => {
            let volumes = servers.answering.iter().flat_map(|server| &server.status.volumes);
            let there = volumes.map(|volume| escape(&volume.name)).collect();
            Err(servers.absent(ClientError::NoVolume { name: escape(name), there }))
        }
        [..] => {
            let sockets = found.iter().map(|server| shown(&server.socket)).collect();
            Err(ClientError::Ambiguous { name: escape(name), sockets })
        }
    }
}

/// Where an array is served, and how it is.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayPlace {
    /// The server's socket.
    pub socket: PathBuf,
    /// The array.
    pub array: ArrayStatus,
}

/// The server that serves the array `name`: `md/NAME`, `md:NAME`, or either with its UUID.
///
/// # Errors
///
/// None does, or several do, or servers cannot be listed.
pub fn find_array(name: &str) -> Result<ArrayPlace, ClientError> {
    find_array_in(&control_dir(), name)
}

/// As `find_array`, among the servers in another folder.
///
/// # Errors
///
/// As for `find_array`.
pub fn find_array_in(folder: &Path, name: &str) -> Result<ArrayPlace, ClientError> {
    let (mut found, mut there) = (Vec::new(), Vec::new());
    let mut servers = servers_in(folder)?;
    for (server, arrays) in servers.ask(|server| arrays_at(&server.socket)) {
        for array in arrays {
            there.push(escape(&array.name));
            if array.is_called(name) {
                found.push(ArrayPlace { socket: server.socket.clone(), array });
            }
        }
    }
    match found.len() {
        1 => {
            servers.warn();
            Ok(found.remove(0))
        }
        0 => Err(servers.absent(ClientError::NoArray { name: escape(name), there })),
        _ => {
            let sockets = found.iter().map(|place| shown(&place.socket)).collect();
            Err(ClientError::SeveralArrays { name: escape(name), sockets })
        }
    }
}

/// The arrays of the server at a socket.
///
/// # Errors
///
/// The server does not answer.
pub fn arrays_at(socket: &Path) -> Result<Vec<ArrayStatus>, ClientError> {
    get_json::<ArrayList>(socket, ARRAYS).map(|list| list.arrays)
}

/// How an array of a server is now.
///
/// # Errors
///
/// The server does not answer, or does not serve it any more.
pub fn array_at(socket: &Path, name: &str) -> Result<ArrayStatus, ClientError> {
    let arrays = arrays_at(socket)?;
    let there = arrays.iter().map(|array| escape(&array.name)).collect();
    let found = arrays.into_iter().find(|array| array.is_called(name));
    found.ok_or_else(|| ClientError::NoArray { name: escape(name), there })
}

/// Asks a server to do something with an array, and waits until it is done.
///
/// # Errors
///
/// The server does not answer, or does not do it.
pub fn ask_array(socket: &Path, request: &ArrayRequest) -> Result<ArrayAnswer, ClientError> {
    let body = serde_json::to_vec(request).expect("what we ask is JSON");
    receive(socket, Asked { method: Method::POST, path: ARRAYS, body, patience: VERB_TIMEOUT })
}

/// Where a volume group, or a thin pool of a table, is served.
///
/// # Errors
///
/// Nowhere, or by several servers; or servers cannot be listed.
fn find_place(
    what: &'static str,
    name: &str,
    names_at: impl Fn(&Path) -> Result<Vec<String>, ClientError>,
) -> Result<PathBuf, ClientError> {
    let (mut found, mut there, mut away) = (Vec::new(), Vec::new(), None);
    let mut servers = servers()?;
    for (server, names) in servers.ask(|server| names_at(&server.socket)) {
        if let Some(why) = &server.status.away {
            // Its lists are empty meanwhile, and its volumes known.
            let is_of_it = |volume: &VolumeStatus| volume.name.split_once('/').is_some_and(|it| it.0 == name);
            if server.status.volumes.iter().any(is_of_it) {
                away = Some((server.pid, escape(why)));
            }
        }
        if names.iter().any(|known| known == name) {
            found.push(server.socket);
        }
        there.extend(names.iter().map(|name| escape(name)));
    }
    match found.len() {
        1 => {
            servers.warn();
            Ok(found.remove(0))
        }
        0 => Err(match away {
            Some((pid, why)) => ClientError::Away { what, name: escape(name), pid, why },
            None => servers.absent(ClientError::Nowhere { what, name: escape(name), there }),
        }),
        _ => {
            let sockets = found.iter().map(|socket| shown(socket)).collect();
            Err(ClientError::Several { what, name: escape(name), sockets })
        }
    }
}

/// The socket of the server that serves volumes of a group.
///
/// # Errors
///
/// None does, or several do, or servers cannot be listed.
pub fn find_group(name: &str) -> Result<PathBuf, ClientError> {
    find_place("volume group", name, |socket| {
        Ok(groups_at(socket)?.into_iter().map(|group| group.name).collect())
    })
}

/// The socket of the server that serves a table with this thin pool (`dm/NAME`).
///
/// # Errors
///
/// None does, or several do, or servers cannot be listed.
pub fn find_pool(name: &str) -> Result<PathBuf, ClientError> {
    find_place("thin pool", name, |socket| {
        let list = get_json::<PoolList>(socket, POOLS)?;
        Ok(list.pools.into_iter().map(|pool| pool.name).collect())
    })
}

/// The groups of a server.
///
/// # Errors
///
/// It does not answer.
pub fn groups_at(socket: &Path) -> Result<Vec<GroupStatus>, ClientError> {
    let asked = Asked { patience: LIST_TIMEOUT, ..Asked::get(GROUPS) };
    receive::<GroupList>(socket, asked).map(|list| list.groups)
}

/// Asks a server to change a group, and waits until that is done.
///
/// # Errors
///
/// The server does not answer, or does not do it.
pub fn ask_group(socket: &Path, request: &GroupRequest) -> Result<GroupAnswer, ClientError> {
    let body = serde_json::to_vec(request).expect("what we ask is JSON");
    receive(socket, Asked { method: Method::POST, path: GROUPS, body, patience: VERB_TIMEOUT })
}

/// The server that offers a volume at this address, such as `vhost-user:PATH`, which may be spelled so or so: the spelling that it knows, and its
/// socket.
///
/// # Errors
///
/// None does, or servers cannot be listed.
pub fn find_export(spellings: &[String]) -> Result<(String, PathBuf), ClientError> {
    let exports = |server: &ServerInfo| {
        let of_volumes = server.status.volumes.iter().map(|volume| volume.exports.clone());
        of_volumes.collect::<Vec<_>>().concat()
    };
    let servers = servers()?;
    for address in spellings {
        let has = |server: &&ServerInfo| exports(server).contains(address);
        if let Some(server) = servers.answering.iter().find(has) {
            servers.warn();
            return Ok((address.clone(), server.socket.clone()));
        }
    }
    let address = spellings.first().map_or("", String::as_str);
    let there = servers.answering.iter().flat_map(exports).map(|known| escape(&known)).collect();
    Err(servers.absent(ClientError::Nowhere { what: "export", name: escape(address), there }))
}

/// Asks a server to change its exports, and waits until that is done.
///
/// # Errors
///
/// The server does not answer, or does not do it.
pub fn ask_export(socket: &Path, request: &ExportRequest) -> Result<ExportAnswer, ClientError> {
    let body = serde_json::to_vec(request).expect("what we ask is JSON");
    receive(socket, Asked { method: Method::POST, path: EXPORTS, body, patience: VERB_TIMEOUT })
}

/// Asks a server to tell a pool something, and waits until that is durable.
///
/// # Errors
///
/// The server does not answer, or the pool does not do it.
pub fn tell_pool(socket: &Path, request: &PoolRequest) -> Result<PoolList, ClientError> {
    let body = serde_json::to_vec(request).expect("what we ask is JSON");
    receive(socket, Asked { method: Method::POST, path: POOLS, body, patience: VERB_TIMEOUT })
}

/// What an error of the control API says; what is no such error, as it is.
fn reason(body: &[u8]) -> String {
    let json = serde_json::from_slice::<serde_json::Value>(body).ok();
    let error = json.as_ref().and_then(|json| json["error"].as_str()).map(str::to_owned);
    let text = error.unwrap_or_else(|| String::from_utf8_lossy(body).trim_end().to_owned());
    // Names in it are escaped already, and would be again.
    if text.chars().any(char::is_control) { escape(&text) } else { text }
}

/// The path to ask for a trace of `volume` with; `text` as blkparse prints it, else records.
pub fn trace_path(volume: &str, text: bool) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("volume", volume).append_pair("format", if text { "text" } else { "binary" });
    format!("/v1/trace?{}", query.finish())
}

/// Asks a server, and reads its answer as JSON.
///
/// # Errors
///
/// It does not answer (in time, with success), or the answer is something else.
pub fn get_json<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, ClientError> {
    receive(socket, Asked::get(path))
}

/// What is asked of a server.
struct Asked<'a> {
    method: Method,
    path: &'a str,
    body: Vec<u8>,
    /// The answer's head must be there after that time.
    patience: Duration,
}

impl<'a> Asked<'a> {
    fn get(path: &'a str) -> Asked<'a> {
        Asked { method: Method::GET, path, body: Vec::new(), patience: TIMEOUT }
    }
}

fn receive<T: DeserializeOwned>(socket: &Path, asked: Asked<'_>) -> Result<T, ClientError> {
    let broken = |source| ClientError::Connection { socket: shown(socket), source };
    let runtime = runtime().map_err(broken)?;
    let body = runtime.block_on(async {
        let response = ask(socket, asked).await?;
        whole(response.into_body()).await.map_err(broken)
    })?;
    serde_json::from_slice(&body).map_err(|error| broken(io::Error::new(io::ErrorKind::InvalidData, error)))
}

/// Asks a server for something that does not end by itself, such as [`trace_path`].
///
/// # Errors
///
/// It does not answer, or refuses.
pub fn stream(socket: &Path, path: &str) -> Result<Stream, ClientError> {
    let runtime = runtime().map_err(|source| ClientError::Connection { socket: shown(socket), source })?;
    let response = runtime.block_on(ask(socket, Asked::get(path)))?;
    Ok(Stream { runtime, body: response.into_body(), rest: Bytes::new() })
}

/// A stream from a server. Its end is the server's end.
pub struct Stream {
    runtime: Runtime,
    body: Incoming,
    rest: Bytes,
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() && !into.is_empty() {
            match self.runtime.block_on(self.body.frame()) {
                None => return Ok(0),
                Some(Err(error)) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error)),
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
        let len = into.len().min(self.rest.len());
        into[..len].copy_from_slice(&self.rest.split_to(len));
        Ok(len)
    }
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Sends the request; comes back when the head of a successful answer is there.
async fn ask(socket: &Path, asked: Asked<'_>) -> Result<Response<Incoming>, ClientError> {
    let broken = |source| ClientError::Connection { socket: shown(socket), source };
    let (method, path) = (asked.method.clone(), escape(asked.path));
    let connection = in_time(asked.patience, UnixStream::connect(socket)).await.map_err(broken)?;
    // From here on it may have been heard.
    let unanswered = |source| match method {
        Method::POST => ClientError::Unanswered { socket: shown(socket), source },
        _ => broken(source),
    };
    let response = in_time(asked.patience, send(connection, asked)).await.map_err(unanswered)?;
    let status = response.status();
    if status == StatusCode::OK {
        return Ok(response);
    }
    let text = whole(response.into_body()).await.map_err(broken)?;
    if method == Method::POST {
        return Err(ClientError::Declined(reason(&text)));
    }
    Err(ClientError::Refused {
        socket: shown(socket),
        path,
        status: status.as_u16(),
        text: escape(String::from_utf8_lossy(&text).trim_end()),
    })
}

async fn send(connection: UnixStream, asked: Asked<'_>) -> io::Result<Response<Incoming>> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(connection)).await.map_err(io::Error::other)?;
    // It runs while this thread waits for an answer, and ends with it.
    tokio::spawn(connection);
    let request = Request::builder().method(asked.method).uri(asked.path).header(HOST, "blockwork");
    let request = request.body(Full::new(Bytes::from(asked.body)));
    let request = request.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    sender.send_request(request).await.map_err(io::Error::other)
}

async fn whole(body: Incoming) -> io::Result<Bytes> {
    let body = async { Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(io::Error::other) };
    Ok(in_time(TIMEOUT, body).await?.to_bytes())
}

async fn in_time<T>(patience: Duration, what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late =
        |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", patience.as_secs()));
    tokio::time::timeout(patience, what).await.map_err(late)?
}
