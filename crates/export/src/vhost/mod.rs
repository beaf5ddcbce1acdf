//! vhost-user-blk: a volume as a virtual machine's disk, its rings served in the guest's own memory.
//!
//! ```text
//!   front end (QEMU) ──socket──▶ a thread of VhostServer's: Session ──start, stop──▶ QueuePort (on a worker, one a queue)
//!   guest's driver   ◀────── ring in shared memory, eventfds both ways ──────▶     └─▶ bios on the volume
//! ```
//!
//! The session (`session`) speaks the protocol, rare and slow, in a thread of its own. A queue (`queue`) is a port: it takes
//! requests from its ring (`ring`: split or packed), and their data is the guest's memory, which goes to the kernel as it
//! is, in several bios where a request is larger than one may be (`parts`). `marks` keeps what is in flight where the next server finds it.
//!
//! Guests and front ends are hostile: see `ring` for what a driver may not do, `socket`, `given` and `session` for front ends. A
//! bad one loses its own device and nothing else.
//!
//! While a guest moves to another host, what is written into its memory is marked (`dirty`). Where it moves to another front end on this
//! one, both have a session, and one the disk (`turn`). Where that is asked for, a thread (`caretaker`) gathers its memory in huge
//! pages (`huge`), or has all of it be there, and workers have io_uring hold it (`pinned`).
//!
//! Not here: IOMMUs; polling for a guest that cannot call.

mod batch;
mod caretaker;
mod control;
mod cut;
mod device;
mod dirty;
mod given;
mod huge;
mod mapped;
mod marks;
mod parts;
mod pinned;
mod queue;
mod refusal;
mod request;
pub mod ring;
mod server;
mod service;
mod session;
mod socket;
mod turn;

pub use marks::Marks;
pub use parts::{BIO_BYTES_MAX, REQUEST_BYTES_MAX};
pub use queue::{BYTES_MAX, RANGES_MAX};
pub use request::Request;
pub use server::{GuestPages, VhostError, VhostOptions, VhostServer, VhostSocket};
pub use service::DiskKeeper;
