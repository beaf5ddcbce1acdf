//! Giving out chunks of the stores: for what is wanted, and for what may be wanted next.
//!
//! What is copied ahead may be in vain, and takes room all the same, which the kernel would not have taken. So, by store:
//! one that has room for all that its snapshot has not kept yet cannot become full, and gives out what is asked. Any other one
//! gives out a chunk ahead only while all that it has in vain, with this one, is no more than a sixteenth of what it has free
//! ([`AHEAD_SHARE`]). So the fuller it is, the less it gives out ahead; with fewer than 16 chunks free it gives out none; and when it is
//! full, at most a sixteenth of it is in vain, however many writers have begun and stopped. (Counted in this life of the family.)
//! What is ahead never costs a snapshot: only what is wanted does, where a store is full.

use std::collections::{BTreeMap, BTreeSet};

use blockwork_engine::Sectors;
use blockwork_format::snapshot::Exception;

use super::ahead::{Stretch, WINDOW};
use super::family::{Family, Want, Writer};
use super::store::{Persistence, State, Store};

/// How much of the origin a batch covers, unless a single chunk is larger.
const BATCH: Sectors = Sectors(32_768);

/// How much of that is copied ahead, half a window: whoever waits for a chunk waits for no more than that to be copied first.
const AHEAD_BATCH: Sectors = Sectors(WINDOW.0 / 2);

/// What is in vain takes one in so many of the chunks that are free, at most.
const AHEAD_SHARE: u64 = 16;

/// What a store gets by a batch.
#[derive(Debug, Default)]
pub(super) struct Share {
    pub(super) exceptions: Vec<Exception>,
    /// It cannot go on.
    pub(super) lost: bool,
    /// The chunk that was to be given out next when these had been: what lies below is settled with them.
    pub(super) end: u64,
}

impl Share {
    /// Takes in what came later to the same batch.
    pub(super) fn take_in(&mut self, late: Share) {
        self.exceptions.extend(late.exceptions);
        self.lost |= late.lost;
        self.end = self.end.max(late.end);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.exceptions.is_empty() && !self.lost
    }
}

impl Family {
    /// Gives out chunks of the stores for what is wanted, and then for what may be, up to a batch; `taken` is what was given out before and
    /// is not entered into the lists.
    pub(super) fn give_out(&self, wants: &[Want], ahead: &[Stretch], taken: &[Share]) -> Vec<Share> {
        let shares = self.stores.iter().enumerate().map(|(nth, store)| {
            if store.state() >= State::Losing {
                return Share { lost: store.state() == State::Losing, ..Share::default() };
            }
            let taken = taken.get(nth).map_or(0, |share| share.exceptions.len() as u64);
            let mut missing = Missing::new(store, nth, taken);
            missing.add_wanted(wants);
            let mut sequences = self.ahead();
            missing.add_ahead(ahead, sequences.in_vain(nth));
            let share = allocate(store, &missing, taken);
            for (slot, chunks) in missing.ahead_by_slot(&share) {
                sequences.give(slot, nth, chunks);
            }
            share
        });
        shares.collect()
    }
}

/// The chunks that a store lacks of what is wanted, up to a batch.
struct Missing<'a> {
    store: &'a Store,
    nth: usize,
    /// How many chunks there may be.
    most: u64,
    /// How many of them ahead.
    ahead_most: u64,
    needed: BTreeSet<u64>,
    /// Which of them the origin is about to overwrite.
    by_origin: BTreeSet<u64>,
    /// Chunks that nobody waits for, and for which writer they are meant.
    ahead: BTreeMap<u64, usize>,
}

impl<'a> Missing<'a> {
    fn new(store: &'a Store, nth: usize, taken: u64) -> Missing<'a> {
        let chunks = |sectors: Sectors| (sectors.0 / store.layout.chunk_sectors()).max(1);
        let most = chunks(BATCH).min(store.batch_room()).saturating_sub(taken);
        let ahead_most = chunks(AHEAD_BATCH).saturating_sub(taken);
        let (needed, by_origin, ahead) = Default::default();
        Missing { store, nth, most, ahead_most, needed, by_origin, ahead }
    }

    fn add_wanted(&mut self, wants: &[Want]) {
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

    /// Adds what may be wanted next, as far as there is room for it to be in vain.
    fn add_ahead(&mut self, ahead: &[Stretch], in_vain: u64) {
        if self.store.is_merging || ahead.is_empty() {
            return;
        }
        let wanted = self.needed.len() as u64;
        let free = self.store.free_chunks().saturating_sub(wanted);
        let spare =
            if self.store.has_room_for_all() { free } else { (free / AHEAD_SHARE).saturating_sub(in_vain) };
        let most = spare.min(self.ahead_most).min(self.most.saturating_sub(wanted));
        for Stretch { slot, want } in ahead {
            let mut chunks = self.store.chunks(want.start, want.end);
            while (self.ahead.len() as u64) < most
                && let Some(chunk) = self.store.first_without(chunks.clone())
            {
                if !self.needed.contains(&chunk) {
                    self.ahead.insert(chunk, *slot);
                }
                chunks.start = chunk + 1;
            }
        }
    }

    /// How many of the chunks that were given out are ahead of which writer.
    fn ahead_by_slot(&self, share: &Share) -> BTreeMap<usize, u64> {
        let mut slots = BTreeMap::new();
        for slot in share.exceptions.iter().filter_map(|exception| self.ahead.get(&exception.old)) {
            *slots.entry(*slot).or_default() += 1;
        }
        slots
    }
}

/// Gives out chunks; where the store is full, the snapshot is lost, or overflows.
fn allocate(store: &Store, missing: &Missing<'_>, taken: u64) -> Share {
    let mut share = Share::default();
    let mut books = store.books();
    // In the origin's order, so that neighbours there become neighbours in the store.
    let chunks: BTreeSet<u64> = missing.needed.iter().chain(missing.ahead.keys()).copied().collect();
    for old in chunks {
        if let Some(exception) = store.allocate(&mut books, old, taken + share.exceptions.len() as u64) {
            share.exceptions.push(exception);
            continue;
        }
        if missing.ahead.contains_key(&old) {
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
