//! An origin's device and all its snapshots: what their layers share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use blockwork_engine::{Errno, Layer, Lock, LockSnapshot, SECTOR, Sector, Sectors, Turns};

use super::ahead::{Ahead, Marks};
use super::batch::UnderWay;
use super::overwrite::Wanted;
use super::status::SnapshotStatus;
use super::store::{State, Store, StoreConfig};
use crate::md::io;

/// Why an origin and its snapshots cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FamilyError {
    /// A snapshot is larger than its origin.
    #[error("snapshot {name} has {sectors} sectors, expected at most {origin}, the size of its origin")]
    Larger {
        /// The snapshot.
        name: String,
        /// Its size.
        sectors: Sectors,
        /// The origin's size.
        origin: Sectors,
    },
    /// A chunk is not whole blocks of the disks.
    #[error(
        "snapshot {name}: the chunk of {chunk} sectors is no multiple of {block} bytes, the logical block of its disks"
    )]
    Block {
        /// The snapshot.
        name: String,
        /// Its chunk, sectors.
        chunk: u64,
        /// The block.
        block: u32,
    },
    /// The origin ends in the middle of a block of the store, and its own blocks are smaller.
    #[error(
        "snapshot {name}: its origin has {origin} sectors and ends in the middle of a block of {block} bytes, which are the least that is \
         written to its store: make the store on a disk with blocks of {smaller}, or the origin a multiple of {block} bytes"
    )]
    End {
        /// The snapshot.
        name: String,
        /// The origin's size.
        origin: Sectors,
        /// The store's block.
        block: u32,
        /// The origin's block.
        smaller: u32,
    },
    /// The store has no room for a chunk.
    #[error("snapshot {name}: its store has {sectors} sectors, expected {needed} or more, three chunks")]
    Small {
        /// The snapshot.
        name: String,
        /// The store's size.
        sectors: Sectors,
        /// Three chunks.
        needed: u64,
    },
    /// A store that could not be merged.
    #[error("snapshot {name} cannot be merged: {why}")]
    Unmergeable {
        /// The snapshot.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// The chunk numbers of the store are such that looking them up would take for ever.
    #[error(
        "snapshot {name}: its exceptions cannot be looked up in reasonable time; that looks like malice: remove the snapshot"
    )]
    Crowded {
        /// The snapshot.
        name: String,
    },
}

/// An origin and its snapshots.
#[derive(Debug)]
pub struct Family {
    /// The origin's device.
    pub(super) origin: Arc<dyn Layer>,
    pub(super) stores: Box<[Store]>,
    /// Who copies chunks out.
    pub(super) turns: Turns,
    /// Held for a step of the merge, if there is one; whoever waits for the end of one takes it.
    pub(super) steps: Turns,
    wanted: Lock<Wanted>,
    ahead: Lock<Ahead>,
    pub(super) marks: Marks,
    /// What is under way. Changed only with the turn.
    under_way: Lock<UnderWay>,
    batches: AtomicU64,
    /// Something else has taken its place.
    is_retired: AtomicBool,
}

/// A range that somebody wants to write, and what has to be settled for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) start: Sector,
    pub(super) end: Sector,
    pub(super) by: Writer,
}

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// The origin: all snapshots need its old content.
    Origin,
    /// A snapshot: nobody but itself.
    Snapshot(usize),
}

impl Family {
    /// An origin with its snapshots.
    ///
    /// # Errors
    ///
    /// Sizes that do not go together; a store whose exceptions cannot be looked up.
    pub fn new(origin: Arc<dyn Layer>, snapshots: Vec<StoreConfig>) -> Result<Arc<Family>, FamilyError> {
        let stores = stores(&origin, snapshots)?;
        Ok(Family::of(origin, stores))
    }

    /// An origin with its snapshots, of which `merging` is being merged into it: nothing is kept for that one any more.
    ///
    /// # Errors
    ///
    /// As [`Family::new`]; a store in memory only, or one that cannot be believed.
    pub fn with_merge(
        origin: Arc<dyn Layer>,
        snapshots: Vec<StoreConfig>,
        merging: usize,
    ) -> Result<Arc<Family>, FamilyError> {
        let mut stores = stores(&origin, snapshots)?;
        if let Some(store) = stores.get_mut(merging) {
            let unmergeable = |why| Err(FamilyError::Unmergeable { name: store.name.clone(), why });
            if !store.is_persistent() {
                return unmergeable("its exceptions are in memory only, expected a store of kind P");
            }
            if store.state() == State::Losing {
                return unmergeable("what its store holds cannot be believed");
            }
            store.is_merging = true;
        }
        Ok(Family::of(origin, stores))
    }

