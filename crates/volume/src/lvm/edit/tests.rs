//! Drafts: what becomes of the text, what is refused and how, and that whatever is not understood survives.

use blockwork_format::lvm2::vg::{Lv, RaidLevel, SegmentType};
use blockwork_format::lvm2::{Section, Style, Uuid, VolumeGroup};

use proptest::prelude::*;

use super::data::Content;
use super::*;

mod parity;
mod resize_raid;
mod snapshot;
mod thin;

/// Sectors of an extent of 4 MiB.
const EXTENT: u64 = 8192;

fn author() -> Author {
    let mut next = 0u32;
    let ids = Box::new(move || {
        next += 1;
        Uuid::from_compact(format!("{next:032}").as_bytes()).unwrap()
    });
    Author { host: "host".into(), time: 1_700_000_000, command: "blockwork test".into(), ids }
}

/// A group with PVs of so many extents.
fn group(pvs: &[u64]) -> Draft {
    let mut draft = Draft::new_group("vg", EXTENT, &[], author()).unwrap();
    for (nth, extents) in (0..).zip(pvs) {
        let id = Uuid::from_compact(format!("pv{nth:030}").as_bytes()).unwrap();
        let device_hint = format!("disk{nth}");
        let pv = NewPv { id, device_hint, dev_sectors: 2048 + extents * EXTENT, pe_start: 2048 };
        assert_eq!(draft.add_pv(&pv).unwrap(), *extents);
    }
    draft
}

fn new(name: &str, size: Size, shape: Shape) -> NewVolume {
    NewVolume { name: name.into(), size, shape, tags: Vec::new(), wipe: true, no_sync: false }
}

fn linear(name: &str, extents: u64) -> NewVolume {
    new(name, Size::Extents(extents), Shape::Linear)
}

const STRIPED: Shape = Shape::Striped { stripes: 2, stripe_size: 128 };
const RAID1: Shape = Shape::Raid1 { mirrors: 1, region_size: REGION_DEFAULT };
const RAID10: Shape = Shape::Raid10 { stripes: 2, mirrors: 1, stripe_size: 128, region_size: REGION_DEFAULT };

fn lv<'a>(draft: &'a Draft, name: &str) -> &'a Lv {
    let vg = draft.group();
    &vg.lvs[vg.lv(name).unwrap_or_else(|| panic!("no {name}")).0]
}

/// A segment: start, extents, and of each stripe PV and extent.
type Plain = (u64, u64, Vec<(usize, u64)>);

fn segments(draft: &Draft, name: &str) -> Vec<Plain> {
    let area = |area: &blockwork_format::lvm2::vg::Area| match *area {
        blockwork_format::lvm2::vg::Area::Pv { pv, extent } => (pv.0, extent),
        blockwork_format::lvm2::vg::Area::Lv { .. } => panic!("on an LV"),
    };
    let plain = |segment: &blockwork_format::lvm2::vg::Segment| {
        (segment.start_extent, segment.extent_count, segment.areas().0.iter().map(area).collect())
    };
    lv(draft, name).segments.iter().map(plain).collect()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, EditError>, expected: &str) {
    let said = result.expect_err("it is not possible").to_string();
    assert!(said.contains(expected), "{said}\nexpected {expected}");
}

#[test]
fn a_new_group_is_the_text_that_vgcreate_writes() {
    let draft = group(&[15]);
    let expected = "vg {\nid = \"000000-0000-0000-0000-0000-0000-000001\"\nseqno = 1\nformat = \"lvm2\"\n\
        status = [\"RESIZEABLE\", \"READ\", \"WRITE\"]\nflags = []\nextent_size = 8192\nmax_lv = 0\nmax_pv = 0\n\
        metadata_copies = 0\n\nphysical_volumes {\n\npv0 {\nid = \"pv0000-0000-0000-0000-0000-0000-000000\"\n\
        device = \"disk0\"\n\nstatus = [\"ALLOCATABLE\"]\nflags = []\ndev_size = 124928\npe_start = 2048\npe_count = 15\n\
        }\n}\n\n\n}\n\ncontents = \"Text Format Volume Group\"\nversion = 1\n\n\
        description = \"Write from blockwork test.\"\n\ncreation_host = \"host\"\ncreation_time = 1700000000\n\n";
    assert_eq!(String::from_utf8(draft.text()).unwrap(), expected);
}

