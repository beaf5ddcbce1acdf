//! `blockwork md examine` against mdadm on the same disks, line by line. Only the zone of times differs, which mdadm does not
//! name.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::support::{Scratch, both, output, run, run_refused, tool};
use blockwork_format::md::bitmap::{BitmapSuperblock, Bits};
use blockwork_format::md::create::{BitmapChoice, NewArray, NewDevice, NewMember, Shape};
use blockwork_format::md::v1::{Features, Minor, Region, Superblock};
use blockwork_format::md::{Level, ParityLayout, Raid10Layout, Role, SetName, Time, Uuid, bad_blocks, v0};
use serde_json::Value;

pub const SECTORS: u64 = 4 << 20;

/// Members of a mirror of two, with a bitmap, as they are made.
pub fn members(minor: Minor, shape: Shape, disks: u16) -> Vec<NewMember> {
    let array = NewArray {
        minor,
        shape,
        raid_disks: disks,
        bitmap: if matches!(shape, Shape::Raid0 { .. }) {
            BitmapChoice::None
        } else {
            BitmapChoice::Internal
        },
        assume_clean: false,
        size: None,
        data_offset: None,
        uuid: Uuid(*b"0123456789abcdef"),
        name: SetName::new("elsewhere:data").unwrap(),
        ctime: Time::new(1_709_210_096, 0),
    };
    let device = |nth| Some(NewDevice { sectors: SECTORS, uuid: Uuid([nth; 16]) });
    array.lay_out(&(1..).take(disks.into()).map(device).collect::<Vec<_>>()).unwrap()
}

pub fn put(scratch: &Scratch, file: &str, member: &NewMember) {
    let disk = File::options().write(true).open(scratch.sparse(file, SECTORS * 512)).unwrap();
    for (sector, bytes) in member.before_superblock() {
        disk.write_all_at(&bytes, sector * 512).unwrap();
    }
    let superblock = &member.superblock;
    superblock.check(SECTORS).unwrap();
    disk.write_all_at(&superblock.encode_blocks(512), superblock.super_offset * 512).unwrap();
}

pub fn theirs(scratch: &Scratch, args: &[&str], file: &str) -> String {
    let mut command = tool("mdadm");
    both(&output(command.args(args).arg(file).current_dir(scratch.path("")).env("TZ", "UTC")))
}

fn ours(scratch: &Scratch, args: &[&str], file: &str) -> String {
    let printed = run(scratch.blockwork(["md", "examine"]).args(args).arg(file));
    printed.replace(" UTC\n", "\n")
}

#[track_caller]
fn agree(scratch: &Scratch, what: &str, file: &str) {
    assert_eq!(
        ours(scratch, &[], file),
        theirs(scratch, &["--examine"], file),
        "{what}: ours (left), mdadm's"
    );
}

#[test]
fn superblocks_are_shown_as_mdadm_shows_them() {
    type Change = fn(&mut Superblock);
    let changes: [(&str, Change); 15] = [
        ("as it is made", |_| {}),
        ("clean", |s| (s.resync_offset, s.events) = (u64::MAX, u64::from(u32::MAX) + 7)),
        ("without a bitmap", |s| s.features = Features::default()),
        ("bad blocks", |s| s.features.0 |= Features::BAD_BLOCKS.0),
        ("no room for bad blocks", |s| (s.bblog_offset, s.bblog_sectors) = (0, 0)),
        ("recovering", |s| (s.features, s.recovery_offset) = (Features::RECOVERY_OFFSET, 123_456)),
        ("smaller than its device", |s| s.size -= 8192),
        ("a sector smaller than its device", |s| s.size = s.data_size - 1),
        ("flags", |s| s.devflags = Superblock::WRITE_MOSTLY | Superblock::FAILFAST),
        ("a log of parity", |s| (s.features, s.bitmap_offset) = (Features::PPL, 2048 << 16 | 8)),
        ("several of them, before it", |s| {
            (s.features, s.bitmap_offset) = (Features::MULTIPLE_PPLS, 1024 << 16 | (0x10000 - 1040));
        }),
        ("a spare", |s| s.dev_number = 5),
        ("degraded", |s| s.roles[0] = Role::Faulty),
        ("failed itself", |s| s.roles[1] = Role::Faulty),
        ("replacing", |s| {
            (s.features, s.dev_number) = (Features(Features::REPLACEMENT.0 | Features::RECOVERY_OFFSET.0), 2);
            s.roles[2] = Role::Active(1);
        }),
    ];
    let scratch = Scratch::new();
    for minor in Minor::ALL {
        for (what, change) in changes {
            let mut member = members(minor, Shape::Raid1, 2).remove(1);
            change(&mut member.superblock);
            put(&scratch, "disk", &member);
            agree(&scratch, &format!("{minor}, {what}"), "disk");
        }
    }
}

