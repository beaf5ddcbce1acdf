//! What mkfs.xfs and fstrim ask of a device, as far as it is large: discards, and the log.
//!
//! Sources: xfsprogs, `mkfs/xfs_mkfs.c` (`discard_blocks`, the size of allocation groups on striped devices, the place of the
//! log) and `libxfs/rdwr.c` (how the log is zeroed); the kernel's `fs/xfs/xfs_discard.c`: facts, no code.

use blockwork_engine::{Layer, SECTOR, Sector, Sectors};

/// mkfs.xfs writes the log by so much, up to 2020.
pub(super) const LOG_WRITE: Sectors = Sectors((256 << 10) / SECTOR);
/// mkfs.xfs since xfsprogs 5.4 discards by so much, so that it can be interrupted.
pub(super) const DISCARD_STEP: Sectors = Sectors((2 << 30) / SECTOR);

/// A file system block.
const BLOCK: u64 = 4096 / SECTOR;
/// The log of a file system of terabytes: the largest there is, in blocks. (In small ones, for tests, half of a group.)
const LOG_BLOCKS: u64 = 521_728;
/// Allocation groups on a striped device of 512 GiB to 32 TiB.
const GROUPS: u64 = 32;
/// At the head of each group: headers, free-space and inode B+trees, and what those keep in reserve; in the first one also the
/// root's inodes. In blocks, and a little more than it can be.
const HEAD_BLOCKS: u64 = 32;

/// A new file system: in sectors of its device.
#[derive(Clone, Debug)]
pub(super) struct Xfs {
    sectors: u64,
    group: u64,
    log: u64,
    log_sectors: u64,
}

impl Xfs {
    /// The one that mkfs.xfs makes on a device, with its stripes in mind.
    pub(super) fn on(device: &dyn Layer) -> Xfs {
        let limits = device.limits();
        let unit = (u64::from(limits.io_min) / SECTOR).max(BLOCK);
        let width = (u64::from(limits.io_opt) / SECTOR).max(unit);
        let sectors = device.sectors().0 / BLOCK * BLOCK;
        let mut group = sectors.div_ceil(GROUPS).next_multiple_of(unit);
        if group.is_multiple_of(width) {
            // Else the heads of all groups would lie on the same disk.
            group -= unit;
        }
        let log = (group * (GROUPS / 2) + HEAD_BLOCKS * BLOCK).next_multiple_of(unit);
        let log_sectors = (LOG_BLOCKS * BLOCK).min(group / 2 / unit * unit);
        Xfs { sectors, group, log, log_sectors }
    }

    /// Where the log is, and how long.
    pub(super) fn log(&self) -> (Sector, Sectors) {
        (Sector(self.log), Sectors(self.log_sectors))
    }

    /// What is free in a new file system, group by group: the larger extent of a group first, as fstrim takes them.
    pub(super) fn free_extents(&self) -> Vec<(Sector, Sectors)> {
        let (log, log_sectors) = self.log();
        let log_end = log.0 + log_sectors.0;
        let mut extents = Vec::new();
        let mut start = 0;
        while start < self.sectors {
            let end = (start + self.group).min(self.sectors);
            let free = start + HEAD_BLOCKS * BLOCK;
            let mut of_group = if (start..end).contains(&log.0) {
                vec![(free, log.0), (log_end, end)]
            } else {
                vec![(free, end)]
            };
            of_group.retain(|(from, to)| from < to);
            of_group.sort_by_key(|(from, to)| std::cmp::Reverse(to - from));
            extents.extend(of_group.into_iter().map(|(from, to)| (Sector(from), Sectors(to - from))));
            start = end;
        }
        extents
    }
}
