//! New arrays on disks: whether there can be one, what is in its way, and what is written, in which order.
//!
//! ```text
//!   zeros where something old could be found, one after the other ─▶ bitmaps, lists of bad blocks ─▶ superblocks
//! ```
//!
//! Invariants: (1) nothing is written before everything has been checked, and all disks are locked from then on; (2) each of
//! the steps is durable on all disks before the next one begins, so that a power cut leaves disks that hold what they held, or nothing
//! ([`Remains`] has the order), or members with everything that their superblocks tell of; (3) of an old array, table or file system, nothing is left
//! outside of the new array's data by which it could be found. What lies in the data stays: with the same shape and without
//! a resync, an array is made anew around what it held.

use std::sync::Arc;

use blockwork_engine::{Layer, TaskContext};
use blockwork_format::md::create::{NewArray, NewArrayError, NewDevice, NewMember};
use blockwork_format::md::{Region, Remains, Uuid, suspects};
use blockwork_format::{Piece, SECTOR_BYTES, Source, escape};

use crate::assembly::Assembly;
use crate::error::VolumeError;
use crate::graph::{DeviceId, DeviceKind};
use crate::held::held;
use crate::newcomer::{identity, partition_of};
use crate::plan::Plan;
use crate::steps::{Step, StepError, Target, Write, carry_out, settle};

/// Stands for a disk that is to come.
pub const MISSING: &str = "missing";

/// What is to be made.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    /// The array.
    pub array: NewArray,
    /// Disks as [`Plan`] takes them, `PATH/NUMBER` for a partition, or [`MISSING`]: first members by their places, then spares.
    pub disks: Vec<String>,
    /// A UUID for each of them.
    pub uuids: Vec<Uuid>,
    /// What the disks hold may be lost.
    pub force: bool,
}

/// An array that can be made: its disks are open and locked.
pub struct Creation {
    assembly: Assembly,
    members: Vec<Created>,
    steps: Vec<Step>,
}

/// A member to be.
#[derive(Debug)]
pub struct Created {
    /// Its disk or partition.
    pub name: String,
    /// What it gets.
    pub member: NewMember,
    /// What it held, and loses.
    pub held: Option<String>,
    layer: Arc<dyn Layer>,
}

/// What is left to do. It can go to another thread.
pub struct Writing {
    steps: Vec<Step>,
    targets: Vec<Target>,
}

impl Writing {
    pub(super) fn new(steps: Vec<Step>, targets: Vec<Target>) -> Writing {
        Writing { steps, targets }
    }

    /// Does it.
    ///
    /// # Errors
    ///
    /// A write that failed: a new array is none then.
    pub async fn carry_out(self, cx: &TaskContext) -> Result<(), StepError> {
        settle(&self.steps, &self.targets, cx).await?;
        carry_out(self.steps, &self.targets, cx).await
    }
}

impl Creation {
    /// Opens the disks, and checks everything.
    ///
    /// # Errors
    ///
    /// A disk that cannot be had, or there can be no such array: by disk, with what to do.
    pub fn prepare(request: &CreateRequest) -> Result<Creation, VolumeError> {
        different(&request.disks)?;
        let there = |spec: &&String| !is_missing(spec);
        let open: Vec<String> =
            request.disks.iter().filter(there).map(|spec| disk_of(spec).to_owned()).collect();
        let mut assembly = Assembly::open(Plan { disks: open, ..Plan::default() })?;
        let mut found = Vec::with_capacity(request.disks.len());
        for spec in &request.disks {
            found.push(if is_missing(spec) { None } else { Some(device(&assembly, spec)?) });
        }
        check_blocks(&assembly, &found)?;
        let devices: Vec<Option<NewDevice>> = found
            .iter()
            .zip(&request.uuids)
            .map(|(id, uuid)| {
                id.map(|id| NewDevice { sectors: assembly.graph.device(id).sectors.0, uuid: *uuid })
            })
            .collect();
        let members = request.array.lay_out(&devices).map_err(|error| refusal(request, error))?;
        let mut creation = Creation { assembly: Assembly::default(), members: Vec::new(), steps: Vec::new() };
        let mut wipes = Vec::new();
        for member in members {
            let Some(id) = found[member.slot] else { continue };
            let created = take(&mut assembly, id, &request.disks[member.slot], member, request.force)?;
            let block_sectors = u64::from(created.layer.limits().logical_block_size) / SECTOR_BYTES;
            wipes.push(
                assembly.read(&*created.layer, |source| old_places(source, block_sectors, &created.member)),
            );
            creation.members.push(created);
        }
        creation.steps = steps(&creation.members, wipes);
        creation.assembly = assembly;
        Ok(creation)
    }

