//! What a new RAID volume has in the metadata volumes of its legs, so that Linux and we know it at once: superblocks of dm-raid and
//! bitmaps, as the kernel makes them from metadata volumes of zeros.
//!
//! Nothing is known of the data of a new volume, so all of it may differ between the legs, and no parity fits:
//! `array_resync_offset` is 0 and every bit is set. Whoever activates it first, the kernel or we, resyncs it. With `--nosync`
//! the legs are taken for the same, and a parity as it is.

use blockwork_format::dm_raid::{self, BITMAP_OFFSET, IN_SYNC, Superblock};
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::PvIndex;
use blockwork_format::md::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};
use blockwork_format::md::{FarSets, Level, Raid10Layout, Uuid};

use super::data::{Content, DataWrite, offset};

/// Most legs of a RAID volume of LVM.
pub(super) const LEGS_MAX: u64 = 64;
/// Most bits of a bitmap: the kernel refuses smaller regions.
pub(super) const REGIONS_MAX: u64 = 1 << 21;
/// Smallest and largest region, sectors.
const REGION_MIN: u64 = 8;
const REGION_MAX: u64 = 1 << 21;
/// What a bitmap's superblock can hold as a region at most, sectors.
pub(super) const REGION_LARGEST: u64 = 1 << 22;
/// What is zeroed of a metadata volume at most behind its bitmap, bytes.
const META_WIPE_BYTES: u64 = 64 << 10;

/// Seconds between turns of clearing bits, as in the kernel.
const DAEMON_SLEEP: u32 = 5;

/// Whether a region may have that size.
pub(super) fn is_region(sectors: u64) -> bool {
    sectors.is_power_of_two() && (REGION_MIN..=REGION_MAX).contains(&sectors)
}

/// The region of a volume of so many extents: as asked for; but smaller where the volume is, as LVM has it, and larger where the
/// kernel would refuse so many.
pub(super) fn region_for(asked: u64, extent_sectors: u64, extents: u64) -> u64 {
    let sectors = extents.max(1).saturating_mul(extent_sectors);
    let mut region = asked.min((1 << sectors.ilog2()).max(REGION_MIN));
    while sectors / region > REGIONS_MAX {
        region *= 2;
    }
    region
}

/// Extents of a leg's metadata volume, where its bitmap is for so many sectors: as LVM has it, with as much room for the bitmap's
/// superblock as for the other one.
pub(super) fn meta_extents(extent_sectors: u64, sectors: u64, region: u64) -> u64 {
    (2 * BITMAP_OFFSET + bitmap_bytes(sectors, region)).div_ceil(extent_sectors * 512)
}

/// The same, where as little as the kernel writes to has room.
pub(super) fn meta_extents_min(extent_sectors: u64, sectors: u64, region: u64) -> u64 {
    let superblocks = BITMAP_OFFSET + BITMAP_SUPERBLOCK_BYTES as u64;
    (superblocks + bitmap_bytes(sectors, region)).div_ceil(extent_sectors * 512)
}

fn bitmap_bytes(sectors: u64, region: u64) -> u64 {
    sectors.div_ceil(region.max(1)).div_ceil(8)
}

/// A new RAID volume. Sizes are sectors.
#[derive(Debug, Clone)]
pub(super) struct Raid {
    /// What superblocks say of it.
    pub(super) level: Level,
    /// The number of its layout in superblocks.
    pub(super) layout: u32,
    pub(super) legs: u16,
    pub(super) stripe_sectors: u32,
    pub(super) sectors: u64,
    pub(super) leg_sectors: u64,
    pub(super) region_sectors: u64,
    /// The legs are taken for the same, or the parity for that of its data.
    pub(super) in_sync: bool,
}

