//! What must be true of a VG beyond its single sections: see the invariants in the module's head.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::{
    Area, EXTENTS_MAX, Lv, LvIndex, RaidLevel, SECTORS_MAX, STACK_MAX, Segment, SegmentType, VolumeGroup,
};
use crate::bytes::length;
use crate::lvm2::{Uuid, text::PLACE};
use crate::{ErrorKind, FormatError};

/// Checks everything; each check relies on those before it.
pub(super) fn volume_group(vg: &VolumeGroup) -> Result<(), FormatError> {
    pvs(vg)?;
    uuids_are_unique(vg)?;
    for lv in &vg.lvs {
        segments_follow_each_other(vg, lv)?;
    }
    for lv in &vg.lvs {
        for segment in &lv.segments {
            areas_lie_inside(vg, lv, segment)?;
            geometry(vg, lv, segment)?;
        }
    }
    nothing_is_used_twice(vg)?;
    nothing_is_made_of_itself(vg)
}

fn wrong(
    vg: &VolumeGroup,
    line: u64,
    field: &'static str,
    found: impl Display,
    place: impl Display,
    expected: impl Display,
) -> FormatError {
    let found = format!("{found} (in {}/{place})", vg.name);
    FormatError::line(ErrorKind::Invalid, PLACE, line, field, found, expected)
}

fn in_lv(
    vg: &VolumeGroup,
    lv: &Lv,
    segment: &Segment,
    field: &'static str,
    found: impl Display,
    expected: impl Display,
) -> FormatError {
    let nth = lv.segments.iter().position(|other| std::ptr::eq(other, segment)).map_or(0, |nth| nth + 1);
    wrong(vg, segment.line, field, found, format_args!("logical_volumes/{}/segment{nth}", lv.name), expected)
}

fn pvs(vg: &VolumeGroup) -> Result<(), FormatError> {
    let most = u64::from(u32::MAX);
    if !(1..=most).contains(&vg.extent_sectors) {
        let error = format!("extent_size {}", vg.extent_sectors);
        return Err(wrong(vg, 1, "extent size", error, "", "1 to 2^32 - 1 sectors"));
    }
    for pv in &vg.pvs {
        let place = format_args!("physical_volumes/{}", crate::escape(&pv.name));
        if pv.pe_count > EXTENTS_MAX {
            let expected = format!("at most {EXTENTS_MAX}, as LVM counts in 32 bits");
            return Err(wrong(vg, pv.line, "pe_count", pv.pe_count, place, expected));
        }
        let end = pv.pe_count.checked_mul(vg.extent_sectors).and_then(|size| size.checked_add(pv.pe_start));
        if end.is_none_or(|end| end > SECTORS_MAX) || pv.dev_sectors.is_some_and(|size| size > SECTORS_MAX) {
            let found = format!("{} extents from sector {}", pv.pe_count, pv.pe_start);
            return Err(wrong(vg, pv.line, "size of a PV", found, place, "less than 2^63 bytes"));
        }
    }
    Ok(())
}

fn uuids_are_unique(vg: &VolumeGroup) -> Result<(), FormatError> {
    let pvs: Vec<_> = vg.pvs.iter().map(|pv| (pv.id, pv.line, crate::escape(&pv.name))).collect();
    let lvs: Vec<_> = vg.lvs.iter().map(|lv| (lv.id, lv.line, lv.name.clone())).collect();
    for (list, members) in [("physical_volumes", pvs), ("logical_volumes", lvs)] {
        let mut seen: BTreeMap<Uuid, String> = BTreeMap::new();
        for (id, line, name) in members {
            if let Some(first) = seen.insert(id, name.clone()) {
                let found = format!("{id}, as that of {first}");
                return Err(wrong(vg, line, "id", found, format_args!("{list}/{name}"), "an id of its own"));
            }
        }
    }
    Ok(())
}

