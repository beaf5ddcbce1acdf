//! Changes of a pool that nobody uses: made in memory, then written in the order that a power cut cannot break.
//!
//! They are one transaction, unless that would have more in memory, or need more free blocks of metadata, than there may be: a volume of
//! many blocks that goes is taken away by the steps, and with the commits between them, that a pool takes which is served. After each of
//! these the metadata is whole, and the volume still there, with fewer blocks; whoever takes it away then goes on with that.
//!
//! A pool whose metadata begins with a block of zeros was never used: it is made first, as Linux does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use blockwork_engine::{Errno, Layer, Sectors, TaskContext};
use blockwork_format::thin::build::{Contents, build};
use blockwork_format::thin::edit::{Blocks, Commit, EditError, Editor};
use blockwork_format::thin::{BITMAP_ENTRIES, BLOCK_BYTES, Block, Superblock, metadata_blocks, read_block};
use blockwork_format::{FormatError, Piece, escape};
use blockwork_layer::thin::{DIRTY_MAX, MetadataBlocks};

use crate::assembly::Assembly;
use crate::steps::{Step, StepError, Target, Write, carry_out, close, settle};

/// Blocks that are kept in memory of those that were read, and written.
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

/// Why a change of a pool has not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum PoolCommitError {
    /// A write or flush failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A block could not be read.
    #[error("{name}: the pool's metadata could not be read at byte {offset}: {errno}; {UNFINISHED}")]
    Read {
        /// Which pool.
        name: String,
        /// Where on its metadata device.
        offset: u64,
        /// Why.
        errno: Errno,
    },
    /// What comes later is damaged, or has no room.
    #[error("{name}: {error}; {UNFINISHED}")]
    Edit {
        /// Which pool.
        name: String,
        /// Why.
        error: EditError,
    },
    /// All is written, and an array below cannot record that it is in order.
    #[error(
        "{name}: the pool has the change; an array below could not record that it is in order ({errno}): it is checked when it is \
         opened next"
    )]
    Close {
        /// Which pool.
        name: String,
        /// Why.
        errno: Errno,
    },
}

/// Where that leaves a pool.
const UNFINISHED: &str = "the change is made in part, and the pool's metadata is whole";

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

    /// Whether it is made block by block, and gives blocks back.
    fn gives_back(self) -> bool {
        matches!(self, PoolChange::Delete { .. } | PoolChange::ReleaseMetadataSnap)
    }
}

/// A pool that is being changed in memory.
#[derive(Debug)]
pub(crate) struct PoolEditor {
    name: String,
    metadata: Arc<dyn Layer>,
    /// Blocks of the devices.
    data_blocks: u64,
    metadata_blocks: u64,
    editor: Editor,
    blocks: MetadataBlocks,
    /// What makes it a pool, where it was none.
    new: Vec<Piece>,
    /// What is left to do when this transaction is committed.
    later: VecDeque<PoolChange>,
}

/// What there is to write. It can go to another thread.
#[derive(Debug)]
pub struct PoolCommit {
    steps: Vec<Step>,
    /// What the steps end with; none: all that is written was there already.
    commit: Option<Commit>,
    pool: Box<PoolEditor>,
}

impl PoolCommit {
    /// Writes it all, and leaves arrays below in order.
    ///
    /// # Errors
    ///
    /// As of `write`, and those of the arrays.
    pub async fn run(self, cx: &TaskContext) -> Result<(), PoolCommitError> {
        let (name, layer) = (escape(&self.pool.name), self.pool.metadata.clone());
        self.write(cx).await?;
        close(vec![layer], cx).await.map_err(|errno| PoolCommitError::Close { name, errno })
    }

