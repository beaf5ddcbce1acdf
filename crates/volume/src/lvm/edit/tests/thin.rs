//! Thin pools and their volumes in drafts.

use blockwork_format::lvm2::vg::Message;

use super::super::draft::lv_section;
use super::super::resize::only_segment;
use super::super::section::{Keys, number, strings};
use super::super::{Discards, NewThin, NewThinPool, NewThinSnapshot, Resize};
use super::*;

pub(super) fn pool(name: &str, size: Size) -> NewThinPool {
    NewThinPool {
        name: name.into(),
        size,
        chunk_sectors: None,
        metadata_bytes: None,
        zero: true,
        discards: Discards::Passdown,
        error_when_full: false,
        tags: Vec::new(),
    }
}

pub(super) fn thin(name: &str, pool: &str, mib: u64) -> NewThin {
    NewThin { name: name.into(), pool: pool.into(), bytes: mib << 20, tags: Vec::new() }
}

fn snapshot(origin: &str, name: &str) -> NewThinSnapshot {
    NewThinSnapshot { origin: origin.into(), name: Some(name.into()), tags: Vec::new() }
}

/// Transaction, and messages.
fn told(draft: &Draft, name: &str) -> (u64, Vec<Message>) {
    match &lv(draft, name).segments[0].kind {
        SegmentType::ThinPool { transaction_id, messages, .. } => (*transaction_id, messages.clone()),
        other => panic!("{name}: {other:?}"),
    }
}

