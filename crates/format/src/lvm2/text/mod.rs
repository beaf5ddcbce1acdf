//! The text in which LVM describes a volume group, as a tree that keeps whatever is in it.
//!
//! ```text
//! vg0 {                            # a section
//!     id = "4UU62I-PF3w-…"         # a string, in which \" and \\ are escaped
//!     seqno = 15                   # a number
//!     status = ["READ", "WRITE"]   # an array; arrays are not nested
//! }
//! ```
//!
//! LVM reads more than it writes, and so does [`Section::parse`]: octal numbers (`010`), numbers with a point, strings in
//! single quotes or without quotes, a comma before the end of an array. What is kept of them is the value.
//!
//! Invariants:
//!
//! 1. `parse(print(tree)) == tree`, in both [`Style`]s; and printing twice gives the same bytes.
//! 2. Keys keep their order. A key is in a section once: of several values the first is kept, as by LVM since 2016, which
//!    writes only that one back. A section that is there again is refused: LVM makes one volume of two.
//! 3. Sections are nested to [`DEPTH_MAX`] at most: nothing that walks a tree can run out of stack.
//! 4. A tree takes memory in proportion to its text, which has at most `TEXT_BYTES_MAX` bytes and [`ENTRIES_MAX`] entries.
//!
//! Strings are bytes: a description holds whatever somebody typed on a command line.

mod parse;
mod print;
#[cfg(test)]
mod tests;

use std::fmt;

pub(super) use parse::PLACE;

/// How deep sections are nested. LVM itself needs 5: a message of a thin pool's segment.
pub const DEPTH_MAX: usize = 32;

/// Keys, sections and elements of arrays in one text, together. A VG with 2,000 LVs has about 30,000.
pub const ENTRIES_MAX: usize = 1 << 20;

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// A list of keys, in the order of the text: a section, or the whole text.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Section {
    /// No two of them have the same key.
    pub entries: Vec<Entry>,
}

/// A key and what it has. Entries are equal where keys and contents are, whatever their lines.
#[derive(Clone)]
pub struct Entry {
    /// The key: without `/`, control characters, and not empty.
    pub key: String,
    /// Line of the text, from 1; 0 for what does not come out of a text.
    pub line: u64,
    /// What it has.
    pub node: Node,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.node == other.node
    }
}

impl Eq for Entry {}

/// What belongs to a key.
#[derive(Clone, PartialEq, Eq)]
pub enum Node {
    /// `key { … }`
    Section(Section),
    /// `key = value`
    Value(Value),
    /// `key = [value, …]`
    Array(Vec<Value>),
}

/// A number or a string.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// A whole number.
    Integer(i64),
    /// A number with a point, as it is spelled.
    Decimal(String),
    /// A string, without its quotes and escapes. It has no NUL.
    String(Vec<u8>),
}

/// How a tree is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Without indentation: as in metadata areas.
    Disk,
    /// Indented with tabs: as in the files of vgcfgbackup(8).
    File,
}

impl Value {
    /// The string, where it is one of valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Integer(_) | Self::Decimal(_) => None,
        }
    }

    /// The number, where it is a whole one.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(n) => Some(*n),
            Self::Decimal(_) | Self::String(_) => None,
        }
    }
}

impl From<i64> for Value {
    fn from(n: i64) -> Self {
        Self::Integer(n)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.as_bytes().to_vec())
    }
}

impl Section {
    /// What `key` has here.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// The entry of `key`.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// What `key` has here, to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
    }

    /// The section `key`, where it is one.
    pub fn section(&self, key: &str) -> Option<&Self> {
        self.get(key).and_then(Node::as_section)
    }

    /// The section `key`, to be changed.
    pub fn section_mut(&mut self, key: &str) -> Option<&mut Self> {
        match self.get_mut(key) {
            Some(Node::Section(section)) => Some(section),
            _ => None,
        }
    }

    /// Gives `key` a new content: in its place where it is there, at the end where it is not.
    pub fn set(&mut self, key: &str, node: Node) {
        match self.get_mut(key) {
            Some(old) => *old = node,
            None => self.entries.push(Entry { key: key.to_owned(), line: 0, node }),
        }
    }

    /// Gives `key` a new content: in its place where it is there, otherwise behind the last of `earlier` that is there, or
    /// first of all. LVM writes the keys of a section in one order only, and so do we.
    pub fn set_behind(&mut self, earlier: &[&str], key: &str, node: Node) {
        if let Some(old) = self.get_mut(key) {
            *old = node;
            return;
        }
        let last = self.entries.iter().rposition(|entry| earlier.contains(&entry.key.as_str()));
        let entry = Entry { key: key.to_owned(), line: 0, node };
        self.entries.insert(last.map_or(0, |at| at + 1), entry);
    }

    /// Gives the entry `old` the key `new`, in its place. Without effect where there is no such entry.
    pub fn rename(&mut self, old: &str, new: &str) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == old) {
            new.clone_into(&mut entry.key);
        }
    }

    /// Takes `key` away, and returns what it had.
    pub fn remove(&mut self, key: &str) -> Option<Node> {
        let at = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.remove(at).node)
    }

    /// Of a whole text: sections first, as LVM demands it in a metadata area.
    pub fn sort_for_disk(&mut self) {
        self.entries.sort_by_key(|entry| !matches!(entry.node, Node::Section(_)));
    }

    /// Of a whole text: sections last, as LVM writes backup files.
    pub fn sort_for_file(&mut self) {
        self.entries.sort_by_key(|entry| matches!(entry.node, Node::Section(_)));
    }
}

impl Node {
    /// The section, where it is one.
    pub fn as_section(&self) -> Option<&Section> {
        match self {
            Self::Section(section) => Some(section),
            Self::Value(_) | Self::Array(_) => None,
        }
    }
}

impl From<i64> for Node {
    fn from(n: i64) -> Self {
        Self::Value(n.into())
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Self::Value(text.into())
    }
}

/// As it is printed, but on one line.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(n) => write!(f, "{n}"),
            Self::Decimal(text) => f.write_str(text),
            Self::String(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Section(section) => section.fmt(f),
            Self::Value(value) => value.fmt(f),
            Self::Array(values) => values.fmt(f),
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?} = {:?}", self.line, self.key, self.node)
    }
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(&self.entries).finish()
    }
}
