//! `blockwork vg show`: a line for each group, as `vgs` has it.

use std::sync::Arc;

use anyhow::{Result, bail};
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::{SECTOR_BYTES, escape};
use blockwork_volume::lvm::edit::FreeExtents;
use blockwork_volume::{Assembly, Plan};
use serde_json::{Value, json};

use super::args::ShowArgs;
use crate::out;
use crate::scan::size;

/// A group that was found on disks.
pub(crate) struct Shown {
    /// By this name it is asked for.
    pub(crate) name: String,
    pub(crate) text: Arc<VolumeGroup>,
    /// What its physical volumes are called.
    pub(crate) pvs: Vec<String>,
    /// Disks that are missing, or cannot be used.
    missing: Vec<String>,
}

/// Disks that are only looked at.
pub(crate) fn look(disks: &[String]) -> Result<Assembly> {
    let plan = Plan { disks: disks.to_vec(), read_only: true, unlocked: true, ..Plan::default() };
    let assembly = Assembly::open(plan)?;
    for warning in assembly.warnings() {
        log::warn!("{warning}");
    }
    Ok(assembly)
}

/// The groups that were found, or the one of that name.
pub(crate) fn groups(assembly: &Assembly, name: Option<&str>) -> Result<Vec<Shown>> {
    let found = assembly.graph().groups.iter().filter(|group| name.is_none_or(|name| name == group.name));
    let found: Vec<Shown> = found
        .map(|group| Shown {
            name: group.name.clone(),
            text: group.text.clone(),
            pvs: assembly.graph().pv_titles(group),
            missing: group.pvs.iter().filter_map(|pv| pv.as_ref().err().cloned()).collect(),
        })
        .collect();
    match name {
        Some(name) if found.is_empty() => bail!("there is no volume group {name:?} on these disks"),
        _ => Ok(found),
    }
}

pub(super) fn run(args: &ShowArgs) -> Result<()> {
    let found = groups(&look(&args.disks.disk)?, args.group.as_deref())?;
    if args.disks.json {
        return out::print_json(&found.iter().map(json).collect::<Vec<_>>());
    }
    let mut rows =
        vec![["VG", "#PV", "#LV", "#SN", "Attr", "VSize", "VFree", "Tags"].map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(row));
    out::print(&table(&rows))
}

/// Extents of a group: all, and those that are free.
fn extents(vg: &VolumeGroup) -> (u64, u64) {
    (vg.pvs.iter().map(|pv| pv.pe_count).sum(), FreeExtents::of(vg).total())
}

fn row(shown: &Shown) -> Vec<String> {
    let vg = &shown.text;
    let (all, free) = extents(vg);
    let bytes = |extents: u64| size(extents * vg.extent_sectors * SECTOR_BYTES);
    let lvs = volumes(vg);
    let snapshots = vg.snapshots().count();
    let numbers = [vg.pvs.len(), lvs, snapshots].map(|n| n.to_string());
    let [pvs, lvs, snapshots] = numbers;
    let tags = vg.tags.iter().map(|tag| escape(tag)).collect::<Vec<_>>().join(",");
    vec![escape(&shown.name), pvs, lvs, snapshots, attributes(shown), bytes(all), bytes(free), tags]
}

/// Volumes that people see.
fn volumes(vg: &VolumeGroup) -> usize {
    vg.visible().iter().filter(|visible| **visible).count()
}

/// The letters of `vg_attr`, of vgs(8).
fn attributes(shown: &Shown) -> String {
    let vg = &shown.text;
    let letter = |is: bool, letter: char| if is { letter } else { '-' };
    let shared = vg.lock_type.as_deref().is_some_and(|lock| !matches!(lock, "" | "none"));
    [
        if vg.flags.has("WRITE") { 'w' } else { 'r' },
        letter(vg.flags.has("RESIZEABLE"), 'z'),
        letter(vg.flags.has("EXPORTED"), 'x'),
        letter(!shown.missing.is_empty(), 'p'),
        'n',
        if shared { 's' } else { letter(vg.flags.has("CLUSTERED"), 'c') },
    ]
    .iter()
    .collect()
}

fn json(shown: &Shown) -> Value {
    let vg = &shown.text;
    let (all, free) = extents(vg);
    let bytes = |extents: u64| extents * vg.extent_sectors * SECTOR_BYTES;
    let free_of = FreeExtents::of(vg);
    let pvs = (0..).map(blockwork_format::lvm2::vg::PvIndex).zip(&vg.pvs).map(|(nth, pv)| {
        json!({
            "name": pv.name,
            "uuid": pv.id.to_string(),
            "device": pv.device_hint,
            "bytes": bytes(pv.pe_count),
            "free_bytes": bytes(free_of.on(nth)),
        })
    });
    json!({
        "group": shown.name,
        "uuid": vg.id.to_string(),
        "seqno": vg.seqno,
        "attributes": attributes(shown),
        "extent_bytes": bytes(1),
        "bytes": bytes(all),
        "free_bytes": bytes(free),
        "volumes": volumes(vg),
        "snapshots": vg.snapshots().count(),
        "tags": vg.tags,
        "missing": shown.missing,
        "physical_volumes": pvs.collect::<Vec<_>>(),
    })
}

/// Rows in columns, the first row being their titles.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}
