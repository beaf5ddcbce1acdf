//! `blockwork vg`: volume groups of LVM2 are made, changed and shown, on disks that nobody uses; tags also while volumes are served.

mod args;
mod attributes;
pub(crate) mod change;
mod show;
pub(crate) mod status;
pub(crate) mod target;
pub(crate) mod words;

use anyhow::Result;
use blockwork_volume::lvm::edit::{Change, GroupEditor, TagChange};

use crate::sizes::{MIB, sectors};
use args::{CreateArgs, ExtendArgs, ReduceArgs, RenameArgs, TagArgs, VgVerb};
pub(crate) use args::{Place, Tags, VgArgs};
use change::{announce, author, commit, room};
pub(crate) use show::{groups, look, served, table};

pub(crate) fn run(args: &VgArgs) -> Result<()> {
    match &args.verb {
        VgVerb::Create(args) => create(args),
        VgVerb::Extend(args) => extend(args),
        VgVerb::Reduce(args) => reduce(args),
        VgVerb::Rename(args) => rename(args),
        VgVerb::Tag(args) => tag(args),
        VgVerb::Show(args) => show::run(args),
    }
}

fn create(args: &CreateArgs) -> Result<()> {
    let extent = sectors("--physical-extent-size", &args.physical_extent_size, MIB)?;
    let disks = [&args.devices[..], &args.disk].concat();
    let mut editor = GroupEditor::create(&disks, &args.group, extent, &args.addtag, author()?)?;
    for device in &args.devices {
        editor.add_device(device, args.force)?;
    }
    commit(&mut editor)?;
    announce(&editor, &room(&editor), None, args.json)
}

fn extend(args: &ExtendArgs) -> Result<()> {
    let mut editor = target::open_alone(&args.disk, &args.devices, &args.group)?;
    let new: Vec<&String> = args.devices.iter().filter(|device| !editor.has_device(device)).collect();
    if new.is_empty() {
        anyhow::bail!("{}: all of these disks belong to it already; name one that does not", args.group);
    }
    for device in new {
        editor.add_device(device, args.force)?;
    }
    commit(&mut editor)?;
    announce(&editor, &room(&editor), None, args.json)
}

fn reduce(args: &ReduceArgs) -> Result<()> {
    // A UUID names no disk: that one is among the others.
    let is_disk = |device: &&String| blockwork_format::lvm2::Uuid::from_text(device).is_none();
    let own: Vec<String> = args.devices.iter().filter(is_disk).cloned().collect();
    let mut editor = target::open_alone(&args.disk, &own, &args.group)?;
    for device in &args.devices {
        editor.remove_device(device)?;
    }
    commit(&mut editor)?;
    announce(&editor, &room(&editor), None, args.json)
}

fn rename(args: &RenameArgs) -> Result<()> {
    let mut editor = target::open_alone(&args.disks.disk, &[], &args.group)?;
    editor.draft_mut().rename_group(&args.new)?;
    commit(&mut editor)?;
    announce(&editor, &format!("{} is {} now", args.group, args.new), None, args.disks.json)
}

fn tag(args: &TagArgs) -> Result<()> {
    target::change(&args.place, &args.group, Change::TagGroup(TagChange::from(&args.tags)))
}
