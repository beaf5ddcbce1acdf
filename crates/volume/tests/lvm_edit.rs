//! Groups that are changed on disks: by the engine, in real files. What was written is found again, and after a power cut at any
//! point the old group or the new one is.

mod cuts;
mod lab;

use blockwork_format::Source;
use blockwork_format::lvm2::{Label, Uuid, VolumeGroup};
use blockwork_volume::lvm::edit::{
    Author, Change, EditError, GroupEditor, NewSnapshot, NewVolume, REGION_DEFAULT, Resize, Shape, Size,
    StoreSize, TagChange,
};
use cuts::{Chance, Cut, Event, are_durable, begin_with_flushes, logged};
use lab::{Disk, Lab};

/// Sectors of an extent: small ones, so that disks are.
const EXTENT: u64 = 256;

fn author(seed: u64) -> Author {
    let mut next = seed * 1000;
    let ids = Box::new(move || {
        next += 1;
        Uuid::from_compact(format!("{next:032}").as_bytes()).unwrap()
    });
    Author { host: "host".into(), time: 1_700_000_000, command: format!("test {seed}"), ids }
}

/// Writes a change; what happened.
fn commit(mut editor: GroupEditor) -> Vec<Event> {
    let commit = editor.plan().unwrap();
    let events = logged(editor.assembly(), |cx| async move { commit.run(&cx).await.unwrap() });
    assert!(begin_with_flushes(&events), "what was read may not be durable");
    events
}

fn paths(disks: &[&Disk]) -> Vec<String> {
    disks.iter().map(|disk| disk.path.to_str().unwrap().to_owned()).collect()
}

fn edit(disks: &[&Disk], seed: u64) -> GroupEditor {
    GroupEditor::open(&paths(disks), "vg", author(seed)).unwrap()
}

/// A new group on the disks.
fn create(disks: &[&Disk]) -> GroupEditor {
    let devices = paths(disks);
    let mut editor = GroupEditor::create(&devices, "vg", EXTENT, &[], author(0)).unwrap();
    for device in &devices {
        editor.add_device(device, false).unwrap();
    }
    editor
}

fn disks(lab: &Lab, count: u8, extents: u64) -> Vec<Disk> {
    (0..count).map(|nth| lab.disk(&format!("disk{nth}"), 2048 + extents * EXTENT)).collect()
}

fn volume(name: &str, extents: u64, shape: Shape) -> NewVolume {
    let (tags, size) = (Vec::new(), Size::Extents(extents));
    NewVolume { name: name.into(), size, shape, tags, wipe: true, no_sync: false }
}

const RAID1: Shape = Shape::Raid1 { mirrors: 1, region_size: REGION_DEFAULT };

/// The group, as everybody finds it; none where there is none. It must be whole.
fn found(disks: &[&Disk]) -> Option<VolumeGroup> {
    let assembly = Lab::new().open(disks);
    let groups = &assembly.graph().groups;
    assert!(groups.len() <= 1);
    let group = groups.first()?;
    assert!(!group.is_partial() && group.refused.is_none(), "{:?}", group.warnings);
    Some((*group.text).clone())
}

