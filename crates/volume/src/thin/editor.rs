//! Changes of a pool that nobody uses: made in memory, then written in the order that a power cut cannot break.
//!
//! A pool whose metadata begins with a block of zeros was never used: it is made first, as Linux does.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockwork_engine::{Layer, Sectors, TaskContext};
use blockwork_format::thin::build::{Contents, build};
use blockwork_format::thin::edit::{Blocks, EditError, Editor};
use blockwork_format::thin::{BITMAP_ENTRIES, BLOCK_BYTES, Block, Superblock, metadata_blocks, read_block};
use blockwork_format::{FormatError, Piece};

use crate::assembly::Assembly;
use crate::steps::{Step, StepError, Target, Write, carry_out};

/// Blocks that are kept in memory between two changes.
const KEPT_MAX: usize = 4096;

/// Data blocks that are counted in one step, as their bitmaps are in memory: 64 MiB of them.
const GROWTH_MAX: u64 = 16_384 * BITMAP_ENTRIES;

/// Why a pool is not changed. Nothing has been written.
#[derive(Debug, thiserror::Error)]
pub enum PoolEditError {
    /// Its metadata cannot be read, or cannot be changed like that.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// Linux wants it to be checked first.
    #[error(
        "Linux met an error in its metadata and set the flag needs_check: `lvconvert --repair`, or `thin_check` with \
         `--clear-needs-check-flag`, comes first"
    )]
    NeedsCheck,
}

impl From<FormatError> for PoolEditError {
    fn from(error: FormatError) -> PoolEditError {
        PoolEditError::Edit(error.into())
    }
}

/// A change of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolChange {
    /// A new volume.
    Create {
        /// Its number.
        device: u64,
    },
    /// A snapshot.
    Snapshot {
        /// Its number.
        device: u64,
        /// Of what.
        origin: u64,
    },
    /// A volume that goes.
    Delete {
        /// Its number.
        device: u64,
    },
    /// The number that its owner counts its changes with.
    TransactionId {
        /// What it is.
        current: u64,
        /// What it becomes.
        new: u64,
    },
    /// All of its devices is counted: they have grown.
    Grow,
    /// The metadata is kept as it is now, for others to read.
    ReserveMetadataSnap,
    /// It is not kept any more.
    ReleaseMetadataSnap,
}

impl PoolChange {
    /// Whether it was refused because it is made already: of what LVM tells a pool, a part may have come before a power cut.
    pub(crate) fn is_made(&self, error: &EditError) -> bool {
        match self {
            PoolChange::Create { .. } | PoolChange::Snapshot { .. } => matches!(error, EditError::Exists(_)),
            PoolChange::Delete { .. } => matches!(error, EditError::NoDevice(_)),
            _ => false,
        }
    }
}

/// A pool that is being changed in memory.
pub(crate) struct PoolEditor {
    name: String,
    metadata: Arc<dyn Layer>,
    /// Blocks of the devices.
    data_blocks: u64,
    metadata_blocks: u64,
    editor: Editor,
    blocks: BTreeMap<u64, Arc<Block>>,
    /// What makes it a pool, where it was none.
    new: Vec<Piece>,
}

/// What there is to write. It can go to another thread.
#[derive(Debug, Clone)]
pub struct PoolCommit {
    target: Target,
    steps: Vec<Step>,
}

impl PoolCommit {
    /// Writes it all.
    ///
    /// # Errors
    ///
    /// The first write or flush that fails: the pool is as it was before, or has the change.
    pub async fn run(self, cx: &TaskContext) -> Result<(), StepError> {
        carry_out(self.steps, &[self.target], cx).await
    }
}

impl PoolEditor {
    /// Begins with what is on the metadata device of a pool of so much data, in blocks of that size.
    ///
    /// # Errors
    ///
    /// It cannot be read, is damaged, or has to be checked first.
    pub(crate) fn open(
        assembly: &mut Assembly,
        name: &str,
        metadata: Arc<dyn Layer>,
        data: Sectors,
        block_sectors: u32,
    ) -> Result<PoolEditor, PoolEditError> {
        let room = metadata_blocks(metadata.sectors().bytes());
        let found = assembly.read(&*metadata, |source| Superblock::decode(&*read_block(source, 0)?))?;
        let new = match found {
            Some(_) => Vec::new(),
            None => build(&empty(data, block_sectors, room))?,
        };
        let blocks: BTreeMap<u64, Arc<Block>> = new.iter().map(block_of).collect();
        let superblock = match found {
            Some(superblock) => superblock,
            None => Superblock::decode_at(0, &blocks[&0])?,
        };
        if superblock.needs_check {
            return Err(PoolEditError::NeedsCheck);
        }
        let editor = Editor::new(superblock, room)?;
        let data_blocks = data.0 / u64::from(superblock.data_block_sectors);
        Ok(PoolEditor {
            name: name.to_owned(),
            metadata,
            data_blocks,
            metadata_blocks: room,
            editor,
            blocks,
            new,
        })
    }

