//! What is told of a logical volume: what `lvs --all --segments` shows, as far as the metadata has it.

use blockwork_format::lvm2::vg::{Area, LvIndex, RaidLevel, Segment, SegmentType};
use blockwork_layer::snapshot::SnapshotStatus;
use serde::Serialize;

use super::{DeviceReport, Reader, bytes};
use crate::graph::{DeviceId, Graph};
use crate::lvm::{Group, KnownSnapshot};

/// A logical volume.
#[derive(Clone, Debug, Serialize)]
pub struct LvReport {
    /// Its name in the group.
    pub name: String,
    /// Its UUID.
    pub lv_uuid: String,
    /// Whether it is a volume of the user; the others are parts of such ones.
    pub visible: bool,
    /// What it is made of, as `lvs -o lv_layout`: `linear`, `striped`, `raid`, `raid10`, `thin`, `pool`, `sparse` …
    pub layout: Vec<&'static str>,
    /// What it is to others, as `lvs -o lv_role`: `public` or `private`, then `origin`, `snapshot`, `image` …
    pub role: Vec<&'static str>,
    /// The volume that it is a part of, by its name in the group.
    pub parent: Option<String>,
    /// Its pool: of thin and cached volumes.
    pub pool: Option<String>,
    /// Of what it is a snapshot, or what is cached.
    pub origin: Option<String>,
    /// Chunk of a snapshot, pool or cache, bytes.
    pub chunk_size: Option<u64>,
    /// How full it is: of thin pools and their volumes, as far as that can be read.
    pub usage: Option<UsageReport>,
    /// Of a snapshot: where what differs from its origin lies.
    pub store: Option<StoreReport>,
    /// Whether it is being merged into its origin.
    pub merging: bool,
    /// Whether a physical volume is missing that it needs.
    pub partial: bool,
    /// Whether the metadata allows writing.
    pub writable: bool,
    /// Tags.
    pub tags: Vec<String>,
    /// When it was made.
    pub creation_time: Option<i64>,
    /// Where it was made.
    pub creation_host: Option<String>,
    /// Its segments, in order.
    pub segments: Vec<SegmentReport>,
    /// The volume as a device.
    #[serde(flatten)]
    pub device: DeviceReport,
}

/// How full a thin pool or a volume of it is: what `lvs` shows of it while it is active.
#[derive(Clone, Debug, Serialize)]
pub struct UsageReport {
    /// Bytes of data that are in use; of a volume: that it maps, shared ones as well.
    pub data_used: u64,
    /// The same as a part of its size, as `lvs -o data_percent`.
    pub data_percent: f64,
    /// Bytes of metadata that are in use: of a pool. What Linux keeps in reserve counts.
    pub metadata_used: Option<u64>,
    /// The same as a part of the metadata's size, as `lvs -o metadata_percent`.
    pub metadata_percent: Option<f64>,
}

/// The store of a snapshot. Its `size` is what `lvs` shows as the snapshot's.
#[derive(Clone, Debug, Serialize)]
pub struct StoreReport {
    /// Bytes.
    pub size: u64,
    /// Bytes in use, metadata included; none where the snapshot cannot be served.
    pub used: Option<u64>,
    /// Percent in use, as `lvs -o data_percent`.
    pub percent: Option<f64>,
    /// As `dmsetup status` says it: `USED/TOTAL METADATA` in sectors, `Overflow`, `Invalid`.
    pub status: Option<String>,
}

/// A range of a logical volume.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentReport {
    /// First byte of the volume.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// As `lvs -o segtype`; as the metadata has it where it is not known.
    #[serde(rename = "type")]
    pub kind: String,
    /// Stripe, bytes.
    pub stripe_size: Option<u64>,
    /// What it lies on: stripes, legs, mirrors, or the one area of a linear segment.
    pub areas: Vec<AreaReport>,
}

/// What a segment lies on.
#[derive(Clone, Debug, Serialize)]
pub struct AreaReport {
    /// The device of a physical or a logical volume; none where it is missing.
    pub volume: Option<String>,
    /// The physical volume, by its name in the metadata; none where it is a logical one.
    pub pv: Option<String>,
    /// First byte there.
    pub start: u64,
}

/// How the volumes of a group belong together.
pub(super) struct Relations<'a> {
    group: &'a Group,
    visible: Vec<bool>,
    /// Of each volume, the one that it is a part of, and as what.
    part_of: Vec<Option<(LvIndex, &'static [&'static str])>>,
    /// Of each store of a snapshot: its origin, chunk in sectors, and whether it is being merged.
    snapshot: Vec<Option<(LvIndex, u64, bool)>>,
    has_thick: Vec<bool>,
    has_thin: Vec<bool>,
    has_external: Vec<bool>,
    partial: Vec<bool>,
}

