//! Volume groups: which text and which devices are believed, what becomes of each type of volume, and what of groups that
//! are broken, split, doubled or hostile.

mod lab;

use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwork_volume::{Content, DeviceKind, VolumeError};
use lab::{
    EXTENT, Group, HIDDEN, Lab, PE_START, SEEN, all_names, commit, content, linear, lv, make_pv, numbered,
    pv, refused, volume, warning,
};

/// The sectors of extents of a PV.
fn extents(pv: u32, start: u64, count: u64) -> Vec<u8> {
    let first = PE_START + start * EXTENT;
    (first..first + count * EXTENT).flat_map(|sector| numbered(pv, sector)).collect()
}

fn group<'a>(seqno: u64, pvs: &'a [(u8, u64)], lvs: Vec<String>) -> Group<'a> {
    Group { name: "vg0", id: 'g', seqno, more: "", pvs, lvs }
}

#[test]
fn linear_and_striped_segments_are_read_from_where_they_lie_in_any_order_of_disks() {
    let lab = Lab::new();
    let (a, b) = (pv(&lab, "a", 0, 20), pv(&lab, "b", 1, 20));
    let striped = "stripe_count = 2 stripe_size = 4 stripes = [\"pv0\", 10, \"pv1\", 11]";
    let segments = [
        ("striped", 3, &*linear(1, 4)),
        ("zero", 1, ""),
        ("striped", 4, striped),
        ("striped", 2, &*linear(0, 0)),
    ];
    let text = group(1, &[(0, 20), (1, 20)], vec![lv("mixed", 1, SEEN, &segments)]).text();
    [&a, &b].iter().for_each(|disk| commit(disk, &text));
    let mut striped = Vec::new();
    for chunk in 0..8 {
        let (disk, start) = [(0, 10), (1, 11)][chunk % 2];
        let sectors = extents(disk, start, 2);
        striped.extend(&sectors[chunk / 2 * 4 * 512..][..4 * 512]);
    }
    let zeros = vec![0; 4096];
    let expected = [extents(1, 4, 3), zeros, striped, extents(0, 0, 2)].concat();
    for disks in [[&a, &b], [&b, &a]] {
        let mut assembly = lab.open(&disks);
        let volume = volume(&mut assembly, "vg0/mixed");
        assert!(content(&assembly, &volume) == expected);
        assert_eq!(assembly.warnings(), [] as [&str; 0]);
        assert_eq!(all_names(&mut assembly), ["vg0/mixed"], "the disks are in use");
    }
}

#[test]
fn segments_that_end_in_errors_and_parts_of_other_volumes_are_served() {
    let lab = Lab::new();
    let a = pv(&lab, "a", 0, 20);
    let whole = [("striped", 4, &*linear(0, 3))];
    let part = [("striped", 2, "stripe_count = 1 stripes = [\"inner\", 1]"), ("error", 1, "")];
    let lvs = vec![lv("inner", 1, HIDDEN, &whole), lv("outer", 2, SEEN, &part)];
    commit(&a, &group(1, &[(0, 20)], lvs).text());
    let mut assembly = lab.open(&[&a]);
    let outer = volume(&mut assembly, "vg0/outer");
    assert_eq!(outer.sectors().0, 3 * EXTENT);
    let said = refused(&mut assembly, "vg0/inner");
    assert_eq!(said, "vg0/inner: it is a part of another volume: serve that one");
    assert_eq!(all_names(&mut assembly), ["vg0/outer"]);
}

#[test]
fn of_a_volume_that_cannot_be_read_one_warning_says_where_it_was_tried() {
    let lab = Lab::new();
    let a = pv(&lab, "a", 0, 20);
    let lvs = vec![lv("nothing", 1, SEEN, &[("error", 4, "")])];
    commit(&a, &group(1, &[(0, 20)], lvs).text());
    let mut assembly = lab.open(&[&a]);
    all_names(&mut assembly);
    let said = assembly.warnings();
    let [only] = &said[..] else { panic!("{said:#?}") };
    assert!(only.starts_with("vg0/nothing: MBR at 0, md superblock at 0, "), "{only}");
    assert!(only.contains(", LVM2 label at 0: cannot be read: Input/output error"), "{only}");
}

