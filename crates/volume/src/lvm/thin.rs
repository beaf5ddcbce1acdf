//! Thin pools and thin volumes of LVM.
//!
//! A pool's metadata is a volume of its own, with a superblock that Linux writes; LVM's text says which devices in it are which
//! volumes. Both count the pool's changes: unless the counts agree, one of the two is older, and nothing of the pool can be
//! trusted. A pool is opened once, when its group is assembled, and all of its volumes share what it keeps in memory.
//!
//! Thin volumes are served for reading: see [`READ_ONLY`].

use std::fmt;
use std::sync::Arc;

use blockwork_engine::{Layer, NodeKind, Sector, Sectors};
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{LvIndex, SegmentType};
use blockwork_format::thin::edit::EditError;
use blockwork_format::thin::tree::Reader;
use blockwork_format::thin::{
    BLOCK_SECTORS, DEVICES_MAX, DeviceDetails, Superblock, metadata_blocks, read_block,
};
use blockwork_format::{FormatError, Source, escape};
use blockwork_layer::thin::{CACHE_BYTES, Pool, PoolConfig, PoolError, PoolFeatures, Thin, ThinConfig};

use super::stack::{Built, Volume};
use crate::assembly::Assembly;
use crate::graph::{DeviceId, GroupId};

/// Why no thin volume is written.
pub(crate) const READ_ONLY: &str = "it is a thin volume, and those cannot be written yet";

/// Blocks of metadata that Linux keeps for itself, at most, and counts as used.
const RESERVE_MAX: u64 = 4096;

/// A thin pool of a group.
#[derive(Debug)]
pub struct ThinPool {
    /// How full it is, or why it cannot be used.
    pub usage: Result<PoolUsage, String>,
    opened: Option<Opened>,
}

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

/// A pool that can be read.
struct Opened {
    pool: Arc<Pool>,
    metadata: Arc<dyn Layer>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opened({:?})", self.pool)
    }
}

impl Assembly {
    /// Opens the pools of a group whose volumes are devices by now.
    pub(crate) fn open_thin_pools(&mut self, group: GroupId, text: &VolumeGroup) {
        let is_pool = |lv: &LvIndex| matches!(text.lvs[lv.0].segments[0].kind, SegmentType::ThinPool { .. });
        for lv in (0..text.lvs.len()).map(LvIndex).filter(is_pool) {
            let Some(device) = self.graph.groups[group.0].lv(lv) else { continue };
            let opened = self.open_thin_pool(group, text, lv, device);
            if let Err(why) = &opened {
                self.graph.warn(device, format!("its volumes cannot be served: {why}"));
            }
            let pool = match opened {
                Ok((opened, usage)) => ThinPool { usage: Ok(usage), opened: Some(opened) },
                Err(why) => ThinPool { usage: Err(why), opened: None },
            };
            self.graph.groups[group.0].thin_pools.insert(lv, pool);
        }
    }

    fn open_thin_pool(
        &mut self,
        group: GroupId,
        text: &VolumeGroup,
        lv: LvIndex,
        device: DeviceId,
    ) -> Result<(Opened, PoolUsage), String> {
        let SegmentType::ThinPool { metadata, data, transaction_id, chunk_size, ref messages, .. } =
            text.lvs[lv.0].segments[0].kind
        else {
            unreachable!("only pools come here")
        };
        let name = self.graph.device(device).name.clone();
        let volume = Volume::new(device, group, lv, name.clone());
        let metadata = volume.part(self, text, metadata)?;
        let data = volume.part(self, text, data)?;
        let read = self.read(&*metadata, |source| read(source)).map_err(|error| error.to_string())?;
        let (superblock, details) =
            read.ok_or("it was never used: Linux makes a pool of it when it is activated")?;
        check_transaction(&superblock, transaction_id, !messages.is_empty())?;
        if u64::from(superblock.data_block_sectors) != chunk_size {
            return Err(format!(
                "its superblock has blocks of {} sectors, and the group's metadata {chunk_size}",
                superblock.data_block_sectors
            ));
        }
        if superblock.needs_check {
            let warning = "Linux met an error in its metadata and set the flag needs_check: what can be read is served, \
                           `lvconvert --repair` mends it";
            self.graph.warn(device, warning.into());
        }
        let config = PoolConfig {
            name,
            data,
            metadata: metadata.clone(),
            superblock,
            cache_bytes: CACHE_BYTES,
            features: PoolFeatures { read_only: true, ..PoolFeatures::default() },
        };
        let pool = Pool::new(config).map_err(|error| error.to_string())?;
        let usage = PoolUsage::new(&superblock, &details);
        Ok((Opened { pool, metadata }, usage))
    }
}