impl<'a> Relations<'a> {
    pub(super) fn new(graph: &Graph, group: &'a Group) -> Relations<'a> {
        let count = group.text.lvs.len();
        let mut relations = Relations {
            group,
            visible: group.text.visible(),
            part_of: vec![None; count],
            snapshot: vec![None; count],
            has_thick: vec![false; count],
            has_thin: vec![false; count],
            has_external: vec![false; count],
            partial: group.partial(graph),
        };
        for (lv, text) in group.text.lvs.iter().enumerate() {
            text.segments.iter().for_each(|segment| relations.take(LvIndex(lv), segment));
        }
        relations
    }

    fn take(&mut self, lv: LvIndex, segment: &Segment) {
        let mut is_part = |part: LvIndex, what| {
            self.part_of[part.0].get_or_insert((lv, what));
        };
        for area in segment.areas().0 {
            if let Area::Lv { lv: part, .. } = area {
                let is_mirror = matches!(segment.kind, SegmentType::Mirror { .. });
                is_part(*part, if is_mirror { &["mirror", "image"] } else { &[] });
            }
        }
        match &segment.kind {
            SegmentType::Raid { images, metas, .. } => {
                images.iter().for_each(|image| is_part(*image, &["raid", "image"]));
                metas.iter().for_each(|meta| is_part(*meta, &["raid", "metadata"]));
            }
            SegmentType::Mirror { log: Some(log), .. } => is_part(*log, &["mirror", "log"]),
            SegmentType::ThinPool { metadata, data, .. } => {
                is_part(*metadata, &["thin", "pool", "metadata"]);
                is_part(*data, &["thin", "pool", "data"]);
            }
            SegmentType::CachePool { metadata, data, .. } => {
                is_part(*metadata, &["cache", "pool", "metadata"]);
                is_part(*data, &["cache", "pool", "data"]);
            }
            SegmentType::Cache { pool, origin, .. } => {
                is_part(*pool, &["cache", "pool"]);
                is_part(*origin, &["cache", "origin", "cacheorigin"]);
            }
            SegmentType::Writecache { fast, origin } => {
                is_part(*fast, &["cache"]);
                is_part(*origin, &["writecache", "origin", "writecacheorigin"]);
            }
            SegmentType::Snapshot { origin, store, chunk_size, merging } => {
                self.has_thick[origin.0] = true;
                self.snapshot[store.0] = Some((*origin, *chunk_size, *merging));
            }
            SegmentType::Thin { origin, external_origin, .. } => {
                origin.iter().for_each(|origin| self.has_thin[origin.0] = true);
                external_origin.iter().for_each(|origin| self.has_external[origin.0] = true);
            }
            _ => {}
        }
    }

    fn name(&self, lv: LvIndex) -> String {
        self.group.text.lvs[lv.0].name.clone()
    }

    /// As `lvs -o lv_role`.
    fn role(&self, lv: LvIndex) -> Vec<&'static str> {
        let text = &self.group.text.lvs[lv.0];
        let is_pool = matches!(text.segments[0].kind, SegmentType::ThinPool { .. });
        let is_public = self.visible[lv.0] && !is_pool;
        let mut role = vec![if is_public { "public" } else { "private" }];
        if let Some((_, part)) = self.part_of[lv.0] {
            role.extend(part);
        } else if !self.visible[lv.0] && text.name.ends_with("_pmspare") {
            role.extend(["pool", "spare"]);
        }
        let origins = [
            (self.has_thick[lv.0], "thickorigin"),
            (self.has_thin[lv.0], "thinorigin"),
            (self.has_external[lv.0], "extorigin"),
        ];
        if origins.iter().any(|(is_one, _)| *is_one) {
            role.push("origin");
            role.extend(origins.iter().filter(|(is_one, _)| *is_one).map(|(_, kind)| kind));
        }
        let is_thin = matches!(text.segments[0].kind, SegmentType::Thin { origin: Some(_), .. });
        if self.snapshot[lv.0].is_some() {
            role.extend(["snapshot", "thicksnapshot"]);
        } else if is_thin {
            role.extend(["snapshot", "thinsnapshot"]);
        }
        role
    }
}

