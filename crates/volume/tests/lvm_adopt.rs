//! What is served follows a new text of its group, however many volumes that changes.

mod lab;

use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwork_format::lvm2::VolumeGroup;
use blockwork_volume::Assembly;
use lab::{Group, Lab, SEEN, commit, lv, pv};

const VOLUMES: u16 = 40_000;

fn text(seqno: u64, names: &[String]) -> String {
    let volume = |(id, name): (u16, &String)| lv(name, id, SEEN, &[("error", 1, "")]);
    let lvs = (1..).zip(names).map(volume).collect();
    Group { name: "vg0", id: 'G', seqno, more: "", pvs: &[(0, 20)], lvs }.text()
}

fn adopt(assembly: &mut Assembly, seqno: u64, names: &[String]) -> (Vec<String>, usize, Duration) {
    let text = VolumeGroup::from_text(text(seqno, names).as_bytes()).unwrap();
    let started = Instant::now();
    let adopted = assembly.adopt("vg0", Arc::new(text)).unwrap();
    (adopted.added, adopted.renamed.len(), started.elapsed())
}

#[test]
fn a_change_of_thousands_of_names_looks_at_each_once() {
    let lab = Lab::new();
    let a = pv(&lab, "a", 0, 20);
    commit(&a, &text(1, &[]));
    let mut assembly = lab.open_for_writing(&[&a]);
    let old: Vec<String> = (0..VOLUMES).map(|nr| format!("old{nr}")).collect();
    let new: Vec<String> = (0..VOLUMES).map(|nr| format!("new{nr}")).collect();
    let (added, _, adding) = adopt(&mut assembly, 2, &old);
    assert_eq!(added.len(), usize::from(VOLUMES));
    let (_, renamed, renaming) = adopt(&mut assembly, 3, &new);
    assert_eq!(renamed, usize::from(VOLUMES));
    assert!(assembly.graph().find("vg0/old7").is_none() && assembly.graph().find("vg0/new7").is_some());
    let (_, _, removing) = adopt(&mut assembly, 4, &[]);
    assert!(assembly.graph().find("vg0/new7").is_none());
    // The names are free, and those that were removed do not take them away again.
    let (added, _, adding_again) = adopt(&mut assembly, 5, &new);
    assert!(added == new.iter().map(|name| format!("vg0/{name}")).collect::<Vec<_>>(), "{:?}", &added[..3]);
    // To look through all names for each that goes took a hundred times as long as to add them, and this takes as long.
    let (came, went) = (adding + adding_again, renaming + removing);
    assert!(went < 20 * came, "{went:?} for those that went, {came:?} for those that came");
}
