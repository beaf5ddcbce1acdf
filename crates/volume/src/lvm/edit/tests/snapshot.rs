//! Snapshots in drafts.

use blockwork_format::snapshot::{HEADER_BYTES, Header};

use super::super::data::{Content, DataWrite};
use super::super::{CHUNK_DEFAULT, Change, NewSnapshot, StoreSize};
use super::*;

fn snapshot(origin: &str, name: &str, size: StoreSize) -> NewSnapshot {
    let name = Some(name.to_owned()).filter(|name| !name.is_empty());
    NewSnapshot { origin: origin.into(), name, size, chunk_sectors: CHUNK_DEFAULT, tags: Vec::new() }
}

/// Some snapshot of that one.
pub(super) fn of(origin: &str) -> NewSnapshot {
    snapshot(origin, "", StoreSize::PercentOrigin(100))
}

fn extents(count: u64) -> StoreSize {
    StoreSize::Of(Size::Extents(count))
}

/// A group with a volume of 12 extents, 48 MiB.
fn with_origin(pvs: &[u64]) -> Draft {
    let mut draft = group(pvs);
    draft.create_volume(&linear("origin", 12)).unwrap();
    draft.data.clear();
    draft
}

#[test]
fn a_snapshot_is_what_lvcreate_writes() {
    let mut draft = with_origin(&[30]);
    let asked = NewSnapshot { chunk_sectors: 128, ..snapshot("origin", "snap", extents(8)) };
    let made = draft.create_snapshot(&asked).unwrap();
    assert_eq!((made.extents, made.rounded), (8, None));
    let text = String::from_utf8(draft.text()).unwrap();
    let at = text.find("\nsnap {").unwrap();
    // As LVM 2.03.16 wrote it for `lvcreate -s -n snap -c 64k -l 8 vg0/origin`, but for identifiers and times.
    let expected = "\nsnap {\nid = \"000000-0000-0000-0000-0000-0000-000003\"\nstatus = [\"READ\", \"WRITE\"]\nflags = []\n\
        creation_time = 1700000000\ncreation_host = \"host\"\nsegment_count = 1\n\nsegment1 {\nstart_extent = 0\n\
        extent_count = 8\n\ntype = \"striped\"\nstripe_count = 1\n\nstripes = [\n\"pv0\", 12\n]\n}\n}\n\n\
        snapshot0 {\nid = \"000000-0000-0000-0000-0000-0000-000004\"\nstatus = [\"READ\", \"WRITE\", \"VISIBLE\"]\n\
        flags = []\ncreation_time = 1700000000\ncreation_host = \"host\"\nsegment_count = 1\n\nsegment1 {\n\
        start_extent = 0\nextent_count = 12\n\ntype = \"snapshot\"\nchunk_size = 128\norigin = \"origin\"\n\
        cow_store = \"snap\"\n}\n}\n}\n";
    assert_eq!(&text[at..at + expected.len()], expected);
}

#[test]
fn a_new_store_has_a_header_and_zeros_wherever_its_first_area_lies() {
    // Extents of 4 KiB, and a PV whose only hole is smaller than a chunk.
    let mut draft = Draft::new_group("vg", 8, &[], author()).unwrap();
    let id = |nth: u32| Uuid::from_compact(format!("pv{nth:030}").as_bytes()).unwrap();
    for nth in 0..2 {
        let pv = NewPv { id: id(nth), device_hint: "d".into(), dev_sectors: 2048 + 40 * 8, pe_start: 2048 };
        draft.add_pv(&pv).unwrap();
    }
    draft.create_volume(&linear("origin", 37)).unwrap();
    draft.data.clear();
    let asked = NewSnapshot { chunk_sectors: 32, ..snapshot("origin", "s", extents(43)) };
    draft.create_snapshot(&asked).unwrap();
    assert_eq!(segments(&draft, "s"), [(0, 40, vec![(1, 0)]), (40, 3, vec![(0, 37)])]);
    let header = DataWrite {
        pv: id(1),
        offset: 1 << 20,
        content: Content::Bytes(Header { valid: true, layout: layout(32) }.encode().to_vec()),
    };
    let rest = HEADER_BYTES as u64;
    let zeros = |pv, offset, bytes| DataWrite { pv: id(pv), offset, content: Content::Zeros(bytes) };
    assert_eq!(draft.data, [zeros(1, (1 << 20) + rest, (128 << 10) - rest), header]);
    // With the largest chunks, the area goes on behind the first run.
    let mut draft = with_holes();
    let asked = NewSnapshot { chunk_sectors: 1024, ..snapshot("origin", "s", extents(2)) };
    draft.create_snapshot(&asked).unwrap();
    assert_eq!(draft.data.iter().map(bytes).sum::<u64>(), 1 << 20);
}

