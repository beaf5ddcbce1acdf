//! Copying out: what is about to be overwritten goes to the stores that need it, a batch at a time.
//!
//! Every write that has to wait says which range it wants. Whoever has the family's turn takes what all of them want, up to a
//! batch, and what sequential writers will want next (`ahead.rs`): one exception for each chunk; neighbours in the origin are read at
//! once, for all snapshots that need them, and neighbours in a store written at once; one flush and one write of the list for each
//! store. The others find their chunks settled.
//! The order of steps is that of the head of this folder's `mod.rs`; flushing and waiting for readers go
//! side by side, since readers find the content in the store as soon as it is there.
//!
//! Batches overlap: a batch whose content is durable is *pending* until its exceptions are. They are written while the next batch is
//! copied, and one flush makes both durable; only where nobody wants a next batch they are written with FUA. So under load a batch
//! costs one flush, and not two.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use blockwork_engine::{Bio, Errno, Flags, Op, SECTOR, Sector, Sectors, TaskContext};
use blockwork_format::snapshot::Exception;
use blockwork_memory::{Segment, Segments};

use super::family::{Family, Want, Writer};
use super::list::ListWrite;
use super::overwrite::Overwritten;
use super::store::{Persistence, State, Store};
use crate::md::io;

/// What is copied by one read, or one write.
pub(super) const PIECE: Sectors = Sectors(2048);

/// What is on its way at a time, and so in memory.
const UNDER_WAY: Sectors = Sectors(16_384);

/// Pieces on their way at a time.
const PIECES_MAX: usize = 256;

/// How often a batch takes in who has come while it was copied: a flush takes longer than a copy, and who was let go by the
/// last one comes back soon.
const LATE_MAX: u32 = 2;

/// How much of the origin a batch covers, unless a single chunk is larger.
const BATCH: Sectors = Sectors(32_768);

/// What is copied ahead takes one in so many of the chunks that are free, at most.
const AHEAD_SHARE: u64 = 16;

/// What a store gets by a batch.
#[derive(Debug, Default)]
pub(super) struct Share {
    pub(super) exceptions: Vec<Exception>,
    /// It cannot go on.
    lost: bool,
    /// The chunk that was to be given out next when these had been: what lies below is settled with them.
    end: u64,
}

impl Share {
    /// Takes in what came later to the same batch.
    fn take_in(&mut self, late: Share) {
        self.exceptions.extend(late.exceptions);
        self.lost |= late.lost;
        self.end = self.end.max(late.end);
    }
}

fn is_empty(shares: &[Share]) -> bool {
    shares.iter().all(|share| share.exceptions.is_empty() && !share.lost)
}

/// A place in a store that a piece of the origin goes to.
pub(super) type Destination = (usize, Sector);

/// What is to be written to stores.
type Contents = BTreeMap<Destination, (Sectors, Segment)>;

/// Pieces of the origin, and where each goes.
type Pieces = BTreeMap<(Sector, Sectors), Vec<Destination>>;

impl Family {
    /// Waits until a write may go.
    pub(super) async fn make_ready(&self, want: Want, cx: &TaskContext) -> Result<(), Errno> {
        self.wait(want, cx);
        let _turn = self.turns.take().await;
        loop {
            if let Some(verdict) = self.verdict(&want) {
                self.leave(&want);
                return verdict;
            }
            if self.is_retired() {
                return Ok(());
            }
            self.batch(want, cx).await;
        }
    }

    /// Copies out a batch of what is wanted, and brings to its end the one that is pending. With the turn.
    async fn batch(&self, own: Want, cx: &TaskContext) {
        let pending = std::mem::take(&mut *self.pending());
        let writes: Vec<_> = self
            .stores
            .iter()
            .enumerate()
            .map(|(nth, store)| {
                let exceptions = pending.get(nth).map_or(&[][..], |share| &share.exceptions);
                store.append(exceptions)
            })
            .collect();
        let mut shares = self.shares(own, &[]);
        self.copy_and_record(&mut shares, writes, cx).await;
        self.publish(&mut shares);
        if !is_empty(&shares) {
            self.count_batch();
            self.take_in_late(own, &mut shares, cx).await;
            self.flush_and_quiesce(&mut shares, cx).await;
        }
        self.settle(&pending, &shares, cx).await;
        *self.pending() = shares;
    }

