//! A pool: a data device, and the metadata that says which of its blocks belong where.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockwork_engine::{Errno, Layer, Sectors, TaskContext, Turns};
use blockwork_format::thin::tree::Reader;
use blockwork_format::thin::{DeviceDetails, Superblock, metadata_blocks};
use blockwork_format::{FormatError, Source};

use super::cache::{Key, MapCache, PAGE_ENTRIES, SLOTS_MAX};
use super::nodes::{NodeError, Nodes};
use super::page::{Bounds, Gather, HOLE, Mapped};
use crate::divisor::Divisor;

/// Pages that are read at once; which of these turns a page takes follows from its key.
const LOADS: usize = 16;

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
    /// Too many volumes.
    #[error("more than {SLOTS_MAX} volumes of a pool")]
    Volumes,
}

/// A pool that volumes are read from. Shared by them and by all workers.
#[derive(Debug)]
pub struct Pool {
    name: String,
    pub(super) data: Arc<dyn Layer>,
    pub(super) metadata: Arc<dyn Layer>,
    pub(super) block: Divisor,
    block_sectors: u32,
    bounds: Bounds,
    cache: MapCache,
    nodes: Nodes,
    loads: [Turns; LOADS],
    slots: AtomicU64,
}

/// A device of a pool, as far as its map goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    /// Its number in keys of the cache.
    pub slot: u64,
    pub root: u64,
    pub details: DeviceDetails,
}

/// A run of blocks of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where it lies, one block after the other; none: it is a hole.
    pub at: Option<Mapped>,
    /// Its length: at least 1.
    pub blocks: u64,
}

impl Pool {
    /// A pool on those devices.
    ///
    /// # Errors
    ///
    /// They are smaller than the metadata has it.
    pub fn new(config: PoolConfig) -> Result<Arc<Pool>, PoolError> {
        let PoolConfig { name, data, metadata, superblock, cache_bytes } = config;
        let block_sectors = superblock.data_block_sectors;
        let block =
            NonZeroU64::new(block_sectors.into()).expect("a superblock's block is 128 sectors or more");
        let data_blocks = data.sectors().0 / block;
        let wanted = superblock.data_space_map.blocks;
        if wanted > data_blocks {
            return Err(PoolError::Data { wanted, sectors: block_sectors, found: data_blocks });
        }
        let found = metadata_blocks(metadata.sectors().bytes());
        let wanted = superblock.metadata_space_map.blocks;
        if wanted > found {
            return Err(PoolError::Metadata { wanted, found });
        }
        Ok(Arc::new(Pool {
            name,
            nodes: Nodes::new(metadata.clone()),
            data,
            metadata,
            block: Divisor::new(block),
            block_sectors,
            bounds: Bounds { metadata_blocks: found, data_blocks: superblock.data_space_map.blocks },
            cache: MapCache::new(cache_bytes),
            loads: Default::default(),
            slots: AtomicU64::new(0),
        }))
    }

    /// Size of a block of data.
    pub fn block(&self) -> Sectors {
        Sectors(self.block_sectors.into())
    }

    /// A place for one more volume in the cache.
    pub(super) fn tree(&self, root: u64, details: DeviceDetails) -> Result<Tree, PoolError> {
        let slot = self.slots.fetch_add(1, Ordering::Relaxed);
        if slot < SLOTS_MAX { Ok(Tree { slot, root, details }) } else { Err(PoolError::Volumes) }
    }

    /// The run that begins with `block`, of `most` blocks at most; none: the map has to be read first.
    #[inline]
    pub(super) fn look_up(&self, tree: &Tree, block: u64, most: u64) -> Option<Run> {
        let (page, within) = (block / PAGE_ENTRIES, block % PAGE_ENTRIES);
        let most = most.min(PAGE_ENTRIES - within);
        let Some(found) = self.cache.find(Key::new(tree.slot, 0, page)) else {
            return self.is_hole(tree, page)?.then_some(Run { at: None, blocks: most });
        };
        let entry = found.get(within)?;
        // The entries of a run rise with its blocks, those of a hole are all the same.
        let step = if entry == 0 { 0 } else { 2 };
        let mut blocks = 1;
        while blocks < most && found.get(within + blocks)? == entry + step * blocks {
            blocks += 1;
        }
        Some(Run { at: Mapped::of_entry(entry), blocks })
    }

    /// Whether a whole page is known to map nothing; none: not known.
    fn is_hole(&self, tree: &Tree, page: u64) -> Option<bool> {
        let above = self.cache.find(Key::new(tree.slot, 1, page / PAGE_ENTRIES))?;
        Some(above.get(page % PAGE_ENTRIES)? == HOLE)
    }

    fn is_cached(&self, tree: &Tree, page: u64) -> bool {
        self.cache.find(Key::new(tree.slot, 0, page)).is_some() || self.is_hole(tree, page) == Some(true)
    }

    /// Reads what is not cached of the map of some blocks.
    pub(super) async fn load(
        &self,
        cx: &TaskContext,
        tree: &Tree,
        first: u64,
        last: u64,
    ) -> Result<(), Errno> {
        for page in first / PAGE_ENTRIES..=last / PAGE_ENTRIES {
            let key = Key::new(tree.slot, 0, page);
            let _turn = self.loads[key.stripe(LOADS)].take().await;
            // Whoever had the turn before may have read it.
            if self.is_cached(tree, page) {
                continue;
            }
            let mut gather = self.gather(tree, page);
            while let Some(place) = gather.wanted() {
                let taken = match self.nodes.node(cx, place).await {
                    Ok(node) => gather.take(place, &node).map_err(NodeError::from),
                    Err(error) => Err(error),
                };
                if let Err(error) = taken {
                    if self.nodes.tell(place.nr) {
                        log::error!("{}: reads that need this fail: {error}", self.name);
                    }
                    return Err(Errno::EIO);
                }
            }
            self.publish(tree, page, &gather);
        }
        Ok(())
    }

    /// Reads the map of a block while volumes are assembled, so that what is looked for there can be read at once.
    ///
    /// # Errors
    ///
    /// What cannot be read, or is damaged.
    pub(super) fn load_now(&self, source: &dyn Source, tree: &Tree, block: u64) -> Result<(), FormatError> {
        let page = block / PAGE_ENTRIES;
        let (mut gather, reader) = (self.gather(tree, page), Reader::new(source));
        while let Some(place) = gather.wanted() {
            gather.take(place, &reader.node(place)?)?;
        }
        self.publish(tree, page, &gather);
        Ok(())
    }

    fn gather(&self, tree: &Tree, page: u64) -> Gather {
        Gather::new(tree.root, tree.details, self.bounds, page)
    }

    fn publish(&self, tree: &Tree, page: u64, gather: &Gather) {
        let holes = gather.holes();
        if holes.is_empty() {
            let entries = gather.entries();
            let set = |put: &mut dyn FnMut(u64, u64)| entries.iter().for_each(|(at, entry)| put(*at, *entry));
            return self.cache.update(Key::new(tree.slot, 0, page), set);
        }
        let above = Key::new(tree.slot, 1, page / PAGE_ENTRIES);
        self.cache.update(above, |put| holes.for_each(|page| put(page, HOLE)));
    }
}
