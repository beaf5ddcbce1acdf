//! RAID volumes that become larger, and the data or the map of a pool that is one: every leg by as many extents.
//!
//! Only the text changes here. The metadata volumes of the legs keep their superblocks, which tell of the array as it was: whoever serves
//! the volume next, the kernel or we, finds it larger than that, and resyncs what is new; who serves it already does so once the text is
//! written. A text that was cut off on its way so leaves nothing behind that contradicts it.
//!
//! Invariants: (1) legs stay on PVs of their own; (2) a bitmap has room for the bits of the new size in the metadata volume that is
//! there: where it has none, the volume does not grow.

use blockwork_format::escape;
use blockwork_format::lvm2::vg::{Area, LvIndex, PvIndex, RaidLevel, SegmentType};
use blockwork_format::lvm2::{Section, VolumeGroup};

use super::super::raid::parity_layout;
use super::allocate::{Request, Round, allocate};
use super::create::{columns, joined, room};
use super::data::Piece;
use super::draft::{Draft, lv_section};
use super::error::EditError;
use super::raid::{REGIONS_MAX, meta_extents_min};
use super::resize::{End, Resize, Resized, add_segment, only_segment, segment_at};
use super::section::{number, striped};

/// What a volume is made of.
struct Legs {
    images: Vec<LvIndex>,
    /// Where the data of each would go on.
    ends: Vec<End>,
    /// The PVs that each is on.
    pvs: Vec<Vec<PvIndex>>,
    /// Legs with different data.
    stripes: u64,
    /// How often each extent is there; a parity is no copy.
    copies: u64,
}

impl Draft {
    /// Makes a volume larger. It is a RAID.
    pub(super) fn grow_raid(
        &mut self,
        name: &str,
        lv: LvIndex,
        resize: Resize,
    ) -> Result<Resized, EditError> {
        self.check_no_split_image(lv)?;
        let legs = self.legs(lv)?;
        let (from, wanted) = self.new_extents(lv, self.of_volume(resize, &legs), legs.stripes)?;
        if wanted < from {
            let why = "a RAID volume only becomes larger here: use `lvreduce` to make it smaller";
            return Err(EditError::volume(name, why));
        }
        let each = (wanted - from) / legs.stripes;
        let approximate = resize.is_approximate();
        let rounds = self.place_more(lv, &legs, each, approximate);
        let rounds = rounds.filter(|rounds| !(approximate && rounds.is_empty()));
        let rounds = rounds.ok_or_else(|| self.no_room_for(&legs, each))?;
        let to = from + legs.stripes * rounds.iter().map(|round| round.count).sum::<u64>();
        self.check_bitmap(lv, to)?;
        self.change(|vg, old| {
            for ((image, end), runs) in legs.images.iter().zip(&legs.ends).zip(columns(&rounds)) {
                append(lv_section(vg, &old.lvs[image.0].name), old, end, &runs);
            }
            only_segment(lv_section(vg, name)).set("extent_count", number(to));
            Ok(())
        })?;
        Ok(Resized { from, to, capped: None })
    }

    fn legs(&self, lv: LvIndex) -> Result<Legs, EditError> {
        let vg = self.group();
        let volume = &vg.lvs[lv.0];
        let refuse = |why: &str| {
            let kind = escape(&volume.segments[0].type_name);
            Err(EditError::volume(&volume.name, format!("it is of type {kind}, and {why}: use `lvextend`")))
        };
        let [segment] = &volume.segments[..] else { return refuse("of several segments") };
        let SegmentType::Raid { level, images, metas, data_copies, .. } = &segment.kind else {
            unreachable!("only RAID volumes come here")
        };
        let count = images.len() as u64;
        let form = match level {
            RaidLevel::Raid0 | RaidLevel::Raid0Meta => Some((count, 1)),
            RaidLevel::Raid1 => Some((1, count)),
            RaidLevel::Raid10 => {
                let copies = data_copies.unwrap_or(2).max(2);
                count.is_multiple_of(copies).then_some((count / copies, copies))
            }
            RaidLevel::Parity => parity_layout(segment).ok().map(|layout| (layout.data_disks().into(), 1)),
        };
        let Some((stripes, copies)) = form.filter(|_| segment.type_flags.is_empty()) else {
            return refuse("of a form that is not resized here");
        };
        if images.iter().any(|image| vg.lvs[image.0].extents().saturating_mul(stripes) != volume.extents()) {
            return refuse("its legs have room that it does not use");
        }
        let ends: Vec<End> = images.iter().map(|image| self.end(*image)).collect::<Result<_, _>>()?;
        if ends.iter().any(|end| end.columns.len() != 1) {
            return refuse("its legs are striped");
        }
        let pvs_of = |(nth, image): (usize, &LvIndex)| {
            [Some(image), metas.get(nth)].into_iter().flatten().flat_map(|part| pvs_of(vg, *part)).collect()
        };
        let pvs = images.iter().enumerate().map(pvs_of).collect();
        Ok(Legs { images: images.clone(), ends, pvs, stripes, copies })
    }

