//! Accepting clients, and spreading them over the workers.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use blockwork_engine::{Completion, Context, Done, Nanos, Port, PortState, WorkerHandle};
use blockwork_uring::{Shortage, Uring, clock, more};
use rustix::net::sockopt;

use super::budget::Budget;
use super::config::NbdConfig;
use super::connection::Connection;
use super::listen::{ListenError, Listener};
use crate::complaints::Complaints;

/// Memory of a unix socket for what is on its way to the client, bytes (the kernel takes as much as `wmem_max` allows, and
/// doubles it). A batch of answers that fits is sent in one go: beside the usual 208 KiB, reads of 4 KiB at depth 128
/// and of 1 MiB cost an eighth less. TCP finds its own size.
const UNIX_SEND_BUFFER: usize = 512 << 10;

/// How long a client's host that was asked whether it is still there has for its answer, and how often it is asked: one that cannot be
/// reached for less than two minutes loses nothing, and beyond that its client would have given up.
const PROBE_TIME: Duration = Duration::from_secs(15);
const PROBES: u32 = 8;

/// How long accepting pauses when the process or the system has run out of something.
const PAUSE: Nanos = Nanos::millis(100);

/// A running NBD server. It ends with its workers: when these are stopped, its listeners close, and each client gets the
/// answers to what it has asked for.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<String>,
}

/// How many clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerCounts {
    /// Connected now.
    pub connections: usize,
    /// Accepted so far.
    pub accepted: u64,
    /// Turned away, because there were too many.
    pub refused: u64,
}

struct Shared {
    config: Arc<NbdConfig>,
    budget: Arc<Budget>,
    workers: Vec<(WorkerHandle<Uring>, Arc<AtomicUsize>)>,
    connections: Arc<AtomicUsize>,
    accepted: AtomicU64,
    refused: AtomicU64,
    /// About clients that are let go.
    let_go: Arc<Complaints>,
    /// About those for whom there is no room.
    turned_away: Complaints,
}

