//! Where clients connect: unix sockets, TCP, and sockets that were inherited (systemd's socket activation).
//!
//! A unix socket that nobody listens on is stale, and replaced. So is, by its looks, one that another server has just bound and does not listen on
//! yet; and between that look and the removal, somebody may have put a fresh socket in its place. So whoever looks, removes, binds and begins to listen
//! has the lock of the folder meanwhile (flock(2)): that leaves nothing behind, and ends with its process.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwork_uring::duplicate;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, open};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::test_kill_process;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;
/// The first inherited descriptor, by convention.
const FIRST_INHERITED: i32 = 3;
/// Longest wait for the kernel to let go of a dead process's address.
const RELEASE_TIME: Duration = Duration::from_secs(1);
/// The same where it is known that who began to listen is dead: on a busy machine it may take longer.
const RELEASE_TIME_OF_DEAD: Duration = Duration::from_secs(5);
/// Longest wait for others who look into the same folder. Anybody who may read a folder can lock it, for as long as they like.
const FOLDER_TIME: Duration = Duration::from_secs(10);
/// Most inherited descriptors.
const INHERITED_MAX: i32 = 64;

/// Bytes of a path that a URI's query cannot have as they are, or that a client may take for something else (`+` for a space).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A socket that clients connect to.
#[derive(Debug)]
pub struct Listener {
    fd: Arc<OwnedFd>,
    place: Place,
    insecure: bool,
}

#[derive(Debug)]
enum Place {
    Unix {
        path: PathBuf,
        /// Of its file; none: it has been removed.
        identity: Option<Identity>,
    },
    Tcp(SocketAddr),
    /// Somebody else's unix socket: not ours to remove.
    Inherited(PathBuf),
}

/// Why there is no listening.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody answers there.
    #[error("{}: a server answers on this socket already, another one or this one; stop that, or choose another path", .0.display())]
    InUse(PathBuf),
    /// Somebody may answer there, and cannot be asked.
    #[error(
        "{}: whether a server answers on this socket cannot be found out: {source}; remove it if none does, or choose another path",
        path.display()
    )]
    NotKnown {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something else is there.
    #[error("{}: exists and is not a socket; remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The path does not fit.
    #[error("{}: {found} bytes, a unix socket's path has at most 107; choose a shorter one", path.display())]
    PathTooLong {
        /// Which.
        path: PathBuf,
        /// How long.
        found: usize,
    },
    /// It says no place.
    #[error("{0:?} is nowhere to listen at; expected HOST:PORT, as in localhost:10809, or unix:PATH")]
    NotAnAddress(String),
    /// A system call failed.
    #[error("{place}: {call}: {source}{}", remedy(source))]
    System {
        /// Where to listen.
        place: String,
        /// What failed.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Anyone could connect and write.
    #[error(
        "{0}: other machines could read and write the volumes: demand TLS (--tls-certificates FOLDER), listen on 127.0.0.1 or \
         a unix socket, or say that this is meant (--insecure)"
    )]
    Insecure(SocketAddr),
    /// Socket activation went wrong.
    #[error("LISTEN_FDS is {found:?}, expected a number from 1 to {INHERITED_MAX}")]
    ListenFds {
        /// What it is.
        found: String,
    },
    /// An inherited descriptor is no use.
    #[error("inherited descriptor {number}: {reason}")]
    Inherited {
        /// Its number.
        number: i32,
        /// What is wrong with it.
        reason: String,
    },
}

/// What to do about an error of a system call.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; make its folder first (mkdir -p), or correct the path",
        io::ErrorKind::PermissionDenied => {
            "; choose a folder that this user may write to, or a port from 1024 on"
        }
        io::ErrorKind::AddrInUse => "; another program listens there: stop it, or choose another port",
        io::ErrorKind::AddrNotAvailable => {
            "; this machine has no such address: see `ip address`, and name one of those"
        }
        _ if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            "; all files that this process may have open are in use: let it have more (ulimit -n; LimitNOFILE= of its unit in systemd)"
        }
        _ => "",
    }
}

