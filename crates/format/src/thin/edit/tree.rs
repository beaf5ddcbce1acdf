//! Trees that change: the way down to a key copies what must not be overwritten, and splits what is full.
//!
//! A node may be changed in place if it is of the transaction under way and has one reference. Any other one is copied first
//! ([`Edit::own`]): the copy is a new block, and if the old one stays, since others refer to it, what is below gets one more reference each.
//!
//! Splits come on the way down, so that there is room for a new child wherever it is needed. A node that fills up in rising order
//! hands entries to its left neighbour first, so that rising keys leave full nodes.

use std::sync::Arc;

use crate::FormatError;
use crate::thin::node::{Entries, Node, max_entries};
use crate::thin::space_map::{Bitmap, MetadataIndex};
use crate::thin::superblock::Superblock;
use crate::thin::tree::Place;
use crate::thin::value::{BlockTime, Value};
use crate::thin::{Block, BlockKind};

use super::remove::has_one;
use super::space::{Data, Metadata, Space};
use super::store::Store;
use super::{Blocks, EditError};

const KIND: BlockKind = BlockKind::Node;

/// Where nodes are read from.
#[derive(Clone, Copy)]
pub(super) struct Committed<'a> {
    pub blocks: &'a dyn Blocks,
    /// How many metadata blocks there are.
    pub limit: u64,
}

impl Committed<'_> {
    /// Checks that a number is that of a block beside the superblock.
    pub fn check(&self, nr: u64, field: &'static str) -> Result<(), EditError> {
        if nr == 0 || nr >= self.limit {
            let expected = format!("a block from 1 to {}", self.limit.saturating_sub(1));
            return Err(FormatError::invalid("thin metadata", 0, field, nr, expected).into());
        }
        Ok(())
    }

    fn block(&self, nr: u64, field: &'static str) -> Result<Arc<Block>, EditError> {
        self.check(nr, field)?;
        self.blocks.get(nr).ok_or(EditError::Missing(nr))
    }

    pub fn bitmap(&self, nr: u64) -> Result<Bitmap, EditError> {
        let block = self.block(nr, "bitmap")?;
        Ok(Bitmap::decode(nr, Box::new(*block))?)
    }

    /// A metadata snapshot.
    pub fn superblock(&self, nr: u64) -> Result<Superblock, EditError> {
        Ok(Superblock::decode_at(nr, &*self.block(nr, "metadata snapshot")?)?)
    }

    pub fn index(&self, nr: u64, bitmaps: u64) -> Result<MetadataIndex, EditError> {
        Ok(MetadataIndex::decode(nr, &*self.block(nr, "index of the metadata space map")?, bitmaps)?)
    }
}

/// The node at a place, checked.
pub(super) fn read<'s, V: Value>(
    nodes: &'s mut Store<Node<V>>,
    from: Committed<'_>,
    place: Place,
) -> Result<&'s Node<V>, EditError> {
    let node = nodes.get_or_read(place.nr, || {
        let block = from.block(place.nr, "root of a tree")?;
        let node = Node::decode(place.nr, &block)?;
        place.check(&node, from.limit)?;
        Ok::<_, EditError>(node)
    })?;
    place.check_again(node)?;
    Ok(node)
}

/// The leaf in which a key is or would be. None: the key is less than all.
pub(super) fn leaf<'s, V: Value>(
    nodes: &'s mut Store<Node<V>>,
    from: Committed<'_>,
    root: u64,
    key: u64,
) -> Result<(Place, &'s Entries<V>), EditError> {
    let mut place = Place::root(root);
    while let Node::Internal(children) = read(nodes, from, place)? {
        place = place.child(children, children.below(key).unwrap_or(0));
    }
    match nodes.get(place.nr) {
        Some(Node::Leaf(entries)) => Ok((place, entries)),
        _ => unreachable!("the way down ends at a leaf"),
    }
}

