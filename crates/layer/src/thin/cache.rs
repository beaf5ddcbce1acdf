//! The map cache of a pool: where blocks lie, in pages that are found and read without a lock.
//!
//! A page is what 256 neighbouring entries are: of level 0, where 256 blocks of a device lie; of level 1, which of 256 pages of
//! level 0 map nothing, so that a large hole costs little memory. Pages are kept in sets of eight ways, as a processor keeps its
//! cache: the key of a page says in which set it is, and which way of that it has if it can. Neighbours are in neighbouring sets, and in the
//! same way of them.
//!
//! What a look-up costs is the memory that it waits for, so all that is to know of a way is in half a line, next to that of its neighbours,
//! and where the entry is follows from the key alone: the processor gets both at a time. It is after a sleep, when its own caches, and those
//! of pages' addresses, are cold, that this is most of what a thin volume costs more than a linear one.
//!
//! Each frame has a version, which is odd while it is filled. Whoever reads an entry looks at the version before and afterwards: if it
//! is the same and even, the entry is the page's. So nothing has to be reclaimed, and nobody waits for readers: whoever fills a
//! frame may do so while others read it, and they find out. Single entries of a page that stays may be replaced at any time.
//!
//! Filling takes the set's lock. Memory comes to be with what is put into it, by the lane: one way of a group of neighbouring sets.
//!
//! A page of level 0 has a time: that of its device's last snapshot, as of when the page was filled. Its word that a block is not shared
//! counts only as long as that is still so; where blocks lie, it knows at any time.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{MutexGuard, OnceLock};

use blockwork_engine::{Lock, LockSnapshot};
use blockwork_memory::bring_near;

use crate::divisor::Divisor;

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

    /// One of a few numbers, the same for the same key.
    pub fn stripe(self, of: usize) -> usize {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ mixed >> 32) >> 8) as usize % of
    }
}

/// All that is to know of a way.
#[repr(align(32))]
#[derive(Default)]
struct Way {
    /// Odd while it is filled.
    version: AtomicU64,
    /// The key of what is in it; 0: nothing.
    key: AtomicU64,
    /// The time of what is in it.
    time: AtomicU64,
    /// Somebody has read it since the hand came by.
    used: AtomicBool,
}

type Frame = [AtomicU64; ENTRIES];

/// Sets whose memory comes to be at once.
const GROUP: usize = 64;

/// One way of each set of a group.
struct Lane {
    ways: Box<[Way]>,
    frames: Box<[Frame]>,
}

impl Lane {
    fn new(sets: usize) -> Lane {
        let frame = || std::array::from_fn(|_| AtomicU64::new(0));
        Lane {
            ways: (0..sets).map(|_| Way::default()).collect(),
            frames: (0..sets).map(|_| frame()).collect(),
        }
    }

    /// What is in that way of a set, if it has this key.
    #[inline(always)]
    fn page(&self, within: usize, key: Key) -> Option<Page<'_>> {
        let (way, frame) = (&self.ways[within], &self.frames[within]);
        let version = way.version.load(Ordering::Acquire);
        // The key is what was there with that version, or the version has changed when an entry is read.
        if way.key.load(Ordering::Relaxed) != key.0 || version & 1 != 0 {
            return None;
        }
        if !way.used.load(Ordering::Relaxed) {
            way.used.store(true, Ordering::Relaxed);
        }
        Some(Page { way, frame, version })
    }
}

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

/// Where a search for a way to give up goes on, for each set of a group; under the set's lock.
type Hands = Box<[Lock<usize>]>;

/// The cache.
pub(super) struct MapCache {
    /// By group, and way.
    lanes: Box<[OnceLock<Lane>]>,
    /// By group.
    hands: Box<[OnceLock<Hands>]>,
    /// How many sets there are.
    sets: Divisor,
}

impl std::fmt::Debug for MapCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_use = self.lanes.iter().filter(|lane| lane.get().is_some()).count();
        write!(f, "MapCache({in_use} of {} lanes)", self.lanes.len())
    }
}

