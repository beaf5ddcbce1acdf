//! The power goes between any two writes of what a change of a thin pool takes: the group's text with messages, the pool's metadata,
//! the text without messages. Whoever uses the group next finishes it, and then group and pool agree.

mod cuts;
mod lab;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use blockwork_engine::Sectors;
use blockwork_format::lvm2::Uuid;
use blockwork_format::lvm2::vg::{Area, SegmentType};
use blockwork_format::{Piece, Sparse};
use blockwork_layer::thin::check::check;
use blockwork_volume::lvm::edit::{
    Author, Discards, GroupEditor, NewThin, NewThinPool, NewThinSnapshot, Size,
};
use blockwork_volume::lvm::served::{message, tell, untell};
use blockwork_volume::{Assembly, Plan};
use cuts::{Chance, Cut, Event, are_durable, begin_with_flushes, logged};
use lab::{Disk, Lab};

/// One test at a time: a program that one starts has, until it runs, the locks of the other's disks too.
static TURN: Mutex<()> = Mutex::new(());

/// Sectors of an extent.
const EXTENT: u64 = 256;
/// Where the first extent of a device begins.
const PE_START: u64 = 2048;

fn author(seed: u64) -> Author {
    let mut next = seed * 1000;
    let ids = Box::new(move || {
        next += 1;
        Uuid::from_compact(format!("{next:032}").as_bytes()).unwrap()
    });
    Author { host: "host".into(), time: 1_700_000_000, command: "test".into(), ids }
}

fn open(path: &str, seed: u64) -> GroupEditor {
    GroupEditor::open(&[path.to_owned()], "vg", author(seed)).unwrap()
}

/// Writes what is planned.
fn commit(editor: &mut GroupEditor) -> Vec<Event> {
    let commit = editor.plan().unwrap();
    logged(editor.assembly(), |cx| async move { commit.run(&cx).await.unwrap() })
}

/// Tells pools what they have yet to be told, as whoever opens the group next does; nothing where they were told all.
fn tell_all(path: &str) -> Vec<Event> {
    let mut events = Vec::new();
    let mut editor = open(path, 0);
    if editor.draft().untold().unwrap().is_empty() {
        return events;
    }
    for commit in editor.tell_pools(&["pool".to_owned()]).unwrap() {
        events.extend(logged(editor.assembly(), |cx| async move { commit.run(&cx).await.unwrap() }));
    }
    events.extend(commit(&mut editor));
    events
}

/// Transaction and number of devices.
type State = (u64, u64);

/// What is on a disk of group and pool.
struct Found {
    /// As the group's text has it.
    text: State,
    /// As the pool has it; none: it was never used.
    pool: Option<State>,
    /// The pool's metadata.
    metadata: Vec<u8>,
}

impl Found {
    /// The pool's metadata is whole, or was never written.
    fn on(path: &str) -> Result<Found, String> {
        let editor = open(path, 0);
        let group = editor.draft().group();
        let lv = |name: &str| group.lvs.iter().find(|lv| lv.name == *name).unwrap();
        let SegmentType::ThinPool { transaction_id, .. } = lv("pool").segments[0].kind else {
            panic!("it is a pool")
        };
        let volumes = group.lvs.iter().filter(|lv| matches!(lv.segments[0].kind, SegmentType::Thin { .. }));
        let map = lv("pool_tmeta");
        let SegmentType::Linear(Area::Pv { extent, .. }) = map.segments[0].kind else {
            panic!("it lies in one piece: {map:?}")
        };
        let mut metadata = vec![0; Sectors(map.extents() * EXTENT).byte_len()];
        let start = Sectors(PE_START + extent * EXTENT).byte_len() as u64;
        File::open(path).unwrap().read_exact_at(&mut metadata, start).unwrap();
        let text = (transaction_id, volumes.count() as u64);
        if metadata[..4096].iter().all(|byte| *byte == 0) {
            return Ok(Found { text, pool: None, metadata });
        }
        let pieces = vec![Piece { offset: 0, bytes: metadata.clone() }];
        let report = check(&Sparse::new(metadata.len() as u64, pieces));
        if !report.is_good() {
            return Err(format!("the pool's metadata: {:?}", report.problems));
        }
        let pool = report.superblock.map(|superblock| (superblock.transaction_id, report.devices));
        Ok(Found { text, pool, metadata })
    }