    /// Who has the disks open.
    pub fn assembly(&self) -> &Assembly {
        &self.assembly
    }

    /// The members, by their places in the list of disks.
    pub fn members(&self) -> &[Created] {
        &self.members
    }

    /// What is left to do.
    pub fn writing(&self) -> Writing {
        let target = |it: &Created| Target { name: it.name.clone(), layer: it.layer.clone() };
        Writing { steps: self.steps.clone(), targets: self.members.iter().map(target).collect() }
    }
}

fn is_missing(spec: &str) -> bool {
    spec.eq_ignore_ascii_case(MISSING)
}

/// The disk that has to be opened for a device: that of a partition, `PATH/NUMBER`.
pub fn disk_of(spec: &str) -> &str {
    partition_of(spec).filter(|_| identity(spec).is_none()).map_or(spec, |(disk, _)| disk)
}

/// No device is given twice, under whatever names.
pub(super) fn different(disks: &[String]) -> Result<(), VolumeError> {
    let named = |spec: &String| {
        let number = partition_of(spec).filter(|_| identity(spec).is_none()).map(|(_, number)| number);
        identity(disk_of(spec)).map(|disk| (disk, number))
    };
    let known: Vec<_> = disks.iter().map(named).collect();
    for (nth, spec) in disks.iter().enumerate() {
        let is_same = |(at, other): &(usize, &String)| {
            *at < nth
                && !is_missing(spec)
                && (*other == spec || known[nth].is_some() && known[*at] == known[nth])
        };
        if let Some((_, other)) = disks.iter().enumerate().find(is_same) {
            let what = format!(
                "it is given twice (as {} before): each member needs a disk of its own",
                escape(other)
            );
            return Err(refused(spec, what));
        }
    }
    Ok(())
}

/// The device that was given so; it can be written to.
pub(super) fn device(assembly: &Assembly, spec: &str) -> Result<DeviceId, VolumeError> {
    let graph = &assembly.graph;
    let disk = disk_of(spec);
    let is_disk = |kind: &DeviceKind| matches!(kind, DeviceKind::Disk { spec, .. } if spec == disk);
    let disk_id = graph.iter().find(|(_, it)| is_disk(&it.kind)).map(|(id, _)| id);
    let disk_id = disk_id.ok_or_else(|| refused(spec, "it was not opened".to_owned()))?;
    if let Some(why) = &graph.device(disk_id).read_only {
        return Err(refused(spec, format!("it cannot be written to ({why}), as a member must be")));
    }
    if disk == spec {
        return Ok(disk_id);
    }
    let number = partition_of(spec).map(|(_, number)| number);
    let is_it = |kind: &DeviceKind| matches!(kind, DeviceKind::Partition(it) if Some(it.number) == number);
    let mut parts = graph.iter().filter(|(_, it)| *it.below == [disk_id] && is_it(&it.kind));
    let part = parts.next().map(|(id, _)| id);
    part.ok_or_else(|| {
        refused(spec, "the disk has no such partition; `blockwork scan` shows those it has".to_owned())
    })
}

/// All have blocks of one size.
fn check_blocks(assembly: &Assembly, found: &[Option<DeviceId>]) -> Result<(), VolumeError> {
    let mut first: Option<(DeviceId, u32)> = None;
    for id in found.iter().flatten() {
        let block = |id: DeviceId| assembly.graph.device(id).layer().map(|it| it.limits().logical_block_size);
        let Some(own) = block(*id) else { continue };
        let (other, block) = *first.get_or_insert((*id, own));
        if own != block {
            let other = escape(assembly.graph.device(other).title());
            let what = format!(
                "its logical blocks have {own} bytes, and those of {other} {block}: the array would fail requests of \
                 {} bytes there; use disks of one kind",
                own.min(block)
            );
            return Err(refused(assembly.graph.device(*id).title(), what));
        }
    }
    Ok(())
}