#[test]
fn arrays_of_all_shapes_are_shown_as_mdadm_shows_them() {
    let scratch = Scratch::new();
    let raid10 = |name: &str, disks| Shape::Raid10 {
        layout: Raid10Layout::from_short_name(name, disks).unwrap(),
        chunk_sectors: 128,
    };
    let parity = |level, name: &str, disks| Shape::Parity {
        layout: ParityLayout::from_name(level, name, disks).unwrap(),
        chunk_sectors: 128,
    };
    for (shape, disks) in [
        (Shape::Raid0 { chunk_sectors: 40 }, 3),
        (Shape::Raid1, 1),
        (raid10("n2", 5), 5),
        (raid10("n3", 4), 4),
        (raid10("f2", 3), 3),
        (raid10("o3", 7), 7),
        (parity(Level::Raid4, "parity-last", 3), 3),
        (parity(Level::Raid5, "ra", 4), 4),
        (parity(Level::Raid6, "ddf-N-continue", 5), 5),
        (parity(Level::Raid6, "right-symmetric-6", 5), 5),
    ] {
        let mut member = members(Minor::V1_2, shape, disks).remove(0);
        put(&scratch, "disk", &member);
        agree(&scratch, &format!("{shape:?}"), "disk");
        if member.superblock.level == Level::Raid0 {
            for layout in [1, 2] {
                (member.superblock.layout, member.superblock.features) = (layout, Features::RAID0_LAYOUT);
                put(&scratch, "disk", &member);
                agree(&scratch, "a RAID0 that names its layout", "disk");
            }
        }
    }
    // Levels that we do not serve are shown all the same.
    for (level, layout) in
        [(Level::Raid4, 0), (Level::Raid5, 2), (Level::Raid5, 5), (Level::Raid6, 19), (Level::Linear, 0)]
    {
        let mut member = members(Minor::V1_2, raid10("n2", 4), 4).remove(2);
        (member.superblock.level, member.superblock.layout) = (level, layout);
        put(&scratch, "disk", &member);
        agree(&scratch, &format!("{level} with layout {layout}"), "disk");
    }
}

