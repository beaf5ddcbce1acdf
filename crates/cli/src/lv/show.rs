//! `blockwork lv show`: a line for each volume, as `lvs` has it.

use anyhow::{Result, bail};
use blockwork_daemon::{GroupStatus, LvStatus, Servers};
use blockwork_format::escape;
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{LvIndex, SegmentType};
use blockwork_volume::Assembly;
use blockwork_volume::lvm::Group;

use super::args::ShowArgs;
use crate::out;
use crate::scan::{percent, size};
use crate::vg::status::{Fullness, Shown, of_group, snapshot_of, with_merges};
use crate::vg::{groups, look, served, table};

pub(super) fn run(args: &ShowArgs) -> Result<()> {
    let which = args.which.as_deref().map(|which| which.strip_prefix("/dev/").unwrap_or(which));
    let (group, only) = match which.map(|which| which.split_once('/').unwrap_or((which, ""))) {
        None => (None, None),
        Some((group, name)) => (Some(group), Some(name).filter(|name| !name.is_empty())),
    };
    let (found, servers) = match args.place.disk.is_empty() {
        true => served(group)?,
        false => (on_disks(&args.place.disk, group)?, Servers::default()),
    };
    let volumes = found.iter().flat_map(|group| &group.volumes);
    let is_meant = |lv: &&LvStatus| only.is_none_or(|name| name == lv.name) && (lv.visible || args.all);
    let volumes: Vec<&LvStatus> = volumes.filter(is_meant).collect();
    if let (Some(name), true) = (only, volumes.is_empty()) {
        bail!("there is no logical volume {name:?} in {}", group.unwrap_or_default());
    }
    if args.place.json {
        out::print_json(&volumes)?;
        return Ok(servers.complete()?);
    }
    let mut rows = vec![
        [
            "LV", "VG", "Attr", "LSize", "Type", "Origin", "Pool", "Data%", "Meta%", "Cpy%Sync", "Health",
            "On", "Tags",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    rows.extend(volumes.iter().map(|lv| row(lv)));
    let mut text = table(&rows);
    for lv in volumes {
        if let Some(why) = &lv.merge_failure {
            text += &format!("{}/{}: the merge has failed: {why}\n", escape(&lv.group), escape(&lv.name));
        }
    }
    out::print(&text)?;
    Ok(servers.complete()?)
}

/// The groups on disks that are only looked at.
fn on_disks(disks: &[String], name: Option<&str>) -> Result<Vec<GroupStatus>> {
    let mut assembly = look(disks)?;
    let shown = groups(&assembly, name)?;
    // Of this process' own looking, nothing is begun.
    let merges = assembly.merges_of_text();
    let status = |shown: &Shown| {
        let full = |lv| fullness(&mut assembly, &shown.name, &shown.text, lv);
        with_merges(of_group(shown, full), &merges)
    };
    Ok(shown.iter().map(status).collect())
}

/// How full a pool or a snapshot is, how much of a thin volume is mapped, or how much an origin lacks of what is being merged into it; and how
/// much of a RAID volume is in sync, as its superblocks and bitmaps say.
fn fullness(assembly: &mut Assembly, group: &str, vg: &VolumeGroup, lv: LvIndex) -> Fullness {
    let find = |assembly: &Assembly| assembly.graph().groups.iter().position(|found| found.name == group);
    let Some(at) = find(assembly) else { return Fullness::default() };
    if let Some(fullness) = of_pool(&assembly.graph().groups[at], vg, lv) {
        return fullness;
    }
    let full = of_snapshot(assembly, at, vg, lv).unwrap_or_default();
    if !vg.lvs[lv.0].segments.iter().any(|segment| matches!(segment.kind, SegmentType::Raid { .. })) {
        return full;
    }
    // The array is made when the volume is built; of one that cannot be, nothing is known.
    assembly.choose(&[format!("{group}/{}", vg.lvs[lv.0].name)]).ok();
    let found = assembly.graph().groups[at].raids().find(|(known, _)| *known == lv);
    match found.map(|(_, array)| array.status()) {
        Some(array) => full.with_sync(&array, false),
        None => full,
    }
}

fn of_snapshot(assembly: &mut Assembly, group: usize, vg: &VolumeGroup, lv: LvIndex) -> Option<Fullness> {
    let snapshot = snapshot_of(vg, lv)?;
    let volume = if snapshot.merging { snapshot.origin } else { lv };
    let name = &assembly.graph().groups[group].name;
    // What the store holds is read when the snapshot is built; one that is lost is refused then, and known to be.
    assembly.choose(&[format!("{name}/{}", vg.lvs[volume.0].name)]).ok();
    assembly.graph().groups[group].snapshots.get(&snapshot.store)?.status().map(Fullness::from)
}

fn of_pool(group: &Group, vg: &VolumeGroup, lv: LvIndex) -> Option<Fullness> {
    let usage = |pool: &LvIndex| group.thin_pools.get(pool)?.usage.as_ref().ok();
    if let Some(usage) = usage(&lv) {
        return Some(Fullness::from(usage));
    }
    let (pool, device_id) = vg.thin_device(lv)?;
    let usage = usage(&pool)?;
    Some(Fullness::of_thin(usage.mapped(device_id)?, usage.block_sectors, vg.lv_sectors(lv)))
}

fn row(lv: &LvStatus) -> Vec<String> {
    let name = escape(&lv.name);
    // Where a store has nothing to say of how full it is, why.
    let data = lv.data_percent.map(percent).or_else(|| lv.status.clone());
    let merge = lv.merge.as_ref().map(|merge| format!(", merge {merge}")).unwrap_or_default();
    let runs = lv.sync.as_ref().filter(|sync| sync.runs());
    let sync = runs.map(|sync| format!(", {}", escape(&sync.action))).unwrap_or_default();
    vec![
        if lv.visible { name } else { format!("[{name}]") },
        escape(&lv.group),
        lv.attributes.clone(),
        size(lv.bytes),
        format!("{}{merge}{sync}", lv.kind),
        lv.origin.clone().unwrap_or_default(),
        lv.pool.clone().unwrap_or_default(),
        data.unwrap_or_default(),
        lv.metadata_percent.map(percent).unwrap_or_default(),
        lv.sync_percent.map(percent).unwrap_or_default(),
        lv.health.clone().unwrap_or_default(),
        lv.areas.join(","),
        lv.tags.iter().map(|tag| escape(tag)).collect::<Vec<_>>().join(","),
    ]
}
