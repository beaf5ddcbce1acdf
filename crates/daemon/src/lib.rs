//! The control API of a running server: HTTP/1.1 on a unix socket, and the client that the command line uses.
//!
//! A server answers in a thread of its own, which touches nothing of the data path but counters and the trace hub. What
//! can be asked is in `docs/control-api.md`; nothing that can be asked changes anything.
//!
//! HTTP is hyper's, on a single-threaded tokio runtime, without a framework: five paths need no router, and a trace that
//! streams for hours and must end when its reader goes is what simple blocking servers are bad at. Both ends are hyper's,
//! so no bytes of HTTP are parsed here.
//!
//! Invariants:
//! 1. Only the user who runs the server (and root) reaches it: the socket has mode 0600, in a folder that nobody else
//!    can write to ([`control_dir`]); a client trusts no other folder.
//! 2. A client can hold at most one of [`CONNECTIONS_MAX`] connections, [`HEAD_BYTES_MAX`] of head, and a trace's queue.
//!    One that does not read loses events of its own trace, and nothing else happens.
//! 3. Names in answers are as they are on disk, quoted by JSON; in text and errors they are escaped.
#![forbid(unsafe_code)]

mod client;
mod directory;
mod routes;
mod server;
mod status;
mod trace_body;

pub use client::{
    ClientError, ServerInfo, Stream, find_volume, find_volume_in, get_json, servers, servers_in, stream,
    trace_path,
};
pub use directory::{DirectoryError, control_dir, socket_path};
pub use server::{CONNECTIONS_MAX, Control, ControlError, ControlHandle, HEAD_BYTES_MAX};
pub use status::{ControlState, DiskStatus, LimitsStatus, Status, VolumeStatus};