/// A 0.90 superblock of a member of an array of two with a spare.
pub fn old(level: i32, layout: u32, chunk: u32, state: u32) -> Vec<u8> {
    let mut words = [0u32; 1024];
    let values = [
        (0, 0xa92b_4efc),
        (2, 90),
        (3, 3),
        (5, 0x0123_4567),
        (6, 1_000_000_000),
        (7, level.cast_unsigned()),
        (8, if level == 0 { 0 } else { 1_000_000 }),
        (9, 3),
        (10, 2),
        (11, 3),
        (13, 0x89ab_cdef),
        (14, 0xfeed_f00d),
        (15, 0x0bad_cafe),
        (32, 1_100_000_000),
        (33, state),
        (34, 2),
        (35, 3),
        (36, 0),
        (37, 1),
        (39, 77),
        (40, 2),
        (64, layout),
        (65, chunk),
    ];
    for (word, value) in values {
        words[word] = value;
    }
    // Major numbers that no device here has: mdadm adds the names of those that are there.
    for (at, number, state) in [(128, 0, 6), (160, 1, 6 | 1 << 9), (192, 2, 0), (992, 1, 6 | 1 << 9)] {
        words[at..at + 5].copy_from_slice(&[number, 4000, 16 * (number + 1), number, state]);
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    v0::fix_checksum(&mut bytes);
    bytes
}

#[test]
fn superblocks_0_90_are_shown_as_mdadm_shows_them() {
    let scratch = Scratch::new();
    for (level, layout, chunk, state) in
        [(1, 0, 0, 1), (1, 0, 0, 0), (0, 0, 65_536, 1), (10, 0x102, 65_536, 1), (5, 2, 4096, 1)]
    {
        let disk = File::options().write(true).open(scratch.sparse("disk", SECTORS * 512)).unwrap();
        let at = v0::sector(SECTORS).unwrap() * 512;
        disk.write_all_at(&old(level, layout, chunk, state), at).unwrap();
        agree(&scratch, &format!("level {level}, state {state}"), "disk");
    }
}

#[test]
fn bitmaps_and_bad_blocks_are_shown_as_mdadm_shows_them() {
    let scratch = Scratch::new();
    let mut member = members(Minor::V1_2, Shape::Raid1, 2).remove(0);
    for (chunk_bytes, write_behind, state, dirty) in [
        (64 << 20, 0, 0, &[0, 3][..]),
        (4096, 256, 0, &[0, 1, 2, 15_000]),
        (1 << 30, 0, BitmapSuperblock::STALE, &[]),
    ] {
        let (bitmap, bits) = member.bitmap.as_mut().unwrap();
        (bitmap.chunk_bytes, bitmap.write_behind, bitmap.state) = (chunk_bytes, write_behind, state);
        *bits = Bits::clean(bitmap.chunks());
        dirty.iter().for_each(|chunk| assert!(bits.set(*chunk)));
        member.superblock.bblog_offset = 520;
        put(&scratch, "disk", &member);
        // A bitmap in a file of its own starts with the file; mdadm takes any file for one.
        let (_, bytes) = member.before_superblock().remove(0);
        scratch.write("bitmap", bytes);
        let shown = ours(&scratch, &["--bitmap"], "disk").replace("Filename : disk", "Filename : bitmap");
        assert_eq!(shown, theirs(&scratch, &["--examine-bitmap"], "bitmap"), "chunks of {chunk_bytes}");
    }

    let agree = |what: &str| {
        let theirs = theirs(&scratch, &["--examine-badblocks"], "disk");
        assert_eq!(ours(&scratch, &["--bad-blocks"], "disk"), theirs, "{what}");
    };
    agree("an empty list");
    member.superblock.features.0 |= Features::BAD_BLOCKS.0;
    put(&scratch, "disk", &member);
    let list = [Region { start: 4096, sectors: 8 }, Region { start: 100_000, sectors: 1 }];
    let log = member.superblock.bad_block_log().unwrap();
    let disk = File::options().write(true).open(scratch.path("disk")).unwrap();
    disk.write_all_at(&bad_blocks::encode(&list, 0, 8).unwrap(), log.start * 512).unwrap();
    agree("two ranges");
    (member.superblock.features, member.superblock.bblog_sectors, member.superblock.bblog_offset) =
        (Features::BITMAP, 0, 0);
    put(&scratch, "disk", &member);
    agree("no list");
}

#[test]
fn json_has_the_same_and_what_is_no_member_is_named() {
    let scratch = Scratch::new();
    for (nth, member) in members(Minor::V1_2, Shape::Raid1, 2).iter().enumerate() {
        put(&scratch, &format!("disk{nth}"), member);
    }
    let printed = run(&mut scratch.blockwork(["md", "examine", "--json", "disk1", "disk0"]));
    let value: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&value[0]["device"], &value[0]["role"]), (&"disk1".into(), &1.into()));
    assert_eq!(value[1]["array_uuid"], Uuid(*b"0123456789abcdef").to_string());
    assert_eq!(value[1]["bitmap"]["dirty_chunks"], value[1]["bitmap"]["chunks"]);
    assert_eq!(value[1]["bad_blocks"], Value::Array(Vec::new()));
    assert_eq!(value[0]["resync_offset"], 0);

    scratch.sparse("empty", 1 << 20);
    let said = run_refused(&mut scratch.blockwork(["md", "examine", "empty", "disk0"]));
    assert!(said.contains("disk0:\n          Magic : a92b4efc"), "{said}");
    assert!(said.contains("no md superblock detected on empty"), "{said}");
    // A superblock that is damaged is not shown, and what is wrong with it is said.
    let disk = File::options().write(true).open(scratch.path("disk0")).unwrap();
    disk.write_all_at(&[1], 8 * 512 + 200).unwrap();
    let said = run_refused(&mut scratch.blockwork(["md", "examine", "disk0"]));
    assert!(said.contains("checksum") && said.contains("no md superblock detected on disk0"), "{said}");
}