    /// Copies what has come to be wanted while a batch was copied, and adds it to the batch.
    async fn take_in_late(&self, own: Want, shares: &mut [Share], cx: &TaskContext) {
        for _ in 0..LATE_MAX {
            let mut late = self.shares(own, shares);
            if is_empty(&late) {
                return;
            }
            let copied = self.copy(&late, cx).await;
            late.iter_mut().zip(copied).for_each(|(share, copied)| share.lost |= !copied);
            self.publish(&mut late);
            shares.iter_mut().zip(late).for_each(|(share, late)| share.take_in(late));
        }
    }

    /// Lets readers find what was copied.
    fn publish(&self, shares: &mut [Share]) {
        for (store, share) in self.stores.iter().zip(&mut *shares) {
            share.lost |=
                share.exceptions.iter().any(|exception| store.exceptions.insert(*exception).is_err());
        }
        self.begin_losing(shares);
    }

    /// Copies what is new, while the exceptions that are pending are written: durably, if no flush follows in that store.
    async fn copy_and_record(&self, shares: &mut [Share], writes: Vec<Option<ListWrite>>, cx: &TaskContext) {
        let flags: Vec<_> = shares
            .iter()
            .map(|share| {
                let is_flushed = !share.exceptions.is_empty() && !share.lost;
                if is_flushed { Flags::NONE } else { Flags::FUA }
            })
            .collect();
        let recording = self.stores.iter().zip(writes).zip(flags).map(|((store, write), flags)| async move {
            match write {
                Some(write) => store.write_list(cx, write, flags).await,
                None => true,
            }
        });
        let recording = io::together(recording.collect());
        let copying = self.copy(shares, cx);
        type Step<'a> = Pin<Box<dyn Future<Output = Vec<bool>> + 'a>>;
        let steps: Vec<Step<'_>> = vec![Box::pin(recording), Box::pin(copying)];
        let succeeded = io::together(steps).await;
        for (nth, share) in shares.iter_mut().enumerate() {
            share.lost |= succeeded.iter().any(|succeeded| !succeeded[nth]);
        }
    }

    /// Makes durable what was written to the stores, and waits for readers that have not seen it.
    async fn flush_and_quiesce(&self, shares: &mut [Share], cx: &TaskContext) {
        let flushing = self.stores.iter().zip(&*shares).map(|(store, share)| async move {
            share.lost || store.flush(cx, share.exceptions.len() as u64).await
        });
        let flushing = io::together(flushing.collect());
        let quiet = async {
            cx.quiesce().await;
            Vec::new()
        };
        type Step<'a> = Pin<Box<dyn Future<Output = Vec<bool>> + 'a>>;
        let steps: Vec<Step<'_>> = vec![Box::pin(flushing), Box::pin(quiet)];
        let flushed = io::together(steps).await.into_iter().flatten();
        for (share, flushed) in shares.iter_mut().zip(flushed) {
            share.lost |= !flushed;
        }
        if self.begin_losing(shares) {
            cx.quiesce().await;
        }
    }

    /// Snapshots that cannot go on answer no more; the origin still waits. Tells whether there are any that did answer.
    fn begin_losing(&self, shares: &[Share]) -> bool {
        let mut any = false;
        for (store, _) in self.stores.iter().zip(shares).filter(|(_, share)| share.lost) {
            if store.state() < State::Losing {
                log::error!("{}: the snapshot is lost; its origin goes on", store.name);
                any = true;
            }
            store.worsen(State::Losing);
        }
        any
    }

    /// What was pending is on record.
    async fn settle(&self, pending: &[Share], shares: &[Share], cx: &TaskContext) {
        for (nth, (store, share)) in self.stores.iter().zip(shares).enumerate() {
            if share.lost {
                store.record_loss(cx).await;
                store.worsen(State::Lost);
            } else if let Some(pending) = pending.get(nth) {
                store.settle(pending.end);
            }
        }
    }

    /// Gives out chunks of the stores for what is wanted, up to a batch of which `taken` is copied already.
    fn shares(&self, own: Want, taken: &[Share]) -> Vec<Share> {
        let wants = self.wants(own);
        let chunks = self.stores.iter().map(|store| Sectors(store.layout.chunk_sectors()));
        let ahead = self.ahead().after(&wants, chunks.max().unwrap_or(Sectors::ZERO));
        let shares = self.stores.iter().enumerate().map(|(nth, store)| {
            if store.state() >= State::Losing {
                return Share { lost: store.state() == State::Losing, ..Share::default() };
            }
            let taken = taken.get(nth).map_or(0, |share| share.exceptions.len() as u64);
            let mut missing = Missing::new(store, nth, taken);
            missing.add(&wants);
            missing.add_ahead(&ahead);
            allocate(store, &missing, taken)
        });
        shares.collect()
    }