#[test]
fn volumes_lie_where_lvcreate_puts_them() {
    // As LVM 2.03.16 did it with the same commands on four disks of 204 MiB.
    let mut draft = group(&[50, 50, 50, 50]);
    for new in [
        linear("lin", 10),
        new("str", Size::Extents(9), STRIPED),
        linear("lin2", 20),
        new("r1", Size::Extents(8), RAID1),
        new("r10", Size::Extents(9), RAID10),
        new("r13", Size::Extents(3), Shape::Raid1 { mirrors: 2, region_size: REGION_DEFAULT }),
    ] {
        draft.create_volume(&new).unwrap();
    }
    assert_eq!(segments(&draft, "lin"), [(0, 10, vec![(0, 0)])]);
    assert_eq!(segments(&draft, "str"), [(0, 10, vec![(0, 10), (1, 0)])]);
    assert_eq!(segments(&draft, "lin2"), [(0, 20, vec![(0, 15)])]);
    for (leg, meta, image) in [
        ("r1_rimage_0", (0, 35), 36),
        ("r1_rimage_1", (1, 5), 6),
        ("r10_rimage_0", (0, 44), 45),
        ("r10_rimage_1", (1, 14), 15),
        ("r10_rimage_2", (2, 0), 1),
        ("r10_rimage_3", (3, 0), 1),
        ("r13_rimage_0", (1, 20), 21),
        ("r13_rimage_1", (2, 6), 7),
        ("r13_rimage_2", (3, 6), 7),
    ] {
        assert_eq!(segments(&draft, &leg.replace("rimage", "rmeta")), [(0, 1, vec![meta])], "{leg}");
        assert_eq!(segments(&draft, leg)[0].2, [(meta.0, image)], "{leg}");
    }
    let more = Resize::MoreExtents;
    draft.resize_volume("lin", more(4), false).unwrap();
    draft.resize_volume("str", more(8), false).unwrap();
    draft.resize_volume("lin2", more(30), false).unwrap();
    assert_eq!(segments(&draft, "lin")[1], (10, 4, vec![(1, 24)]));
    assert_eq!(segments(&draft, "str")[1], (10, 8, vec![(1, 28), (2, 10)]));
    assert_eq!(segments(&draft, "lin2")[1], (20, 30, vec![(2, 14)]));
    let names: Vec<&str> = draft.group().lvs.iter().map(|lv| lv.name.as_str()).collect();
    assert_eq!(names[..8], ["lin", "str", "lin2", "r1", "r10", "r13", "r1_rimage_0", "r1_rmeta_0"]);
}

#[test]
fn what_has_no_stripes_is_rounded_up_to_extents_alone() {
    for shape in [Shape::Linear, RAID1] {
        let created = group(&[20, 20]).create_volume(&new("v", Size::Bytes(5 << 20), shape)).unwrap();
        assert_eq!(created.rounded.as_deref(), Some("5 MiB is rounded up to whole extents: 8 MiB"));
    }
}

#[test]
fn a_raid_volume_says_what_it_is_made_of() {
    let mut draft = group(&[20, 20, 20, 20]);
    let asked = NewVolume { no_sync: true, ..new("r", Size::Bytes(33 << 20), RAID10) };
    let created = draft.create_volume(&asked).unwrap();
    assert_eq!(created.extents, 10);
    assert_eq!(
        created.rounded.as_deref(),
        Some("33 MiB is rounded up to whole extents of all stripes: 40 MiB")
    );
    let r = lv(&draft, "r");
    assert_eq!(r.flags.status, ["READ", "WRITE", "VISIBLE", "NOTSYNCED"]);
    let SegmentType::Raid { level, images, metas, stripe_size, region_size, data_copies, .. } =
        &r.segments[0].kind
    else {
        panic!("a RAID")
    };
    assert_eq!((*level, *stripe_size, *region_size, *data_copies), (RaidLevel::Raid10, 128, 4096, Some(2)));
    let names = |lvs: &[blockwork_format::lvm2::vg::LvIndex]| -> Vec<String> {
        lvs.iter().map(|lv| draft.group().lvs[lv.0].name.clone()).collect()
    };
    assert_eq!(names(images), ["r_rimage_0", "r_rimage_1", "r_rimage_2", "r_rimage_3"]);
    assert_eq!(names(metas), ["r_rmeta_0", "r_rmeta_1", "r_rmeta_2", "r_rmeta_3"]);
}

#[test]
fn what_is_zeroed_is_the_start_and_the_end_of_each_stripe_and_only_what_was_free() {
    let mut draft = group(&[20, 20]);
    draft.create_volume(&linear("a", 1)).unwrap();
    draft.data.clear();
    draft.create_volume(&new("s", Size::Extents(4), STRIPED)).unwrap();
    let start = |extent: u64| (2048 + extent * EXTENT) * 512;
    let zeros = |write: &data::DataWrite| match write.content {
        Content::Zeros(bytes) => (write.offset, bytes),
        Content::Bytes(_) => panic!("zeros only"),
    };
    let wiped: Vec<_> = draft.data.iter().map(zeros).collect();
    let end = |extent: u64| (start(extent) - WIPE_BYTES, WIPE_BYTES);
    let first = |extent: u64| (start(extent), WIPE_BYTES);
    assert_eq!(wiped, [first(1), end(3), first(0), end(2)]);
    draft.data.clear();
    draft.create_volume(&NewVolume { wipe: false, ..linear("b", 3) }).unwrap();
    assert_eq!(draft.data, []);
}

