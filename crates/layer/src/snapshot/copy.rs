//! Copying out: what is about to be overwritten goes to the stores that need it, a batch at a time.
//!
//! Every write that has to wait says which range it wants. Whoever has the family's turn takes what all of them want, up to a
//! batch, and what sequential writers will want next (`ahead.rs`): one exception for each chunk; neighbours in the origin are read at
//! once, for all snapshots that need them, and neighbours in a store written at once; one flush and one write of the list for each
//! store. The others find their chunks settled.
//! The order of steps is that of the head of this folder's `mod.rs`; entering exceptions and waiting for readers go
//! side by side, since readers find the content in the store as soon as it is there.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use blockwork_engine::{Bio, Errno, Flags, Op, Sector, Sectors, TaskContext};
use blockwork_format::snapshot::Exception;
use blockwork_memory::{Segment, Segments};

use super::family::{Family, Want, Writer};
use super::store::{Persistence, State, Store};
use crate::md::io;

/// What is copied by one read, or one write.
pub(super) const PIECE: Sectors = Sectors(2048);

/// What is on its way at a time, and so in memory.
const UNDER_WAY: Sectors = Sectors(16_384);

/// Pieces on their way at a time.
const PIECES_MAX: usize = 256;

/// How much of the origin a batch covers, unless a single chunk is larger.
const BATCH: Sectors = Sectors(32_768);

/// What is copied ahead takes one in so many of the chunks that are free, at most.
const AHEAD_SHARE: u64 = 16;

/// What a store gets by a batch.
#[derive(Debug, Default)]
struct Share {
    exceptions: Vec<Exception>,
    /// It cannot go on.
    lost: bool,
}

/// A place in a store that a piece of the origin goes to.
type Destination = (usize, Sector);

/// Pieces of the origin, and where each goes.
type Pieces = BTreeMap<(Sector, Sectors), Vec<Destination>>;

impl Family {
    /// Waits until a write may go.
    pub(super) async fn make_ready(&self, want: Want, cx: &TaskContext) -> Result<(), Errno> {
        self.wanted().push(want);
        let _turn = self.turns.take().await;
        loop {
            if let Some(verdict) = self.verdict(&want) {
                return verdict;
            }
            self.batch(want, cx).await;
        }
    }

    /// Copies out a batch of what is wanted. With the turn.
    async fn batch(&self, own: Want, cx: &TaskContext) {
        self.count_batch();
        let mut shares = self.shares(own);
        self.copy(&mut shares, cx).await;
        for (store, share) in self.stores.iter().zip(&mut shares) {
            share.lost |=
                share.exceptions.iter().any(|exception| store.exceptions.insert(*exception).is_err());
        }
        self.begin_losing(&shares);
        let enter = self
            .stores
            .iter()
            .zip(&shares)
            .map(|(store, share)| async move { share.lost || store.enter(cx, &share.exceptions).await });
        let entering = io::together(enter.collect());
        let quiet = async {
            cx.quiesce().await;
            Vec::new()
        };
        type Step<'a> = Pin<Box<dyn Future<Output = Vec<bool>> + 'a>>;
        let steps: Vec<Step<'_>> = vec![Box::pin(entering), Box::pin(quiet)];
        let entered = io::together(steps).await.into_iter().flatten();
        let mut late = false;
        for (share, entered) in shares.iter_mut().zip(entered) {
            late |= !entered;
            share.lost |= !entered;
        }
        if late {
            self.begin_losing(&shares);
            cx.quiesce().await;
        }
        self.settle(&shares, cx).await;
    }

    /// Snapshots that cannot go on answer no more; the origin still waits.
    fn begin_losing(&self, shares: &[Share]) {
        for (store, _) in self.stores.iter().zip(shares).filter(|(_, share)| share.lost) {
            if store.state() < State::Losing {
                log::error!("{}: the snapshot is lost; its origin goes on", store.name);
            }
            store.worsen(State::Losing);
        }
    }

    async fn settle(&self, shares: &[Share], cx: &TaskContext) {
        for (store, share) in self.stores.iter().zip(shares) {
            if share.lost {
                store.record_loss(cx).await;
                store.worsen(State::Lost);
            } else {
                store.settle();
            }
        }
    }