/// A group whose free extents, of 1 MiB, are single ones.
fn with_holes() -> Draft {
    let mut draft = Draft::new_group("vg", 2048, &[], author()).unwrap();
    let id = Uuid::from_compact(format!("pv{:030}", 0).as_bytes()).unwrap();
    let pv = NewPv { id, device_hint: "d".into(), dev_sectors: 2048 * 10, pe_start: 2048 };
    draft.add_pv(&pv).unwrap();
    for name in ["origin", "x", "y", "z"] {
        draft.create_volume(&linear(name, 2)).unwrap();
    }
    for name in ["x", "z"] {
        draft.resize_volume(name, Resize::ToExtents(1), true).unwrap();
    }
    draft.data.clear();
    draft
}

fn bytes(write: &DataWrite) -> u64 {
    match &write.content {
        Content::Zeros(bytes) => *bytes,
        Content::Bytes(bytes) => bytes.len() as u64,
    }
}

fn layout(chunk_sectors: u32) -> blockwork_format::snapshot::Layout {
    blockwork_format::snapshot::Layout::new(chunk_sectors).unwrap()
}

#[test]
fn a_store_is_never_larger_than_what_its_origin_can_need_and_says_so() {
    // 48 MiB are 12288 chunks of 4 KiB, in 48 full areas and the one that ends the list: with the header 13 extents.
    for size in [extents(40), StoreSize::PercentOrigin(100), StoreSize::Of(Size::PercentFree(100))] {
        let mut draft = with_origin(&[60]);
        let made = draft.create_snapshot(&snapshot("origin", "s", size)).unwrap();
        assert_eq!(made.extents, 13, "{size:?}");
        let said = made.rounded.unwrap_or_default();
        let is_told = said.contains("a snapshot of origin never needs more than 13 extents (52 MiB)");
        assert_eq!(is_told, size != StoreSize::PercentOrigin(100), "{said}");
        let grown = draft.resize_volume("s", Resize::MoreExtents(5), false).unwrap();
        assert_eq!((grown.from, grown.to), (13, 13));
        assert!(grown.capped.unwrap_or_default().contains("never needs more"), "{size:?}");
    }
    let mut draft = with_origin(&[60]);
    let made = draft.create_snapshot(&snapshot("origin", "s", StoreSize::PercentOrigin(50))).unwrap();
    assert_eq!(made.extents, 7, "half of the data, and all metadata");
    let grown = draft.resize_volume("s", Resize::MoreExtents(2), false).unwrap();
    assert_eq!((grown.to, grown.capped), (9, None));
    assert_eq!(draft.resize_volume("s", Resize::ToExtents(30), false).unwrap().to, 13);
    let made = draft.create_snapshot(&snapshot("origin", "t", StoreSize::Of(Size::Bytes(1)))).unwrap();
    assert!(made.rounded.unwrap().contains("rounded up to whole extents"));
}

#[test]
fn names_follow_the_last_of_their_row() {
    let mut draft = with_origin(&[60]);
    let named = |draft: &mut Draft| draft.create_snapshot(&snapshot("origin", "", extents(1))).unwrap().name;
    assert_eq!([named(&mut draft), named(&mut draft)], ["lvol0", "lvol1"]);
    assert_eq!(draft.remove_volume("lvol0").unwrap(), ["lvol0", "snapshot0"]);
    assert_eq!(named(&mut draft), "lvol2");
    let ties: Vec<&str> = draft.group().lvs.iter().map(|lv| lv.name.as_str()).collect();
    assert_eq!(ties, ["origin", "lvol1", "lvol2", "snapshot1", "snapshot2"]);
    refused(draft.remove_volume("origin"), "lvol1, lvol2");
    draft.rename_volume("lvol1", "monday").unwrap();
    assert_eq!(draft.remove_volume("monday").unwrap(), ["monday", "snapshot1"]);
}

#[test]
fn what_has_no_snapshots_is_refused_and_nothing_changes() {
    let mut draft = with_origin(&[30, 30]);
    draft.create_volume(&new("r", Size::Extents(2), RAID1)).unwrap();
    draft.create_snapshot(&snapshot("origin", "snap", extents(2))).unwrap();
    draft.create_snapshot(&snapshot("r", "of_raid", extents(1))).unwrap();
    let (before, data) = (draft.text(), draft.data.clone());
    let mut no = |asked: &NewSnapshot, why: &str| {
        refused(draft.create_snapshot(asked), why);
        assert!(draft.text() == before && draft.data == data, "{asked:?}: something has changed");
    };
    no(
        &snapshot("snap", "s", extents(1)),
        "it is a snapshot itself, and those have none: make another one of origin",
    );
    no(&snapshot("r_rimage_0", "s", extents(1)), "it is a part of another volume");
    no(&snapshot("snapshot0", "s", extents(1)), "it is a part of another volume");
    no(&snapshot("none", "s", extents(1)), "no logical volume \"vg/none\"");
    no(&snapshot("origin", "snap", extents(1)), "vg/snap exists already");
    no(&snapshot("origin", "snapshot7", extents(1)), "LVM's own");
    no(&snapshot("origin", "s", extents(0)), "the size 0: expected at least one extent");
    for chunk_sectors in [1, 4, 9, 24, 2048, u64::MAX] {
        let asked = NewSnapshot { chunk_sectors, ..snapshot("origin", "s", extents(1)) };
        no(&asked, "expected a power of two from 4 KiB to 512 KiB");
    }
    let tagged = NewSnapshot { tags: vec!["a b".into()], ..snapshot("origin", "s", extents(1)) };
    no(&tagged, "the tag \"a b\"");
    draft.create_volume(&new("all", Size::PercentFree(100), Shape::Linear)).unwrap();
    refused(
        draft.create_snapshot(&snapshot("origin", "s", extents(3))),
        "3 extents (12 MiB) are needed, 0 extents",
    );
}

