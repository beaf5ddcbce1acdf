//! What thin pools of tables and of volume groups have in common: how one is opened, and how a volume of it is found.

mod editor;

use std::fmt;
use std::sync::Arc;

use blockwork_engine::{Layer, NodeId, Sector, Sectors};
use blockwork_format::thin::edit::EditError;
use blockwork_format::thin::tree::Reader;
use blockwork_format::thin::{
    BLOCK_SECTORS, DEVICES_MAX, DeviceDetails, Superblock, metadata_blocks, read_block,
};
use blockwork_format::{FormatError, Source};
use blockwork_layer::thin::{
    CACHE_BYTES, METADATA_KEPT, Pool, PoolConfig, PoolError, PoolFeatures, Thin, ThinConfig,
};

use crate::assembly::Assembly;
pub(crate) use editor::PoolEditor;
pub use editor::{PoolChange, PoolCommit, PoolCommitError, PoolEditError};

/// Blocks of metadata that Linux keeps for itself, at most, and counts as used.
const RESERVE_MAX: u64 = 4096;

/// Of metadata that begins with zeros.
pub(crate) const NEVER_USED: &str =
    "it was never used: it is made a pool when it gets its first volume, or when Linux activates it";

/// How full a pool is, as its superblock has it and `dmsetup status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Sectors of a block of data.
    pub block_sectors: u64,
    /// Blocks of data that are in use.
    pub data_used: u64,
    /// Blocks of data.
    pub data_blocks: u64,
    /// Blocks of metadata (of 4 KiB) that are in use, with those that Linux keeps for itself.
    pub metadata_used: u64,
    /// Blocks of metadata.
    pub metadata_blocks: u64,
    /// Blocks of data that each device maps, by its number, in order.
    pub mapped: Vec<(u64, u64)>,
}

impl PoolUsage {
    fn new(superblock: &Superblock, details: &[(u64, DeviceDetails)]) -> PoolUsage {
        let metadata = superblock.metadata_space_map;
        // While a pool is in use Linux counts a tenth of its metadata, up to 16 MiB, as used: a reserve for deleting things.
        let reserve = (metadata.blocks / 10).min(RESERVE_MAX);
        PoolUsage {
            block_sectors: superblock.data_block_sectors.into(),
            data_used: superblock.data_space_map.allocated.min(superblock.data_space_map.blocks),
            data_blocks: superblock.data_space_map.blocks,
            metadata_used: metadata.allocated.saturating_add(reserve).min(metadata.blocks),
            metadata_blocks: metadata.blocks,
            mapped: details.iter().map(|(device, details)| (*device, details.mapped_blocks)).collect(),
        }
    }

    /// Blocks of data that a device maps.
    pub fn mapped(&self, device: u64) -> Option<u64> {
        let at = self.mapped.binary_search_by_key(&device, |(device, _)| *device).ok()?;
        Some(self.mapped[at].1)
    }
}

/// The superblock of a pool, and its devices; none: it was never used.
pub(crate) type Found = Option<(Superblock, Vec<(u64, DeviceDetails)>)>;

/// A pool whose volumes can be had. Cloning shares it.
#[derive(Clone)]
pub(crate) struct OpenPool {
    pool: Arc<Pool>,
    metadata: Arc<dyn Layer>,
}

impl OpenPool {
    /// The pool itself, to be told something.
    pub(crate) fn pool(&self) -> Arc<Pool> {
        self.pool.clone()
    }

    /// Why nothing of it can be written.
    pub(crate) fn why_read_only(&self) -> Option<String> {
        self.pool.status().why_read_only
    }
}

impl fmt::Debug for OpenPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenPool({:?})", self.pool)
    }
}

/// A volume of a pool, as those who want it know it.
pub(crate) struct ThinVolume {
    pub(crate) node: NodeId,
    /// Its number in the pool.
    pub(crate) device: u64,
    pub(crate) sectors: Sectors,
    pub(crate) external_origin: Option<Arc<dyn Layer>>,
}

/// A volume that was found in a pool, and what of its map at its ends cannot be read.
pub(crate) type FoundThin = (Arc<Thin>, Vec<EditError>);

impl Assembly {
    /// What a metadata device says.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is damaged.
    pub(crate) fn pool_metadata(&mut self, metadata: &dyn Layer) -> Result<Found, String> {
        self.read(metadata, |source| read(source)).map_err(|error| error.to_string())
    }

    /// A pool on those devices, whose metadata was read before.
    ///
    /// # Errors
    ///
    /// They are smaller than the metadata has it.
    pub(crate) fn open_pool(
        &mut self,
        name: String,
        metadata: Arc<dyn Layer>,
        data: Arc<dyn Layer>,
        (superblock, details): (Superblock, Vec<(u64, DeviceDetails)>),
        features: PoolFeatures,
    ) -> Result<(OpenPool, PoolUsage), String> {
        let is_read_only = [&data, &metadata].iter().any(|layer| layer.limits().read_only);
        let read_only = features.read_only || is_read_only || self.plan.read_only;
        let timeout = self.no_space_timeout(&name).map_err(|error| error.to_string())?;
        let no_space_timeout = timeout.unwrap_or(features.no_space_timeout);
        let config = PoolConfig {
            name,
            data,
            metadata: metadata.clone(),
            superblock,
            cache_bytes: CACHE_BYTES,
            metadata_kept: METADATA_KEPT,
            features: PoolFeatures { read_only, no_space_timeout, ..features },
        };
        let pool = Pool::new(config).map_err(|error| error.to_string())?;
        let usage = PoolUsage::new(&superblock, &details);
        Ok((OpenPool { pool, metadata }, usage))
    }

    /// A volume of a pool; none: the pool has no such device.
    ///
    /// # Errors
    ///
    /// The metadata cannot be read, or is damaged; or the pool has no room for one more.
    pub(crate) fn thin(&mut self, pool: &OpenPool, volume: ThinVolume) -> Result<Option<FoundThin>, String> {
        let ThinVolume { node, device, sectors, external_origin } = volume;
        let device = match self.read(&*pool.metadata, |source| pool.pool.device_now(source, device)) {
            Err(PoolError::Edit(EditError::NoDevice(_))) => return Ok(None),
            found => found.map_err(|error| error.to_string())?,
        };
        let thin = Thin::new(node, ThinConfig { pool: pool.pool.clone(), device, sectors, external_origin });
        // What is wrong with its map where everybody looks is told with the volume; all else is read when it is asked for. One that joins while
        // others are served is not looked into.
        let ends = [Sector(0), Sector(sectors.0.saturating_sub(1))];
        let ends = if self.is_served { &ends[..0] } else { &ends[..] };
        let load = |sector: Sector| self.read(&*pool.metadata, |source| thin.load(source, sector)).err();
        let unread = ends.iter().copied().filter_map(load).collect();
        Ok(Some((Arc::new(thin), unread)))
    }
}

fn read(source: &dyn Source) -> Result<Found, FormatError> {
    let Some(superblock) = Superblock::decode(&*read_block(source, 0)?)? else { return Ok(None) };
    // Two devices cannot have the same number, and each takes 24 bytes of a node.
    let most = DEVICES_MAX.min(metadata_blocks(source.size()) * BLOCK_SECTORS * 512 / 24);
    let details = Reader::new(source).all(superblock.details_root, most, "devices")?;
    Ok(Some((superblock, details)))
}