    /// Gives out chunks of the stores for what is wanted, up to a batch.
    fn shares(&self, own: Want) -> Vec<Share> {
        let wants = self.wants(own);
        let chunks = self.stores.iter().map(|store| Sectors(store.layout.chunk_sectors()));
        let ahead = self.ahead().after(&wants, chunks.max().unwrap_or(Sectors::ZERO));
        let shares = self.stores.iter().enumerate().map(|(nth, store)| {
            if store.state() >= State::Losing {
                return Share { exceptions: Vec::new(), lost: store.state() == State::Losing };
            }
            let mut missing = Missing::new(store, nth);
            missing.add(&wants);
            missing.add_ahead(&ahead);
            allocate(store, &missing.needed, &missing.by_origin)
        });
        shares.collect()
    }

    /// What has to wait still.
    fn wants(&self, own: Want) -> Vec<Want> {
        let mut wanted = self.wanted();
        wanted.retain(|want| self.verdict(want).is_none());
        // Its own first, so that whoever has the turn gets on.
        let others = wanted.iter().copied().filter(|want| *want != own);
        std::iter::once(own).chain(others).collect()
    }

    /// Copies the content of all exceptions to their stores. A store that fails is lost.
    async fn copy(&self, shares: &mut [Share], cx: &TaskContext) {
        let mut pieces = self.pieces(shares);
        while !pieces.is_empty() {
            let some = take_some(&mut pieces);
            for failed in self.copy_some(some, cx).await {
                shares[failed].lost = true;
            }
        }
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
        let mut contents: BTreeMap<Destination, (Sectors, Segment)> = BTreeMap::new();
        for (nr, to, data) in io::together(reads.collect()).await {
            match data {
                Some(data) => contents.extend(to.into_iter().map(|to| (to, (nr, data.clone())))),
                None => failed.extend(to.iter().map(|(nth, _)| *nth)),
            }
        }
        let writes = gather(contents).into_iter().map(|((nth, at), data)| async move {
            let store = &self.stores[nth];
            let result = cx.bio(&store.layer, Bio::with_data(Op::Write, Flags::NONE, at, data)).await.0;
            result.err().map(|errno| {
                log::error!("{}: its store cannot be written at sector {at}: {errno}", store.name);
                nth
            })
        });
        failed.extend(io::together(writes.collect()).await.into_iter().flatten());
        failed
    }

    /// What has to be copied, in pieces of the origin: from where, how much, and to where.
    fn pieces(&self, shares: &[Share]) -> Pieces {
        let mut pieces = Pieces::new();
        for (nth, (store, share)) in self.stores.iter().zip(shares).enumerate() {
            let chunk = store.layout.chunk_sectors();
            let follows = |a: &Exception, b: &Exception| a.old + 1 == b.old && a.new + 1 == b.new;
            for run in share.exceptions.chunk_by(follows).filter(|_| !share.lost) {
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
fn gather(contents: BTreeMap<Destination, (Sectors, Segment)>) -> Vec<(Destination, Segments)> {
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
    fn new(store: &'a Store, nth: usize) -> Missing<'a> {
        let most = (BATCH.0 / store.layout.chunk_sectors()).max(1).min(store.batch_room());
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
                self.needed.insert(chunk);
                if is_origin {
                    self.by_origin.insert(chunk);
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
fn allocate(store: &Store, needed: &BTreeSet<u64>, by_origin: &BTreeSet<u64>) -> Share {
    let mut share = Share::default();
    let mut books = store.books();
    for &old in needed {
        if let Some(exception) = store.allocate(&mut books, old, share.exceptions.len() as u64) {
            share.exceptions.push(exception);
            continue;
        }
        let overflows = matches!(store.persistence, Persistence::Persistent { overflow: true });
        if by_origin.contains(&old) || !overflows {
            log::error!("{}: its store is full", store.name);
            share.lost = true;
            break;
        }
        log::warn!("{}: its store is full; it can still be read", store.name);
        store.worsen(State::Overflow);
    }
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