#[test]
fn a_store_has_room_for_a_chunk_at_least() {
    let mut draft = with_holes();
    let asked = |count| NewSnapshot { chunk_sectors: 1024, ..snapshot("origin", "s", extents(count)) };
    refused(
        draft.create_snapshot(&asked(1)),
        "the size 1 extent (1 MiB): expected at least 3 chunks of 512 KiB: 2 extents (2 MiB)",
    );
    draft.create_snapshot(&asked(2)).unwrap();
}

#[test]
fn origins_of_types_that_are_not_known_here_are_left_to_lvm() {
    let text = String::from_utf8(with_origin(&[30]).text()).unwrap();
    let plain = "type = \"striped\"\nstripe_count = 1\n\nstripes = [\n\"pv0\", 0\n]";
    for (kind, why) in [
        ("type = \"hologram\"", "of type hologram"),
        ("type = \"striped+MOOD\"\nstripe_count = 1\nstripes = [\"pv0\", 0]", "of type striped"),
    ] {
        let odd = text.replace(plain, kind);
        assert_ne!(odd, text);
        let mut draft = Draft::of(Section::parse(odd.as_bytes()).unwrap(), author()).unwrap();
        refused(draft.create_snapshot(&snapshot("origin", "s", extents(1))), why);
    }
    let merging = String::from_utf8(with_snapshot().text()).unwrap().replace("cow_store", "merging_store");
    let mut draft = Draft::of(Section::parse(merging.as_bytes()).unwrap(), author()).unwrap();
    refused(
        draft.create_snapshot(&snapshot("origin", "s", extents(1))),
        "a snapshot is being merged into it",
    );
}

#[test]
fn a_snapshot_that_is_merged_is_written_as_lvconvert_does_and_then_it_is_gone() {
    let mut draft = with_origin(&[60]);
    let before = lv_names(&draft);
    for name in ["snap", "other"] {
        draft.create_snapshot(&snapshot("origin", name, extents(2))).unwrap();
    }
    let plain = String::from_utf8(draft.text()).unwrap();
    let found = draft.mergeable("snap").unwrap();
    draft.mark_as_merging("snap", &found).unwrap();
    // As LVM 2.03.16 wrote it for `lvconvert --merge`: the tie is not seen any more, and names the store otherwise.
    let (head, tie) = plain.split_at(plain.find("\nsnapshot0 {").unwrap());
    let tie =
        tie.replacen("\"WRITE\", \"VISIBLE\"", "\"WRITE\"", 1).replacen("cow_store", "merging_store", 1);
    assert_eq!(String::from_utf8(draft.text()).unwrap(), format!("{head}{tie}"));

    refused(draft.remove_volume("snap"), "`blockwork lv merge` finishes that");
    refused(draft.mergeable("other").map(drop), "snap is being merged into the same origin");
    refused(draft.mergeable("origin").map(drop), "it is no snapshot");
    refused(draft.mergeable("nobody").map(drop), "no logical volume");
    draft.end_merge("snap").unwrap();
    refused(draft.end_merge("other"), "it is not being merged");
    draft.remove_volume("other").unwrap();
    assert_eq!(lv_names(&draft), before);
}

#[test]
fn a_merge_that_is_given_up_leaves_the_snapshot_that_there_was() {
    let mut draft = with_origin(&[60]);
    draft.create_snapshot(&snapshot("origin", "snap", extents(2))).unwrap();
    let plain = String::from_utf8(draft.text()).unwrap();
    refused(draft.give_up_merge("snap"), "it is not being merged");
    let merge = Change::Merge { volume: "snap".into() };
    draft.make(&merge).unwrap();
    refused(draft.make(&merge).map(drop), "it is being merged into its origin already");
    draft.give_up_merge("snap").unwrap();
    assert_eq!(String::from_utf8(draft.text()).unwrap(), plain);
    draft.remove_volume("snap").unwrap();
}

#[test]
fn an_origin_goes_together_with_its_snapshots_in_whatever_order_they_are_named() {
    let mut draft = with_origin(&[60]);
    for name in ["snap", "other"] {
        draft.create_snapshot(&snapshot("origin", name, extents(2))).unwrap();
    }
    let remove = |names: &[&str]| Change::Remove { volumes: names.iter().map(|&name| name.into()).collect() };
    refused(draft.make(&remove(&["origin"])).map(drop), "it is the origin of these snapshots");
    draft.make(&remove(&["snap", "origin", "other"])).unwrap();
    assert_eq!(lv_names(&draft), [] as [&str; 0]);
}

fn lv_names(draft: &Draft) -> Vec<String> {
    draft.group().lvs.iter().map(|lv| lv.name.clone()).collect()
}
