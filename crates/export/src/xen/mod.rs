//! A volume as a disk of a guest of Xen's: the back end of [`blkif`](crate::blkif) over the real things, in dom0 or in a driver
//! domain.
//!
//! ```text
//!   xen-blkfront ──keys, states──▶ xenstored ──▶ XenServer's thread ──starts, ends──▶ BackPort (on a worker, one a queue)
//!       └───────── ring in granted pages (gntdev), event channel (evtchn) ──────────────┘   └─▶ bios on the volume
//! ```
//!
//! The thread (`server`) keeps the connection: it writes the device's nodes (`nodes`), watches the front end's, and does what
//! [`BackDevice`](crate::blkif::BackDevice) says. A queue (`queue`) has its ring mapped; its data is copied between
//! the guest's pages and the worker's own buffers, since a process that is killed while the kernel does I/O on pages of gntdev's takes
//! the machine's memory with it. `ledger` keeps what was taken and not answered in a file, so that the guest sees nothing of a
//! server that is killed and started again.
//!
//! The front end is hostile, see [`blkif`](crate::blkif); xenstored, which runs with the same rights as we do, is not.
//!
//! Invariants:
//! 1. Whoever is killed or told to end leaves states and nodes as they are: to Linux' front end a back end that closes is a disk
//!    that is gone. So a guest that connects while the workers end is left to the next server.
//! 2. One server at a time has a device: it holds the lock on its ledger.
//! 3. A bad front end loses its own device and nothing else.
//! 4. Pages that are mapped from the guest are read and written by us alone: none is ever given to the kernel for I/O.

mod ledger;
mod nodes;
mod queue;
mod server;
mod store;

pub use ledger::LedgerError;
pub use nodes::NodesError;
pub use server::{XenError, XenOptions, XenServer};