#[test]
fn hundredths_are_as_much_as_fits() {
    for (pvs, shape, extents) in [
        (&[10, 7][..], Shape::Linear, 17),
        (&[10, 7], STRIPED, 14),
        (&[10, 7], RAID1, 6),
        (&[10, 10, 5, 5], RAID10, 8),
        (&[10, 10, 10], RAID1, 9),
    ] {
        let mut draft = group(pvs);
        let created = draft.create_volume(&new("all", Size::PercentFree(100), shape)).unwrap();
        assert_eq!(created.extents, extents, "{pvs:?} {shape:?}");
    }
    let mut draft = group(&[10, 10]);
    draft.create_volume(&linear("a", 10)).unwrap();
    assert_eq!(draft.create_volume(&new("b", Size::PercentFree(50), Shape::Linear)).unwrap().extents, 5);
    assert_eq!(draft.create_volume(&new("c", Size::PercentGroup(10), Shape::Linear)).unwrap().extents, 2);
}

#[test]
fn a_refusal_says_what_is_needed_and_what_is_free() {
    let mut draft = group(&[10, 10]);
    draft.create_volume(&linear("a", 12)).unwrap();
    let before = draft.text();
    refused(
        draft.create_volume(&linear("b", 9)),
        "9 extents (36 MiB) are needed, 8 extents (32 MiB) are on 1 physical volume free",
    );
    refused(
        draft.create_volume(&new("b", Size::Bytes(8 << 20), RAID1)),
        "3 extents (12 MiB) on each of 2 physical volumes are needed",
    );
    refused(draft.create_volume(&linear("a", 1)), "the logical volume vg/a exists already");
    refused(draft.create_volume(&linear("x_rimage_0", 1)), "LVM's own");
    refused(draft.create_volume(&linear("b", 0)), "the size 0: expected at least one extent");
    let most = Size::Bytes(u64::MAX);
    refused(
        draft.create_volume(&new("b", most, Shape::Linear)),
        "the size 15.99 EiB: expected at most 4294967295 extents (15.99 PiB), as LVM counts them in 32 bits; give the group larger \
         ones (--physical-extent-size)",
    );
    refused(draft.create_volume(&linear("b", u64::MAX)), "at most 4294967295 extents");
    let part = "expected at least one extent, on each physical volume";
    refused(
        draft.create_volume(&new("b", Size::PercentFree(0), Shape::Linear)),
        &format!("the size 0%FREE: {part}"),
    );
    refused(
        draft.create_volume(&new("b", Size::PercentGroup(4), Shape::Linear)),
        &format!("the size 4%VG: {part}"),
    );
    let one = Shape::Striped { stripes: 1, stripe_size: 128 };
    refused(draft.create_volume(&new("b", Size::Extents(1), one)), "--stripes 1: expected 2 to 128");
    let odd = Shape::Striped { stripes: 2, stripe_size: 100 };
    refused(
        draft.create_volume(&new("b", Size::Extents(2), odd)),
        "--stripesize 50 KiB: expected a power of two",
    );
    let alone = Shape::Raid1 { mirrors: 0, region_size: REGION_DEFAULT };
    refused(draft.create_volume(&new("b", Size::Extents(2), alone)), "--mirrors 0: expected 1 to 63");
    refused(draft.remove_volume("none"), "no logical volume \"vg/none\"; there are: a");
    refused(draft.resize_volume("a", Resize::MoreExtents(9), false), "9 extents (36 MiB) more are needed");
    refused(draft.resize_volume("a", Resize::LessExtents(12), true), "at least 1 extent");
    refused(draft.resize_volume("a", Resize::LessExtents(1), false), "add --force");
    assert_eq!(draft.text(), before, "a refusal changes nothing");
    draft.create_volume(&linear("b", 8)).unwrap();
    let full = "1 extent (4 MiB) is needed, 0 extents (0 B) are free";
    refused(draft.create_volume(&new("c", Size::PercentFree(100), Shape::Linear)), full);
    refused(draft.resize_volume("a", Resize::MoreExtents(1), false), "1 extent (4 MiB) more is needed");
}

#[test]
fn volumes_shrink_grow_again_and_are_one_segment_where_they_can_be() {
    let mut draft = group(&[10, 10]);
    draft.create_volume(&linear("a", 4)).unwrap();
    let resized = draft.resize_volume("a", Resize::MoreBytes(1), false).unwrap();
    assert_eq!((resized.from, resized.to), (4, 5));
    assert_eq!(segments(&draft, "a"), [(0, 5, vec![(0, 0)])]);
    draft.resize_volume("a", Resize::ToExtents(14), false).unwrap();
    assert_eq!(segments(&draft, "a"), [(0, 10, vec![(0, 0)]), (10, 4, vec![(1, 0)])]);
    draft.resize_volume("a", Resize::ToBytes(44 << 20), true).unwrap();
    assert_eq!(segments(&draft, "a"), [(0, 10, vec![(0, 0)]), (10, 1, vec![(1, 0)])]);
    draft.resize_volume("a", Resize::LessExtents(8), true).unwrap();
    assert_eq!(segments(&draft, "a"), [(0, 3, vec![(0, 0)])]);
    draft.resize_volume("a", Resize::MorePercentFree(100), false).unwrap();
    assert_eq!(lv(&draft, "a").extents(), 20);
}

