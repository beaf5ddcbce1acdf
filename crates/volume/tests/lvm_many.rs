//! Groups of very many volumes: what is found out about each of them takes no look at all the others.

mod lab;

use std::time::{Duration, Instant};

use blockwork_format::lvm2::{AreaHeader, DiskArea, Label, PvHeader};
use lab::{EXTENT, Group, HIDDEN, Lab, SEEN, commit, linear, lv, pv_id};

/// Where extents begin: behind a metadata area with room for a text of some 20 MiB twice.
const PE_START: u64 = 128 << 11;

const SNAPSHOTS: u16 = 16_000;

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
fn family() -> Vec<String> {
    let mut lvs = vec![lv("origin", 1, SEEN, &[("striped", 1, &*linear(0, 0))])];
    for nr in 0..SNAPSHOTS {
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

#[test]
fn what_is_told_of_thousands_of_snapshots_on_a_damaged_group_takes_no_look_at_each_pair_of_them() {
    let lab = Lab::new();
    let a = pv(&lab);
    let group = |pvs, lvs| Group { name: "vg0", id: 'G', seqno: 1, more: "", pvs, lvs }.text();
    let text = group(&[(0, 20), (1, 10)], family());
    commit(&a, &text.replace("pe_start = 256", &format!("pe_start = {PE_START}")));
    let started = Instant::now();
    let mut assembly = lab.open(&[&a]);
    let report = blockwork_volume::scan(&assembly);
    let lvs = &report.groups[0].lvs;
    let partial = lvs.iter().filter(|lv| lv.partial).map(|lv| &*lv.name);
    let is_of_the_family = |name: &str| name == "origin" || name == "part7" || name.starts_with("snap");
    assert_eq!(partial.clone().count(), usize::from(SNAPSHOTS) + 2, "all that stands upon what is not there");
    assert!(partial.clone().all(is_of_the_family));
    let (chosen, refused) = assembly.choose_all();
    assert_eq!((chosen.len(), refused.len()), (1, SNAPSHOTS.into()), "the origin can do without stores");
    // A look at each pair of them took half a minute, and this takes a tenth of that.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}
