//! Devices that are brought in while an array is served: which are taken, which are refused and why, and that none is kept
//! that was refused.

mod lab;

use blockwork_engine::Sectors;
use blockwork_format::md::{Level, Uuid};
use blockwork_volume::{Assembly, Attached, NEWCOMER_NODES_MAX, Plan, Purpose};
use lab::{Disk, Lab, Set, put_superblock};

const SECTORS: u64 = 8192;
/// That of `host:r1`.
const ARRAYS: [Uuid; 1] = [Uuid(*b"host:r1ZZZZZZZZZ")];

fn path(disk: &Disk) -> String {
    disk.path.to_str().unwrap().to_owned()
}

fn purpose<'a>(assembly: &Assembly, served: &'a [&'a str]) -> Purpose<'a> {
    let array = assembly.graph().arrays[0].truth.uuid();
    Purpose { array, served, arrays: &ARRAYS, attached: &[], force: false }
}

fn refusal(assembly: &mut Assembly, device: &str, served: &[&str]) -> String {
    let purpose = purpose(assembly, served);
    assembly.bring_in(device, &purpose).err().expect("it is refused").to_string()
}

/// Whether somebody has the disk open for writing.
fn is_locked(disk: &Disk) -> bool {
    Assembly::open(Plan { disks: vec![path(disk)], ..Plan::default() }).is_err()
}

/// A disk with one partition (mbr) of `sectors` from sector 64 on.
fn partitioned(lab: &Lab, name: &str, sectors: u32) -> Disk {
    let disk = lab.disk(name, SECTORS);
    let mut entry = [0; 16];
    entry[4] = 0x83;
    entry[8..12].copy_from_slice(&64u32.to_le_bytes());
    entry[12..].copy_from_slice(&sectors.to_le_bytes());
    disk.write(446, &entry);
    disk.write(510, &[0x55, 0xaa]);
    disk
}

#[test]
fn a_blank_disk_becomes_one_more_leaf_and_node() {
    let lab = Lab::new();
    let members = Set::new("host:r1", Level::Raid1, 0, 2).members(&lab);
    let mut assembly = lab.open_for_writing(&[&members[0], &members[1]]);
    let blank = lab.disk("blank", SECTORS);
    let before = assembly.node_count();
    assert!(!assembly.knows(&path(&blank)));
    let purpose = purpose(&assembly, &["md/r1"]);
    let newcomer = assembly.bring_in(&path(&blank), &purpose).unwrap();
    assert_eq!((newcomer.name.as_str(), newcomer.layer.sectors()), (path(&blank).as_str(), Sectors(SECTORS)));
    assert!(newcomer.superblock.is_none());
    let (leaf, node, _) = newcomer.leaf.unwrap();
    assert_eq!((usize::from(leaf.0), usize::from(node.0)), (2, before));
    assert_eq!(assembly.node_count(), before + 1);
    assert_eq!(assembly.leaves().len(), 3);
    // Once more: it is open now, by whatever path.
    let link = blank.path.with_file_name("link");
    std::os::unix::fs::symlink(&blank.path, &link).unwrap();
    assert!(assembly.knows(link.to_str().unwrap()));
    let again = assembly.bring_in(link.to_str().unwrap(), &purpose).unwrap();
    assert!(again.leaf.is_none());
    assert_eq!(assembly.node_count(), before + 1);
    assert_eq!(again.layer.node(), newcomer.layer.node());
}

#[test]
fn a_partition_is_brought_in_with_its_disk() {
    let lab = Lab::new();
    let members = Set::new("host:r1", Level::Raid1, 0, 2).members(&lab);
    let mut assembly = lab.open_for_writing(&[&members[0], &members[1]]);
    let disk = partitioned(&lab, "parts", 4096);
    let purpose = purpose(&assembly, &["md/r1"]);
    let before = assembly.node_count();
    let newcomer = assembly.bring_in(&format!("{}/1", path(&disk)), &purpose).unwrap();
    assert_eq!(newcomer.layer.sectors(), Sectors(4096));
    assert_eq!(assembly.node_count(), before + NEWCOMER_NODES_MAX);
    assert!(newcomer.leaf.is_some());
    let whole = refusal(&mut assembly, &path(&disk), &["md/r1"]);
    assert!(whole.contains("a partition table (mbr) with 1 partition, which would be lost"), "{whole}");
    let none = refusal(&mut assembly, &format!("{}/7", path(&disk)), &["md/r1"]);
    assert!(none.contains("no such partition"), "{none}");
}

#[test]
fn a_member_that_was_left_out_is_used_as_it_is_and_its_superblock_read_anew() {
    let lab = Lab::new();
    let set = Set::new("host:r1", Level::Raid1, 0, 2);
    let members = set.members(&lab);
    let mut stale = set.superblock(1);
    stale.events = 2;
    put_superblock(&members[1], &stale);
    let mut assembly = lab.open_for_writing(&[&members[0], &members[1]]);
    stale.events = 3;
    put_superblock(&members[1], &stale);
    let purpose = purpose(&assembly, &["md/r1"]);
    let newcomer = assembly.bring_in(&path(&members[1]), &purpose).unwrap();
    assert_eq!(newcomer.superblock.unwrap().events(), 3);
    assert!(newcomer.leaf.is_none());
}

#[test]
fn what_is_in_use_or_holds_something_is_refused_and_not_kept_open() {
    let lab = Lab::new();
    let members = Set::new("host:r1", Level::Raid1, 0, 2).members(&lab);
    let others = Set { uuid: [7; 16], ..Set::new("host:other", Level::Raid1, 0, 2) };
    let others = others.members(&lab);
    let parts = partitioned(&lab, "parts", 4096);
    let spare = lab.disk("spare", SECTORS);
    let disks = [&members[0], &members[1], &others[0], &others[1], &spare];
    let mut assembly = lab.open_for_writing(&disks);
    let served = ["md/r1", "disk/spare"];
    for (device, word) in [
        (path(&others[0]), "md/other stands upon it"),
        (path(&spare), "served as the volume disk/spare"),
        (path(&parts), "a partition table (mbr) with 1 partition, which would be lost"),
        (format!("{}/2", path(&parts)), "no partition has that number; there are: 1"),
        (format!("{},ro", path(&parts)), "cannot be written to"),
        (path(&spare) + ".none", "No such file"),
    ] {
        let said = refusal(&mut assembly, &device, &served);
        assert!(said.contains(word), "{device}: {said}");
    }
    assert!(!is_locked(&parts) && is_locked(&spare));
    assert_eq!(assembly.leaves().len(), disks.len());
    // By force.
    let purpose = Purpose { force: true, ..purpose(&assembly, &served) };
    let newcomer = assembly.bring_in(&path(&parts), &purpose).unwrap();
    assert!(newcomer.superblock.is_none() && is_locked(&parts));
    assert_eq!(newcomer.layer.sectors(), Sectors(SECTORS));
}

#[test]
fn what_an_array_has_got_meanwhile_is_in_use_with_all_that_has_its_bytes() {
    let lab = Lab::new();
    let members = Set::new("host:r1", Level::Raid1, 0, 2).members(&lab);
    let mut assembly = lab.open_for_writing(&[&members[0], &members[1]]);
    let disk = partitioned(&lab, "parts", 4096);
    let (whole, part) = (path(&disk), format!("{}/1", path(&disk)));
    let newcomer = assembly.bring_in(&part, &purpose(&assembly, &[])).unwrap();
    let mut try_again = |device: &str, is_here| {
        let attached = [Attached { name: newcomer.name.clone(), is_here }];
        let purpose = Purpose { attached: &attached, force: true, ..purpose(&assembly, &[]) };
        assembly.bring_in(device, &purpose).map(|_| ()).map_err(|error| error.to_string())
    };
    let said = try_again(&whole, true).unwrap_err();
    assert!(said.contains("disk/parts/1, which an array has, shares its bytes"), "{said}");
    let said = try_again(&part, false).unwrap_err();
    assert!(said.contains("another array has it"), "{said}");
    // That an array has it already is for the array to say.
    try_again(&part, true).unwrap();
}