impl Listener {
    /// A unix socket at `path` for this user only (mode 0600). A socket that is there already is removed if nobody
    /// listens on it; to find out may take a second, or five.
    pub fn unix(path: &Path) -> Result<Listener, ListenError> {
        let failed =
            |call, source: io::Error| ListenError::System { place: path.display().to_string(), call, source };
        let found = path.as_os_str().len();
        if found == 0 {
            return Err(ListenError::NotAnAddress("unix:".into()));
        }
        if found > 107 {
            return Err(ListenError::PathTooLong { path: path.to_owned(), found });
        }
        let absolute = std::path::absolute(path).map_err(|e| failed("absolute path", e))?;
        let _folder = lock_folder(&absolute);
        remove_stale(path)?;
        let address = SocketAddrUnix::new(path).map_err(|e| failed("address", e.into()))?;
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|e| failed("socket", e.into()))?;
        // The socket's own mode becomes that of its file: there is no moment at which others could connect.
        fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(|e| failed("fchmod", e.into()))?;
        bind(&fd, &address).map_err(|e| failed("bind", e.into()))?;
        let identity = identity(path).map_err(|e| failed("stat", e))?;
        listen(&fd, BACKLOG).map_err(|e| failed("listen", e.into()))?;
        let place = Place::Unix { path: absolute, identity: Some(identity) };
        Ok(Listener { fd: Arc::new(fd), place, insecure: false })
    }

    /// A TCP socket at `address` (`HOST:PORT`; port 0: any). Without TLS only a loopback address will be served, unless
    /// [`Listener::insecure`] says otherwise.
    pub fn tcp(address: &str) -> Result<Listener, ListenError> {
        let failed = |call, source| ListenError::System { place: address.to_owned(), call, source };
        if !has_host_and_port(address) {
            return Err(ListenError::NotAnAddress(address.to_owned()));
        }
        let listener = bind_tcp(address).map_err(|e| failed("bind", e))?;
        let local = listener.local_addr().map_err(|e| failed("getsockname", e))?;
        Ok(Listener { fd: Arc::new(listener.into()), place: Place::Tcp(local), insecure: false })
    }

    /// A socket that somebody else listens on for us.
    pub fn from_fd(fd: OwnedFd) -> Result<Listener, ListenError> {
        let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
        Listener::inherited(fd, number)
    }

    /// The same of a duplicate of that descriptor.
    fn inherited(fd: OwnedFd, number: i32) -> Result<Listener, ListenError> {
        let refuse =
            |reason: &dyn std::fmt::Display| ListenError::Inherited { number, reason: reason.to_string() };
        let listening = rustix::net::sockopt::socket_acceptconn(&fd).map_err(|e| refuse(&e))?;
        let kind = rustix::net::sockopt::socket_type(&fd).map_err(|e| refuse(&e))?;
        if !listening || kind != SocketType::STREAM {
            return Err(refuse(
                &"not a listening stream socket; use ListenStream=, and Accept=no, in the socket unit",
            ));
        }
        // A listening socket must block: older kernels' accept would return at once else.
        rustix::io::ioctl_fionbio(&fd, false).map_err(|e| refuse(&e))?;
        let local = rustix::net::getsockname(&fd).map_err(|e| refuse(&e))?;
        let place = match SocketAddr::try_from(local.clone()) {
            Ok(address) => Place::Tcp(address),
            Err(_) => {
                let path = SocketAddrUnix::try_from(local).ok();
                let path = path.as_ref().and_then(SocketAddrUnix::path_bytes);
                Place::Inherited(path.map(|bytes| OsStr::from_bytes(bytes).into()).unwrap_or_default())
            }
        };
        Ok(Listener { fd: Arc::new(fd), place, insecure: false })
    }

    /// Says that other machines may be served without TLS.
    #[must_use]
    pub fn insecure(mut self, insecure: bool) -> Listener {
        self.insecure = insecure;
        self
    }

    /// Where clients reach it, as an NBD URI.
    pub fn uri(&self, tls: bool) -> String {
        let s = if tls { "s" } else { "" };
        match &self.place {
            Place::Unix { path, .. } | Place::Inherited(path) => {
                let path = percent_encode(path.as_os_str().as_bytes(), ENCODED);
                format!("nbd{s}+unix:///?socket={path}")
            }
            Place::Tcp(address) => format!("nbd{s}://{}", authority(address)),
        }
    }

    pub(super) fn check(&self, tls: bool) -> Result<(), ListenError> {
        match self.place {
            Place::Tcp(address) if !tls && !self.insecure && !is_loopback(address.ip()) => {
                Err(ListenError::Insecure(address))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Stops clients from connecting: removes the socket's file if it is still ours. While somebody listens there, which nobody
    /// else then takes for stale.
    pub(crate) fn close(&mut self) {
        if let Place::Unix { path, identity } = &mut self.place
            && let Some(ours) = identity.take()
            && self::identity(path).is_ok_and(|now| now == ours)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

/// The URI of one export, by that of its server ([`Listener::uri`]), which is that of the default export.
pub fn uri_of(server: &str, export: &str) -> String {
    let export = percent_encode(export.as_bytes(), ENCODED);
    match server.split_once("/?") {
        Some((place, query)) => format!("{place}/{export}?{query}"),
        None => format!("{server}/{export}"),
    }
}

/// An address as a URI has it: the `%` before the interface of a link-local one is encoded (RFC 6874), since clients decode what follows one.
fn authority(address: &SocketAddr) -> String {
    address.to_string().replace('%', "%25")
}

fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}

/// Which file it is. The number of one that was removed may be the next one's; when it was made, in seconds and nanoseconds, is not.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    modified: (i64, i64),
}

fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::symlink_metadata(path)?;
    let modified = (data.mtime(), data.mtime_nsec());
    Ok(Identity { device: data.dev(), inode: data.ino(), modified })
}

/// The lock of the folder that `path` is in, as long as this lives. None where there is no such lock, or somebody keeps it for
/// too long: then another server that starts in the same moment is not kept out.
fn lock_folder(path: &Path) -> Option<OwnedFd> {
    let folder = path.parent()?;
    let file = open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) if start.elapsed() < FOLDER_TIME => pause(),
            Err(Errno::WOULDBLOCK) => {
                log::warn!("{}: locked by another process; going on without", folder.display());
                return None;
            }
            Err(_) => return None,
        }
    }
}

