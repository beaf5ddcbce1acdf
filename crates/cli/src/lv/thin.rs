//! Thin pools and their volumes: `blockwork lv create --thin-pool`, `lv create --thin`, and `lv snapshot` of a thin volume.

use anyhow::{Result, anyhow};
use blockwork_leaf::parse_size;
use blockwork_volume::lvm::edit::{self, GroupEditor, NewThin, NewThinPool, NewThinSnapshot};

use super::args::{CreateArgs, Discards, SnapshotArgs, YesNo};
use super::{amount, json_of, size_of, split};
use crate::at_once;
use crate::scan::size;
use crate::vg::change::{announce, author, commit, sectors, write};

pub(super) fn create_pool(args: &CreateArgs) -> Result<()> {
    let (group, name) = split(&args.volume)?;
    let thin = &args.thin;
    let new = NewThinPool {
        name: name.to_owned(),
        size: amount::new_size(args.size.as_deref(), args.extents.as_deref())?,
        chunk_sectors: thin.chunksize.as_deref().map(|text| sectors("--chunksize", text)).transpose()?,
        metadata_bytes: thin
            .pool_metadata_size
            .as_deref()
            .map(|text| bytes("--pool-metadata-size", text))
            .transpose()?,
        zero: thin.zero == YesNo::Y,
        discards: match thin.discards {
            Discards::Passdown => edit::Discards::Passdown,
            Discards::Nopassdown => edit::Discards::NoPassdown,
            Discards::Ignore => edit::Discards::Ignore,
        },
        error_when_full: thin.error_when_full == YesNo::Y,
        tags: args.addtag.clone(),
    };
    let mut editor = open(&args.disks.disk, group)?;
    let made = editor.draft_mut().create_thin_pool(&new)?;
    commit(&mut editor)?;
    let said = format!(
        "{}: a thin pool of {} in chunks of {}, with a map of {}",
        args.volume,
        size_of(&editor, made.extents),
        size(made.chunk_sectors * 512),
        size_of(&editor, made.metadata_extents)
    );
    announce(&editor, &said, Some(json_of(&editor, name)), args.disks.json);
    Ok(())
}

pub(super) fn create_volume(args: &CreateArgs, pool: &str) -> Result<()> {
    let (group, name) = split(&args.volume)?;
    let pool = match pool.split_once('/') {
        None => pool,
        Some((same, pool)) if same == group => pool,
        Some((other, _)) => {
            return Err(anyhow!("--thin {pool}: a volume is in the group of its pool, not in {other}"));
        }
    };
    let new = NewThin {
        name: name.to_owned(),
        pool: pool.to_owned(),
        bytes: bytes("--virtual-size", args.thin.virtual_size.as_deref().unwrap_or_default())?,
        tags: args.addtag.clone(),
    };
    let mut editor = open(&args.disks.disk, group)?;
    let extents = editor.draft_mut().create_thin(&new)?;
    let editor = commit_and_tell(editor, &args.disks.disk)?;
    let said = format!("{}: {} in {group}/{pool}", args.volume, size_of(&editor, extents));
    announce(&editor, &said, Some(json_of(&editor, name)), args.disks.json);
    Ok(())
}

pub(super) fn snapshot(args: &SnapshotArgs, group: &str, origin: &str, name: Option<String>) -> Result<()> {
    let new = NewThinSnapshot { origin: origin.to_owned(), name, tags: args.addtag.clone() };
    let mut editor = open(&args.disks.disk, group)?;
    let name = editor.draft_mut().create_thin_snapshot(&new)?;
    let editor = commit_and_tell(editor, &args.disks.disk)?;
    let said = format!("{group}/{name}: a snapshot of {origin}, in its pool");
    announce(&editor, &said, Some(json_of(&editor, &name)), args.disks.json);
    Ok(())
}

/// Opens a group to change it. What a change before has left to be told to pools is told first: it was cut short.
pub(super) fn open(disks: &[String], group: &str) -> Result<GroupEditor> {
    let mut editor = GroupEditor::open(disks, group, author()?)?;
    if editor.draft().untold()?.is_empty() {
        return Ok(editor);
    }
    log::info!("{group}: a change that was cut short is made complete first");
    tell(&mut editor)?;
    drop(editor);
    Ok(GroupEditor::open(disks, group, author()?)?)
}

/// Writes what was planned, and tells the pools what it means to them, in the order that a power cut cannot break: the text that
/// says what they will be told, the pools, the text without it.
pub(super) fn commit_and_tell(editor: GroupEditor, disks: &[String]) -> Result<GroupEditor> {
    let mut editor = editor;
    commit(&mut editor)?;
    if editor.draft().untold()?.is_empty() {
        return Ok(editor);
    }
    let group = editor.draft().group().name.clone();
    // The group is opened again as it is now; its disks have to be free for that.
    drop(editor);
    let mut editor = GroupEditor::open(disks, &group, author()?)?;
    tell(&mut editor)?;
    Ok(editor)
}

/// Writes that a pool has grown, and lets it count what it has got.
pub(super) fn commit_and_grow(editor: GroupEditor, pool: &str, disks: &[String]) -> Result<GroupEditor> {
    let mut editor = editor;
    commit(&mut editor)?;
    let group = editor.draft().group().name.clone();
    drop(editor);
    let mut editor = GroupEditor::open(disks, &group, author()?)?;
    if let Some(commit) = editor.grow_pool_to_devices(pool)? {
        at_once::run(editor.assembly(), |cx| async move { commit.run(&cx).await })??;
    }
    Ok(editor)
}

fn tell(editor: &mut GroupEditor) -> Result<()> {
    for commit in editor.tell_pools()? {
        at_once::run(editor.assembly(), |cx| async move { commit.run(&cx).await })??;
    }
    write(editor)
}

fn bytes(option: &str, text: &str) -> Result<u64> {
    parse_size(text).map_err(|why| anyhow!("{option}: {why}"))
}
