//! `blockwork md examine`: what members say of their arrays, in mdadm's words and order, so that who knows its output finds
//! everything in its place.
//!
//! Two things differ: times are UTC and say so, and names that could harm a terminal are escaped.

mod bitmap;
mod json;
mod v0;
mod v1;
mod words;

use anyhow::{Result, bail};
use blockwork_format::escape;
use blockwork_format::md::Superblock;
use blockwork_volume::md::Examined;
use blockwork_volume::{Assembly, DeviceId, DeviceKind, Plan};

use super::args::ExamineArgs;
use crate::out;
pub(super) use json::role;

pub(crate) fn run(args: &ExamineArgs) -> Result<()> {
    let plan = Plan { disks: args.disks.clone(), read_only: true, unlocked: true, ..Plan::default() };
    let mut assembly = Assembly::open(plan)?;
    let (mut members, mut others) = (Vec::new(), Vec::new());
    for disk in disks(&assembly) {
        let found = members_on(&assembly, disk);
        let title = title(&assembly, disk);
        if found.is_empty() {
            others.push(title.clone());
        }
        for id in std::iter::once(disk).chain(found.iter().copied().filter(|id| *id != disk)) {
            assembly.graph().device(id).warnings.iter().for_each(|warning| log::warn!("{title}: {warning}"));
        }
        for id in found {
            members.push((self::title(&assembly, id), assembly.examine(id)));
        }
    }
    let members = members.into_iter().filter_map(|(title, examined)| Some((title, examined?)));
    let members: Vec<(String, Examined)> = members.collect();
    if args.json {
        out::print_json(&json::list(&members))?;
    } else {
        let texts = members.iter().map(|(title, examined)| text(args, title, examined));
        out::print(&texts.collect::<Result<String>>()?)?;
    }
    match &others[..] {
        [] => Ok(()),
        others => bail!(
            "no md superblock detected on {}; `blockwork scan` shows what is there",
            others.iter().map(|name| escape(name)).collect::<Vec<_>>().join(", ")
        ),
    }
}

fn text(args: &ExamineArgs, title: &str, examined: &Examined) -> Result<String> {
    if args.bitmap {
        return bitmap::text(title, examined);
    }
    if args.bad_blocks {
        return bitmap::bad_blocks(title, examined);
    }
    let superblock = match &examined.superblock {
        Superblock::V0(superblock) => v0::text(superblock),
        Superblock::V1(superblock) => v1::text(superblock, examined),
    };
    Ok(format!("{}:\n{superblock}", escape(title)))
}

/// The disks, in the order in which they were given.
fn disks(assembly: &Assembly) -> Vec<DeviceId> {
    let is_disk = |kind: &DeviceKind| matches!(kind, DeviceKind::Disk { .. });
    assembly.graph().iter().filter(|(_, device)| is_disk(&device.kind)).map(|(id, _)| id).collect()
}

/// The disk where it is a member, or its partitions that are.
fn members_on(assembly: &Assembly, disk: DeviceId) -> Vec<DeviceId> {
    let graph = assembly.graph();
    let is_member =
        |id: &DeviceId| matches!(graph.device(*id).content, blockwork_volume::Content::MdMember(_));
    let is_part = |id: &DeviceId| {
        let device = graph.device(*id);
        matches!(device.kind, DeviceKind::Partition(_)) && device.below.contains(&disk)
    };
    if is_member(&disk) {
        return vec![disk];
    }
    graph.iter().map(|(id, _)| id).filter(|id| is_part(id) && is_member(id)).collect()
}

/// A disk by its path, a partition by its volume's name.
fn title(assembly: &Assembly, id: DeviceId) -> String {
    let device = assembly.graph().device(id);
    match &device.kind {
        DeviceKind::Disk { source, .. } => source.0.name().to_owned(),
        _ => device.name.clone(),
    }
}