#[test]
fn the_newest_text_counts_and_older_ones_are_told() {
    let lab = Lab::new();
    let (a, b) = (pv(&lab, "a", 0, 20), pv(&lab, "b", 1, 20));
    let pvs = [(0, 20), (1, 20)];
    let old = group(4, &pvs, vec![lv("lv", 1, SEEN, &[("striped", 1, &linear(0, 0))])]).text();
    let new = group(5, &pvs, vec![lv("lv", 1, SEEN, &[("striped", 2, &linear(1, 7))])]).text();
    commit(&a, &new);
    commit(&b, &old);
    for disks in [[&a, &b], [&b, &a]] {
        let mut assembly = lab.open(&disks);
        let volume = volume(&mut assembly, "vg0/lv");
        assert!(content(&assembly, &volume) == extents(1, 7, 2));
        let all = assembly.warnings();
        assert_eq!(all.len(), 2, "each of two areas: {all:#?}");
        assert!(all[0].contains("/b is older (seqno 4) than the one on "), "{all:#?}");
        assert!(all[0].ends_with("/a (seqno 5), which is used"), "{all:#?}");
    }
}

/// By an older text a volume would be read where it was once, and another one may be now.
#[test]
fn no_text_is_used_where_another_one_that_is_not_older_is_not_understood() {
    let lab = Lab::new();
    let (a, b) = (pv(&lab, "a", 0, 20), pv(&lab, "b", 1, 20));
    let pvs = [(0, 20), (1, 20)];
    let known = group(4, &pvs, vec![lv("lv", 1, SEEN, &[("striped", 2, &linear(0, 3))])]).text();
    commit(&b, &known);
    for seqno in [3, 4, 5] {
        // Behind the end of its disk.
        let unknown = group(seqno, &pvs, vec![lv("lv", 1, SEEN, &[("striped", 2, &linear(0, 90))])]).text();
        commit(&a, &unknown);
        for disks in [[&a, &b], [&b, &a]] {
            let mut assembly = lab.open_for_writing(&disks);
            if seqno < 4 {
                let volume = volume(&mut assembly, "vg0/lv");
                assert!(content(&assembly, &volume) == extents(0, 3, 2) && volume.read_only);
                let all = assembly.warnings();
                assert_eq!(all.len(), 2, "each of two areas: {all:#?}");
                let told = |said: &&String| {
                    said.contains("extents from 90 of pv0") && said.ends_with("/b (seqno 4) was used")
                };
                assert_eq!(all.iter().filter(told).count(), 2, "{all:#?}");
                continue;
            }
            let said = refused(&mut assembly, "vg0/lv");
            assert!(said.contains("/a is not understood (LVM2 metadata, line "), "{said}");
            assert!(said.contains(&format!("by its number ({seqno}) is not older than what ")), "{said}");
        }
    }
}

#[test]
fn a_damaged_area_is_read_from_its_copy_and_told_with_its_place() {
    let lab = Lab::new();
    let a = pv(&lab, "a", 0, 20);
    commit(&a, &group(3, &[(0, 20)], vec![lv("lv", 1, SEEN, &[("striped", 2, &linear(0, 5))])]).text());
    // A byte of the text, then one of the header.
    for (offset, what) in [(4096 + 700, "LVM2 metadata text at 4608: CRC is"), (4096 + 100, "header CRC is")]
    {
        a.write(offset, &[0xff]);
        let mut assembly = lab.open(&[&a]);
        let volume = volume(&mut assembly, "vg0/lv");
        assert!(content(&assembly, &volume) == extents(0, 5, 2));
        let said = warning(&assembly, what);
        assert!(said.ends_with("/a (seqno 3) was used"), "{said}");
    }
    // The other one as well: no text is left.
    a.write(a.sectors() * 512 - (64 << 10) + 4, &[0; 16]);
    let assembly = lab.open(&[&a]);
    assert!(warning(&assembly, "no disk here has usable metadata").contains("/a: "));
    warning(&assembly, "magic is");
}

#[test]
fn a_value_that_stands_twice_in_the_text_is_told_and_the_first_one_counts() {
    let lab = Lab::new();
    let a = pv(&lab, "a", 0, 20);
    let lvs = vec![lv("one", 1, SEEN, &[("striped", 2, &format!("{} extent_count = 7", linear(0, 1)))])];
    commit(&a, &group(1, &[(0, 20)], lvs).text());
    let mut assembly = lab.open_for_writing(&[&a]);
    let one = volume(&mut assembly, "vg0/one");
    assert!(content(&assembly, &one) == extents(0, 1, 2) && !one.read_only);
    let said = warning(&assembly, "extent_count");
    assert!(said.starts_with("vg0: the metadata on ") && said.contains("/a: LVM2 metadata, line "), "{said}");
}

