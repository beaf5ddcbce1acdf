//! What rows with a parity have, as far as it was written or read lately. A client that writes in order comes back to the same sectors of a
//! row once for each member: with what it wrote before, nothing has to be read first, or less. Likewise where a place is written again
//! and again. Linux has a stripe cache for that; it is no cache for reads, and not a byte that was answered is in it alone.
//!
//! Invariants:
//!
//! 1. Only who holds the sectors (`stripes.rs`, in whole blocks) takes them out and puts them in. Whoever writes to a member by other means has
//!    it forget them.
//! 2. A write takes out what there is of its sectors, and puts it back, with what has changed, when all of it has succeeded: one that fails, or
//!    is never heard of again, leaves nothing.
//! 3. Nothing outlives the trust in some device ([`Array::trust`](super::array::Array)): what was read of it may not have been what was
//!    written.
//!
//! Memory: [`FRAMES`] blocks of an array, for all workers, and [`SPARE`] that are to be used again.

use std::collections::{BTreeMap, VecDeque};

use blockwork_engine::{Lock, LockSnapshot, Sector, Sectors};
use blockwork_memory::Segment;

/// Of one member, sectors: as Linux's stripes.
pub(super) const BLOCK: u64 = 8;

/// Blocks of members that are kept: 16 MiB. A row of chunks of 512 KiB of 8 members has 1024, and more than one client may be writing in order.
const FRAMES: usize = 4096;

const FRAME_BYTES: usize = BLOCK as usize * 512;

/// Frames that are in no block and kept to be used again, at most: with a stream, as many come as go.
const SPARE: usize = 512;

/// What some members have in a block.
type Frames = Vec<(u16, Box<[u8]>)>;

#[derive(Debug)]
struct Block {
    frames: Frames,
    /// When it was put there.
    stamp: u64,
}

#[derive(Debug, Default)]
struct Blocks {
    /// By the number of a block of each member.
    all: BTreeMap<u64, Block>,
    /// In the order in which they were put there; some are there no more, or anew.
    order: VecDeque<(u64, u64)>,
    next_stamp: u64,
    frames: usize,
    spare: Vec<Box<[u8]>>,
    trust: u64,
}

impl Blocks {
    fn remove(&mut self, at: u64) -> Option<Frames> {
        let frames = self.all.remove(&at)?.frames;
        self.frames -= frames.len();
        Some(frames)
    }

    fn insert(&mut self, at: u64, frames: Frames) {
        self.remove(at);
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        self.frames += frames.len();
        self.order.push_back((at, stamp));
        self.all.insert(at, Block { frames, stamp });
    }

    /// Those that have been there for the longest time go.
    fn shrink(&mut self) {
        let is_there = |all: &BTreeMap<u64, Block>, (at, stamp): (u64, u64)| {
            all.get(&at).is_some_and(|block| block.stamp == stamp)
        };
        while self.frames > FRAMES {
            let Some(oldest) = self.order.pop_front() else { break };
            if is_there(&self.all, oldest) {
                let frames = self.remove(oldest.0).unwrap_or_default();
                self.keep_spare(frames.into_iter().map(|(_, frame)| frame));
            }
        }
        if self.order.len() > 2 * FRAMES {
            let all = &self.all;
            self.order.retain(|one| is_there(all, *one));
        }
    }

    fn keep_spare(&mut self, frames: impl Iterator<Item = Box<[u8]>>) {
        let room = SPARE - self.spare.len();
        self.spare.extend(frames.take(room));
    }