#[test]
fn stripes_grow_and_shrink_by_whole_stripes() {
    let mut draft = group(&[10, 10]);
    draft.create_volume(&new("s", Size::Extents(4), STRIPED)).unwrap();
    for (resize, extents) in [
        (Resize::MoreExtents(1), 6),
        (Resize::LessExtents(1), 6),
        (Resize::LessExtents(3), 4),
        (Resize::ToExtents(7), 8),
        (Resize::ToExtents(5), 6),
        (Resize::MorePercentFree(100), 20),
    ] {
        draft.resize_volume("s", resize, true).unwrap();
        assert_eq!(lv(&draft, "s").extents(), extents, "{resize:?}");
        assert_eq!(segments(&draft, "s").len(), 1);
    }
}

// As anybody may send them to a server's control socket.
#[test]
fn numbers_of_any_size_are_refused() {
    let mut draft = group(&[10, 10, 10, 10]);
    draft.create_volume(&linear("a", 4)).unwrap();
    let before = draft.text();
    let shapes = |number: u64| {
        let (region_size, stripe_size) = (REGION_DEFAULT, 128);
        [
            Shape::Striped { stripes: number, stripe_size },
            Shape::Striped { stripes: 2, stripe_size: number },
            Shape::Raid1 { mirrors: number, region_size },
            Shape::Raid1 { mirrors: 1, region_size: number },
            Shape::Raid10 { stripes: 2, mirrors: number, stripe_size, region_size },
            Shape::Raid10 { stripes: number, mirrors: number, stripe_size, region_size },
        ]
    };
    for number in [1 << 50, 1 << 63, u64::MAX - 1, u64::MAX] {
        for shape in shapes(number) {
            refused(draft.create_volume(&new("b", Size::Extents(2), shape)), "expected");
        }
        for size in [Size::Bytes(number), Size::Extents(number), Size::PercentFree(number)] {
            for shape in [Shape::Linear, STRIPED, RAID1, RAID10] {
                assert!(draft.create_volume(&new("b", size, shape)).is_err(), "{size} {shape:?}");
            }
        }
        for resize in [Resize::ToBytes, Resize::MoreBytes, Resize::ToExtents, Resize::MoreExtents] {
            assert!(draft.resize_volume("a", resize(number), true).is_err(), "{}", resize(number));
        }
        refused(
            draft.resize_volume("a", Resize::MorePercentFree(number), true),
            "at most 4294967295 extents",
        );
    }
    assert_eq!(draft.text(), before);
}

/// A volume with a snapshot, as LVM writes them; and things that nobody knows.
fn with_snapshot() -> Draft {
    let mut draft = group(&[20]);
    draft.create_volume(&linear("origin", 4)).unwrap();
    draft.create_volume(&linear("snap", 2)).unwrap();
    draft.create_volume(&linear("other", 1)).unwrap();
    let text = String::from_utf8(draft.text()).unwrap();
    let tie = "snapshot0 {\nid = \"tEear9-WNZ2-4tXj-JckE-8wP4-Sv72-5ivGxp\"\nstatus = [\"READ\", \"WRITE\", \"VISIBLE\"]\n\
        flags = []\nsegment_count = 1\nsegment1 {\nstart_extent = 0\nextent_count = 4\ntype = \"snapshot\"\nchunk_size = 16\n\
        origin = \"origin\"\ncow_store = \"snap\"\n}\n}\n";
    let text = text
        .replace("\nother {\n", &format!("\n{tie}other {{\ncolour = \"blue\"\n"))
        .replace("max_lv = 0", "max_lv = 0\nshape { round = 0.5 }");
    let mut tree = Section::parse(text.as_bytes()).unwrap();
    let snap =
        tree.section_mut("vg").unwrap().section_mut("logical_volumes").unwrap().section_mut("snap").unwrap();
    snap.set("status", section::strings(["READ", "WRITE"]));
    Draft::of(tree, author()).unwrap()
}

#[test]
fn an_origin_stays_as_long_as_it_has_snapshots_and_a_snapshot_goes_with_its_store() {
    let mut draft = with_snapshot();
    refused(
        draft.remove_volume("origin"),
        "it is the origin of these snapshots, which are nothing without it: snap",
    );
    refused(draft.resize_volume("origin", Resize::LessExtents(1), true), "it can only become larger");
    draft.resize_volume("origin", Resize::MoreExtents(1), false).unwrap();
    assert_ne!(
        lv(&draft, "snapshot0").extents(),
        lv(&draft, "origin").extents(),
        "snapshots stay as they are"
    );
    refused(draft.resize_volume("snap", Resize::LessExtents(1), true), "it is a snapshot");
    draft.resize_volume("snap", Resize::MoreExtents(1), false).unwrap();
    assert_eq!(draft.remove_volume("snap").unwrap(), ["snap", "snapshot0"]);
    assert_eq!(draft.remove_volume("origin").unwrap(), ["origin"]);
    assert_eq!(draft.remove_volume("other").unwrap(), ["other"]);
    assert!(!String::from_utf8(draft.text()).unwrap().contains("logical_volumes"), "as LVM has it");
}

