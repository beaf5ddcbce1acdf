//! What is said of pools and their volumes, in the words of `dmsetup status`.

use std::fmt;

use blockwork_engine::TaskContext;
use blockwork_format::thin::Node;
use blockwork_format::thin::edit::{Blocks, EditError, Editor};
use blockwork_format::thin::tree::Place;

use super::config::Discards;
use super::mode::Mode;
use super::pool::Pool;
use super::verbs::VerbError;

/// Free metadata blocks at which Linux tells that few are left: 4 MiB, or a quarter.
const METADATA_LOW_WATER: u64 = 1024;

/// How a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// The number that LVM counts its changes with.
    pub transaction_id: u64,
    /// Metadata blocks that are in use, with those that are held back, of all.
    pub metadata_used: u64,
    /// Metadata blocks.
    pub metadata_blocks: u64,
    /// Data blocks that are in use.
    pub data_used: u64,
    /// Data blocks.
    pub data_blocks: u64,
    /// Sectors of a data block.
    pub block_sectors: u64,
    /// The block of the metadata snapshot; 0: none.
    pub held_root: u64,
    /// What it can do.
    pub mode: Mode,
    /// Why its metadata is not changed, if so.
    pub why_read_only: Option<String>,
    /// What becomes of discards.
    pub discards: Discards,
    /// Writes that need space do not wait for it.
    pub error_if_no_space: bool,
    /// It has to be checked before it is changed again.
    pub needs_check: bool,
    /// Free metadata blocks at which it is told that few are left.
    pub metadata_low_water: u64,
}

impl fmt::Display for PoolStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transaction_id, metadata_used, metadata_blocks, data_used, data_blocks, .. } = self;
        write!(f, "{transaction_id} {metadata_used}/{metadata_blocks} {data_used}/{data_blocks} ")?;
        if self.held_root == 0 { write!(f, "-") } else { write!(f, "{}", self.held_root) }?;
        let mode = match self.mode {
            Mode::Write => "rw",
            Mode::OutOfDataSpace => "out_of_data_space",
            Mode::OutOfMetadataSpace | Mode::ReadOnly => "ro",
        };
        let discards = match self.discards {
            Discards::Ignore => "ignore_discard",
            Discards::NoPassdown => "no_discard_passdown",
            Discards::Passdown => "discard_passdown",
        };
        let space = if self.error_if_no_space { "error_if_no_space" } else { "queue_if_no_space" };
        let check = if self.needs_check { "needs_check" } else { "-" };
        write!(f, " {mode} {discards} {space} {check} {}", self.metadata_low_water)
    }
}

/// How a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinStatus {
    /// Sectors that are mapped.
    pub mapped_sectors: u64,
    /// The last sector that is mapped; none: nothing is.
    pub highest_sector: Option<u64>,
}

impl fmt::Display for ThinStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.highest_sector {
            Some(highest) => write!(f, "{} {highest}", self.mapped_sectors),
            None => write!(f, "{} -", self.mapped_sectors),
        }
    }
}

impl Pool {
    /// How it is now.
    pub fn status(&self) -> PoolStatus {
        let (mode, why_read_only, needs_check) = {
            let books = self.books();
            (self.mode(), books.why_read_only.clone(), books.needs_check)
        };
        let editor = self.editor();
        let superblock = editor.superblock();
        let metadata_blocks = editor.metadata_blocks();
        PoolStatus {
            transaction_id: superblock.transaction_id,
            metadata_used: metadata_blocks - editor.free_metadata(),
            metadata_blocks,
            data_used: editor.data_blocks() - editor.free_data(),
            data_blocks: editor.data_blocks(),
            block_sectors: self.block.get(),
            held_root: superblock.held_root,
            mode,
            why_read_only,
            discards: self.features.discards,
            error_if_no_space: self.features.error_if_no_space || self.mode.has_timed_out(),
            needs_check: needs_check || superblock.needs_check,
            metadata_low_water: METADATA_LOW_WATER.min(metadata_blocks / 4),
        }
    }

    /// How a volume of it is.
    ///
    /// # Errors
    ///
    /// There is no such device; the metadata cannot be read, or is damaged.
    pub async fn thin_status(&self, cx: &TaskContext, id: u64) -> Result<ThinStatus, VerbError> {
        let found =
            self.edit(cx, |editor, blocks| Ok((editor.details(blocks, id)?, highest(editor, blocks, id)?)));
        let (details, highest) = found.await?;
        let size = self.block.get();
        Ok(ThinStatus {
            // Both are what the metadata says, which may be anything.
            mapped_sectors: details.mapped_blocks.saturating_mul(size),
            highest_sector: highest.map(|block| block.saturating_add(1).saturating_mul(size) - 1),
        })
    }
}

/// The last block that a device maps.
fn highest(editor: &mut Editor, blocks: &dyn Blocks, id: u64) -> Result<Option<u64>, EditError> {
    let mut place = Place::root(editor.root(blocks, id)?);
    loop {
        let node = match editor.node(place.nr) {
            Some(node) => node.clone(),
            None => Node::decode(place.nr, &*blocks.get(place.nr).ok_or(EditError::Missing(place.nr))?)?,
        };
        place.check(&node, editor.metadata_blocks())?;
        match &node {
            Node::Internal(children) => place = place.child(children, children.keys.len() - 1),
            Node::Leaf(leaf) => return Ok(leaf.keys.last().copied()),
        }
    }
}