    /// What group and pool have come to, where they agree. The first message makes a pool's metadata.
    fn agreed(&self) -> Result<State, String> {
        match self.pool.unwrap_or((0, 0)) {
            pool if pool == self.text => Ok(pool),
            pool => Err(format!("the text has (transaction, devices) {:?}, the pool {pool:?}", self.text)),
        }
    }

    /// The tools' own judgement.
    fn judge(&self, file: &Path) -> Result<(), String> {
        if self.pool.is_none() {
            return Ok(());
        }
        std::fs::write(file, &self.metadata).unwrap();
        let judged = Command::new("thin_check").arg(file).output();
        let judged = judged.unwrap_or_else(|error| {
            panic!("thin_check cannot be run ({error}): this test needs the Debian package thin-provisioning-tools")
        });
        match judged.status.success() {
            true => Ok(()),
            false => Err(format!("thin_check: {}", String::from_utf8_lossy(&judged.stderr))),
        }
    }
}

/// A change of a pool, as it was written.
struct Change {
    before: Vec<Vec<u8>>,
    old: State,
    new: State,
    /// The text with messages, the pool's metadata, the text without messages.
    parts: [Vec<Event>; 3],
}

impl Change {
    fn make(disk: &Disk, seed: u64, change: impl FnOnce(&mut GroupEditor)) -> Change {
        let path = disk.path.to_str().unwrap();
        let agreed = || Found::on(path).unwrap().agreed().unwrap();
        let (before, old) = (vec![disk.bytes()], agreed());
        let mut editor = open(path, seed);
        change(&mut editor);
        let with_messages = commit(&mut editor);
        drop(editor);
        let mut editor = open(path, 0);
        assert_eq!(editor.draft().untold().unwrap().len(), 1, "the pool is yet to be told");
        let [pool] = <[_; 1]>::try_from(editor.tell_pools(&["pool".to_owned()]).unwrap()).unwrap();
        let pool = logged(editor.assembly(), |cx| async move { pool.run(&cx).await.unwrap() });
        let without_messages = commit(&mut editor);
        drop(editor);
        assert!(!pool.is_empty());
        assert!(begin_with_flushes(&pool), "what was read may not be durable");
        let parts = [with_messages, pool, without_messages];
        assert!(
            parts.iter().all(|part| are_durable(part)),
            "what is not durable may come after what follows"
        );
        Change { before, old, new: agreed(), parts }
    }

    /// Cuts the power everywhere in the change, its parts written in this order: made complete by whoever comes next, it is there as a
    /// whole, or was never made.
    fn cut_everywhere(&self, order: [usize; 3]) -> Result<(), String> {
        let events: Vec<Event> = order.iter().flat_map(|part| self.parts[*part].clone()).collect();
        let texts = self.parts[order[0]].len();
        let mut chance = Chance::default();
        let (mut was_old, mut was_new) = (false, false);
        for count in 0..=events.len() {
            for run in 0..3 {
                let cut = Cut::at(&self.before, &events, count, &mut || chance.bit());
                let found = recover(&cut, run == 0);
                let found = found.map_err(|why| format!("event {count} of {}: {why}", events.len()))?;
                assert!(found == self.old || found == self.new, "event {count}: {found:?}");
                assert!(count < texts || found == self.new, "event {count}: it is not made complete");
                was_old |= found == self.old;
                was_new |= found == self.new && count < events.len();
            }
        }
        assert!(was_old && was_new, "some cuts come before the change, and some within it");
        Ok(())
    }
}

/// What group and pool are after a cut, and when they were used again.
fn recover(cut: &Cut, is_judged: bool) -> Result<State, String> {
    let path = cut.paths[0].to_str().unwrap();
    let assembly = cut.open();
    let [group] = &assembly.graph().groups[..] else { return Err("the group is gone".into()) };
    if group.is_partial() || group.refused.is_some() {
        return Err(format!("the group cannot be used: {:?}", group.warnings));
    }
    drop(assembly);
    let found = Found::on(path)?;
    if let Some((transaction, _)) = found.pool
        && transaction > found.text.0
    {
        return Err(format!("the pool knows transaction {transaction}, the text {}", found.text.0));
    }
    tell_all(path);
    assert!(open(path, 0).draft().untold().unwrap().is_empty());
    let found = Found::on(path)?;
    if is_judged {
        found.judge(&cut.paths[0].with_extension("metadata"))?;
    }
    found.agreed()
}

