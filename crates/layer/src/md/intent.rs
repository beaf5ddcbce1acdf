//! The write-intent bitmap of an array that is served: which chunks may differ between its mirrors.
//!
//! A chunk has a bit in five sets:
//!
//! | set | means | who changes it |
//! | --- | --- | --- |
//! | on disk | the bit as it was last written, to all members | slow paths, under the array's turn |
//! | ready | set on disk on all members: writes may go | set by slow paths; taken back by the upkeep, without a turn |
//! | wanted | a write waits until the bit is ready | set while a write is resolved; taken by slow paths |
//! | touched | written to since the upkeep last looked | set while a write is resolved; cleared by the upkeep |
//! | kept | mirrors may really differ: never cleared here, and always read from the same copy | set when opened, and when a member refused a write without having failed |
//!
//! Ready implies on disk. The order in which they change, and why that is right, is told in `upkeep.rs`.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use blockwork_engine::{Lock, LockSnapshot, Nanos, Sector, Sectors};
use blockwork_format::md::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};

use super::atomic_bits::{AtomicBits, bits_of};

/// The bitmap is written in pieces of so many bytes.
pub(super) const PIECE_BYTES: usize = 4096;

/// Longest write of the bitmap, bytes.
const RUN_BYTES: usize = 256 << 10;

/// A write-intent bitmap as it was found.
#[derive(Clone, Debug)]
pub struct IntentConfig {
    /// Its superblock, of the freshest member.
    pub superblock: BitmapSuperblock,
    /// Its bits: all that any member has set. All dirty where the bitmap was not to be believed (of another array, stale).
    pub bits: Bits,
    /// The set bits mean that mirrors may differ there: the array was not stopped cleanly, or is of a kind that does not
    /// record it. Otherwise they are left over from a time when it was degraded.
    pub may_differ: bool,
}

/// The bitmap of an array that is served.
#[derive(Debug)]
pub(super) struct Intent {
    /// Sectors of a chunk, as a power of two.
    chunk_shift: u32,
    ready: AtomicBits,
    wanted: AtomicBits,
    touched: AtomicBits,
    kept: AtomicBits,
    /// Kept since a resync of the chunk has begun: it has to be done once more.
    noted: AtomicBits,
    any_wanted: AtomicBool,
    any_kept: AtomicBool,
    disk: Lock<OnDisk>,
}

/// The bitmap as it is, or is about to be, on the members.
#[derive(Debug)]
pub(super) struct OnDisk {
    pub(super) superblock: BitmapSuperblock,
    bits: Bits,
    /// Pieces that are not on all members as they are here.
    changed: Vec<bool>,
}

/// Bytes of the bitmap that have to be written, from the start of its superblock.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) offset: Sectors,
    pub(super) bytes: Vec<u8>,
}

impl Intent {
    /// `events` are the array's.
    pub(super) fn new(mut config: IntentConfig, events: u64) -> Intent {
        let chunks = config.bits.chunks();
        if config.superblock.is_stale(events) {
            // Everything is set from now on, and that is to be believed.
            config.bits = Bits::dirty(chunks);
            config.superblock.state &= !BitmapSuperblock::STALE;
            config.superblock.events_cleared = events;
        }
        let intent = Intent {
            chunk_shift: config.superblock.chunk_sectors().trailing_zeros(),
            ready: AtomicBits::new(chunks),
            wanted: AtomicBits::new(chunks),
            touched: AtomicBits::new(chunks),
            kept: AtomicBits::new(chunks),
            noted: AtomicBits::new(chunks),
            any_wanted: AtomicBool::new(false),
            any_kept: AtomicBool::new(false),
            disk: Lock::new(OnDisk::new(config.superblock, config.bits)),
        };
        if config.may_differ {
            let disk = intent.disk();
            let mut from = 0;
            while let Some(chunk) = disk.bits.next_dirty(from) {
                intent.keep_chunks(chunk, chunk);
                from = chunk + 1;
            }
        }
        intent
    }

    /// What is known of its lock.
    pub(super) fn locks(&self, name: String) -> LockSnapshot {
        self.disk.snapshot(name)
    }