/// A snapshot of nothing but zeros, as `lvcreate --type snapshot --virtualsize` makes it.
fn with_virtual_origin() -> Draft {
    let text = String::from_utf8(with_snapshot().text()).unwrap();
    let mut tree = Section::parse(text.as_bytes()).unwrap();
    let list = tree.section_mut("vg").unwrap().section_mut("logical_volumes").unwrap();
    list.rename("origin", "snap_vorigin");
    let tie = list.section_mut("snapshot0").unwrap();
    resize::only_segment(tie).set("origin", "snap_vorigin".into());
    let origin = list.section_mut("snap_vorigin").unwrap();
    origin.set("status", section::strings(["READ", "WRITE"]));
    let segment = resize::only_segment(origin);
    segment.set("type", "zero".into());
    ["stripe_count", "stripes"].iter().for_each(|key| drop(segment.remove(key)));
    Draft::of(tree, author()).unwrap()
}

#[test]
fn a_snapshot_of_nothing_but_zeros_is_not_merged_and_takes_these_along() {
    let mut draft = with_virtual_origin();
    let before = draft.text();
    refused(draft.plan_merge("snap"), "nothing behind it but zeros");
    assert_eq!(draft.text(), before);
    draft.rename_volume("snap", "monday").unwrap();
    let text = String::from_utf8(draft.text()).unwrap();
    assert!(text.contains("origin = \"monday_vorigin\"\ncow_store = \"monday\""), "{text}");
    assert_eq!(draft.remove_volume("monday").unwrap(), ["monday", "snapshot0", "monday_vorigin"]);
    assert_eq!(draft.group().lvs.len(), 1, "the other volume");
}

#[test]
fn names_follow_a_renamed_volume_and_unknown_keys_survive() {
    let mut draft = with_snapshot();
    draft.rename_volume("origin", "base").unwrap();
    draft.rename_volume("snap", "monday").unwrap();
    draft.create_volume(&new("late", Size::Extents(1), Shape::Linear)).unwrap();
    draft.tag_volume("other", &TagChange { add: vec!["a".into(), "b".into()], remove: vec![] }).unwrap();
    draft
        .tag_volume("other", &TagChange { add: vec!["b".into()], remove: vec!["a".into(), "x".into()] })
        .unwrap();
    draft.tag_group(&TagChange { add: vec!["t".into()], remove: vec![] }).unwrap();
    let text = String::from_utf8(draft.text()).unwrap();
    for kept in [
        "origin = \"base\"\ncow_store = \"monday\"",
        "colour = \"blue\"",
        "shape {\nround = 0.5",
        "flags = []\ntags = [\"b\"]\n",
        "flags = []\ntags = [\"t\"]\nextent_size",
    ] {
        assert!(text.contains(kept), "{kept}\n{text}");
    }
    draft.tag_group(&TagChange { add: vec![], remove: vec!["t".into()] }).unwrap();
    assert!(!String::from_utf8(draft.text()).unwrap().contains("\"t\""));
    refused(draft.rename_volume("base", "monday"), "exists already");
    refused(draft.rename_volume("base", "snapshot1"), "LVM's own");
    refused(draft.tag_group(&TagChange { add: vec!["-".into()], remove: vec![] }), "the tag \"-\"");
}

#[test]
fn parts_of_a_renamed_raid_are_renamed_and_removed_with_it() {
    let mut draft = group(&[20, 20]);
    draft.create_volume(&new("r", Size::Extents(2), RAID1)).unwrap();
    draft.create_volume(&linear("r_x", 2)).unwrap();
    refused(draft.remove_volume("r_rimage_0"), "it is a part of another volume");
    refused(
        draft.resize_volume("r_rimage_0", Resize::MoreExtents(1), false),
        "it is a part of another volume",
    );
    draft.rename_volume("r", "mirror").unwrap();
    let names: Vec<&str> = draft.group().lvs.iter().map(|lv| lv.name.as_str()).collect();
    let parts = ["mirror_rimage_0", "mirror_rmeta_0", "mirror_rimage_1", "mirror_rmeta_1"];
    assert_eq!(names, [&["mirror", "r_x"][..], &parts].concat());
    draft.remove_volume("mirror").unwrap();
    assert_eq!(draft.group().lvs.len(), 1);
    assert_eq!(draft.free().total(), 38);
}

