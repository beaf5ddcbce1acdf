//! A leaf: the device at the bottom of a stack, as its queue sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use blockwork_memory::Segment;

use crate::bio::{Errno, Flags, Op};
use crate::decision::Decision;
use crate::env::{Completion, Env, Token};
use crate::limits::Limits;
use crate::lock::LockSnapshot;
use crate::queue::{Complaints, Distance, Pressure};
use crate::turn::{Turn, Turns};
use crate::units::{Sector, Sectors};

/// A leaf's number, the same for all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafId(pub u16);

/// One request to a leaf, within its limits.
#[derive(Debug)]
pub struct LeafIo<'a> {
    /// To start operations of the environment with.
    pub token: Token,
    /// What to do.
    pub op: Op,
    /// FUA and NO_UNMAP matter here.
    pub flags: Flags,
    /// Where.
    pub sector: Sector,
    /// How much; zero for a flush.
    pub nr: Sectors,
    /// Memory of exactly `nr` sectors, for reads and writes.
    pub data: &'a [Segment],
    /// To be handed on to the environment ([`FileOp::fixed`](crate::FileOp::fixed)), where the request becomes one operation of it.
    pub fixed: bool,
    /// No other request of this worker is in flight on this leaf: a call that waits for those, as fallocate(2) does for direct
    /// I/O on its file, may be made on the spot. (It would wait for ever for one that needs this thread to complete.)
    pub alone: bool,
}

/// What became of a request that was given to a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It is done already.
    Now(Result<(), Errno>),
    /// Either one operation was started in the environment under the request's token, and its result is the request's; or the leaf
    /// does it by operations of its own, and tells of its end in [`Leaf::event`].
    Started,
}

/// A request that a leaf did by operations of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The token that it was submitted with.
    pub token: Token,
    /// Bytes transferred (anything for a flush), or what went wrong.
    pub result: Result<u32, Errno>,
}

/// What a range of a leaf holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Data, or not known to be anything else.
    Data,
    /// Not allocated; reads as zeros.
    Hole,
    /// Allocated; reads as zeros.
    Zero,
}

/// What a leaf that never waits has besides: it does a read or write while it is called.
pub trait AtOnce {
    /// Reads into memory of whole sectors, or writes what is in it, within the limits. Where that fails, [`Leaf::submit`] is asked for the
    /// same, and what that says counts.
    fn transfer(&mut self, op: Op, sector: Sector, data: &[Segment]) -> Result<(), Errno>;
}

