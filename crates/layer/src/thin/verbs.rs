//! What can be told a pool while it is served: the messages of dm's `thin-pool`, and that its devices have grown.
//!
//! Each takes the pool's turn, does its work in the trees, and is committed when it returns, as in the kernel. What lasts (deleting a
//! large device) gives the turn away between two steps. A verb that fails has changed nothing, or says so in the log.

use std::sync::Arc;

use blockwork_engine::{Errno, Layer, TaskContext};
use blockwork_format::thin::DeviceDetails;
use blockwork_format::thin::edit::{Blocks, EditError, Editor};
use blockwork_format::thin::metadata_blocks;

use super::config::PoolError;
use super::mode::Mode;
use super::pool::{Pool, Refused};
use super::provision::{DIRTY_MAX, yield_once};

/// Bitmaps of data blocks that one step of growing adds at most.
const GROWTH_MAX: u64 = 1024 * blockwork_format::thin::BITMAP_ENTRIES;

/// Why a verb was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum VerbError {
    /// The metadata does not allow it.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The metadata cannot be read.
    #[error("metadata block {nr} cannot be read: {errno}")]
    Read {
        /// Which.
        nr: u64,
        /// Why.
        errno: Errno,
    },
    /// It could not be made durable.
    #[error("it could not be committed, and the pool is read-only from now on: see the log")]
    Commit,
    /// The pool is read-only.
    #[error("the pool is read-only: {0}")]
    ReadOnly(String),
    /// Somebody uses the device.
    #[error("thin device {0} is in use: stop serving it first")]
    InUse(u64),
    /// The pool does not go on one of its devices.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Its devices were replaced too often.
    #[error(
        "its devices have grown {} times while it was served: restart the server",
        crate::current::REPLACED_MAX
    )]
    Replaced,
}

impl From<Refused> for VerbError {
    fn from(refused: Refused) -> VerbError {
        match refused {
            Refused::Edit(error) => VerbError::Edit(error),
            Refused::Read { nr, errno } => VerbError::Read { nr, errno },
            Refused::Write { .. } | Refused::Data { .. } => VerbError::Commit,
        }
    }
}

impl Pool {
    /// Whether it takes changes as it is.
    ///
    /// # Errors
    ///
    /// It is read-only: why.
    pub fn check_writable(&self) -> Result<(), VerbError> {
        if self.mode().allows_changes() {
            return Ok(());
        }
        Err(VerbError::ReadOnly(self.books().why_read_only.clone().unwrap_or_default()))
    }

    /// Does something with the trees, with the turn, and commits it. Where metadata is short, what the transaction has left behind
    /// comes first.
    async fn carry_out<T>(
        &self,
        cx: &TaskContext,
        mut act: impl FnMut(&mut Editor, &dyn Blocks) -> Result<T, EditError>,
    ) -> Result<T, VerbError> {
        self.check_writable()?;
        let mut done = self.edit(cx, &mut act).await;
        if let Err(Refused::Edit(EditError::NoMetadata)) = done {
            self.commit(cx).await.map_err(|_| VerbError::Commit)?;
            done = self.edit(cx, &mut act).await;
        }
        let done = done?;
        self.commit(cx).await.map_err(|_| VerbError::Commit)?;
        Ok(done)
    }

    /// `create_thin`: a device that maps nothing.
    ///
    /// # Errors
    ///
    /// See [`VerbError`].
    pub async fn create_thin(&self, cx: &TaskContext, id: u64) -> Result<(), VerbError> {
        let _turn = self.turns.take().await;
        self.carry_out(cx, |editor, blocks| editor.create_device(blocks, id)).await
    }

    /// `create_snap`: a device that maps what `origin` does. The origin need not be at rest: the snapshot has all that was
    /// acknowledged before this call, and nothing that was submitted after it has returned.
    ///
    /// # Errors
    ///
    /// See [`VerbError`].
    pub async fn create_snap(&self, cx: &TaskContext, id: u64, origin: u64) -> Result<(), VerbError> {
        let _turn = self.turns.take().await;
        self.check_writable()?;
        self.check_stays(origin)?;
        let device = self.device_in_use(origin);
        let before = device.as_ref().map_or(0, |device| device.snapshotted());
        if let Some(device) = &device {
            // Writes that come from now on wait for the turn; those on their way go where they were sent to.
            device.set_snapshotted(u64::MAX);
            self.settle_fills(cx).await;
            cx.quiesce().await;
        }
        let made = self.carry_out(cx, |editor, blocks| editor.create_snapshot(blocks, id, origin)).await;
        if let Some(device) = device {
            let details = self.edit(cx, |editor, blocks| editor.details(blocks, origin)).await;
            // Where that cannot be read there was no snapshot made either.
            let time = details.map_or(before, |details| details.snapshotted_time.into());
            device.set_snapshotted(time);
        }
        made
    }

    /// `delete`: takes a device away that nobody uses. What it shares with no other one becomes free.
    ///
    /// # Errors
    ///
    /// See [`VerbError`].
    pub async fn delete(&self, cx: &TaskContext, id: u64) -> Result<(), VerbError> {
        {
            let _turn = self.turns.take().await;
            if !self.begin_to_delete(id)? {
                return Err(VerbError::InUse(id));
            }
        }
        let deleted = self.by_steps(cx, |editor, blocks| editor.delete_device(blocks, id)).await;
        self.end_deleting(id);
        deleted
    }