#[test]
fn what_needs_a_missing_disk_is_refused_and_the_rest_is_served() {
    let lab = Lab::new();
    let (a, b) = (pv(&lab, "a", 0, 20), pv(&lab, "b", 1, 20));
    let lvs = vec![
        lv("here", 1, SEEN, &[("striped", 2, &linear(0, 1))]),
        lv("half", 2, SEEN, &[("striped", 1, &linear(0, 3)), ("striped", 1, &linear(1, 0))]),
    ];
    let text = group(1, &[(0, 20), (1, 20)], lvs).text();
    [&a, &b].iter().for_each(|disk| commit(disk, &text));
    let mut assembly = lab.open(&[&a]);
    let here = volume(&mut assembly, "vg0/here");
    assert!(content(&assembly, &here) == extents(0, 1, 2));
    let said = refused(&mut assembly, "vg0/half");
    assert!(said.starts_with("vg0/half: the physical volume pv1 (BBBBBB-"), "{said}");
    assert!(said.ends_with("is missing"), "{said}");
    warning(&assembly, "vg0: the physical volume pv1");
    assert!(assembly.graph().groups[0].is_partial());
    let (served, left_out) = assembly.choose_all();
    assert_eq!((served.len(), left_out.len()), (1, 1));
}

#[test]
fn two_disks_with_one_uuid_are_both_refused_by_name() {
    let lab = Lab::new();
    let (a, b) = (pv(&lab, "a", 0, 20), pv(&lab, "b", 1, 20));
    let lvs = vec![
        lv("on-a", 1, SEEN, &[("striped", 2, &linear(0, 1))]),
        lv("on-b", 2, SEEN, &[("striped", 2, &linear(1, 1))]),
    ];
    let text = group(1, &[(0, 20), (1, 20)], lvs).text();
    [&a, &b].iter().for_each(|disk| commit(disk, &text));
    let copy = lab.disk("copy", a.sectors());
    copy.write(0, &a.bytes());
    let mut assembly = lab.open(&[&a, &b, &copy]);
    let said = refused(&mut assembly, "vg0/on-a");
    assert!(said.contains("/a and on ") && said.contains("/copy: give only one of the two"), "{said}");
    let other = volume(&mut assembly, "vg0/on-b");
    assert!(content(&assembly, &other) == extents(1, 1, 2));
}

#[test]
fn a_group_that_was_changed_on_both_sides_of_a_split_is_refused() {
    let lab = Lab::new();
    let (a, b) = (pv(&lab, "a", 0, 20), pv(&lab, "b", 1, 20));
    let pvs = [(0, 20), (1, 20)];
    commit(&a, &group(7, &pvs, vec![lv("lv", 1, SEEN, &[("striped", 1, &linear(0, 0))])]).text());
    commit(&b, &group(7, &pvs, vec![lv("lv", 1, SEEN, &[("striped", 1, &linear(0, 9))])]).text());
    let mut assembly = lab.open(&[&a, &b]);
    let said = refused(&mut assembly, "vg0/lv");
    assert!(said.contains("different metadata with the same seqno 7"), "{said}");
}

#[test]
fn groups_with_one_name_are_told_apart_by_their_uuid() {
    let lab = Lab::new();
    let (a, b) = (pv(&lab, "a", 0, 20), pv(&lab, "b", 1, 20));
    let root = |id, disk| lv("root", id, SEEN, &[("striped", 1, &*linear(disk, 0))]);
    commit(&a, &group(1, &[(0, 20)], vec![root(1, 0)]).text());
    commit(&b, &Group { id: 'h', ..group(1, &[(1, 20)], vec![root(2, 1)]) }.text());
    let mut assembly = lab.open(&[&a, &b]);
    let first = volume(&mut assembly, "vg0/root");
    let second = volume(&mut assembly, "vg0#hhhhhh/root");
    assert!(content(&assembly, &first) == extents(0, 0, 1));
    assert!(content(&assembly, &second) == extents(1, 0, 1));
    warning(&assembly, "vg0#hhhhhh: another group has the name vg0 as well");
}

#[test]
fn a_disk_that_was_taken_out_of_its_group_is_not_used() {
    let lab = Lab::new();
    let (a, b) = (pv(&lab, "a", 0, 20), pv(&lab, "b", 1, 20));
    let lvs = || vec![lv("lv", 1, SEEN, &[("striped", 1, &*linear(0, 0))])];
    commit(&a, &group(9, &[(0, 20)], lvs()).text());
    commit(&b, &group(8, &[(0, 20), (1, 20)], lvs()).text());
    let mut assembly = lab.open(&[&a, &b]);
    volume(&mut assembly, "vg0/lv");
    let all = assembly.warnings();
    assert!(all.iter().any(|said| said.contains("/b does not belong to the group any more")), "{all:#?}");
}

