//! Changing the metadata of a pool: transactions in memory, without any I/O.
//!
//! An [`Editor`] starts from a committed superblock. Each operation reads blocks of the committed state through [`Blocks`] and changes
//! what the pool will be; [`Editor::commit`] gives the blocks to write, and the superblock that makes them valid. The owner does the I/O:
//!
//! ```text
//!   operation ── Missing(nr) ──▶ read block nr, ask again
//!   commit ──▶ write the blocks ──▶ flush the data device and the metadata device ──▶ write the superblock, FUA ──▶ committed
//! ```
//!
//! Invariants:
//! 1. An operation takes place as a whole, or not at all; after any error all is as it was before.
//! 2. A block of the last committed state is never written to, nor given out before the commit that frees it is durable: neither
//!    metadata nor data. A data block that is mapped and freed in one transaction waits for its commit too, since writes may be on
//!    their way to it.
//! 3. After each operation there are as many free metadata blocks as its commit can need at most. Operations that use up space
//!    leave those alone that Linux holds back too ([`EditError::NoMetadata`]); those that give space back may use them.
//! 4. Nothing that was read is believed before it was checked: metadata that contradicts itself ends in an error, not in a loop.
//! 5. Data blocks that were given out ([`Editor::allocate`]) and are not mapped yet are known in memory only: a commit, and a power cut,
//!    leave nothing behind of them.
//!
//! What is in memory is what the transaction has changed ([`Editor::dirty_blocks`]; commit when it is large), and a bounded number
//! of nodes and bitmaps that were read.
//!
//! [`Editor::unmap`], [`Editor::delete_device`] and [`Editor::release_metadata_snap`] go leaf by leaf, each an operation of its own, and
//! a few of them a call, so that memory stays bounded and others get their turn. After each the metadata is whole: a commit between two
//! shows a device that has lost some of its blocks. Where a call lacks a block for a leaf that is not its first, it ends there: what
//! one leaf needs goes into memory whatever lies there, a few bitmaps of the data for each of its entries at worst, and what
//! several need together may be more than is kept there. Whoever would begin anew with all of them might never come to an end.

mod commit;
mod devices;
mod mappings;
mod pages;
mod remove;
mod space;
mod store;
mod tree;

pub use commit::Commit;
pub use mappings::{Mapped, Unmapped, VirtualRun};

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::FormatError;

use super::node::Node;
use super::superblock::Superblock;
use super::value::{BlockTime, DeviceDetails};
use super::{Block, DATA_BLOCKS_MAX, METADATA_BLOCKS_MAX};
use space::{Data, Metadata};
use store::Store;
use tree::Committed;

/// Blocks of the last committed state, as far as they are in memory.
pub trait Blocks {
    /// Metadata block `nr` as it was read, not checked yet. None: it is not in memory.
    fn get(&self, nr: u64) -> Option<Arc<Block>>;
}

impl Blocks for BTreeMap<u64, Arc<Block>> {
    fn get(&self, nr: u64) -> Option<Arc<Block>> {
        BTreeMap::get(self, &nr).cloned()
    }
}

/// Why an operation has not taken place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// A block that is needed is not in memory: read it, and ask again.
    #[error("metadata block {0} is not in memory")]
    Missing(u64),
    /// The metadata is damaged.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// No data block can be given out. Those that the transaction has freed can, after its commit.
    #[error("the pool has no free data blocks; extend it, or discard what is not needed")]
    NoData,
    /// Too few metadata blocks are left. Those that the transaction has freed come back with its commit.
    #[error("the pool has too few free metadata blocks; extend its metadata")]
    NoMetadata,
    /// There is no such device.
    #[error("the pool has no thin device {0}")]
    NoDevice(u64),
    /// There is one already.
    #[error("the pool has a thin device {0} already")]
    Exists(u64),
    /// A number that no device can have.
    #[error("{0} is no number of a thin device: they are below {max}", max = super::DEVICES_MAX)]
    DeviceNumber(u64),
    /// A range of blocks that there is not.
    #[error("blocks {first} to {end} are not among the {blocks} of the pool", end = first.saturating_add(length - 1))]
    Range {
        /// Its first block.
        first: u64,
        /// How many.
        length: u64,
        /// How many there are.
        blocks: u64,
    },
    /// The pool's transaction is another one than expected.
    #[error("the pool's transaction is {found}, expected {expected}")]
    Transaction {
        /// What it is.
        found: u64,
        /// What the caller takes it for.
        expected: u64,
    },
    /// There is a metadata snapshot already.
    #[error("the pool has a metadata snapshot already: release it first")]
    Held,
    /// There is no metadata snapshot.
    #[error("the pool has no metadata snapshot")]
    NotHeld,
    /// A device cannot become smaller than what the pool counts on it.
    #[error("the pool counts {now} blocks, and cannot count only {wanted}")]
    Smaller {
        /// How many it counts.
        now: u64,
        /// How many were asked for.
        wanted: u64,
    },
    /// The commit before is not durable yet.
    #[error("the pool's last commit is still being written")]
    Committing,
}

