//! Copying out: what is about to be overwritten goes to the stores that need it, a batch at a time.
//!
//! Every write that has to wait says which range it wants. Whoever has the family's turn takes what all of them want, up to a
//! batch: one exception for each chunk, neighbouring chunks copied by one large read and one large write (a read serves all
//! snapshots that need the same chunks), one flush and one write of the list for each store. The others find their chunks settled.
//! The order of steps is that of the head of this folder's `mod.rs`; entering exceptions and waiting for readers go
//! side by side, since readers find the content in the store as soon as it is there.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use blockwork_engine::{Bio, Errno, Flags, Op, Sector, Sectors, TaskContext};
use blockwork_format::snapshot::Exception;
use blockwork_memory::Segments;

use super::family::{Family, Want, Writer};
use super::store::{Persistence, State, Store};
use crate::md::io;

/// What is copied by one read and one write.
pub(super) const PIECE: Sectors = Sectors(2048);

/// Pieces on their way at a time: so many have memory.
pub(super) const PIECES_MAX: usize = 8;

/// How much of the origin a batch covers, unless a single chunk is larger.
const BATCH: Sectors = Sectors(32_768);

/// What a store gets by a batch.
#[derive(Debug, Default)]
struct Share {
    exceptions: Vec<Exception>,
    /// It cannot go on.
    lost: bool,
}

/// A place in a store that a piece of the origin goes to.
type Destination = (usize, Sector);

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
        let wants = {
            let mut wanted = self.wanted();
            wanted.retain(|want| self.verdict(want).is_none());
            // Its own first, so that whoever has the turn gets on.
            let others = wanted.iter().copied().filter(|want| *want != own);
            std::iter::once(own).chain(others).collect::<Vec<_>>()
        };
        let shares = self.stores.iter().enumerate().map(|(nth, store)| {
            if store.state() >= State::Losing {
                return Share { exceptions: Vec::new(), lost: store.state() == State::Losing };
            }
            let (needed, by_origin) = missing(store, nth, &wants);
            allocate(store, &needed, &by_origin)
        });
        shares.collect()
    }

    /// Copies the content of all exceptions to their stores. A store that fails is lost.
    async fn copy(&self, shares: &mut [Share], cx: &TaskContext) {
        let pieces: Vec<_> = self.pieces(shares).into_iter().collect();
        for some in pieces.chunks(PIECES_MAX) {
            let copies = some.iter().map(|((start, nr), to)| self.copy_piece(*start, *nr, to, cx));
            for failed in io::together(copies.collect()).await.into_iter().flatten() {
                shares[failed].lost = true;
            }
        }
    }

    /// What has to be copied, in pieces of the origin: from where, how much, and to where.
    fn pieces(&self, shares: &[Share]) -> BTreeMap<(Sector, Sectors), Vec<Destination>> {
        let mut pieces: BTreeMap<_, Vec<Destination>> = BTreeMap::new();
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

    /// Copies a piece; gives the stores that failed.
    async fn copy_piece(
        &self,
        start: Sector,
        nr: Sectors,
        to: &[Destination],
        cx: &TaskContext,
    ) -> Vec<usize> {
        let data = match io::read(cx, &self.origin, start, nr).await {
            Ok(data) => data,
            Err(errno) => {
                log::error!("what snapshots need of the origin, at sector {start}, cannot be read: {errno}");
                return to.iter().map(|(nth, _)| *nth).collect();
            }
        };
        let writes = to.iter().map(|(nth, at)| {
            let (store, data) = (&self.stores[*nth], Segments::from_iter([data.clone()]));
            async move {
                let bio = Bio::with_data(Op::Write, Flags::NONE, *at, data);
                let result = cx.bio(&store.layer, bio).await.0;
                result.err().map(|errno| {
                    log::error!("{}: its store cannot be written at sector {at}: {errno}", store.name);
                    *nth
                })
            }
        });
        io::together(writes.collect()).await.into_iter().flatten().collect()
    }
}

/// The chunks that a store lacks of what is wanted, up to a batch; and which of them the origin is about to overwrite.
fn missing(store: &Store, nth: usize, wants: &[Want]) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let (mut needed, mut by_origin) = (BTreeSet::new(), BTreeSet::new());
    if store.is_merging {
        return (needed, by_origin);
    }
    let most = (BATCH.0 / store.layout.chunk_sectors()).max(1).min(store.batch_room());
    for want in wants {
        let is_origin = want.by == Writer::Origin;
        if !is_origin && want.by != Writer::Snapshot(nth) {
            continue;
        }
        if !is_origin && store.state() != State::Valid {
            continue;
        }
        let mut chunks = store.chunks(want.start, want.end);
        while let Some(chunk) = store.first_unsettled(chunks.clone()) {
            if needed.len() as u64 >= most && !needed.contains(&chunk) {
                break;
            }
            needed.insert(chunk);
            if is_origin {
                by_origin.insert(chunk);
            }
            chunks.start = chunk + 1;
        }
    }
    (needed, by_origin)
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
