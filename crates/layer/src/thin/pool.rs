//! A pool: a data device, and the metadata that says which of its blocks belong where.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use blockwork_engine::{Complaint, Errno, Layer, Lock, LockSnapshot, Sectors, TaskContext, Turns};
use blockwork_format::Source;
use blockwork_format::thin::edit::{Blocks, EditError, Editor};
use blockwork_format::thin::{Superblock, metadata_blocks};

use super::blocks::MetadataBlocks;
use super::cache::{MapCache, SLOTS_MAX};
use super::config::{PoolConfig, PoolError, PoolFeatures};
use super::device::Device;
use super::doubt::Doubts;
use super::fill::Fills;
use super::mode::{Mode, ModeCell};
use super::request::Requests;
use super::watch::Watched;
use crate::current::Current;
use crate::divisor::Divisor;

/// Pages that are read at once; which of these turns a page takes follows from its key.
pub(super) const LOADS: usize = 16;

/// Things that were said of the metadata: not again, or a client could fill the log.
const TOLD_MAX: u32 = 64;

/// A pool. Shared by its volumes and by all workers.
#[derive(Debug)]
pub struct Pool {
    pub(super) name: String,
    pub(super) data: Current<Arc<dyn Layer>>,
    pub(super) metadata: Current<Arc<dyn Layer>>,
    pub(super) block: Divisor,
    pub(super) features: PoolFeatures,
    pub(super) cache: MapCache,
    pub(super) fills: Fills,
    pub(super) blocks: MetadataBlocks,
    editor: Lock<Editor>,
    pub(super) loads: [Turns; LOADS],
    /// Who may change the metadata.
    pub(super) turns: Turns,
    pub(super) requests: Requests,
    pub(super) mode: ModeCell,
    pub(super) watched: Watched,
    /// The number of the transaction under way, counted from when the pool was opened.
    pub(super) transaction: AtomicU64,
    /// All up to this transaction are on stable storage.
    pub(super) durable: AtomicU64,
    pub(super) doubts: Doubts,
    pub(super) complaints: Complaints,
    devices: Mutex<Devices>,
    books: Lock<Books>,
    itself: Weak<Pool>,
}

/// What is told now and then only: clients can have it happen as often as they like, and a log has an end.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// New blocks got no content.
    pub unfilled: Complaint,
    /// A discard of the data device failed.
    pub undiscarded: Complaint,
    /// There is no space; there is little.
    pub full: Complaint,
    pub low_water: Complaint,
}

#[derive(Debug, Default)]
struct Devices {
    open: BTreeMap<u64, Weak<Device>>,
    slots: u64,
    /// Those that are being deleted, and have lost some of what they map.
    going: BTreeSet<u64>,
}

impl Devices {
    fn check_stays(&self, id: u64) -> Result<(), EditError> {
        if self.going.contains(&id) { Err(EditError::NoDevice(id)) } else { Ok(()) }
    }
}

/// What only the one who has the turn changes.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// Data blocks that became free in the transaction under way, and are to be passed down.
    pub discarded: Vec<Range<u64>>,
    /// Something became free in the transaction under way.
    pub freed: bool,
    /// A task commits now and then.
    pub upkeep: bool,
    /// Little space is left, and that was told.
    pub low_water_told: bool,
    /// Why it is read-only, if it is.
    pub why_read_only: Option<String>,
    /// That it needs a check was written down.
    pub needs_check: bool,
    /// What it was opened with is on stable storage.
    pub is_adopted: bool,
    told: u32,
}

impl Books {
    /// A block that became free in the transaction under way is in use again: it is not passed down.
    pub(super) fn keep(&mut self, block: u64) {
        let cut = |range: Range<u64>| {
            let is_in = range.contains(&block);
            let (before, behind) =
                if is_in { (range.start..block, block + 1..range.end) } else { (range, 0..0) };
            [before, behind]
        };
        let kept = std::mem::take(&mut self.discarded).into_iter().flat_map(cut);
        self.discarded = kept.filter(|range| !range.is_empty()).collect();
    }
}

/// A device of a pool that is in use: to make a volume of it.
#[derive(Clone, Debug)]
pub struct OpenDevice(pub(super) Arc<Device>);