    /// Does what gives blocks back and lasts, a call of the editor at a time, and commits when much has changed, and at its end.
    async fn by_steps(
        &self,
        cx: &TaskContext,
        mut step: impl FnMut(&mut Editor, &dyn Blocks) -> Result<bool, EditError>,
    ) -> Result<(), VerbError> {
        loop {
            // Whoever wants the turn on this worker has to run to ask for it.
            yield_once().await;
            let _turn = self.turns.take().await;
            self.check_writable()?;
            let is_done = self.edit(cx, &mut step).await;
            self.books().freed = true;
            let is_short = matches!(is_done, Err(Refused::Edit(EditError::NoMetadata)));
            let is_done = if is_short { false } else { is_done? };
            if is_done || is_short || self.editor().dirty_blocks() > DIRTY_MAX {
                let was_dirty = self.editor().is_dirty();
                self.commit(cx).await.map_err(|_| VerbError::Commit)?;
                if is_short && !was_dirty {
                    return Err(VerbError::Edit(EditError::NoMetadata));
                }
            }
            if is_done {
                return Ok(());
            }
        }
    }

    /// `set_transaction_id`: the number that LVM counts its changes with.
    ///
    /// # Errors
    ///
    /// See [`VerbError`].
    pub async fn set_transaction_id(
        &self,
        cx: &TaskContext,
        current: u64,
        new: u64,
    ) -> Result<(), VerbError> {
        let _turn = self.turns.take().await;
        self.carry_out(cx, |editor, _| editor.set_transaction_id(current, new)).await
    }

    /// `reserve_metadata_snap`: keeps the metadata as it is now, for others to read.
    ///
    /// # Errors
    ///
    /// See [`VerbError`].
    pub async fn reserve_metadata_snap(&self, cx: &TaskContext) -> Result<(), VerbError> {
        let _turn = self.turns.take().await;
        // What the snapshot leads to is to be on the disk: what was changed before it is committed first.
        self.check_writable()?;
        self.commit(cx).await.map_err(|_| VerbError::Commit)?;
        self.carry_out(cx, |editor, blocks| editor.reserve_metadata_snap(blocks)).await
    }

    /// `release_metadata_snap`.
    ///
    /// # Errors
    ///
    /// See [`VerbError`].
    pub async fn release_metadata_snap(&self, cx: &TaskContext) -> Result<(), VerbError> {
        self.by_steps(cx, |editor, blocks| editor.release_metadata_snap(blocks)).await
    }

    /// The devices of the pool, by their numbers, and what is known of them.
    ///
    /// # Errors
    ///
    /// See [`VerbError`].
    pub async fn devices_of(&self, cx: &TaskContext) -> Result<Vec<(u64, DeviceDetails)>, VerbError> {
        Ok(self.edit(cx, |editor, blocks| editor.devices(blocks)).await?)
    }

    /// The data device has grown: `data` takes its place, which begins with what is on it. Writes that wait for space go on.
    ///
    /// # Errors
    ///
    /// It is smaller than what the pool counts; see [`VerbError`].
    pub async fn grow_data(&self, cx: &TaskContext, data: Arc<dyn Layer>) -> Result<(), VerbError> {
        let _turn = self.turns.take().await;
        self.check_writable()?;
        let (now, wanted) = (self.editor().data_blocks(), data.sectors().0 / self.block.get());
        if wanted < now {
            return Err(EditError::Smaller { now, wanted }.into());
        }
        if !self.data.replace(data) {
            return Err(VerbError::Replaced);
        }
        self.count_data(cx, wanted).await
    }

    /// As [`Pool::grow_data`], for the metadata device. A pool that was full of metadata goes on; not one that needs a check.
    ///
    /// # Errors
    ///
    /// It is smaller than what the pool counts; see [`VerbError`].
    pub async fn grow_metadata(&self, cx: &TaskContext, metadata: Arc<dyn Layer>) -> Result<(), VerbError> {
        let _turn = self.turns.take().await;
        if self.mode() != Mode::OutOfMetadataSpace {
            self.check_writable()?;
        }
        let (now, wanted) = (self.editor().metadata_blocks(), metadata_blocks(metadata.sectors().bytes()));
        if wanted < now {
            return Err(EditError::Smaller { now, wanted }.into());
        }
        if !self.metadata.replace(metadata) {
            return Err(VerbError::Replaced);
        }
        self.count_metadata(cx, wanted).await
    }

    /// Counts what the devices have more than the metadata knows of: they have grown while nobody served the pool. The kernel does that
    /// when a pool is resumed. A pool that is only read stays as it is.
    pub(super) async fn count_growth(&self, cx: &TaskContext) -> Result<(), VerbError> {
        let _turn = self.turns.take().await;
        if !self.mode().allows_changes() {
            return Ok(());
        }
        // Metadata first: where it was full, more data may take more of it than there was. What one cannot have is no reason against the other.
        let metadata = self.count_metadata(cx, metadata_blocks(self.metadata.get().sectors().bytes())).await;
        self.count_data(cx, self.data.get().sectors().0 / self.block.get()).await?;
        metadata
    }

    /// With the turn.
    async fn count_data(&self, cx: &TaskContext, wanted: u64) -> Result<(), VerbError> {
        let now = self.editor().data_blocks();
        let mut counted = now;
        while counted < wanted {
            counted = wanted.min(counted + GROWTH_MAX);
            self.carry_out(cx, |editor, blocks| editor.grow_data(blocks, counted)).await?;
        }
        if wanted > now {
            log::info!("{}: its data device has grown from {now} to {wanted} blocks", self.name);
        }
        Ok(())
    }

    /// With the turn.
    async fn count_metadata(&self, cx: &TaskContext, wanted: u64) -> Result<(), VerbError> {
        let now = self.editor().metadata_blocks();
        if wanted > now {
            self.leave_out_of_metadata();
            self.carry_out(cx, |editor, blocks| editor.grow_metadata(blocks, wanted)).await?;
            log::info!("{}: its metadata device has grown from {now} to {wanted} blocks", self.name);
        }
        Ok(())
    }
}