/// A worker's handle on a leaf device. It does what it is told, at once; queueing is the leaf queue's business.
pub trait Leaf {
    /// Starts `io`, or does it on the spot.
    fn submit(&mut self, env: &mut dyn Env, io: LeafIo<'_>) -> Submitted;

    /// Itself, if it does reads and writes on the spot, by [`Leaf::submit`] too: those that nothing could be merged with then need no request.
    fn at_once(&mut self) -> Option<&mut dyn AtOnce> {
        None
    }

    /// All requests of a batch were submitted: what is better done for several at once is done now.
    fn submitted(&mut self, env: &mut dyn Env) {
        let _ = env;
    }

    /// An operation that the leaf started under a token of its own ([`Token::of_leaf`]) has completed. Requests that have come
    /// to their end by it are added to `ended`, each once.
    fn event(&mut self, env: &mut dyn Env, local: u32, completion: Completion, ended: &mut Vec<Ended>) {
        let _ = (env, local, completion, ended);
    }

    /// What the device holds at `sector`, and how far (at most `nr`, at least one sector) that goes. `nr` may lead beyond its end, and be
    /// far more than is wanted in the end: what cannot be told at once is better told in part.
    fn allocation(&mut self, sector: Sector, nr: Sectors) -> Result<(Allocation, Sectors), Errno> {
        let _ = sector;
        Ok((Allocation::Data, nr))
    }
}

/// Where the workers' handles on one leaf come from, and what they share.
pub trait LeafSource: Send + Sync {
    /// A handle for one worker.
    fn open(&self) -> Box<dyn Leaf>;
    /// The device's limits.
    fn limits(&self) -> &Limits;
    /// Size, as it was looked at last.
    fn sectors(&self) -> Sectors;
    /// What people call it: its path, or `null:1G`.
    fn name(&self) -> &str;
    /// Reads `into.len()` bytes at byte `offset`, at once: for finding out what a disk holds, before it is served.
    fn read_now(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()>;
    /// The state that all handles share.
    fn shared(&self) -> &Arc<LeafShared>;
    /// The block in which the device itself says that it is addressed, bytes; 0 where nobody knows, as for an image in a file: what
    /// the file demands of its readers is no property of the disk that it is an image of.
    fn block_bytes(&self) -> u32 {
        0
    }
    /// Its size now, which may have changed since it was opened; none where that cannot be told without waiting for somebody.
    fn sectors_now(&self) -> Option<Sectors> {
        None
    }
    /// Looks whether it has grown since its size was looked at last: that is its size from now on. One that has been found smaller than it
    /// was keeps its size: what it had lost does not come back by that.
    fn grow(&self) -> Sectors {
        self.sectors()
    }
    /// Whether the leaf knows by itself what an error of a FUA write or a flush tells of, and says where data was lost ([`LeafShared::fail`]); all
    /// else it still has, for the next flush. Otherwise a flush that has failed has lost data, and an error of a FUA write is taken for that of
    /// a flush, unless the data cannot be written.
    fn tells_losses(&self) -> bool {
        false
    }
    /// Whether a FUA write is one command of the device, with no flush behind it, unless the environment makes calls for it
    /// ([`Env::calls_return_late`]): an error of such a write is of its data alone.
    fn has_fua(&self) -> bool {
        false
    }
    /// It is used no more, and nothing of it is under way: what keeps others from having it ends at once, and not when the kernel has wound up all
    /// that refers to it.
    fn let_go(&self) {}
    /// What is in force of what can be done in several ways.
    fn decisions(&self) -> Vec<Decision> {
        Vec::new()
    }
    /// What is known of the locks that all handles share.
    fn locks(&self) -> Vec<LockSnapshot> {
        vec![self.shared().locks(self.name())]
    }
}

/// What the workers' queues on one leaf share: read-mostly.
#[derive(Debug)]
pub struct LeafShared {
    failed: AtomicBool,
    /// FUA writes of which it is not known yet whether a flush has failed.
    doubts: AtomicU64,
    /// In sectors: nothing is written behind it. That of the device is told by its source; this is less only where it has become smaller.
    end: AtomicU64,
    changes: AtomicU64,
    /// Somebody wants to know of all changes.
    watched: AtomicBool,
    /// What was said of requests that the device has refused.
    pub(crate) complaints: Complaints,
    /// Whose flush may run. One at a time over all workers: Linux reports a lost write to one fsync only, so a second
    /// one that overlaps it would succeed, and prove nothing.
    pub(crate) flush_turns: Turns,
    /// How busy the device is.
    pub(crate) pressure: Pressure,
    /// How far away it is.
    pub(crate) distance: Distance,
}

impl Default for LeafShared {
    fn default() -> LeafShared {
        LeafShared {
            failed: AtomicBool::new(false),
            doubts: AtomicU64::new(0),
            end: AtomicU64::new(u64::MAX),
            changes: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            complaints: Complaints::default(),
            flush_turns: Turns::default(),
            pressure: Pressure::default(),
            distance: Distance::default(),
        }
    }
}

impl LeafShared {
    /// What is known of the lock that all handles share.
    pub fn locks(&self, leaf: &str) -> LockSnapshot {
        self.flush_turns.snapshot(format!("{leaf}: flush"))
    }
    /// A flush failed: nothing that was written since the last one is known to be safe, so writing stops (invariant 5
    /// of the crate). Returns whether this was the first to say so.
    pub fn fail(&self) -> bool {
        !self.failed.swap(true, Ordering::AcqRel)
    }
    /// The turn to flush, if it is free and nobody waits for it: for a leaf that makes things durable though nobody asked, which may fail
    /// as a flush does. It says so ([`LeafShared::fail`]) before it gives the turn back.
    pub fn try_flush_turn(&self) -> Option<Turn> {
        self.flush_turns.try_take()
    }
    /// Whether a flush has failed.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
    /// A flush may have failed.
    pub(crate) fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::AcqRel);
    }
    /// One that may have failed has not, or [`LeafShared::fail`] was told.
    pub(crate) fn no_doubt(&self) {
        self.doubts.fetch_sub(1, Ordering::AcqRel);
    }
    /// Whether a flush may have failed. To be asked before [`LeafShared::has_failed`].
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubts.load(Ordering::Acquire) > 0
    }
    /// The device was found to end there. Nothing is written behind that any more: a file would grow by it, and tell zeros of what
    /// it has lost. Returns whether that is news.
    pub fn ends_at(&self, end: Sector) -> bool {
        self.end.fetch_min(end.0, Ordering::AcqRel) > end.0
    }
    /// Where the device was found to end, if that is before its end as it was opened.
    #[inline]
    pub fn end(&self) -> Sector {
        Sector(self.end.load(Ordering::Acquire))
    }
    /// Says that content is changing or has changed. Called before a write is started and after it has completed,
    /// by leaves that read ahead, so that no worker serves a stale prefetched sector, and by those that are watched.
    #[inline]
    pub fn change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }
    /// The number of changes so far: what was read while this did not move is current.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
    /// From now on changes are counted whether the leaf reads ahead or not. What is read from now on shows every write that had ended
    /// before: whoever ended it has looked at this afterwards, or was earlier.
    pub(crate) fn watch(&self) {
        if !self.is_watched() {
            self.watched.store(true, Ordering::SeqCst);
        }
    }
    /// It lies beside what every write looks at in any case.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }
}

/// Hears of everything that alters leaves, in the order that matters for crashes: `serve --log-writes`.
pub trait WriteTap: Send + Sync {
    /// A write, discard or write-zeroes has completed successfully. A FUA flag means that it is durable.
    fn altered(&self, leaf: LeafId, op: Op, flags: Flags, sector: Sector, nr: Sectors, data: &[Segment]);
    /// A flush is about to be started: what `altered` reported before this is covered by it. Returns a ticket.
    fn flush_started(&self, leaf: LeafId) -> u64;
    /// The flush with that ticket has completed successfully.
    fn flushed(&self, leaf: LeafId, ticket: u64);
}