impl Pool {
    /// A pool on those devices.
    ///
    /// # Errors
    ///
    /// They are smaller than the metadata has it.
    pub fn new(config: PoolConfig) -> Result<Arc<Pool>, PoolError> {
        let PoolConfig { name, data, metadata, superblock, cache_bytes, metadata_kept, features } = config;
        let block_sectors = superblock.data_block_sectors;
        let block =
            NonZeroU64::new(block_sectors.into()).expect("a superblock's block is 128 sectors or more");
        let (wanted, found) = (superblock.data_space_map.blocks, data.sectors().0 / block);
        if wanted > found {
            return Err(PoolError::Data { wanted, sectors: block_sectors, found });
        }
        let (wanted, found) =
            (superblock.metadata_space_map.blocks, metadata_blocks(metadata.sectors().bytes()));
        if wanted > found {
            return Err(PoolError::Metadata { wanted, found });
        }
        let why_read_only = why_read_only(&superblock, &features);
        let mode = if why_read_only.is_some() { Mode::ReadOnly } else { Mode::Write };
        // Features that only a reader may ignore are no obstacle to one.
        let editor =
            Editor::new(Superblock { compat_ro: 0, ..superblock }, found)?.keeping(metadata_kept / 2);
        Ok(Arc::new_cyclic(|itself| Pool {
            name,
            data: Current::new(data),
            metadata: Current::new(metadata),
            block: Divisor::new(block),
            features,
            cache: MapCache::new(cache_bytes),
            fills: Fills::default(),
            blocks: MetadataBlocks::new(metadata_kept),
            editor: Lock::new(editor),
            loads: Default::default(),
            turns: Turns::default(),
            requests: Requests::default(),
            mode: ModeCell::new(mode),
            watched: Watched::default(),
            transaction: AtomicU64::new(1),
            durable: AtomicU64::new(0),
            doubts: Doubts::default(),
            complaints: Complaints::default(),
            devices: Mutex::default(),
            books: Lock::new(Books { why_read_only, ..Books::default() }),
            itself: itself.clone(),
        }))
    }

    /// Size of a block of data.
    pub fn block(&self) -> Sectors {
        Sectors(self.block.get())
    }

    /// What it can do now.
    pub fn mode(&self) -> Mode {
        self.mode.get()
    }

    /// What is known of its locks.
    pub(super) fn locks(&self) -> Vec<LockSnapshot> {
        let name = |what: &str| format!("{}: {what}", self.name);
        let loads = self.loads.iter().map(|turns| turns.snapshot(""));
        vec![
            self.turns.snapshot(name("metadata")),
            LockSnapshot::sum(name("pages being read"), loads),
            self.editor.snapshot(name("editor")),
            self.books.snapshot(name("books")),
            self.fills.locks(name("blocks being filled")),
            self.requests.locks(name("requests")),
            self.blocks.locks(name("metadata blocks")),
            self.cache.locks(name("map cache")),
        ]
    }

    pub(super) fn itself(&self) -> Arc<Pool> {
        self.itself.upgrade().expect("who calls a pool has it")
    }

