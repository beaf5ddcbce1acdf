//! Which logical volumes can be served, and which of those only for reading: by what the metadata says of them.

use std::collections::HashMap;

use blockwork_format::dm_raid::ParityType;
use blockwork_format::escape;
use blockwork_format::lvm2::vg::{LvIndex, RaidLevel, Segment, SegmentType, Snapshot, VolumeGroup};

use super::snapshot::snapshot_sectors;

/// Why an image that was split off a RAID is as it is, and what becomes of it.
pub(crate) fn split_off(vg: &VolumeGroup, image: LvIndex) -> Option<String> {
    let raid = escape(&vg.lvs[vg.split_off(image)?.0].name);
    let (group, image) = (escape(&vg.name), escape(&vg.lvs[image.0].name));
    Some(format!(
        "it was split off {raid}, which tracks what changes since; `lvconvert --merge {group}/{image}` puts it back"
    ))
}

/// What the snapshots of a group mean for its other volumes.
pub(crate) struct Verdicts<'a> {
    vg: &'a VolumeGroup,
    by_store: HashMap<LvIndex, Snapshot>,
}

impl<'a> Verdicts<'a> {
    pub(crate) fn new(vg: &'a VolumeGroup) -> Verdicts<'a> {
        let by_store = vg.snapshots().map(|found| (found.store, found)).collect();
        Verdicts { vg, by_store }
    }

    /// Whether the volume is nothing but the tie between a snapshot and its origin.
    pub(crate) fn is_tie(&self, lv: LvIndex) -> bool {
        matches!(self.vg.lvs[lv.0].segments[0].kind, SegmentType::Snapshot { .. })
    }

    /// The size of the volume as it is served: of a snapshot, whatever its store has, that of the origin when it was made.
    pub(crate) fn sectors(&self, lv: LvIndex) -> u64 {
        let snapshot = self.by_store.get(&lv);
        snapshot.map_or_else(|| self.vg.lv_sectors(lv), |snapshot| snapshot_sectors(self.vg, snapshot))
    }

    /// Why the volume cannot be served, by itself: what lies below it is not asked.
    pub(crate) fn refusal(&self, lv: LvIndex) -> Option<String> {
        self.vg.lvs[lv.0].segments.iter().find_map(|segment| self.of_segment(segment))
    }

    /// Why the volume must not be written.
    pub(crate) fn read_only(&self, lv: LvIndex) -> Option<String> {
        let text = &self.vg.lvs[lv.0];
        if let Some(why) = split_off(self.vg, lv) {
            return Some(why);
        }
        if !text.writable() {
            return Some("its metadata does not allow writing; `lvchange -p rw` changes that".into());
        }
        let kinds = || text.segments.iter().map(|segment| &segment.kind);
        let is_cached = |kind| matches!(kind, &(SegmentType::Cache { .. } | SegmentType::Writecache { .. }));
        if kinds().any(is_cached) {
            let why = "it has a cache, which would have to know of what is written; `lvconvert --uncache` makes one of it that can be written";
            return Some(why.into());
        }
        kinds().any(|kind| matches!(kind, SegmentType::Mirror { .. })).then(|| {
            if text.flags.has("PVMOVE") {
                "`pvmove` is moving it, and it is read where its content is by now; let Linux finish that, or `pvmove --abort` it".into()
            } else {
                "it is of the old type mirror, and one copy of it is read; `lvconvert --type raid1` makes one of it that can be written".into()
            }
        })
    }

    fn of_segment(&self, segment: &Segment) -> Option<String> {
        let name = escape(&segment.type_name);
        if matches!(segment.kind, SegmentType::Raid { reshape_extents: 1.., .. }) {
            return Some(format!(
                "it is a {name} that was given another layout, or is being given one (a reshape): its legs have room beside their data for \
                 that, and only Linux knows where these lie"
            ));
        }
        if let Some(flag) = segment.unknown_flag() {
            return Some(format!("its type {name} has the flag {}, which is not known here", escape(flag)));
        }
        let what = match &segment.kind {
            SegmentType::Linear(_) | SegmentType::Striped { .. } | SegmentType::Error | SegmentType::Zero => {
                return None;
            }
            SegmentType::Raid { level: RaidLevel::Parity, .. }
                if ParityType::of_segment(&segment.type_name).is_none() =>
            {
                return Some(format!("it is a {name}, whose layout is not known here"));
            }
            SegmentType::Raid { .. }
            | SegmentType::Mirror { .. }
            | SegmentType::Thin { .. }
            | SegmentType::Cache { .. }
            | SegmentType::Writecache { .. } => return None,
            SegmentType::Snapshot { .. } => "snapshots",
            SegmentType::ThinPool { .. } => {
                return Some("it is a thin pool, whose volumes can be served, and nothing else of it".into());
            }
            SegmentType::CachePool { .. } => "caches",
            SegmentType::Unknown => return Some(format!("its type {name} is not known here")),
        };
        Some(format!("its type is {name}, and {what} cannot be served yet"))
    }
}
