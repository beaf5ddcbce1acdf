//! What an NBD server serves, to whom, and what a client may cost.

use blockwork_engine::Nanos;

use super::exports::Exports;
use super::tls::ServerTls;

/// Settings of a server; shared by all of its connections.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// What is served.
    pub exports: Exports,
    /// TLS, demanded of every client; none: clear text only.
    pub tls: Option<ServerTls>,
    /// Most clients at once; further ones are turned away.
    pub connections_max: usize,
    /// Most requests of one client that are under way or answered and not yet sent.
    pub requests_max: usize,
    /// Memory that these may hold, bytes. One request more than that is let through, so that any can be.
    pub bytes_max: usize,
    /// The same of all clients together, bytes. Where it is used up, each still has 1 MiB, or a request at a time.
    pub bytes_of_all_max: usize,
    /// Bytes of large reads that all clients together begin at a time on a disk that is near: as many as keep it busy. Many clients begin 1 MiB each,
    /// and all of them more where disks are farther away.
    pub reads_enough: usize,
    /// Time for a handshake, TLS included.
    pub handshake_time: Nanos,
    /// Time to read the last answers, once the session is over or the server is going down.
    pub linger_time: Nanos,
    /// Silence after which a TCP client's host is asked whether it is still there; in whole seconds.
    pub silence_time: Nanos,
}

impl NbdConfig {
    /// The usual limits.
    pub fn new(exports: Exports) -> NbdConfig {
        NbdConfig {
            exports,
            tls: None,
            connections_max: 256,
            requests_max: 1024,
            bytes_max: 64 << 20,
            bytes_of_all_max: 1 << 30,
            reads_enough: 4 << 20,
            handshake_time: Nanos::secs(10),
            linger_time: Nanos::secs(5),
            silence_time: Nanos::secs(60),
        }
    }
}