/// The value of a key.
pub(super) fn look_up<V: Value>(
    nodes: &mut Store<Node<V>>,
    from: Committed<'_>,
    root: u64,
    key: u64,
) -> Result<Option<V>, EditError> {
    Ok(leaf(nodes, from, root, key)?.1.get(key))
}

/// All entries of a tree, in order.
pub(super) fn all<V: Value>(
    nodes: &mut Store<Node<V>>,
    from: Committed<'_>,
    root: u64,
) -> Result<Vec<(u64, V)>, EditError> {
    let (mut found, mut left) = (Vec::new(), vec![Place::root(root)]);
    while let Some(place) = left.pop() {
        match read(nodes, from, place)? {
            Node::Leaf(entries) => found.extend(entries.iter()),
            Node::Internal(children) => {
                left.extend((0..children.keys.len()).rev().map(|at| place.child(children, at)));
            }
        }
    }
    Ok(found)
}

/// What the values in the leaves of a tree refer to: a shared leaf that is copied refers to it once more.
pub(super) trait Owner<V, S> {
    fn raise(&mut self, space: &mut S, from: Committed<'_>, value: V) -> Result<(), EditError>;
}

/// Values that refer to nothing.
pub(super) struct Plain;

impl<V, S> Owner<V, S> for Plain {
    fn raise(&mut self, _: &mut S, _: Committed<'_>, _: V) -> Result<(), EditError> {
        Ok(())
    }
}

/// Values that are roots of trees.
pub(super) struct Roots;

impl<S: Space> Owner<u64, S> for Roots {
    fn raise(&mut self, space: &mut S, from: Committed<'_>, root: u64) -> Result<(), EditError> {
        space.raise(from, root)
    }
}

impl Owner<BlockTime, Metadata> for Data {
    fn raise(
        &mut self,
        space: &mut Metadata,
        from: Committed<'_>,
        mapping: BlockTime,
    ) -> Result<(), EditError> {
        Data::raise(self, space, from, mapping.block)
    }
}

/// Entries with keys that follow each other.
#[derive(Clone, Copy)]
pub(super) struct Run<F> {
    pub first: u64,
    pub length: u64,
    /// The value of the entry so far from the first.
    pub value: F,
}

/// A tree that is being changed.
pub(super) struct Edit<'a, V, S, O> {
    pub nodes: &'a mut Store<Node<V>>,
    pub space: &'a mut S,
    pub owner: &'a mut O,
    pub from: Committed<'a>,
}