#[test]
fn groups_that_others_own_or_that_are_not_fully_understood_are_only_read() {
    for (more, why) in [
        (
            "system_id = \"hal9000\"",
            "the group belongs to the host with the system ID hal9000; `vgchange --systemid ''` there",
        ),
        ("lock_type = \"sanlock\"", "the group is shared between hosts (lock type sanlock)"),
        (
            "status = [\"EXPORTED\", \"READ\", \"WRITE\"]",
            "the group is exported; `vgimport` takes it back into use",
        ),
        ("status = [\"READ\"]", "the group's metadata does not allow writing"),
        ("status = [\"READ\", \"WRITE\", \"QUANTUM\"]", "its metadata has the flag QUANTUM in vg0"),
    ] {
        let lab = Lab::new();
        let a = pv(&lab, "a", 0, 20);
        let lvs = vec![lv("lv", 1, SEEN, &[("striped", 1, &*linear(0, 0))])];
        commit(&a, &Group { more, ..group(1, &[(0, 20)], lvs) }.text());
        let mut assembly = lab.open_for_writing(&[&a]);
        let chosen = assembly.choose(&["vg0/lv".to_owned()]).unwrap().remove(0);
        assert!(chosen.volume.read_only, "{more}");
        let said = chosen.read_only.unwrap();
        assert!(said.contains(why), "{more}: {said}");
    }
}

#[test]
fn snapshots_of_volumes_that_are_huge_only_by_their_text_are_served() {
    let lab = Lab::new();
    let a = pv(&lab, "a", 0, 20);
    // A table for all chunks that such a store has would not go into any memory: 2^53 sectors. There are less than 2^32 extents in any.
    let large_extent: u64 = 1 << 22;
    let huge = [("zero", (1 << 53) / large_extent, "")];
    let mut lvs = vec![lv("origin", 1, SEEN, &huge)];
    for nr in 0..16 {
        let tie = format!("chunk_size = 8 origin = \"origin\" cow_store = \"snap{nr}\"");
        lvs.push(lv(&format!("snap{nr}"), 2 + 2 * nr, HIDDEN, &huge));
        let tie = [("snapshot", (1 << 53) / large_extent, &*tie)];
        lvs.push(lv(&format!("snapshot{nr}"), 3 + 2 * nr, SEEN, &tie));
    }
    let text = group(1, &[(0, 0)], lvs).text();
    let (small, large) = (format!("extent_size = {EXTENT}\n"), format!("extent_size = {large_extent}\n"));
    assert!(text.contains(&small));
    commit(&a, &text.replace(&small, &large));
    let mut assembly = lab.open_for_writing(&[&a]);
    for name in ["vg0/origin", "vg0/snap0", "vg0/snap15"] {
        let chosen = assembly.choose(&[name.to_owned()]).unwrap().remove(0);
        assert_eq!(chosen.volume.sectors().0, 1 << 53, "{name}");
        assert!(!chosen.volume.read_only, "{name}: {:?}", chosen.read_only);
    }
}