    /// Nothing is left of what was known before some device was trusted less.
    fn follow(&mut self, trust: u64) {
        if self.trust != trust {
            *self = Blocks { trust, ..Blocks::default() };
        }
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct StripeCache(Lock<Blocks>);

/// What was taken out, of the `nr` sectors at `at` of each member.
#[derive(Debug)]
pub(super) struct Known {
    at: Sector,
    nr: Sectors,
    trust: u64,
    /// Of each block; nothing at all where nothing is known.
    blocks: Vec<Frames>,
}

/// The blocks in which the `nr` sectors at `at` are.
fn blocks(at: Sector, nr: Sectors) -> std::ops::Range<u64> {
    at.0 / BLOCK..(at.0 + nr.0).div_ceil(BLOCK)
}

/// All sectors of the blocks in which these are: each block has one writer at a time.
pub(super) fn whole(at: Sector, nr: Sectors) -> (Sector, Sectors) {
    let blocks = blocks(at, nr);
    (Sector(blocks.start * BLOCK), Sectors((blocks.end - blocks.start) * BLOCK))
}

/// The part of a block that lies in the `nr` sectors at `at`, in bytes of the block, and where it begins among those.
fn part(block: u64, at: Sector, nr: Sectors) -> (std::ops::Range<usize>, usize) {
    let start = (block * BLOCK).max(at.0);
    let end = ((block + 1) * BLOCK).min(at.0 + nr.0);
    let bytes = |from: u64, to: u64| Sectors(to - from).byte_len();
    (bytes(block * BLOCK, start)..bytes(block * BLOCK, end), bytes(at.0, start))
}

impl StripeCache {
    /// Takes out what is known of these sectors. For who holds them.
    pub(super) fn take(&self, at: Sector, nr: Sectors, trust: u64) -> Known {
        let mut all = self.0.lock();
        all.follow(trust);
        let mut taken: Vec<Frames> = Vec::new();
        if !all.all.is_empty() {
            taken.extend(blocks(at, nr).map(|block| all.remove(block).unwrap_or_default()));
        }
        Known { at, nr, trust, blocks: taken }
    }

    /// Puts it back, with what some members have there now. For who has held the sectors since, if devices are trusted as they were then.
    pub(super) fn put(&self, known: Known, parts: &[(u16, Segment)], trust: u64) {
        if known.trust != trust {
            return;
        }
        let most = parts.len() * known.count();
        let mut spare = {
            let mut all = self.0.lock();
            let left = all.spare.len().saturating_sub(most);
            all.spare.split_off(left)
        };
        let frames = known.with(parts, &mut spare);
        let mut all = self.0.lock();
        all.keep_spare(spare.into_iter());
        all.follow(trust);
        for (block, frames) in frames {
            all.insert(block, frames);
        }
        all.shrink();
    }

    /// Forgets what is known of these sectors.
    pub(super) fn forget(&self, at: Sector, nr: Sectors) {
        let mut all = self.0.lock();
        let gone: Vec<u64> = all.all.range(blocks(at, nr)).map(|(block, _)| *block).collect();
        gone.into_iter().for_each(|block| drop(all.remove(block)));
    }

    pub(super) fn snapshot(&self, name: String) -> LockSnapshot {
        self.0.snapshot(name)
    }
}

impl Known {
    /// Nothing of it counts if a device is trusted less than when it was taken.
    pub(super) fn follow(&mut self, trust: u64) {
        if self.trust != trust {
            self.trust = trust;
            self.blocks.clear();
        }
    }

    /// Blocks.
    fn count(&self) -> usize {
        blocks(self.at, self.nr).count()
    }

    /// What other members had there is not so any more.
    pub(super) fn keep_only(&mut self, roles: &[u16]) {
        self.blocks.iter_mut().for_each(|frames| frames.retain(|(role, _)| roles.contains(role)));
    }

    /// Whether it has all that a member has there.
    pub(super) fn has(&self, role: u16) -> bool {
        !self.blocks.is_empty() && self.blocks.iter().all(|frames| find(frames, role).is_some())
    }

    /// What a member has there, if it has all of that.
    pub(super) fn copy(&self, role: u16, into: &Segment) -> bool {
        if !self.has(role) {
            return false;
        }
        for (block, frames) in blocks(self.at, self.nr).zip(&self.blocks) {
            let (within, from) = part(block, self.at, self.nr);
            let Some(frame) = find(frames, role) else { return false };
            into.write_at(from, &frame[within]);
        }
        true
    }

    /// What there is of each block when these members have that. Of a block that is not covered as a whole, only what was known can be kept.
    fn with(self, parts: &[(u16, Segment)], spare: &mut Vec<Box<[u8]>>) -> Vec<(u64, Frames)> {
        let (range, count) = (blocks(self.at, self.nr), self.count());
        let mut before = self.blocks;
        before.resize_with(count, Frames::new);
        let kept = range.zip(before).map(|(block, mut frames)| {
            let (within, from) = part(block, self.at, self.nr);
            for (role, data) in parts {
                let old = frames.iter().position(|(other, _)| other == role);
                let old = old.map(|at| frames.swap_remove(at).1);
                if old.is_none() && within.len() < FRAME_BYTES {
                    continue;
                }
                // All of one that is used again is written over.
                let mut bytes = old.or_else(|| spare.pop()).unwrap_or_else(|| vec![0; FRAME_BYTES].into());
                data.read_at(from, &mut bytes[within.clone()]);
                frames.push((*role, bytes));
            }
            (block, frames)
        });
        kept.filter(|(_, frames)| !frames.is_empty()).collect()
    }
}

fn find(frames: &Frames, role: u16) -> Option<&[u8]> {
    frames.iter().find_map(|(other, frame)| (*other == role).then_some(&**frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_memory::Buffer;

    const TRUST: u64 = 3;

    fn data(nr: u64, value: u8) -> Segment {
        let bytes = Sectors(nr).byte_len();
        let segment = Segment::new(Buffer::new(bytes), 0, bytes);
        segment.fill(value);
        segment
    }

    fn put(cache: &StripeCache, at: u64, nr: u64, parts: &[(u16, u8)]) {
        let known = cache.take(Sector(at), Sectors(nr), TRUST);
        let parts: Vec<_> = parts.iter().map(|(role, value)| (*role, data(nr, *value))).collect();
        cache.put(known, &parts, TRUST);
    }

    /// What is known of a role there, sector by sector; it stays.
    fn look(cache: &StripeCache, at: u64, nr: u64, role: u16) -> Option<Vec<u8>> {
        let known = cache.take(Sector(at), Sectors(nr), TRUST);
        let into = data(nr, 0xee);
        let found = known.copy(role, &into);
        assert_eq!(found, known.has(role));
        cache.put(known, &[], TRUST);
        let mut bytes = vec![0; Sectors(nr).byte_len()];
        into.read_at(0, &mut bytes);
        found.then(|| bytes.chunks(512).map(|sector| sector[0]).collect())
    }

    #[test]
    fn what_was_put_is_known_by_member_and_in_whole_blocks() {
        let cache = StripeCache::default();
        put(&cache, 8, 16, &[(0, 1), (2, 2)]);
        assert_eq!(look(&cache, 8, 16, 0), Some(vec![1; 16]));
        assert_eq!(look(&cache, 11, 3, 2), Some(vec![2; 3]));
        assert_eq!(
            (look(&cache, 8, 16, 1), look(&cache, 8, 17, 0), look(&cache, 0, 9, 0)),
            (None, None, None)
        );
        // Another member's part of it leaves what was known.
        put(&cache, 16, 8, &[(1, 3)]);
        assert_eq!(look(&cache, 16, 8, 1), Some(vec![3; 8]));
        assert_eq!(look(&cache, 8, 16, 2), Some(vec![2; 16]));
        put(&cache, 13, 6, &[(0, 4), (1, 5)]);
        assert_eq!(look(&cache, 8, 16, 0), Some([vec![1; 5], vec![4; 6], vec![1; 5]].concat()));
        assert_eq!(look(&cache, 16, 8, 1), Some([vec![5; 3], vec![3; 5]].concat()));
        assert_eq!(look(&cache, 8, 8, 1), None, "of that block, not all is known");
        // What others had there may be so no more.
        let mut known = cache.take(Sector(16), Sectors(8), TRUST);
        known.keep_only(&[1]);
        cache.put(known, &[], TRUST);
        assert_eq!((look(&cache, 16, 8, 0), look(&cache, 16, 8, 2)), (None, None));
        cache.forget(Sector(15), Sectors(1));
        assert_eq!((look(&cache, 8, 8, 0), look(&cache, 16, 8, 1).is_some()), (None, true));
        cache.forget(Sector(0), Sectors(1 << 40));
        assert_eq!(look(&cache, 16, 8, 1), None);
    }

    #[test]
    fn what_was_taken_and_not_put_back_is_not_known() {
        let cache = StripeCache::default();
        put(&cache, 0, 16, &[(0, 1)]);
        drop(cache.take(Sector(4), Sectors(1), TRUST));
        assert_eq!((look(&cache, 0, 8, 0), look(&cache, 8, 8, 0)), (None, Some(vec![1; 8])));
    }

    #[test]
    fn nothing_outlives_trust() {
        let cache = StripeCache::default();
        put(&cache, 0, 16, &[(0, 1)]);
        let mut known = cache.take(Sector(0), Sectors(8), TRUST);
        known.follow(TRUST);
        assert!(known.has(0));
        known.follow(TRUST + 1);
        assert!(!known.has(0) && !known.copy(0, &data(8, 0)));
        let known = cache.take(Sector(8), Sectors(8), TRUST);
        cache.put(known, &[(1, data(8, 2))], TRUST + 1);
        assert!(!cache.take(Sector(8), Sectors(8), TRUST + 1).has(1));
        put(&cache, 16, 8, &[(0, 1)]);
        drop(cache.take(Sector(0), Sectors(8), TRUST + 1));
        assert!(!cache.take(Sector(16), Sectors(8), TRUST + 1).has(0));
    }

    #[test]
    fn the_oldest_go_and_the_books_stay_small() {
        let cache = StripeCache::default();
        for at in 0..FRAMES as u64 {
            put(&cache, at * BLOCK, BLOCK, &[(0, 1), (1, 1)]);
            // Again and again, it is the newest.
            put(&cache, 0, BLOCK, &[(0, 2), (1, 2)]);
        }
        let all = cache.0.lock();
        assert_eq!((all.frames, all.all.len()), (FRAMES, FRAMES / 2));
        assert!((2..=SPARE).contains(&all.spare.len()), "{}", all.spare.len());
        assert!(all.order.len() <= 2 * FRAMES + 1, "{}", all.order.len());
        drop(all);
        let newest = FRAMES as u64 - 1;
        assert!(look(&cache, 0, BLOCK, 0).is_some() && look(&cache, newest * BLOCK, BLOCK, 1).is_some());
        assert_eq!(look(&cache, (newest - FRAMES as u64 / 2) * BLOCK, BLOCK, 0), None);
        for _ in 0..4 * FRAMES {
            put(&cache, 0, BLOCK, &[(0, 3), (1, 3)]);
        }
        assert!(cache.0.lock().order.len() <= 2 * FRAMES + 1);
    }
}
