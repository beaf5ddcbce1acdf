//! Taking entries out of a tree, leaf by leaf; what gets too empty is merged with a neighbour, or gets some of its entries.
//!
//! A leaf of which nothing is to stay is not copied: if others refer to it too, it only loses a reference, and what it refers to keeps
//! its own.

use std::ops::Range;

use crate::thin::node::{Entries, Node};
use crate::thin::tree::Place;
use crate::thin::value::Value;

use super::EditError;
use super::space::Space;
use super::store::Store;
use super::tree::{Committed, Edit, Owner, leaf, read};

/// Leaves without a wanted entry that are looked at before a step ends: there is at most one in a whole tree.
const EMPTY_MAX: usize = 64;

/// What was taken out of a leaf.
#[derive(Debug)]
pub(super) struct Taken<V> {
    /// Values that this tree refers to no more.
    pub values: Vec<V>,
    /// How many entries went; more than values, if others still have the leaf.
    pub count: u64,
    /// Where what is left of the range begins; none: nothing is left.
    pub next: Option<u64>,
}

impl<V: Value, S: Space, O: Owner<V, S>> Edit<'_, V, S, O> {
    /// Takes what one leaf has of a range out of a tree; the root then.
    pub fn remove_leaf(&mut self, root: u64, range: Range<u64>) -> Result<(u64, Taken<V>), EditError> {
        let mut taken = Taken { values: Vec::new(), count: 0, next: None };
        let first = first_leaf(self.nodes, self.from, root, &range)?;
        taken.next = first.next;
        let Some(start) = first.start else { return Ok((root, taken)) };
        let root = self.own(Place::root(root))?;
        self.take(Place::root(root), &(start..range.end), &mut taken)?;
        Ok((self.shrink(root)?, taken))
    }

    /// Takes entries out of the leaf for the first key of a range, below a node that is one's own.
    fn take(&mut self, place: Place, range: &Range<u64>, taken: &mut Taken<V>) -> Result<(), EditError> {
        let children = match self.owned(place.nr)? {
            Node::Leaf(leaf) => {
                taken_from(leaf, range, taken);
                return Ok(());
            }
            Node::Internal(children) => children,
        };
        let at = children.below(range.start).unwrap_or(0);
        let child = place.child(children, at);
        let whole = match read(self.nodes, self.from, child)? {
            Node::Leaf(leaf) if leaf.keys.iter().all(|key| range.contains(key)) => Some(leaf.clone()),
            _ => None,
        };
        if let Some(leaf) = whole {
            taken.count += crate::bytes::length(leaf.keys.len());
            if self.drop_node(child.nr)? == 0 {
                taken.values.extend(leaf.values);
            }
            self.children(place.nr)?.remove(at);
            return Ok(());
        }
        let child = self.own_child(place, at)?;
        self.take(child, range, taken)?;
        self.mend(place, at)
    }

    /// Sees to a child, one's own, that has lost entries.
    fn mend(&mut self, parent: Place, at: usize) -> Result<(), EditError> {
        let child = parent.child(self.children(parent.nr)?, at);
        let node = self.owned(child.nr)?;
        if node.is_empty() {
            self.drop_node(child.nr)?;
            self.children(parent.nr)?.remove(at);
            return Ok(());
        }
        if node.len() >= node.min_entries() || self.children(parent.nr)?.keys.len() < 2 {
            return Ok(());
        }
        let left = at.saturating_sub(1);
        let (before, behind) = (self.own_child(parent, left)?, self.own_child(parent, left + 1)?);
        let (most, count) = (self.owned(before.nr)?.max_entries(), self.owned(before.nr)?.len());
        let total = count + self.owned(behind.nr)?.len();
        let moved = std::mem::replace(self.owned(behind.nr)?, Node::Leaf(Entries::default()));
        self.append(before, moved)?;
        // Two that are just full enough would be too empty again at once.
        if total <= most / 4 * 3 {
            self.drop_node(behind.nr)?;
            self.children(parent.nr)?.remove(left + 1);
            return Ok(());
        }
        let rest = self.owned(before.nr)?.split_off(total / 2);
        self.children(parent.nr)?.keys[left + 1] = rest.keys()[0];
        *self.owned(behind.nr)? = rest;
        Ok(())
    }

    /// Takes nodes with a single child away from the top of a tree that is one's own.
    fn shrink(&mut self, mut root: u64) -> Result<u64, EditError> {
        loop {
            match self.owned(root)? {
                Node::Internal(children) if children.keys.is_empty() => {
                    *self.owned(root)? = Node::Leaf(Entries::default());
                }
                Node::Internal(children) if children.keys.len() == 1 => {
                    let child = Place::root(root).child(children, 0);
                    read(self.nodes, self.from, child)?;
                    self.drop_node(root)?;
                    let shared = self.space.count(self.from, child.nr)? > 1;
                    if shared || !self.nodes.is_changed(child.nr) {
                        return Ok(child.nr);
                    }
                    root = child.nr;
                }
                _ => return Ok(root),
            }
        }
    }
}

/// Where in a range the first leaf with an entry in it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstLeaf {
    /// A key that leads there; none: none was found yet.
    pub start: Option<u64>,
    /// Where the next leaf begins, if that is in the range.
    pub next: Option<u64>,
}

/// Looks for the first leaf that has an entry in a range.
pub(super) fn first_leaf<V: Value>(
    nodes: &mut Store<Node<V>>,
    from: Committed<'_>,
    root: u64,
    range: &Range<u64>,
) -> Result<FirstLeaf, EditError> {
    let mut next = Some(range.start);
    for _ in 0..EMPTY_MAX {
        let Some(start) = next.filter(|start| *start < range.end) else { break };
        let (place, entries) = leaf(nodes, from, root, start)?;
        next = place.high.filter(|high| *high < range.end && *high > start);
        if has_one(&entries.keys, &(start..range.end)) {
            return Ok(FirstLeaf { start: Some(start), next });
        }
    }
    Ok(FirstLeaf { start: None, next })
}

/// Whether one of some rising keys is in a range.
pub(super) fn has_one(keys: &[u64], range: &Range<u64>) -> bool {
    let at = keys.partition_point(|key| *key < range.start);
    keys.get(at).is_some_and(|key| *key < range.end)
}

fn taken_from<V: Copy>(leaf: &mut Entries<V>, range: &Range<u64>, taken: &mut Taken<V>) {
    let first = leaf.keys.partition_point(|key| *key < range.start);
    let end = leaf.keys.partition_point(|key| *key < range.end);
    leaf.keys.drain(first..end);
    taken.values.extend(leaf.values.drain(first..end));
    taken.count += crate::bytes::length(end - first);
}
