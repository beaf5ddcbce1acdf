//! New metadata: of an empty pool, or of one with given mappings.
//!
//! All of it is written at once, blocks in order from 1, nodes evenly filled. Only the superblock makes a pool of it: it is the last
//! piece, to be written when the others are durable.

use std::collections::BTreeMap;

use crate::FormatError;
use crate::bytes::length;
use crate::source::Piece;

use super::node::{Entries, Node, max_entries};
use super::space_map::{BITMAP_ENTRIES, Bitmap, MetadataIndex, SpaceMapRoot};
use super::superblock::Superblock;
use super::value::{BlockTime, DeviceDetails, IndexEntry, Value};
use super::{BLOCK_LENGTH, Block, METADATA_BLOCKS_MAX};

/// What a pool is to hold.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// Sectors of a data block: a multiple of 128.
    pub data_block_sectors: u32,
    /// Blocks of the data device.
    pub data_blocks: u64,
    /// Blocks of the metadata device.
    pub metadata_blocks: u64,
    /// The pool's time.
    pub time: u32,
    /// Its transaction.
    pub transaction_id: u64,
    /// Its devices, by their numbers.
    pub devices: BTreeMap<u64, Device>,
}

/// A device of a pool that is to be made.
#[derive(Debug, Clone)]
pub struct Device {
    /// What is known of it; how many blocks are mapped is counted.
    pub details: DeviceDetails,
    /// Its mappings.
    pub mappings: Mappings,
}

/// The mappings of a device.
#[derive(Debug, Clone)]
pub enum Mappings {
    /// A tree of its own; several may map the same data block.
    Own(BTreeMap<u64, BlockTime>),
    /// The tree of a device with a lower number: a snapshot that nobody has written to since.
    Of(u64),
}

/// Blocks that are filled one after the other, and how often each is referred to.
struct Builder {
    blocks: Vec<Box<Block>>,
    /// Counts of blocks that are referred to more than once.
    shared: BTreeMap<u64, u32>,
}

impl Builder {
    fn add(&mut self, encode: impl FnOnce(u64) -> Box<Block>) -> u64 {
        let nr = length(self.blocks.len()) + 1;
        self.blocks.push(encode(nr));
        nr
    }

    /// A tree, and its root.
    fn tree<V: Value>(&mut self, entries: Vec<(u64, V)>) -> u64 {
        if entries.is_empty() {
            return self.add(|nr| Node::<V>::Leaf(Entries::default()).encode(nr));
        }
        let mut level = self.level(&entries, Node::Leaf);
        while level.len() > 1 {
            level = self.level(&level, Node::<u64>::Internal);
        }
        level[0].1
    }

    /// The nodes of a level, each with its first key, none of them less than half full where there are several.
    fn level<V: Value, W: Value>(
        &mut self,
        entries: &[(u64, V)],
        node: impl Fn(Entries<V>) -> Node<W>,
    ) -> Vec<(u64, u64)> {
        let nodes = entries.len().div_ceil(max_entries(V::BYTES));
        let mut rest = entries;
        let mut level = Vec::with_capacity(nodes);
        for left in (1..=nodes).rev() {
            let (own, others) = rest.split_at(rest.len() / left);
            rest = others;
            let entries = Entries {
                keys: own.iter().map(|(key, _)| *key).collect(),
                values: own.iter().map(|(_, value)| *value).collect(),
            };
            let nr = self.add(|nr| node(entries).encode(nr));
            level.push((own[0].0, nr));
        }
        level
    }

    fn bitmaps(&mut self, blocks: u64, count: impl Fn(u64) -> u32) -> Vec<(u64, IndexEntry)> {
        let bitmaps = blocks.div_ceil(BITMAP_ENTRIES);
        let bitmap = |at| {
            let (bitmap, entry) = self.bitmap(at, blocks, &count);
            (at, IndexEntry { block: self.add(|nr| bitmap.encode(nr)), ..entry })
        };
        (0..bitmaps).map(bitmap).collect()
    }

    fn bitmap(&self, at: u64, blocks: u64, count: &impl Fn(u64) -> u32) -> (Bitmap, IndexEntry) {
        let (mut bitmap, mut entry) = (Bitmap::default(), IndexEntry::default());
        let first = at * BITMAP_ENTRIES;
        let mut first_free = None;
        for within in 0..BITMAP_ENTRIES.min(blocks - first) {
            let count = count(first + within);
            bitmap.set(within, count);
            if count == 0 {
                entry.free += 1;
                first_free.get_or_insert(within);
            }
        }
        let end = BITMAP_ENTRIES.min(blocks - first);
        entry.none_free_before = u32::try_from(first_free.unwrap_or(end)).expect("an entry of a bitmap");
        (bitmap, entry)
    }