impl<V: Value, S: Space, O: Owner<V, S>> Edit<'_, V, S, O> {
    /// A new tree of nothing.
    pub fn empty(&mut self) -> Result<u64, EditError> {
        self.add(Node::Leaf(Entries::default()))
    }

    /// A node in a new block.
    fn add(&mut self, node: Node<V>) -> Result<u64, EditError> {
        let nr = self.space.take(self.from)?;
        self.nodes.put(nr, node);
        Ok(nr)
    }

    /// A node that was made one's own: it may be changed. Gone it is only where counts lie about what refers to it.
    pub(super) fn owned(&mut self, nr: u64) -> Result<&mut Node<V>, EditError> {
        self.nodes.change(nr).ok_or_else(|| in_two_places(nr))
    }

    pub(super) fn children(&mut self, nr: u64) -> Result<&mut Entries<u64>, EditError> {
        match self.owned(nr)? {
            Node::Internal(children) => Ok(children),
            Node::Leaf(_) => Err(in_two_places(nr)),
        }
    }

    /// The children of a node that was made one's own, to be looked at: a change begins with a copy for the way back.
    fn see_children(&self, nr: u64) -> Result<&Entries<u64>, EditError> {
        match self.nodes.get(nr) {
            Some(Node::Internal(children)) => Ok(children),
            _ => Err(in_two_places(nr)),
        }
    }

    /// Makes the node at a place one that may be changed; the block where it is then.
    pub fn own(&mut self, place: Place) -> Result<u64, EditError> {
        read(self.nodes, self.from, place)?;
        if self.nodes.is_own(place.nr) {
            return Ok(place.nr);
        }
        let count = self.space.count(self.from, place.nr)?;
        if count == 0 {
            return Err(KIND.wrong(place.nr, 0, "reference count", 0, "at least 1, as it is in use").into());
        }
        if count == 1 && self.nodes.is_changed(place.nr) {
            self.nodes.set_own(place.nr);
            return Ok(place.nr);
        }
        let node = read(self.nodes, self.from, place)?.copy();
        if count > 1 {
            self.raise_below(&node)?;
        }
        let nr = self.add(node)?;
        self.space.lower(self.from, place.nr)?;
        Ok(nr)
    }

    fn raise_below(&mut self, node: &Node<V>) -> Result<(), EditError> {
        match node {
            Node::Internal(children) => {
                children.values.iter().try_for_each(|child| self.space.raise(self.from, *child))
            }
            Node::Leaf(leaf) => {
                leaf.values.iter().try_for_each(|value| self.owner.raise(self.space, self.from, *value))
            }
        }
    }

    /// Makes a child of a node that is one's own likewise; its place then.
    pub(super) fn own_child(&mut self, parent: Place, at: usize) -> Result<Place, EditError> {
        let place = parent.child(self.see_children(parent.nr)?, at);
        let nr = self.own(place)?;
        if nr != place.nr {
            self.children(parent.nr)?.values[at] = nr;
        }
        Ok(place.moved(nr))
    }

    /// One reference to a node less, of which nothing below is needed any more by us.
    pub(super) fn drop_node(&mut self, nr: u64) -> Result<u32, EditError> {
        let left = self.space.lower(self.from, nr)?;
        if left == 0 && self.nodes.is_changed(nr) {
            self.nodes.remove(nr);
        }
        Ok(left)
    }

    /// Enters one value; the root then, and the value that was there.
    pub fn insert(&mut self, root: u64, key: u64, value: V) -> Result<(u64, Option<V>), EditError> {
        let mut replaced = Vec::new();
        let run = Run { first: key, length: 1, value: |_| value };
        let root = self.insert_run(root, run, &mut replaced)?;
        Ok((root, replaced.pop()))
    }

    /// Enters a run; the root then. Values that were there go to `replaced`.
    pub fn insert_run(
        &mut self,
        mut root: u64,
        run: Run<impl Fn(u64) -> V>,
        replaced: &mut Vec<V>,
    ) -> Result<u64, EditError> {
        let mut done = 0;
        while done < run.length {
            root = self.own(Place::root(root))?;
            root = self.make_room_at_root(root, run.first + done)?;
            let place = self.descend(root, run.first + done)?;
            done = self.fill(place, &run, done, replaced)?;
        }
        Ok(root)
    }

    /// Whether there is no room for what a key needs.
    fn is_full(&self, nr: u64, key: u64) -> bool {
        self.nodes.get(nr).is_some_and(|node| {
            node.len() >= node.max_entries() && !matches!(node, Node::Leaf(leaf) if leaf.get(key).is_some())
        })
    }

    fn make_room_at_root(&mut self, root: u64, key: u64) -> Result<u64, EditError> {
        if !self.is_full(root, key) {
            return Ok(root);
        }
        let first = self.owned(root)?.keys()[0];
        let above = self.add(Node::Internal(Entries { keys: vec![first.min(key)], values: vec![root] }))?;
        self.make_room(Place::root(above), 0, key)?;
        Ok(above)
    }

    /// The leaf for a key, with room in it, below a root that has room: all of the way is one's own then.
    fn descend(&mut self, root: u64, key: u64) -> Result<Place, EditError> {
        let mut place = Place::root(root);
        while let Some(Node::Internal(children)) = self.nodes.get(place.nr) {
            let at = match children.below(key) {
                Some(at) => at,
                None => {
                    self.children(place.nr)?.keys[0] = key;
                    0
                }
            };
            let child = self.own_child(place, at)?;
            if self.is_full(child.nr, key) {
                let at = self.make_room(place, at, key)?;
                place = place.child(self.see_children(place.nr)?, at);
            } else {
                place = child;
            }
        }
        Ok(place)
    }

    /// Makes room for a key below a full child of a node that has room; below which child it belongs then.
    fn make_room(&mut self, parent: Place, at: usize, key: u64) -> Result<usize, EditError> {
        let nr = self.see_children(parent.nr)?.values[at];
        let node = self.owned(nr)?;
        let (most, least) = (node.max_entries(), node.min_entries());
        let rises = node.keys().last().is_some_and(|last| key > *last);
        if rises && at > 0 && self.top_up(parent, at)? {
            return Ok(at);
        }
        let behind = self.owned(nr)?.split_off(if rises { most - least } else { most / 2 });
        let first = behind.keys()[0];
        let behind = self.add(behind)?;
        self.children(parent.nr)?.insert(at + 1, first, behind);
        Ok(if key >= first { at + 1 } else { at })
    }

    /// Moves the first entries of a full child to the end of the one before it, if that is worth it.
    fn top_up(&mut self, parent: Place, at: usize) -> Result<bool, EditError> {
        let nr = self.see_children(parent.nr)?.values[at];
        let node = self.owned(nr)?;
        let (most, least) = (node.max_entries(), node.min_entries());
        let before = parent.child(self.see_children(parent.nr)?, at - 1);
        let room = most.saturating_sub(read(self.nodes, self.from, before)?.len());
        if room < most / 8 {
            return Ok(false);
        }
        let count = room.min(most - least);
        let before = self.own_child(parent, at - 1)?;
        let rest = self.owned(nr)?.split_off(count);
        let first = rest.keys()[0];
        let moved = std::mem::replace(self.owned(nr)?, rest);
        self.append(before, moved)?;
        self.children(parent.nr)?.keys[at] = first;
        Ok(true)
    }

    /// Puts the entries of the next node at the end of one.
    pub(super) fn append(&mut self, place: Place, behind: Node<V>) -> Result<(), EditError> {
        if self.owned(place.nr)?.append(behind) {
            return Ok(());
        }
        Err(KIND.wrong(place.nr, 4, "flags", "other ones than its neighbour's", "leaves at one depth").into())
    }

    /// Enters as much of a run as belongs into a leaf and has room there; how much is done then.
    fn fill(
        &mut self,
        place: Place,
        run: &Run<impl Fn(u64) -> V>,
        mut done: u64,
        replaced: &mut Vec<V>,
    ) -> Result<u64, EditError> {
        let first = run.first + done;
        let end = run.first.saturating_add(run.length).min(place.high.unwrap_or(u64::MAX));
        let is_new = match self.nodes.get(place.nr) {
            Some(Node::Leaf(leaf)) => !has_one(&leaf.keys, &(first..end)),
            _ => false,
        };
        let node = if is_new {
            let node = self.nodes.extend(place.nr, first..end, Node::take_out);
            node.ok_or_else(|| in_two_places(place.nr))?
        } else {
            self.owned(place.nr)?
        };
        let Node::Leaf(leaf) = node else { return Err(in_two_places(place.nr)) };
        let most = max_entries(V::BYTES);
        while done < run.length && place.high.is_none_or(|high| run.first + done < high) {
            let (key, value) = (run.first + done, (run.value)(done));
            let at = leaf.keys.partition_point(|own| *own < key);
            if leaf.keys.get(at) == Some(&key) {
                replaced.push(std::mem::replace(&mut leaf.values[at], value));
            } else if leaf.keys.len() < most {
                leaf.insert(at, key, value);
            } else {
                break;
            }
            done += 1;
        }
        Ok(done)
    }
}

/// A block that is a node of the transaction, and something else besides.
fn in_two_places(nr: u64) -> EditError {
    let found = "none, or another node";
    KIND.wrong(nr, 0, "node", found, "the one that leads there: its reference count was too low").into()
}