/// Most metadata blocks that are held back: 16 MiB, as Linux does.
const RESERVE_MAX: u64 = 4096;

/// Leaves that one call takes entries out of at most.
const LEAVES_MAX: usize = 8;

/// What an operation does to the free space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Uses {
    /// It uses some up: not what is held back.
    Space,
    /// It gives some back, or needs next to nothing.
    Little,
    /// It is the commit, for which there is room.
    Reserve,
}

/// What the pool will be.
#[derive(Debug)]
struct State {
    superblock: Superblock,
    kept: Superblock,
    metadata: Metadata,
    data: Data,
    /// Top level of the mapping tree: device → root.
    roots: Store<Node<u64>>,
    details: Store<Node<DeviceDetails>>,
    /// Bottom level: virtual block → data block.
    mappings: Store<Node<BlockTime>>,
    /// The metadata snapshot.
    held: Store<Superblock>,
}

impl State {
    fn new(superblock: Superblock) -> State {
        State {
            superblock,
            kept: superblock,
            metadata: Metadata::new(superblock.metadata_space_map),
            data: Data::new(superblock.data_space_map),
            roots: Store::default(),
            details: Store::default(),
            mappings: Store::default(),
            held: Store::default(),
        }
    }

    /// Keeps only so many of the nodes and of the bitmaps of each kind that are read.
    fn bound(&mut self, clean_max: usize) {
        self.metadata.low.pages.bound(clean_max);
        self.metadata.large.nodes.bound(clean_max);
        self.data.pages.bound(clean_max);
        self.data.index.bound(clean_max);
        self.data.large.nodes.bound(clean_max);
        self.roots.bound(clean_max);
        self.details.bound(clean_max);
        self.mappings.bound(clean_max);
        self.held.bound(clean_max);
    }

    fn from<'a>(&self, blocks: &'a dyn Blocks) -> Committed<'a> {
        Committed { blocks, limit: self.metadata.low.pages.tally.blocks }
    }

    fn keep(&mut self) {
        self.kept = self.superblock;
        self.metadata.low.pages.keep();
        self.metadata.large.keep();
        self.data.pages.keep();
        self.data.index.keep();
        self.data.large.keep();
        self.roots.keep();
        self.details.keep();
        self.mappings.keep();
        self.held.keep();
    }

    fn undo(&mut self) {
        self.superblock = self.kept;
        // These move with commits only.
        self.metadata.low.index_block = self.kept.metadata_space_map.bitmap_root;
        self.data.index_root = self.kept.data_space_map.bitmap_root;
        self.metadata.low.pages.undo();
        self.metadata.large.undo();
        self.data.pages.undo();
        self.data.index.undo();
        self.data.large.undo();
        self.roots.undo();
        self.details.undo();
        self.mappings.undo();
        self.held.undo();
    }

    /// How many metadata blocks the commit takes at most: bitmaps, their indexes, and nodes on the way to them.
    fn commit_needs(&self) -> u64 {
        let length = crate::bytes::length;
        let changed = length(self.data.pages.changed());
        let leaves = changed.min(self.data.pages.bitmaps() / 56 + 1);
        changed + leaves + 5 + self.metadata.low.pages.bitmaps() + 1
    }

    /// What Linux holds back.
    fn reserve(&self) -> u64 {
        RESERVE_MAX.min(self.metadata.low.pages.tally.blocks / 10)
    }

    fn check_room(&self, uses: Uses) -> Result<(), EditError> {
        let least = match uses {
            Uses::Space => self.commit_needs() + self.reserve(),
            Uses::Little => self.commit_needs(),
            Uses::Reserve => 0,
        };
        if self.metadata.usable() < least { Err(EditError::NoMetadata) } else { Ok(()) }
    }

    /// Nodes and bitmaps that have changed.
    fn changed(&self) -> usize {
        let nodes = self.roots.changed() + self.details.changed() + self.mappings.changed();
        let maps = self.metadata.low.pages.changed() + self.data.pages.changed();
        let counts = self.metadata.large.nodes.changed() + self.data.large.nodes.changed();
        nodes + maps + counts + self.data.index.changed() + self.held.changed()
    }
}

