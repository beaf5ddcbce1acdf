//! What is read: a linear volume, thin volumes whose blocks are all mapped or none, and two pools as one volume.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockwork_engine::{Layer, NodeId, Sector, Sectors};
use blockwork_format::Sparse;
use blockwork_format::thin::build::{Contents, Device, Mappings, build};
use blockwork_format::thin::{BLOCK_SECTORS, BlockTime, DeviceDetails, Superblock, read_block};
use blockwork_layer::thin::{
    CACHE_BYTES, METADATA_KEPT, Pool, PoolConfig, PoolError, PoolFeatures, Thin, ThinConfig,
};
use blockwork_layer::{Linear, Segment, Table};
use blockwork_sim::{CapOn, DeviceModel};

use super::ThinError;
use super::pool_lock::{PoolLock, Turn};
use crate::reproduce::Behaviour;

/// Size of the volume, and of what it maps: 8 GiB.
pub(super) const VOLUME: Sectors = Sectors(8 << 21);
/// Sectors of a block of a pool.
const BLOCK: u32 = 128;
/// Size of the metadata device.
pub(super) const METADATA: Sectors = Sectors(64 << 11);
/// What is read in the report: its reads a second.
const READS_PER_SECOND: u64 = 560_000;
/// Blocks that one page of our map has: a sector of each is looked up before the run.
const PAGE_BLOCKS: u64 = 256;
/// The number of the volume in its pool.
const DEVICE: u64 = 1;

/// How many nodes there are at most.
pub(super) const NODES: u16 = 12;

/// On what a client works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// A linear volume.
    Thick,
    /// A thin volume, all of it written.
    Mapped,
    /// A thin volume, nothing of it written.
    Unmapped,
    /// Two thin volumes, all of them written, in two pools; one behind the other.
    TwoPools,
}

impl Stack {
    pub(super) fn name(self) -> &'static str {
        match self {
            Stack::Thick => "thick",
            Stack::Mapped => "thin, mapped",
            Stack::Unmapped => "thin, never written",
            Stack::TwoPools => "thin, two pools",
        }
    }

    /// The layers on the devices for data and for metadata; `turn` is what the old behaviour takes.
    pub(super) fn build(
        self,
        devices: &[Arc<dyn Layer>],
        node: NodeId,
        behaviour: Behaviour,
        turn: Turn,
    ) -> Result<Arc<dyn Layer>, ThinError> {
        let pool = |nth: u16| -> Result<Arc<dyn Layer>, ThinError> {
            let node = NodeId(node.0 + 4 * nth);
            let data = range(&devices[0], node, Sector(u64::from(nth) * VOLUME.0));
            let is_mapped = self != Stack::Unmapped;
            let thin = thin(NodeId(node.0 + 1), data, devices[1].clone(), is_mapped)?;
            Ok(match behaviour {
                Behaviour::New => thin,
                Behaviour::Old => Arc::new(PoolLock::new(NodeId(node.0 + 2), thin, is_mapped, turn)),
            })
        };
        match self {
            Stack::Thick => Ok(range(&devices[0], node, Sector(0))),
            Stack::Mapped | Stack::Unmapped => pool(0),
            Stack::TwoPools => {
                let segments = vec![
                    Segment { start: Sector(0), target: pool(0)? },
                    Segment { start: Sector(VOLUME.0), target: pool(1)? },
                ];
                Ok(Arc::new(Table::new(NodeId(node.0 + 3), segments)?))
            }
        }
    }
}

fn range(device: &Arc<dyn Layer>, node: NodeId, start: Sector) -> Arc<dyn Layer> {
    Arc::new(
        Linear::new(node, device.clone(), start, VOLUME).expect("the device is larger than both volumes"),
    )
}

/// A volume of a pool of its own, with its map in memory.
fn thin(
    node: NodeId,
    data: Arc<dyn Layer>,
    metadata: Arc<dyn Layer>,
    is_mapped: bool,
) -> Result<Arc<dyn Layer>, ThinError> {
    let source = pool_metadata(is_mapped)?;
    let superblock = Superblock::decode_at(0, &*read_block(&source, 0)?)?;
    let config = PoolConfig {
        name: "pool".into(),
        data,
        metadata,
        superblock,
        cache_bytes: CACHE_BYTES,
        metadata_kept: METADATA_KEPT,
        features: PoolFeatures::default(),
    };
    let pool = Pool::new(config)?;
    let device = pool.device_now(&source, DEVICE)?;
    let thin = Thin::new(node, ThinConfig { pool, device, sectors: VOLUME, external_origin: None });
    for sector in (0..VOLUME.0).step_by((PAGE_BLOCKS * u64::from(BLOCK)) as usize) {
        thin.load(&source, Sector(sector)).map_err(PoolError::from)?;
    }
    Ok(Arc::new(thin))
}

/// The metadata of a pool with one volume, whose blocks lie in the order of a volume that was written at random.
fn pool_metadata(is_mapped: bool) -> Result<Sparse, ThinError> {
    let blocks = VOLUME.0 / u64::from(BLOCK);
    // An odd number has an inverse modulo a power of two: each block of data is given out once.
    let place = |block: u64| BlockTime { block: block.wrapping_mul(0x9e37_79b1) % blocks, time: 0 };
    let map: BTreeMap<u64, BlockTime> =
        (0..blocks).filter(|_| is_mapped).map(|block| (block, place(block))).collect();
    let details = DeviceDetails { mapped_blocks: map.len() as u64, ..DeviceDetails::default() };
    let contents = Contents {
        data_block_sectors: BLOCK,
        data_blocks: blocks,
        metadata_blocks: METADATA.0 / BLOCK_SECTORS,
        time: 0,
        transaction_id: 1,
        devices: BTreeMap::from([(DEVICE, Device { details, mappings: Mappings::Own(map) })]),
    };
    Ok(Sparse::new(METADATA.bytes(), build(&contents)?))
}

/// The report's device.
pub(super) fn device() -> DeviceModel {
    let mut model = DeviceModel::nvme(Sectors(2 * VOLUME.0));
    let by_count = model.caps.iter_mut().find(|cap| cap.on == CapOn::Reads);
    by_count.expect("the model has a limit for reads").per_second = READS_PER_SECOND;
    model
}