    /// Hundredths of what is free are extents of PVs. `lvextend` counts copies, and no parities, and rounds down to whole stripes.
    fn of_volume(&self, resize: Resize, legs: &Legs) -> Resize {
        let Resize::MorePercentFree(hundredths) = resize else { return resize };
        let part = (u128::from(self.free().total()) * u128::from(hundredths)).div_ceil(100);
        let more = u64::try_from(part).unwrap_or(u64::MAX) / legs.copies;
        Resize::MoreExtents(more / legs.stripes * legs.stripes)
    }

    /// Runs for `each` more extents of every leg, or for as many as there is room for if that will do.
    fn place_more(&self, lv: LvIndex, legs: &Legs, each: u64, approximate: bool) -> Option<Vec<Round>> {
        let request = Request {
            extents: each,
            columns: legs.ends.len(),
            there: legs.ends.iter().map(|end| end.columns[0]).collect(),
            first: 1,
            apart: Some(&legs.pvs),
            policy: self.policy(self.group().lvs[lv.0].allocation_policy.as_deref()),
            approximate,
        };
        allocate(&mut self.free(), &request)
    }

    fn no_room_for(&self, legs: &Legs, each: u64) -> EditError {
        let more = self.extents_shown(each.max(1));
        let needed =
            format!("{more} more on each of {} physical volumes, one for each leg, are", legs.ends.len());
        room(self, &self.free(), needed)
    }

    /// Whether the bitmaps that are there can tell of a volume of so many extents.
    fn check_bitmap(&self, lv: LvIndex, extents: u64) -> Result<(), EditError> {
        let vg = self.group();
        let volume = &vg.lvs[lv.0];
        let SegmentType::Raid { level, metas, region_size, .. } = &volume.segments[0].kind else {
            unreachable!("only RAID volumes come here")
        };
        // With a parity, a bit is for what is at one place of all legs.
        let legs = match parity_layout(&volume.segments[0]) {
            Ok(layout) if *level == RaidLevel::Parity => u64::from(layout.data_disks()),
            _ => 1,
        };
        let sectors = extents * vg.extent_sectors / legs;
        let room = metas.iter().map(|meta| vg.lvs[meta.0].extents()).min();
        let is_full = |room: u64| {
            *region_size > 0
                && (sectors.div_ceil(*region_size) > REGIONS_MAX
                    || meta_extents_min(vg.extent_sectors, sectors, *region_size) > room)
        };
        if room.is_some_and(is_full) {
            let why = format!(
                "its bitmaps have no room for the bits of {}, at {} sectors each; give it larger regions first \
                 (`lvconvert --regionsize`)",
                self.extents_shown(extents),
                region_size
            );
            return Err(EditError::volume(&volume.name, why));
        }
        Ok(())
    }
}

fn pvs_of(vg: &VolumeGroup, lv: LvIndex) -> Vec<PvIndex> {
    let areas = vg.lvs[lv.0].segments.iter().flat_map(|segment| segment.areas().0);
    let pv = |area: &Area| match *area {
        Area::Pv { pv, .. } => Some(pv),
        Area::Lv { .. } => None,
    };
    areas.filter_map(pv).collect()
}

/// Lets a leg go on in these runs.
fn append(section: &mut Section, vg: &VolumeGroup, end: &End, runs: &[Piece]) {
    let mut runs = joined(runs).into_iter().peekable();
    let mut start = end.start + end.extents;
    if let Some((_, count)) = runs.next_if(|(at, _)| *at == end.columns[0].end) {
        segment_at(section, end.start).set("extent_count", number(end.extents + count));
        start += count;
    }
    for (at, count) in runs {
        add_segment(section, striped(vg, start, count, 0, &[at]));
        start += count;
    }
}
