//! Nodes of the B-trees.
//!
//! | off | type | field |
//! | --- | --- | --- |
//! | 0 | u32 | checksum |
//! | 4 | u32 | flags: 1 internal, 2 leaf |
//! | 8 | u64 | block number |
//! | 16 | u32 | nr_entries |
//! | 20 | u32 | max_entries |
//! | 24 | u32 | value_size: 8 in internal nodes |
//! | 28 | u32 | zero |
//! | 32 | u64 × max_entries | keys |
//! | 32 + 8·max_entries | value_size × max_entries | values |
//!
//! Where a key is looked for: in an internal node below the greatest key that is not greater, in a leaf at that very key.

use std::ops::Range;

use crate::FormatError;
use crate::bytes::{index, put, u32_le};

use super::value::Value;
use super::{BLOCK_BYTES, Block, BlockKind};

const HEADER_BYTES: usize = 32;
const INTERNAL: u32 = 1;
const LEAF: u32 = 2;
const KIND: BlockKind = BlockKind::Node;

/// Entries that a copy of a node has room for beside those that it has.
const ADDED: usize = 16;

/// How many entries fit into a node with values of so many bytes: a multiple of 3, as nodes are split and merged in thirds.
pub const fn max_entries(value_bytes: usize) -> usize {
    (BLOCK_BYTES - HEADER_BYTES) / (8 + value_bytes) / 3 * 3
}

/// A node of a tree with values `V`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node<V> {
    /// Children, each with a key that none below it is less than.
    Internal(Entries<u64>),
    /// Values.
    Leaf(Entries<V>),
}

/// Keys, which rise strictly, and as many values; at most [`max_entries`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries<V> {
    /// The keys.
    pub keys: Vec<u64>,
    /// Their values.
    pub values: Vec<V>,
}

impl<V> Default for Entries<V> {
    fn default() -> Self {
        Entries { keys: Vec::new(), values: Vec::new() }
    }
}

impl<V: Copy> Entries<V> {
    /// The value of a key: in a leaf.
    pub fn get(&self, key: u64) -> Option<V> {
        self.keys.binary_search(&key).ok().map(|at| self.values[at])
    }

    /// Which entry `key` would be below: in an internal node. None: less than all.
    pub fn below(&self, key: u64) -> Option<usize> {
        self.keys.partition_point(|own| *own <= key).checked_sub(1)
    }

    /// Takes all entries of a range away.
    fn take_out(&mut self, keys: &Range<u64>) {
        let place = |key: u64| self.keys.partition_point(|own| *own < key);
        let gone = place(keys.start)..place(keys.end);
        self.keys.drain(gone.clone());
        self.values.drain(gone);
    }

    /// A copy to which something can be added.
    fn copy(&self) -> Entries<V> {
        let room = self.keys.len() + ADDED;
        let mut copy = Entries { keys: Vec::with_capacity(room), values: Vec::with_capacity(room) };
        copy.keys.extend_from_slice(&self.keys);
        copy.values.extend_from_slice(&self.values);
        copy
    }

    fn split_off(&mut self, at: usize) -> Entries<V> {
        Entries { keys: self.keys.split_off(at), values: self.values.split_off(at) }
    }

    fn append(&mut self, behind: Entries<V>) {
        self.keys.extend(behind.keys);
        self.values.extend(behind.values);
    }

    /// Puts an entry before the one at `at`.
    pub(super) fn insert(&mut self, at: usize, key: u64, value: V) {
        self.keys.insert(at, key);
        self.values.insert(at, value);
    }

    /// Takes an entry away.
    pub(super) fn remove(&mut self, at: usize) -> V {
        self.keys.remove(at);
        self.values.remove(at)
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, V)> + '_ {
        self.keys.iter().copied().zip(self.values.iter().copied())
    }
}

impl<V: Value> Entries<V> {
    fn decode(block: &Block, count: usize) -> Entries<V> {
        let (keys, values) = block[HEADER_BYTES..].split_at(8 * max_entries(V::BYTES));
        Entries {
            keys: keys.chunks_exact(8).take(count).map(<u64 as Value>::decode).collect(),
            values: values.chunks_exact(V::BYTES).take(count).map(V::decode).collect(),
        }
    }