#[test]
fn a_group_is_made_changed_and_found_again() {
    let lab = Lab::new();
    let disks = disks(&lab, 3, 20);
    let [a, b, c] = &disks[..] else { unreachable!("three were made") };
    commit(create(&[a, b]));
    let vg = found(&[a, b]).unwrap();
    assert_eq!((vg.seqno, vg.pvs.len(), vg.lvs.len()), (1, 2, 0));
    for disk in [a, b] {
        let label = Label::find(disk).unwrap().expect("a label").label;
        assert!(label.pv.in_use() && label.sector == 1);
    }

    let mut editor = edit(&[a, b], 1);
    editor.draft_mut().create_volume(&volume("lin", 4, Shape::Linear)).unwrap();
    editor.draft_mut().create_volume(&volume("mir", 8, RAID1)).unwrap();
    commit(editor);
    let mut assembly = lab.open_for_writing(&[b, a]);
    let mirror = lab::volume(&mut assembly, "vg/mir");
    assert!(!mirror.read_only, "its superblocks are written: {:?}", assembly.warnings());
    assert_eq!(mirror.sectors().0, 8 * EXTENT);
    drop((mirror, assembly));

    let mut editor = edit(&[b, a], 2);
    editor.draft_mut().resize_volume("lin", Resize::MoreExtents(3), false).unwrap();
    editor.draft_mut().rename_volume("lin", "base").unwrap();
    editor.draft_mut().tag_group(&TagChange { add: vec!["t".into()], remove: vec![] }).unwrap();
    commit(editor);
    let devices = paths(&[a, b, c]);
    let mut editor = GroupEditor::open(&devices, "vg", author(3)).unwrap();
    assert!(editor.has_device(&devices[0]) && !editor.has_device(&devices[2]));
    assert_eq!(editor.add_device(&devices[2], false).unwrap(), 20);
    commit(editor);
    let vg = found(&[c, b, a]).unwrap();
    assert_eq!((vg.seqno, vg.pvs.len(), vg.tags.len()), (4, 3, 1));
    assert_eq!(vg.lvs[vg.lv("base").unwrap().0].extents(), 7);

    let mut editor = edit(&[a, b, c], 4);
    refused(editor.remove_device(&devices[0]), "these volumes lie on it: base, mir_r");
    editor.remove_device(&devices[2]).unwrap();
    commit(editor);
    assert_eq!(found(&[a, b]).unwrap().pvs.len(), 2);
    assert_eq!(found(&[c]), None);
    let label = Label::find(c).unwrap().expect("a label").label;
    assert!(!label.pv.in_use(), "it is a PV of no group now");
    let again = GroupEditor::create(&devices[2..], "other", EXTENT, &[], author(5));
    let mut again = again.unwrap();
    again.add_device(&devices[2], false).unwrap();
    commit(again);
    assert_eq!(Label::find(c).unwrap().unwrap().label.pv.id, label.pv.id, "its label stays");
}

#[track_caller]
fn refused<T>(result: Result<T, EditError>, expected: &str) {
    let Err(error) = result else { panic!("it is not possible") };
    assert!(error.to_string().contains(expected), "{error}\nexpected {expected}");
}

#[test]
fn disks_that_hold_something_and_groups_that_must_not_be_changed_are_refused() {
    let lab = Lab::new();
    let disks = disks(&lab, 3, 20);
    let [a, b, c] = &disks[..] else { unreachable!("three were made") };
    let devices = paths(&[a, b, c]);
    commit(create(&[a, b]));
    let before = [a.bytes(), b.bytes()];
    let new = || GroupEditor::create(&devices, "new", EXTENT, &[], author(1)).unwrap();
    refused(
        new().add_device(&devices[0], true),
        "it is a physical volume of the group vg; take it out of that first",
    );
    refused(new().add_device("disk/none", false), "there is no device \"disk/none\"");
    refused(
        GroupEditor::create(&devices, "vg", EXTENT, &[], author(1)),
        "the volume group vg exists already",
    );
    refused(
        GroupEditor::open(&devices, "none", author(1)),
        "there is no volume group \"none\"; there are: vg",
    );
    let only_one = GroupEditor::open(&devices[..1], "vg", author(1));
    refused(only_one, "is missing (it was");
    let held = new();
    refused(GroupEditor::open(&devices, "vg", author(1)), "it is locked by process");
    drop(held);

    // An ext4 at its usual place.
    c.write(1080, &[0x53, 0xef]);
    let said = new().add_device(&devices[2], false).unwrap_err().to_string();
    assert!(said.contains("it holds ext") && said.contains("add --force"), "{said}");
    let mut forced = new();
    forced.add_device(&devices[2], true).unwrap();
    commit(forced);
    let mut magic = [0; 2];
    c.read_at(1080, &mut magic).unwrap();
    assert_eq!(magic, [0, 0]);

    // Flags and keys of somebody else.
    let text = String::from_utf8(edit(&[a, b], 2).draft().text()).unwrap();
    for (from, to, expected) in [
        ("\"WRITE\"]", "\"WRITE\", \"EXPORTED\"]", "the group is exported"),
        (
            "\"WRITE\"]",
            "\"WRITE\", \"GLOWING\"]",
            "it must not be changed: its metadata has the flag GLOWING",
        ),
        ("max_lv", "lock_type = \"sanlock\"\nmax_lv", "shared between hosts (lock type sanlock)"),
        ("max_lv", "system_id = \"other\"\nmax_lv", "belongs to the host with the system ID other"),
        (
            "\"ALLOCATABLE\"]",
            "\"MISSING\"]",
            "takes it back; a change needs all disks of the group, each once and up to date",
        ),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        [a, b].iter().for_each(|disk| lab::commit(disk, &changed));
        refused(GroupEditor::open(&devices[..2], "vg", author(3)), expected);
        [a, b].iter().zip(&before).for_each(|(disk, bytes)| disk.write(0, bytes));
    }
    let newer = text.replace("max_lv", "colour = \"blue\"\nmax_lv");
    [a, b].iter().for_each(|disk| lab::commit(disk, &newer));
    let mut editor = edit(&[a, b], 4);
    editor.draft_mut().create_volume(&volume("lv", 1, Shape::Linear)).unwrap();
    commit(editor);
    assert!(String::from_utf8(edit(&[a, b], 5).draft().text()).unwrap().contains("colour = \"blue\""));
}