    fn of(origin: Arc<dyn Layer>, stores: Vec<Store>) -> Arc<Family> {
        let chunks = stores.iter().map(|store| Sectors(store.layout.chunk_sectors())).collect();
        Arc::new(Family {
            origin,
            stores: stores.into(),
            turns: Turns::default(),
            steps: Turns::default(),
            wanted: Lock::default(),
            ahead: Lock::new(Ahead::new(chunks)),
            marks: Marks::default(),
            under_way: Lock::default(),
            batches: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
        })
    }

    /// It does nothing any more, and its stores can be read as they are: nothing is copied out, entered or merged from now on. Its volumes
    /// are suspended: whoever waits for a chunk is let go, and meets what takes its place.
    pub async fn retire(&self) {
        // First, as a step takes the other turn: what it merges is copied out for other snapshots.
        let _step = self.steps.take().await;
        let _turn = self.turns.take().await;
        self.is_retired.store(true, Ordering::Release);
    }

    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// What is known of the locks that all of them share.
    pub(super) fn locks(&self) -> Vec<LockSnapshot> {
        let name = self.stores.first().map_or("", |store| &store.name);
        let of_family = |what: &str| format!("{name} and its family: {what}");
        let books = self.stores.iter().map(Store::locks);
        vec![
            self.turns.snapshot(of_family("copies")),
            self.wanted.snapshot(of_family("who waits")),
            LockSnapshot::sum(
                of_family("what is copied next"),
                [self.ahead.snapshot(""), self.under_way.snapshot("")],
            ),
            LockSnapshot::sum(of_family("stores"), books),
        ]
    }

    /// How many snapshots there are.
    pub fn snapshots(&self) -> usize {
        self.stores.len()
    }

    /// How snapshot number `nth` is.
    pub fn status(&self, nth: usize) -> Option<SnapshotStatus> {
        self.stores.get(nth).map(Store::status)
    }

    /// How many times chunks were copied out together, for whoever waited.
    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    pub(super) fn count_batch(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Held only for as long as it takes to look or to alter, never across a wait.
    pub(super) fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock()
    }

    /// Whether the origin may be written there, as far as its snapshots are concerned.
    #[inline]
    pub(super) fn lets_write(&self, start: Sector, end: Sector) -> bool {
        self.stores.iter().all(|store| store.lets_write(start, end))
    }

    /// Held only for as long as it takes to look or to alter, never across a wait.
    pub(super) fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock()
    }

    /// Held only for as long as it takes to look or to alter, never across a wait.
    pub(super) fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock()
    }

    /// Whether a write may go, or must fail; none: not yet.
    pub(super) fn verdict(&self, want: &Want) -> Option<Result<(), Errno>> {
        match want.by {
            Writer::Origin => self.lets_write(want.start, want.end).then_some(Ok(())),
            Writer::Snapshot(nth) => {
                let store = &self.stores[nth];
                if store.state() != State::Valid {
                    return Some(Err(Errno::EIO));
                }
                store.first_unsettled(store.chunks(want.start, want.end)).is_none().then_some(Ok(()))
            }
        }
    }
}

fn stores(origin: &Arc<dyn Layer>, snapshots: Vec<StoreConfig>) -> Result<Vec<Store>, FamilyError> {
    let stores = snapshots.into_iter().map(|config| {
        let name = config.name.clone();
        let store = Store::new(config).ok_or(FamilyError::Crowded { name })?;
        check(&store, &**origin)?;
        Ok(store)
    });
    stores.collect()
}

fn check(store: &Store, origin: &dyn Layer) -> Result<(), FamilyError> {
    let name = || store.name.clone();
    if store.sectors > origin.sectors() {
        return Err(FamilyError::Larger { name: name(), sectors: store.sectors, origin: origin.sectors() });
    }
    let chunk = store.layout.chunk_sectors();
    let block = origin.limits().logical_block_size.max(store.layer.limits().logical_block_size);
    if !(chunk * SECTOR).is_multiple_of(block.into()) {
        return Err(FamilyError::Block { name: name(), chunk, block });
    }
    // Of its last chunk no more can be copied than there is, and that is a part of the store's block; Linux refuses it too.
    let smaller = origin.limits().logical_block_size;
    if !io::end_of_blocks(origin).bytes().is_multiple_of(block.into()) {
        return Err(FamilyError::End { name: name(), origin: origin.sectors(), block, smaller });
    }
    if store.layer.sectors().0 < 3 * chunk {
        return Err(FamilyError::Small { name: name(), sectors: store.layer.sectors(), needed: 3 * chunk });
    }
    Ok(())
}
