//! Volumes with a cache: dm-cache and dm-writecache. They are read only, as a write would have to be told to the cache.
//!
//! Of a cache that writes through, the origin has everything, and is read without the cache, which need not be there. Of others the cache's
//! metadata says which blocks the origin does not have: those are read from the cache, as Linux would from the moment it was activated.

use std::num::NonZeroU64;
use std::sync::Arc;

use blockwork_engine::{Layer, NodeId, NodeKind, Sector, Sectors};
use blockwork_format::FormatError;
use blockwork_format::cache::{Kept, blocks, writes};
use blockwork_format::escape;
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{Area, LvIndex, Segment, SegmentType};
use blockwork_layer::{Linear, Overlay, OverlayConfig};

use super::stack::{Built, Volume};
use crate::assembly::Assembly;

/// Whether a cached volume's origin has all that was written to it. LVM lets nobody change to such a mode before that is so.
fn is_written_through(vg: &VolumeGroup, cached: &SegmentType) -> bool {
    let SegmentType::Cache { pool, mode, is_cleaning, .. } = cached else { return false };
    let of_pool = vg.lvs[pool.0].segments.iter().find_map(|segment| match &segment.kind {
        SegmentType::CachePool { mode, .. } => mode.as_deref(),
        _ => None,
    });
    !is_cleaning && matches!(mode.as_deref().or(of_pool), Some("writethrough" | "passthrough"))
}

impl Volume {
    /// The layer of a volume with a cache.
    pub(super) fn cache(
        &mut self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        segment: &Segment,
        alone: bool,
    ) -> Built {
        let SegmentType::Cache { pool, origin, parts, .. } = segment.kind else {
            unreachable!("only cached segments come here")
        };
        let whole = Area::Lv { lv: origin, extent: 0 };
        if is_written_through(text, &segment.kind) {
            return self.linear(assembly, text, segment, &whole, alone);
        }
        let (metadata, data, parts) = match (&text.lvs[pool.0].segments[0].kind, parts) {
            (SegmentType::CachePool { data, metadata, .. }, _) => (*metadata, *data, None),
            (_, Some(parts)) => (pool, pool, Some(parts)),
            _ => {
                let pool = escape(&text.lvs[pool.0].name);
                return Err(format!(
                    "its cache {pool} is no pool, and where its metadata is there is not said"
                ));
            }
        };
        let (mut metadata, mut data) =
            (self.fast(assembly, text, metadata)?, self.fast(assembly, text, data)?);
        if let Some(parts) = parts {
            metadata = self.part_of(assembly, metadata, parts.metadata)?;
            data = self.part_of(assembly, data, parts.data)?;
        }
        let read = assembly.read(&*metadata, |source| blocks::read(source));
        let found = read.map_err(|error| self.unread(text, pool, &error))?;
        let Some((superblock, kept)) = found else {
            return self.linear(assembly, text, segment, &whole, alone);
        };
        if superblock.needs_check {
            let warning = "Linux met an error in the metadata of its cache and set the flag needs_check: it is read as it is, \
                           `lvconvert --repair` mends it";
            self.warn(assembly, warning.into());
        }
        let node = self.node(assembly, NodeKind::Cache, alone)?;
        self.overlay(assembly, text, segment, node, (origin, data, kept))
    }

    /// The layer of a volume whose writes go to a fast device first.
    pub(super) fn writecache(
        &mut self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        segment: &Segment,
        alone: bool,
    ) -> Built {
        let SegmentType::Writecache { fast, origin } = segment.kind else {
            unreachable!("only segments with a writecache come here")
        };
        let layer = self.fast(assembly, text, fast)?;
        let read = assembly.read(&*layer, |source| writes::read(source));
        match read.map_err(|error| self.unread(text, fast, &error))? {
            None => self.linear(assembly, text, segment, &Area::Lv { lv: origin, extent: 0 }, alone),
            Some(kept) => {
                let node = self.node(assembly, NodeKind::Writecache, alone)?;
                self.overlay(assembly, text, segment, node, (origin, layer, kept))
            }
        }
    }

    /// A part of the cache, without which nobody knows what the volume has.
    fn fast(&self, assembly: &mut Assembly, text: &VolumeGroup, lv: LvIndex) -> Built {
        self.part(assembly, text, lv).map_err(|why| {
            format!("{why}; it may hold what its origin does not: give the disk with its cache, too")
        })
    }

    /// What the one volume with metadata and data has as one of them, as LVM makes a device of each.
    fn part_of(
        &mut self,
        assembly: &mut Assembly,
        whole: Arc<dyn Layer>,
        (start, sectors): (u64, u64),
    ) -> Built {
        let (size, node) = (whole.sectors(), self.node(assembly, NodeKind::Linear, false)?);
        let part = Linear::new(node, whole, Sector(start), Sectors(sectors));
        let part = part.ok_or_else(|| {
            format!("its cache needs {sectors} sectors from {start} on of a volume of {size}")
        })?;
        Ok(Arc::new(part))
    }

    fn unread(&self, text: &VolumeGroup, lv: LvIndex, error: &FormatError) -> String {
        format!("its cache {}: {error}", escape(&text.lvs[lv.0].name))
    }

    fn overlay(
        &self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        segment: &Segment,
        node: NodeId,
        (origin, fast, kept): (LvIndex, Arc<dyn Layer>, Kept),
    ) -> Built {
        let (origin, sectors) =
            (self.part(assembly, text, origin)?, segment.extent_count * text.extent_sectors);
        if origin.sectors().0 != sectors {
            let found = origin.sectors();
            return Err(format!("its origin has {found} sectors, and it has {}", Sectors(sectors)));
        }
        let block = NonZeroU64::new(kept.block_sectors).expect("a block has sectors");
        let config = OverlayConfig { origin, fast, block, start: Sector(kept.start), blocks: kept.blocks };
        let overlay = Overlay::new(node, config).map_err(|error| format!("its cache: {error}"))?;
        Ok(Arc::new(overlay))
    }
}