type Found = Option<(Superblock, Vec<(u64, DeviceDetails)>)>;

/// What is read of a pool when it is opened; none: it was never used.
fn read(source: &dyn Source) -> Result<Found, FormatError> {
    let Some(superblock) = Superblock::decode(&*read_block(source, 0)?)? else { return Ok(None) };
    // Two devices cannot have the same number, and each takes 24 bytes of a node.
    let most = DEVICES_MAX.min(metadata_blocks(source.size()) * BLOCK_SECTORS * 512 / 24);
    let details = Reader::new(source).all(superblock.details_root, most, "devices")?;
    Ok(Some((superblock, details)))
}

fn check_transaction(superblock: &Superblock, text: u64, has_messages: bool) -> Result<(), String> {
    let found = superblock.transaction_id;
    // What LVM has yet to tell the pool counts in its text already.
    if found == text || has_messages && found.checked_add(1) == Some(text) {
        return Ok(());
    }
    let older = if found < text { "the pool's metadata" } else { "the group's metadata" };
    Err(format!(
        "its superblock has transaction {found}, and the group's metadata {text}: {older} is older than the other, and what \
         belongs to whom is not known; `vgcfgrestore` brings an older state of the group back"
    ))
}

impl Volume {
    pub(super) fn thin(
        &mut self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        kind: &SegmentType,
        sectors: Sectors,
        alone: bool,
    ) -> Built {
        let SegmentType::Thin { pool, device_id, external_origin, merge, .. } = kind else {
            unreachable!("only thin segments come here")
        };
        let pool_name = escape(&text.lvs[pool.0].name);
        if let Some(origin) = merge {
            let origin = escape(&text.lvs[origin.0].name);
            return Err(format!(
                "it is to be merged into {origin}: let Linux do that, by activating {origin}"
            ));
        }
        let found = assembly.graph.groups[self.group.0].thin_pools.get(pool);
        let opened = match found {
            Some(ThinPool { opened: Some(opened), .. }) => opened,
            Some(ThinPool { usage: Err(why), .. }) => return Err(format!("its pool {pool_name}: {why}")),
            _ => return Err(format!("its pool {pool_name} is not assembled")),
        };
        let (pool, metadata) = (opened.pool.clone(), opened.metadata.clone());
        let device = assembly
            .read(&*metadata, |source| pool.device_now(source, *device_id))
            .map_err(|error| match error {
                PoolError::Edit(EditError::NoDevice(_)) => format!(
                    "its pool {pool_name} knows no device {device_id}: where it was just made, LVM makes it when the pool is activated"
                ),
                other => format!("its pool {pool_name}: {other}"),
            })?;
        let external_origin = external_origin.map(|origin| self.part(assembly, text, origin)).transpose()?;
        let node = self.node(assembly, NodeKind::Thin, alone)?;
        let thin = Thin::new(node, ThinConfig { pool, device, sectors, external_origin });
        // What volumes hold is told by what is at their ends.
        for sector in [Sector(0), Sector(sectors.0.saturating_sub(1))] {
            if let Err(error) = assembly.read(&*metadata, |source| thin.load(source, sector)) {
                self.warn(assembly, format!("not all of it can be read: {error}"));
            }
        }
        Ok(Arc::new(thin))
    }
}
