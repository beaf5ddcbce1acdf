//! The map cache of a pool: where blocks lie, in pages that are found and read without a lock.
//!
//! A page is what 256 neighbouring entries are: of level 0, where 256 blocks of a device lie; of level 1, which of 256 pages of
//! level 0 map nothing, so that a large hole costs little memory. Pages are kept in sets of eight ways, as a processor keeps its
//! cache: the key of a page says in which set it is, and which way of that it has if it can. What a look-up costs is the lines of memory
//! that it waits for, so there are two: one with all that is to know of the way, and that of the entry.
//!
//! Each frame has a version, which is odd while it is filled. Whoever reads an entry looks at the version before and afterwards: if it
//! is the same and even, the entry is the page's. So nothing has to be reclaimed, and nobody waits for readers: whoever fills a
//! frame may do so while others read it, and they find out. Single entries of a page that stays may be replaced at any time.
//!
//! Filling takes the set's lock. Memory comes to be with what is put into it: sets by the group, frames one by one.
//!
//! A page of level 0 has a time: that of its device's last snapshot, as of when the page was filled. Its word that a block is not shared
//! counts only as long as that is still so; where blocks lie, it knows at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{MutexGuard, OnceLock};

use blockwork_engine::{Lock, LockSnapshot};

/// Entries of a page.
pub(super) const PAGE_ENTRIES: u64 = 256;

const ENTRIES: usize = PAGE_ENTRIES as usize;
const WAYS: usize = 8;

/// Memory that the cache of a pool takes at most by default, bytes: the map of 900 GiB in blocks of 64 KiB.
pub const CACHE_BYTES: usize = 128 << 20;

/// Which page: not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u64);

/// Numbers of devices in keys: devices of a pool that are in use at once.
pub(super) const SLOTS_MAX: u64 = 1 << 14;
const PAGE_BITS: u32 = 48;

impl Key {
    /// Page number `page` of level `level` (0 or 1) of the device that has that slot.
    #[inline(always)]
    pub fn new(slot: u64, level: u64, page: u64) -> Key {
        debug_assert!(slot < SLOTS_MAX && level < 2 && page < 1 << PAGE_BITS);
        Key((slot << 1 | level) << PAGE_BITS | page | 1 << 63)
    }

    /// Mixes its bits, so that neighbours are spread over all sets.
    #[inline(always)]
    fn hash(self) -> u64 {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    }

    /// One of a few numbers, the same for the same key.
    pub fn stripe(self, of: usize) -> usize {
        (self.hash() >> 8) as usize % of
    }
}

#[derive(Default)]
struct Set {
    ways: [Way; WAYS],
    /// Where the search for a way to give up goes on.
    hand: Lock<usize>,
}

/// A line of memory.
#[repr(align(64))]
#[derive(Default)]
struct Way {
    /// Odd while it is filled.
    version: AtomicU64,
    /// The key of what is in it; 0: nothing.
    key: AtomicU64,
    frame: OnceLock<Box<Frame>>,
    /// The time of what is in it.
    time: AtomicU64,
    /// Somebody has read it since the hand came by.
    used: AtomicBool,
}

type Frame = [AtomicU64; ENTRIES];

/// Sets whose memory comes to be at once, so that the list of groups is short, and near.
const GROUP: usize = 64;

/// A page that was found; it may be given up for another one at any time.
#[derive(Clone, Copy)]
pub(super) struct Page<'a> {
    way: &'a Way,
    frame: &'a Frame,
    /// As it was when the page was found.
    version: u64,
}

impl Page<'_> {
    /// Its time; that of another page, if it is no longer here.
    #[inline]
    pub fn time(&self) -> u64 {
        self.way.time.load(Ordering::Relaxed)
    }

    /// Entry number `at`, below [`PAGE_ENTRIES`]; none: the page is no longer here.
    #[inline]
    pub fn get(&self, at: u64) -> Option<u64> {
        let entry = self.frame[(at % PAGE_ENTRIES) as usize].load(Ordering::Relaxed);
        // The entry is loaded before the version is looked at again; pairs with the fence in `fill`.
        fence(Ordering::Acquire);
        (self.way.version.load(Ordering::Relaxed) == self.version).then_some(entry)
    }
}