#[test]
fn what_is_not_known_here_is_not_renamed_removed_or_resized() {
    let mut draft = with_snapshot();
    let text = String::from_utf8(draft.text()).unwrap();
    let odd = text
        .replace("type = \"striped\"\nstripe_count = 1\n\nstripes = [\n\"pv0\", 6\n]", "type = \"hologram\"");
    assert_ne!(odd, text);
    draft = Draft::of(Section::parse(odd.as_bytes()).unwrap(), author()).unwrap();
    refused(draft.remove_volume("other"), "of type hologram, which is not removed here");
    refused(draft.rename_volume("other", "x"), "of type hologram, may name it");
    refused(draft.resize_volume("other", Resize::MoreExtents(1), false), "of type hologram");
}

#[test]
fn names_follow_in_a_group_with_caches_whose_flags_are_known() {
    let text = String::from_utf8(with_caches()).unwrap();
    let draft = |text: &str| Draft::of(Section::parse(text.as_bytes()).unwrap(), author()).unwrap();
    let mut renamed = draft(&text);
    renamed.rename_volume("other", "x").unwrap();
    renamed.rename_volume("cp", "fast").unwrap();
    renamed.rename_volume("slow", "main").unwrap();
    let renamed = String::from_utf8(renamed.text()).unwrap();
    for part in [
        "data = \"fast_cdata\"",
        "metadata = \"fast_cmeta\"",
        "cache_pool = \"vol\"",
        "origin = \"main_corig\"",
        "metadata_format = 2",
    ] {
        assert!(renamed.contains(part), "{part}: {renamed}");
    }
    // Each flag is one of its own type, and of no other.
    for (from, to, kind) in [
        ("cache-pool+METADATA_FORMAT", "cache-pool+METADATA_FORMAT+NEWER", "cp, of type cache-pool,"),
        ("cache-pool+METADATA_FORMAT", "cache-pool+CACHE_USES_CACHEVOL", "cp, of type cache-pool,"),
        ("cache+CACHE_USES_CACHEVOL", "cache+METADATA_FORMAT", "slow, of type cache,"),
        ("cache+CACHE_USES_CACHEVOL", "cache+", "slow, of type cache,"),
        ("\"zero\"", "\"zero+METADATA_FORMAT\"", "nothing, of type zero,"),
    ] {
        let odd = text.replace(from, to);
        assert_ne!(odd, text, "{from}");
        refused(
            draft(&odd).rename_volume("other", "x"),
            &format!("{kind} may name it, and is not known here"),
        );
    }
}

/// A group with a cache pool that nothing uses, a volume with one LV as its cache, zeros, and `other`.
fn with_caches() -> Vec<u8> {
    let mut draft = group(&[30]);
    for name in ["other", "d", "m", "vol", "o"] {
        draft.create_volume(&linear(name, 2)).unwrap();
    }
    let text = String::from_utf8(draft.text()).unwrap();
    let mut text = text
        .replace("\nd {", "\ncp_cdata {")
        .replace("\nm {", "\ncp_cmeta {")
        .replace("\no {", "\nslow_corig {");
    let lv = |nth: u32, name: &str, segment: &str| {
        format!(
            "{name} {{ id = \"AAAAAA-LVid-0000-0000-0000-0000-{nth:06}\" status = [\"READ\", \"WRITE\", \"VISIBLE\"] \
             flags = [] segment_count = 1 segment1 {{ start_extent = 0 extent_count = 2 {segment} }} }}\n"
        )
    };
    let more = [
        lv(
            1,
            "cp",
            "type = \"cache-pool+METADATA_FORMAT\" data = \"cp_cdata\" metadata = \"cp_cmeta\" metadata_format = 2",
        ),
        lv(
            2,
            "slow",
            "type = \"cache+CACHE_USES_CACHEVOL\" cache_pool = \"vol\" origin = \"slow_corig\" metadata_format = 2",
        ),
        lv(3, "nothing", "type = \"zero\""),
    ];
    text = text.replace("logical_volumes {\n", &format!("logical_volumes {{\n{}", more.concat()));
    for hidden in ["cp_cdata", "cp_cmeta", "vol", "slow_corig"] {
        let at = text.find(&format!("\n{hidden} {{")).unwrap();
        let rest = text.split_off(at).replacen(",\"VISIBLE\"", "", 1).replacen(", \"VISIBLE\"", "", 1);
        text += &rest;
    }
    text.into_bytes()
}

