//! A snapshot's store as it is served: which chunks it has, which are free, and whether it can be believed.
//!
//! Invariants: (1) chunks of the store are given out in rising order, and entered into the list in that order: so one number says
//! which exceptions are settled; (2) the state only ever gets worse; (3) what is behind the lock is changed only with the
//! family's turn.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use blockwork_engine::{Errno, Flags, Layer, Lock, LockSnapshot, Sector, Sectors, TaskContext};
use blockwork_format::snapshot::{CHUNKS_MAX, Exception, Found, Header, Layout};

use super::exceptions::Exceptions;
use super::list::{List, ListWrite, write_header};
use super::status::SnapshotStatus;
use crate::md::io;

/// Whether a store outlives its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// `P`, or `PO`: its exceptions are on the disk.
    Persistent {
        /// `PO`: one that is full because the snapshot was written can still be read.
        overflow: bool,
    },
    /// `N`: they are in memory.
    Transient,
}

/// Features of a snapshot, by the kernel's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// A discard zeroes chunks of the store.
    pub discard_zeroes_cow: bool,
    /// A discard goes to the origin besides (which then no longer has what it had, for other snapshots neither).
    pub discard_passdown_origin: bool,
}

/// A snapshot as it was found.
#[derive(Debug)]
pub struct StoreConfig {
    /// What people call the snapshot.
    pub name: String,
    /// Where its exceptions are.
    pub store: Arc<dyn Layer>,
    /// Size of the snapshot.
    pub sectors: Sectors,
    /// Size of a chunk in a store that is new; another one has its own.
    pub layout: Layout,
    /// Kind of store.
    pub persistence: Persistence,
    /// What it does beyond the usual.
    pub features: Features,
    /// What it holds; of a transient one, nothing is looked at.
    pub found: Found,
    /// What it holds cannot be believed: the snapshot is lost, which is written down before the origin is written.
    pub unusable: bool,
}

/// How a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum State {
    /// All is well.
    Valid,
    /// No chunk is left for what is written to it.
    Overflow,
    /// It is lost, and the origin waits until that is on record.
    Losing,
    /// It is lost.
    Lost,
}

/// A store that is served.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) name: String,
    pub(super) layer: Arc<dyn Layer>,
    /// Size of the snapshot.
    pub(super) sectors: Sectors,
    pub(super) layout: Layout,
    /// A chunk is 2 to this power of sectors: no bio has to wait for a division.
    chunk_shift: u32,
    pub(super) persistence: Persistence,
    pub(super) features: Features,
    pub(super) exceptions: Exceptions,
    /// Exceptions whose content is below this chunk are settled.
    settled: AtomicU64,
    state: AtomicU8,
    /// It is being merged into its origin: nothing is kept in it any more.
    pub(super) is_merging: bool,
    merge_failed: AtomicBool,
    books: Lock<Books>,
}

/// What only the one who has the family's turn changes.
#[derive(Debug)]
pub(super) struct Books {
    /// The chunk that is given out next.
    pub(super) next: u64,
    /// How many were given out: those that were found, and those of this life.
    given: u64,
    pub(super) list: List,
}

impl Store {
    /// A store with what was found in it; none: its exceptions cannot be looked up in time.
    pub(super) fn new(config: StoreConfig) -> Option<Store> {
        let StoreConfig { name, store, sectors, persistence, features, found, unusable, .. } = config;
        let mut layout = config.layout;
        let mut state = if unusable { State::Losing } else { State::Valid };
        let mut contents = None;
        match found {
            _ if persistence == Persistence::Transient => {}
            Found::New => {}
            Found::Invalid(own) => (layout, state) = (own, State::Lost),
            Found::Valid(own) => {
                layout = own.layout;
                contents = Some(own);
            }
        }
        let block = store.limits().logical_block_size;
        let given = contents.as_ref().map_or(0, |contents| contents.exceptions.len() as u64);
        let (list, next) = match &contents {
            Some(contents) => (List::found(contents, block), contents.next_chunk()),
            None => (List::new(layout, block), layout.data_chunk(0)),
        };
        let store_chunks = usable_chunks(&*store, layout);
        let origin_chunks = sectors.0.div_ceil(layout.chunk_sectors());
        let capacity = store_chunks.min(origin_chunks);
        // No more than a chunk for each of the snapshot is given out, and some are skipped for the areas.
        let areas = capacity / layout.exceptions_per_area() + 2;
        let used_chunks = store_chunks.min(next + capacity + areas);
        let exceptions = Exceptions::new(capacity, used_chunks, origin_chunks);
        for exception in contents.iter().flat_map(|contents| &contents.exceptions) {
            exceptions.insert(*exception).ok()?;
        }
        Some(Store {
            name,
            layer: store,
            sectors,
            layout,
            chunk_shift: layout.chunk_sectors().ilog2(),
            persistence,
            features,
            exceptions,
            settled: AtomicU64::new(next),
            state: AtomicU8::new(state as u8),
            is_merging: false,
            merge_failed: AtomicBool::new(false),
            books: Lock::new(Books { next, given, list }),
        })
    }

