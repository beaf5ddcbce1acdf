//! Volumes that become larger or smaller: linear and striped ones, stores of snapshots, thin pools and their volumes. (RAID volumes:
//! `resize_raid.rs`.)
//!
//! A volume grows as its last segment is made: as many stripes, of the same size. What follows its last extents directly becomes
//! part of that segment, as in LVM. What is cut off a volume is cut off at its end. An origin only grows, and its snapshots stay
//! as long as they are.

use blockwork_format::escape;
use blockwork_format::lvm2::vg::{Area, Lv, LvIndex, PvIndex, Segment, SegmentType};
use blockwork_format::lvm2::{Entry, Node, Section};
use serde::{Deserialize, Serialize};

use super::allocate::{Column, Policy, Request, Round, allocate};
use super::create::{is_or_are, room};
use super::draft::{Draft, lv_section, unused};
use super::error::{EditError, bytes_shown};
use super::section::{number, segment_key, striped};

/// How large a volume is to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resize {
    /// So many bytes, rounded up to whole extents.
    ToBytes(u64),
    /// Larger by so many bytes.
    MoreBytes(u64),
    /// Smaller by so many bytes.
    LessBytes(u64),
    /// So many extents.
    ToExtents(u64),
    /// Larger by so many extents.
    MoreExtents(u64),
    /// Smaller by so many extents.
    LessExtents(u64),
    /// Larger by so many hundredths of what is free.
    MorePercentFree(u64),
}

impl Resize {
    /// As much as there is room for will do, as for LVM.
    pub(super) fn is_approximate(self) -> bool {
        matches!(self, Resize::MorePercentFree(_))
    }
}

impl std::fmt::Display for Resize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Resize::ToBytes(bytes) => f.write_str(&bytes_shown(*bytes)),
            Resize::MoreBytes(bytes) => write!(f, "+{}", bytes_shown(*bytes)),
            Resize::LessBytes(bytes) => write!(f, "-{}", bytes_shown(*bytes)),
            Resize::ToExtents(extents) => write!(f, "{extents} extents"),
            Resize::MoreExtents(extents) => write!(f, "+{extents} extents"),
            Resize::LessExtents(extents) => write!(f, "-{extents} extents"),
            Resize::MorePercentFree(hundredths) => write!(f, "+{hundredths}%FREE"),
        }
    }
}

/// What became of a volume's size, extents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resized {
    /// Before.
    pub from: u64,
    /// Now.
    pub to: u64,
    /// Why it is less than was asked for.
    pub capped: Option<String>,
}

/// The last segment, as far as growing goes by it.
pub(super) struct End {
    /// Where each stripe would go on.
    pub(super) columns: Vec<Column>,
    /// Sectors of a chunk; 0 for one stripe.
    stripe_size: u64,
    /// Extents of the segment.
    pub(super) extents: u64,
    /// Where it begins.
    pub(super) start: u64,
}

impl Draft {
    /// Makes a volume larger or smaller. File systems in it are not told: `may_shrink` says that whoever asks knows.
    ///
    /// # Errors
    ///
    /// No such volume, no room, or a kind of volume whose size is not changed here.
    pub fn resize_volume(
        &mut self,
        name: &str,
        resize: Resize,
        may_shrink: bool,
    ) -> Result<Resized, EditError> {
        let lv = self.visible(name)?;
        self.check_no_external_origin(lv)?;
        self.check_not_split_off(lv)?;
        match self.group().lvs[lv.0].segments[0].kind {
            SegmentType::Thin { .. } => return self.resize_thin(name, resize, may_shrink),
            SegmentType::ThinPool { .. } => return self.grow_pool(name, resize),
            SegmentType::Raid { .. } => {
                self.check_kind(lv)?;
                return self.grow_raid(name, lv, resize);
            }
            _ => {}
        }
        self.check_kind(lv)?;
        let (from, to) = self.new_extents(lv, resize, self.end(lv)?.columns.len() as u64)?;
        let (to, capped) = self.capped_store(lv, from, to);
        if to < from {
            self.check_shrink(name, lv, from, to, may_shrink)?;
        }
        let to = self.resize_to(name, lv, (from, to), resize.is_approximate())?;
        Ok(Resized { from, to, capped })
    }

    /// The same for a volume of which others are made: whoever asks looks after these.
    pub(super) fn resize_plain(
        &mut self,
        name: &str,
        lv: LvIndex,
        resize: Resize,
    ) -> Result<Resized, EditError> {
        let (from, to) = self.new_extents(lv, resize, self.end(lv)?.columns.len() as u64)?;
        let to = self.resize_to(name, lv, (from, to), resize.is_approximate())?;
        Ok(Resized { from, to, capped: None })
    }

    /// How many extents it has then.
    fn resize_to(
        &mut self,
        name: &str,
        lv: LvIndex,
        (from, to): (u64, u64),
        approximate: bool,
    ) -> Result<u64, EditError> {
        if to > from || approximate {
            let end = self.end(lv)?;
            return Ok(from + self.grow(name, lv, &end, to - from, approximate)?);
        }
        if to < from {
            self.shrink(name, lv, to)?;
        }
        Ok(to)
    }