#[test]
fn pvs_come_and_go() {
    let mut draft = group(&[10, 10]);
    draft.create_volume(&linear("a", 12)).unwrap();
    let id = |draft: &Draft, nth: usize| draft.group().pvs[nth].id;
    let second = id(&draft, 1);
    refused(
        draft.remove_pv(&second, "here.img"),
        "the disk here.img: these volumes lie on it: a; remove them first",
    );
    draft.remove_volume("a").unwrap();
    draft.remove_pv(&second, "here.img").unwrap();
    let only = id(&draft, 0);
    refused(draft.remove_pv(&only, "there.img"), "the disk there.img: it is the last physical volume of vg");
    refused(draft.remove_pv(&second, "here.img"), "no physical volume");
    let mut again =
        NewPv { id: second, device_hint: "d".into(), dev_sectors: 2048 + EXTENT - 1, pe_start: 2048 };
    refused(draft.add_pv(&again), "an extent of 4 MiB from byte 1048576 on does not fit");
    again.dev_sectors += 1;
    assert_eq!(draft.add_pv(&again).unwrap(), 1);
    refused(draft.add_pv(&again), "exists already");
    assert_eq!(draft.group().pvs[1].name, "pv1");
    draft.rename_group("new-name").unwrap();
    refused(draft.rename_group("a/b"), "'/' is in it");
    assert_eq!(VolumeGroup::from_text(&draft.text()).unwrap().name, "new-name");
}

#[test]
fn nothing_has_more_extents_than_lvm_counts() {
    const MOST: u64 = 4_294_967_295;
    let pv = |nth: u32, extents: u64| {
        let id = Uuid::from_compact(format!("pv{nth:030}").as_bytes()).unwrap();
        NewPv { id, device_hint: format!("disk{nth}"), dev_sectors: 2048 + 2 * extents, pe_start: 2048 }
    };
    let mut draft = Draft::new_group("vg", 2, &[], author()).unwrap();
    refused(
        draft.add_pv(&pv(0, MOST + 1)),
        "the disk disk0: it would have 4294967296 extents (4 TiB), and may have 4294967295 extents (3.99 TiB) at most, as LVM counts \
         them in 32 bits; give the group larger ones (--physical-extent-size)",
    );
    draft.add_pv(&pv(0, MOST - 100)).unwrap();
    let mut draft = Draft::of(Section::parse(&draft.text()).unwrap(), author()).unwrap();
    refused(
        draft.add_pv(&pv(1, 101)),
        "the disk disk1: the group would have 4294967296 extents (4 TiB), and may have 4294967295 extents (3.99 TiB) at most, as LVM \
         counts them in 32 bits; give the group larger ones (`vgchange --physicalextentsize`)",
    );
    draft.add_pv(&pv(1, 100)).unwrap();
    draft.create_volume(&linear("all", MOST)).unwrap();
    refused(draft.resize_volume("all", Resize::MoreExtents(1), false), "at most 4294967295 extents");
    draft.remove_volume("all").unwrap();

    // The group of a PV that `pvresize` made larger has more than LVM counts, and each of its volumes has not.
    let text = String::from_utf8(draft.text()).unwrap().replace("pe_count = 100", "pe_count = 200");
    let mut draft = Draft::of(Section::parse(text.as_bytes()).unwrap(), author()).unwrap();
    let before = draft.text();
    refused(draft.create_volume(&linear("all", MOST + 1)), "at most 4294967295 extents");
    let all = Size::PercentFree(100);
    refused(draft.create_volume(&new("all", all, Shape::Linear)), "the size 100%FREE: expected at most");
    assert_eq!(draft.text(), before);
    draft.create_volume(&linear("one", MOST - 1)).unwrap();
    draft.resize_volume("one", Resize::MoreExtents(1), false).unwrap();
    refused(draft.resize_volume("one", Resize::MorePercentFree(100), false), "at most 4294967295 extents");

    // Of larger extents there are fewer.
    let mut draft = Draft::new_group("vg", 1 << 23, &[], author()).unwrap();
    let id = Uuid::from_compact(format!("pv{:030}", 1).as_bytes()).unwrap();
    draft.add_pv(&NewPv { id, device_hint: "d".into(), dev_sectors: 1 << 30, pe_start: 2048 }).unwrap();
    refused(draft.create_volume(&linear("a", 1 << 31)), "expected less than 8 EiB");
}

#[test]
fn a_group_whose_changes_are_counted_to_the_end_is_refused() {
    let text = String::from_utf8(group(&[10]).text()).unwrap();
    for last in ["4294967295", "9223372036854775807"] {
        let tree = Section::parse(text.replace("seqno = 1", &format!("seqno = {last}")).as_bytes()).unwrap();
        let error = Draft::of(tree, author()).unwrap_err().to_string();
        assert!(error.contains(&format!("seqno is {last}, expected less than 4294967295")), "{error}");
    }
}

#[test]
fn an_extent_is_of_a_size_that_lvm_takes() {
    for sectors in [2, 8192, 256 * 3, 1 << 21] {
        Draft::new_group("vg", sectors, &[], author()).unwrap();
    }
    for sectors in [0, 1, 3, 255, 1000, 1 << 32] {
        refused(Draft::new_group("vg", sectors, &[], author()), "--physical-extent-size");
    }
    refused(Draft::new_group("-", 8192, &[], author()), "the volume group \"-\"");
}