/// Removes a socket that nobody answers on.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(data) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !data.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    match is_stale(path) {
        Ok(true) => {}
        // It answers, or is too busy to: it is somebody's.
        Ok(false) | Err(Errno::AGAIN) => return Err(ListenError::InUse(path.to_owned())),
        Err(Errno::MFILE) => {
            let (place, source) = (path.display().to_string(), Errno::MFILE.into());
            return Err(ListenError::System { place, call: "socket", source });
        }
        Err(errno) => return Err(ListenError::NotKnown { path: path.to_owned(), source: errno.into() }),
    }
    std::fs::remove_file(path).map_err(|source| ListenError::System {
        place: path.display().to_string(),
        call: "remove the stale socket",
        source,
    })
}

/// Whether nobody listens on a socket, or nobody will in a moment.
///
/// A server that was killed listens for longer than it lives: its io_uring, which accepts, is wound up afterwards. Clients who wait are
/// cut off then, and the next one is refused. So who is not refused waits for a word or for the end. Who listens cannot be asked: the
/// kernel names the process that called listen(2), which is gone as well where a server has put itself in the background. That only
/// says for how long to wait.
fn is_stale(path: &Path) -> Result<bool, Errno> {
    let start = Instant::now();
    loop {
        let stream = match connect_now(path) {
            Ok(stream) => stream,
            Err(Errno::CONNREFUSED) => return Ok(true),
            Err(errno) => return Err(errno),
        };
        let is_dead =
            socket_peercred(&stream).is_ok_and(|began| test_kill_process(began.pid) == Err(Errno::SRCH));
        let patience = if is_dead { RELEASE_TIME_OF_DEAD } else { RELEASE_TIME };
        let left = patience.saturating_sub(start.elapsed());
        if left.is_zero() || !is_cut_off(stream, left) {
            return Ok(false);
        }
        pause();
    }
}

/// Connects to a unix socket without waiting for room in its backlog.
fn connect_now(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&fd, false)?;
    Ok(UnixStream::from(fd))
}

/// Whether the other side ends the connection in that time, without a word.
fn is_cut_off(mut stream: UnixStream, time: Duration) -> bool {
    if stream.set_read_timeout(Some(time)).is_err() {
        return false;
    }
    match stream.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

/// Binds, also where a server that was killed a moment ago still has the address: see [`is_stale`].
fn bind_tcp(address: &str) -> io::Result<TcpListener> {
    let start = Instant::now();
    let places = places(address)?;
    loop {
        match TcpListener::bind(&places[..]) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < RELEASE_TIME => {
                pause()
            }
            result => return result,
        }
    }
}

