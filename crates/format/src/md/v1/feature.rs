//! The feature map of a 1.x superblock.

use std::fmt;
use std::ops::BitOr;

/// What a 1.x superblock makes use of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features(pub u32);

impl Features {
    /// There is a write-intent bitmap at `bitmap_offset`.
    pub const BITMAP: Features = Features(1);
    /// `recovery_offset` counts: the member is in sync only before it.
    pub const RECOVERY_OFFSET: Features = Features(1 << 1);
    /// A reshape is under way.
    pub const RESHAPE_ACTIVE: Features = Features(1 << 2);
    /// The list of bad blocks is not empty.
    pub const BAD_BLOCKS: Features = Features(1 << 3);
    /// The member takes the place of another one that is still there.
    pub const REPLACEMENT: Features = Features(1 << 4);
    /// The reshape goes from the end to the start.
    pub const RESHAPE_BACKWARDS: Features = Features(1 << 5);
    /// The reshape moves the start of the data by `new_offset`.
    pub const NEW_OFFSET: Features = Features(1 << 6);
    /// The member is being recovered by the bitmap.
    pub const RECOVERY_BITMAP: Features = Features(1 << 7);
    /// The array belongs to a cluster.
    pub const CLUSTERED: Features = Features(1 << 8);
    /// The array has a journal.
    pub const JOURNAL: Features = Features(1 << 9);
    /// Partial parity log.
    pub const PPL: Features = Features(1 << 10);
    /// Several partial parity logs.
    pub const MULTIPLE_PPLS: Features = Features(1 << 11);
    /// The layout of a RAID0 is meant.
    pub const RAID0_LAYOUT: Features = Features(1 << 12);

    /// All that are known; with any other, nothing in the superblock can be relied upon.
    pub const KNOWN: Features = Features((1 << 13) - 1);

    /// Whether all of `other` is in it.
    pub fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in it.
    pub fn has_any(self, other: Features) -> bool {
        self.0 & other.0 != 0
    }

    /// These and those of `other`, or these without them.
    #[must_use]
    pub fn with(self, other: Features, on: bool) -> Features {
        if on { self | other } else { Features(self.0 & !other.0) }
    }
}

impl BitOr for Features {
    type Output = Features;

    fn bitor(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

impl fmt::LowerHex for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl fmt::Display for Features {
    /// As mdadm does: `0x1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