impl Raid {
    /// The metadata volume of a leg, which begins at `start` and has so many extents.
    pub(super) fn meta_writes(
        &self,
        vg: &VolumeGroup,
        leg: u16,
        start: (PvIndex, u64),
        extents: u64,
    ) -> Vec<DataWrite> {
        let (pv, at) = (vg.pvs[start.0.0].id, offset(vg, start));
        let mut bytes = self.superblock(leg).encode().to_vec();
        bytes.resize(usize::try_from(BITMAP_OFFSET).expect("a few sectors"), 0);
        bytes.extend(self.bitmap());
        let used = bytes.len() as u64;
        let rest = (extents * vg.extent_sectors * 512).saturating_sub(used).min(META_WIPE_BYTES);
        let mut writes = vec![DataWrite { pv, offset: at, content: Content::Bytes(bytes) }];
        if rest > 0 {
            writes.push(DataWrite { pv, offset: at + used, content: Content::Zeros(rest) });
        }
        writes
    }

    fn superblock(&self, leg: u16) -> Superblock {
        Superblock {
            compat_features: Superblock::EXTENDED,
            num_devices: self.legs.into(),
            array_position: leg.into(),
            events: dm_raid::EVENTS_OF_NEW,
            failed_devices: [0; 4],
            disk_recovery_offset: dm_raid::IN_SYNC,
            array_resync_offset: if self.in_sync { IN_SYNC } else { 0 },
            level: self.level,
            layout: self.layout,
            stripe_sectors: self.stripe_sectors,
            flags: 0,
            reshape_position: u64::MAX,
            new_level: u32::try_from(i32::from(self.level)).expect("1 to 10"),
            new_layout: self.layout,
            new_stripe_sectors: self.stripe_sectors,
            delta_disks: 0,
            array_sectors: self.sectors,
            data_offset: 0,
            new_data_offset: 0,
            sectors: self.leg_sectors,
            incompat_features: 0,
        }
    }

    /// The bitmap with its superblock: whole sectors.
    fn bitmap(&self) -> Vec<u8> {
        let superblock = BitmapSuperblock {
            version: 4,
            uuid: Uuid::default(),
            events: dm_raid::EVENTS_OF_NEW,
            events_cleared: dm_raid::EVENTS_OF_NEW - 1,
            // With a parity, a bit is for what is at one place of all legs.
            sync_size: if self.level == Level::Raid10 { self.sectors } else { self.leg_sectors },
            state: 0,
            chunk_bytes: u32::try_from(self.region_sectors * 512).expect("at most REGION_LARGEST"),
            daemon_sleep: DAEMON_SLEEP,
            write_behind: 0,
            sectors_reserved: 0,
            nodes: 0,
            cluster_name: [0; 64],
            reserved: [0; 120],
        };
        let chunks = superblock.chunks();
        let bits = if self.in_sync { Bits::clean(chunks) } else { Bits::dirty(chunks) };
        let mut bytes = superblock.encode().to_vec();
        bytes.extend_from_slice(bits.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0xff);
        bytes
    }
}

/// The layout of near copies, as superblocks have it.
pub(super) fn near(copies: u8, legs: u16) -> u32 {
    let layout = Raid10Layout::new(copies, 1, false, FarSets::One, legs.into());
    layout.expect("copies are at least 2, and legs a multiple of them").encode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_no_larger_than_the_volume_and_there_are_not_too_many() {
        // As LVM 2.03.16 had it of the same volumes.
        for (extent, extents, region) in
            [(512, 1, 512), (512, 3, 1024), (512, 6, 2048), (512, 9, 4096), (1024, 3, 2048), (8192, 9, 4096)]
        {
            assert_eq!(region_for(4096, extent, extents), region, "{extents} extents of {extent} sectors");
        }
        assert_eq!(region_for(4096, 8192, 3 << 30), 1 << 24);
        assert_eq!(region_for(8, 8192, 1), 8);
        assert!(is_region(8) && is_region(4096) && !is_region(4) && !is_region(4097) && !is_region(1 << 22));
    }

    #[test]
    fn a_metadata_volume_has_room_for_all_bits() {
        // As LVM 2.03.16 had it, with regions of 4 KiB: a raid1 of 34 MiB, a raid10 of 150 MiB.
        assert_eq!(meta_extents(8, 34 << 11, 8), 3);
        assert_eq!(meta_extents(8, 150 << 11, 8), 4);
        assert_eq!(meta_extents(8192, 8 * 8192, 4096), 1);
        assert_eq!(meta_extents_min(8, 34 << 11, 8), 2, "4096 + 256 + 1088 bytes, in extents of 4 KiB");
    }
}