#[test]
fn a_text_with_thousands_of_snapshots_of_one_origin_is_looked_through_once() {
    const SNAPSHOTS: u16 = 2000;
    // Of so many of them the store lies on a volume: what one of the family is made of, all are.
    const PARTS: u16 = 500;
    let lab = Lab::new();
    let a = lab.disk("a", lab::BIG_PE_START + 20 * EXTENT);
    lab::make_big_pv(&a, 0);
    let mut lvs = vec![lv("origin", 1, SEEN, &[("error", 1, "")])];
    for nr in 0..SNAPSHOTS {
        let tie = format!("chunk_size = 8 origin = \"origin\" cow_store = \"snap{nr}\"");
        let part = format!("stripe_count = 1 stripes = [\"part{nr}\", 0]");
        let store = if nr < PARTS { ("striped", 1, &*part) } else { ("error", 1, "") };
        if nr < PARTS {
            lvs.push(lv(&format!("part{nr}"), 20_000 + nr, HIDDEN, &[("error", 1, "")]));
        }
        lvs.push(lv(&format!("snap{nr}"), 2 + 2 * nr, HIDDEN, &[store]));
        lvs.push(lv(&format!("snapshot{nr}"), 3 + 2 * nr, SEEN, &[("snapshot", 1, &*tie)]));
    }
    commit(&a, &group(1, &[(0, 20)], lvs).text());
    let started = Instant::now();
    let assembly = lab.open(&[&a]);
    let is_volume = |kind: &DeviceKind| matches!(kind, DeviceKind::Lv { .. });
    let volumes = assembly.graph().iter().filter(|(_, device)| is_volume(&device.kind)).count();
    assert_eq!(volumes, usize::from(SNAPSHOTS + PARTS) + 1);
    let below = |name: &str| &assembly.graph().device(assembly.graph().find(name).unwrap()).below;
    assert_eq!(below("vg0/origin").len(), usize::from(PARTS));
    let shares = |nr| Arc::ptr_eq(below("vg0/origin"), below(&format!("vg0/snap{nr}")));
    assert!((0..SNAPSHOTS).all(shares), "each has a list of its own of what all of them are made of");
    let part = assembly.graph().find("vg0/part7").unwrap();
    assert_eq!(assembly.graph().above().of(part).count(), usize::from(SNAPSHOTS) + 1);
    // A look through all of them for each pair of them took three quarters of a minute, and this takes a hundredth of that.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn a_volume_is_written_only_if_its_metadata_and_its_snapshots_allow_it() {
    let lab = Lab::new();
    let a = pv(&lab, "a", 0, 20);
    let on = |extent| linear(0, extent);
    let lvs = vec![
        lv("plain", 1, SEEN, &[("striped", 1, &on(0))]),
        lv("locked", 2, "\"READ\", \"VISIBLE\"", &[("striped", 1, &on(1))]),
        lv("origin", 3, SEEN, &[("striped", 1, &on(2))]),
        lv("snap", 4, HIDDEN, &[("striped", 4, &on(6))]),
        lv(
            "snapshot0",
            5,
            SEEN,
            &[("snapshot", 1, "chunk_size = 8 origin = \"origin\" cow_store = \"snap\"")],
        ),
        lv("merged", 6, SEEN, &[("striped", 1, &on(4))]),
        lv("goes", 7, HIDDEN, &[("striped", 1, &on(5))]),
        lv(
            "snapshot1",
            8,
            SEEN,
            &[("snapshot", 1, "chunk_size = 8 origin = \"merged\" merging_store = \"goes\"")],
        ),
    ];
    commit(&a, &group(1, &[(0, 20)], lvs).text());
    // As LVM makes a store that is new.
    a.write((PE_START + 6 * EXTENT) * 512, &[0; 4096]);
    let mut assembly = lab.open_for_writing(&[&a]);
    let mut chosen = |name: &str| assembly.choose(&[name.to_owned()]).map(|mut chosen| chosen.remove(0));
    assert!(!chosen("vg0/plain").unwrap().volume.read_only);
    let locked = chosen("vg0/locked").unwrap();
    assert!(locked.volume.read_only && locked.read_only.unwrap().contains("lvchange -p rw"));
    // What the snapshot needs is kept: the store is new, and has room.
    let origin = chosen("vg0/origin").unwrap();
    assert!(!origin.volume.read_only, "{:?}", origin.read_only);
    let snap = chosen("vg0/snap").unwrap();
    assert!(!snap.volume.read_only && snap.volume.sectors() == origin.volume.sectors());
    let why = |name| chosen(name).err().unwrap().to_string();
    let why = ["vg0/merged", "vg0/goes", "vg0/snapshot0"].map(why);
    assert!(why[0].contains("part of its data is in goes, which is merged into it"), "{why:#?}");
    assert!(why[1].contains("it is being merged into merged: serve that"), "{why:#?}");
    assert!(why[2].starts_with("no volume is called"), "a tie is nothing by itself: {why:#?}");
    assert!(
        why[2].ends_with("there are: disk/a, vg0/plain, vg0/locked, vg0/origin, vg0/snap, vg0/merged"),
        "{why:#?}"
    );
}

