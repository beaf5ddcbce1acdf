//! Groups and their volumes as `vg show`, `lv show` and the control API tell of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockwork_daemon::{DeviceStatus, GroupStatus, LvStatus, PvStatus, SyncStatus};
use blockwork_engine::Sectors;
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{Area, LvIndex, PvIndex, SegmentType, Snapshot};
use blockwork_format::{SECTOR_BYTES, escape};
use blockwork_layer::md;
use blockwork_layer::snapshot::SnapshotStatus;
use blockwork_layer::thin::PoolStatus;
use blockwork_volume::Graph;
use blockwork_volume::lvm::edit::FreeExtents;
use blockwork_volume::lvm::served::{MergeState, TextMerge};
use blockwork_volume::lvm::{Group, PoolUsage};

use super::attributes::Letters;
use crate::serve::{device_status, sync_status};

/// Of a merge that nobody does now.
const PLANNED: &str = "planned";

/// How full a volume is, and how much of it is in sync.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fullness {
    data_percent: Option<f64>,
    metadata_percent: Option<f64>,
    /// As `dmsetup status` has it.
    status: Option<String>,
    sync_percent: Option<f64>,
    /// Of an array that is at work.
    sync: Option<SyncStatus>,
    /// By role.
    legs: Vec<DeviceStatus>,
    /// A check, or a repair, has found copies that differ, or a parity that does not fit.
    has_mismatches: bool,
}

impl From<SnapshotStatus> for Fullness {
    fn from(status: SnapshotStatus) -> Fullness {
        let (data_percent, status) = (status.percent(), Some(status.to_string()));
        Fullness { data_percent, status, ..Fullness::default() }
    }
}

impl From<&PoolStatus> for Fullness {
    fn from(pool: &PoolStatus) -> Fullness {
        Fullness {
            data_percent: percent(pool.data_used, pool.data_blocks),
            metadata_percent: percent(pool.metadata_used, pool.metadata_blocks),
            status: Some(pool.to_string()),
            ..Fullness::default()
        }
    }
}

impl From<&PoolUsage> for Fullness {
    fn from(pool: &PoolUsage) -> Fullness {
        Fullness {
            data_percent: percent(pool.data_used, pool.data_blocks),
            metadata_percent: percent(pool.metadata_used, pool.metadata_blocks),
            ..Fullness::default()
        }
    }
}

impl Fullness {
    /// With how much of its copies is in sync; where the array `is_at_work`, with what that does.
    pub(crate) fn with_sync(self, array: &md::ArrayStatus, is_at_work: bool) -> Fullness {
        let (done, total) = array.in_sync;
        let sync = is_at_work.then(|| sync_status(&array.sync));
        let leg = |(role, member): (u16, &md::MemberStatus)| device_status(Some(role), member, None);
        let legs = (0..).zip(&array.members).map(leg).collect();
        let has_mismatches = array.sync.mismatches > Sectors::ZERO;
        Fullness { sync_percent: percent(done.0, total.0), sync, legs, has_mismatches, ..self }
    }

    /// As `dmsetup status` has it, of a pool or a snapshot.
    pub(super) fn status(&self) -> Option<&str> {
        self.status.as_deref()
    }

    /// For `lvs` none is, while all are being made the same.
    pub(super) fn leg_is_in_sync(&self, nth: usize) -> bool {
        let is_in_sync = |leg: &DeviceStatus| leg.state == "in_sync";
        let is_resynced =
            self.legs.iter().all(is_in_sync) && self.sync_percent.is_some_and(|done| done < 100.0);
        !is_resynced && self.legs.get(nth).is_some_and(is_in_sync)
    }

    /// Whether a leg that is not missing is not used: as `lvs` has it, a refresh brings it back.
    fn needs_refresh(&self, nth: usize) -> bool {
        self.legs.get(nth).is_some_and(|leg| matches!(leg.state.as_str(), "missing" | "faulty"))
    }

    /// Of a thin volume of so many sectors, of which so many blocks are mapped.
    pub(crate) fn of_thin(mapped: u64, block_sectors: u64, sectors: u64) -> Fullness {
        // The last block counts whole, as for LVM and `scan`, though the volume may end in it.
        let blocks = sectors.div_ceil(block_sectors.max(1));
        Fullness { data_percent: percent(mapped.min(blocks), blocks), ..Fullness::default() }
    }
}

fn percent(used: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| used as f64 * 100.0 / all as f64)
}

/// A group that was found on disks.
pub(crate) struct Shown {
    /// By this name it is asked for.
    pub(crate) name: String,
    pub(crate) text: Arc<VolumeGroup>,
    /// What its physical volumes are called.
    pvs: Vec<String>,
    /// Disks that are missing, or cannot be used.
    missing: Vec<String>,
    /// Of each volume, whether it needs one of those.
    partial: Vec<bool>,
}

