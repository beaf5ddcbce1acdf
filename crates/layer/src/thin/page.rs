//! A page of a device's map, gathered from the nodes of its tree: which node is wanted next, and what is known of it all.
//!
//! No I/O: whoever reads the nodes, in a task or while volumes are assembled, gives them to [`Gather::take`].

use blockwork_format::FormatError;
use blockwork_format::thin::tree::Place;
use blockwork_format::thin::{BLOCK_BYTES, BlockTime, DeviceDetails, Entries, Node};

use super::cache::PAGE_ENTRIES;

/// Where a block lies, as an entry of a page of level 0. 0: nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    /// Block of the data device.
    pub block: u64,
    /// Another device may have it too.
    pub is_shared: bool,
}

impl Mapped {
    pub fn entry(self) -> u64 {
        (self.block + 1) << 1 | u64::from(self.is_shared)
    }

    #[inline]
    pub fn of_entry(entry: u64) -> Option<Mapped> {
        let block = (entry >> 1).checked_sub(1)?;
        Some(Mapped { block, is_shared: entry & 1 != 0 })
    }
}

/// The entry of a page of level 1 for a page that maps nothing; 0: not known.
pub(super) const HOLE: u64 = 1;

/// What nodes of a device's tree are checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Blocks of the metadata device.
    pub metadata_blocks: u64,
    /// Whole blocks of the data device.
    pub data_blocks: u64,
}

/// A page of level 0 that is being gathered.
pub(super) struct Gather {
    root: u64,
    details: DeviceDetails,
    bounds: Bounds,
    first: u64,
    end: u64,
    /// All blocks of the page before this one are known.
    known: u64,
    next: Option<Place>,
    entries: Vec<(u64, u64)>,
    /// What is known to be unmapped around the page, if nothing in it is mapped.
    hole: (u64, u64),
}

impl Gather {
    /// Page number `page` of the device whose tree has that root.
    pub fn new(root: u64, details: DeviceDetails, bounds: Bounds, page: u64) -> Gather {
        let first = page * PAGE_ENTRIES;
        Gather {
            root,
            details,
            bounds,
            first,
            end: first + PAGE_ENTRIES,
            known: first,
            next: Some(Place::root(root)),
            entries: Vec::new(),
            hole: (first, first),
        }
    }

    /// The node that is wanted; none: the page is complete.
    pub fn wanted(&self) -> Option<Place> {
        self.next
    }

    /// Takes the node that was wanted.
    ///
    /// # Errors
    ///
    /// It cannot be in that place, or maps what the data device does not have.
    pub fn take(&mut self, place: Place, node: &Node<BlockTime>) -> Result<(), FormatError> {
        place.check(node, self.bounds.metadata_blocks)?;
        match node {
            Node::Internal(children) => match children.below(self.known) {
                Some(at) => self.next = Some(place.child(children, at)),
                None => self.passed(place.low, Some(children.keys[0])),
            },
            Node::Leaf(leaf) => {
                self.check(place, leaf)?;
                self.leaf(place, leaf);
            }
        }
        Ok(())
    }

    fn check(&self, place: Place, leaf: &Entries<BlockTime>) -> Result<(), FormatError> {
        let outside = leaf.iter().find(|(_, mapping)| mapping.block >= self.bounds.data_blocks);
        let Some((key, mapping)) = outside else { return Ok(()) };
        let found = format!("{} for block {key} (metadata block {})", mapping.block, place.nr);
        let expected = format!("below {}, the blocks of the data device", self.bounds.data_blocks);
        let offset = place.nr * BLOCK_BYTES as u64;
        Err(FormatError::invalid("thin metadata node", offset, "data block", found, expected)
            .with_remedy("was the data device cut?"))
    }

    fn leaf(&mut self, place: Place, leaf: &Entries<BlockTime>) {
        let from = leaf.keys.partition_point(|key| *key < self.first);
        let to = leaf.keys.partition_point(|key| *key < self.end);
        for at in from..to {
            let mapping = leaf.values[at];
            let mapped = Mapped { block: mapping.block, is_shared: self.details.may_share(mapping) };
            self.entries.push((leaf.keys[at] - self.first, mapped.entry()));
        }
        let low = from.checked_sub(1).map_or(place.low, |before| leaf.keys[before] + 1);
        self.passed(low, leaf.keys.get(to).copied().or(place.high));
    }

    /// Everything is known up to `high`; what is not among the entries is unmapped from `low` on.
    fn passed(&mut self, low: u64, high: Option<u64>) {
        if self.known == self.first {
            self.hole.0 = low.min(self.first);
        }
        // A node that ends where it began says nothing, and would be asked for for ever.
        self.known = high.unwrap_or(u64::MAX).max(self.known + 1);
        self.hole.1 = self.known;
        self.next = (self.known < self.end).then(|| Place::root(self.root));
    }

    /// What is mapped: entries by their number in the page.
    pub fn entries(&self) -> &[(u64, u64)] {
        &self.entries
    }

    /// Of the pages that make up one of level 1 with this one, those that are known to map nothing, by their numbers there.
    pub fn holes(&self) -> std::ops::Range<u64> {
        if !self.entries.is_empty() {
            return 0..0;
        }
        let pages = self.hole.0.div_ceil(PAGE_ENTRIES)..self.hole.1 / PAGE_ENTRIES;
        let first = self.first / PAGE_ENTRIES / PAGE_ENTRIES * PAGE_ENTRIES;
        let within = |page: u64| page.clamp(first, first + PAGE_ENTRIES) - first;
        within(pages.start)..within(pages.end)
    }
}