#[test]
fn a_disk_that_a_cut_kept_from_leaving_can_be_used_again_if_that_is_meant() {
    let lab = Lab::new();
    let disks = disks(&lab, 2, 20);
    let [a, b] = &disks[..] else { unreachable!("two were made") };
    commit(create(&[a, b]));
    let stale = b.bytes();
    let mut editor = edit(&[a, b], 1);
    let devices = paths(&[a, b]);
    editor.remove_device(&devices[1]).unwrap();
    commit(editor);
    b.write(0, &stale);
    let mut editor = edit(&[a, b], 2);
    refused(editor.add_device(&devices[1], false), "it holds an LVM2 physical volume of the group vg");
    editor.add_device(&devices[1], true).unwrap();
    commit(editor);
    assert_eq!(found(&[a, b]).unwrap().pvs.len(), 2);
}

#[test]
fn outdated_and_damaged_areas_get_the_next_text() {
    let lab = Lab::new();
    let disks = disks(&lab, 3, 20);
    let [a, b, c] = &disks[..] else { unreachable!("three were made") };
    commit(create(&[a, b, c]));
    let old = b.bytes();
    let mut editor = edit(&[a, b, c], 1);
    editor.draft_mut().create_volume(&volume("one", 1, Shape::Linear)).unwrap();
    commit(editor);
    b.write(0, &old);
    c.write(4096, &[0xee; 512]);
    let mut editor = edit(&[a, b, c], 2);
    editor.draft_mut().create_volume(&volume("two", 1, Shape::Linear)).unwrap();
    commit(editor);
    for disk in [a, b, c] {
        let assembly = lab.open(&[disk]);
        let text = &assembly.graph().groups[0].text;
        assert_eq!((text.seqno, text.lvs.len()), (3, 2), "{:?}", disk.path);
    }
    let assembly = lab.open(&[a, b, c]);
    assert_eq!(assembly.warnings(), [] as [&str; 0]);
}

/// A change on the disks, and all cuts in it: the group is the old one, and from one event on the new one.
fn cut_everywhere(disks: &[&Disk], old: Option<u64>, editor: GroupEditor, content: Option<(&str, &[u8])>) {
    let before: Vec<Vec<u8>> = disks.iter().map(|disk| disk.bytes()).collect();
    let new = editor.draft().group().seqno + 1;
    let events = commit(editor);
    let mut was_new = false;
    let mut chance = Chance::default();
    for count in 0..=events.len() {
        for _ in 0..3 {
            let cut = Cut::at(&before, &events, count, &mut || chance.bit());
            let mut assembly = cut.open();
            let groups = &assembly.graph().groups;
            let seqno = groups.first().map(|group| {
                assert!(
                    !group.is_partial() && group.refused.is_none(),
                    "event {count}: {:?}",
                    group.warnings
                );
                group.text.seqno
            });
            assert!(seqno == old || seqno == Some(new), "event {count} of {}: {seqno:?}", events.len());
            assert!(!was_new || seqno == Some(new), "event {count}: the new text was lost again");
            if let Some((name, bytes)) = content {
                let volume = lab::volume(&mut assembly, name);
                assert!(lab::content(&assembly, &volume) == bytes, "event {count}: data was changed");
            }
        }
        let whole = Cut::of(&before, &events[..count], &mut || true);
        was_new |= whole.open().graph().groups.first().is_some_and(|group| group.text.seqno == new)
            && are_durable(&events[..count]);
    }
    assert!(was_new, "it was made at last");
}