    /// Held only for as long as it takes to look or to alter, never across a wait.
    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }

    pub(super) fn locks(&self) -> LockSnapshot {
        self.books.snapshot("")
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Valid,
            1 => State::Overflow,
            2 => State::Losing,
            _ => State::Lost,
        }
    }

    /// The state gets as bad as this.
    pub(super) fn worsen(&self, state: State) {
        self.state.fetch_max(state as u8, Ordering::AcqRel);
    }

    /// The chunks of this snapshot that a range of sectors touches; what is behind the snapshot's end is not its business.
    #[inline]
    pub(super) fn chunks(&self, start: Sector, end: Sector) -> Range<u64> {
        let end = end.min(Sector(self.sectors.0));
        let first = self.chunk_of(start);
        // Also in the last chunk, where the snapshot ends in its midst: what an origin that has grown has there was never the snapshot's, and
        // a merge would put it back.
        if start < end { first..self.end_chunk(end) } else { first..first }
    }

    /// The chunk that a sector is in.
    #[inline]
    pub(super) fn chunk_of(&self, sector: Sector) -> u64 {
        sector.0 >> self.chunk_shift
    }

    /// One past the chunk that the last sector before `end` is in.
    #[inline]
    pub(super) fn end_chunk(&self, end: Sector) -> u64 {
        (end.0 + (1 << self.chunk_shift) - 1) >> self.chunk_shift
    }

    /// Whether chunks of the store up to `end` are settled.
    #[inline]
    pub(super) fn is_settled(&self, end: u64) -> bool {
        end <= self.settled.load(Ordering::Acquire)
    }

    /// The first chunk in the range that is not settled.
    #[inline]
    pub(super) fn first_unsettled(&self, chunks: Range<u64>) -> Option<u64> {
        let mut at = chunks.start;
        while at < chunks.end {
            let run = self.exceptions.run(at, chunks.end - at);
            match run.new {
                Some(new) if self.is_settled(new + run.chunks) => at += run.chunks,
                Some(new) => return Some(at + self.settled.load(Ordering::Acquire).saturating_sub(new)),
                None => return Some(at),
            }
        }
        None
    }

    /// The first chunk in the range that has no exception.
    pub(super) fn first_without(&self, mut chunks: Range<u64>) -> Option<u64> {
        while chunks.start < chunks.end {
            let run = self.exceptions.run(chunks.start, chunks.end - chunks.start);
            if run.new.is_none() {
                return Some(chunks.start);
            }
            chunks.start += run.chunks;
        }
        None
    }

    /// Whether the origin may write there as far as this snapshot is concerned.
    #[inline]
    pub(super) fn lets_write(&self, start: Sector, end: Sector) -> bool {
        match self.state() {
            _ if self.is_merging => true,
            State::Valid | State::Overflow => self.first_unsettled(self.chunks(start, end)).is_none(),
            State::Losing => false,
            State::Lost => true,
        }
    }

    /// How many chunks have not been given out.
    pub(super) fn free_chunks(&self) -> u64 {
        self.chunks_of_store().saturating_sub(self.books().next)
    }

    /// Whether it can never become full: there is a chunk for each one that the snapshot has not kept yet, and for their areas.
    pub(super) fn has_room_for_all(&self) -> bool {
        let books = self.books();
        let left = self.sectors.0.div_ceil(self.layout.chunk_sectors()).saturating_sub(books.given);
        let areas = left / self.layout.exceptions_per_area() + 2;
        books.next + left + areas <= self.chunks_of_store()
    }

    /// How many chunks can be used.
    fn chunks_of_store(&self) -> u64 {
        usable_chunks(&*self.layer, self.layout)
    }

    /// Gives out the next chunk for an old one; none: the store is full.
    pub(super) fn allocate(&self, books: &mut Books, old: u64, ahead: u64) -> Option<Exception> {
        let chunks = self.chunks_of_store();
        let new = books.next;
        if new >= chunks {
            return None;
        }
        // With the last exception of an area, the next area is needed, or the kernel could not read the list.
        let is_last = self.is_persistent() && ahead + 1 == books.list.room();
        if is_last && self.layout.area_chunk(books.list.area() + 1) >= chunks {
            return None;
        }
        books.next = self.layout.data_chunk(new + 1);
        books.given += 1;
        Some(Exception { old, new })
    }

    pub(super) fn is_persistent(&self) -> bool {
        self.persistence != Persistence::Transient
    }

    /// How many exceptions a batch may have.
    pub(super) fn batch_room(&self) -> u64 {
        if self.is_persistent() { self.books().list.room() } else { u64::MAX }
    }

    /// Makes durable what was written to the store, unless it is, and the list ready for so many exceptions; the error is told in the
    /// log.
    pub(super) async fn flush(&self, cx: &TaskContext, exceptions: u64, is_durable: bool) -> bool {
        if !self.is_persistent() || exceptions == 0 {
            return true;
        }
        let mut list = self.books().list.clone();
        if is_durable && list.is_ready(exceptions) {
            return true;
        }
        if let Err(errno) = list.prepare(cx, &self.layer, exceptions).await {
            log::error!("{}: its list of exceptions cannot be prepared: {errno}", self.name);
            return false;
        }
        self.books().list = list;
        let flushed = io::flush(cx, &self.layer).await;
        flushed
            .inspect_err(|errno| log::error!("{}: its store cannot be flushed: {errno}", self.name))
            .is_ok()
    }

    /// Enters exceptions into the list; gives what has to be written for that.
    pub(super) fn append(&self, exceptions: &[Exception]) -> Option<ListWrite> {
        let enters = self.is_persistent() && !exceptions.is_empty() && self.state() < State::Losing;
        enters.then(|| self.books().list.append(exceptions))
    }

    /// Writes what was entered; the error is told in the log.
    pub(super) async fn write_list(&self, cx: &TaskContext, write: ListWrite, flags: Flags) -> bool {
        let written = write.run(cx, &self.layer, flags).await;
        let tell =
            |errno: &Errno| log::error!("{}: its list of exceptions cannot be written: {errno}", self.name);
        written.inspect_err(tell).is_ok()
    }

    /// Takes the last exceptions from the list, durably, and then from the table.
    pub(super) async fn take_back(&self, cx: &TaskContext, last: &[Exception]) -> Result<(), Errno> {
        let mut list = self.books().list.clone();
        list.take_back(cx, &self.layer, last.len() as u64).await?;
        last.iter().for_each(|exception| self.exceptions.remove(*exception));
        let mut books = self.books();
        // What the kernel counts from then on, in whatever order chunks were given out.
        books.next = list.next_if_in_order();
        books.list = list;
        Ok(())
    }

    pub(super) fn has_failed_to_merge(&self) -> bool {
        self.merge_failed.load(Ordering::Acquire)
    }

    pub(super) fn fail_to_merge(&self) {
        self.merge_failed.store(true, Ordering::Release);
    }

    /// All exceptions below this chunk, which were published, are settled.
    pub(super) fn settle(&self, end: u64) {
        self.settled.fetch_max(end, Ordering::AcqRel);
    }

    /// Writes down, durably, that the snapshot is lost.
    pub(super) async fn record_loss(&self, cx: &TaskContext) {
        if !self.is_persistent() {
            return;
        }
        let header = Header { valid: false, layout: self.layout };
        if let Err(errno) = write_header(cx, &self.layer, header).await {
            log::error!(
                "{}: that it is lost cannot be written to its store: {errno}; remove this snapshot, its content is wrong",
                self.name
            );
        }
    }

    pub(super) fn status(&self) -> SnapshotStatus {
        match self.state() {
            State::Losing | State::Lost => SnapshotStatus::Invalid,
            _ if self.has_failed_to_merge() => SnapshotStatus::MergeFailed,
            State::Overflow => SnapshotStatus::Overflow,
            State::Valid => {
                let books = self.books();
                let (used, metadata) = self.layout.used_sectors(books.next, books.list.area());
                let metadata = if self.is_persistent() { metadata } else { 0 };
                let used = if self.is_persistent() { used } else { used - 2 * self.layout.chunk_sectors() };
                let total = self.layer.sectors();
                SnapshotStatus::Used { used: Sectors(used), total, metadata: Sectors(metadata) }
            }
        }
    }
}

/// How many chunks of a store can be used, however large it is.
fn usable_chunks(store: &dyn Layer, layout: Layout) -> u64 {
    (store.sectors().0 / layout.chunk_sectors()).min(CHUNKS_MAX)
}