    fn encode(&self, flags: u32, nr: u64) -> Box<Block> {
        let most = max_entries(V::BYTES);
        assert!(self.keys.len() == self.values.len() && self.keys.len() <= most, "a node of {most} entries");
        let mut block = Box::new([0; BLOCK_BYTES]);
        let number = |n: usize| u32::try_from(n).expect("a node is small").to_le_bytes();
        put(&mut block[..], 4, &flags.to_le_bytes());
        put(&mut block[..], 16, &number(self.keys.len()));
        put(&mut block[..], 20, &number(most));
        put(&mut block[..], 24, &number(V::BYTES));
        let (keys, values) = block[HEADER_BYTES..].split_at_mut(8 * most);
        keys.chunks_exact_mut(8).zip(&self.keys).for_each(|(place, key)| key.encode(place));
        values.chunks_exact_mut(V::BYTES).zip(&self.values).for_each(|(place, value)| value.encode(place));
        KIND.seal(nr, &mut block);
        block
    }
}

impl<V: Value> Node<V> {
    /// Takes the node in block `nr` apart.
    ///
    /// # Errors
    ///
    /// It is damaged, no node, or one of a tree with other values.
    pub fn decode(nr: u64, block: &Block) -> Result<Node<V>, FormatError> {
        KIND.verify(nr, block)?;
        let flags = u32_le(block, 4);
        let value_bytes = match flags {
            INTERNAL => <u64 as Value>::BYTES,
            LEAF => V::BYTES,
            _ => return Err(KIND.wrong(nr, 4, "flags", format!("{flags:#x}"), "1 (internal) or 2 (leaf)")),
        };
        let found = u32_le(block, 24);
        if index(found) != value_bytes {
            return Err(KIND.wrong(nr, 24, "value size", found, value_bytes));
        }
        let (found, most) = (u32_le(block, 20), max_entries(value_bytes));
        if index(found) != most {
            return Err(KIND.wrong(nr, 20, "max_entries", found, most));
        }
        let count = u32_le(block, 16);
        if index(count) > most {
            return Err(KIND.wrong(nr, 16, "nr_entries", count, format!("at most {most}")));
        }
        if flags == INTERNAL && count == 0 {
            return Err(KIND.wrong(nr, 16, "nr_entries", count, "at least 1 in an internal node"));
        }
        let count = index(count);
        let node = if flags == INTERNAL {
            Node::Internal(Entries::decode(block, count))
        } else {
            Node::Leaf(Entries::decode(block, count))
        };
        if let Some(at) = node.keys().windows(2).position(|pair| pair[0] >= pair[1]) {
            let expected = format!("more than {}, the one before it", node.keys()[at]);
            return Err(KIND.wrong(nr, HEADER_BYTES + 8 * (at + 1), "key", node.keys()[at + 1], expected));
        }
        Ok(node)
    }

    /// Its bytes, as block `nr`.
    ///
    /// # Panics
    ///
    /// It has more entries than fit, or not as many keys as values.
    pub fn encode(&self, nr: u64) -> Box<Block> {
        match self {
            Node::Internal(entries) => entries.encode(INTERNAL, nr),
            Node::Leaf(entries) => entries.encode(LEAF, nr),
        }
    }

    /// Its keys.
    pub fn keys(&self) -> &[u64] {
        match self {
            Node::Internal(entries) => &entries.keys,
            Node::Leaf(entries) => &entries.keys,
        }
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.keys().len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    /// Most entries that it may have.
    pub fn max_entries(&self) -> usize {
        match self {
            Node::Internal(_) => max_entries(<u64 as Value>::BYTES),
            Node::Leaf(_) => max_entries(V::BYTES),
        }
    }

    /// A copy to which something can be added, without another one.
    pub(super) fn copy(&self) -> Node<V> {
        match self {
            Node::Internal(entries) => Node::Internal(entries.copy()),
            Node::Leaf(entries) => Node::Leaf(entries.copy()),
        }
    }

    /// Takes all entries of a range away, if it is a leaf.
    pub(super) fn take_out(&mut self, keys: &Range<u64>) {
        if let Node::Leaf(leaf) = self {
            leaf.take_out(keys);
        }
    }

    /// Takes the entries from `at` on away, as a node of the same kind.
    pub(super) fn split_off(&mut self, at: usize) -> Node<V> {
        match self {
            Node::Internal(entries) => Node::Internal(entries.split_off(at)),
            Node::Leaf(entries) => Node::Leaf(entries.split_off(at)),
        }
    }

    /// Puts the entries of the node behind it at its end; false: they are of another kind.
    pub(super) fn append(&mut self, behind: Node<V>) -> bool {
        match (self, behind) {
            (Node::Internal(own), Node::Internal(behind)) => own.append(behind),
            (Node::Leaf(own), Node::Leaf(behind)) => own.append(behind),
            _ => return false,
        }
        true
    }

    /// Fewest entries that it may have, unless it is a root.
    pub fn min_entries(&self) -> usize {
        match self {
            Node::Internal(_) => max_entries(<u64 as Value>::BYTES) / 3,
            Node::Leaf(_) => max_entries(V::BYTES) / 3,
        }
    }
}