#[test]
fn volumes_of_types_to_come_are_refused_with_their_type() {
    let lab = Lab::new();
    let a = pv(&lab, "a", 0, 40);
    let on = |extent| linear(0, extent);
    let lvs = vec![
        lv("meta", 1, HIDDEN, &[("striped", 1, &on(0))]),
        lv("data", 2, HIDDEN, &[("striped", 4, &on(1))]),
        lv(
            "pool",
            3,
            SEEN,
            &[(
                "thin-pool",
                4,
                "metadata = \"meta\" pool = \"data\" transaction_id = 1 chunk_size = 128 discards = \"passdown\"",
            )],
        ),
        lv("thin", 4, SEEN, &[("thin", 9, "thin_pool = \"pool\" transaction_id = 0 device_id = 1")]),
        lv("strange", 5, SEEN, &[("hologram", 1, "")]),
        lv("flagged", 6, SEEN, &[("striped+SHINY", 1, &on(5))]),
        lv("leg0", 8, HIDDEN, &[("striped", 1, &on(7))]),
        lv("leg1", 9, HIDDEN, &[("striped", 1, &on(8))]),
        lv("leg2", 10, HIDDEN, &[("striped", 1, &on(9))]),
        lv("m0", 11, HIDDEN, &[("striped", 1, &on(10))]),
        lv("m1", 12, HIDDEN, &[("striped", 1, &on(11))]),
        lv("m2", 13, HIDDEN, &[("striped", 1, &on(12))]),
        lv(
            "five",
            14,
            SEEN,
            &[(
                "raid5",
                2,
                "device_count = 3 stripe_size = 8 region_size = 8 raids = [\"m0\", \"leg0\", \"m1\", \"leg1\", \"m2\", \"leg2\"]",
            )],
        ),
    ];
    commit(&a, &group(1, &[(0, 40)], lvs).text());
    let mut assembly = lab.open(&[&a]);
    for (name, why) in [
        ("pool", "it is a thin pool, whose volumes can be served, and nothing else of it"),
        ("thin", "its pool pool: thin superblock at 32: magic is"),
        ("strange", "its type hologram is not known here"),
        ("flagged", "its type striped has the flag SHINY, which is not known here"),
        ("five", "Linux has not used it yet: its metadata volumes have no superblocks"),
    ] {
        let said = refused(&mut assembly, &format!("vg0/{name}"));
        assert!(said.contains(why), "{said}");
    }
}

/// What the kernel would copy from is read, and nothing is written: of the old mirror, and of a volume of which pvmove has moved one segment
/// and is moving the next.
#[test]
fn old_mirrors_and_what_pvmove_moves_are_read_where_their_content_is() {
    let lab = Lab::new();
    let (a, b) = (pv(&lab, "a", 0, 40), pv(&lab, "b", 1, 40));
    let of_two = |moved: u64, first: &str, second: &str| {
        format!("mirror_count = 2 extents_moved = {moved} mirrors = [{first}, {second}]")
    };
    let images =
        "mirror_count = 2 mirror_log = \"old_mlog\" region_size = 8 mirrors = [\"image0\", 0, \"image1\", 0]";
    let moved = of_two(2, "\"pv0\", 30", "\"pv1\", 20");
    let part_moved = of_two(1, "\"pv0\", 13", "\"pv1\", 3");
    let locked = "\"READ\", \"WRITE\", \"VISIBLE\", \"LOCKED\"";
    let moving = "\"READ\", \"WRITE\", \"PVMOVE\", \"LOCKED\"";
    let lvs = vec![
        lv("image0", 1, HIDDEN, &[("striped", 2, &linear(1, 7))]),
        lv("image1", 2, HIDDEN, &[("striped", 2, &linear(0, 7))]),
        lv("old_mlog", 3, HIDDEN, &[("striped", 1, &linear(0, 1))]),
        lv("old", 4, SEEN, &[("mirror", 2, images)]),
        lv("pvmove0", 5, moving, &[("mirror", 2, &moved), ("mirror", 3, &part_moved)]),
        lv("base", 6, locked, &[("striped", 5, "stripe_count = 1 stripes = [\"pvmove0\", 0]")]),
    ];
    let text = group(2, &[(0, 40), (1, 40)], lvs).text();
    commit(&a, &text);
    commit(&b, &text);
    let mut assembly = lab.open_for_writing(&[&a, &b]);
    let old = volume(&mut assembly, "vg0/old");
    assert!(content(&assembly, &old) == extents(1, 7, 2));
    let base = volume(&mut assembly, "vg0/base");
    assert!(content(&assembly, &base) == [extents(1, 20, 2), extents(0, 13, 3)].concat());
    for (name, why) in [("vg0/old", "of the old type mirror"), ("vg0/base", "`pvmove --abort`")] {
        let device = assembly.graph().device(assembly.graph().find(name).unwrap());
        let said = device.read_only.as_deref().unwrap_or_default();
        assert!(said.contains(why), "{name}: {said}");
    }
}