fn device(draft: &Draft, name: &str) -> u64 {
    match &lv(draft, name).segments[0].kind {
        SegmentType::Thin { device_id, .. } => *device_id,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn a_pool_and_a_volume_are_what_lvcreate_writes() {
    let mut draft = group(&[39, 15]);
    let asked = NewThinPool { metadata_bytes: Some(8 << 20), ..pool("pool", Size::Extents(24)) };
    let made = draft.create_thin_pool(&asked).unwrap();
    assert_eq!((made.extents, made.metadata_extents, made.chunk_sectors), (24, 2, 128));
    draft.create_thin(&thin("t1", "pool", 63)).unwrap();
    let text = String::from_utf8(draft.text()).unwrap();
    let born =
        "flags = []\ncreation_time = 1700000000\ncreation_host = \"host\"\nsegment_count = 1\n\nsegment1 {\n";
    let plain = |pv: &str, start: u64, count: u64| {
        format!(
            "start_extent = 0\nextent_count = {count}\n\ntype = \"striped\"\nstripe_count = 1\n\nstripes = [\n\"{pv}\", {start}\n]\n}}\n}}\n"
        )
    };
    // As LVM 2.03.16 wrote it, but for identifiers, times and places; and for the message, which it had sent by then.
    for expected in [
        format!(
            "status = [\"READ\", \"WRITE\", \"VISIBLE\"]\n{born}start_extent = 0\nextent_count = 24\n\ntype = \"thin-pool\"\n\
             metadata = \"pool_tmeta\"\npool = \"pool_tdata\"\ntransaction_id = 1\nchunk_size = 128\n\
             discards = \"passdown\"\nzero_new_blocks = 1\n\nmessage1 {{\ncreate = \"t1\"\n}}\n}}\n}}\n\nt1 {{\n"
        ),
        format!(
            "status = [\"READ\", \"WRITE\", \"VISIBLE\"]\n{born}start_extent = 0\nextent_count = 16\n\ntype = \"thin\"\n\
             thin_pool = \"pool\"\ntransaction_id = 0\ndevice_id = 1\n}}\n}}\n\npool_tdata {{\n"
        ),
        format!("status = [\"READ\", \"WRITE\"]\n{born}{}\npool_tmeta {{\n", plain("pv0", 0, 24)),
        format!("status = [\"READ\", \"WRITE\"]\n{born}{}\nlvol0_pmspare {{\n", plain("pv0", 24, 2)),
        format!("status = [\"READ\", \"WRITE\"]\n{born}{}", plain("pv0", 26, 2)),
    ] {
        assert!(text.contains(&expected), "{text}\nexpected {expected}");
    }
}

#[test]
fn a_segment_may_have_any_name_and_a_pool_a_number_that_cannot_be_counted_on() {
    let mut draft = group(&[100]);
    draft.create_thin_pool(&pool("pool", Size::Extents(20))).unwrap();
    let alter = |draft: &mut Draft, act: &dyn Fn(&mut Section)| {
        let altered = draft.change(|vg, _| {
            act(lv_section(vg, "pool"));
            Ok(())
        });
        altered.unwrap();
    };
    alter(&mut draft, &|pool| pool.rename("segment1", "segment_of_it"));
    draft.create_thin(&thin("t1", "pool", 63)).unwrap();
    assert_eq!(told(&draft, "pool"), (1, vec![Message::Create(draft.group().lv("t1").unwrap())]));
    let count = |draft: &mut Draft, n: u64| {
        alter(draft, &|pool| only_segment(pool).set("transaction_id", number(n)));
    };
    count(&mut draft, 0);
    refused(draft.remove_volume("t1"), "its transaction is 0");
    draft.settle("pool").unwrap();
    assert_eq!(told(&draft, "pool"), (0, vec![]));
    count(&mut draft, i64::MAX as u64);
    refused(draft.create_thin(&thin("t2", "pool", 63)), "there is none after that");
}

#[test]
fn a_new_map_begins_with_zeros_and_data_is_left_alone() {
    let mut draft = group(&[100]);
    draft.create_thin_pool(&pool("pool", Size::Extents(20))).unwrap();
    let metadata = segments(&draft, "pool_tmeta");
    assert_eq!(metadata, [(0, 1, vec![(0, 20)])]);
    let start = (2048 + 20 * EXTENT) * 512;
    let end = start + EXTENT * 512;
    assert!(draft.data.iter().any(|write| write.offset == start));
    for write in &draft.data {
        assert!(matches!(write.content, Content::Zeros(_)), "{write:?}");
        assert!((start..end).contains(&write.offset), "{write:?}");
    }
}

#[test]
fn sizes_follow_lvm() {
    // 40 TiB of data in 64 KiB blocks would need a map of 40 GiB: blocks grow until it needs 128 MiB.
    let mut draft = Draft::new_group("vg", EXTENT, &[], author()).unwrap();
    let id = Uuid::from_compact(format!("pv{:030}", 0).as_bytes()).unwrap();
    let pv = NewPv { id, device_hint: "d".into(), dev_sectors: 48 << 31, pe_start: 2048 };
    draft.add_pv(&pv).unwrap();
    let made = draft.create_thin_pool(&pool("large", Size::Bytes(40 << 40))).unwrap();
    assert_eq!((made.chunk_sectors, made.metadata_extents), (65_536, 20));
    // All of a group, with its map and the spare.
    let mut draft = group(&[50]);
    let made = draft.create_thin_pool(&pool("all", Size::PercentFree(100))).unwrap();
    assert_eq!((made.extents, made.metadata_extents, draft.free().total()), (48, 1, 0));
}

#[test]
fn each_change_is_a_message_and_a_transaction_and_numbers_are_not_given_twice() {
    let mut draft = group(&[60]);
    draft.create_thin_pool(&pool("pool", Size::Extents(10))).unwrap();
    assert_eq!(told(&draft, "pool"), (0, vec![]));
    draft.create_thin(&thin("one", "pool", 100)).unwrap();
    let one = draft.group().lv("one").unwrap();
    assert_eq!(told(&draft, "pool"), (1, vec![Message::Create(one)]));
    assert_eq!(draft.create_thin_snapshot(&snapshot("one", "snap")).unwrap(), "snap");
    assert_eq!((device(&draft, "one"), device(&draft, "snap")), (1, 2));
    assert_eq!(lv(&draft, "snap").extents(), lv(&draft, "one").extents());
    draft.settle("pool").unwrap();
    assert_eq!(told(&draft, "pool"), (1, vec![]));
    // What was a snapshot of it stands by itself.
    assert_eq!(draft.remove_volume("one").unwrap(), ["one"]);
    assert!(matches!(lv(&draft, "snap").segments[0].kind, SegmentType::Thin { origin: None, .. }));
    assert_eq!(told(&draft, "pool"), (2, vec![Message::Delete(1)]));
    draft.settle("pool").unwrap();
    draft.remove_volume("snap").unwrap();
    draft.create_thin(&thin("two", "pool", 1)).unwrap();
    assert_eq!(device(&draft, "two"), 3, "the pool still has number 2");
    refused(draft.remove_volume("pool"), "these volumes are made of it: two");
    // The pool never heard of it, and of what it has yet to hear one thing is left.
    draft.remove_volume("two").unwrap();
    assert_eq!(told(&draft, "pool"), (3, vec![Message::Delete(2)]));
    draft.settle("pool").unwrap();
    draft.create_thin(&thin("three", "pool", 1)).unwrap();
    draft.remove_volume("three").unwrap();
    assert_eq!(told(&draft, "pool"), (3, vec![]));
    let mut gone = draft.remove_volume("pool").unwrap();
    gone.sort();
    assert_eq!(gone, ["lvol0_pmspare", "pool", "pool_tdata", "pool_tmeta"]);
    assert_eq!(draft.free().total(), 60);
}

#[test]
fn pools_their_maps_and_their_volumes_are_resized() {
    let mut draft = group(&[60]);
    draft.create_thin_pool(&pool("pool", Size::Extents(10))).unwrap();
    draft.create_thin(&thin("one", "pool", 40)).unwrap();
    assert_eq!(draft.resize_volume("pool", Resize::MoreExtents(5), false).unwrap().to, 15);
    assert_eq!((lv(&draft, "pool").extents(), lv(&draft, "pool_tdata").extents()), (15, 15));
    refused(draft.resize_volume("pool", Resize::LessExtents(1), true), "do not become smaller");
    assert_eq!(draft.grow_pool_metadata("pool", Resize::MoreExtents(2)).unwrap().to, 3);
    assert_eq!((lv(&draft, "pool_tmeta").extents(), lv(&draft, "lvol0_pmspare").extents()), (3, 3));
    assert_eq!(draft.resize_volume("one", Resize::ToExtents(1_000_000), false).unwrap().to, 1_000_000);
    for most in [1 << 50, u64::MAX] {
        let too_large = "expected at most 4294967295 extents";
        refused(draft.resize_volume("one", Resize::MorePercentFree(most), false), too_large);
    }
    refused(draft.create_thin(&thin("two", "pool", 1 << 34)), "the size 16 PiB: expected at most 4294967295");
    refused(draft.resize_volume("one", Resize::ToBytes(1 << 54), false), "the size 16 PiB: expected at most");
    refused(draft.resize_volume("one", Resize::ToExtents(9), false), "--force");
    assert_eq!(draft.resize_volume("one", Resize::ToExtents(9), true).unwrap().to, 9);
    assert_eq!(lv(&draft, "one").segments.len(), 1);
    draft.rename_volume("pool", "basin").unwrap();
    assert!(draft.group().lv("basin_tdata").is_some() && draft.group().lv("basin_tmeta").is_some());
    assert!(matches!(told(&draft, "basin").1[..], [Message::Create(_)]));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut draft = group(&[20]);
    let with = |change: &dyn Fn(&mut NewThinPool)| {
        let mut new = pool("pool", Size::Extents(10));
        change(&mut new);
        new
    };
    refused(draft.create_thin_pool(&with(&|new| new.chunk_sectors = Some(96))), "--chunksize 48 KiB");
    refused(
        draft.create_thin_pool(&with(&|new| new.metadata_bytes = Some(1 << 20))),
        "--pool-metadata-size 1 MiB",
    );
    refused(draft.create_thin_pool(&with(&|new| new.chunk_sectors = Some(1 << 20))), "at least one block");
    refused(draft.create_thin_pool(&with(&|new| new.size = Size::Extents(20))), "needed");
    draft.create_volume(&linear("thick", 2)).unwrap();
    refused(
        draft.create_thin(&thin("one", "thick", 4)),
        "there is no thin pool \"vg/thick\"; there are: none",
    );
    refused(draft.create_thin_snapshot(&snapshot("thick", "snap")), "it is no thin volume");
    draft.create_thin_pool(&pool("pool", Size::Extents(10))).unwrap();
    draft.create_thin(&thin("one", "pool", 4)).unwrap();
    refused(draft.create_thin(&thin("one", "pool", 4)), "exists already");
    refused(draft.create_thin(&thin("two", "pool", 0)), "at least one extent");
}

/// Three volumes and their pool, which knows of them: `t1`, its snapshots `snap` (with one itself, `later`) and `other`.
fn family() -> Draft {
    let mut draft = group(&[100]);
    draft.create_thin_pool(&pool("pool", Size::Extents(20))).unwrap();
    let tags = vec!["of_t1".to_owned()];
    draft.create_thin(&NewThin { tags, ..thin("t1", "pool", 63) }).unwrap();
    let tags = vec!["of_snap".to_owned()];
    draft.create_thin_snapshot(&NewThinSnapshot { tags, ..snapshot("t1", "snap") }).unwrap();
    draft.create_thin_snapshot(&snapshot("t1", "other")).unwrap();
    draft.create_thin_snapshot(&snapshot("snap", "later")).unwrap();
    draft.settle("pool").unwrap();
    draft
}

fn origin_of(draft: &Draft, name: &str) -> Option<String> {
    match lv(draft, name).segments[0].kind {
        SegmentType::Thin { origin, .. } => origin.map(|origin| draft.group().lvs[origin.0].name.clone()),
        ref other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn a_snapshot_takes_the_place_of_its_origin_as_lvconvert_writes_it() {
    let mut draft = family();
    draft.resize_volume("snap", Resize::MoreExtents(2), false).unwrap();
    let id = lv(&draft, "t1").id;
    let transaction = told(&draft, "pool").0;
    assert_eq!(draft.end_thin_merge("snap").unwrap(), "t1");
    // LVM 2.03.16: what a user gave the origin stays, and its one segment is the snapshot's.
    let text = String::from_utf8(draft.text()).unwrap();
    let expected = "status = [\"READ\", \"WRITE\", \"VISIBLE\"]\nflags = []\ntags = [\"of_t1\"]\ncreation_time = 1700000000\n\
        creation_host = \"host\"\nsegment_count = 1\n\nsegment1 {\nstart_extent = 0\nextent_count = 18\n\ntype = \"thin\"\n\
        thin_pool = \"pool\"\ntransaction_id = 1\ndevice_id = 2\n}\n}\n";
    assert!(text.contains(expected), "{text}\nexpected {expected}");
    assert_eq!(lv(&draft, "t1").id, id);
    assert!(draft.group().lv("snap").is_none());
    assert_eq!(told(&draft, "pool"), (transaction + 1, vec![Message::Delete(1)]));
    assert_eq!((origin_of(&draft, "other"), origin_of(&draft, "later")), (None, Some("t1".into())));
    refused(draft.end_thin_merge("later").map(drop), "it has yet to be told that its device 1 goes");
    draft.settle("pool").unwrap();
    assert_eq!(draft.end_thin_merge("later").unwrap(), "t1");
    assert_eq!((device(&draft, "t1"), told(&draft, "pool").1), (4, vec![Message::Delete(2)]));
}

#[test]
fn a_snapshot_that_is_to_take_the_place_of_its_origin_is_written_as_lvconvert_does() {
    let mut draft = family();
    draft.plan_thin_merge("snap").unwrap();
    let text = String::from_utf8(draft.text()).unwrap();
    let expected = "status = [\"READ\", \"WRITE\"]\nflags = [\"ACTIVATION_SKIP\"]\ntags = [\"of_snap\"]\ncreation_time = 1700000000\n\
        creation_host = \"host\"\nsegment_count = 1\n\nsegment1 {\nstart_extent = 0\nextent_count = 16\n\ntype = \"thin\"\n\
        thin_pool = \"pool\"\ntransaction_id = 1\ndevice_id = 2\norigin = \"t1\"\nmerge = \"t1\"\n}\n}\n";
    assert!(text.contains(expected), "{text}\nexpected {expected}");
    assert_eq!(told(&draft, "pool").1, []);
    // Again is not more.
    draft.plan_thin_merge("snap").unwrap();
    refused(draft.plan_thin_merge("other"), "snap is to be merged into the same origin; merge that first");
    refused(draft.plan_thin_merge("later"), "its origin snap is to be merged into t1; merge that first");
    draft.end_thin_merge("snap").unwrap();
    assert_eq!((device(&draft, "t1"), told(&draft, "pool").1), (2, vec![Message::Delete(1)]));
    assert!(draft.group().merging_thins().next().is_none());
}

#[test]
fn what_cannot_take_the_place_of_another_is_refused() {
    let mut draft = family();
    draft.create_volume(&linear("thick", 2)).unwrap();
    for (name, why) in [
        ("t1", "it is no snapshot of a volume that is still there"),
        ("thick", "it is in no thin pool"),
        ("pool", "it is in no thin pool"),
        ("none", "there is no logical volume"),
    ] {
        refused(draft.end_thin_merge(name).map(drop), why);
        if name != "none" {
            assert_eq!(draft.is_thin(name).unwrap(), name == "t1");
        }
    }
    let alter = |draft: &mut Draft, name: &str, act: &dyn Fn(&mut Section)| {
        let altered = draft.change(|vg, _| {
            act(only_segment(lv_section(vg, name)));
            Ok(())
        });
        altered.unwrap();
    };
    // Whoever reads what it does not have from the origin would read something else.
    let mut outside = family();
    alter(&mut outside, "later", &|later| {
        later.remove("origin");
        later.set("external_origin", "t1".into());
    });
    refused(outside.end_thin_merge("snap").map(drop), "t1: these volumes are made of it: later");
    let why = "t1: it is the external origin of thin volumes, which would change with it: later";
    refused(outside.resize_volume("t1", Resize::MoreExtents(1), false).map(drop), why);
    // What is deleted must not be what stays.
    let mut same = family();
    alter(&mut same, "snap", &|snap| snap.set("origin", "snap".into()));
    refused(same.end_thin_merge("snap").map(drop), "its origin snap is no other volume of its pool");
    let mut unknown = family();
    unknown.create_volume(&linear("thick", 2)).unwrap();
    alter(&mut unknown, "thick", &|thick| thick.set("type", "new".into()));
    refused(unknown.end_thin_merge("snap").map(drop), "use `lvconvert --merge`");
}

#[test]
fn a_volume_into_which_a_snapshot_is_to_be_merged_waits_for_that() {
    let mut draft = group(&[100]);
    draft.create_thin_pool(&pool("pool", Size::Extents(20))).unwrap();
    draft.create_thin(&thin("t1", "pool", 63)).unwrap();
    draft.create_thin_snapshot(&snapshot("t1", "before")).unwrap();
    // As LVM 2.03.16 writes it for `lvconvert --merge` of a snapshot whose origin is open.
    let merge = draft.change(|vg, _| {
        let before = lv_section(vg, "before");
        before.set("status", strings(["READ", "WRITE"]));
        let merge = Keys::default().text("merge", "t1").done();
        only_segment(before).entries.extend(merge.entries);
        Ok(())
    });
    merge.unwrap();
    let why = "its snapshot before is to be merged into it; finish that first: blockwork lv merge vg/before";
    refused(draft.create_thin_snapshot(&snapshot("t1", "new")).map(drop), why);
    refused(draft.resize_volume("t1", Resize::MoreExtents(1), false).map(drop), why);
    refused(draft.remove_volume("t1"), why);
    assert_eq!(
        draft.group().thin_device(draft.group().lv("t1").unwrap()).unwrap().1,
        device(&draft, "before")
    );
    draft.create_thin(&thin("t2", "pool", 63)).unwrap();
}

#[test]
fn what_the_history_names_stays_and_nobody_gets_a_name_that_it_has() {
    // As LVM 2.03.16 writes it with `record_lvs_history`, after `lvremove` of a snapshot of t1 with one itself.
    let mut draft = family();
    draft.create_volume(&super::linear("plain", 1)).unwrap();
    let history = "historical_logical_volumes {\nlvol7 {\nid = \"dAw255-MXlh-HrX4-CIPf-YtoH-0Mn0-MpbyHf\"\ncreation_time = 1795940385\n\
        removal_time = 1795940387\norigin = \"t1\"\ndescendants = [\"later\"]\n}\n}\n";
    let text = String::from_utf8(draft.text()).unwrap();
    let text = text.replace("}\n\ncontents = ", &format!("{history}}}\n\ncontents = "));
    assert!(text.contains(history), "{text}");
    draft = Draft::of(Section::parse(text.as_bytes()).unwrap(), author()).unwrap();
    let named = "the history of the group's volumes names it, beside lvol7, which is gone: use `lvremove`";
    refused(draft.remove_volume("later"), named);
    refused(draft.remove_volumes(&["plain".into(), "t1".into()]), named);
    refused(
        draft.create_thin(&thin("lvol7", "pool", 4)),
        "vg/lvol7, which is gone and remembered, exists already",
    );
    let unnamed = NewThinSnapshot { name: None, ..snapshot("t1", "") };
    assert_eq!(draft.create_thin_snapshot(&unnamed).unwrap(), "lvol8");
    draft.settle("pool").unwrap();
    draft.remove_volume("other").unwrap();
}
