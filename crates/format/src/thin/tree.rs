//! Ways through a tree: to one key, and over all of it.
//!
//! [`Place`] holds what may be believed on the way: which keys a node may have, by what the nodes above it said, and how deep it is.
//! It does no I/O, so that readers of any kind share its checks; [`Reader`] is the one over a [`Source`].

use crate::FormatError;
use crate::bytes::length;
use crate::source::Source;

use super::node::{Entries, Node};
use super::value::Value;
use super::{BlockKind, DEPTH_MAX, metadata_blocks, read_block};

const KIND: BlockKind = BlockKind::Node;

/// A node that a tree leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its block.
    pub nr: u64,
    /// No key below it is less.
    pub low: u64,
    /// All keys below it are less; none: no bound.
    pub high: Option<u64>,
    /// Nodes above it.
    depth: usize,
}

impl Place {
    /// The root of a tree.
    pub fn root(nr: u64) -> Place {
        Place { nr, low: 0, high: None, depth: 0 }
    }

    /// Whether no node is above it.
    pub fn is_root(&self) -> bool {
        self.depth == 0
    }

    /// The same place in the tree, its node in another block.
    pub(super) fn moved(self, nr: u64) -> Place {
        Place { nr, ..self }
    }

    /// Checks that a node may be here, where there are so many metadata blocks.
    ///
    /// # Errors
    ///
    /// It has keys that the nodes above it say are elsewhere, or children that are no blocks.
    pub fn check<V: Value>(&self, node: &Node<V>, blocks: u64) -> Result<(), FormatError> {
        self.check_again(node)?;
        let Node::Internal(children) = node else { return Ok(()) };
        if let Some(outside) = children.values.iter().find(|child| **child == 0 || **child >= blocks) {
            return Err(KIND.wrong(
                self.nr,
                32,
                "child",
                outside,
                format!("a block from 1 to {}", blocks.saturating_sub(1)),
            ));
        }
        Ok(())
    }

    /// Checks what depends on the way on which one comes to a node, whose children were checked when it was read.
    ///
    /// # Errors
    ///
    /// As for [`Place::check`].
    pub(super) fn check_again<V: Value>(&self, node: &Node<V>) -> Result<(), FormatError> {
        if let Some(first) = node.keys().first().filter(|first| **first < self.low) {
            let expected = format!("at least {}, as the node above has it", self.low);
            return Err(KIND.wrong(self.nr, 32, "first key", first, expected));
        }
        if let Some((last, high)) = node.keys().last().zip(self.high).filter(|(last, high)| *last >= high) {
            let at = 32 + 8 * (node.keys().len() - 1);
            let expected = format!("less than {high}, where the next node begins");
            return Err(KIND.wrong(self.nr, at, "last key", last, expected));
        }
        if matches!(node, Node::Internal(_)) && self.depth + 1 >= DEPTH_MAX {
            let expected = format!("a leaf, {DEPTH_MAX} nodes below the root");
            return Err(KIND.wrong(self.nr, 4, "flags", "1 (internal)", expected));
        }
        Ok(())
    }

    /// The place of a child of the internal node that is here.
    pub fn child(&self, children: &Entries<u64>, at: usize) -> Place {
        Place {
            nr: children.values[at],
            low: children.keys[at],
            high: children.keys.get(at + 1).copied().or(self.high),
            depth: self.depth + 1,
        }
    }
}

/// What a walk over a tree tells.
pub trait Visitor<V> {
    /// It comes to a node. False: it is not read, nor what is below it.
    fn enter(&mut self, place: Place) -> bool {
        let _ = place;
        true
    }
    /// A node was read and checked.
    ///
    /// # Errors
    ///
    /// Whatever ends the walk.
    fn node(&mut self, place: Place, node: &Node<V>) -> Result<(), FormatError>;
}

/// Collects all entries, of which there is a bound.
struct Collect<V> {
    entries: Vec<(u64, V)>,
    most: u64,
    what: &'static str,
}

impl<V: Copy> Visitor<V> for Collect<V> {
    fn node(&mut self, place: Place, node: &Node<V>) -> Result<(), FormatError> {
        if let Node::Leaf(leaf) = node {
            self.entries.extend(leaf.iter());
            if length(self.entries.len()) > self.most {
                let found = format!("more than {}", self.most);
                return Err(KIND.wrong(place.nr, 16, self.what, found, format!("at most {}", self.most)));
            }
        }
        Ok(())
    }
}

/// Reads trees on a metadata device.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    source: &'a dyn Source,
    blocks: u64,
}

impl<'a> Reader<'a> {
    /// Over a metadata device.
    pub fn new(source: &'a dyn Source) -> Reader<'a> {
        Reader { source, blocks: metadata_blocks(source.size()) }
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The device.
    pub fn source(&self) -> &'a dyn Source {
        self.source
    }

    /// The node at a place.
    ///
    /// # Errors
    ///
    /// It cannot be read, is damaged, or does not belong there.
    pub fn node<V: Value>(&self, place: Place) -> Result<Node<V>, FormatError> {
        let node = Node::decode(place.nr, &*read_block(self.source, place.nr)?)?;
        place.check(&node, self.blocks)?;
        Ok(node)
    }

    /// The value of a key in the tree under `root`.
    ///
    /// # Errors
    ///
    /// As for [`Reader::node`], of the nodes on the way.
    pub fn look_up<V: Value>(&self, root: u64, key: u64) -> Result<Option<V>, FormatError> {
        let mut place = Place::root(root);
        loop {
            match self.node::<V>(place)? {
                Node::Leaf(entries) => return Ok(entries.get(key)),
                Node::Internal(children) => match children.below(key) {
                    Some(at) => place = place.child(&children, at),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Walks over the tree under `root`, in the order of its keys.
    ///
    /// # Errors
    ///
    /// As for [`Reader::node`], and what the visitor says.
    pub fn walk<V: Value>(&self, root: u64, visitor: &mut dyn Visitor<V>) -> Result<(), FormatError> {
        let mut left = vec![Place::root(root)];
        while let Some(place) = left.pop() {
            if !visitor.enter(place) {
                continue;
            }
            let node = self.node::<V>(place)?;
            if let Node::Internal(children) = &node {
                left.extend((0..children.keys.len()).rev().map(|at| place.child(children, at)));
            }
            visitor.node(place, &node)?;
        }
        Ok(())
    }

    /// All entries of the tree under `root`; not more than `most`, which `what` calls them.
    ///
    /// # Errors
    ///
    /// As for [`Reader::walk`], and if there are more.
    pub fn all<V: Value>(
        &self,
        root: u64,
        most: u64,
        what: &'static str,
    ) -> Result<Vec<(u64, V)>, FormatError> {
        let mut visitor = Collect { entries: Vec::new(), most, what };
        self.walk(root, &mut visitor)?;
        Ok(visitor.entries)
    }
}