    /// Held only for as long as it takes to look or to alter, never across a wait.
    pub(super) fn disk(&self) -> MutexGuard<'_, OnDisk> {
        self.disk.lock()
    }

    /// The chunks of a range of the array, first and last.
    #[inline]
    fn chunks(&self, sector: Sector, nr: Sectors) -> (u64, u64) {
        (sector.0 >> self.chunk_shift, (sector.0 + nr.0 - 1) >> self.chunk_shift)
    }

    /// Whether a write may go to the range, which counts as touched then.
    #[inline]
    pub(super) fn admit(&self, sector: Sector, nr: Sectors) -> bool {
        let (first, last) = self.chunks(sector, nr);
        let ready = self.ready.all(first, last);
        if ready {
            self.touched.set(first, last);
        }
        ready
    }

    /// Says that a write to the range waits.
    pub(super) fn want(&self, sector: Sector, nr: Sectors) {
        let (first, last) = self.chunks(sector, nr);
        self.wanted.set(first, last);
        self.any_wanted.store(true, Ordering::Release);
    }

    /// Whether a write may go to the range, without wanting anything.
    pub(super) fn is_ready(&self, sector: Sector, nr: Sectors) -> bool {
        let (first, last) = self.chunks(sector, nr);
        self.ready.all(first, last)
    }

    /// Mirrors may differ in the range from now on.
    pub(super) fn keep(&self, sector: Sector, nr: Sectors) {
        let (first, last) = self.chunks(sector, nr);
        self.keep_chunks(first, last);
    }

    fn keep_chunks(&self, first: u64, last: u64) {
        // In this order: whoever ends a resync looks at it before and after.
        self.noted.set(first, last);
        self.kept.set(first, last);
        self.any_kept.store(true, Ordering::Release);
    }

    /// Sectors of a chunk.
    pub(super) fn chunk_sectors(&self) -> u64 {
        1 << self.chunk_shift
    }

    /// A resync of the chunk at `sector` begins.
    pub(super) fn begin_resync(&self, sector: Sector) {
        let (chunk, _) = self.chunks(sector, Sectors(1));
        self.noted.clear(chunk);
    }

    /// The chunk at `sector` has been resynced: its mirrors agree, unless that was noted otherwise meanwhile.
    pub(super) fn end_resync(&self, sector: Sector) {
        let (chunk, _) = self.chunks(sector, Sectors(1));
        if !self.noted.any(chunk, chunk) {
            self.kept.clear(chunk);
        }
        if self.noted.any(chunk, chunk) {
            self.keep_chunks(chunk, chunk);
        }
        if self.kept.all_words().iter().all(|word| word.load(Ordering::Acquire) == 0) {
            self.any_kept.store(false, Ordering::Release);
            // One that is kept at the same time is either seen here, or sets its mark after ours.
            let any = self.kept.all_words().iter().any(|word| word.load(Ordering::Acquire) != 0);
            self.any_kept.fetch_or(any, Ordering::AcqRel);
        }
    }

    /// The first sector at or behind `sector` of a chunk whose mirrors may differ.
    pub(super) fn next_kept(&self, sector: Sector) -> Option<Sector> {
        let (chunk, _) = self.chunks(sector, Sectors(1));
        let next = self.kept.next(chunk)?;
        Some(Sector((next << self.chunk_shift).max(sector.0)))
    }

    /// Whether the chunk at `sector` is set on disk: a member that was away may lack something there.
    pub(super) fn is_dirty(&self, sector: Sector) -> bool {
        let (chunk, _) = self.chunks(sector, Sectors(1));
        self.disk().bits.is_dirty(chunk)
    }

    /// As of which event nothing but the bits is missing on a member that was there.
    pub(super) fn events_cleared(&self) -> u64 {
        self.disk().superblock.events_cleared
    }

    /// A member that was there has to have so many events, or it lacks more than the bits say: in the bitmap to be written.
    pub(super) fn raise_events_cleared(&self, events: u64) {
        let mut disk = self.disk();
        if disk.superblock.events_cleared < events {
            disk.superblock.events_cleared = events;
            disk.superblock_changed();
        }
    }

    /// The bitmap for an array of `sectors` sectors, with as much for a bit as here: what is new may differ where `dirty`.
    pub(super) fn grown(&self, sectors: Sectors, events: u64, dirty: bool) -> Intent {
        let (superblock, old) = {
            let disk = self.disk();
            (disk.superblock.grown(sectors.0), disk.bits.clone())
        };
        let superblock = BitmapSuperblock { events, ..superblock };
        let bits = old.grown(superblock.chunks());
        let config = IntentConfig { superblock, bits, may_differ: false };
        let grown = Intent::new(config, events);
        for chunk in 0..old.chunks() {
            if self.kept.any(chunk, chunk) {
                grown.keep_chunks(chunk, chunk);
            }
        }
        if dirty {
            // The last chunk of the old part may have sectors of the new one.
            let first = old.chunks().saturating_sub(1);
            let last = grown.disk().bits.chunks() - 1;
            (first..=last).for_each(|chunk| grown.disk().set(chunk));
            grown.keep_chunks(first, last);
        }
        grown
    }

    /// Whether mirrors may differ anywhere.
    #[inline]
    pub(super) fn any_kept(&self) -> bool {
        self.any_kept.load(Ordering::Acquire)
    }

    /// Whether mirrors may differ in the range.
    #[inline]
    pub(super) fn is_kept(&self, sector: Sector, nr: Sectors) -> bool {
        let (first, last) = self.chunks(sector, nr);
        self.kept.any(first, last)
    }

    /// Sets what writes wait for in the bitmap to be written; gives it as words of the set. Under the array's turn.
    pub(super) fn take_wanted(&self) -> Vec<(usize, u64)> {
        let mut taken = Vec::new();
        if !self.any_wanted.swap(false, Ordering::AcqRel) {
            return taken;
        }
        let mut disk = self.disk();
        for (index, word) in self.wanted.all_words().iter().enumerate() {
            if word.load(Ordering::Relaxed) != 0 {
                let word = word.swap(0, Ordering::AcqRel);
                bits_of(index, word).for_each(|chunk| disk.set(chunk));
                taken.push((index, word));
            }
        }
        taken
    }

    /// All bits are set in the bitmap to be written, as a member lacks more than they tell of: whoever goes by them fills all of it. That mirrors
    /// differ there is not said by that.
    pub(super) fn set_all(&self) {
        let mut disk = self.disk();
        disk.bits = Bits::dirty(disk.bits.chunks());
        disk.all_changed();
    }

    /// The bitmap is on all members as it is here, also where it was set when it was found: writes may go there. Under the
    /// array's turn.
    pub(super) fn publish_all(&self) {
        let disk = self.disk();
        let mut from = 0;
        while let Some(chunk) = disk.bits.next_dirty(from) {
            self.ready.set(chunk, chunk);
            from = chunk + 1;
        }
    }

    /// Takes back the readiness of the chunks that were not touched since the last call: what may be cleared once all
    /// writes that relied on it are over. Gives them as words of the set.
    pub(super) fn withdraw_idle(&self) -> Vec<(usize, u64)> {
        let words = self.ready.all_words().iter().zip(self.touched.all_words()).zip(self.kept.all_words());
        let mut idle = Vec::new();
        for (index, ((ready, touched), kept)) in words.enumerate() {
            let candidates = ready.load(Ordering::Relaxed) & !kept.load(Ordering::Acquire);
            if candidates != 0 {
                let untouched = candidates & !touched.swap(0, Ordering::AcqRel);
                if untouched != 0 {
                    ready.fetch_and(!untouched, Ordering::AcqRel);
                    idle.push((index, untouched));
                }
            }
        }
        idle
    }

    /// Writes may go to these: they are set on all members. Under the array's turn. They count as touched, as those who wait
    /// for them are about to use them.
    pub(super) fn publish(&self, chunks: &[(usize, u64)]) {
        for (index, word) in chunks {
            self.touched.all_words()[*index].fetch_or(*word, Ordering::AcqRel);
            self.ready.all_words()[*index].fetch_or(*word, Ordering::AcqRel);
        }
    }

    /// Clears in the bitmap to be written those of the withdrawn chunks that nobody wants or was given by now, and whose
    /// mirrors agree. The others are ready again. Under the array's turn.
    pub(super) fn clear(&self, idle: &[(usize, u64)]) {
        let mut disk = self.disk();
        for (index, word) in idle {
            // One that somebody else set has no other taker: the write that wanted it finds it ready.
            let wanted = self.wanted.all_words()[*index].fetch_and(!word, Ordering::AcqRel) & word;
            let kept = self.kept.all_words()[*index].load(Ordering::Acquire) & word;
            self.publish(&[(*index, wanted | kept)]);
            let ready = self.ready.all_words()[*index].load(Ordering::Acquire);
            bits_of(*index, word & !ready).for_each(|chunk| disk.clear(chunk));
        }
    }

    /// Clears all that agree: no write is under way, and none will be. Under the array's turn.
    pub(super) fn clear_all(&self) {
        self.wanted.all_words().iter().for_each(|word| word.store(0, Ordering::Release));
        let all: Vec<_> =
            self.ready.all_words().iter().map(|word| word.swap(0, Ordering::AcqRel)).enumerate().collect();
        self.clear(&all);
    }

    /// How many chunks are set on disk, and how many of those are not kept.
    pub(super) fn dirty_chunks(&self) -> (u64, u64) {
        let dirty = self.disk().bits.dirty_chunks();
        (dirty, dirty.saturating_sub(self.kept_chunks()))
    }

    /// In how many chunks mirrors may differ.
    pub(super) fn kept_chunks(&self) -> u64 {
        self.kept.all_words().iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    /// How often the upkeep looks for chunks to clear.
    pub(super) fn daemon_sleep(&self) -> Nanos {
        Nanos::secs(self.disk().superblock.daemon_sleep.into())
    }
}