impl MapCache {
    /// A cache that takes at most so much memory; one set (17 KiB), if that is less.
    pub fn new(bytes: usize) -> MapCache {
        let set = size_of::<Lock<usize>>() + WAYS * (size_of::<Way>() + size_of::<Frame>());
        let sets = (bytes / set).max(1);
        let sets = if sets < GROUP { sets } else { sets / GROUP * GROUP };
        let groups = sets.div_ceil(GROUP);
        MapCache {
            lanes: (0..groups * WAYS).map(|_| OnceLock::new()).collect(),
            hands: (0..groups).map(|_| OnceLock::new()).collect(),
            sets: Divisor::new(NonZeroU64::new(sets as u64).expect("at least one")),
        }
    }

    #[inline(always)]
    fn place(&self, key: Key) -> Place {
        // Each device begins somewhere, with each of its levels, and goes on from set to set, round by round.
        let begin = (key.0 >> PAGE_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let (round, set) = self.sets.divide(begin + (key.0 & ((1 << PAGE_BITS) - 1)));
        let set = set as usize;
        Place { group: set / GROUP, within: set % GROUP, way: round as usize % WAYS }
    }

    #[inline(always)]
    fn lane(&self, group: usize, way: usize) -> Option<&Lane> {
        self.lanes[group * WAYS + way].get()
    }

    fn set(&self, place: Place) -> Set<'_> {
        Set { cache: self, group: place.group, within: place.within }
    }

    /// The sets that may have something in them.
    fn sets(&self) -> impl Iterator<Item = Set<'_>> {
        let groups = (0..self.hands.len()).filter(|group| self.hands[*group].get().is_some());
        groups.flat_map(move |group| (0..self.width()).map(move |within| Set { cache: self, group, within }))
    }

    /// How many sets a group has.
    fn width(&self) -> usize {
        GROUP.min(self.sets.get() as usize)
    }

    /// Brings near what is to know of the page of that key, and its entry number `at`.
    #[inline]
    pub fn approach(&self, key: Key, at: u64) {
        let place = self.place(key);
        if let Some(lane) = self.lane(place.group, place.way) {
            bring_near(&lane.ways[place.within]);
            bring_near(&lane.frames[place.within][(at % PAGE_ENTRIES) as usize]);
        }
    }

    /// The page of that key, if it is where it is looked for first.
    #[inline(always)]
    pub fn find_first(&self, key: Key) -> Option<Page<'_>> {
        let place = self.place(key);
        self.lane(place.group, place.way)?.page(place.within, key)
    }

    /// The page of that key, if it is here.
    pub fn find(&self, key: Key) -> Option<Page<'_>> {
        self.find_first(key).or_else(|| self.set(self.place(key)).find(key))
    }

    /// Puts a page here, in the place of one that was not used lately: what `update` gives are its entries, the others are zeros. If it
    /// is here already, and has that time, the others stay as they are.
    pub fn update(&self, key: Key, time: u64, update: impl FnOnce(&mut dyn FnMut(u64, u64))) {
        let place = self.place(key);
        let set = self.set(place);
        let mut hand = set.hand();
        match set.way(key) {
            Some(way) if set.lane(way).ways[set.within].time.load(Ordering::Relaxed) == time => {
                set.change(way, update);
            }
            Some(way) => set.fill(way, key, time, update),
            None => set.fill(set.victim(place.way, &mut hand), key, time, update),
        }
    }

    /// Changes entries of a page, if it is here and has that time; whether it is.
    pub fn change(&self, key: Key, time: u64, update: impl FnOnce(&mut dyn FnMut(u64, u64))) -> bool {
        let set = self.set(self.place(key));
        let _hand = set.hand();
        let has_time = |way: &usize| set.lane(*way).ways[set.within].time.load(Ordering::Relaxed) == time;
        set.way(key).filter(has_time).inspect(|way| set.change(*way, update)).is_some()
    }

    /// Puts an entry in the place of another one, if that is there, whatever the page's time.
    pub fn replace(&self, key: Key, at: u64, from: u64, to: u64) {
        let set = self.set(self.place(key));
        let _hand = set.hand();
        if let Some(way) = set.way(key) {
            let entry = &set.lane(way).frames[set.within][at as usize % ENTRIES];
            let _ = entry.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// What is known of the locks of all sets.
    pub fn locks(&self, name: String) -> LockSnapshot {
        let hands = self.hands.iter().filter_map(OnceLock::get);
        LockSnapshot::sum(name, hands.flat_map(|hands| hands.iter().map(|hand| hand.snapshot(""))))
    }

    /// Forgets all pages.
    pub fn forget_all(&self) {
        for set in self.sets() {
            let _hand = set.hand();
            let in_use = (0..WAYS).filter(|way| self.lane(set.group, *way).is_some());
            in_use.for_each(|way| set.empty(way));
        }
    }

    /// Makes entries of a page zeros, if it is here, whatever its time.
    pub fn clear(&self, key: Key, entries: std::ops::Range<u64>) {
        let set = self.set(self.place(key));
        let _hand = set.hand();
        if let Some(way) = set.way(key) {
            set.change(way, |put| entries.for_each(|at| put(at, 0)));
        }
    }
}

/// A set of the cache.
#[derive(Clone, Copy)]
struct Set<'a> {
    cache: &'a MapCache,
    group: usize,
    /// Which of the group.
    within: usize,
}