/// One device for its purpose, if what it holds may be lost.
fn take(
    assembly: &mut Assembly,
    id: DeviceId,
    spec: &str,
    member: NewMember,
    force: bool,
) -> Result<Created, VolumeError> {
    let layer = assembly.layer(id).map_err(|what| refused(spec, what))?;
    let content = std::mem::take(&mut assembly.graph.devices[id.0].content);
    let block_bytes = assembly.graph.block_bytes(id);
    let held = assembly.read(&*layer, |source| held(&content, source, block_bytes));
    match held {
        Some(held) if !force => Err(refused(
            spec,
            format!("it holds {held}, which would be lost; give another disk, or --force if nobody needs it"),
        )),
        held => Ok(Created { name: spec.to_owned(), member, held, layer }),
    }
}

/// Where on a device something old could be found: zeros for these, in this order.
fn old_places(source: &dyn Source, block_sectors: u64, member: &NewMember) -> Vec<Piece> {
    let sectors = source.size() / SECTOR_BYTES;
    let bytes = |region: Region| {
        usize::try_from(region.sectors * SECTOR_BYTES).expect("a header, or at most 1 MiB at an end")
    };
    let mut remains = Remains::new(sectors, block_sectors);
    for suspect in suspects(sectors) {
        let mut read = vec![0; bytes(suspect.region)];
        let is_read = source.read_at(suspect.region.start * SECTOR_BYTES, &mut read).is_ok();
        remains.look(suspect, is_read.then_some(&*read));
    }
    let zeros = |region: Region| Piece { offset: region.start * SECTOR_BYTES, bytes: vec![0; bytes(region)] };
    remains.wipes(&member.superblock).into_iter().map(zeros).collect()
}

fn steps(members: &[Created], wipes: Vec<Vec<Piece>>) -> Vec<Step> {
    let piece = |(sector, bytes): (u64, Vec<u8>)| Piece { offset: sector * SECTOR_BYTES, bytes };
    let step = |what, pieces: Vec<Vec<Piece>>| {
        let of = |(device, pieces): (usize, Vec<Piece>)| {
            pieces.into_iter().map(move |piece| Write { device, piece })
        };
        Step { what, writes: pieces.into_iter().enumerate().flat_map(of).collect() }
    };
    let before = members.iter().map(|it| it.member.before_superblock().into_iter().map(piece).collect());
    let superblocks = members.iter().map(|it| {
        let superblock = &it.member.superblock;
        vec![piece((superblock.super_offset, superblock.encode_blocks(it.layer.limits().logical_block_size)))]
    });
    let mut steps: Vec<Step> =
        in_turn(wipes).into_iter().map(|nth| step("zeros over what was there before", nth)).collect();
    steps.push(step("the bitmap or the list of bad blocks", before.collect()));
    steps.push(step("the superblock", superblocks.collect()));
    steps
}

/// Of all members the first pieces, of all the second ones, and so on: none of a member before the one that it has to go behind.
fn in_turn(members: Vec<Vec<Piece>>) -> Vec<Vec<Vec<Piece>>> {
    let most = members.iter().map(Vec::len).max().unwrap_or(0);
    let mut members: Vec<_> = members.into_iter().map(Vec::into_iter).collect();
    (0..most)
        .map(|_| members.iter_mut().map(|member| member.next().into_iter().collect()).collect())
        .collect()
}

fn refusal(request: &CreateRequest, error: NewArrayError) -> VolumeError {
    if error.is_of_the_array() {
        return VolumeError::Impossible { name: "the array", what: error.to_string() };
    }
    let name = error.slot().and_then(|slot| request.disks.get(slot)).map(String::as_str);
    let remedy = match &error {
        NewArrayError::TooSmall { .. } => "; give a larger disk, or a smaller --chunk",
        NewArrayError::Size { .. } => "; give a larger disk, or a smaller --size",
        _ => "",
    };
    refused(name.unwrap_or("the array"), format!("{error}{remedy}"))
}

fn refused(name: &str, what: String) -> VolumeError {
    VolumeError::Refused { name: name.to_owned(), what }
}

#[cfg(test)]
mod tests;