impl Shown {
    pub(crate) fn of(group: &Group, graph: &Graph) -> Shown {
        Shown {
            name: group.name.clone(),
            text: group.text.clone(),
            pvs: graph.pv_names(group),
            missing: group.pvs.iter().filter_map(|pv| pv.as_ref().err().cloned()).collect(),
            partial: group.partial(graph),
        }
    }

    /// The letters of `vg_attr`, of vgs(8).
    fn attributes(&self) -> String {
        let vg = &self.text;
        let letter = |is: bool, letter: char| if is { letter } else { '-' };
        let shared = vg.lock_type.as_deref().is_some_and(|lock| !matches!(lock, "" | "none"));
        [
            if vg.flags.has("WRITE") { 'w' } else { 'r' },
            letter(vg.flags.has("RESIZEABLE"), 'z'),
            letter(vg.flags.has("EXPORTED"), 'x'),
            letter(!self.missing.is_empty(), 'p'),
            'n',
            if shared { 's' } else { letter(vg.flags.has("CLUSTERED"), 'c') },
        ]
        .iter()
        .collect()
    }
}

/// A group, of whose volumes this tells how full they are.
pub(crate) fn of_group(shown: &Shown, mut fullness: impl FnMut(LvIndex) -> Fullness) -> GroupStatus {
    let Shown { name, text: vg, pvs, missing, partial } = shown;
    let bytes = |extents: u64| extents * vg.extent_sectors * SECTOR_BYTES;
    let free = FreeExtents::of(vg);
    let physical_volumes = (0..).map(PvIndex).zip(&vg.pvs).map(|(nth, pv)| PvStatus {
        name: pv.name.clone(),
        uuid: pv.id.to_string(),
        device: pv.device_hint.clone(),
        bytes: bytes(pv.pe_count),
        free_bytes: bytes(free.on(nth)),
    });
    let visible = vg.visible();
    // That a volume is a snapshot of another one is a volume of its own in the text, and none for LVM's tools either.
    let is_tie = |lv: &LvIndex| matches!(vg.lvs[lv.0].segments[0].kind, SegmentType::Snapshot { .. });
    let volumes = (0..vg.lvs.len()).map(LvIndex).filter(|lv| !is_tie(lv));
    let full: Vec<(LvIndex, Fullness)> = volumes.map(|lv| (lv, fullness(lv))).collect();
    let health = health(vg, partial, &full);
    let known = full.iter().map(|(lv, full)| (*lv, full)).collect();
    let letters = Letters::of(vg, &visible);
    let attributes: Vec<String> =
        full.iter().map(|(lv, _)| letters.letters(*lv, health.get(lv).copied(), &known)).collect();
    let health = |lv: LvIndex| health.get(&lv).map(|health| (*health).to_owned());
    GroupStatus {
        name: name.clone(),
        uuid: vg.id.to_string(),
        seqno: vg.seqno,
        extent_bytes: bytes(1),
        bytes: bytes(vg.pvs.iter().map(|pv| pv.pe_count).sum()),
        free_bytes: bytes(free.total()),
        disks: vg.pvs.len(),
        attributes: shown.attributes(),
        snapshots: vg.snapshots().count(),
        missing: missing.clone(),
        physical_volumes: physical_volumes.collect(),
        tags: vg.tags.clone(),
        volumes: full
            .into_iter()
            .zip(attributes)
            .map(|((lv, full), attributes)| LvStatus {
                attributes,
                health: health(lv),
                ..of_volume(name, vg, pvs, (lv, visible[lv.0]), full)
            })
            .collect(),
    }
}

/// What is wrong with volumes, as `lvs -o lv_health_status` has it, of legs too.
fn health(
    vg: &VolumeGroup,
    partial: &[bool],
    full: &[(LvIndex, Fullness)],
) -> BTreeMap<LvIndex, &'static str> {
    let mut found = BTreeMap::new();
    for (lv, full) in full {
        if full.has_mismatches {
            found.insert(*lv, "mismatches exist");
        }
        for segment in &vg.lvs[lv.0].segments {
            let SegmentType::Raid { images, metas, .. } = &segment.kind else { continue };
            for nth in (0..images.len()).filter(|nth| full.needs_refresh(*nth)) {
                let parts = [images.get(nth), metas.get(nth)];
                // One that is missing needs more than a refresh, and one that was split off is away on purpose.
                let is_there = |part: &LvIndex| !partial[part.0] && vg.split_off(*part).is_none();
                if parts.into_iter().flatten().all(is_there) {
                    found.extend(parts.into_iter().flatten().map(|part| (*part, "refresh needed")));
                    found.insert(*lv, "refresh needed");
                }
            }
        }
    }
    let is_partial = |lv: &LvIndex| partial[lv.0];
    found.extend((0..partial.len()).map(LvIndex).filter(is_partial).map(|lv| (lv, "partial")));
    found
}

