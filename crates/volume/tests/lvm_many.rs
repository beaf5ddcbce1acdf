//! Groups of very many volumes: what is found out about each of them takes no look at all the others.

mod lab;

use std::time::Duration;

use blockwork_format::lvm2::{AreaHeader, DiskArea, Label, PvHeader};
use lab::{EXTENT, Group, HIDDEN, Lab, SEEN, commit, linear, lv, pv_id};
use rustix::time::{ClockId, clock_gettime};

/// Where extents begin: behind a metadata area with room for a text of some 20 MiB twice.
const PE_START: u64 = 128 << 11;

/// What this thread has had of a processor so far: others that are busy do not count.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("it is not negative")
}

/// A physical volume with room for a very long text.
fn pv(lab: &Lab) -> lab::Disk {
    let disk = lab.disk("a", PE_START + 20 * EXTENT);
    let area = DiskArea { offset: 4096, size: PE_START * 512 - 4096 };
    let header = PvHeader::new(pv_id(0), disk.sectors() * 512, PE_START * 512);
    let pv = PvHeader { metadata_areas: vec![area], ..header };
    disk.write(512, &Label { sector: 1, pv }.encode().unwrap());
    disk.write(area.offset, &AreaHeader::new(area).unwrap().encode());
    disk
}

/// An origin with its snapshots, of each of which the store lies on a volume of its own; one of these is on a disk that is missing.
fn family(snapshots: u16) -> Vec<String> {
    let mut lvs = vec![lv("origin", 1, SEEN, &[("striped", 1, &*linear(0, 0))])];
    for nr in 0..snapshots {
        let tie = format!("chunk_size = 8 origin = \"origin\" cow_store = \"snap{nr}\"");
        let part = format!("stripe_count = 1 stripes = [\"part{nr}\", 0]");
        let (error, missing) = (("error", 1, ""), linear(1, 0));
        let below = if nr == 7 { ("striped", 1, &*missing) } else { error };
        lvs.push(lv(&format!("part{nr}"), 40_000 + nr, HIDDEN, &[below]));
        lvs.push(lv(&format!("snap{nr}"), 2 + 2 * nr, HIDDEN, &[("striped", 1, &*part)]));
        lvs.push(lv(&format!("snapshot{nr}"), 3 + 2 * nr, SEEN, &[("snapshot", 1, &*tie)]));
    }
    lvs
}

/// Opens such a group, tells of it and chooses all that can be served; the processor's time that took.
fn look_at(snapshots: u16) -> Duration {
    let lab = Lab::new();
    let a = pv(&lab);
    let group = |pvs, lvs| Group { name: "vg0", id: 'G', seqno: 1, more: "", pvs, lvs }.text();
    let text = group(&[(0, 20), (1, 10)], family(snapshots));
    commit(&a, &text.replace("pe_start = 256", &format!("pe_start = {PE_START}")));
    let started = processor_time();
    let mut assembly = lab.open(&[&a]);
    let report = blockwork_volume::scan(&assembly);
    let lvs = &report.groups[0].lvs;
    let partial = lvs.iter().filter(|lv| lv.partial).map(|lv| &*lv.name);
    let is_of_the_family = |name: &str| name == "origin" || name == "part7" || name.starts_with("snap");
    assert_eq!(partial.clone().count(), usize::from(snapshots) + 2, "all that stands upon what is not there");
    assert!(partial.clone().all(is_of_the_family));
    let (chosen, refused) = assembly.choose_all();
    assert_eq!((chosen.len(), refused.len()), (1, snapshots.into()), "the origin can do without stores");
    processor_time() - started
}

#[test]
fn what_is_told_of_thousands_of_snapshots_on_a_damaged_group_takes_no_look_at_each_pair_of_them() {
    let (few, many) = (look_at(4_000), look_at(16_000));
    // Four times as many take five times as long. A look at each pair of them took sixteen times as long, and more.
    assert!(many < few * 12, "{few:?}, {many:?}");
}