    /// Held only for as long as it takes to look or to alter, never across a wait.
    pub(super) fn editor(&self) -> MutexGuard<'_, Editor> {
        self.editor.lock()
    }

    /// Held only for as long as it takes to look or to alter, never across a wait.
    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }

    /// Does something with the metadata; what it lacks of it is read first.
    pub(super) async fn edit<T>(
        &self,
        cx: &TaskContext,
        mut act: impl FnMut(&mut Editor, &dyn Blocks) -> Result<T, EditError>,
    ) -> Result<T, Refused> {
        loop {
            let missing = match act(&mut self.editor(), &self.blocks) {
                Err(EditError::Missing(nr)) => nr,
                other => return other.map_err(Refused::Edit),
            };
            let read = self.blocks.read(cx, self.metadata.get(), missing).await;
            read.map_err(|errno| Refused::Read { nr: missing, errno })?;
        }
    }

    /// As `edit`, while there is no worker.
    pub(super) fn edit_now<T>(
        &self,
        source: &dyn Source,
        mut act: impl FnMut(&mut Editor, &dyn Blocks) -> Result<T, EditError>,
    ) -> Result<T, EditError> {
        loop {
            match act(&mut self.editor(), &self.blocks) {
                Err(EditError::Missing(nr)) => self.blocks.read_now(source, nr)?,
                other => return other,
            }
        }
    }

    /// A device of the pool, while there is no worker: its metadata is read from `source`.
    ///
    /// # Errors
    ///
    /// There is none with that number; the metadata cannot be read, or is damaged; too many are in use.
    pub fn device_now(&self, source: &dyn Source, id: u64) -> Result<OpenDevice, PoolError> {
        if let Some(device) = self.device_in_use(id) {
            return Ok(OpenDevice(device));
        }
        let details = self.edit_now(source, |editor, blocks| editor.details(blocks, id))?;
        self.use_device(id, details.snapshotted_time.into())
    }

    /// A device of the pool.
    ///
    /// # Errors
    ///
    /// There is none with that number; the metadata cannot be read, or is damaged; too many are in use.
    pub async fn device(&self, cx: &TaskContext, id: u64) -> Result<OpenDevice, super::VerbError> {
        // Or it could be deleted between the look and the use.
        let _turn = self.turns.take().await;
        let details = self.edit(cx, |editor, blocks| editor.details(blocks, id)).await?;
        Ok(self.use_device(id, details.snapshotted_time.into())?)
    }

    fn devices(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn use_device(&self, id: u64, snapshotted: u64) -> Result<OpenDevice, PoolError> {
        // It may have been in use before, and have been changed then.
        let changed = if self.editor().is_dirty() { self.transaction.load(Ordering::Acquire) } else { 0 };
        let mut devices = self.devices();
        if let Some(device) = devices.open.get(&id).and_then(Weak::upgrade) {
            return Ok(OpenDevice(device));
        }
        devices.check_stays(id)?;
        // Never one that was used before: the cache may still have pages of that.
        let slot = devices.slots;
        if slot >= SLOTS_MAX {
            return Err(PoolError::Volumes);
        }
        devices.slots += 1;
        let device = Arc::new(Device::new(id, slot, snapshotted, changed));
        devices.open.insert(id, Arc::downgrade(&device));
        Ok(OpenDevice(device))
    }

    /// A device, if somebody uses it.
    pub(super) fn device_in_use(&self, id: u64) -> Option<Arc<Device>> {
        self.devices().open.get(&id).and_then(Weak::upgrade)
    }

    /// An error, if a device is being deleted.
    pub(super) fn check_stays(&self, id: u64) -> Result<(), EditError> {
        self.devices().check_stays(id)
    }

    /// From now on nobody can use a device. False: somebody does. With the turn.
    pub(super) fn begin_to_delete(&self, id: u64) -> Result<bool, EditError> {
        let mut devices = self.devices();
        devices.check_stays(id)?;
        let is_in_use = devices.open.get(&id).is_some_and(|device| device.strong_count() > 0);
        Ok(!is_in_use && devices.going.insert(id))
    }

    /// A device is deleted, or is not going to be.
    pub(super) fn end_deleting(&self, id: u64) {
        self.devices().going.remove(&id);
    }

    /// Whether somebody uses a device: a volume is made of it, or I/O of one that was is still under way.
    pub fn is_in_use(&self, id: u64) -> bool {
        self.device_in_use(id).is_some()
    }

    /// Tells of something that is wrong with the metadata, unless that was done often.
    pub(super) fn tell(&self, refused: &Refused) {
        self.tell_unless_often(|| format!("{}: what needs this of its metadata fails: {refused}", self.name));
    }

    /// Tells of something that is wrong, unless that was done often.
    pub(super) fn tell_unless_often(&self, what: impl FnOnce() -> String) {
        let told = {
            let mut books = self.books();
            books.told = books.told.saturating_add(1);
            books.told
        };
        if told <= TOLD_MAX {
            log::error!("{}", what());
        }
    }

    /// Whether all that this device was changed by is on stable storage.
    #[inline]
    pub(super) fn is_durable(&self, device: &Device) -> bool {
        device.changed() <= self.durable()
    }

    /// The same of some of its blocks. Looked at after the map: whoever changes that says so first.
    #[inline]
    pub(super) fn are_durable(&self, device: &Device, blocks: Range<u64>) -> bool {
        self.is_durable(device) || device.changed_within(blocks) <= self.durable()
    }
}

fn why_read_only(superblock: &Superblock, features: &PoolFeatures) -> Option<String> {
    if features.read_only {
        return Some("it was opened read-only".into());
    }
    if superblock.needs_check {
        let why = "its metadata needs a check (needs_check): run `thin_check --clear-needs-check-flag` on it, and `thin_repair` if that \
                   finds something";
        return Some(why.into());
    }
    (superblock.compat_ro != 0).then(|| {
        format!("its metadata has features {:#x} that only a reader may ignore", superblock.compat_ro)
    })
}

/// Why something was not done to the metadata.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// A block of it cannot be read.
    #[error("metadata block {nr} cannot be read: {errno}")]
    Read {
        /// Which.
        nr: u64,
        /// Why.
        errno: Errno,
    },
    /// A block of it cannot be written.
    #[error("metadata block {nr} cannot be written: {errno}")]
    Write {
        /// Which; 0 also where it is the flush that failed.
        nr: u64,
        /// Why.
        errno: Errno,
    },
    /// The data that it leads to cannot be made durable.
    #[error("the data device cannot be flushed: {errno}")]
    Data {
        /// Why.
        errno: Errno,
    },
    /// It cannot be done.
    #[error(transparent)]
    Edit(EditError),
}