    /// Extents before and after.
    pub(super) fn new_extents(
        &self,
        lv: LvIndex,
        resize: Resize,
        stripes: u64,
    ) -> Result<(u64, u64), EditError> {
        let volume = &self.group().lvs[lv.0];
        let from = volume.extents();
        let to = self.target(resize, volume, stripes);
        match to {
            Some(to) if (1..=self.group().extents_max()).contains(&to) => Ok((from, to)),
            _ if to == Some(0) || matches!(resize, Resize::LessBytes(_) | Resize::LessExtents(_)) => {
                let expected = format!("at least 1 extent to be left of {from}");
                let found = resize.to_string();
                Err(EditError::Value { what: "the size", found, expected })
            }
            _ => Err(self.too_large(resize.to_string())),
        }
    }

    /// Extents after the change, whole stripes at its end; none where there is no such number.
    fn target(&self, resize: Resize, lv: &Lv, stripes: u64) -> Option<u64> {
        let from = lv.extents();
        let extents = |bytes: u64| bytes.div_ceil(self.group().extent_sectors * 512);
        let to = match resize {
            Resize::ToBytes(bytes) => extents(bytes),
            Resize::MoreBytes(bytes) => from.checked_add(extents(bytes))?,
            Resize::LessBytes(bytes) => from.checked_sub(bytes / (self.group().extent_sectors * 512))?,
            Resize::ToExtents(extents) => extents,
            Resize::MoreExtents(extents) => from.checked_add(extents)?,
            Resize::LessExtents(extents) => from.checked_sub(extents)?,
            Resize::MorePercentFree(hundredths) => {
                // `lvextend` rounds up, and `lvcreate` down; to whole stripes it rounds up as long as so much is free at all.
                let free = self.free().total();
                let part = (u128::from(free) * u128::from(hundredths)).div_ceil(100);
                let more = u64::try_from(part).ok()?;
                let up = more.checked_next_multiple_of(stripes).filter(|up| *up <= free);
                return from.checked_add(up.unwrap_or(more / stripes * stripes));
            }
        };
        let to = if to >= from {
            from.checked_add((to - from).checked_next_multiple_of(stripes)?)?
        } else {
            lv.segments.iter().find(|segment| to < segment.start_extent + segment.extent_count).map(
                |segment| {
                    // A volume of a pool has none.
                    let stripes = segment.areas().0.len().max(1) as u64;
                    segment.start_extent + (to - segment.start_extent).next_multiple_of(stripes)
                },
            )?
        };
        Some(to)
    }

    fn check_kind(&self, lv: LvIndex) -> Result<(), EditError> {
        let vg = self.group();
        let name = &vg.lvs[lv.0].name;
        let on_it = vg.lvs.iter().find(|other| {
            other.segments.iter().filter(|segment| !is_tie(segment)).any(|segment| {
                let (areas, _) = segment.areas();
                areas.iter().any(|area| matches!(area, Area::Lv { lv: on, .. } if *on == lv))
                    || segment.kind.whole_lvs().contains(&lv)
                    || segment.kind.shared_lvs().contains(&lv)
            })
        });
        if let Some(other) = on_it {
            let why = format!("{} is made of it, and has to be changed with it", escape(&other.name));
            return Err(EditError::volume(name, why));
        }
        Ok(())
    }

    pub(super) fn end(&self, lv: LvIndex) -> Result<End, EditError> {
        let lv = &self.group().lvs[lv.0];
        for segment in &lv.segments {
            let plain = matches!(segment.kind, SegmentType::Linear(_) | SegmentType::Striped { .. })
                && segment.type_flags.is_empty();
            if !plain || on_pvs(segment).is_none() {
                let why = format!(
                    "it is of type {}, and only linear, striped, RAID and thin volumes are resized here: use `lvresize`",
                    escape(&segment.type_name)
                );
                return Err(EditError::volume(&lv.name, why));
            }
        }
        let last = lv.segments.last().expect("an LV has a segment");
        let (starts, count) = (on_pvs(last).expect("it was looked at"), last.areas().1);
        let stripe_size = match &last.kind {
            SegmentType::Striped { stripe_size, .. } => *stripe_size,
            _ => 0,
        };
        let heads = lv.segments.first().and_then(on_pvs).unwrap_or_default();
        let column = |(nth, (pv, start)): (usize, (PvIndex, u64))| Column {
            end: (pv, start + count),
            head: heads.get(nth).map(|(pv, _)| *pv),
        };
        let columns = starts.into_iter().enumerate().map(column).collect();
        Ok(End { columns, stripe_size, extents: last.extent_count, start: last.start_extent })
    }

