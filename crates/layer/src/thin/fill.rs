//! Blocks that are being filled: those which were given out to writes that cover all of them, and so were neither zeroed nor copied.
//!
//! Such a block is in the map, and in the tree, from the moment it is given out; what is on it is nobody's business before all of it
//! was written. So its entry in the map cache says so, until the last of its writes has come to its end, successfully: readers wait
//! meanwhile, and so does a commit.
//!
//! ```text
//!              prepare returns       the bio is resolved        done
//!   Promised ─────────────────▶ Due ────────────────────▶ UnderWay ─────▶ Filled
//!                                │ a commit has waited         │ failed, or deferred again
//!                                ▼                             ▼
//!                            Abandoned ◀───────────────────────┘
//!                                │ content that stands in for it ──▶ Filled, or Lost
//! ```
//!
//! A part of a block that was abandoned gets what the block would have held without the write, by whoever has the pool's turn and needs
//! it to be over. What its write does afterwards, if it comes, is an ordinary write. Where that content cannot be written either, what
//! was mapped before is mapped again, if nothing of the block is written; otherwise the part is lost: no I/O gets to its block any
//! more, and the pool is read-only before a tree that leads to it is committed.
//!
//! Invariants: (1) such content goes to a part only while no write to it is under way that counts on it; (2) a block is taken out of the table, and
//! its entry in the map changed, under the table's lock, which those who fill pages of the map hold too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use blockwork_engine::{Errno, Lock, LockSnapshot, Watch};
use blockwork_format::thin::BlockTime;

use super::bell::Bell;
use super::cache::{Key, MapCache, PAGE_ENTRIES};
use super::content::{Content, Job};
use super::device::Device;
use super::entry::Mapped;
use super::pool::Pool;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its write still waits to hear that it may go.
    Promised,
    /// Its write is about to be resolved.
    Due,
    UnderWay,
    Filled,
    /// Its write does not come, or has failed.
    Abandoned,
    /// What was to stand in for its write has failed as well.
    Lost,
}

/// Sectors of a block, from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub start: u64,
    pub end: u64,
}

/// A block that is being filled.
#[derive(Debug)]
struct Fill {
    device: Arc<Device>,
    /// Its number on the device.
    virtual_block: u64,
    parts: Vec<(Part, State)>,
    /// What it would hold if it were not filled.
    content: Content,
}

/// What a block was given to.
#[derive(Debug)]
pub(super) struct Given {
    pub device: Arc<Device>,
    /// Its number on the device.
    pub block: u64,
    /// What it had there before; none: nothing was mapped.
    pub before: Option<BlockTime>,
}

/// The table, by data blocks.
#[derive(Debug, Default)]
pub(super) struct Fills {
    blocks: Lock<BTreeMap<u64, Fill>>,
    /// How many there are: the look that costs nothing.
    count: AtomicUsize,
    changed: Bell,
}

/// What there is to do before no block of some is being filled.
#[derive(Debug)]
pub(super) enum Left {
    Nothing,
    /// Writes that are under way.
    Wait,
    /// Writes that should have been resolved by now.
    Due,
    /// These parts were abandoned.
    Bring(Vec<Job>),
    /// Nothing can be done for them: some part is lost.
    Lost,
}

type Table<'a> = MutexGuard<'a, BTreeMap<u64, Fill>>;