/// Where a key's page is, if it can be there.
#[derive(Clone, Copy)]
struct Place {
    group: usize,
    /// Its set in the group.
    within: usize,
    /// The way of the set that is its own.
    way: usize,
}

/// The cache.
pub(super) struct MapCache {
    groups: Box<[OnceLock<Box<[Set; GROUP]>>]>,
    /// Sets that are used.
    sets: usize,
}

impl std::fmt::Debug for MapCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_use = self.groups.iter().filter(|group| group.get().is_some()).count();
        write!(f, "MapCache({in_use} of {} groups)", self.groups.len())
    }
}

impl MapCache {
    /// A cache that takes at most so much memory; one set, and the group that it is in (53 KiB), if that is less.
    pub fn new(bytes: usize) -> MapCache {
        let sets = (bytes / (size_of::<Set>() + WAYS * size_of::<Frame>())).max(1);
        MapCache { groups: (0..sets.div_ceil(GROUP)).map(|_| OnceLock::new()).collect(), sets }
    }

    #[inline(always)]
    fn place(&self, key: Key) -> Place {
        let hash = key.hash();
        // The upper half of a product, in place of a remainder.
        let set = (((hash & u64::from(u32::MAX)) * self.sets as u64) >> 32) as usize;
        Place { group: set / GROUP, within: set % GROUP, way: (hash >> 40) as usize % WAYS }
    }

    #[inline(always)]
    fn set(&self, place: Place) -> Option<&Set> {
        Some(&self.groups[place.group].get()?[place.within])
    }

    /// The sets that have memory.
    fn sets(&self) -> impl Iterator<Item = &Set> {
        self.groups.iter().filter_map(OnceLock::get).flat_map(|group| group.iter())
    }

    fn make_set(&self, place: Place) -> &Set {
        let make = || Box::new(std::array::from_fn(|_| Set::default()));
        &self.groups[place.group].get_or_init(make)[place.within]
    }

    /// The page of that key, if it is where it is looked for first.
    #[inline(always)]
    pub fn find_first(&self, key: Key) -> Option<Page<'_>> {
        let place = self.place(key);
        self.set(place)?.ways[place.way].page(key)
    }

    /// The page of that key, if it is here.
    pub fn find(&self, key: Key) -> Option<Page<'_>> {
        self.find_first(key).or_else(|| self.set(self.place(key))?.ways.iter().find_map(|way| way.page(key)))
    }

    /// Puts a page here, in the place of one that was not used lately: what `update` gives are its entries, the others are zeros. If it
    /// is here already, and has that time, the others stay as they are.
    pub fn update(&self, key: Key, time: u64, update: impl FnOnce(&mut dyn FnMut(u64, u64))) {
        let place = self.place(key);
        let set = self.make_set(place);
        let mut hand = set.hand();
        match set.way(key) {
            Some(way) if set.ways[way].time.load(Ordering::Relaxed) == time => set.change(way, update),
            Some(way) => set.fill(way, key, time, update),
            None => set.fill(set.victim(place.way, &mut hand), key, time, update),
        }
    }

    /// Changes entries of a page, if it is here and has that time; whether it is.
    pub fn change(&self, key: Key, time: u64, update: impl FnOnce(&mut dyn FnMut(u64, u64))) -> bool {
        let Some(set) = self.set(self.place(key)) else { return false };
        let _hand = set.hand();
        let way = set.way(key).filter(|way| set.ways[*way].time.load(Ordering::Relaxed) == time);
        way.inspect(|way| set.change(*way, update)).is_some()
    }

    /// Puts an entry in the place of another one, if that is there, whatever the page's time.
    pub fn replace(&self, key: Key, at: u64, from: u64, to: u64) {
        let Some(set) = self.set(self.place(key)) else { return };
        let _hand = set.hand();
        if let Some(way) = set.way(key) {
            let entry = &set.ways[way].frame()[at as usize % ENTRIES];
            let _ = entry.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// What is known of the locks of all sets.
    pub fn locks(&self, name: String) -> LockSnapshot {
        LockSnapshot::sum(name, self.sets().map(|set| set.hand.snapshot("")))
    }

    /// Forgets all pages.
    pub fn forget_all(&self) {
        for set in self.sets() {
            let _hand = set.hand();
            (0..WAYS).for_each(|way| set.empty(way));
        }
    }

    /// Makes entries of a page zeros, if it is here, whatever its time.
    pub fn clear(&self, key: Key, entries: std::ops::Range<u64>) {
        let Some(set) = self.set(self.place(key)) else { return };
        let _hand = set.hand();
        if let Some(way) = set.way(key) {
            set.change(way, |put| entries.for_each(|at| put(at, 0)));
        }
    }
}

impl Way {
    /// What is in it, if that has this key.
    #[inline(always)]
    fn page(&self, key: Key) -> Option<Page<'_>> {
        let version = self.version.load(Ordering::Acquire);
        // The key is what was there with that version, or the version has changed when an entry is read.
        if self.key.load(Ordering::Relaxed) != key.0 || version & 1 != 0 {
            return None;
        }
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        Some(Page { way: self, frame: self.frame.get()?, version })
    }

    fn frame(&self) -> &Frame {
        self.frame.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))))
    }
}

