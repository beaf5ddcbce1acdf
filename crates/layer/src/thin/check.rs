//! Whether the metadata of a pool is whole: what `thin_check` asks, asked by ourselves.
//!
//! Everything that the superblock leads to is read once: both levels of the mapping tree, device details, both space maps, and what
//! a metadata snapshot holds. Each reference to a block counts; in the end the counts are compared with those in the space
//! maps. A block that two nodes refer to is gone into once.
//!
//! Nothing is changed, and nothing is believed. Memory: four bytes for each metadata block, and for each block of data near one
//! that is in use; eight more for each metadata block that leads to mappings.

use std::collections::BTreeMap;

use blockwork_format::thin::tree::{Place, Reader, Visitor};
use blockwork_format::thin::{
    BITMAP_ENTRIES, Bitmap, BlockTime, DEVICES_MAX, DeviceDetails, IndexEntry, MetadataIndex, Node,
    SpaceMapRoot, Superblock, Value, read_block,
};
use blockwork_format::{FormatError, Source};

/// Problems that are kept; more are only counted.
pub const PROBLEMS_MAX: usize = 100;

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// The superblock, if it is one. None without a problem: the pool was never used.
    pub superblock: Option<Superblock>,
    /// What is wrong, a sentence each: the first [`PROBLEMS_MAX`].
    pub problems: Vec<String>,
    /// How many problems there are in all.
    pub count: u64,
    /// Devices of the pool.
    pub devices: u64,
    /// Blocks of data that are in use.
    pub data_used: u64,
    /// Metadata blocks that are in use.
    pub metadata_used: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.count == 0
    }

    fn problem(&mut self, what: impl ToString) {
        self.count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(what.to_string());
        }
    }
}

/// Checks the metadata on a device.
pub fn check(source: &dyn Source) -> Report {
    let mut report = Report::default();
    let superblock = read_block(source, 0).and_then(|block| Superblock::decode(&block));
    match superblock {
        Ok(None) => {}
        Ok(Some(superblock)) => {
            report.superblock = Some(superblock);
            Checker::new(Reader::new(source), superblock, &mut report).all();
        }
        Err(error) => report.problem(error),
    }
    report
}

/// Numbers of blocks, in pieces that exist where one is not zero.
#[derive(Default)]
struct Sparse<T>(BTreeMap<u64, Box<[T]>>);

impl<T: Copy + Default> Sparse<T> {
    fn get(&self, block: u64) -> T {
        self.0.get(&(block / BITMAP_ENTRIES)).map_or(T::default(), |piece| piece[within(block)])
    }

    fn at(&mut self, block: u64) -> &mut T {
        let new = || vec![T::default(); BITMAP_ENTRIES as usize].into_boxed_slice();
        &mut self.0.entry(block / BITMAP_ENTRIES).or_insert_with(new)[within(block)]
    }
}

fn within(block: u64) -> usize {
    (block % BITMAP_ENTRIES) as usize
}

/// References so far.
#[derive(Default)]
struct Counts {
    metadata: Sparse<u32>,
    data: Sparse<u32>,
    /// Of nodes that lead to mappings and were gone into: how many, and one.
    mapped: Sparse<u64>,
}

impl Counts {
    /// One more reference to a metadata block; whether it is the first.
    fn refer(&mut self, block: u64) -> bool {
        let count = self.metadata.at(block);
        *count = count.saturating_add(1);
        *count == 1
    }
}

struct Checker<'a> {
    reader: Reader<'a>,
    superblock: Superblock,
    counts: Counts,
    report: &'a mut Report,
}

/// Counts the nodes of a tree, looks how full they are, and hands on what is in leaves.
struct Counting<'a, V> {
    counts: &'a mut Counts,
    leaf: &'a mut dyn FnMut(&mut Counts, u64, V) -> Result<(), FormatError>,
}

impl<V: Value> Visitor<V> for Counting<'_, V> {
    fn enter(&mut self, place: Place) -> bool {
        self.counts.refer(place.nr)
    }
    fn node(&mut self, place: Place, node: &Node<V>) -> Result<(), FormatError> {
        check_fill(place, node)?;
        let Node::Leaf(leaf) = node else { return Ok(()) };
        leaf.iter().try_for_each(|(key, value)| (self.leaf)(self.counts, key, value))
    }
}