impl Reader<'_> {
    pub(super) fn lvs_of(&self, relations: &Relations<'_>) -> Vec<LvReport> {
        let lvs = (0..relations.group.lvs.len()).map(LvIndex);
        lvs.filter_map(|lv| Some(self.lv(relations, lv, relations.group.lv(lv)?))).collect()
    }

    fn lv(&self, relations: &Relations<'_>, lv: LvIndex, device: DeviceId) -> LvReport {
        let text = &relations.group.text.lvs[lv.0];
        let name = |lv: LvIndex| relations.name(lv);
        let snapshot = relations.snapshot[lv.0];
        let (mut pool, mut origin) = (None, snapshot.map(|(origin, ..)| name(origin)));
        let mut chunk = snapshot.map(|(_, chunk, _)| chunk);
        let mut merging = snapshot.is_some_and(|(.., merging)| merging);
        match &text.segments[0].kind {
            SegmentType::Thin { pool: own, origin: of, merge, .. } => {
                pool = Some(name(*own));
                origin = of.map(name);
                merging |= merge.is_some();
            }
            SegmentType::Cache { pool: own, origin: of, .. } => {
                pool = Some(name(*own));
                origin = Some(name(*of));
            }
            SegmentType::Writecache { fast, origin: of } => {
                pool = Some(name(*fast));
                origin = Some(name(*of));
            }
            SegmentType::ThinPool { chunk_size, .. } => chunk = Some(*chunk_size),
            SegmentType::CachePool { chunk_size, .. } => chunk = *chunk_size,
            _ => {}
        }
        LvReport {
            name: text.name.clone(),
            lv_uuid: text.id.to_string(),
            visible: relations.visible[lv.0],
            layout: layout(&text.segments),
            role: relations.role(lv),
            parent: relations.part_of[lv.0].map(|(parent, _)| name(parent)),
            pool,
            origin,
            chunk_size: chunk.map(bytes),
            usage: usage(relations.group, lv),
            store: snapshot.map(|_| self.store(relations, lv)),
            merging,
            partial: relations.partial[lv.0],
            writable: text.writable(),
            tags: text.tags.clone(),
            creation_time: text.creation_time,
            creation_host: text.creation_host.clone(),
            segments: text.segments.iter().map(|segment| self.segment(relations, segment)).collect(),
            device: self.device(device),
        }
    }

    fn store(&self, relations: &Relations<'_>, lv: LvIndex) -> StoreReport {
        let status = relations.group.snapshots.get(&lv).and_then(KnownSnapshot::status);
        let used = match status {
            Some(SnapshotStatus::Used { used, .. }) => Some(used.bytes()),
            _ => None,
        };
        StoreReport {
            size: bytes(relations.group.text.lv_sectors(lv)),
            used,
            percent: status.and_then(|status| status.percent()),
            status: status.map(|status| status.to_string()),
        }
    }

    fn segment(&self, relations: &Relations<'_>, segment: &Segment) -> SegmentReport {
        let text = &relations.group.text;
        let of = |extents: u64| bytes(extents.saturating_mul(text.extent_sectors));
        let whole = |lv: LvIndex| self.area(relations, &Area::Lv { lv, extent: 0 });
        let (stripe, areas) = match &segment.kind {
            SegmentType::Raid { images, stripe_size, .. } => {
                (*stripe_size, images.iter().map(|image| whole(*image)).collect())
            }
            SegmentType::Striped { stripe_size, stripes } => {
                (*stripe_size, stripes.iter().map(|area| self.area(relations, area)).collect())
            }
            SegmentType::ThinPool { data, .. } | SegmentType::CachePool { data, .. } => {
                (0, vec![whole(*data)])
            }
            SegmentType::Cache { origin, .. } | SegmentType::Writecache { origin, .. } => {
                (0, vec![whole(*origin)])
            }
            _ => (0, segment.areas().0.iter().map(|area| self.area(relations, area)).collect()),
        };
        SegmentReport {
            start: of(segment.start_extent),
            size: of(segment.extent_count),
            kind: type_name(segment).to_owned(),
            stripe_size: (stripe > 0).then(|| bytes(stripe)),
            areas,
        }
    }

    fn area(&self, relations: &Relations<'_>, area: &Area) -> AreaReport {
        let (group, text) = (relations.group, &relations.group.text);
        match *area {
            Area::Pv { pv, extent } => AreaReport {
                volume: group.pvs[pv.0].as_ref().ok().map(|device| self.name(*device)),
                pv: Some(text.pvs[pv.0].name.clone()),
                start: bytes(
                    extent.saturating_mul(text.extent_sectors).saturating_add(text.pvs[pv.0].pe_start),
                ),
            },
            Area::Lv { lv, extent } => AreaReport {
                volume: group.lv(lv).map(|device| self.name(device)),
                pv: None,
                start: bytes(extent.saturating_mul(text.extent_sectors)),
            },
        }
    }
}