fn has_host_and_port(address: &str) -> bool {
    let parts = address.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// What `HOST:PORT` stands for. The standard library wants the interface of a link-local address as a number; people have its name.
fn places(address: &str) -> io::Result<Vec<SocketAddr>> {
    let scoped = address.strip_prefix('[').and_then(|rest| rest.rsplit_once("]:"));
    let scoped = scoped.filter(|(host, _)| host.contains('%'));
    match scoped.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        Some(scoped) => Ok(scoped.to_socket_addrs()?.collect()),
        None => Ok(address.to_socket_addrs()?.collect()),
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the kernel tells nobody when it has closed a dead process's sockets, and a lock that is waited for in flock(2) is for ever"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

/// The sockets that a service manager has opened for us: `variable` gives the environment's variables. None if there are
/// none, or if they are meant for another process.
///
/// The descriptors are duplicated, so that this may be called again; the originals stay open.
pub fn inherited(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<Listener>, ListenError> {
    if variable("LISTEN_PID").is_none_or(|pid| pid.parse() != Ok(std::process::id())) {
        return Ok(Vec::new());
    }
    let Some(found) = variable("LISTEN_FDS") else { return Ok(Vec::new()) };
    let count = found.parse::<i32>().ok().filter(|count| (1..=INHERITED_MAX).contains(count));
    let count = count.ok_or(ListenError::ListenFds { found })?;
    let all = FIRST_INHERITED..FIRST_INHERITED + count;
    let failed = |number, error: io::Error| ListenError::Inherited { number, reason: error.to_string() };
    all.map(|number| Listener::inherited(duplicate(number).map_err(|e| failed(number, e))?, number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    use rustix::net::{Shutdown, accept, send, shutdown};

    #[test]
    fn an_export_has_a_place_in_the_uri_of_its_server() {
        assert_eq!(uri_of("nbd+unix:///?socket=/a%3F/b", "vg/one"), "nbd+unix:///vg/one?socket=/a%3F/b");
        assert_eq!(uri_of("nbds://[::1]:10809", "disk/a b?.img"), "nbds://[::1]:10809/disk/a%20b%3F.img");
    }

    #[test]
    fn the_interface_of_a_link_local_address_is_a_name_or_a_number() {
        for address in ["[fe80::1%lo]:10809", "[fe80::1%1]:10809"] {
            assert_eq!(places(address).unwrap(), ["[fe80::1%1]:10809".parse().unwrap()], "{address}");
        }
        assert_eq!(places("127.0.0.1:1").unwrap(), ["127.0.0.1:1".parse().unwrap()]);
        for wrong in ["[fe80::1%nobody]:10809", "[fe80::1%lo]:x", "[fe80::1%lo]", "127.0.0.1"] {
            assert!(places(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn why_nobody_can_connect_is_said_with_what_to_do() {
        for wrong in ["s", "10809", ":10809", "localhost", "localhost:nbd", "localhost:65536", "/tmp/s"] {
            let said = Listener::tcp(wrong).unwrap_err().to_string();
            assert!(said.contains("expected HOST:PORT, as in localhost:10809, or unix:PATH"), "{said}");
        }
        let said = |listener: Result<Listener, ListenError>| listener.unwrap_err().to_string();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let in_use = said(Listener::tcp(&address));
        assert!(in_use.starts_with(&address) && in_use.ends_with("choose another port"), "{in_use}");
        // TEST-NET-1, which no machine has.
        let nowhere = said(Listener::tcp("192.0.2.1:10809"));
        assert!(nowhere.ends_with("see `ip address`, and name one of those"), "{nowhere}");
        let folder = tempfile::tempdir().unwrap();
        let no_folder = said(Listener::unix(&folder.path().join("nobody/s")));
        assert!(no_folder.ends_with("make its folder first (mkdir -p), or correct the path"), "{no_folder}");
    }

    #[test]
    fn the_interface_of_a_link_local_address_is_no_encoded_byte() {
        for (address, told) in [
            ("[fe80::1%42]:10809", "[fe80::1%2542]:10809"),
            ("[::1]:10809", "[::1]:10809"),
            ("127.0.0.1:10809", "127.0.0.1:10809"),
        ] {
            assert_eq!(authority(&address.parse().unwrap()), told);
        }
    }

    /// Greets whoever connects, until the socket is shut down.
    fn greet(fd: &OwnedFd) {
        while let Ok(client) = accept(fd) {
            let _ = send(&client, b"N", rustix::net::SendFlags::NOSIGNAL);
        }
    }

    #[test]
    fn of_servers_that_start_at_once_on_a_stale_socket_one_has_it_and_answers() {
        const SERVERS: usize = 4;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        for round in 0..100 {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let (begin, listening) = (Barrier::new(SERVERS), Barrier::new(SERVERS + 1));
            let server = std::thread::scope(|scope| {
                let start = || {
                    begin.wait();
                    let ours = Listener::unix(&path);
                    if let Ok(ours) = &ours {
                        let fd = ours.fd.clone();
                        scope.spawn(move || greet(&fd));
                    }
                    listening.wait();
                    ours
                };
                let servers: Vec<_> = (0..SERVERS).map(|_| scope.spawn(start)).collect();
                listening.wait();
                let answers =
                    connect_now(&path).is_ok_and(|mut stream| stream.read(&mut [0]).is_ok_and(|n| n == 1));
                let (have_it, others): (Vec<_>, Vec<_>) =
                    servers.into_iter().map(|one| one.join().unwrap()).partition(Result::is_ok);
                have_it.iter().flatten().for_each(|one| shutdown(&one.fd, Shutdown::Both).unwrap());
                let in_use = |other| matches!(other, Err(ListenError::InUse(_)));
                assert!(others.into_iter().all(in_use), "round {round}");
                assert_eq!((have_it.len(), answers), (1, true), "round {round}");
                have_it
            });
            drop(server);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
        }
    }
}
