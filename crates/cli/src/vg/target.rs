//! Who changes a group: the running server that serves volumes of it, or this process, which opens its disks for that.
//!
//! Both are asked by the same words ([`Change`]), which are made in the text by the same code.

use std::path::Path;

use anyhow::{Result, anyhow};
use blockwork_daemon::{ClientError, GroupAnswer, GroupRequest, ask_group, find_group};
use blockwork_format::escape;
use blockwork_leaf::LeafError;
use blockwork_volume::VolumeError;
use blockwork_volume::lvm::edit::{Change, CommitError, EditError, GroupEditor, Made};
use serde_json::{Value, json};

use super::args::Place;
use super::change::{announce, author, commit, write};
use super::status::{origin, type_name};
use super::words::said;
use crate::usage::bail_usage;
use crate::{at_once, out};

/// Has a change made, and says what was done.
pub(crate) fn change(place: &Place, group: &str, change: Change) -> Result<()> {
    if place.disk.is_empty() {
        let socket = find_group(group).map_err(both_ways)?;
        return ask(&socket, place, group, change);
    }
    if place.serve {
        bail_usage!("--serve: nobody serves disks that are named by --disk");
    }
    let mut editor = open(&place.disk, group)?;
    let made = editor.draft_mut().make(&change)?;
    if let Some(note) = made.note() {
        log::warn!("{note}");
    }
    let sentence = said(editor.draft(), &change, &made);
    let editor = match grown_pool(&editor, &change, &made)? {
        Some(pool) => commit_and_grow(editor, &pool, &place.disk)?,
        None => commit_and_tell(editor, &place.disk)?,
    };
    announce(&editor, &sentence, change.volume(&made).map(|name| json_of(&editor, name)), place.json)
}

fn ask(socket: &Path, place: &Place, group: &str, change: Change) -> Result<()> {
    let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let serve = place.serve;
    let request = GroupRequest { group: group.to_owned(), change, serve, command: Some(command) };
    let answer = ask_group(socket, &request)?;
    answer.notes.iter().for_each(|note| log::warn!("{note}"));
    if place.json {
        out::print_json_done(&json_of_answer(&answer))
    } else {
        out::print_done(&format!("{}\n", answer.said))
    }
}

/// As [`announce`] has it.
fn json_of_answer(answer: &GroupAnswer) -> Value {
    let group = &answer.group;
    let mut value = json!({
        "group": group.name,
        "uuid": group.uuid,
        "seqno": group.seqno,
        "extent_bytes": group.extent_bytes,
        "disks": group.disks,
        "volumes": group.volumes.iter().filter(|volume| volume.visible).count(),
        "bytes": group.bytes,
        "free_bytes": group.free_bytes,
        "tags": group.tags,
    });
    if let Some(volume) = &answer.volume {
        value["volume"] = json!(volume);
    }
    value
}

/// A volume, for programs.
pub(crate) fn json_of(editor: &GroupEditor, name: &str) -> Value {
    let vg = editor.draft().group();
    vg.lv(name).map_or(Value::Null, |lv| {
        let volume = &vg.lvs[lv.0];
        json!({
            "name": volume.name,
            "uuid": volume.id.to_string(),
            "bytes": vg.lv_sectors(lv) * 512,
            "type": type_name(vg, lv),
            "origin": origin(vg, lv),
            "tags": volume.tags,
        })
    })
}

/// The pool whose devices a change makes larger.
fn grown_pool(editor: &GroupEditor, change: &Change, made: &Made) -> Result<Option<String>> {
    match (change, made) {
        (Change::Resize { volume, .. } | Change::ResizePoolMetadata { volume, .. }, Made::Resized(_))
            if editor.draft().is_thin_pool(volume)? =>
        {
            Ok(Some(volume.clone()))
        }
        _ => Ok(None),
    }
}

/// Opens a group, on disks that were named for that and on some that something is to be done to, for what is done while nobody serves it.
pub(crate) fn open_alone(named: &[String], own: &[String], group: &str) -> Result<GroupEditor> {
    GroupEditor::open(&[named, own].concat(), group, author()?).map_err(|error| {
        let (name, is_absent) = (escape(group), matches!(error, EditError::Absent { .. }));
        // Without its disks, the group is not found; with them, they are locked.
        if (is_absent || is_locked(&error)) && find_group(group).is_ok() {
            return anyhow!(
                "the volume group {name} is served, and its disks and its name change only while it is not: stop that server, then name all \
                 of the group's disks by --disk DISK..."
            );
        }
        if is_absent && named.is_empty() {
            return anyhow!("{error}; name the disks that {name} has: --disk DISK...");
        }
        error.into()
    })
}