/// A pool's metadata under change.
#[derive(Debug)]
pub struct Editor {
    state: State,
    /// What the last commit that is durable has.
    durable: Superblock,
    /// What the last commit has, if that is still being written.
    sealed: Option<Superblock>,
    /// Data blocks that were given out and are not mapped yet: first → end.
    given: BTreeMap<u64, u64>,
    /// No data block can be given out until something becomes free.
    exhausted: bool,
    /// Nodes, and bitmaps, of each kind that are kept of those that were only read.
    clean_max: usize,
}

impl Editor {
    /// Begins where a superblock ends. The metadata device has so many blocks.
    ///
    /// # Errors
    ///
    /// The device is smaller than the metadata, or nobody may write the pool.
    pub fn new(superblock: Superblock, metadata_blocks: u64) -> Result<Editor, EditError> {
        let blocks = superblock.metadata_space_map.blocks;
        if blocks > metadata_blocks.min(METADATA_BLOCKS_MAX) || blocks == 0 {
            let expected = format!("1 to {metadata_blocks}, the blocks of the device");
            return Err(FormatError::invalid(
                "thin superblock",
                192,
                "blocks of the metadata",
                blocks,
                expected,
            )
            .into());
        }
        if superblock.compat_ro != 0 {
            let found = format!("{:#x}", superblock.compat_ro);
            let error = FormatError::limit(
                "thin superblock",
                356,
                "read-only features",
                found,
                "none, to be written",
            );
            return Err(error.into());
        }
        Ok(Editor {
            state: State::new(superblock),
            durable: superblock,
            sealed: None,
            given: BTreeMap::new(),
            exhausted: false,
            clean_max: store::CLEAN_MAX,
        })
    }

    /// The same with a bound of one's own for what is kept in memory of what was only read: nodes, and bitmaps, of each kind.
    #[must_use]
    pub fn keeping(mut self, clean_max: usize) -> Editor {
        self.clean_max = clean_max;
        self.state.bound(clean_max);
        self
    }