fn segments_follow_each_other(vg: &VolumeGroup, lv: &Lv) -> Result<(), FormatError> {
    let most = vg.extents_max();
    let mut next = 0;
    for segment in &lv.segments {
        if segment.start_extent != next {
            let found = segment.start_extent;
            return Err(in_lv(
                vg,
                lv,
                segment,
                "start_extent",
                found,
                format!("{next}, where the one before ends"),
            ));
        }
        next += segment.extent_count;
        if next > most {
            let expected = format!("at most {most} (less than 2^32, and less than 2^63 bytes)");
            return Err(in_lv(vg, lv, segment, "extents of an LV", next, expected));
        }
    }
    Ok(())
}

fn areas_lie_inside(vg: &VolumeGroup, lv: &Lv, segment: &Segment) -> Result<(), FormatError> {
    let (areas, count) = segment.areas();
    for area in areas {
        let (name, extent, size) = match *area {
            Area::Pv { pv, extent } => (&vg.pvs[pv.0].name, extent, vg.pvs[pv.0].pe_count),
            Area::Lv { lv, extent } => (&vg.lvs[lv.0].name, extent, vg.lvs[lv.0].extents()),
        };
        if extent.checked_add(count).is_none_or(|end| end > size) {
            let found = format!("{count} extents from {extent} of {}", crate::escape(name));
            return Err(in_lv(vg, lv, segment, "area", found, format!("an end at {size} at most")));
        }
    }
    Ok(())
}

/// What the sizes of a segment and of its parts have to do with each other.
fn geometry(vg: &VolumeGroup, lv: &Lv, segment: &Segment) -> Result<(), FormatError> {
    match &segment.kind {
        SegmentType::Striped { stripe_size, stripes } => {
            let stripe = segment.extent_count / length(stripes.len()) * vg.extent_sectors;
            if !stripe.is_multiple_of(*stripe_size) {
                let expected = format!("a divisor of the {stripe} sectors of a stripe");
                return Err(in_lv(vg, lv, segment, "stripe_size", stripe_size, expected));
            }
        }
        SegmentType::Raid { level, images, data_copies, reshape_extents, .. } => {
            let legs = length(images.len());
            let copies = match level {
                RaidLevel::Raid0 | RaidLevel::Raid0Meta => 1,
                RaidLevel::Raid1 => legs,
                RaidLevel::Raid10 => data_copies.unwrap_or(2).max(2),
                // Their parity, and the extents that a reshape needs, are the business of whoever serves them.
                RaidLevel::Parity => return Ok(()),
            };
            if copies > legs {
                return Err(in_lv(
                    vg,
                    lv,
                    segment,
                    "data_copies",
                    copies,
                    format!("at most the {legs} legs"),
                ));
            }
            let (copies, legs) = (u128::from(copies), u128::from(legs));
            let beside = u128::from(*reshape_extents);
            let data = u128::from(segment.extent_count).saturating_sub(beside * legs);
            let needed = (data * copies).div_ceil(legs) + beside;
            for image in images {
                let image = &vg.lvs[image.0];
                if u128::from(image.extents()) < needed {
                    let found = format!("{} extents of {}", image.extents(), image.name);
                    return Err(in_lv(vg, lv, segment, "leg of a RAID", found, format!("at least {needed}")));
                }
            }
        }
        SegmentType::ThinPool { data, .. } => {
            let (found, size) = (segment.extent_count, vg.lvs[data.0].extents());
            if found > size {
                let expected = format!("at most {size}, as its data LV has");
                return Err(in_lv(vg, lv, segment, "extent_count", found, expected));
            }
        }
        _ => {}
    }
    Ok(())
}

/// A range of extents that somebody uses: of which volume, from where to where, who.
struct Use<'a> {
    /// PVs first, then LVs.
    volume: (bool, usize),
    start: u64,
    end: u64,
    by: (&'a Lv, &'a Segment),
}