/// What has all of a cached volume is its origin, where the cache writes through and always did: then it is read, and nothing above it is
/// written either. It is not asked for the cache.
#[test]
fn a_volume_with_a_cache_is_read_without_it_where_nothing_else_is_in_it() {
    let lab = Lab::new();
    let a = pv(&lab, "a", 0, 40);
    let on_a = |extent| linear(0, extent);
    // The caches lie on a disk that is missing.
    let on_missing = |extent| linear(1, extent);
    let pool = |name: &str, id: u16, mode: &str| {
        let segment = format!("data = \"{name}_cdata\" metadata = \"{name}_cmeta\" chunk_size = 128 {mode}");
        [
            lv(&format!("{name}_cdata"), id, HIDDEN, &[("striped", 1, &*on_missing(id.into()))]),
            lv(&format!("{name}_cmeta"), id + 1, HIDDEN, &[("striped", 1, &*on_missing(u64::from(id) + 1))]),
            lv(name, id + 2, HIDDEN, &[("cache-pool+METADATA_FORMAT", 1, &*segment)]),
        ]
    };
    let cached = |name: &str, id: u16, pool: &str, more: &str, extent: u64| {
        let origin = format!("{name}_corig");
        let segment = format!("cache_pool = \"{pool}\" origin = \"{origin}\" {more}");
        let kind = if more.contains("cache_mode") { "cache+CACHE_USES_CACHEVOL" } else { "cache" };
        [
            lv(&origin, id, HIDDEN, &[("striped", 2, &*on_a(extent))]),
            lv(name, id + 1, SEEN, &[(kind, 2, &*segment)]),
        ]
    };
    let mut lvs = vec![
        lv("cvol", 6, HIDDEN, &[("striped", 1, &*on_missing(0))]),
        lv("meta", 7, HIDDEN, &[("striped", 1, &*on_a(30))]),
        lv(
            "pool",
            8,
            SEEN,
            &[("thin-pool", 2, "metadata = \"meta\" pool = \"read\" transaction_id = 1 chunk_size = 128")],
        ),
        lv("thin", 9, SEEN, &[("thin", 9, "thin_pool = \"pool\" transaction_id = 0 device_id = 1")]),
    ];
    for (name, id, mode) in
        [("through", 10, "writethrough"), ("clean", 13, "writethrough"), ("back", 16, "writeback")]
    {
        lvs.extend(pool(name, id, &format!("cache_mode = \"{mode}\"")));
    }
    lvs.extend(pool("unsaid", 30, ""));
    lvs.extend(cached("read", 20, "through", "", 0));
    lvs.extend(cached("one", 22, "cvol", "cache_mode = \"passthrough\"", 3));
    lvs.extend(cached("dirty", 24, "back", "", 6));
    lvs.extend(cached("silent", 26, "unsaid", "", 9));
    lvs.extend(cached("cleaned", 28, "clean", "cleaner = 1", 12));
    commit(&a, &group(1, &[(0, 40), (1, 40)], lvs).text());
    let mut assembly = lab.open_for_writing(&[&a]);
    let one = volume(&mut assembly, "vg0/one");
    assert!(content(&assembly, &one) == extents(0, 3, 2));
    for name in ["dirty", "silent", "cleaned"] {
        let said = refused(&mut assembly, &format!("vg0/{name}"));
        assert!(said.contains("is missing; it may hold what its origin does not"), "{said}");
    }
    for name in ["vg0/one", "vg0/read", "vg0/pool", "vg0/thin"] {
        let device = assembly.graph().device(assembly.graph().find(name).unwrap());
        let said = device.read_only.as_deref().unwrap_or_default();
        assert!(said.contains("`lvconvert --uncache`"), "{name}: {said}");
    }
}

#[test]
fn a_volume_that_ends_behind_its_disk_is_refused_with_both_ends() {
    let lab = Lab::new();
    let a = pv(&lab, "a", 0, 20);
    let lvs = vec![lv("lv", 1, SEEN, &[("striped", 20, &*linear(0, 980))])];
    commit(&a, &group(1, &[(0, 1000)], lvs).text());
    let said = refused(&mut lab.open(&[&a]), "vg0/lv");
    let first = PE_START + 980 * EXTENT;
    let wanted = format!("needs sectors {first} to {} of a device of {}", first + 160, a.sectors());
    assert!(said.contains(&wanted), "{said}");
}

