//! Xen's block interface, both ends of it: a guest's front end, and the back end that serves it.
//!
//! The protocol runs over three things that Xen has: pages that one domain grants another ([`Grants`], [`Offers`]), event
//! channels ([`EventChannel`]), and a store of keys ([`Xenstore`]). They are traits here. [`in_process`] has them all within one
//! worker, so that the whole protocol runs without Xen: in tests, in benchmarks, and in the simulator, where a seed gives one
//! history.
//!
//! | part | what |
//! | --- | --- |
//! | [`BackDevice`], [`FrontDevice`] | how both ends find each other: keys and states |
//! | [`BackRing`], [`FrontRing`] | one end's view of a ring: indices, entries, whether to notify |
//! | [`BackPort`] | a queue of the back end, a port of a worker |
//! | [`FrontQueue`] | a queue of the front end, for whoever is the guest |
//! | [`Ledger`] | what a queue of the back end has taken and not answered, for the back end that comes after it |
//!
//! Invariants:
//! 1. The other end is hostile. What it writes to shared pages is copied out by one load for each word, and checked in
//!    the copy; its indices are bounded by the ring's size; what it asks for beyond the protocol ends in an error answer, and
//!    what cannot be answered ends the ring with a reason that is logged. Others go on.
//! 2. Each request that was taken is answered once, and a page that its data is moved to or from stays mapped as long as that takes.
//! 3. A ring's memory is bounded: by its size, times the segments that a request may have; where data is copied, by 16 MiB and one
//!    request more. Mappings of pages, those that stay behind their request and those of requests under way, are bounded for all who share
//!    [`Mappings`].
//! 4. A barrier is begun when nothing of its ring is under way, and nothing is taken until it is done.

mod back;
mod connection;
mod front;
mod ids;
pub mod in_process;
mod ledger;
mod mapper;
mod pages;
mod rings;

use std::fmt;

use blockwork_engine::{Completion, Context, Env};
use blockwork_memory::Segment;

pub use back::{BackConfig, BackEnd, BackPort, Ended};
pub use connection::{BackDevice, BackStep, ConnectError, FrontDevice, FrontStep, FrontWants, describe};
pub use front::{FrontConfig, FrontQueue, Misbehaved, Refused};
pub use ledger::{Ledger, NotALedger};
pub use mapper::{KEPT_MAX, Mappings};
pub use pages::{NotARing, SharedPages};
pub use rings::{BackRing, Entry, FrontRing, RunAway};

/// The number of a grant: the one domain's permission for another to use one of its pages.
pub type GrantRef = u32;

/// What a grant is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only to read.
    Read,
    /// To read and write.
    Write,
}

/// A page that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("grant {gref}: {reason}")]
pub struct GrantError {
    /// Which.
    pub gref: GrantRef,
    /// Why.
    pub reason: String,
    /// Whether it is only that this process, or its machine, has no room for more.
    pub no_room: bool,
}

/// Pages of another domain.
pub trait Grants {
    /// Maps the pages of these grants, and appends a segment of [`PAGE_BYTES`](blockwork_format::blkif::PAGE_BYTES) for each. A
    /// page is unmapped when its last segment is dropped.
    ///
    /// # Errors
    /// One of them cannot be mapped so; then none is appended.
    fn map(&mut self, refs: &[GrantRef], access: Access, out: &mut Vec<Segment>) -> Result<(), GrantError>;
}

/// Pages of one's own, for another domain.
pub trait Offers {
    /// Grants a page: a segment of a whole page, at a page's start.
    fn grant(&mut self, page: Segment, access: Access) -> GrantRef;
    /// Takes the grant back. What is mapped by it stays so until it is unmapped.
    fn end(&mut self, gref: GrantRef);
}

/// An event channel, as one end of it has it: a bell to ring, and to listen to. Who listens gets a turn of his port for each
/// time that it was rung, or for several at once.
pub trait EventChannel<E: Env> {
    /// Begins to listen, for the port of `cx`.
    fn open(&mut self, cx: &mut Context<'_, E>);
    /// An operation that the channel started for the port has completed.
    fn event(&mut self, cx: &mut Context<'_, E>, local: u32, completion: Completion);
    /// Rings at the other end.
    fn notify(&mut self, cx: &mut Context<'_, E>);
    /// Listens no more: the port ends.
    fn close(&mut self, cx: &mut Context<'_, E>);
}

/// A store of keys, by path. What changes is watched by whoever runs the two devices.
pub trait Xenstore {
    /// A key's value; `None` if there is no such key.
    ///
    /// # Errors
    /// The store cannot be asked.
    fn read(&self, path: &str) -> Result<Option<String>, StoreError>;
    /// Sets a key.
    ///
    /// # Errors
    /// The store cannot be asked, or does not allow it.
    fn write(&mut self, path: &str, value: &str) -> Result<(), StoreError>;
    /// Removes a key and all below it, if it is there.
    ///
    /// # Errors
    /// The store cannot be asked, or does not allow it.
    fn remove(&mut self, path: &str) -> Result<(), StoreError>;
}

/// What the store says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("xenstore, {path}: {reason}")]
pub struct StoreError {
    /// The key.
    pub path: String,
    /// Why not.
    pub reason: String,
    /// Whether the store works, and does not allow it: a key's owner may say so.
    pub is_refused: bool,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "to read",
            Access::Write => "to write",
        })
    }
}