impl<'a> Set<'a> {
    fn hand(&self) -> MutexGuard<'a, usize> {
        let new = || (0..self.cache.width()).map(|_| Lock::default()).collect();
        self.cache.hands[self.group].get_or_init(new)[self.within].lock()
    }

    /// The lane of a way, which comes to be now at the latest.
    fn lane(&self, way: usize) -> &'a Lane {
        self.cache.lanes[self.group * WAYS + way].get_or_init(|| Lane::new(self.cache.width()))
    }

    fn find(&self, key: Key) -> Option<Page<'a>> {
        (0..WAYS).find_map(|way| self.cache.lane(self.group, way)?.page(self.within, key))
    }

    /// The key of what is in a way; 0: nothing.
    fn key(&self, way: usize) -> u64 {
        let lane = self.cache.lane(self.group, way);
        lane.map_or(0, |lane| lane.ways[self.within].key.load(Ordering::Relaxed))
    }

    /// Where a page is. Under the set's lock.
    fn way(&self, key: Key) -> Option<usize> {
        (0..WAYS).find(|way| self.key(*way) == key.0)
    }

    /// Changes entries of what is in a way. Under the set's lock.
    fn change(&self, way: usize, update: impl FnOnce(&mut dyn FnMut(u64, u64))) {
        let frame = &self.lane(way).frames[self.within];
        update(&mut |at, entry| frame[at as usize % ENTRIES].store(entry, Ordering::Release));
    }

    /// A way that is empty, or was not used since the hand came by last: `own`, if it is one of those.
    fn victim(&self, own: usize, hand: &mut usize) -> usize {
        let is_empty = |way: &usize| self.key(*way) == 0;
        if let Some(empty) = [own].into_iter().chain(0..WAYS).find(is_empty) {
            return empty;
        }
        let used = |way: usize| &self.lane(way).ways[self.within].used;
        if !used(own).load(Ordering::Relaxed) {
            return own;
        }
        loop {
            let way = *hand;
            *hand = (way + 1) % WAYS;
            if !used(way).swap(false, Ordering::Relaxed) {
                return way;
            }
        }
    }

    /// Replaces what is in a way. Under the set's lock.
    fn fill(&self, way: usize, key: Key, time: u64, update: impl FnOnce(&mut dyn FnMut(u64, u64))) {
        self.replace(way, |own, frame| {
            own.key.store(key.0, Ordering::Relaxed);
            own.time.store(time, Ordering::Relaxed);
            frame.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
            update(&mut |at, entry| frame[at as usize % ENTRIES].store(entry, Ordering::Relaxed));
        });
    }

    /// Takes away what is in a way. Under the set's lock.
    fn empty(&self, way: usize) {
        self.replace(way, |own, _| own.key.store(0, Ordering::Relaxed));
    }

    /// Puts something else into a way: who reads the frame meanwhile finds that out. Under the set's lock.
    fn replace(&self, way: usize, act: impl FnOnce(&Way, &Frame)) {
        let lane = self.lane(way);
        let own = &lane.ways[self.within];
        let version = own.version.load(Ordering::Relaxed);
        own.version.store(version + 1, Ordering::Relaxed);
        // Whoever sees one of the stores that follow sees the odd version too; pairs with the fence in `Page::get`.
        fence(Ordering::Release);
        act(own, &lane.frames[self.within]);
        // What is read once makes room before what is read again.
        own.used.store(false, Ordering::Relaxed);
        own.version.store(version + 2, Ordering::Release);
    }
}