    /// The trees of all devices, and the root of the tree that leads to them; counts data blocks.
    fn mappings(
        &mut self,
        contents: &Contents,
        data: &mut BTreeMap<u64, u32>,
    ) -> (u64, Vec<(u64, DeviceDetails)>) {
        let (mut roots, mut details): (BTreeMap<u64, u64>, Vec<_>) = Default::default();
        let mut mapped = BTreeMap::new();
        for (id, device) in &contents.devices {
            let (root, mapped_blocks) = match &device.mappings {
                Mappings::Own(mappings) => {
                    mappings.values().for_each(|mapping| *data.entry(mapping.block).or_default() += 1);
                    let entries = mappings.iter().map(|(key, mapping)| (*key, *mapping)).collect();
                    (self.tree(entries), length(mappings.len()))
                }
                Mappings::Of(origin) => {
                    let root = roots[origin];
                    *self.shared.entry(root).or_insert(1) += 1;
                    (root, mapped[&root])
                }
            };
            roots.insert(*id, root);
            mapped.insert(root, mapped_blocks);
            details.push((*id, DeviceDetails { mapped_blocks, ..device.details }));
        }
        (self.tree(roots.into_iter().collect()), details)
    }

    fn data_space_map(&mut self, blocks: u64, counts: &BTreeMap<u64, u32>) -> SpaceMapRoot {
        let index = self.bitmaps(blocks, |block| counts.get(&block).copied().unwrap_or(0));
        let bitmap_root = self.tree(index);
        let ref_count_root = self.tree(large(counts));
        SpaceMapRoot { blocks, allocated: length(counts.len()), bitmap_root, ref_count_root }
    }

    /// The space map that counts all blocks so far, its own and the superblock.
    fn metadata_space_map(&mut self, blocks: u64) -> SpaceMapRoot {
        let ref_count_root = self.tree(large(&self.shared.clone()));
        let bitmaps = blocks.div_ceil(BITMAP_ENTRIES);
        let used = length(self.blocks.len()) + 1 + bitmaps + 1;
        let shared = self.shared.clone();
        let count = |block| if block < used { shared.get(&block).copied().unwrap_or(1) } else { 0 };
        let entries = self.bitmaps(blocks, count).into_iter().map(|(_, entry)| entry).collect();
        let bitmap_root = self.add(|nr| MetadataIndex { entries }.encode(nr));
        SpaceMapRoot { blocks, allocated: used, bitmap_root, ref_count_root }
    }
}

/// Counts that a bitmap has no room for.
fn large(counts: &BTreeMap<u64, u32>) -> Vec<(u64, u32)> {
    counts.iter().filter(|(_, count)| **count > 2).map(|(block, count)| (*block, *count)).collect()
}

/// The metadata of a pool. The last piece is the superblock.
///
/// # Errors
///
/// The metadata device is too small for it.
///
/// # Panics
///
/// A device has the mappings of one that is not there.
pub fn build(contents: &Contents) -> Result<Vec<Piece>, FormatError> {
    let mut builder = Builder { blocks: Vec::new(), shared: BTreeMap::new() };
    let mut counts = BTreeMap::new();
    let (mapping_root, details) = builder.mappings(contents, &mut counts);
    let details_root = builder.tree(details);
    let blocks = contents.metadata_blocks.min(METADATA_BLOCKS_MAX);
    let superblock = Superblock {
        needs_check: false,
        other_flags: 0,
        uuid: [0; 16],
        version: Superblock::VERSION,
        time: contents.time,
        transaction_id: contents.transaction_id,
        held_root: 0,
        data_space_map: builder.data_space_map(contents.data_blocks, &counts),
        metadata_space_map: builder.metadata_space_map(blocks),
        mapping_root,
        details_root,
        data_block_sectors: contents.data_block_sectors,
        metadata_blocks: contents.metadata_blocks,
        compat: 0,
        compat_ro: 0,
    };
    let used = superblock.metadata_space_map.allocated;
    if used > blocks {
        let expected = format!("at least {used} for what is to be in it");
        return Err(FormatError::limit("thin metadata", 0, "size", format!("{blocks} blocks"), expected));
    }
    let pieces = builder.blocks.into_iter().zip(1..);
    let mut pieces: Vec<Piece> = pieces
        .map(|(block, nr): (_, u64)| Piece { offset: nr * BLOCK_LENGTH, bytes: block.to_vec() })
        .collect();
    pieces.push(Piece { offset: 0, bytes: superblock.encode(0).to_vec() });
    Ok(pieces)
}