impl Set {
    fn hand(&self) -> MutexGuard<'_, usize> {
        self.hand.lock()
    }

    /// Where a page is. Under the set's lock.
    fn way(&self, key: Key) -> Option<usize> {
        self.ways.iter().position(|way| way.key.load(Ordering::Relaxed) == key.0)
    }

    /// Changes entries of what is in a way. Under the set's lock.
    fn change(&self, way: usize, update: impl FnOnce(&mut dyn FnMut(u64, u64))) {
        let entries = self.ways[way].frame();
        update(&mut |at, entry| entries[at as usize % ENTRIES].store(entry, Ordering::Release));
    }

    /// A way that is empty, or was not used since the hand came by last: `own`, if it is one of those.
    fn victim(&self, own: usize, hand: &mut usize) -> usize {
        let is_empty = |way: &usize| self.ways[*way].key.load(Ordering::Relaxed) == 0;
        if let Some(empty) = [own].into_iter().chain(0..WAYS).find(is_empty) {
            return empty;
        }
        if !self.ways[own].used.load(Ordering::Relaxed) {
            return own;
        }
        loop {
            let way = *hand;
            *hand = (way + 1) % WAYS;
            if !self.ways[way].used.swap(false, Ordering::Relaxed) {
                return way;
            }
        }
    }

    /// Replaces what is in a way. Under the set's lock.
    fn fill(&self, way: usize, key: Key, time: u64, update: impl FnOnce(&mut dyn FnMut(u64, u64))) {
        self.replace(way, |own| {
            let frame = own.frame();
            own.key.store(key.0, Ordering::Relaxed);
            own.time.store(time, Ordering::Relaxed);
            frame.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
            update(&mut |at, entry| frame[at as usize % ENTRIES].store(entry, Ordering::Relaxed));
        });
    }

    /// Takes away what is in a way. Under the set's lock.
    fn empty(&self, way: usize) {
        self.replace(way, |own| own.key.store(0, Ordering::Relaxed));
    }

    /// Puts something else into a way: who reads the frame meanwhile finds that out. Under the set's lock.
    fn replace(&self, way: usize, act: impl FnOnce(&Way)) {
        let own = &self.ways[way];
        let version = own.version.load(Ordering::Relaxed);
        own.version.store(version + 1, Ordering::Relaxed);
        // Whoever sees one of the stores that follow sees the odd version too; pairs with the fence in `Page::get`.
        fence(Ordering::Release);
        act(own);
        // What is read once makes room before what is read again.
        own.used.store(false, Ordering::Relaxed);
        own.version.store(version + 2, Ordering::Release);
    }
}