#[test]
fn a_group_in_a_volume_of_another_one_is_found_and_its_volume_is_then_in_use() {
    let lab = Lab::new();
    let inner = pv(&lab, "inner", 1, 20);
    let text = Group {
        name: "guest",
        id: 'h',
        ..group(1, &[(1, 20)], vec![lv("root", 1, SEEN, &[("striped", 2, &linear(1, 3))])])
    };
    commit(&inner, &text.text());
    let count = inner.sectors() / EXTENT;
    let a = pv(&lab, "a", 0, count);
    a.write(PE_START * 512, &inner.bytes());
    commit(
        &a,
        &group(1, &[(0, count)], vec![lv("disk", 2, SEEN, &[("striped", count, &linear(0, 0))])]).text(),
    );
    let mut assembly = lab.open_for_writing(&[&a]);
    assert!(assembly.graph().find("guest/root").is_none(), "nobody has asked for it");
    let root = volume(&mut assembly, "guest/root");
    assert!(content(&assembly, &root) == extents(1, 3, 2));
    assert_eq!(all_names(&mut assembly), ["guest/root"]);
    let both = ["guest/root", "vg0/disk"].map(str::to_owned);
    match assembly.choose(&both) {
        Err(VolumeError::Overlap { above, below }) => assert_eq!([above, below], both),
        other => panic!("{:?}", other.err()),
    }
    drop(assembly);
    let mut reader = lab.open(&[&a]);
    assert_eq!(reader.choose(&both).unwrap().len(), 2, "reading does no harm");
}

#[test]
fn a_volume_that_claims_to_be_its_own_groups_disk_is_left_out() {
    let lab = Lab::new();
    let extents = 60;
    let a = pv(&lab, "a", 0, extents);
    // On the volume: a PV with the UUID of the one that the group lacks.
    let fake = lab.disk("fake", 40 * EXTENT);
    make_pv(&fake, 1);
    let lvs = || {
        vec![
            lv("lv", 1, SEEN, &[("striped", 40, &*linear(0, 0))]),
            lv("more", 2, SEEN, &[("striped", 1, &*linear(1, 0))]),
        ]
    };
    let text = group(1, &[(0, extents), (1, 2)], lvs()).text();
    commit(&fake, &text);
    a.write(PE_START * 512, &fake.bytes());
    commit(&a, &text);
    let mut assembly = lab.open(&[&a]);
    all_names(&mut assembly);
    assert!(refused(&mut assembly, "vg0/more").contains("is missing"));
    warning(&assembly, "vg0/lv: it claims to belong to vg0, which has been assembled without it");
    let graph = assembly.graph();
    let device = graph.device(graph.find("vg0/lv").unwrap());
    assert!(matches!((&device.content, &device.kind), (Content::Pv(_), DeviceKind::Lv { .. })));
}

#[test]
fn a_group_of_200_disks_and_2000_volumes_is_assembled_and_each_volume_looked_into() {
    let lab = Lab::new();
    let names: Vec<String> = (0..200u8).map(|nr| format!("d{nr:03}")).collect();
    let disks: Vec<_> = names.iter().map(|name| lab.disk(name, 4096 + 200 * EXTENT)).collect();
    let pvs: Vec<(u8, u64)> = (0..200).map(|nr| (nr, 200)).collect();
    // Ten volumes begin on each disk, and go on on the next one.
    let volume_of = |nr: u16| {
        let (disk, extent) = (u8::try_from(nr / 10).unwrap(), u64::from(nr % 10) * 20);
        let parts = [linear(disk, extent), linear((disk + 1) % 200, extent + 10)];
        let segments = [("striped", 10, &*parts[0]), ("striped", 10, &*parts[1])];
        lv(&format!("lv{nr}"), nr + 1, SEEN, &segments)
    };
    let text = group(1, &pvs, (0..2000).map(volume_of).collect()).text();
    for (disk, nr) in disks.iter().zip(0..) {
        lab::make_big_pv(disk, nr);
        commit(disk, &text);
        disk.number(nr.into(), lab::BIG_PE_START + 110 * EXTENT, 2);
    }
    let mut assembly = lab.open(&disks.iter().collect::<Vec<_>>());
    assert_eq!(all_names(&mut assembly).len(), 2000);
    assert_eq!(assembly.warnings(), [] as [&str; 0]);
    let last = volume(&mut assembly, "vg0/lv1995");
    let expected = numbered(0, lab::BIG_PE_START + 110 * EXTENT);
    assert!(content(&assembly, &last)[10 * 4096..][..512] == expected);
}