impl Fills {
    fn blocks(&self) -> Table<'_> {
        self.blocks.lock()
    }

    /// What is known of its lock.
    pub fn locks(&self, name: String) -> LockSnapshot {
        self.blocks.snapshot(name)
    }

    /// Rung whenever a part changes.
    pub fn bell(&self) -> &Bell {
        &self.changed
    }

    /// A block was given out, to be filled by writes to these parts.
    pub fn open(&self, data: u64, of: (Arc<Device>, u64), parts: Vec<Part>, content: Content) {
        let (device, virtual_block) = of;
        let parts = parts.into_iter().map(|part| (part, State::Promised)).collect();
        let mut blocks = self.blocks();
        blocks.insert(data, Fill { device, virtual_block, parts, content });
        self.count.store(blocks.len(), Ordering::Release);
    }

    /// Whoever fills a page of the map holds this while it does, and learns what is being filled.
    pub fn hold(&self) -> FillsHeld<'_> {
        FillsHeld(self.blocks())
    }

    /// A write of `part` is resolved to this block. True: it is one of those that fill it. Otherwise it has to wait, if only to look
    /// again where it goes: the block may have been filled, or taken away, since it has looked.
    pub fn meet(&self, data: u64, part: Part) -> bool {
        let mut blocks = self.blocks();
        // One of two that are the same waits for the other.
        let is_own = |(own, state): &&mut (Part, State)| *own == part && *state == State::Due;
        let own = blocks.get_mut(&data).and_then(|fill| fill.parts.iter_mut().find(is_own));
        own.map(|(_, state)| *state = State::UnderWay).is_some()
    }

    fn set(&self, data: u64, part: Part, from: &[State], to: State) {
        let mut blocks = self.blocks();
        if let Some(fill) = blocks.get_mut(&data) {
            for (own, state) in &mut fill.parts {
                if *own == part && from.contains(state) {
                    *state = to;
                }
            }
        }
        drop(blocks);
        self.changed.ring();
    }

    /// The write of a part has heard that it may go.
    pub fn due(&self, data: u64, part: Part) {
        self.set(data, part, &[State::Promised], State::Due);
    }

    /// The write of a part has failed, or waits for something else.
    pub fn abandon(&self, data: u64, part: Part) {
        self.set(data, part, &[State::Promised, State::Due, State::UnderWay], State::Abandoned);
    }

    /// What a block was given to, if none of its writes has come, or may come yet.
    pub fn untouched(&self, data: u64) -> Option<Given> {
        let blocks = self.blocks();
        let fill = blocks.get(&data)?;
        let is_untouched = fill.parts.iter().all(|(_, state)| *state == State::Abandoned);
        is_untouched.then(|| Given {
            device: fill.device.clone(),
            block: fill.virtual_block,
            before: fill.content.mapping(),
        })
    }

    /// What was abandoned of a block cannot be written.
    pub fn lose(&self, data: u64) {
        if let Some(fill) = self.blocks().get_mut(&data) {
            let abandoned = fill.parts.iter_mut().filter(|(_, state)| *state == State::Abandoned);
            abandoned.for_each(|(_, state)| *state = State::Lost);
        }
        self.changed.ring();
    }

    /// A part has its content. With the last one, readers may come.
    pub fn filled(&self, data: u64, part: Part, cache: &MapCache) {
        let mut blocks = self.blocks();
        let Some(fill) = blocks.get_mut(&data) else { return };
        let is_meant =
            |own: &(Part, State)| own.0 == part && matches!(own.1, State::UnderWay | State::Abandoned);
        if let Some((_, state)) = fill.parts.iter_mut().find(|own| is_meant(own)) {
            *state = State::Filled;
        }
        if fill.parts.iter().all(|(_, state)| *state == State::Filled) {
            let filling = Mapped { block: data, is_shared: false, is_filling: true };
            let filled = Mapped { is_filling: false, ..filling };
            let (page, at) = (fill.virtual_block / PAGE_ENTRIES, fill.virtual_block % PAGE_ENTRIES);
            cache.replace(Key::new(fill.device.slot, 0, page), at, filling.entry(), filled.entry());
            blocks.remove(&data);
            self.count.store(blocks.len(), Ordering::Release);
        }
        drop(blocks);
        self.changed.ring();
    }

    /// Blocks of a device that are unmapped: nobody waits for them any more.
    pub fn forget(&self, device: &Device, virtual_blocks: &std::ops::Range<u64>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut blocks = self.blocks();
        blocks.retain(|_, fill| fill.device.id != device.id || !virtual_blocks.contains(&fill.virtual_block));
        self.count.store(blocks.len(), Ordering::Release);
        drop(blocks);
        self.changed.ring();
    }

    /// What is left to do for all blocks, or for those of a device in a range.
    pub fn left(&self, of: Option<(&Device, &std::ops::Range<u64>)>) -> Left {
        if self.count.load(Ordering::Acquire) == 0 {
            return Left::Nothing;
        }
        let blocks = self.blocks();
        let is_meant = |fill: &Fill| {
            of.is_none_or(|(device, range)| {
                fill.device.id == device.id && range.contains(&fill.virtual_block)
            })
        };
        let (mut jobs, mut is_due, mut is_open, mut is_lost) = (Vec::new(), false, false, false);
        for (data, fill) in blocks.iter().filter(|(_, fill)| is_meant(fill)) {
            let has = |wanted: State| fill.parts.iter().any(|(_, state)| *state == wanted);
            is_open |= has(State::Promised) || has(State::UnderWay);
            is_due |= has(State::Due);
            is_lost |= has(State::Lost);
            let abandoned = fill.parts.iter().filter(|(_, state)| *state == State::Abandoned);
            jobs.extend(abandoned.map(|(part, _)| Job {
                data: *data,
                part: *part,
                content: fill.content.clone(),
            }));
        }
        match () {
            () if !jobs.is_empty() => Left::Bring(jobs),
            () if is_due => Left::Due,
            () if is_open => Left::Wait,
            () if is_lost => Left::Lost,
            () => Left::Nothing,
        }
    }

    /// The parts that are due now.
    pub fn all_due(&self) -> Vec<(u64, Part)> {
        let blocks = self.blocks();
        let parts = blocks
            .iter()
            .flat_map(|(data, fill)| fill.parts.iter().map(|(part, state)| (*data, *part, *state)));
        parts.filter(|(_, _, state)| *state == State::Due).map(|(data, part, _)| (data, part)).collect()
    }

    /// These were due before a quiescence: whoever should have been resolved will not be.
    pub fn overdue(&self, parts: &[(u64, Part)]) {
        parts.iter().for_each(|(data, part)| self.set(*data, *part, &[State::Due], State::Abandoned));
    }
}

/// The table, held.
pub(super) struct FillsHeld<'a>(Table<'a>);

impl FillsHeld<'_> {
    pub fn has(&self, data: u64) -> bool {
        self.0.contains_key(&data)
    }
}

/// Sees to a part of a block while the bio that fills it is under way.
#[derive(Debug)]
pub(super) struct Filling {
    pool: Arc<Pool>,
    data: u64,
    part: Part,
}

impl Filling {
    /// For a part whose write has met its block.
    pub fn new(pool: &Arc<Pool>, data: u64, part: Part) -> Filling {
        Filling { pool: pool.clone(), data, part }
    }
}

impl Watch for Filling {
    fn done(&self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.pool.fills.filled(self.data, self.part, &self.pool.cache),
            Err(_) => self.pool.fills.abandon(self.data, self.part),
        }
    }
}

impl Drop for Filling {
    /// Without word that it is done, the bio has to wait for something else first.
    fn drop(&mut self) {
        self.pool.fills.abandon(self.data, self.part);
    }
}