    /// Writes it all, by a worker that serves what lies on the same disks.
    ///
    /// # Errors
    ///
    /// The first write or flush that fails: the pool is as it was before, or has the change, or a part of it if that is one of many blocks.
    /// What of such a change cannot be read, or is damaged.
    pub async fn write(self, cx: &TaskContext) -> Result<(), PoolCommitError> {
        let PoolCommit { mut steps, mut commit, mut pool } = self;
        let target = [Target { name: pool.name.clone(), layer: pool.metadata.clone() }];
        settle(&steps, &target, cx).await?;
        loop {
            carry_out(steps, &target, cx).await?;
            if let Some(commit) = commit {
                pool.is_committed(commit);
            }
            if pool.later.is_empty() {
                return Ok(());
            }
            pool.go_on(cx).await?;
            let next = pool.edit(cx, |editor, blocks| editor.commit(blocks)).await?;
            let next = next.map_err(|error| pool.refused(error))?;
            steps = steps_of(&next).into();
            commit = Some(next);
        }
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
        // What was made a moment ago is on no disk yet.
        let blocks = MetadataBlocks::new(if new.is_empty() { KEPT_MAX } else { usize::MAX });
        blocks.wrote(new.iter().map(block_of));
        let superblock = match (found, new.last()) {
            (Some(superblock), _) => superblock,
            (None, made) => Superblock::decode_at(0, &block_of(made.expect("a superblock at the end")).1)?,
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
            later: VecDeque::new(),
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

    /// Makes a change, or what of it this transaction takes: the rest is made while it is written.
    ///
    /// # Errors
    ///
    /// It cannot be made: nothing has changed then, but that a volume which was to go may have lost blocks.
    pub(crate) fn change(
        &mut self,
        assembly: &mut Assembly,
        change: PoolChange,
    ) -> Result<(), PoolEditError> {
        let devices = self.devices();
        while self.later.is_empty() {
            let made = self.edit_now(assembly, |editor, blocks| make(editor, blocks, change, devices))?;
            match made {
                made if self.is_full(change, &made) => break,
                Ok(false) => {}
                made => return Ok(made.map(drop)?),
            }
        }
        self.later.push_back(change);
        Ok(())
    }

    /// Blocks of its devices, of data and of metadata.
    fn devices(&self) -> (u64, u64) {
        (self.data_blocks, self.metadata_blocks)
    }

    /// Whether the transaction has to be committed before a change goes on, of which this has come.
    fn is_full(&self, change: PoolChange, made: &Result<bool, EditError>) -> bool {
        match made {
            Ok(is_done) => !is_done && self.editor.dirty_blocks() > DIRTY_MAX,
            // What it has given back can be used then.
            Err(EditError::NoMetadata) => change.gives_back() && self.editor.is_dirty(),
            Err(_) => false,
        }
    }

    /// Makes more of what is left, as much as a transaction takes.
    async fn go_on(&mut self, cx: &TaskContext) -> Result<(), PoolCommitError> {
        let devices = self.devices();
        while let Some(change) = self.later.front().copied() {
            let made = self.edit(cx, |editor, blocks| make(editor, blocks, change, devices)).await?;
            match made {
                made if self.is_full(change, &made) => return Ok(()),
                Ok(false) => continue,
                Err(error) if !change.is_made(&error) => return Err(self.refused(error)),
                _ => self.later.pop_front(),
            };
        }
        Ok(())
    }

    fn refused(&self, error: EditError) -> PoolCommitError {
        PoolCommitError::Edit { name: escape(&self.name), error }
    }

    /// A transaction is on the disk.
    fn is_committed(&mut self, commit: Commit) {
        self.blocks.wrote(commit.writes.into_iter());
        self.editor.committed();
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
        let mut commit = None;
        if self.editor.is_dirty() {
            let made = self.edit_now(assembly, |editor, blocks| editor.commit(blocks))??;
            steps.extend(steps_of(&made));
            commit = Some(made);
        }
        Ok(PoolCommit { steps, commit, pool: Box::new(self) })
    }

    /// Does something with the editor, as often as it takes to have all the blocks that it needs.
    fn edit_now<T>(
        &mut self,
        assembly: &mut Assembly,
        mut act: impl FnMut(&mut Editor, &dyn Blocks) -> Result<T, EditError>,
    ) -> Result<Result<T, EditError>, PoolEditError> {
        loop {
            let nr = match act(&mut self.editor, &self.blocks) {
                Err(EditError::Missing(nr)) => nr,
                other => return Ok(other),
            };
            assembly.read(&*self.metadata, |source| self.blocks.read_now(source, nr))?;
        }
    }

    /// As `edit_now`, by a task of a worker.
    async fn edit<T>(
        &mut self,
        cx: &TaskContext,
        mut act: impl FnMut(&mut Editor, &dyn Blocks) -> Result<T, EditError>,
    ) -> Result<Result<T, EditError>, PoolCommitError> {
        loop {
            let nr = match act(&mut self.editor, &self.blocks) {
                Err(EditError::Missing(nr)) => nr,
                other => return Ok(other),
            };
            self.blocks.read(cx, &self.metadata, nr).await.map_err(|errno| PoolCommitError::Read {
                name: escape(&self.name),
                offset: nr * BLOCK_BYTES as u64,
                errno,
            })?;
        }
    }
}

/// Makes a change as far as a call goes; whether that is all of it.
fn make(
    editor: &mut Editor,
    blocks: &dyn Blocks,
    change: PoolChange,
    (data, metadata): (u64, u64),
) -> Result<bool, EditError> {
    let done = |(): ()| true;
    match change {
        PoolChange::Create { device } => editor.create_device(blocks, device).map(done),
        PoolChange::Snapshot { device, origin } => editor.create_snapshot(blocks, device, origin).map(done),
        PoolChange::Delete { device } => editor.delete_device(blocks, device),
        PoolChange::TransactionId { current, new } => editor.set_transaction_id(current, new).map(done),
        PoolChange::Grow => grow(editor, blocks, data, metadata),
        PoolChange::ReserveMetadataSnap => editor.reserve_metadata_snap(blocks).map(done),
        PoolChange::ReleaseMetadataSnap => editor.release_metadata_snap(blocks),
    }
}

/// A transaction as it is written.
fn steps_of(commit: &Commit) -> [Step; 2] {
    let blocks = commit.writes.iter().map(|(nr, block)| piece(*nr, block));
    let superblock = vec![piece(0, &commit.superblock)];
    [step("the pool's metadata", blocks.collect()), step("the pool's superblock", superblock)]
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