fn nothing_is_used_twice(vg: &VolumeGroup) -> Result<(), FormatError> {
    let mut uses = Vec::new();
    for lv in &vg.lvs {
        for segment in &lv.segments {
            let by = (lv, segment);
            let (areas, count) = segment.areas();
            uses.extend(areas.iter().map(|area| {
                let (volume, start) = match *area {
                    Area::Pv { pv, extent } => ((false, pv.0), extent),
                    Area::Lv { lv, extent } => ((true, lv.0), extent),
                };
                Use { volume, start, end: start + count, by }
            }));
            uses.extend(segment.kind.whole_lvs().into_iter().map(|LvIndex(lv)| Use {
                volume: (true, lv),
                start: 0,
                end: vg.lvs[lv].extents(),
                by,
            }));
        }
    }
    uses.sort_by_key(|one| (one.volume, one.start, one.by.1.line));
    for pair in uses.windows(2) {
        let [first, second] = pair else { unreachable!("windows of two") };
        if first.volume == second.volume && second.start < first.end {
            let (is_lv, index) = first.volume;
            let volume = if is_lv { &vg.lvs[index].name } else { &vg.pvs[index].name };
            let found = format!("extent {} of {}", second.start, crate::escape(volume));
            let expected = format!("one that {} (line {}) does not use", first.by.0.name, first.by.1.line);
            return Err(in_lv(vg, second.by.0, second.by.1, "area", found, expected));
        }
    }
    Ok(())
}

/// The LVs of which an LV is made, or without which it is none.
fn below(lv: &Lv) -> Vec<usize> {
    let mut all = Vec::new();
    for segment in &lv.segments {
        let (areas, _) = segment.areas();
        all.extend(areas.iter().filter_map(|area| match area {
            Area::Lv { lv, .. } => Some(lv.0),
            Area::Pv { .. } => None,
        }));
        all.extend(segment.kind.whole_lvs().iter().chain(&segment.kind.shared_lvs()).map(|lv| lv.0));
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Takes away the LVs that stand on nothing, then those that stand on those, and so on: what is left is a circle, and how
/// often it takes is the height of the highest stack.
fn nothing_is_made_of_itself(vg: &VolumeGroup) -> Result<(), FormatError> {
    let belows: Vec<Vec<usize>> = vg.lvs.iter().map(below).collect();
    let mut above = vec![Vec::new(); belows.len()];
    for (lv, below) in belows.iter().enumerate() {
        for other in below {
            above[*other].push(lv);
        }
    }
    let mut left: Vec<usize> = belows.iter().map(Vec::len).collect();
    let mut level: Vec<usize> = (0..belows.len()).filter(|lv| left[*lv] == 0).collect();
    let (mut done, mut height) = (0, 0);
    while !level.is_empty() {
        height += 1;
        if height > STACK_MAX {
            let lv = &vg.lvs[level[0]];
            let found = format!("more than {STACK_MAX} (in {}/logical_volumes/{})", vg.name, lv.name);
            let expected = format!("at most {STACK_MAX}");
            return Err(FormatError::line(
                ErrorKind::Limit,
                PLACE,
                lv.line,
                "LVs on top of each other",
                found,
                expected,
            ));
        }
        done += level.len();
        let mut next = Vec::new();
        for other in level.iter().flat_map(|lv| &above[*lv]) {
            left[*other] -= 1;
            if left[*other] == 0 {
                next.push(*other);
            }
        }
        level = next;
    }
    if done == belows.len() {
        return Ok(());
    }
    let lv = in_a_circle(&belows, &left);
    let lv = &vg.lvs[lv];
    let place = format_args!("logical_volumes/{}", lv.name);
    Err(wrong(vg, lv.line, "LV", "made of itself", place, "other LVs, or PVs, below it"))
}

/// Some LV that is in a circle: whoever is left, and goes down among those that are left, gets into one.
fn in_a_circle(belows: &[Vec<usize>], left: &[usize]) -> usize {
    let mut at = left.iter().position(|count| *count > 0).expect("somebody is left");
    for _ in 0..belows.len() {
        at = *belows[at].iter().find(|lv| left[**lv] > 0).expect("one below it is left, or it would not be");
    }
    at
}
