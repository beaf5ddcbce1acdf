//! The control API of a running server: HTTP/1.1 on a unix socket, and the client that the command line uses.
//!
//! A server answers in a thread of its own, which touches nothing of the data path but counters and the trace hub. What
//! can be asked is in `docs/control-api.md`; what alters something is asked of [`Arrays`] and [`Groups`], which
//! whoever serves implements.
//!
//! HTTP is hyper's, on a single-threaded tokio runtime, without a framework: seven paths need no router, and a trace that
//! streams for hours and must end when its reader goes is what simple blocking servers are bad at. Both ends are hyper's,
//! so no bytes of HTTP are parsed here.
//!
//! Invariants:
//! 1. Only the user who runs the server (and root) reaches it: the socket has mode 0600, in a folder that nobody else
//!    can write to ([`control_dir`]); a client trusts no other folder.
//! 2. A client can hold at most one of [`CONNECTIONS_MAX`] connections, [`HEAD_BYTES_MAX`] of head, [`BODY_BYTES_MAX`] of
//!    body, and a trace's queue. One that does not read loses events of its own trace, and of another answer its connection, after
//!    [`TAKING_TIME`].
//! 3. No disk is waited for in the thread that answers: what may take long has a thread of its own, of which there are at most
//!    [`UNDER_WAY_MAX`] for changes and as many for lists, whatever has become of those who asked.
//! 4. Names in answers are as they are on disk, quoted by JSON; in text and errors they are escaped.
#![forbid(unsafe_code)]

mod arrays;
mod client;
mod directory;
mod exports;
mod groups;
mod metrics;
mod routes;
mod server;
mod status;
mod taking;
mod trace_body;

pub use arrays::{
    ArrayAnswer, ArrayGauges, ArrayList, ArrayRequest, ArrayStatus, Arrays, DeviceStatus, Refusal,
    RefusalKind, SyncStatus, Verb, WAIT_MILLIS_MAX, no_array,
};
pub use client::{
    ArrayPlace, ClientError, ServerInfo, Servers, Silent, Stream, array_at, arrays_at, ask_array, ask_export,
    ask_group, find_array, find_array_in, find_export, find_group, find_pool, find_volume, find_volume_in,
    get_json, groups_at, servers, servers_in, stream, tell_pool, trace_path,
};
pub use directory::{DirectoryError, control_dir, socket_path};
pub use exports::{ExportAnswer, ExportRequest, Exports, GuestDisk, GuestMemory};
pub use groups::{
    GroupAnswer, GroupList, GroupRequest, GroupStatus, Groups, LvStatus, PoolList, PoolRequest, PoolStatus,
    PvStatus, absent,
};
pub use routes::{BODY_BYTES_MAX, UNDER_WAY_MAX};
pub use server::{CONNECTIONS_MAX, Control, ControlError, ControlHandle, HEAD_BYTES_MAX};
pub use status::{Away, ControlState, DiskStatus, Disks, LimitsStatus, Status, VolumeStatus, Volumes};
pub use taking::TAKING_TIME;