fn is_locked(error: &EditError) -> bool {
    matches!(error, EditError::Volume(VolumeError::Leaf(LeafError::InUse { .. })))
}

/// Opens a group to change it. What a change before has left to be told to pools is told first: it was cut short. A pool that cannot be told,
/// as it wants to be repaired, holds up nothing but what it would have to be told of as well ([`GroupEditor::check_pools`]).
pub(crate) fn open(disks: &[String], group: &str) -> Result<GroupEditor> {
    let mut editor = GroupEditor::open(disks, group, author()?).map_err(|error| in_use(error, group))?;
    for untold in editor.draft().untold()? {
        log::info!("{group}: a change that was cut short is made complete first");
        if let Err(error) = tell(&mut editor, &[untold.pool]) {
            log::warn!("{}", unfinished(group, &error));
        }
        drop(editor);
        editor = reopen(disks, group)?;
    }
    Ok(editor)
}

/// Writes what was planned, and tells the pools what it means to them, in the order that a power cut cannot break: the text that
/// says what they will be told, the pools, the text without it.
pub(crate) fn commit_and_tell(editor: GroupEditor, disks: &[String]) -> Result<GroupEditor> {
    let mut editor = editor;
    let pools = editor.check_pools()?;
    commit(&mut editor)?;
    if pools.is_empty() {
        return Ok(editor);
    }
    let group = editor.draft().group().name.clone();
    // The group is opened again as it is now; its disks have to be free for that.
    drop(editor);
    let told = reopen(disks, &group).and_then(|mut editor| tell(&mut editor, &pools).map(|()| editor));
    told.map_err(|error| made_all_the_same(&group, &error))
}

/// Writes that a pool has grown, and lets it count what it has got.
fn commit_and_grow(editor: GroupEditor, pool: &str, disks: &[String]) -> Result<GroupEditor> {
    let mut editor = editor;
    commit(&mut editor)?;
    let group = editor.draft().group().name.clone();
    drop(editor);
    let grown = reopen(disks, &group).and_then(|mut editor| {
        if let Some(commit) = editor.grow_pool_to_devices(pool)? {
            at_once::run(editor.assembly(), |cx| async move { commit.run(&cx).await })??;
        }
        Ok(editor)
    });
    grown.map_err(|error| made_all_the_same(&group, &error))
}

fn reopen(disks: &[String], group: &str) -> Result<GroupEditor> {
    Ok(GroupEditor::open(disks, group, author()?)?)
}

fn tell(editor: &mut GroupEditor, pools: &[String]) -> Result<()> {
    for commit in editor.tell_pools(pools)? {
        at_once::run(editor.assembly(), |cx| async move { commit.run(&cx).await })??;
    }
    // The change itself is on the disks: that nothing has changed would be said of this text alone.
    write(editor).map_err(|error| match error.downcast::<CommitError>() {
        Ok(error) => anyhow!(error.cause()),
        Err(error) => error,
    })
}

/// What came behind the text of a change has failed. Who was told no more than that would make the change once more.
fn made_all_the_same(group: &str, error: &anyhow::Error) -> anyhow::Error {
    let group = escape(group);
    anyhow!(
        "{error:#}; the text of {group} has the change all the same: whoever changes, serves or activates the group next makes it complete"
    )
}

/// What was cut short before stays so.
pub(crate) fn unfinished(group: &str, error: &dyn std::fmt::Display) -> String {
    format!("{}: a change that was cut short before cannot be made complete: {error:#}", escape(group))
}

/// Neither found: there are two ways to name a group.
fn both_ways(error: ClientError) -> anyhow::Error {
    match error {
        ClientError::Nowhere { .. } => {
            anyhow!(
                "{error}; serve it, or have this command open its disks: add --disk DISK... (all of the group's)"
            )
        }
        ClientError::Away { .. } => {
            anyhow!("{error}; have this command open them: add --disk DISK... (all of the group's)")
        }
        error => error.into(),
    }
}

/// A group that is served is best changed through its server.
fn in_use(error: EditError, group: &str) -> anyhow::Error {
    if is_locked(&error) && find_group(group).is_ok() {
        let group = escape(group);
        return anyhow!(
            "{error}; a running server has {group}: without --disk, this command asks that server"
        );
    }
    error.into()
}
