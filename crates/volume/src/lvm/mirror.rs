//! Old mirrors of LVM: one of their copies is read. A write would have to reach all of them, and their log, so they
//! are only read.
//!
//! Which copy counts is as in the kernel: the first, which it believes wherever two may differ; and of a segment that
//! `pvmove` has moved as a whole the last, to which alone it writes from then on. Where the first is missing, another
//! one is read in the regions of which the log on disk says that all copies have the same. Elsewhere that one may be
//! behind, and reads fail, as they do in Linux. Without a log on disk nothing says where that is: what the kernel
//! knew is gone with its memory.

use std::ops::Range;
use std::sync::Arc;

use blockwork_engine::{Layer, NodeKind, Sector, Sectors};
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{Area, LvIndex, Segment as SegmentText, SegmentType};
use blockwork_format::{escape, mirror_log};
use blockwork_layer::{ErrorTarget, Linear, Segment, Table};

use super::stack::{Built, Volume, outside};
use crate::assembly::Assembly;

/// Smallest region that the kernel takes, sectors.
const REGION_SECTORS_MIN: u64 = 8;

/// What a mirror's log says of it.
struct Clean {
    /// Sectors of a region.
    region: u64,
    /// Where runs of regions begin and end in which all copies have the same, sectors.
    runs: Vec<Range<u64>>,
}

impl Volume {
    pub(super) fn mirror(
        &mut self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        segment: &SegmentText,
        alone: bool,
    ) -> Built {
        let SegmentType::Mirror { images, extents_moved, log, region_size } = &segment.kind else {
            unreachable!("only mirrors come here")
        };
        let is_moved = *extents_moved == Some(segment.extent_count);
        let counts = if is_moved { images.last() } else { images.first() }.expect("a mirror has copies");
        let why = match self.area(assembly, text, counts) {
            Ok(_) => return self.linear(assembly, text, segment, counts, alone),
            Err(why) if extents_moved.is_some() => return Err(why),
            Err(why) => why,
        };
        let mut others = images[1..].iter();
        let Some(other) = others.find(|image| self.area(assembly, text, image).is_ok()) else {
            return Err(why);
        };
        let sectors = segment.extent_count * text.extent_sectors;
        let clean = self.clean(assembly, text, *log, *region_size, sectors);
        let clean =
            clean.map_err(|unknown| format!("its first copy cannot be read ({why}), and {unknown}"))?;
        self.warn(assembly, format!("its first copy cannot be read ({why}): {}", clean.told(sectors)));
        match &clean.runs[..] {
            [only] if *only == (0..sectors) => self.linear(assembly, text, segment, other, alone),
            runs => self.in_pieces(assembly, text, segment, other, runs),
        }
    }

    /// What the log says; or why another copy than the first cannot be believed.
    fn clean(
        &self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        log: Option<LvIndex>,
        region: u64,
        sectors: u64,
    ) -> Result<Clean, String> {
        let log = log.ok_or("the others may be behind it: which regions are in sync was not kept on disk")?;
        if text.lvs[self.lv.0].segments.len() > 1 {
            return Err("which of its segments its log is about is not known here".into());
        }
        if region < REGION_SECTORS_MIN || !region.is_power_of_two() {
            return Err(format!("regions of {region} sectors are none that the kernel takes"));
        }
        let name = escape(&text.lvs[log.0].name);
        let unread = |why: &dyn std::fmt::Display| format!("the others may be behind it: {why}");
        let layer = self.part(assembly, text, log).map_err(|why| unread(&why))?;
        let regions = sectors.div_ceil(region);
        let runs = assembly.read(&*layer, |source| mirror_log::read_clean(source, regions));
        let runs = runs.map_err(|error| unread(&format!("{name}: {error}")))?;
        if runs.is_empty() {
            return Err(unread(&format!("no region is in sync, as its log {name} says")));
        }
        let sector = |n: u64| n.saturating_mul(region).min(sectors);
        let in_sectors = |run: Range<u64>| sector(run.start)..sector(run.end);
        Ok(Clean { region, runs: runs.into_iter().map(in_sectors).collect() })
    }

    /// A copy where it is in sync, and errors where it is not.
    fn in_pieces(
        &mut self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        segment: &SegmentText,
        copy: &Area,
        clean: &[Range<u64>],
    ) -> Built {
        let (below, start) = self.area(assembly, text, copy)?;
        let linear = self.node(assembly, NodeKind::Linear, false)?;
        let error = self.node(assembly, NodeKind::Error, false)?;
        let sectors = segment.extent_count * text.extent_sectors;
        let piece = |piece: &Range<u64>, is_clean: bool| -> Built {
            let length = Sectors(piece.end - piece.start);
            if !is_clean {
                return Ok(Arc::new(ErrorTarget::new(error, length)));
            }
            let from = Sector(start.0 + piece.start);
            let linear = Linear::new(linear, below.clone(), from, length);
            Ok(Arc::new(linear.ok_or_else(|| outside(segment, from, length, below.sectors()))?))
        };
        let mut targets: Vec<Segment> = Vec::with_capacity(2 * clean.len() + 1);
        for (range, is_clean) in with_gaps(clean, sectors) {
            targets.push(Segment { start: Sector(range.start), target: piece(&range, is_clean)? });
        }
        let node = self.node(assembly, NodeKind::Table, true)?;
        let table: Arc<dyn Layer> = Arc::new(Table::new(node, targets).map_err(|error| error.to_string())?);
        Ok(table)
    }
}

impl Clean {
    /// What is read in place of the first copy.
    fn told(&self, sectors: u64) -> String {
        let gaps = with_gaps(&self.runs, sectors).filter(|(_, is_clean)| !is_clean).map(|(gap, _)| gap);
        let gaps: Vec<Range<u64>> = gaps.collect();
        let Some(first) = gaps.first() else {
            return "another one is read, which is in sync by its log".into();
        };
        let behind: u64 = gaps.iter().map(|gap| (gap.end - gap.start).div_ceil(self.region)).sum();
        format!(
            "another one is read; {behind} of its {} regions of {} sectors, the first from sector {} on, are not in \
             sync by its log, and give errors",
            sectors.div_ceil(self.region),
            self.region,
            first.start
        )
    }
}

/// All of a mirror in order: its clean runs, and what lies between them.
fn with_gaps(clean: &[Range<u64>], sectors: u64) -> impl Iterator<Item = (Range<u64>, bool)> {
    let starts = clean.iter().map(|run| run.start).chain([sectors]);
    let ends = [0].into_iter().chain(clean.iter().map(|run| run.end));
    let gaps = ends.zip(starts).map(|(end, start)| (end..start, false));
    let runs = clean.iter().map(|run| (run.clone(), true)).chain([(sectors..sectors, true)]);
    gaps.zip(runs).flat_map(|(gap, run)| [gap, run]).filter(|(piece, _)| !piece.is_empty())
}
