//! What a pool is made of, and what it is told to do.

use std::sync::Arc;

use blockwork_engine::{Layer, Nanos};
use blockwork_format::thin::Superblock;
use blockwork_format::thin::edit::EditError;

use super::cache::SLOTS_MAX;

/// What a pool is made of.
#[derive(Debug)]
pub struct PoolConfig {
    /// What messages call it.
    pub name: String,
    /// The data device.
    pub data: Arc<dyn Layer>,
    /// The metadata device.
    pub metadata: Arc<dyn Layer>,
    /// What the metadata begins with.
    pub superblock: Superblock,
    /// Memory for the map, bytes: [`CACHE_BYTES`](super::CACHE_BYTES), if nothing speaks for another size.
    pub cache_bytes: usize,
    /// Metadata blocks that are kept in memory as they were committed: [`METADATA_KEPT`](super::METADATA_KEPT), if nothing speaks for
    /// another number. Of what they say, half as many nodes and bitmaps of each kind are kept as well.
    pub metadata_kept: usize,
    /// What it does beyond the usual.
    pub features: PoolFeatures,
}

/// What becomes of discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discards {
    /// `ignore_discard`: volumes take none.
    Ignore,
    /// `no_discard_passdown`: they give blocks back to the pool.
    NoPassdown,
    /// They do, and the data device hears of blocks that nobody has any more.
    Passdown,
}

/// Features of a pool, by the kernel's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolFeatures {
    /// Not `skip_block_zeroing`: a block that is given out is zeroed, unless it is written as a whole.
    pub zero_new_blocks: bool,
    /// What becomes of discards.
    pub discards: Discards,
    /// `read_only`: the metadata stays as it is.
    pub read_only: bool,
    /// `error_if_no_space`: a write that needs space does not wait for it.
    pub error_if_no_space: bool,
    /// It is told once when so few data blocks are free, or fewer.
    pub low_water: u64,
    /// How long writes wait for space; none: for ever.
    pub no_space_timeout: Option<Nanos>,
}

impl Default for PoolFeatures {
    fn default() -> PoolFeatures {
        PoolFeatures {
            zero_new_blocks: true,
            discards: Discards::Passdown,
            read_only: false,
            error_if_no_space: false,
            low_water: 0,
            no_space_timeout: Some(Nanos::secs(60)),
        }
    }
}

/// Why a pool or a volume of it cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The superblock knows of more blocks than there are.
    #[error(
        "its metadata is about {wanted} blocks of data of {sectors} sectors, and the data device has only {found}: was it cut?"
    )]
    Data {
        /// Blocks of the data space map.
        wanted: u64,
        /// Sectors of a block.
        sectors: u32,
        /// Blocks of the device.
        found: u64,
    },
    /// The metadata device is smaller than its space map.
    #[error("its metadata has {wanted} blocks, and the device only {found}: was it cut?")]
    Metadata {
        /// Blocks of the metadata space map.
        wanted: u64,
        /// Blocks of the device.
        found: u64,
    },
    /// Its metadata cannot be worked with.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// Too many volumes.
    #[error("more than {SLOTS_MAX} volumes of a pool")]
    Volumes,
}