#[test]
fn after_a_power_cut_at_any_write_of_any_change_the_old_group_or_the_new_one_is_found() {
    let lab = Lab::new();
    let disks = disks(&lab, 3, 8);
    let [a, b, c] = &disks[..] else { unreachable!("three were made") };
    let devices = paths(&[a, b, c]);
    cut_everywhere(&[a, b], None, create(&[a, b]), None);

    let mut editor = edit(&[a, b], 1);
    editor.draft_mut().create_volume(&volume("lin", 3, Shape::Linear)).unwrap();
    cut_everywhere(&[a, b], Some(1), editor, None);
    a.number(7, 2048, 3 * EXTENT);
    let data = a.bytes()[2048 * 512..][..usize::try_from(3 * EXTENT * 512).unwrap()].to_vec();
    let kept = Some(("vg/lin", &data[..]));

    let mut editor = edit(&[a, b], 2);
    editor.draft_mut().create_volume(&volume("mir", 2, RAID1)).unwrap();
    cut_everywhere(&[a, b], Some(2), editor, kept);

    let mut editor = GroupEditor::open(&devices, "vg", author(3)).unwrap();
    editor.add_device(&devices[2], false).unwrap();
    cut_everywhere(&[a, b, c], Some(3), editor, kept);

    let mut editor = edit(&[a, b, c], 4);
    editor.draft_mut().resize_volume("mir", Resize::MoreExtents(1), false).unwrap();
    cut_everywhere(&[a, b, c], Some(4), editor, kept);

    let mut editor = edit(&[a, b, c], 5);
    editor.draft_mut().remove_volume("mir").unwrap();
    editor.remove_device(&devices[1]).unwrap();
    cut_everywhere(&[a, b, c], Some(5), editor, kept);
}

#[test]
fn the_family_of_an_origin_that_goes_with_its_snapshots_is_given_back_to_be_retired() {
    let lab = Lab::new();
    let disks = disks(&lab, 1, 40);
    let disk = &[&disks[0]];
    commit(create(disk));
    let mut editor = edit(disk, 1);
    editor.draft_mut().create_volume(&volume("root", 8, Shape::Linear)).unwrap();
    editor.draft_mut().create_volume(&volume("other", 4, Shape::Linear)).unwrap();
    commit(editor);
    for (seed, name) in [(2, "one"), (3, "two")] {
        let mut editor = edit(disk, seed);
        let size = StoreSize::Of(Size::Extents(4));
        let (name, tags) = (Some(name.to_owned()), Vec::new());
        let snapshot = NewSnapshot { origin: "root".into(), name, size, chunk_sectors: 8, tags };
        editor.draft_mut().make(&Change::Snapshot(snapshot)).unwrap();
        commit(editor);
    }
    let mut assembly = lab.open_for_writing(disk);
    let mut remove = |volumes: &[&str]| {
        lab::volume(&mut assembly, "vg/root");
        let volumes = volumes.iter().map(|name| (*name).to_owned()).collect();
        let mut editor = assembly.edit_group("vg", author(4)).unwrap();
        editor.draft_mut().make(&Change::Remove { volumes }).unwrap();
        let (commit, text) = editor.plan().unwrap();
        logged(&assembly, |cx| async move { commit.write(&cx).await.unwrap() });
        let adopted = assembly.adopt("vg", text).unwrap();
        adopted.families.into_iter().map(|one| (one.family.is_some(), one.volumes)).collect::<Vec<_>>()
    };
    assert_eq!(remove(&["other"]), []);
    assert_eq!(remove(&["one"]), [(true, vec!["vg/root".to_owned(), "vg/two".to_owned()])]);
    assert_eq!(remove(&["two", "root"]), [(true, Vec::new())]);
}