    /// Whether it was never used before.
    pub(crate) fn is_new(&self) -> bool {
        !self.new.is_empty()
    }

    /// The number that its owner counts its changes with.
    pub(crate) fn transaction_id(&self) -> u64 {
        self.editor.superblock().transaction_id
    }

    /// Makes a change.
    ///
    /// # Errors
    ///
    /// It cannot be made: nothing has changed then, but that a volume which was to go may have lost blocks.
    pub(crate) fn change(
        &mut self,
        assembly: &mut Assembly,
        change: PoolChange,
    ) -> Result<(), PoolEditError> {
        let done = |(): ()| true;
        let (data, metadata) = (self.data_blocks, self.metadata_blocks);
        loop {
            let is_done = self.with_blocks(assembly, |editor, blocks| match change {
                PoolChange::Create { device } => editor.create_device(blocks, device).map(done),
                PoolChange::Snapshot { device, origin } => {
                    editor.create_snapshot(blocks, device, origin).map(done)
                }
                PoolChange::Delete { device } => editor.delete_device(blocks, device),
                PoolChange::TransactionId { current, new } => {
                    editor.set_transaction_id(current, new).map(done)
                }
                PoolChange::Grow => grow(editor, blocks, data, metadata),
                PoolChange::ReserveMetadataSnap => editor.reserve_metadata_snap(blocks).map(done),
                PoolChange::ReleaseMetadataSnap => editor.release_metadata_snap(blocks),
            })?;
            // What was made a moment ago is on no disk yet.
            if self.blocks.len() > KEPT_MAX && self.new.is_empty() {
                self.blocks.clear();
            }
            if is_done {
                return Ok(());
            }
        }
    }

    /// What there is to write.
    ///
    /// # Errors
    ///
    /// Blocks that cannot be read, or are damaged.
    pub(crate) fn plan(mut self, assembly: &mut Assembly) -> Result<PoolCommit, PoolEditError> {
        let mut steps = Vec::new();
        if let Some((superblock, blocks)) = self.new.split_last() {
            steps.push(step("the metadata of a new pool", blocks.to_vec()));
            steps.push(step("the superblock of a new pool", vec![superblock.clone()]));
        }
        if self.editor.is_dirty() {
            let commit = self.with_blocks(assembly, |editor, blocks| editor.commit(blocks))?;
            let blocks = commit.writes.iter().map(|(nr, block)| piece(*nr, block));
            steps.push(step("the pool's metadata", blocks.collect()));
            steps.push(step("the pool's superblock", vec![piece(0, &commit.superblock)]));
        }
        Ok(PoolCommit { target: Target { name: self.name, layer: self.metadata }, steps })
    }

    /// Does something with the editor, as often as it takes to have all the blocks that it needs.
    fn with_blocks<T>(
        &mut self,
        assembly: &mut Assembly,
        mut act: impl FnMut(&mut Editor, &dyn Blocks) -> Result<T, EditError>,
    ) -> Result<T, PoolEditError> {
        loop {
            let nr = match act(&mut self.editor, &self.blocks) {
                Err(EditError::Missing(nr)) => nr,
                other => return Ok(other?),
            };
            let block = assembly.read(&*self.metadata, |source| read_block(source, nr))?;
            self.blocks.insert(nr, block.into());
        }
    }
}

/// Counts more of the devices, the metadata first, which has to have room for what is counted of the data; whether that is all.
fn grow(editor: &mut Editor, blocks: &dyn Blocks, data: u64, metadata: u64) -> Result<bool, EditError> {
    if editor.metadata_blocks() < metadata {
        editor.grow_metadata(blocks, metadata)?;
        return Ok(false);
    }
    let now = editor.data_blocks();
    let next = data.min(now.saturating_add(GROWTH_MAX));
    if next > now {
        editor.grow_data(blocks, next)?;
    }
    Ok(next >= data)
}

/// A pool without volumes.
fn empty(data: Sectors, block_sectors: u32, metadata_blocks: u64) -> Contents {
    Contents {
        data_block_sectors: block_sectors,
        data_blocks: data.0 / u64::from(block_sectors),
        metadata_blocks,
        time: 0,
        transaction_id: 0,
        devices: BTreeMap::new(),
    }
}

fn block_of(piece: &Piece) -> (u64, Arc<Block>) {
    let block: Block = piece.bytes[..].try_into().expect("a piece of metadata is a block");
    (piece.offset / BLOCK_BYTES as u64, Arc::new(block))
}

fn piece(nr: u64, block: &Block) -> Piece {
    Piece { offset: nr * BLOCK_BYTES as u64, bytes: block.to_vec() }
}

fn step(what: &'static str, pieces: Vec<Piece>) -> Step {
    Step { what, writes: pieces.into_iter().map(|piece| Write { device: 0, piece }).collect() }
}