/// A node below a root that is less than a third full is none that Linux makes.
fn check_fill<V: Value>(place: Place, node: &Node<V>) -> Result<(), FormatError> {
    let (found, least) = (node.keys().len(), node.min_entries());
    if place.is_root() || found >= least {
        return Ok(());
    }
    Err(wrong(place.nr, "nr_entries", found, format!("at least {least} below a root")))
}

fn wrong(
    nr: u64,
    field: &'static str,
    found: impl std::fmt::Display,
    expected: impl ToString,
) -> FormatError {
    let offset = nr.saturating_mul(blockwork_format::thin::BLOCK_BYTES as u64);
    let found = format!("{found} (metadata block {nr})");
    FormatError::invalid("thin metadata node", offset, field, found, expected.to_string())
}

impl<'a> Checker<'a> {
    fn new(reader: Reader<'a>, superblock: Superblock, report: &'a mut Report) -> Checker<'a> {
        Checker { reader, superblock, counts: Counts::default(), report }
    }

    fn all(mut self) {
        let blocks = self.superblock.metadata_space_map.blocks;
        if blocks > self.reader.blocks() {
            let found = self.reader.blocks();
            return self
                .report
                .problem(format!("the metadata has {blocks} blocks, and its device only {found}"));
        }
        self.counts.refer(0);
        let trees = self.devices(self.superblock.mapping_root, self.superblock.details_root);
        let held = self.held();
        let data = self.data_space_map();
        let metadata = self.metadata_space_map();
        // Counts mean nothing where something could not be gone into.
        if let (Ok(()), Ok(()), Ok(data), Ok(metadata)) = (trees, held, data, metadata) {
            let counts = std::mem::take(&mut self.counts);
            self.report.data_used = self.compare("data", data, &counts.data);
            self.report.metadata_used = self.compare("metadata", metadata, &counts.metadata);
        }
    }

    /// Notes what is wrong with a tree; the rest goes on.
    fn note<T>(&mut self, result: Result<T, FormatError>) -> Result<T, ()> {
        result.map_err(|error| self.report.problem(error))
    }

    fn walk<V: Value>(
        &mut self,
        root: u64,
        leaf: &mut dyn FnMut(&mut Counts, u64, V) -> Result<(), FormatError>,
    ) -> Result<(), ()> {
        let walked = self.reader.walk(root, &mut Counting { counts: &mut self.counts, leaf });
        self.note(walked)
    }

    /// Both levels of a mapping tree, and what is known of its devices.
    fn devices(&mut self, mapping_root: u64, details_root: u64) -> Result<(), ()> {
        let (mut roots, mut details) = (Vec::new(), BTreeMap::<u64, DeviceDetails>::new());
        let known = self.walk(details_root, &mut |_, device, of| {
            details.insert(device, of);
            Ok(())
        });
        self.walk(mapping_root, &mut |_, device, root: u64| {
            roots.push((device, root));
            Ok(())
        })?;
        known?;
        let mut result = Ok(());
        for (device, root) in roots {
            if device >= DEVICES_MAX {
                self.report
                    .problem(format!("a device has the number {device}; expected less than {DEVICES_MAX}"));
            }
            let Some(of) = details.remove(&device) else {
                self.report.problem(format!("device {device} has a tree of mappings, and no details"));
                result = Err(());
                continue;
            };
            self.report.devices += 1;
            let mapped = self.subtree(Place::root(root));
            match self.note(mapped) {
                Ok(mapped) if mapped != of.mapped_blocks => self.report.problem(format!(
                    "device {device} maps {mapped} blocks; expected {}, as its details have it",
                    of.mapped_blocks
                )),
                Ok(_) => {}
                Err(()) => result = Err(()),
            }
        }
        for device in details.into_keys() {
            self.report.problem(format!("device {device} has details, and no tree of mappings"));
            result = Err(());
        }
        result
    }

    /// Goes into a node of a device's tree; how many blocks it maps. As deep as a [`Place`] may lie.
    fn subtree(&mut self, place: Place) -> Result<u64, FormatError> {
        if !self.counts.refer(place.nr) {
            // What was not gone into as such a node is told apart by the counts, in the end.
            return Ok(self.counts.mapped.get(place.nr).saturating_sub(1));
        }
        let node = self.reader.node::<BlockTime>(place)?;
        check_fill(place, &node)?;
        let mut mapped = 0;
        match &node {
            Node::Internal(children) => {
                for at in 0..children.keys.len() {
                    mapped += self.subtree(place.child(children, at))?;
                }
            }
            Node::Leaf(leaf) => {
                let blocks = self.superblock.data_space_map.blocks;
                for (key, mapping) in leaf.iter() {
                    if mapping.block >= blocks {
                        let found = format!("{} for block {key}", mapping.block);
                        return Err(wrong(place.nr, "data block", found, format!("below {blocks}")));
                    }
                    *self.counts.data.at(mapping.block) += 1;
                }
                mapped = leaf.keys.len() as u64;
            }
        }
        *self.counts.mapped.at(place.nr) = mapped + 1;
        Ok(mapped)
    }

    /// The metadata snapshot, if there is one.
    fn held(&mut self) -> Result<(), ()> {
        let nr = self.superblock.held_root;
        if nr == 0 {
            return Ok(());
        }
        if nr >= self.reader.blocks() {
            self.report.problem(format!("the metadata snapshot is in block {nr}, beyond the end"));
            return Err(());
        }
        self.counts.refer(nr);
        let held = read_block(self.reader.source(), nr).and_then(|block| Superblock::decode_at(nr, &block));
        let held = self.note(held)?;
        let devices = self.report.devices;
        let result = self.devices(held.mapping_root, held.details_root);
        self.report.devices = devices;
        result
    }

    fn data_space_map(&mut self) -> Result<Map, ()> {
        let root = self.superblock.data_space_map;
        let mut entries = Vec::new();
        let walked = self.walk(root.bitmap_root, &mut |_, bitmap, entry: IndexEntry| {
            if bitmap != entries.len() as u64 {
                let expected = format!("{}, the next one", entries.len());
                return Err(wrong(root.bitmap_root, "bitmap", bitmap, expected));
            }
            entries.push(entry);
            Ok(())
        });
        let large = self.large(root);
        walked?;
        if (entries.len() as u64) < root.bitmaps() {
            let what =
                format!("the data space map has {} bitmaps; expected {}", entries.len(), root.bitmaps());
            self.report.problem(what);
            return Err(());
        }
        self.refer_to_bitmaps(&entries)?;
        Ok(Map { blocks: root.blocks, entries, large: large? })
    }

    fn metadata_space_map(&mut self) -> Result<Map, ()> {
        let root = self.superblock.metadata_space_map;
        let large = self.large(root);
        self.counts.refer(root.bitmap_root);
        let index = read_block(self.reader.source(), root.bitmap_root)
            .and_then(|block| MetadataIndex::decode(root.bitmap_root, &block, root.bitmaps()));
        let MetadataIndex { entries } = self.note(index)?;
        self.refer_to_bitmaps(&entries)?;
        Ok(Map { blocks: root.blocks, entries, large: large? })
    }

    fn large(&mut self, root: SpaceMapRoot) -> Result<BTreeMap<u64, u32>, ()> {
        let mut large = BTreeMap::new();
        self.walk(root.ref_count_root, &mut |_, block, count: u32| {
            large.insert(block, count);
            Ok(())
        })?;
        Ok(large)
    }

    fn refer_to_bitmaps(&mut self, entries: &[IndexEntry]) -> Result<(), ()> {
        for entry in entries {
            if entry.block == 0 || entry.block >= self.reader.blocks() {
                self.report.problem(format!("a bitmap is in block {}, which there is not", entry.block));
                return Err(());
            }
            self.counts.refer(entry.block);
        }
        Ok(())
    }

    /// Compares what a space map says with what was counted; how many blocks are in use.
    fn compare(&mut self, of: &str, map: Map, counted: &Sparse<u32>) -> u64 {
        let mut used = 0;
        for (nth, entry) in (0..).zip(&map.entries) {
            let bitmap = read_block(self.reader.source(), entry.block);
            let bitmap = bitmap.and_then(|block| Bitmap::decode(entry.block, block));
            let Ok(bitmap) = self.note(bitmap) else { continue };
            let first: u64 = nth * BITMAP_ENTRIES;
            for block in first..map.blocks.min(first + BITMAP_ENTRIES) {
                let found = match bitmap.get(block - first) {
                    3 => map.large.get(&block).copied().unwrap_or(0),
                    few => few,
                };
                let expected = counted.get(block);
                used += u64::from(expected > 0);
                if found != expected {
                    self.report.problem(format!(
                        "{of} block {block} has the count {found}; expected {expected}, its references"
                    ));
                }
            }
        }
        used
    }
}

/// A space map as it was read.
struct Map {
    blocks: u64,
    entries: Vec<IndexEntry>,
    /// Counts that bitmaps have no room for.
    large: BTreeMap<u64, u32>,
}
