//! Old mirrors of LVM whose first copy is missing: what their log says is in sync is read from another one, and
//! nothing else. A log is written here as the kernel does it; `cli/tests/kernel/lvm_mirror.rs` has the kernel's own.

mod lab;

use blockwork_engine::{
    CounterTable, Errno, Flags, Op, Resolver, Sector, Sectors, Span, Target, Tracer, Volume,
};
use blockwork_volume::Assembly;
use lab::{
    Disk, EXTENT, Group, HIDDEN, Lab, PE_START, SEEN, commit, linear, lv, numbered, pv, refused, volume,
    warning,
};

/// Extents of the mirror, each of which is a region.
const SIZE: u64 = 12;
/// Where the second copy, and the log, are on the disk that is there.
const COPY: u64 = 5;
const LOG: u64 = 30;

/// The disk with the second copy of a mirror, the first of which is on a disk that is missing.
fn second_disk(mirror: &str) -> (Lab, Disk) {
    let lab = Lab::new();
    let disk = pv(&lab, "b", 1, 40);
    let lvs = vec![
        lv("image0", 1, HIDDEN, &[("striped", SIZE, &linear(0, 7))]),
        lv("image1", 2, HIDDEN, &[("striped", SIZE, &linear(1, COPY))]),
        lv("old_mlog", 3, HIDDEN, &[("striped", 1, &linear(1, LOG))]),
        lv("lost_mlog", 5, HIDDEN, &[("striped", 1, &linear(0, LOG))]),
        lv("old", 4, SEEN, &[("mirror", SIZE, mirror)]),
    ];
    let pvs = &[(0, 40), (1, 40)];
    commit(&disk, &Group { name: "vg0", id: 'G', seqno: 1, more: "", pvs, lvs }.text());
    (lab, disk)
}

const IMAGES: &str = "mirror_count = 2 mirrors = [\"image0\", 0, \"image1\", 0]";

fn with_log(region: &str) -> String {
    format!("{IMAGES} mirror_log = \"old_mlog\" {region}")
}

/// Writes the log: so many regions, and the bits of those that are clean.
fn write_log(disk: &Disk, version: u32, regions: u64, bits: [u8; 2]) {
    let at = (PE_START + LOG * EXTENT) * 512;
    let mut log = [&b"rRiM"[..], &version.to_le_bytes(), &regions.to_le_bytes()].concat();
    log.resize(1024, 0);
    disk.write(at, &[&log[..], &bits, &[0; 512]].concat());
}

/// What a sector of the volume has.
fn sector(assembly: &Assembly, volume: &Volume, sector: u64) -> Result<[u8; 512], Errno> {
    let counters: std::sync::Arc<CounterTable> = assembly.stats().worker();
    let (leaves, mut tracer, mut extents) = (assembly.leaves(), Tracer::default(), Vec::new());
    let mut resolver = Resolver::new(&mut extents, &counters, &mut tracer);
    let span =
        Span { op: Op::Read, flags: Flags::NONE, sector: Sector(sector), nr: Sectors(1), at: Sectors::ZERO };
    volume.root.resolve(span, &mut resolver).unwrap();
    match extents[0].target {
        Target::Leaf(leaf) => {
            let mut bytes = [0; 512];
            leaves[usize::from(leaf.0)].1.read_now(extents[0].span.sector.bytes(), &mut bytes).unwrap();
            Ok(bytes)
        }
        Target::Zero => panic!("nothing of a mirror is zeros"),
        Target::Error(errno) => Err(errno),
        Target::Sum(_) | Target::Task(_) => unreachable!("a mirror computes nothing"),
    }
}

/// Every sector of the regions for which the function is true is the second copy's; all others fail.
#[track_caller]
fn expect_regions(assembly: &Assembly, volume: &Volume, is_clean: impl Fn(u64) -> bool) {
    assert_eq!(volume.sectors(), Sectors(SIZE * EXTENT));
    for at in 0..SIZE * EXTENT {
        let expected = if is_clean(at / EXTENT) {
            Ok(numbered(1, PE_START + COPY * EXTENT + at))
        } else {
            Err(Errno::EIO)
        };
        assert!(sector(assembly, volume, at) == expected, "sector {at}");
    }
}

#[test]
fn a_mirror_that_is_in_sync_by_its_log_is_read_from_another_copy() {
    let (lab, disk) = second_disk(&with_log("region_size = 8"));
    // As the kernel leaves it, and as LVM makes one of a mirror that is in sync from the start.
    for regions in [SIZE, u64::MAX] {
        write_log(&disk, 2, regions, [0xff, 0x0f]);
        let mut assembly = lab.open_for_writing(&[&disk]);
        let old = volume(&mut assembly, "vg0/old");
        expect_regions(&assembly, &old, |_| true);
        assert!(old.read_only);
        let said = warning(&assembly, "its first copy cannot be read");
        assert!(said.starts_with("vg0/old: ") && said.contains("pv0"), "{said}");
        assert!(said.ends_with("another one is read, which is in sync by its log"), "{said}");
    }
}

#[test]
fn regions_that_are_not_in_sync_by_the_log_give_errors_and_are_told() {
    let (lab, disk) = second_disk(&with_log("region_size = 8"));
    write_log(&disk, 2, SIZE, [0b1110_0111, 0b0000_0101]);
    let mut assembly = lab.open(&[&disk]);
    let old = volume(&mut assembly, "vg0/old");
    expect_regions(&assembly, &old, |region| ![3, 4, 9, 11].contains(&region));
    let said = warning(&assembly, "its first copy cannot be read");
    let expected = "4 of its 12 regions of 8 sectors, the first from sector 24 on, are not in sync by its log, \
                    and give errors";
    assert!(said.ends_with(expected), "{said}");
    // It has grown since the log was written: what is new was never copied.
    write_log(&disk, 2, 7, [0xff, 0xff]);
    let mut assembly = lab.open(&[&disk]);
    let old = volume(&mut assembly, "vg0/old");
    expect_regions(&assembly, &old, |region| region < 7);
    // The last region is not a whole one.
    let (lab, disk) = second_disk(&with_log("region_size = 64"));
    write_log(&disk, 2, 2, [0b10, 0]);
    let mut assembly = lab.open(&[&disk]);
    let old = volume(&mut assembly, "vg0/old");
    expect_regions(&assembly, &old, |region| region >= 8);
}

#[test]
fn a_mirror_of_which_nothing_says_that_it_is_in_sync_is_refused_with_the_reason() {
    let log = with_log("region_size = 8");
    let odd = with_log("region_size = 24");
    let lost = log.replace("old_mlog", "lost_mlog");
    let unlogged = format!("{IMAGES} region_size = 8");
    for (mirror, version, bits, why) in [
        (&log, 2, [0, 0], "no region is in sync, as its log old_mlog says"),
        (&log, 3, [0xff; 2], "old_mlog: mirror log at 4: version is 3, expected 1 or 2"),
        (&odd, 2, [0xff; 2], "regions of 24 sectors are none that the kernel takes"),
        (
            &lost,
            2,
            [0xff; 2],
            "the others may be behind it: lost_mlog, which it is made of: the physical volume pv0",
        ),
        (&unlogged, 2, [0xff; 2], "which regions are in sync was not kept on disk"),
    ] {
        let (lab, disk) = second_disk(mirror);
        write_log(&disk, version, SIZE, bits);
        let said = refused(&mut lab.open(&[&disk]), "vg0/old");
        assert!(said.contains("its first copy cannot be read (image0") && said.contains(why), "{said}");
    }
}