    /// Looks at something, which changes nothing: there is nothing to keep, and nothing to undo.
    fn look<T>(
        &mut self,
        blocks: &dyn Blocks,
        look: impl FnOnce(&mut State, Committed<'_>) -> Result<T, EditError>,
    ) -> Result<T, EditError> {
        let from = self.state.from(blocks);
        self.state.metadata.low.load(from)?;
        look(&mut self.state, from)
    }

    /// Does an operation, or nothing.
    fn operation<T>(
        &mut self,
        blocks: &dyn Blocks,
        uses: Uses,
        operation: impl FnOnce(&mut State, Committed<'_>) -> Result<T, EditError>,
    ) -> Result<T, EditError> {
        let from = self.state.from(blocks);
        self.state.metadata.low.load(from)?;
        let result = operation(&mut self.state, from).and_then(|value| {
            self.state.check_room(uses)?;
            Ok(value)
        });
        match result {
            Ok(_) => self.state.keep(),
            Err(_) => self.state.undo(),
        }
        result
    }

    /// Does an operation that takes one leaf after the other, as far as a call goes; whether it says that all is done.
    fn by_leaves(
        &mut self,
        blocks: &dyn Blocks,
        mut operation: impl FnMut(&mut State, Committed<'_>) -> Result<bool, EditError>,
    ) -> Result<bool, EditError> {
        for nth in 0..LEAVES_MAX {
            match self.operation(blocks, Uses::Little, &mut operation) {
                Ok(false) => {}
                // What was done before stays. Whoever asks again meets the error first.
                Err(_) if nth > 0 => break,
                ended => return ended,
            }
        }
        Ok(false)
    }

    /// Forgets all that is not durable: the pool is what the last commit has made it.
    pub fn abandon(&mut self) {
        self.state = State::new(self.durable);
        self.state.bound(self.clean_max);
        self.sealed = None;
        self.given.clear();
        self.exhausted = false;
    }

    /// What the superblock will be, but for the space maps, which are settled by the commit.
    pub fn superblock(&self) -> &Superblock {
        &self.state.superblock
    }

    /// The superblock of the last commit that is durable.
    pub fn durable(&self) -> &Superblock {
        &self.durable
    }

    /// Whether anything is not part of a commit yet.
    pub fn is_dirty(&self) -> bool {
        self.state.changed() > 0 || self.state.superblock != self.sealed.unwrap_or(self.durable)
    }

    /// Whether everything is part of a commit that is durable.
    pub fn is_durable(&self) -> bool {
        !self.is_dirty() && self.sealed.is_none()
    }

    /// Blocks of 4 KiB that the transaction has changed: what its commit writes, roughly, and what is in memory of it.
    pub fn dirty_blocks(&self) -> usize {
        self.state.changed()
    }

    /// Blocks of the data device that the pool counts.
    pub fn data_blocks(&self) -> u64 {
        self.state.data.pages.tally.blocks
    }

    /// Blocks of the metadata device that the pool counts.
    pub fn metadata_blocks(&self) -> u64 {
        self.state.metadata.low.pages.tally.blocks
    }

    /// Data blocks that are not in use. Some may be given out only after the next commit.
    pub fn free_data(&self) -> u64 {
        let tally = self.state.data.pages.tally;
        tally.blocks.saturating_sub(tally.used)
    }

    /// Metadata blocks that are not in use, less those that are held back: as Linux's status has it.
    pub fn free_metadata(&self) -> u64 {
        let tally = self.state.metadata.low.pages.tally;
        tally.blocks.saturating_sub(tally.used).saturating_sub(self.state.reserve())
    }

    /// Changes the number that the pool's owner counts its changes with.
    ///
    /// # Errors
    ///
    /// It is not `current`.
    pub fn set_transaction_id(&mut self, current: u64, new: u64) -> Result<(), EditError> {
        let found = self.state.superblock.transaction_id;
        if found != current {
            return Err(EditError::Transaction { found, expected: current });
        }
        self.state.superblock.transaction_id = new;
        self.state.kept = self.state.superblock;
        Ok(())
    }

    /// Says whether the pool must be checked before it is changed again.
    pub fn set_needs_check(&mut self, needs_check: bool) {
        self.state.superblock.needs_check = needs_check;
        self.state.kept = self.state.superblock;
    }

    /// Counts so many data blocks from now on: the device has grown. 16,320 more of them take a block of memory until the commit,
    /// so a device that grew by many TiB is better counted in steps.
    ///
    /// # Errors
    ///
    /// It counts more already; too few metadata blocks; as for all operations.
    pub fn grow_data(&mut self, blocks: &dyn Blocks, wanted: u64) -> Result<(), EditError> {
        let now = self.data_blocks();
        if wanted < now {
            return Err(EditError::Smaller { now, wanted });
        }
        let bitmaps = (wanted - now) / super::BITMAP_ENTRIES;
        if wanted > DATA_BLOCKS_MAX {
            let expected = format!("at most {DATA_BLOCKS_MAX}");
            return Err(FormatError::limit("thin superblock", 64, "blocks of data", wanted, expected).into());
        }
        if bitmaps > self.state.metadata.usable() {
            return Err(EditError::NoMetadata);
        }
        self.operation(blocks, Uses::Space, |state, from| state.data.grow(from, wanted))?;
        self.exhausted = false;
        Ok(())
    }

    /// Counts so many metadata blocks from now on, [`METADATA_BLOCKS_MAX`] at most: the device has grown.
    ///
    /// # Errors
    ///
    /// It counts more already; as for all operations.
    pub fn grow_metadata(&mut self, blocks: &dyn Blocks, wanted: u64) -> Result<(), EditError> {
        let now = self.metadata_blocks();
        if wanted.min(METADATA_BLOCKS_MAX) < now {
            return Err(EditError::Smaller { now, wanted });
        }
        self.operation(blocks, Uses::Little, |state, from| {
            state.superblock.metadata_blocks = wanted;
            state.metadata.grow(from, wanted)
        })
    }
}
