//! The end of a transaction: everything that changed gets its place, and becomes blocks to write.
//!
//! Bitmaps move with each commit, which changes bitmaps. For those of the data that only changes counts of metadata blocks. Those of the
//! metadata are given places until no further one has changed: there are 255 of them at most.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::bytes::index as place_of;
use crate::thin::Block;
use crate::thin::node::Node;
use crate::thin::space_map::{Bitmap, MetadataIndex, SpaceMapRoot};
use crate::thin::superblock::Superblock;
use crate::thin::value::{IndexEntry, Value};

use super::space::{Data, Metadata, Space};
use super::store::Store;
use super::tree::{Committed, Edit, Plain};
use super::{Blocks, EditError, Editor, State, Uses};

/// A transaction to be written.
pub struct Commit {
    /// Blocks and their numbers, in rising order: to be durable before the superblock is written. None is in use by the last
    /// committed state.
    pub writes: Vec<(u64, Arc<Block>)>,
    /// Block 0: with it the transaction is committed.
    pub superblock: Arc<Block>,
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Commit").field(&self.writes.iter().map(|(nr, _)| nr).collect::<Vec<_>>()).finish()
    }
}

impl State {
    /// Gives all changed bitmaps and indexes their places, and the superblock their roots.
    fn place_space_maps(&mut self, from: Committed<'_>) -> Result<(), EditError> {
        place_data(&mut self.data, &mut self.metadata, from)?;
        place_metadata(&mut self.metadata, from)?;
        let Data { pages, index_root, large, .. } = &self.data;
        self.superblock.data_space_map = SpaceMapRoot {
            blocks: pages.tally.blocks,
            allocated: pages.tally.used,
            bitmap_root: *index_root,
            ref_count_root: large.root,
        };
        let Metadata { low, large } = &self.metadata;
        self.superblock.metadata_space_map = SpaceMapRoot {
            blocks: low.pages.tally.blocks,
            allocated: low.pages.tally.used,
            bitmap_root: low.index_block,
            ref_count_root: large.root,
        };
        Ok(())
    }

    /// Everything that has changed, as blocks.
    fn seal(&mut self) -> Vec<(u64, Arc<Block>)> {
        let mut writes = Vec::with_capacity(self.changed() + 1);
        seal_nodes(&mut self.roots, &mut writes);
        seal_nodes(&mut self.details, &mut writes);
        seal_nodes(&mut self.mappings, &mut writes);
        seal_nodes(&mut self.data.index, &mut writes);
        seal_nodes(&mut self.data.large.nodes, &mut writes);
        seal_nodes(&mut self.metadata.large.nodes, &mut writes);
        self.held.seal(|nr, held| writes.push((nr, held.encode(nr).into())));
        let mut bitmap = |_, entry: IndexEntry, bitmap: Bitmap| {
            writes.push((entry.block, bitmap.encode(entry.block).into()));
        };
        self.data.pages.seal(&mut bitmap);
        let low = &mut self.metadata.low;
        if low.pages.changed() > 0 {
            let index = low.index.get_or_insert_default();
            index.resize(place_of_bitmap(low.pages.bitmaps()), IndexEntry::default());
            low.pages.seal(|at, entry, map| {
                index[place_of_bitmap(at)] = entry;
                bitmap(at, entry, map);
            });
            let index = MetadataIndex { entries: index.clone() };
            writes.push((low.index_block, index.encode(low.index_block).into()));
        }
        writes.sort_unstable_by_key(|(nr, _)| *nr);
        writes
    }

    /// What was sealed is durable.
    fn settle(&mut self) {
        self.roots.settle(|_| {});
        self.details.settle(|_| {});
        self.mappings.settle(|_| {});
        self.held.settle(|_| {});
        self.data.index.settle(|_| {});
        self.data.large.nodes.settle(|_| {});
        self.metadata.large.nodes.settle(|_| {});
        self.data.pages.settle();
        self.metadata.low.pages.settle();
    }
}

/// A bitmap of the metadata, of which there are 255 at most.
fn place_of_bitmap(at: u64) -> usize {
    place_of(u32::try_from(at).expect("at most 255 bitmaps"))
}

fn seal_nodes<V: Value>(nodes: &mut Store<Node<V>>, writes: &mut Vec<(u64, Arc<Block>)>) {
    nodes.seal(|nr, node| writes.push((nr, node.encode(nr).into())));
}

fn place_data(data: &mut Data, metadata: &mut Metadata, from: Committed<'_>) -> Result<(), EditError> {
    for at in data.pages.changed_numbers() {
        let block = metadata.take(from)?;
        let (old, entry) = data.pages.place(at, block);
        if old != 0 {
            metadata.lower(from, old)?;
        }
        let mut edit = Edit { nodes: &mut data.index, space: metadata, owner: &mut Plain, from };
        data.index_root = edit.insert(data.index_root, at, entry)?.0;
    }
    Ok(())
}

fn place_metadata(metadata: &mut Metadata, from: Committed<'_>) -> Result<(), EditError> {
    let low = &mut metadata.low;
    if low.pages.changed() == 0 {
        return Ok(());
    }
    let index = low.take(from)?;
    low.lower(from, low.index_block)?;
    low.index_block = index;
    let mut placed = BTreeSet::new();
    loop {
        let changed = low.pages.changed_numbers();
        let Some(at) = changed.into_iter().find(|at| !placed.contains(at)) else { return Ok(()) };
        let block = low.take(from)?;
        let (old, _) = low.pages.place(at, block);
        if old != 0 {
            low.lower(from, old)?;
        }
        placed.insert(at);
    }
}

impl Editor {
    /// Ends the transaction: what is to be written, in the order that [`Commit`] says. What is done from now on belongs to the next one,
    /// which may begin at once; it can be committed when this one is [durable](Editor::committed).
    ///
    /// If a write fails, the editor is of no use any more: a new one begins with the superblock that is on the device.
    ///
    /// # Errors
    ///
    /// [`EditError::Missing`]; [`EditError::Committing`]; damage.
    pub fn commit(&mut self, blocks: &dyn Blocks) -> Result<Commit, EditError> {
        if self.sealed.is_some() {
            return Err(EditError::Committing);
        }
        self.operation(blocks, Uses::Reserve, State::place_space_maps)?;
        let writes = self.state.seal();
        let superblock: Superblock = self.state.superblock;
        self.sealed = Some(superblock);
        Ok(Commit { writes, superblock: superblock.encode(0).into() })
    }

    /// The last commit is durable: what it freed may be given out.
    pub fn committed(&mut self) {
        if let Some(superblock) = self.sealed.take() {
            self.durable = superblock;
            self.state.settle();
            self.exhausted = false;
        }
    }
}
