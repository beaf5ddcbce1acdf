//! What a fast device holds of a slow one, its origin: the metadata of dm-cache ([`blocks`]) and of dm-writecache ([`writes`]). For reading only.
//!
//! Both say of blocks of the fast device which block of the origin each has. [`Kept`] is what matters of that to a reader: the blocks that
//! the origin does not have as they were written last.
//!
//! Invariants: (1) no block of the origin, and none of the fast device, is kept twice; (2) memory is in proportion to what was read, not to what
//! a number says that there is.

pub mod blocks;
#[cfg(test)]
mod tests;
pub mod writes;

/// Blocks that lie on the fast device only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Sectors of a block, of both devices.
    pub block_sectors: u64,
    /// Where the first block begins on the fast device, in sectors.
    pub start: u64,
    /// Which: blocks of the origin, which rise strictly, each with its block of the fast device.
    pub blocks: Vec<(u64, u32)>,
}
