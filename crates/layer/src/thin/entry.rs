//! Entries of the map: what a page of the cache says of a block.

/// Where a block lies, as an entry of a page of level 0. 0: nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    /// Block of the data device.
    pub block: u64,
    /// Another device may have it too, so that it must not be overwritten.
    pub is_shared: bool,
    /// Not all of it has its content yet: see `fill.rs`.
    pub is_filling: bool,
}

/// What entries of neighbours differ by that lie one after the other.
pub(super) const STEP: u64 = 4;

impl Mapped {
    pub fn entry(self) -> u64 {
        (self.block + 1) * STEP + 2 * u64::from(self.is_filling) + u64::from(self.is_shared)
    }

    #[inline]
    pub fn of_entry(entry: u64) -> Option<Mapped> {
        let block = (entry / STEP).checked_sub(1)?;
        Some(Mapped { block, is_shared: entry & 1 != 0, is_filling: entry & 2 != 0 })
    }
}

/// The data block of an entry that leads to one with all its content, for a write: one that is nobody else's.
#[inline(always)]
pub(super) fn settled(entry: u64, is_write: bool) -> Option<u64> {
    let obstacles = 2 + u64::from(is_write);
    if entry & obstacles == 0 { (entry / STEP).checked_sub(1) } else { None }
}

/// The entry of a page of level 1 for a page that maps nothing; 0: not known.
pub(super) const HOLE: u64 = 1;
