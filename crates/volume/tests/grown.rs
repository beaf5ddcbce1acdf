//! Disks that have grown since they were opened: those that are volumes by themselves grow with their files, and what knows its own size does not.

mod lab;

use std::fs::File;

use blockwork_engine::Sectors;
use blockwork_format::md::Level;
use lab::{Lab, Set, make_pv};

const SECTORS: u64 = 8192;

#[test]
fn a_plain_disk_grows_and_members_and_physical_volumes_stay_as_they_are_known() {
    let lab = Lab::new();
    let (plain, pv) = (lab.disk("plain", SECTORS), lab.disk("pv", SECTORS));
    make_pv(&pv, 0);
    let member = Set::new("host:r1", Level::Raid1, 0, 2).member(&lab, "member", 0);
    let mut assembly = lab.open_for_writing(&[&plain, &pv, &member]);
    assert_eq!(assembly.grown_disks(), [] as [&str; 0]);
    for disk in [&plain, &pv, &member] {
        File::options().write(true).open(&disk.path).unwrap().set_len(2 * SECTORS * 512).unwrap();
    }
    assert_eq!(assembly.grown_disks(), ["disk/plain"]);
    let volume = lab::volume(&mut assembly, "disk/plain");
    assert_eq!(volume.sectors(), Sectors(2 * SECTORS));
    assert_eq!(assembly.grown_disks(), [] as [&str; 0], "that is known by now");
}