impl Server {
    /// Serves clients of `listeners` on `workers`, of which there must be one. Listening is the first worker's.
    ///
    /// # Errors
    /// A listener that is open to other machines, without TLS and not meant to be ([`Listener::insecure`]).
    pub fn start(
        config: NbdConfig,
        listeners: Vec<Listener>,
        workers: &[WorkerHandle<Uring>],
    ) -> Result<Server, ListenError> {
        let first = workers.first().expect("a server needs a worker").clone();
        let tls = config.tls.is_some();
        for listener in &listeners {
            listener.check(tls)?;
        }
        let shared = Arc::new(Shared {
            budget: Budget::new(config.bytes_of_all_max, config.reads_enough),
            config: Arc::new(config),
            workers: workers.iter().map(|worker| (worker.clone(), Arc::default())).collect(),
            connections: Arc::default(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            let_go: Arc::default(),
            turned_away: Complaints::default(),
        });
        let addresses = listeners.iter().map(|listener| listener.uri(tls)).collect();
        for listener in listeners {
            let shared = shared.clone();
            let name = format!("nbd: {}", listener.uri(tls));
            first.run(move |worker| {
                worker.add_port(Box::new(Acceptor {
                    shared,
                    listener,
                    accepting: false,
                    paused: false,
                    name,
                    shortage: Shortage::default(),
                    draining: false,
                }));
            });
        }
        Ok(Server { shared, addresses })
    }

    /// Where clients reach it, as NBD URIs, in the order of the listeners.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// How many clients there are and were.
    pub fn counts(&self) -> ServerCounts {
        ServerCounts {
            connections: self.shared.connections.load(Ordering::Relaxed),
            accepted: self.shared.accepted.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
        }
    }
}

/// A connection's place in the server's count; given back when it is dropped.
pub(super) struct Ticket {
    number: u64,
    let_go: Arc<Complaints>,
    all: Arc<AtomicUsize>,
    worker: Arc<AtomicUsize>,
}

impl Ticket {
    /// Which connection of the server, counted from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Says why this client is let go, as often as the log has room for: it may come again at once.
    pub(super) fn let_go(&self, why: &dyn std::fmt::Display) {
        self.let_go.inform(clock(), || format!("nbd client {}: {why}", self.number));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        self.worker.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// Gives a client to the worker that has the fewest.
    fn serve(&self, fd: OwnedFd) {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= self.config.connections_max {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            self.refused.fetch_add(1, Ordering::Relaxed);
            let most = self.config.connections_max;
            self.turned_away.warn(clock(), || {
                format!(
                    "nbd: {most} clients are connected, and another one is turned away: allow more (--nbd-clients; each may cost memory), or \
                     serve some volumes by another server"
                )
            });
            return;
        }
        let fewest = self.workers.iter().min_by_key(|(_, count)| count.load(Ordering::Relaxed));
        let (worker, count) = fewest.expect("a server has workers");
        count.fetch_add(1, Ordering::Relaxed);
        let number = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let let_go = self.let_go.clone();
        let ticket = Ticket { number, let_go, all: self.connections.clone(), worker: count.clone() };
        if sockopt::set_tcp_nodelay(&fd, true).is_err() {
            // Not TCP. Where it is refused, things only go a little slower.
            let _ = sockopt::set_socket_send_buffer_size(&fd, UNIX_SEND_BUFFER);
        } else if let Err(error) = keep_alive(&fd, self.config.silence_time) {
            log::warn!("nbd client {number}: if its host vanishes, nobody will notice: keep-alive: {error}");
        }
        let (config, share) = (self.config.clone(), self.budget.share());
        worker.run(move |worker| {
            worker.add_port(Box::new(Connection::new(fd, config, ticket, share)));
        });
    }
}

/// Has the kernel notice a client whose host is gone or was started again, which says so to nobody. What is sent to such a one ends the
/// connection by itself; it is those from whom requests are awaited that would stay for ever, with all their memory.
fn keep_alive(fd: &OwnedFd, silence: Nanos) -> rustix::io::Result<()> {
    sockopt::set_tcp_keepidle(fd, Duration::from_nanos(silence.0))?;
    sockopt::set_tcp_keepintvl(fd, PROBE_TIME)?;
    sockopt::set_tcp_keepcnt(fd, PROBES)?;
    sockopt::set_socket_keepalive(fd, true)
}

/// Operations of ours in the environment.
mod local {
    pub(super) const ACCEPT: u32 = 0;
    pub(super) const PAUSE: u32 = 1;
}

/// A listener as a port.
struct Acceptor {
    shared: Arc<Shared>,
    listener: Listener,
    accepting: bool,
    paused: bool,
    /// What the log calls it.
    name: String,
    shortage: Shortage,
    draining: bool,
}

impl Port<Uring> for Acceptor {
    fn open(&mut self, _cx: &mut Context<'_, Uring>) {}

    fn event(&mut self, cx: &mut Context<'_, Uring>, number: u32, completion: Completion) {
        if number == local::PAUSE {
            self.paused = false;
            return;
        }
        self.accepting = more(completion.flags);
        match completion.outcome() {
            Ok(_) => {
                self.shortage.is_over(clock(), &self.name);
                let fd = cx.env.take_accepted(completion.result);
                if !self.draining {
                    self.shared.serve(fd);
                }
            }
            Err(_) if self.draining => {}
            Err(errno) if is_the_clients(errno.0) => {}
            Err(errno) => {
                // Out of descriptors or memory: there may be some again soon. Clients wait in the backlog.
                self.shortage.begins(clock(), &self.name, errno);
                self.paused = true;
                let token = cx.token(local::PAUSE);
                cx.env.timeout(token, PAUSE);
            }
        }
    }

    fn done(&mut self, _cx: &mut Context<'_, Uring>, done: Done) {
        unreachable!("a listener submits no bio, yet {done:?} completed");
    }

    fn turn(&mut self, cx: &mut Context<'_, Uring>) -> PortState {
        if self.draining {
            return PortState::Closed;
        }
        if !self.accepting && !self.paused {
            let token = cx.token(local::ACCEPT);
            cx.env.accept(token, self.listener.fd().clone());
            self.accepting = true;
        }
        PortState::Open
    }

    fn drain(&mut self, cx: &mut Context<'_, Uring>) {
        self.draining = true;
        for number in [local::ACCEPT, local::PAUSE] {
            let token = cx.token(number);
            cx.env.cancel(token);
        }
        self.listener.close();
    }
}

/// Whether an accept failed because the client had gone again: nothing to wait for.
fn is_the_clients(errno: i32) -> bool {
    const EINTR: i32 = 4;
    const EAGAIN: i32 = 11;
    const EPROTO: i32 = 71;
    const ECONNABORTED: i32 = 103;
    matches!(errno, EINTR | EAGAIN | EPROTO | ECONNABORTED)
}
