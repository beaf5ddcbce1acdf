//! `blockwork lv show`: a line for each volume, as `lvs` has it.

use anyhow::{Result, bail};
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{Area, LvIndex, SegmentType, Snapshot};
use blockwork_format::{SECTOR_BYTES, escape};
use blockwork_layer::snapshot::SnapshotStatus;
use blockwork_volume::Assembly;
use serde_json::{Value, json};

use super::args::ShowArgs;
use crate::scan::size;
use crate::vg::{groups, look, table};

pub(super) fn run(args: &ShowArgs) -> Result<()> {
    let which = args.which.as_deref().map(|which| which.strip_prefix("/dev/").unwrap_or(which));
    let (group, only) = match which.map(|which| which.split_once('/').unwrap_or((which, ""))) {
        None => (None, None),
        Some((group, name)) => (Some(group), Some(name).filter(|name| !name.is_empty())),
    };
    let mut rows =
        vec![["LV", "VG", "LSize", "Type", "Origin", "Data%", "On", "Tags"].map(str::to_owned).to_vec()];
    let mut values = Vec::new();
    let mut assembly = look(&args.disks.disk)?;
    for shown in groups(&assembly, group)? {
        let vg = &shown.text;
        let visible = vg.visible();
        for lv in (0..vg.lvs.len()).map(LvIndex) {
            let is_meant = only.is_none_or(|name| name == vg.lvs[lv.0].name);
            if is_meant && (visible[lv.0] || args.all) {
                let status = status(&mut assembly, &shown.name, vg, lv);
                rows.push(row(&shown.name, vg, lv, visible[lv.0], status));
                values.push(json(&shown.name, vg, lv, visible[lv.0], status));
            }
        }
    }
    if let (Some(name), true) = (only, values.is_empty()) {
        bail!("there is no logical volume {name:?} in {}", group.unwrap_or_default());
    }
    if args.disks.json {
        println!("{:#}", Value::from(values));
    } else {
        print!("{}", table(&rows));
    }
    Ok(())
}

/// How full a snapshot is, or how much an origin lacks of what is being merged into it; none where nobody can tell.
fn status(assembly: &mut Assembly, group: &str, vg: &VolumeGroup, lv: LvIndex) -> Option<SnapshotStatus> {
    let is_it = |one: &Snapshot| one.store == lv || (one.merging && one.origin == lv);
    let snapshot = vg.snapshots().find(is_it)?;
    let volume = if snapshot.merging { snapshot.origin } else { lv };
    // What the store holds is read when the snapshot is built; where that cannot be done, nothing is known of it.
    assembly.choose(&[format!("{group}/{}", vg.lvs[volume.0].name)]).ok()?;
    let group = assembly.graph().groups.iter().find(|found| found.name == group)?;
    let (family, nth) = group.snapshots.get(&snapshot.store)?;
    family.status(*nth)
}

/// As `lvs` has it; where the store has nothing to say of that, why.
fn data_percent(status: SnapshotStatus) -> String {
    status.percent().map_or_else(|| status.to_string(), |percent| format!("{percent:.2}"))
}

fn row(
    group: &str,
    vg: &VolumeGroup,
    lv: LvIndex,
    is_visible: bool,
    status: Option<SnapshotStatus>,
) -> Vec<String> {
    let volume = &vg.lvs[lv.0];
    let name = escape(&volume.name);
    vec![
        if is_visible { name } else { format!("[{name}]") },
        escape(group),
        size(vg.lv_sectors(lv) * SECTOR_BYTES),
        type_name(vg, lv),
        origin(vg, lv).unwrap_or_default(),
        status.map_or(String::new(), data_percent),
        areas(vg, lv).join(","),
        volume.tags.iter().map(|tag| escape(tag)).collect::<Vec<_>>().join(","),
    ]
}

/// The type of a volume, as `lvs -o segtype` has it: that of its last segment, or what it is to others.
pub(super) fn type_name(vg: &VolumeGroup, lv: LvIndex) -> String {
    if origin(vg, lv).is_some() {
        return "snapshot".to_owned();
    }
    let last = vg.lvs[lv.0].segments.last();
    last.map_or(String::new(), |segment| match segment.kind {
        SegmentType::Linear(_) => "linear".to_owned(),
        _ => escape(&segment.type_name),
    })
}

/// Of what a volume is a snapshot.
pub(super) fn origin(vg: &VolumeGroup, lv: LvIndex) -> Option<String> {
    let of_store = vg.snapshots().find(|snapshot| snapshot.store == lv);
    of_store.map(|snapshot| escape(&vg.lvs[snapshot.origin.0].name))
}

/// What a volume lies on, with first extents, as `lvs -o devices` has it.
fn areas(vg: &VolumeGroup, lv: LvIndex) -> Vec<String> {
    let mut all = Vec::new();
    for segment in &vg.lvs[lv.0].segments {
        all.extend(segment.areas().0.iter().map(|area| match *area {
            Area::Pv { pv, extent } => format!("{}({extent})", escape(&vg.pvs[pv.0].name)),
            Area::Lv { lv, extent } => format!("{}({extent})", escape(&vg.lvs[lv.0].name)),
        }));
        if let SegmentType::Raid { images, .. } = &segment.kind {
            all.extend(images.iter().map(|image| format!("{}(0)", escape(&vg.lvs[image.0].name))));
        }
    }
    all
}

fn json(
    group: &str,
    vg: &VolumeGroup,
    lv: LvIndex,
    is_visible: bool,
    status: Option<SnapshotStatus>,
) -> Value {
    let volume = &vg.lvs[lv.0];
    json!({
        "group": group,
        "name": volume.name,
        "uuid": volume.id.to_string(),
        "bytes": vg.lv_sectors(lv) * SECTOR_BYTES,
        "type": type_name(vg, lv),
        "origin": origin(vg, lv),
        "data_percent": status.and_then(|status| status.percent()),
        "status": status.map(|status| status.to_string()),
        "merging": vg.snapshots().any(|one| one.merging && (one.store == lv || one.origin == lv)),
        "visible": is_visible,
        "areas": areas(vg, lv),
        "tags": volume.tags,
    })
}