/// A group with a pool that nobody has used.
fn disk(lab: &Lab) -> Disk {
    let disk = lab.disk("disk", PE_START + 80 * EXTENT);
    let path = disk.path.to_str().unwrap();
    let mut editor = GroupEditor::create(&[path.to_owned()], "vg", EXTENT, &[], author(1)).unwrap();
    editor.add_device(path, false).unwrap();
    commit(&mut editor);
    drop(editor);
    let mut editor = open(path, 2);
    let pool = NewThinPool {
        name: "pool".into(),
        size: Size::Extents(40),
        chunk_sectors: None,
        metadata_bytes: Some(2 << 20),
        zero: true,
        discards: Discards::Passdown,
        error_when_full: false,
        tags: Vec::new(),
    };
    editor.draft_mut().create_thin_pool(&pool).unwrap();
    commit(&mut editor);
    disk
}

fn create(editor: &mut GroupEditor) {
    let new = NewThin { name: "one".into(), pool: "pool".into(), bytes: 1 << 30, tags: Vec::new() };
    editor.draft_mut().create_thin(&new).unwrap();
}

#[test]
fn a_change_of_a_pool_that_is_cut_anywhere_is_made_complete_or_was_never_made() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let disk = disk(&lab);
    let made = Change::make(&disk, 3, create);
    let taken = Change::make(&disk, 4, |editor| {
        let new = NewThinSnapshot { origin: "one".into(), name: Some("snap".into()), tags: Vec::new() };
        editor.draft_mut().create_thin_snapshot(&new).unwrap();
    });
    let removed = Change::make(&disk, 5, |editor| _ = editor.draft_mut().remove_volume("one").unwrap());
    for change in [&made, &taken, &removed] {
        change.cut_everywhere([0, 1, 2]).unwrap();
    }
    assert_eq!([made.old, made.new, taken.new, removed.new], [(0, 0), (1, 1), (2, 2), (3, 1)]);
}

#[test]
fn another_order_is_found_out() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let change = Change::make(&disk(&lab), 3, create);
    let early = change.cut_everywhere([1, 0, 2]).unwrap_err();
    assert!(early.contains("the pool knows transaction 1, the text 0"), "{early}");
    let late = change.cut_everywhere([0, 2, 1]).unwrap_err();
    assert!(late.contains("the text has (transaction, devices) (1, 1), the pool (0, 0)"), "{late}");
}

#[test]
fn what_an_open_pool_was_told_by_half_is_taken_back_and_what_it_has_counted_is_not() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let disk = disk(&lab);
    let made = Change::make(&disk, 3, create);
    let plan = Plan { disks: vec![disk.path.to_str().unwrap().to_owned()], ..Plan::default() };
    let mut assembly = Assembly::open(plan).unwrap();
    assembly.choose(&["vg/one".to_owned()]).unwrap();
    let pool = assembly.open_pool_named("vg/pool").unwrap();
    let mut editor = assembly.edit_group("vg", author(9)).unwrap();
    let new = NewThinSnapshot { origin: "one".into(), name: Some("snap".into()), tags: Vec::new() };
    editor.draft_mut().create_thin_snapshot(&new).unwrap();
    let [untold] = <[_; 1]>::try_from(editor.draft().untold().unwrap()).unwrap();
    logged(&assembly, move |cx| async move {
        let devices = async || pool.devices_of(&cx).await.unwrap().into_iter().map(|(id, _)| id).collect();
        let nothing: Vec<u64> = devices().await;
        assert_eq!(nothing, [1]);
        // As far as the device, and not to the number of the change.
        message(&pool, untold.changes[0], &cx).await.unwrap();
        let half: Vec<u64> = devices().await;
        assert_eq!(half, [1, 2]);
        for _ in 0..2 {
            assert!(untell(&pool, &untold, &cx).await.unwrap());
            let back: Vec<u64> = devices().await;
            assert_eq!((back, pool.status().transaction_id), (vec![1], made.new.0));
        }
        tell(&pool, &untold, &cx).await.unwrap();
        assert!(!untell(&pool, &untold, &cx).await.unwrap());
        let all: Vec<u64> = devices().await;
        assert_eq!((all, pool.status().transaction_id), (vec![1, 2], made.new.0 + 1));
    });
}