impl OnDisk {
    fn new(superblock: BitmapSuperblock, bits: Bits) -> OnDisk {
        let bytes = BITMAP_SUPERBLOCK_BYTES + bits.as_bytes().len();
        // Not known to be the same on all members: written whole before the first write goes.
        let changed = vec![true; bytes.div_ceil(PIECE_BYTES)];
        OnDisk { superblock, bits, changed }
    }

    fn set(&mut self, chunk: u64) {
        if self.bits.set(chunk) {
            self.change(chunk);
        }
    }

    fn clear(&mut self, chunk: u64) {
        if self.bits.clear(chunk) {
            self.change(chunk);
        }
    }

    fn change(&mut self, chunk: u64) {
        let piece = Bits::byte_on_disk(chunk) as usize / PIECE_BYTES;
        self.changed[piece] = true;
    }

    /// Whether the bits have to be written somewhere.
    pub(super) fn has_changes(&self) -> bool {
        self.changed.contains(&true)
    }

    /// The piece with the superblock has to be written.
    pub(super) fn superblock_changed(&mut self) {
        self.changed[0] = true;
    }

    /// What has to be written; from then on, nothing has.
    pub(super) fn take_changes(&mut self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut last = None;
        for piece in 0..self.changed.len() {
            if !std::mem::take(&mut self.changed[piece]) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if last == Some(piece) && run.bytes.len() < RUN_BYTES => {
                    run.bytes.extend(self.piece(piece));
                }
                _ => {
                    let offset = Sectors::from_bytes_floor((piece * PIECE_BYTES) as u64);
                    runs.push(Run { offset, bytes: self.piece(piece) });
                }
            }
            last = Some(piece + 1);
        }
        runs
    }

    /// All of it, for a device that has none of it yet.
    pub(super) fn whole(&mut self) -> Vec<Run> {
        let all = vec![true; self.changed.len()];
        let changed = std::mem::replace(&mut self.changed, all);
        let runs = self.take_changes();
        self.changed = changed;
        runs
    }

    /// Everything has to be written again: a write of it failed.
    pub(super) fn all_changed(&mut self) {
        self.changed.fill(true);
    }

    /// The bytes of a piece, in whole sectors; behind the last bit are ones, as mdadm has them.
    fn piece(&self, piece: usize) -> Vec<u8> {
        let (start, end) = (piece * PIECE_BYTES, (piece + 1) * PIECE_BYTES);
        let superblock = self.superblock.encode();
        let bits = self.bits.as_bytes();
        let mut out = Vec::with_capacity(PIECE_BYTES);
        out.extend_from_slice(
            &superblock[start.min(BITMAP_SUPERBLOCK_BYTES)..end.min(BITMAP_SUPERBLOCK_BYTES)],
        );
        let within = |at: usize| at.saturating_sub(BITMAP_SUPERBLOCK_BYTES).min(bits.len());
        out.extend_from_slice(&bits[within(start)..within(end)]);
        out.resize(out.len().next_multiple_of(512), 0xff);
        out
    }
}

#[cfg(test)]
#[path = "intent_tests.rs"]
mod tests;
