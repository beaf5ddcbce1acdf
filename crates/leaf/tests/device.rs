//! Block devices as leaves: loop devices, which need root.

mod lab;

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use blockwork_engine::{Flags, LeafSource, Op, Sectors};
use blockwork_leaf::{Direct, FileOptions, FileSource};
use lab::{Lab, LoopDevice, Mount, pattern, run};

const AUTO: FileOptions = FileOptions::DEFAULT;

#[test]
fn a_device_has_its_own_limits_and_does_everything() {
    let _alone = lab::alone();
    for direct in ["on", "off"] {
        let device = LoopDevice::new(8 << 20, &[&format!("--direct-io={direct}")[..]]);
        let source = FileSource::open(&device.path, &AUTO).unwrap();
        assert!(source.is_direct());
        assert_eq!(source.sectors(), Sectors(16384));
        let limits = source.limits();
        let sysfs = |name: &str| -> u64 {
            let name = format!("/sys/block/{}/queue/{name}", device.path.file_name().unwrap().display());
            std::fs::read_to_string(name).unwrap().trim().parse().unwrap()
        };
        assert_eq!(limits.max_sectors.0 / 2, sysfs("max_sectors_kb"));
        assert_eq!(u64::from(limits.max_segments), sysfs("max_segments").min(1024));
        assert_eq!(limits.max_discard.bytes(), sysfs("discard_max_bytes") / 512 * 512);
        assert_eq!(u64::from(limits.discard_granularity), sysfs("discard_granularity"));

        let mut lab = Lab::new(&source);
        lab.write(Flags::FUA, 0, &pattern(8192, 1));
        lab.run(Op::Flush, Flags::NONE, 0, 0, &[]).unwrap();
        assert!(lab.read(0, 8192) == pattern(8192, 1));
        let before = device.backing.as_file().metadata().unwrap().blocks();
        lab.run(Op::Discard, Flags::NONE, 0, 2048, &[]).unwrap();
        lab.run(Op::WriteZeroes, Flags::NONE, 2048, 1024, &[]).unwrap();
        assert_eq!(device.backing.as_file().metadata().unwrap().blocks(), before - 3072, "unmapped");
        lab.run(Op::WriteZeroes, Flags::NO_UNMAP, 3072, 1024, &[]).unwrap();
        assert_eq!(device.backing.as_file().metadata().unwrap().blocks(), before - 3072, "not unmapped");
        assert!(lab.read(0, 4096).iter().all(|byte| *byte == 0));
        assert!(lab.read(4096, 4096) == pattern(8192, 1)[4096 * 512..]);
    }
}

#[test]
fn a_device_that_grew_is_larger_when_it_is_looked_at() {
    let _alone = lab::alone();
    let device = LoopDevice::new(8 << 20, &["--sector-size", "4096"]);
    let source = FileSource::open(&device.path, &AUTO).unwrap();
    assert_eq!(source.grow(), Sectors(16384));
    device.backing.as_file().set_len((9 << 20) + 512).unwrap();
    run("losetup", &["-c", &device.path.display().to_string()]);
    assert_eq!(source.grow(), Sectors(18432), "whole blocks");
    let mut lab = Lab::new(&source);
    lab.write(Flags::FUA, 18424, &pattern(8, 1));
    assert!(lab.read(18424, 8) == pattern(8, 1));
}

#[test]
fn a_device_of_4096_byte_sectors_says_so() {
    let _alone = lab::alone();
    let device = LoopDevice::new(8 << 20, &["--sector-size", "4096"]);
    for direct in [Direct::Auto, Direct::Off] {
        let source = FileSource::open(&device.path, &FileOptions { direct, ..AUTO }).unwrap();
        assert_eq!(source.limits().logical_block_size, 4096);
        let mut bytes = [1; 5];
        source.read_now(4095, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 5]);
    }
}

#[test]
fn of_a_device_that_ends_within_a_block_only_whole_blocks_are_the_disk() {
    let _alone = lab::alone();
    let device = LoopDevice::new((8 << 20) + 1536, &["--sector-size", "4096"]);
    for direct in [Direct::On, Direct::Off] {
        let source = FileSource::open(&device.path, &FileOptions { direct, ..AUTO }).unwrap();
        assert_eq!((source.is_direct(), source.sectors()), (direct == Direct::On, Sectors(16384)));
        assert!(source.warnings().join("\n").contains("the last 1536 bytes"), "{:?}", source.warnings());
        let mut lab = Lab::new(&source);
        lab.write(Flags::NONE, 16376, &pattern(8, 1));
        assert!(lab.read(16376, 8) == pattern(8, 1));
    }
}

#[test]
fn a_mounted_device_is_refused_with_its_mount_point() {
    let _alone = lab::alone();
    let device = LoopDevice::new(64 << 20, &[]);
    run("mkfs.ext4", &["-q", device.path.to_str().unwrap()]);
    let mount = Mount::new(&[device.path.to_str().unwrap()]);
    let error = FileSource::open(&device.path, &AUTO).err().unwrap().to_string();
    let at = mount.at.path().display().to_string();
    assert!(error.contains(&format!("mounted at {at}")) && error.contains("umount"), "{error}");
    FileSource::open(&device.path, &FileOptions { read_only: true, ..AUTO }).unwrap();
    drop(mount);
    let source = FileSource::open(&device.path, &AUTO).unwrap();
    let output =
        Command::new("mount").args([&device.path, tempfile::tempdir().unwrap().path()]).output().unwrap();
    assert!(!output.status.success(), "nor can it be mounted while we have it");
    drop(source);
}

#[test]
fn a_partition_in_use_is_named() {
    let _alone = lab::alone();
    let device = LoopDevice::new(64 << 20, &["--partscan"]);
    let path = device.path.to_str().unwrap();
    // By hand: not every kernel can read partition tables.
    run("addpart", &[path, "1", "2048", "129024"]);
    let part = format!("{path}p1");
    run("mkfs.ext4", &["-q", &part]);
    let source = FileSource::open(part.as_ref(), &AUTO).unwrap();
    assert_eq!(source.sectors(), Sectors(129024));
    assert!(source.limits().discards(), "of its disk's queue");
    drop(source);
    let _mount = Mount::new(&[&part]);
    let error = FileSource::open(&device.path, &AUTO).err().unwrap().to_string();
    assert!(error.contains("its partition loop") && error.contains("mounted at"), "{error}");
}

#[test]
fn a_read_only_device_is_refused_for_writing() {
    let _alone = lab::alone();
    let device = LoopDevice::new(1 << 20, &["--read-only"]);
    let error = FileSource::open(&device.path, &AUTO).err().unwrap().to_string();
    assert!(error.contains("',ro'"), "{error}");
    let source = FileSource::open(&device.path, &FileOptions { read_only: true, ..AUTO }).unwrap();
    assert!(source.limits().read_only);
}

#[test]
fn two_writers_of_a_device_are_refused() {
    let _alone = lab::alone();
    let device = LoopDevice::new(1 << 20, &[]);
    let first = FileSource::open(&device.path, &AUTO).unwrap();
    let error = FileSource::open(&device.path, &AUTO).err().unwrap().to_string();
    assert!(error.contains("locked by"), "{error}");
    drop(first);
    FileSource::open(&device.path, &AUTO).unwrap();
}