/// How full a pool is, or a volume of one.
fn usage(group: &Group, lv: LvIndex) -> Option<UsageReport> {
    let of_pool = |pool: LvIndex| group.thin_pools.get(&pool)?.usage.as_ref().ok();
    match &group.text.lvs[lv.0].segments[0].kind {
        SegmentType::ThinPool { .. } => {
            let usage = of_pool(lv)?;
            let in_bytes = |blocks: u64| bytes(blocks.saturating_mul(usage.block_sectors));
            let metadata = blockwork_format::thin::BLOCK_BYTES as u64;
            Some(UsageReport {
                data_used: in_bytes(usage.data_used),
                data_percent: percent(usage.data_used, usage.data_blocks),
                metadata_used: Some(usage.metadata_used.saturating_mul(metadata)),
                metadata_percent: Some(percent(usage.metadata_used, usage.metadata_blocks)),
            })
        }
        SegmentType::Thin { .. } => {
            let (pool, device_id) = group.text.thin_device(lv)?;
            let usage = of_pool(pool)?;
            let mapped = usage.mapped(device_id)?;
            // As LVM has it, which counts the block that the end of the volume cuts as a whole one.
            let blocks = group.text.lv_sectors(lv).div_ceil(usage.block_sectors.max(1));
            Some(UsageReport {
                data_used: bytes(mapped.saturating_mul(usage.block_sectors)),
                data_percent: percent(mapped, blocks),
                metadata_used: None,
                metadata_percent: None,
            })
        }
        _ => None,
    }
}

/// A part of a whole in percent, as LVM has it.
fn percent(part: u64, whole: u64) -> f64 {
    percent_as_lvs(100.0 * part as f64 / whole.max(1) as f64)
}

/// Percent as `lvs` shows them, to two places: only nothing is 0, and only all of it 100.
pub fn percent_as_lvs(percent: f64) -> f64 {
    let rounded = (100.0 * percent).round() / 100.0;
    if percent > 0.0 && percent < 100.0 { rounded.clamp(0.01, 99.99) } else { rounded }
}

/// The type as `lvs` calls it: a stripe by itself is linear.
fn type_name(segment: &Segment) -> &str {
    match segment.kind {
        SegmentType::Linear(_) => "linear",
        _ => &segment.type_name,
    }
}

/// As `lvs -o lv_layout`: what all segments are, each word once.
fn layout(segments: &[Segment]) -> Vec<&'static str> {
    let mut words: Vec<&'static str> = Vec::new();
    for word in segments.iter().flat_map(|segment| layout_of(&segment.kind)) {
        if !words.contains(word) {
            words.push(word);
        }
    }
    if let [_, _, ..] = words[..]
        && words.iter().all(|word| matches!(*word, "linear" | "striped" | "zero" | "error"))
    {
        words.sort_unstable();
    }
    words
}

fn layout_of(kind: &SegmentType) -> &'static [&'static str] {
    match kind {
        SegmentType::Linear(_) => &["linear"],
        SegmentType::Striped { .. } => &["striped"],
        SegmentType::Raid { level: RaidLevel::Raid0, .. } => &["raid", "raid0"],
        SegmentType::Raid { level: RaidLevel::Raid0Meta, .. } => &["raid", "raid0", "raid0_meta"],
        SegmentType::Raid { level: RaidLevel::Raid1, .. } => &["raid", "raid1"],
        SegmentType::Raid { level: RaidLevel::Raid10, .. } => &["raid", "raid10"],
        SegmentType::Raid { level: RaidLevel::Parity, .. } => &["raid"],
        SegmentType::Mirror { .. } => &["mirror"],
        SegmentType::Snapshot { .. } => &["snapshot"],
        SegmentType::ThinPool { .. } => &["thin", "pool"],
        SegmentType::Thin { .. } => &["thin", "sparse"],
        SegmentType::CachePool { .. } => &["cache", "pool"],
        SegmentType::Cache { .. } => &["cache"],
        SegmentType::Writecache { .. } => &["writecache"],
        SegmentType::Error => &["error"],
        SegmentType::Zero => &["zero"],
        SegmentType::Unknown => &["unknown"],
    }
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn a_little_is_not_nothing_and_nearly_all_is_not_all() {
        // As `lvs` shows 64 KiB of 1 TiB.
        assert_eq!(percent(1, 1 << 24), 0.01);
        assert_eq!(percent((1 << 24) - 1, 1 << 24), 99.99);
        assert_eq!([percent(0, 3), percent(1, 3), percent(3, 3), percent(0, 0)], [0.0, 33.33, 100.0, 0.0]);
    }
}