    /// How many extents it has got.
    fn grow(
        &mut self,
        name: &str,
        lv: LvIndex,
        end: &End,
        more: u64,
        approximate: bool,
    ) -> Result<u64, EditError> {
        let stripes = end.columns.len() as u64;
        // What asks for a part of nothing asks for more than there is.
        let more = if more == 0 { stripes } else { more };
        let policy = self.policy(self.group().lvs[lv.0].allocation_policy.as_deref());
        let mut free = self.free();
        let request = Request {
            extents: more / stripes,
            columns: end.columns.len(),
            there: end.columns.clone(),
            first: 1,
            apart: None,
            policy,
            approximate,
        };
        let Some(rounds) = allocate(&mut free, &request) else {
            let each = self.extents_shown(more / stripes);
            let needed = match (stripes, policy) {
                (1, Policy::Normal) => format!("{each} more {}", is_or_are(more)),
                (1, _) => format!("{each} more {}, in the place that its policy wants,", is_or_are(more)),
                (_, _) => format!("{each} more on each of {stripes} physical volumes are"),
            };
            return Err(room(self, &free, needed));
        };
        let got = rounds.iter().map(|round| round.count).sum::<u64>() * stripes;
        self.change(|vg, old| {
            let section = lv_section(vg, name);
            let mut rounds = &rounds[..];
            let mut start = end.start + end.extents;
            if let Some((first, rest)) = rounds.split_first().filter(|(first, _)| follows(end, first)) {
                let added = first.count * stripes;
                let last = segment_at(section, end.start);
                last.set("extent_count", number(end.extents + added));
                start += added;
                rounds = rest;
            }
            for round in rounds {
                add_segment(section, striped(old, start, round.count, end.stripe_size, &round.starts));
                start += round.count * stripes;
            }
            Ok(())
        })?;
        Ok(got)
    }

    pub(super) fn check_shrink(
        &self,
        name: &str,
        lv: LvIndex,
        from: u64,
        to: u64,
        may_shrink: bool,
    ) -> Result<(), EditError> {
        if self.group().snapshots().any(|snapshot| snapshot.origin == lv) {
            let why = "it has snapshots, which need what lies at its end; it can only become larger";
            return Err(EditError::volume(name, why));
        }
        if self.group().snapshot_in(lv).is_some() {
            return Err(EditError::volume(
                name,
                "it is a snapshot, and what it has stored may lie at its end",
            ));
        }
        if may_shrink {
            return Ok(());
        }
        let why = format!(
            "shrinking it from {} to {} destroys what lies behind, and its file system does not shrink by itself: shrink that \
             first (`resize2fs`), then add --force",
            self.extents_shown(from),
            self.extents_shown(to)
        );
        Err(EditError::volume(name, why))
    }

    fn shrink(&mut self, name: &str, lv: LvIndex, to: u64) -> Result<(), EditError> {
        let segments: Vec<(u64, u64)> = self.group().lvs[lv.0]
            .segments
            .iter()
            .map(|segment| (segment.start_extent, segment.extent_count))
            .collect();
        self.change(|vg, _| {
            let section = lv_section(vg, name);
            for (start, count) in segments {
                if start >= to {
                    remove_segment(section, start);
                } else if start + count > to {
                    segment_at(section, start).set("extent_count", number(to - start));
                }
            }
            Ok(())
        })
    }
}

fn is_tie(segment: &Segment) -> bool {
    matches!(segment.kind, SegmentType::Snapshot { .. })
}

/// Where the stripes of a segment begin, where all of them are on PVs.
fn on_pvs(segment: &Segment) -> Option<Vec<(PvIndex, u64)>> {
    let start = |area: &Area| match *area {
        Area::Pv { pv, extent } => Some((pv, extent)),
        Area::Lv { .. } => None,
    };
    segment.areas().0.iter().map(start).collect()
}

/// Whether a round continues every stripe where it ends.
fn follows(end: &End, round: &Round) -> bool {
    end.columns.iter().zip(&round.starts).all(|(column, start)| column.end == *start)
}

/// Where a segment begins; none of what is no segment, whatever keys it has.
fn start_of(entry: &Entry) -> Option<u64> {
    let segment = entry.node.as_section().filter(|_| entry.key.starts_with("segment"))?;
    match segment.get("start_extent")? {
        Node::Value(value) => u64::try_from(value.as_integer()?).ok(),
        Node::Array(_) | Node::Section(_) => None,
    }
}

/// The only segment of an LV: what it is called is for whoever wrote it to say.
pub(super) fn only_segment(section: &mut Section) -> &mut Section {
    segment_at(section, 0)
}

/// The segment of an LV that begins at an extent.
pub(super) fn segment_at(section: &mut Section, start: u64) -> &mut Section {
    let entry = section.entries.iter_mut().find(|entry| start_of(entry) == Some(start));
    match entry.map(|entry| &mut entry.node) {
        Some(Node::Section(segment)) => segment,
        _ => unreachable!("a segment of the view is in the tree"),
    }
}

fn remove_segment(section: &mut Section, start: u64) {
    section.entries.retain(|entry| start_of(entry) != Some(start));
    count_segments(section);
}

pub(super) fn add_segment(section: &mut Section, segment: Section) {
    let key = unused(|n| segment_key(n + 1), |key| section.get(key).is_some());
    section.set(&key, Node::Section(segment));
    count_segments(section);
}

fn count_segments(section: &mut Section) {
    let count = section.entries.iter().filter(|entry| start_of(entry).is_some()).count();
    section.set("segment_count", number(count as u64));
}