    /// What has to wait still, and of which something is not copied yet.
    fn wants(&self, own: Want) -> Vec<Want> {
        let mut wanted = self.wanted();
        wanted.retain(|waiting| self.verdict(&waiting.want).is_none());
        // Its own first, so that whoever has the turn gets on.
        let others = wanted.iter().map(|waiting| waiting.want).filter(|want| *want != own);
        std::iter::once(own).chain(others).filter(|want| !self.is_copied(want)).collect()
    }

    /// Whether nothing is to be copied for a want that waits: what it needs is pending.
    fn is_copied(&self, want: &Want) -> bool {
        self.stores.iter().enumerate().all(|(nth, store)| match want.by {
            _ if store.is_merging || store.state() >= State::Losing => store.state() != State::Losing,
            Writer::Snapshot(own) if own != nth => true,
            _ => store.has_all(store.chunks(want.start, want.end)),
        })
    }

    /// Copies the content of all exceptions to their stores; tells of each store whether that succeeded.
    async fn copy(&self, shares: &[Share], cx: &TaskContext) -> Vec<bool> {
        let overwritten = self.overwritten(shares);
        let mut pieces = self.pieces(shares, &overwritten);
        let mut succeeded = vec![true; shares.len()];
        let contents = overwritten.into_iter().map(|(to, bytes)| (to, memory_of(&bytes, cx))).collect();
        let mut failed = self.write_out(contents, cx).await;
        while !pieces.is_empty() {
            let some = take_some(&mut pieces);
            failed.extend(self.copy_some(some, cx).await);
        }
        failed.into_iter().for_each(|nth| succeeded[nth] = false);
        succeeded
    }

    /// Copies pieces; gives the stores that failed.
    async fn copy_some(&self, pieces: Pieces, cx: &TaskContext) -> Vec<usize> {
        let reads = pieces.into_iter().map(|((start, nr), to)| async move {
            // The write that is waiting comes next: what was read ahead would be forgotten.
            let data = io::read_once(cx, &self.origin, start, nr).await;
            if let Err(errno) = data {
                log::error!("what snapshots need of the origin, at sector {start}, cannot be read: {errno}");
            }
            (nr, to, data.ok())
        });
        let mut failed = Vec::new();
        let mut contents = Contents::new();
        for (nr, to, data) in io::together(reads.collect()).await {
            match data {
                Some(data) => contents.extend(to.into_iter().map(|to| (to, (nr, data.clone())))),
                None => failed.extend(to.iter().map(|(nth, _)| *nth)),
            }
        }
        failed.extend(self.write_out(contents, cx).await);
        failed
    }

    /// Writes contents to their stores; gives those that failed.
    async fn write_out(&self, contents: Contents, cx: &TaskContext) -> Vec<usize> {
        let writes = gather(contents).into_iter().map(|((nth, at), data)| async move {
            let store = &self.stores[nth];
            let result = cx.bio(&store.layer, Bio::with_data(Op::Write, Flags::NONE, at, data)).await.0;
            result.err().map(|errno| {
                log::error!("{}: its store cannot be written at sector {at}: {errno}", store.name);
                nth
            })
        });
        io::together(writes.collect()).await.into_iter().flatten().collect()
    }

    /// What has to be copied, in pieces of the origin: from where, how much, and to where.
    fn pieces(&self, shares: &[Share], overwritten: &Overwritten) -> Pieces {
        let mut pieces = Pieces::new();
        for (nth, (store, share)) in self.stores.iter().zip(shares).enumerate() {
            let chunk = store.layout.chunk_sectors();
            let follows = |a: &Exception, b: &Exception| a.old + 1 == b.old && a.new + 1 == b.new;
            let is_copied =
                |exception: &&Exception| !overwritten.contains_key(&(nth, Sector(exception.new * chunk)));
            let exceptions: Vec<_> = share.exceptions.iter().filter(is_copied).copied().collect();
            for run in exceptions.chunk_by(follows).filter(|_| !share.lost) {
                let (from, to) = (run[0].old * chunk, run[0].new * chunk);
                let end = (from + run.len() as u64 * chunk).min(self.origin.sectors().0);
                for skip in (0..end - from).step_by(PIECE.0 as usize) {
                    let nr = PIECE.0.min(end - from - skip);
                    let piece = pieces.entry((Sector(from + skip), Sectors(nr))).or_default();
                    piece.push((nth, Sector(to + skip)));
                }
            }
        }
        pieces
    }
}

