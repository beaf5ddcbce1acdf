//! Arrays of md laid out by hand, for sizes that nobody would have the kernel make. (That the encoders write what mdadm and
//! the kernel take is shown by the tests of `blockwork-format` and by those with the kernel in a guest.)

use std::fs::File;
use std::os::unix::fs::FileExt;

use blockwork_format::md::bitmap::{BitmapSuperblock, Bits};
use blockwork_format::md::v1::{Features, Minor, Reshape, SLOTS_OF_MDADM, Superblock};
use blockwork_format::md::{IN_SYNC, Level, Raid10Layout, Role, SetName, Time, Uuid};

use super::Scratch;

const SECTOR: u64 = 512;
/// Where the data of members begins, sectors: as mdadm places it on large disks.
const DATA: u64 = 264_192;
/// What a bit of the bitmap covers, bytes.
const BITMAP_CHUNK: u32 = 64 << 20;

/// Makes an array of sparse disks `NAME0.img` ... of so many bytes each, with chunks of 512 KiB; a RAID10 has two near copies and
/// a write-intent bitmap. Gives the disks' names.
pub fn array(scratch: &Scratch, name: &str, level: Level, members: u16, bytes: u64) -> Vec<String> {
    let size = (bytes / SECTOR - DATA) / 1024 * 1024;
    let layout = Raid10Layout::from_short_name("n2", members.into()).unwrap();
    let mirrored = level == Level::Raid10;
    let names: Vec<_> = (0..members).map(|n| format!("{name}{n}.img")).collect();
    for (place, file) in (0..members).zip(&names) {
        let disk = File::options().write(true).open(scratch.sparse(file, bytes)).unwrap();
        let mut roles = vec![Role::Spare; SLOTS_OF_MDADM];
        (0..members).for_each(|place| roles[usize::from(place)] = Role::Active(place));
        let superblock = Superblock {
            minor: Minor::V1_2,
            features: if mirrored { Features::BITMAP } else { Features::default() },
            set_uuid: Uuid([0x5a; 16]),
            set_name: SetName::new(name).unwrap(),
            ctime: Time::new(1_700_000_000, 0),
            level,
            layout: if mirrored { layout.encode() } else { 0 },
            size: if mirrored { size } else { 0 },
            chunk_sectors: 1024,
            raid_disks: members.into(),
            bitmap_offset: if mirrored { 8 } else { 0 },
            reshape: Reshape::default(),
            data_offset: DATA,
            data_size: size,
            super_offset: 8,
            recovery_offset: 0,
            dev_number: place.into(),
            corrected_errors: 0,
            device_uuid: Uuid([u8::try_from(place).unwrap() + 1; 16]),
            devflags: 0,
            bblog_shift: 0,
            bblog_sectors: 0,
            bblog_offset: 0,
            utime: Time::new(1_700_000_001, 0),
            events: 10,
            resync_offset: IN_SYNC,
            logical_block_size: 0,
            roles,
            reserved: [0; 32],
        };
        disk.write_all_at(&superblock.encode_blocks(512), 8 * SECTOR).unwrap();
        if mirrored {
            let sync_size = layout.sizes(1024, size).unwrap().array_sectors;
            let bitmap = BitmapSuperblock {
                version: 4,
                uuid: superblock.set_uuid,
                events: 10,
                events_cleared: 10,
                sync_size,
                state: 0,
                chunk_bytes: BITMAP_CHUNK,
                daemon_sleep: 5,
                write_behind: 0,
                sectors_reserved: 0,
                nodes: 0,
                cluster_name: [0; 64],
                reserved: [0; 120],
            };
            let bits = Bits::clean(bitmap.chunks());
            let bytes = [&bitmap.encode()[..], bits.as_bytes()].concat();
            disk.write_all_at(&bytes, 16 * SECTOR).unwrap();
        }
    }
    names
}