#[test]
fn a_group_gets_no_more_volumes_and_disks_than_its_text_says() {
    let text = String::from_utf8(group(&[10]).text()).unwrap();
    let text = text.replace("max_lv = 0", "max_lv = 2").replace("max_pv = 0", "max_pv = 1");
    let mut draft = Draft::of(Section::parse(text.as_bytes()).unwrap(), author()).unwrap();
    // Parts of a volume do not count, and snapshots do.
    draft.create_thin_pool(&thin::pool("pool", Size::Extents(1))).unwrap();
    draft.create_volume(&linear("a", 1)).unwrap();
    let too_many =
        "the volume group vg: it may have 2 logical volumes at most; `vgchange --logicalvolume` changes that";
    refused(draft.create_volume(&linear("b", 1)), too_many);
    refused(draft.create_snapshot(&snapshot::of("a")), too_many);
    refused(draft.create_thin(&thin::thin("t", "pool", 4)), too_many);
    draft.remove_volume("a").unwrap();
    draft.create_volume(&linear("b", 1)).unwrap();
    let id = Uuid::from_compact(format!("pv{:030}", 1).as_bytes()).unwrap();
    let pv = NewPv { id, device_hint: "disk1".into(), dev_sectors: 2048 + EXTENT, pe_start: 2048 };
    refused(
        draft.add_pv(&pv),
        "it may have 1 physical volumes at most; `vgchange --maxphysicalvolumes` changes that",
    );
}

#[test]
fn a_policy_of_the_group_or_of_a_volume_counts() {
    let mut draft = group(&[10, 10]);
    let text = String::from_utf8(draft.text()).unwrap();
    let text = text.replace("max_pv = 0", "max_pv = 0\nallocation_policy = \"contiguous\"");
    draft = Draft::of(Section::parse(text.as_bytes()).unwrap(), author()).unwrap();
    draft.create_volume(&linear("a", 6)).unwrap();
    refused(draft.create_volume(&linear("b", 12)), "wants them in one piece");
    draft.create_volume(&linear("b", 9)).unwrap();
    assert_eq!(segments(&draft, "b"), [(0, 9, vec![(1, 0)])]);
    draft.resize_volume("a", Resize::MoreExtents(4), false).unwrap();
    refused(draft.resize_volume("a", Resize::MoreExtents(1), false), "in the place that its policy wants");
    assert!(Section::parse(&draft.text()).unwrap().print(Style::Disk) == draft.text());
}

#[test]
fn a_section_that_only_looks_like_a_segment_is_left_alone() {
    let mut draft = group(&[20]);
    draft.create_volume(&linear("a", 4)).unwrap();
    let text = String::from_utf8(draft.text()).unwrap();
    let odd = text
        .replace("segment_count = 1\n", "segment_count = 1\nother { start_extent = 0 extent_count = 9 }\n");
    assert_ne!(odd, text);
    let mut draft = Draft::of(Section::parse(odd.as_bytes()).unwrap(), author()).unwrap();
    draft.resize_volume("a", Resize::MoreExtents(2), false).unwrap();
    assert_eq!(segments(&draft, "a"), [(0, 6, vec![(0, 0)])]);
    assert!(String::from_utf8(draft.text()).unwrap().contains("other {\nstart_extent = 0\nextent_count = 9"));
}

proptest! {
    /// Whatever can be read can be worked on: refused or done, and what was done can be read again.
    #[test]
    fn no_text_that_can_be_read_makes_a_change_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u8..4), 1..6),
    ) {
        let mut draft = with_snapshot();
        draft.create_volume(&new("s", Size::Extents(1), Shape::Linear)).unwrap();
        let text = String::from_utf8(draft.text()).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (at, from, what) in changes {
            let (at, from) = (at.index(lines.len()), from.index(lines.len()));
            match what {
                0 => drop(lines.remove(at)),
                1 => lines[at] = lines[from].clone(),
                2 => lines[at] = lines[at].replace(|c: char| c.is_ascii_digit(), "9"),
                _ => lines.insert(at, lines[from].clone()),
            }
        }
        let Ok(tree) = Section::parse(lines.join("\n").as_bytes()) else { return Ok(()) };
        let Ok(mut draft) = Draft::of(tree, author()) else { return Ok(()) };
        for lv in ["origin", "snap", "other", "s", "snapshot0"] {
            drop(draft.resize_volume(lv, Resize::MoreExtents(1), false));
            drop(draft.resize_volume(lv, Resize::LessExtents(1), true));
            drop(draft.rename_volume(lv, "renamed"));
            drop(draft.tag_volume("renamed", &TagChange { add: vec!["t".into()], remove: vec![] }));
            drop(draft.create_volume(&new("new", Size::PercentFree(10), STRIPED)));
            drop(draft.create_volume(&linear("newer", 1)));
            drop(draft.create_snapshot(&snapshot::of(lv)));
            drop(draft.remove_volume("renamed"));
        }
        prop_assert_eq!(VolumeGroup::from_text(&draft.text()).map(|vg| vg.lvs.len()), Ok(draft.group().lvs.len()));
    }
}