fn of_volume(
    group: &str,
    vg: &VolumeGroup,
    pvs: &[String],
    (lv, visible): (LvIndex, bool),
    fullness: Fullness,
) -> LvStatus {
    let volume = &vg.lvs[lv.0];
    let Fullness { data_percent, metadata_percent, status, sync_percent, sync, legs, .. } = fullness;
    // Nothing is copied for that: Linux ends it when it finds nobody who has the origin open, and until then the origin is served as what it will be.
    let is_thin_merge = has_thin_merge(vg, lv);
    LvStatus {
        group: group.to_owned(),
        name: volume.name.clone(),
        uuid: volume.id.to_string(),
        bytes: vg.lv_sectors(lv) * SECTOR_BYTES,
        kind: type_name(vg, lv),
        origin: origin(vg, lv),
        pool: pool(vg, lv),
        data_percent,
        metadata_percent,
        status,
        sync_percent,
        sync,
        legs,
        attributes: String::new(),
        health: None,
        merging: is_thin_merge || snapshot_of(vg, lv).is_some_and(|snapshot| snapshot.merging),
        merge: is_thin_merge.then(|| PLANNED.to_owned()),
        merge_failure: None,
        visible,
        areas: areas(vg, pvs, lv),
        tags: volume.tags.clone(),
    }
}

/// Says of what is being merged how far that is.
pub(crate) fn with_merges(mut group: GroupStatus, merges: &[TextMerge]) -> GroupStatus {
    for volume in group.volumes.iter_mut().filter(|volume| volume.merging) {
        let is_it = |one: &&TextMerge| {
            one.group == group.name && (one.origin == volume.name || one.snapshot == volume.name)
        };
        let Some(found) = merges.iter().find(is_it) else { continue };
        let failed = SnapshotStatus::MergeFailed.to_string();
        volume.merge_failure = found.failure.clone();
        let state = match found.state {
            _ if found.failure.is_some() => "failed",
            MergeState::Idle | MergeState::Due => PLANNED,
            MergeState::Waiting | MergeState::Lost => "waiting",
            MergeState::Begun if volume.status.as_ref() == Some(&failed) => "failed",
            MergeState::Begun => "running",
        };
        volume.merge = Some(state.to_owned());
    }
    group
}

/// Whether a thin volume is to be merged into another one, or that into it.
fn has_thin_merge(vg: &VolumeGroup, lv: LvIndex) -> bool {
    let origin = vg.merged_into(lv).unwrap_or(lv);
    vg.merging_thin(origin).is_some()
}

/// The snapshot that tells how full a volume is: one that it is, or that is being merged into it.
pub(crate) fn snapshot_of(vg: &VolumeGroup, lv: LvIndex) -> Option<Snapshot> {
    vg.snapshot_in(lv).or_else(|| vg.snapshots().find(|one| one.merging && one.origin == lv))
}

/// The type of a volume, as `lvs -o segtype` has it: that of its last segment, or what it is to others.
pub(crate) fn type_name(vg: &VolumeGroup, lv: LvIndex) -> String {
    if vg.snapshot_in(lv).is_some() {
        return "snapshot".to_owned();
    }
    let last = vg.lvs[lv.0].segments.last();
    last.map_or(String::new(), |segment| match segment.kind {
        SegmentType::Linear(_) => "linear".to_owned(),
        _ => escape(&segment.type_name),
    })
}

/// Of what a volume is a snapshot.
pub(crate) fn origin(vg: &VolumeGroup, lv: LvIndex) -> Option<String> {
    let of_store = vg.snapshot_in(lv).map(|snapshot| snapshot.origin);
    let of_thin = match vg.lvs[lv.0].segments[0].kind {
        // As `lvs` has it.
        SegmentType::Thin { origin, external_origin, .. } => origin.or(external_origin),
        _ => None,
    };
    of_store.or(of_thin).map(|origin| escape(&vg.lvs[origin.0].name))
}

/// The thin pool that a volume lies in.
fn pool(vg: &VolumeGroup, lv: LvIndex) -> Option<String> {
    match vg.lvs[lv.0].segments[0].kind {
        SegmentType::Thin { pool, .. } => Some(escape(&vg.lvs[pool.0].name)),
        _ => None,
    }
}

/// What a volume lies on, with first extents, as `lvs -o devices` has it.
fn areas(vg: &VolumeGroup, pvs: &[String], lv: LvIndex) -> Vec<String> {
    let mut all = Vec::new();
    for segment in &vg.lvs[lv.0].segments {
        all.extend(segment.areas().0.iter().map(|area| match *area {
            Area::Pv { pv, extent } => format!("{}({extent})", pvs[pv.0]),
            Area::Lv { lv, extent } => format!("{}({extent})", escape(&vg.lvs[lv.0].name)),
        }));
        if let SegmentType::Raid { images, .. } = &segment.kind {
            all.extend(images.iter().map(|image| format!("{}(0)", escape(&vg.lvs[image.0].name))));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_the_end_of_a_thin_volume_cuts_counts_whole() {
        // As `lvs` has it of 16 blocks of 192 KiB in a volume of 20 MiB: 14.95.
        let data = Fullness::of_thin(16, 384, 40960).data_percent.expect("it has a size");
        assert!((data - 1600.0 / 107.0).abs() < 1e-9, "{data}");
    }
}