/// The same bytes, in memory that devices can read.
fn memory_of(bytes: &[u8], cx: &TaskContext) -> (Sectors, Segment) {
    let segment = Segment::new(cx.pool().get(bytes.len()), 0, bytes.len());
    segment.write_at(0, bytes);
    (Sectors(bytes.len() as u64 / SECTOR), segment)
}

/// Takes as many pieces as there is memory for.
fn take_some(pieces: &mut Pieces) -> Pieces {
    let (mut some, mut total) = (Pieces::new(), Sectors::ZERO);
    while let Some(((start, nr), to)) = pieces.pop_first() {
        total += nr;
        if total > UNDER_WAY || some.len() == PIECES_MAX {
            pieces.insert((start, nr), to);
            break;
        }
        some.insert((start, nr), to);
    }
    some
}

/// Joins contents that are neighbours in their store, to writes of a piece at most.
fn gather(contents: Contents) -> Vec<(Destination, Segments)> {
    let mut writes: Vec<(Destination, Segments)> = Vec::new();
    let (mut end, mut total) = (None, Sectors::ZERO);
    for ((nth, at), (nr, data)) in contents {
        match writes.last_mut() {
            Some((_, joined)) if end == Some((nth, at)) && total + nr <= PIECE => joined.push(data),
            _ => {
                writes.push(((nth, at), Segments::from_iter([data])));
                total = Sectors::ZERO;
            }
        }
        (end, total) = (Some((nth, at + nr)), total + nr);
    }
    writes
}

/// The chunks that a store lacks of what is wanted, up to a batch.
struct Missing<'a> {
    store: &'a Store,
    nth: usize,
    most: u64,
    needed: BTreeSet<u64>,
    /// Which of them the origin is about to overwrite.
    by_origin: BTreeSet<u64>,
}

impl<'a> Missing<'a> {
    fn new(store: &'a Store, nth: usize, taken: u64) -> Missing<'a> {
        let most = (BATCH.0 / store.layout.chunk_sectors()).max(1).min(store.batch_room());
        let most = most.saturating_sub(taken);
        Missing { store, nth, most, needed: BTreeSet::new(), by_origin: BTreeSet::new() }
    }

    fn add(&mut self, wants: &[Want]) {
        if self.store.is_merging {
            return;
        }
        for want in wants {
            let is_origin = want.by == Writer::Origin;
            if !is_origin && (want.by != Writer::Snapshot(self.nth) || self.store.state() != State::Valid) {
                continue;
            }
            let mut chunks = self.store.chunks(want.start, want.end);
            while let Some(chunk) = self.store.first_unsettled(chunks.clone()) {
                if self.needed.len() as u64 >= self.most && !self.needed.contains(&chunk) {
                    break;
                }
                // One that is pending needs nothing but its record.
                if self.store.exceptions.find(chunk).is_none() {
                    self.needed.insert(chunk);
                    if is_origin {
                        self.by_origin.insert(chunk);
                    }
                }
                chunks.start = chunk + 1;
            }
        }
    }

    /// Adds what may be wanted next, as far as that takes little of the room there is.
    fn add_ahead(&mut self, ahead: &[Want]) {
        let (wanted, free) = (self.needed.len() as u64, self.store.free_chunks());
        let spare = (free / AHEAD_SHARE).min(free.saturating_sub(wanted));
        self.most = self.most.min(wanted + spare);
        self.add(ahead);
    }
}

/// Gives out chunks; where the store is full, the snapshot is lost, or overflows.
fn allocate(store: &Store, missing: &Missing<'_>, taken: u64) -> Share {
    let mut share = Share::default();
    let mut books = store.books();
    for &old in &missing.needed {
        if let Some(exception) = store.allocate(&mut books, old, taken + share.exceptions.len() as u64) {
            share.exceptions.push(exception);
            continue;
        }
        let overflows = matches!(store.persistence, Persistence::Persistent { overflow: true });
        if missing.by_origin.contains(&old) || !overflows {
            log::error!("{}: its store is full", store.name);
            share.lost = true;
            break;
        }
        log::warn!("{}: its store is full; it can still be read", store.name);
        store.worsen(State::Overflow);
    }
    share.end = books.next;
    share
}

/// The work of a deferred bio, as a layer's `prepare` wants it.
pub(super) fn preparation(
    family: Arc<Family>,
    want: Want,
    cx: TaskContext,
) -> Pin<Box<dyn Future<Output = Result<(), Errno>>>> {
    Box::pin(async move { family.make_ready(want, &cx).await })
}
