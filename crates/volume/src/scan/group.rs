//! What is told of an LVM2 volume group and its physical volumes: what `vgs` and `pvs` show.

use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::Area;
use serde::Serialize;

use super::lv::Relations;
use super::{LvReport, Reader, bytes};
use crate::graph::GroupId;

/// A volume group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupReport {
    /// What the names of its volumes begin with: its own name, with a part of its UUID where another group has that name.
    pub group: String,
    /// Its own name.
    pub vg_name: String,
    /// Its UUID.
    pub vg_uuid: String,
    /// Number of the last change.
    pub seqno: u64,
    /// Extent, bytes.
    pub extent_size: u64,
    /// Bytes of all extents.
    pub size: u64,
    /// Bytes of extents that no volume has.
    pub free: u64,
    /// Whether a physical volume is missing.
    pub partial: bool,
    /// Whether it was exported.
    pub exported: bool,
    /// The host that owns it.
    pub system_id: Option<String>,
    /// The lock manager, where it is shared between hosts.
    pub lock_type: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Why none of its volumes would be served for writing.
    pub read_only: Option<String>,
    /// What is wrong or worth knowing, one sentence each.
    pub warnings: Vec<String>,
    /// Its physical volumes, in the order of the metadata.
    pub pvs: Vec<PvReport>,
    /// Its logical volumes, likewise; those that are parts of others as well.
    pub lvs: Vec<LvReport>,
}

/// A physical volume of a group.
#[derive(Clone, Debug, Serialize)]
pub struct PvReport {
    /// How the metadata calls it: `pv0`.
    pub name: String,
    /// Its UUID.
    pub pv_uuid: String,
    /// The device; none where it is missing or not used.
    pub volume: Option<String>,
    /// Why there is none.
    pub problem: Option<String>,
    /// Bytes of all extents.
    pub size: u64,
    /// Bytes of extents that no volume has.
    pub free: u64,
    /// Size of its device as the metadata has it, bytes.
    pub dev_size: Option<u64>,
    /// Where its extents begin, bytes.
    pub pe_start: u64,
    /// Whether new volumes may be put there.
    pub allocatable: bool,
    /// Whether it was missing when the group was changed last.
    pub missing: bool,
    /// Where it was seen last: a hint of the metadata.
    pub device_hint: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
}

impl Reader<'_> {
    pub(super) fn group(&self, id: GroupId) -> GroupReport {
        let group = &self.graph.groups[id.0];
        let text = &*group.text;
        let pvs = self.pvs_of(id);
        GroupReport {
            group: group.name.clone(),
            vg_name: text.name.clone(),
            vg_uuid: text.id.to_string(),
            seqno: text.seqno,
            extent_size: bytes(text.extent_sectors),
            size: pvs.iter().fold(0, |sum, pv| sum.saturating_add(pv.size)),
            free: pvs.iter().fold(0, |sum, pv| sum.saturating_add(pv.free)),
            partial: group.is_partial(),
            exported: text.flags.has("EXPORTED"),
            system_id: text.system_id.clone().filter(|id| !id.is_empty()),
            lock_type: text.lock_type.clone().filter(|kind| !matches!(kind.as_str(), "" | "none")),
            tags: text.tags.clone(),
            read_only: group.read_only.clone(),
            warnings: group.warnings.clone(),
            lvs: self.lvs_of(&Relations::new(self.graph, group)),
            pvs,
        }
    }

    fn pvs_of(&self, id: GroupId) -> Vec<PvReport> {
        let group = &self.graph.groups[id.0];
        let text = &*group.text;
        let used = used_extents(text);
        let of = |extents: u64| bytes(extents.saturating_mul(text.extent_sectors));
        let pvs = text.pvs.iter().zip(&group.pvs).zip(used);
        pvs.map(|((pv, found), used)| PvReport {
            name: pv.name.clone(),
            pv_uuid: pv.id.to_string(),
            volume: found.as_ref().ok().map(|device| self.name(*device)),
            problem: found.as_ref().err().cloned(),
            size: of(pv.pe_count),
            free: of(pv.pe_count.saturating_sub(used)),
            dev_size: pv.dev_sectors.map(bytes),
            pe_start: bytes(pv.pe_start),
            allocatable: pv.flags.has("ALLOCATABLE"),
            missing: pv.missing(),
            device_hint: pv.device_hint.clone(),
            tags: pv.tags.clone(),
        })
        .collect()
    }
}

/// Of each physical volume, how many extents are in use. Types of segments that are not known count for nothing.
fn used_extents(text: &VolumeGroup) -> Vec<u64> {
    let mut used = vec![0u64; text.pvs.len()];
    for segment in text.lvs.iter().flat_map(|lv| &lv.segments) {
        let (areas, extents) = segment.areas();
        for area in areas {
            if let Area::Pv { pv, .. } = area {
                used[pv.0] = used[pv.0].saturating_add(extents);
            }
        }
    }
    used
}
