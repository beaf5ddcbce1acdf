//! What is written to the data of PVs beside the metadata: zeros where a new volume begins and ends, the metadata of the legs of
//! a RAID, and the header of a store.

use std::ops::Range;

use blockwork_format::lvm2::vg::PvIndex;
use blockwork_format::lvm2::{Uuid, VolumeGroup};

/// How much of a new volume is zeroed at its start and at its end, of each of its stripes or legs, bytes. LVM zeroes 4 KiB at
/// the start, and the places of signatures that it finds; these all lie in here.
pub const WIPE_BYTES: u64 = 128 << 10;

/// Bytes for a range of a PV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataWrite {
    /// The PV.
    pub pv: Uuid,
    /// First byte, from the start of its device.
    pub offset: u64,
    /// What.
    pub content: Content,
}

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// So many zeros.
    Zeros(u64),
    /// These bytes: whole sectors.
    Bytes(Vec<u8>),
}

/// A run of extents of a stripe or a leg, in the order of its data: where it begins, and how many they are.
pub(super) type Piece = ((PvIndex, u64), u64);

/// Where an extent of a PV begins, bytes.
pub(super) fn offset(vg: &VolumeGroup, (pv, extent): (PvIndex, u64)) -> u64 {
    (vg.pvs[pv.0].pe_start + extent * vg.extent_sectors) * 512
}

/// Zeros at the start and at the end of what lies in these runs.
pub(super) fn wiped(vg: &VolumeGroup, runs: &[Piece]) -> Vec<DataWrite> {
    let total: u64 = runs.iter().map(|(_, count)| count * vg.extent_sectors * 512).sum();
    let head = total.min(WIPE_BYTES);
    let tail = total.saturating_sub(WIPE_BYTES).max(head);
    [0..head, tail..total].into_iter().flat_map(|range| zeros(vg, runs, range)).collect()
}

/// Zeros for a range, bytes, of what lies in these runs.
pub(super) fn zeros(vg: &VolumeGroup, runs: &[Piece], range: Range<u64>) -> Vec<DataWrite> {
    let mut writes = Vec::new();
    let mut at = 0;
    for (start, count) in runs {
        let end = at + count * vg.extent_sectors * 512;
        let (from, to) = (at.max(range.start), end.min(range.end));
        if from < to {
            let offset = offset(vg, *start) + (from - at);
            writes.push(DataWrite { pv: vg.pvs[start.0.0].id, offset, content: Content::Zeros(to - from) });
        }
        at = end;
    }
    writes
}
