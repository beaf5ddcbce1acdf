//! Arrays of md laid out without a kernel, for sizes that nobody would have it make. (That they are what mdadm and the kernel
//! take is shown by `../kernel/md_create.rs`.)

use std::fs::File;
use std::os::unix::fs::FileExt;

use blockwork_format::md::create::{BitmapChoice, NewArray, NewDevice, Shape};
use blockwork_format::md::v1::{Minor, Superblock};
use blockwork_format::md::{Level, Raid10Layout, SetName, Time, Uuid};

use super::Scratch;

const SECTOR: u64 = 512;

/// Makes an array of sparse disks `NAME0.img` ... of so many bytes each, with chunks of 512 KiB; a RAID10 has two near copies and
/// a write-intent bitmap. Gives the disks' names.
pub fn array(scratch: &Scratch, name: &str, level: Level, members: u16, bytes: u64) -> Vec<String> {
    let layout = Raid10Layout::from_short_name("n2", members.into()).unwrap();
    let (shape, bitmap) = match level {
        Level::Raid10 => (Shape::Raid10 { layout, chunk_sectors: 1024 }, BitmapChoice::Internal),
        // Nothing makes linear ones any more: their superblocks are those of stripes but for the words that tell them apart.
        Level::Raid0 | Level::Linear => (Shape::Raid0 { chunk_sectors: 1024 }, BitmapChoice::None),
        other => panic!("no array of {other} is made here"),
    };
    let array = NewArray {
        minor: Minor::V1_2,
        shape,
        raid_disks: members,
        bitmap,
        assume_clean: true,
        size: None,
        data_offset: None,
        uuid: Uuid([0x5a; 16]),
        name: SetName::new(name).unwrap(),
        ctime: Time::new(1_700_000_000, 0),
    };
    let device = |nth| Some(NewDevice { sectors: bytes / SECTOR, uuid: Uuid([nth; 16]) });
    let devices: Vec<_> = (1..).take(members.into()).map(device).collect();
    let disks = array.lay_out(&devices).unwrap().into_iter().map(|member| {
        let file = format!("{name}{}.img", member.slot);
        let disk = File::options().write(true).open(scratch.sparse(&file, bytes)).unwrap();
        for (sector, bytes) in member.before_superblock() {
            disk.write_all_at(&bytes, sector * SECTOR).unwrap();
        }
        let mut superblock = member.superblock.clone();
        if level == Level::Linear {
            let data_size = bytes / SECTOR - superblock.data_offset;
            superblock = Superblock { level, layout: 0, chunk_sectors: 0, data_size, ..superblock };
        }
        disk.write_all_at(&superblock.encode_blocks(512), superblock.super_offset * SECTOR).unwrap();
        file
    });
    disks.collect()
}
