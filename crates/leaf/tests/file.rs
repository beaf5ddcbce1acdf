//! Regular files as leaves, on ext4, tmpfs and a file system without O_DIRECT: data, holes, limits, fallbacks, errors.

mod lab;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use blockwork_engine::{Allocation, Env, Errno, Fixed, Flags, Fua, LeafSource, Op, Sector, Sectors};
use blockwork_leaf::{Direct, FileOptions, FileSource, OpenOptions, open};
use lab::{Lab, LoopDevice, Mount, pattern, run};

const AUTO: FileOptions = FileOptions::DEFAULT;
const BUFFERED: FileOptions = FileOptions { direct: Direct::Off, ..AUTO };

fn sparse(bytes: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(bytes).unwrap();
    file
}

fn content(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// A file on an ext4 of its own, made with O_DIRECT in mind, and one on tmpfs.
fn on_each_file_system(test: impl Fn(&Path)) {
    let disk = tempfile::tempdir().unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    for folder in [disk.path(), memory.path()] {
        let path = folder.join("disk.img");
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        test(&path);
    }
}

#[test]
fn memory_that_the_kernel_knows_is_named_to_it_where_the_queue_says_so() {
    let _alone = lab::alone();
    on_each_file_system(|path| {
        for options in [AUTO, BUFFERED] {
            let source = FileSource::open(path, &options).unwrap();
            // Through the page cache there is nothing to be gained, and where there is a limit nobody asked for locked memory.
            let locks_any = rustix::thread::capabilities(None)
                .is_ok_and(|may| may.effective.contains(rustix::thread::CapabilitySet::IPC_LOCK));
            if locks_any {
                let expected = if source.is_direct() { Fixed::Auto } else { Fixed::Off };
                assert_eq!(source.limits().fixed, expected);
            }
            assert!(source.limits().hw_fixed);
            let mut lab = Lab::new(&source);
            let pool = blockwork_memory::Pool::with_slabs(64 << 20);
            let data = blockwork_memory::Segment::new(pool.get(65536), 0, 65536);
            assert!(lab.env.knows(&data));
            let bytes = pattern(128, 11);
            for fixed in [false, true] {
                lab.fixed = fixed;
                data.write_at(0, &bytes);
                assert_eq!(lab.run(Op::Write, Flags::FUA, 128, 128, std::slice::from_ref(&data)), Ok(65536));
                assert!(content(path)[65536..131072] == bytes);
                data.fill(0xee);
                assert_eq!(lab.run(Op::Read, Flags::NONE, 128, 128, std::slice::from_ref(&data)), Ok(65536));
                let mut back = vec![0; 65536];
                data.read_at(0, &mut back);
                assert!(back == bytes);
                assert_eq!(lab.env.fixed(), if fixed { 2 } else { 0 });
            }
        }
    });
    for (disk, setting, is_taken) in
        [("null:1M", "on", false), ("null:1M", "auto", true), ("memory:1M", "off", true)]
    {
        let settings = vec![("fixed".to_owned(), setting.to_owned())];
        let opened = open(disk, &OpenOptions { settings, ..OpenOptions::default() });
        assert_eq!(opened.is_ok(), is_taken, "{disk}");
        assert!(opened.is_ok_and(|opened| opened.source.limits().fixed == Fixed::Off) || !is_taken);
    }
}

#[test]
fn what_is_written_is_in_the_file_and_is_read_back() {
    let _alone = lab::alone();
    on_each_file_system(|path| {
        for options in [AUTO, BUFFERED] {
            let source = FileSource::open(path, &options).unwrap();
            let mut lab = Lab::new(&source);
            let block = u64::from(source.limits().logical_block_size) / 512;
            let bytes = pattern(64, 3);
            lab.write(Flags::NONE, 8 * block, &bytes);
            lab.write(Flags::FUA, 128, &bytes);
            lab.run(Op::Flush, Flags::NONE, 0, 0, &[]).unwrap();
            assert!(lab.read(8 * block, 64) == bytes);
            assert!(content(path)[128 * 512..][..bytes.len()] == bytes);
            let mut small = [0; 700];
            source.read_now(128 * 512 + 300, &mut small).unwrap();
            assert_eq!(small, bytes[300..1000]);
            source.read_now((4 << 20) - 10, &mut small[..10]).unwrap();
            assert!(source.read_now((4 << 20) - 10, &mut small[..11]).is_err(), "past the end");
            assert!(source.read_now(u64::MAX, &mut small).is_err());
        }
    });
}

#[test]
fn direct_i_o_bypasses_the_page_cache_on_ext4() {
    let _alone = lab::alone();
    let file = sparse(4 << 20);
    let source = FileSource::open(file.path(), &AUTO).unwrap();
    assert!(source.is_direct(), "{:?}", source.warnings());
    assert!(source.warnings().is_empty());
    assert!(
        FileSource::open(file.path(), &FileOptions { lock: false, ..BUFFERED })
            .unwrap()
            .warnings()
            .is_empty()
    );
}

#[test]
fn a_discard_frees_blocks_and_reads_as_zeros() {
    let _alone = lab::alone();
    on_each_file_system(|path| {
        File::options().write(true).open(path).unwrap().write_all(&pattern(8192, 1)).unwrap();
        let source = FileSource::open(path, &AUTO).unwrap();
        let mut lab = Lab::new(&source);
        lab.run(Op::Flush, Flags::NONE, 0, 0, &[]).unwrap();
        let before = fs::metadata(path).unwrap().blocks();
        assert!(source.limits().discards());
        lab.run(Op::Discard, Flags::NONE, 2048, 2048, &[]).unwrap();
        assert_eq!(fs::metadata(path).unwrap().blocks(), before - 2048);
        let bytes = content(path);
        assert!(bytes[2048 * 512..4096 * 512].iter().all(|byte| *byte == 0));
        assert!(bytes[..2048 * 512] == pattern(8192, 1)[..2048 * 512]);
        assert_eq!(lab.leaf.allocation(Sector(0), Sectors(8192)), Ok((Allocation::Data, Sectors(2048))));
        assert_eq!(
            lab.leaf.allocation(Sector(2048), Sectors(8192 - 2048)),
            Ok((Allocation::Hole, Sectors(2048)))
        );
        assert_eq!(lab.leaf.allocation(Sector(3000), Sectors(1)), Ok((Allocation::Hole, Sectors(1))));
        assert_eq!(lab.leaf.allocation(Sector(5000), Sectors(10)), Ok((Allocation::Data, Sectors(10))));
        lab.run(Op::Discard, Flags::NONE, 4096, 4096, &[]).unwrap();
        assert_eq!(
            lab.leaf.allocation(Sector(2048), Sectors(6144)),
            Ok((Allocation::Hole, Sectors(6144))),
            "to the end"
        );
    });
}

#[test]
fn a_discard_gives_back_preallocated_and_written_space_and_is_made_at_once_where_there_is_no_data() {
    let _alone = lab::alone();
    on_each_file_system(|path| {
        // MiB by MiB: preallocated, written, a hole, preallocated. (tmpfs calls preallocated pages data or not as it likes.)
        let file = File::options().read(true).write(true).open(path).unwrap();
        for mib in [0, 3] {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, mib << 20, 1 << 20).unwrap();
        }
        file.write_all_at(&pattern(2048, 5), 1 << 20).unwrap();
        file.sync_all().unwrap();
        let blocks = || fs::metadata(path).unwrap().blocks();
        let source = FileSource::open(path, &AUTO).unwrap();
        let mut lab = Lab::new(&source);
        let mut expected = blocks();
        assert!(expected >= 3 * 2048, "{expected}");
        for (mib, freed, alone) in
            [(2, 0, true), (0, 2048, true), (1, 2048, true), (2, 0, false), (3, 2048, false)]
        {
            lab.alone = alone;
            let holds_data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(mib << 20))
                .is_ok_and(|data| data < (mib + 1) << 20);
            let before = lab.env.enters();
            lab.run(Op::Discard, Flags::NONE, mib * 2048, 2048, &[]).unwrap();
            // A file system without a disk of this machine might have to ask a server.
            let is_local = !path.starts_with("/dev/shm");
            assert_eq!(lab.env.enters() == before, is_local && alone && !holds_data, "MiB {mib}");
            expected -= freed;
            assert_eq!(blocks(), expected, "MiB {mib}");
        }
        assert!(content(path).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn what_was_written_into_a_hole_that_was_punched_before_is_punched_too() {
    let _alone = lab::alone();
    on_each_file_system(|path| {
        // At once only where the file system lies on a disk of this machine.
        let is_local = !path.starts_with("/dev/shm");
        let source = FileSource::open(path, &AUTO).unwrap();
        let mut lab = Lab::new(&source);
        let at_once = |lab: &mut Lab, sector, nr| {
            let before = lab.env.enters();
            lab.run(Op::Discard, Flags::NONE, sector, nr, &[]).unwrap();
            lab.env.enters() == before
        };
        assert_eq!([at_once(&mut lab, 0, 8192), at_once(&mut lab, 1024, 1024)], [is_local; 2]);
        lab.write(Flags::FUA, 2048, &pattern(64, 9));
        assert_eq!([at_once(&mut lab, 0, 2048), at_once(&mut lab, 4096, 4096)], [is_local; 2]);
        assert!(!at_once(&mut lab, 0, 8192), "there is data");
        assert_eq!(fs::metadata(path).unwrap().blocks(), 0);
        // By somebody else: it takes longer, but is punched all the same.
        assert_eq!(at_once(&mut lab, 0, 8192), is_local);
        File::options().write(true).open(path).unwrap().write_all_at(&pattern(64, 9), 0).unwrap();
        lab.run(Op::Discard, Flags::NONE, 0, 8192, &[]).unwrap();
        assert_eq!(fs::metadata(path).unwrap().blocks(), 0);
        assert!(content(path).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn without_a_lock_another_request_may_be_in_flight_so_every_discard_goes_through_the_ring() {
    let _alone = lab::alone();
    let file = sparse(4 << 20);
    let source = FileSource::open(file.path(), &FileOptions { lock: false, ..AUTO }).unwrap();
    let mut lab = Lab::new(&source);
    let before = lab.env.enters();
    lab.run(Op::Discard, Flags::NONE, 0, 8192, &[]).unwrap();
    assert!(lab.env.enters() > before);
}

#[test]
fn zeroes_unmap_only_where_they_may() {
    let _alone = lab::alone();
    let file = sparse(4 << 20);
    file.as_file().write_all(&pattern(8192, 2)).unwrap();
    file.as_file().sync_all().unwrap();
    let source = FileSource::open(file.path(), &AUTO).unwrap();
    let mut lab = Lab::new(&source);
    let before = fs::metadata(file.path()).unwrap().blocks();
    lab.run(Op::WriteZeroes, Flags::NO_UNMAP, 0, 1024, &[]).unwrap();
    assert_eq!(fs::metadata(file.path()).unwrap().blocks(), before);
    lab.run(Op::WriteZeroes, Flags::NONE, 1024, 1024, &[]).unwrap();
    assert_eq!(fs::metadata(file.path()).unwrap().blocks(), before - 1024);
    // Zeroes are exact, unlike discards: down to the sector.
    lab.run(Op::WriteZeroes, Flags::NONE, 4001, 3, &[]).unwrap();
    let (bytes, old) = (content(file.path()), pattern(8192, 2));
    assert!(bytes[..2048 * 512].iter().all(|byte| *byte == 0));
    assert!(bytes[2048 * 512..4001 * 512] == old[2048 * 512..4001 * 512]);
    assert!(bytes[4001 * 512..4004 * 512].iter().all(|byte| *byte == 0));
    assert!(bytes[4004 * 512..] == old[4004 * 512..]);
}

#[test]
fn without_zero_range_zeroes_that_must_not_unmap_are_refused_so_that_the_queue_writes_them() {
    let _alone = lab::alone();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("disk.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let mut lab = Lab::new(&FileSource::open(&path, &AUTO).unwrap());
    assert_eq!(lab.run(Op::WriteZeroes, Flags::NO_UNMAP, 0, 8, &[]), Err(Errno::EOPNOTSUPP));
    lab.run(Op::WriteZeroes, Flags::NONE, 0, 8, &[]).unwrap();
}

#[test]
fn opening_alters_neither_data_nor_allocation_nor_size() {
    let _alone = lab::alone();
    on_each_file_system(|path| {
        let mut file = File::options().write(true).open(path).unwrap();
        file.seek(SeekFrom::Start(1 << 20)).unwrap();
        file.write_all(&pattern(100, 9)).unwrap();
        file.set_len((4 << 20) - 512 * 3).unwrap(); // the last block is a partial one
        file.sync_all().unwrap();
        let (before, bytes) = (file.metadata().unwrap(), content(path));
        drop(FileSource::open(path, &AUTO).unwrap());
        drop(FileSource::open(path, &FileOptions { read_only: true, ..AUTO }).unwrap());
        let after = fs::metadata(path).unwrap();
        assert_eq!((after.len(), after.blocks()), (before.len(), before.blocks()));
        assert!(content(path) == bytes);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    });
}

#[test]
fn limits_of_a_file_meet_the_needs_of_large_sequential_reads_and_discards() {
    let _alone = lab::alone();
    let file = sparse(3800 << 30);
    let source = FileSource::open(file.path(), &AUTO).unwrap();
    let limits = source.limits();
    assert!(limits.max_discard >= source.sectors(), "a discard of the whole disk is one request");
    assert!(limits.max_write_zeroes >= source.sectors());
    assert_eq!(limits.discard_granularity, 4096);
    assert_eq!(limits.max_discard.bytes() % 4096, 0);
    // 512 MiB in at most 2,048 requests, also when it is read ahead, and when the memory comes in pages.
    for sectors in [limits.max_sectors, limits.read_ahead] {
        assert!(Sectors::from_bytes_floor(512 << 20).0 / sectors.0 <= 2048);
    }
    assert!(u64::from(limits.max_segments) * 4096 >= limits.max_sectors.bytes());
    assert!(limits.max_segments <= 1024);
    assert!(limits.write_cache && !limits.read_only);
    assert_eq!((limits.hw_fua, limits.fua), (true, Fua::Auto));
    let cached = FileSource::open(file.path(), &FileOptions { lock: false, ..BUFFERED }).unwrap();
    let cached = cached.limits();
    assert_eq!((cached.hw_fua, cached.fua), (false, Fua::Flush));
    let mut lab = Lab::new(&source);
    lab.run(Op::Discard, Flags::NONE, 0, source.sectors().0, &[]).unwrap();
}

#[test]
fn cache_modes_are_those_of_qemu() {
    let _alone = lab::alone();
    let file = sparse(1 << 20);
    let path = file.path().display();
    for (mode, is_direct, sync, flushes, told) in [
        ("none", true, false, true, "write back"),
        ("writeback", false, false, true, "write back"),
        ("directsync", true, true, true, "write through"),
        ("writethrough", false, true, true, "write through"),
        ("unsafe", false, false, false, "write back"),
    ] {
        let opened = open(&format!("{path},cache={mode}"), &OpenOptions::default()).unwrap();
        let limits = opened.source.limits();
        assert_eq!(
            (limits.dma_alignment > 1, limits.sync, limits.write_cache),
            (is_direct, sync, flushes),
            "{mode}"
        );
        assert_eq!(limits.write_cache_name(), told, "{mode}");
        assert!(opened.warnings.is_empty(), "{mode}: {:?}", opened.warnings);
    }
}

#[test]
fn where_o_direct_is_not_possible_the_warning_says_why_and_on_is_an_error() {
    let _alone = lab::alone();
    let ram = Mount::new(&["-t", "ramfs", "none"]);
    let path = ram.join("disk.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let source = FileSource::open(&path, &AUTO).unwrap();
    assert!(!source.is_direct());
    let warnings = source.warnings().join("\n");
    for word in ["page cache", "EINVAL", "direct=off", "holes cannot be punched"] {
        assert!(warnings.contains(word), "{word}: {warnings}");
    }
    let direct = source.decisions().into_iter().find(|told| told.setting == "direct").unwrap();
    assert!(direct.value == "off" && !direct.asked && direct.why.contains("EINVAL"), "{direct:?}");
    assert!(!source.limits().discards());
    assert_eq!(source.limits().max_write_zeroes, Sectors::ZERO);
    assert_eq!(source.limits().dma_alignment, 1);
    let mut lab = Lab::new(&source);
    lab.write(Flags::FUA, 5, &pattern(1, 1));
    assert_eq!(lab.read(5, 1), pattern(1, 1));
    drop((lab, source));
    let error =
        FileSource::open(&path, &FileOptions { direct: Direct::On, ..AUTO }).err().unwrap().to_string();
    assert!(error.contains("direct=on is not possible"), "{error}");
}

#[test]
fn a_file_system_on_blocks_of_4096_bytes_asks_for_them() {
    let _alone = lab::alone();
    let device = LoopDevice::new(64 << 20, &["--sector-size", "4096"]);
    run("mkfs.ext4", &["-q", device.path.to_str().unwrap()]);
    let mount = Mount::new(&[device.path.to_str().unwrap()]);
    let (even, odd) = (mount.join("even.img"), mount.join("odd.img"));
    File::create(&even).unwrap().set_len(1 << 20).unwrap();
    File::create(&odd).unwrap().set_len((1 << 20) + 512).unwrap();
    let source = FileSource::open(&even, &AUTO).unwrap();
    assert_eq!((source.is_direct(), source.limits().logical_block_size), (true, 4096));
    let mut lab = Lab::new(&source);
    lab.write(Flags::NONE, 8, &pattern(8, 1));
    assert!(lab.read(8, 8) == pattern(8, 1));
    let mut bytes = [0; 10];
    source.read_now(8 * 512 + 100, &mut bytes).unwrap();
    assert_eq!(bytes, pattern(8, 1)[100..110]);
    // Direct I/O could not reach its last sector.
    let source = FileSource::open(&odd, &AUTO).unwrap();
    assert_eq!((source.is_direct(), source.limits().logical_block_size), (false, 512));
    assert!(source.warnings().join("\n").contains("multiples of 4096 bytes"), "{:?}", source.warnings());
    let mut lab = Lab::new(&source);
    lab.write(Flags::NONE, 2048, &pattern(1, 1));
    assert!(lab.read(2048, 1) == pattern(1, 1));
}

#[test]
fn errors_name_the_file_and_the_remedy() {
    let _alone = lab::alone();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let error = |name: &str| FileSource::open(&path(name), &AUTO).err().expect(name).to_string();
    let missing = error("missing.img");
    assert!(missing.contains("missing.img") && missing.contains("truncate -s"), "{missing}");
    File::create(path("empty.img")).unwrap();
    assert!(error("empty.img").contains("0 bytes"));
    File::create(path("tiny.img")).unwrap().write_all(&[1; 511]).unwrap();
    assert!(error("tiny.img").contains("511 bytes"));
    fs::create_dir(path("folder")).unwrap();
    assert!(error("folder").contains("a disk is a regular file"));
    let read_only = FileOptions { read_only: true, ..AUTO };
    let folder_error = FileSource::open(&path("folder"), &read_only).err().unwrap().to_string();
    assert!(folder_error.contains("is a folder"), "{folder_error}");
    run("mkfifo", &[path("pipe").to_str().unwrap()]);
    let pipe = FileSource::open(&path("pipe"), &read_only).err().unwrap().to_string();
    assert!(pipe.contains("is a pipe"), "{pipe}");
    let null = FileSource::open(Path::new("/dev/null"), &AUTO).err().unwrap().to_string();
    assert!(null.contains("character device"), "{null}");
}

#[test]
fn a_read_only_file_system_is_refused_for_writing_with_a_remedy() {
    let _alone = lab::alone();
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=4m", "none"]);
    let path = mount.join("disk.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    run("mount", &["-o", "remount,ro", mount.at.path().to_str().unwrap()]);
    let error = FileSource::open(&path, &AUTO).err().unwrap().to_string();
    assert!(error.contains("Read-only file system") && error.contains("',ro'"), "{error}");
    let source = FileSource::open(&path, &FileOptions { read_only: true, ..AUTO }).unwrap();
    assert!(source.limits().read_only && !source.limits().discards());
    assert!(Lab::new(&source).read(0, 8).iter().all(|byte| *byte == 0));
}

#[test]
fn an_uneven_size_is_rounded_down_with_a_warning() {
    let _alone = lab::alone();
    let file = sparse(10_000);
    let source = FileSource::open(file.path(), &AUTO).unwrap();
    assert_eq!(source.sectors(), Sectors(19));
    assert!(source.warnings().join("\n").contains("the last 272 bytes"), "{:?}", source.warnings());
}

#[test]
fn a_file_that_shrank_gives_short_reads_and_tells_its_size() {
    let _alone = lab::alone();
    let file = sparse(1 << 20);
    let source = FileSource::open(file.path(), &AUTO).unwrap();
    let mut lab = Lab::new(&source);
    file.as_file().set_len(512 << 10).unwrap();
    assert!(source.sectors_now().is_none_or(|now| now == Sectors(1024)));
    let segment = blockwork_memory::Segment::new(blockwork_memory::Buffer::new(4096), 0, 4096);
    assert_eq!(lab.run(Op::Read, Flags::NONE, 1536, 8, &[segment]), Ok(0));
    // Who copies it is not to take what is lost for zeros.
    assert_eq!(lab.leaf.allocation(Sector(1536), Sectors(8)), Ok((Allocation::Data, Sectors(8))));
    assert_eq!(lab.leaf.allocation(Sector(1000), Sectors(512)), Ok((Allocation::Hole, Sectors(24))));
}

#[test]
fn a_file_that_grew_is_larger_when_it_is_looked_at_unless_it_had_shrunk() {
    let _alone = lab::alone();
    let file = sparse(1 << 20);
    let source = FileSource::open(file.path(), &AUTO).unwrap();
    assert_eq!(source.grow(), Sectors(2048));
    file.as_file().set_len((2 << 20) + 700).unwrap();
    assert_eq!(source.sectors(), Sectors(2048), "nobody has looked");
    // Whole sectors, and all of them on this file system, if its size can be had at once.
    if source.sectors_now().is_none() {
        return;
    }
    assert_eq!((source.grow(), source.sectors()), (Sectors(4097), Sectors(4097)));
    let mut lab = Lab::new(&source);
    lab.write(Flags::FUA, 4088, &pattern(8, 1));
    assert!(lab.read(4088, 8) == pattern(8, 1));
    // What is cut off is lost, also when the file is as large as it was again.
    file.as_file().set_len(1 << 20).unwrap();
    assert_eq!(source.grow(), Sectors(4097));
    assert!(source.shared().ends_at(Sector(2048)), "a queue has found it");
    file.as_file().set_len(4 << 20).unwrap();
    assert_eq!(source.grow(), Sectors(4097));
}

#[test]
fn a_full_file_system_answers_enospc() {
    let _alone = lab::alone();
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=64k", "none"]);
    let path = mount.join("disk.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let mut lab = Lab::new(&FileSource::open(&path, &BUFFERED).unwrap());
    let bytes = 256 << 10;
    let segment = blockwork_memory::Segment::new(blockwork_memory::Buffer::new(bytes), 0, bytes);
    let first = lab.run(Op::Write, Flags::NONE, 0, 512, std::slice::from_ref(&segment));
    assert!(first == Err(Errno::ENOSPC) || first.is_ok_and(|n| n < 256 << 10), "{first:?}");
    assert_eq!(lab.run(Op::Write, Flags::NONE, 1024, 512, &[segment]), Err(Errno::ENOSPC));
}

#[test]
fn a_disk_is_opened_by_its_name_with_options() {
    let _alone = lab::alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a,b.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let name = path.to_str().unwrap().replace(',', ",,");
    let opened = open(&format!("{name},direct=off,ro,max_sectors_kb=64"), &OpenOptions::default()).unwrap();
    let limits = opened.source.limits();
    assert_eq!((limits.max_sectors, limits.read_only, limits.dma_alignment), (Sectors(128), true, 1));
    assert_eq!(opened.source.name(), path.to_str().unwrap());
    assert!(opened.warnings.is_empty());
    drop(opened);
    let settings = vec![("nr_requests".into(), "7".into())];
    let all = OpenOptions { read_only: true, settings, ..OpenOptions::default() };
    let opened = open(&format!("{name},nr_requests=9"), &all).unwrap();
    assert_eq!((opened.source.limits().nr_requests, opened.source.limits().read_only), (9, true));
    drop(opened);
    let writer = FileSource::open(&path, &AUTO).unwrap();
    assert!(open(&name, &OpenOptions { read_only: true, ..OpenOptions::default() }).is_err(), "locked");
    open(&name, &OpenOptions { read_only: true, unlocked: true, ..OpenOptions::default() }).unwrap();
    drop(writer);
    let error = open(&format!("{name},no_merges=1"), &OpenOptions::default()).err().unwrap().to_string();
    assert!(error.contains("a,b.img") && error.contains("nomerges"), "{error}");
    let error = open(&format!("{name},nomerges=5"), &OpenOptions::default()).err().unwrap().to_string();
    assert!(error.contains("nomerges=5"), "{error}");
}

/// Value, whether it was asked for, and why.
fn told(spec: &str, settings: &[(&str, &str)], setting: &str) -> (&'static str, bool, String) {
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let opened = open(spec, &OpenOptions { settings, ..OpenOptions::default() }).unwrap();
    let all = opened.source.decisions();
    assert_eq!(
        all.iter().map(|told| told.setting).collect::<Vec<_>>(),
        ["direct", "linearize", "fua", "fixed"]
    );
    let told = all.into_iter().find(|told| told.setting == setting).unwrap();
    (told.value, told.asked, told.why)
}

#[test]
fn what_is_in_force_is_told_with_whoever_has_said_so_or_what_was_tried() {
    let _alone = lab::alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let name = path.to_str().unwrap();
    let works = "O_DIRECT was tried, and works".to_owned();
    assert_eq!(told(name, &[], "direct"), ("on", false, works));
    for (option, value) in [("direct=on", "on"), ("direct=off", "off"), ("cache=directsync", "on")] {
        assert_eq!(told(&format!("{name},{option}"), &[], "direct"), (value, true, option.to_owned()));
    }
    for setting in ["linearize", "fua"] {
        let (value, asked, why) = told(name, &[(setting, "auto")], setting);
        assert!(value == "auto" && !asked && why.contains("measured"), "{why}");
    }
    // The disk's own words come last, and are in force.
    let own = told(&format!("{name},linearize=off"), &[("linearize", "on")], "linearize");
    assert_eq!(own, ("off", true, "linearize=off".to_owned()));
    assert_eq!(told(name, &[("fua", "dsync")], "fua"), ("dsync", true, "fua=dsync".to_owned()));
    assert_eq!(told(name, &[("fixed", "on")], "fixed"), ("on", true, "fixed=on".to_owned()));
}

#[test]
fn through_the_page_cache_a_fua_write_has_a_flush_and_it_is_told_whoever_asks_for_auto() {
    let _alone = lab::alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let buffered = format!("{},direct=off", path.display());
    for settings in [&[][..], &[("fua", "auto")]] {
        let (value, asked, why) = told(&buffered, settings, "fua");
        assert!(value == "flush" && !asked && why.contains("page cache"), "{why}");
    }
    assert_eq!(told(&buffered, &[("fua", "flush")], "fua"), ("flush", true, "fua=flush".to_owned()));
    let (value, asked, why) = told(&buffered, &[], "fixed");
    assert!(value == "off" && !asked && why.contains("page cache"), "{why}");
    let (_, asked, why) = told(&format!("{},cache=unsafe", path.display()), &[], "fua");
    assert!(asked && why.contains("cache=unsafe"), "{why}");
}
