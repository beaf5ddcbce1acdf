//! Whether a volume has been altered, by whomever: for clients that keep what they have read, as the kernel does of a file of FUSE's.
//!
//! Invariant: who asks, reads, and is told the same number when he asks again has read what is there. A write that he has missed, in whole or in
//! part, had not ended when he asked first, and its end is counted. A volume is altered, too, by what is written to others that have a disk in
//! common with it (the whole disk, another partition of it): so it is the disks that are asked, and the number may change in vain.

use crate::layer::topmost_first;
use crate::volume::VolumeId;

use super::Core;

impl Core {
    /// See [`Context::changes`](crate::Context::changes).
    pub(crate) fn changes(&self, volume: VolumeId) -> u64 {
        let layers = topmost_first([self.volumes[usize::from(volume.0)].root.clone()]);
        let leaves = layers.iter().filter_map(|layer| self.leaf_of[usize::from(layer.node().0)]);
        leaves.fold(0, |sum, leaf| sum.wrapping_add(self.queues[usize::from(leaf.0)].changes()))
    }
}
