//! A RAID volume of LVM: an md array over legs, each a data volume with a metadata volume beside it.
//!
//! The group's metadata says which legs there are; the superblocks in the metadata volumes say which of them can be believed,
//! as in `crate::md`: the most events win, who is more than one behind or has failed is stale. Linux keeps no note
//! here that an array was stopped: what the bitmap has is what may differ, whatever the superblocks say.
//!
//! A stale leg was away, or has failed, while others were written to; now it is there. As in Linux, it comes back by itself, where the volume may
//! be written: it takes part from then on, and is filled (`blockwork_layer::md::DmRaidRecord`). It is never read for what it was, also where
//! another leg is missing that it could make up for. By the bitmap it is filled only if nothing but that tells what it lacks: it was whole when it
//! went, and no bit was cleared since. A leg that was used without the others has what they do not: it stays out, as filling it would
//! end that.
//!
//! A volume that grows while it is open keeps its array ([`GrownRaid`]): two would write two records. Its legs are built anew by the text, and the
//! array goes on with these (`blockwork_layer::md::GrownLegs`).
//!
//! A volume that was made larger while nobody served it (`lvextend` of one that is not in use) is so in the group's metadata first. Until an array was made
//! of it, superblocks and bitmaps tell of the old size: mirrors may differ in all that is new. Linux itself leaves a raid10 that it
//! has made larger with a bitmap of as many sectors as a leg has, and resyncs no further: what is behind may differ as well.

use std::cmp::Reverse;
use std::sync::Arc;

use blockwork_engine::{Layer, NodeKind, Sector, Sectors};
use blockwork_format::dm_raid::{self, ParityType, Superblock};
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{LvIndex, RaidLevel, Segment, SegmentType};
use blockwork_format::md::bitmap::BitmapSuperblock;
use blockwork_format::md::{FarSets, Level, ParityLayout, Raid10Layout, Uuid};
use blockwork_format::{FormatError, SECTOR_BYTES, Source, escape};
use blockwork_layer::Linear;
use blockwork_layer::md::{
    Array, ArrayConfig, ArraySize, ComesBack, DmRaidLeg, DmRaidRecord, Geometry, GrownLegs, IntentConfig,
    MemberConfig, Record,
};

use super::OpenArray;
use super::stack::{Built, Volume};
use super::verdict::split_off;
use crate::assembly::Assembly;
use crate::dm_raid::DmRaidLevel;
use crate::graph::{DeviceId, GroupId};
use crate::md::intent::{self, Copy};

/// A leg that is there.
struct Leg {
    config: MemberConfig,
    meta: Option<Meta>,
    /// It was away, and is to be filled.
    comes_back: Option<ComesBack>,
}

/// The metadata volume of a leg.
struct Meta {
    name: String,
    layer: Arc<dyn Layer>,
    superblock: Option<Superblock>,
    bitmap: Option<Copy>,
}

/// Where the data of a segment with parity lie.
pub(super) fn parity_layout(segment: &Segment) -> Result<ParityLayout, String> {
    let SegmentType::Raid { images, .. } = &segment.kind else { return Err("it is no RAID".into()) };
    let kind = ParityType::of_segment(&segment.type_name).ok_or("its layout is not known here")?;
    let count = u16::try_from(images.len()).map_err(|_| "it has too many legs".to_owned())?;
    kind.layout(count).ok_or_else(|| format!("its {count} legs are too few for its type"))
}

/// What the segment says.
struct Raid<'a> {
    level: RaidLevel,
    /// What superblocks of it say.
    md_level: Level,
    images: &'a [LvIndex],
    metas: &'a [LvIndex],
    geometry: Geometry,
}

impl Volume {
    pub(super) fn raid(
        &mut self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        segment: &Segment,
        sectors: Sectors,
    ) -> Built {
        let SegmentType::Raid { level, images, metas, .. } = &segment.kind else {
            unreachable!("only RAID segments come here")
        };
        let geometry = geometry(segment, sectors)?;
        let md_level = match level {
            RaidLevel::Raid1 => Level::Raid1,
            RaidLevel::Raid0 | RaidLevel::Raid0Meta => Level::Raid0,
            RaidLevel::Raid10 => Level::Raid10,
            RaidLevel::Parity => {
                ParityType::of_segment(&segment.type_name).expect("others are refused by their name").level()
            }
        };
        let raid = Raid { level: *level, md_level, images, metas, geometry };
        let is_told = *level == RaidLevel::Parity
            && assembly
                .starts_dirty_degraded(&self.name, NodeKind::Raid)
                .map_err(|error| error.to_string())?;
        let mut legs = Vec::with_capacity(images.len());
        for nth in 0..images.len() {
            let meta = raid.metas.get(nth).filter(|_| raid.geometry.is_redundant()).copied();
            let leg = self.leg(assembly, text, (raid.images[nth], meta), raid.geometry.sync_sectors());
            if let Err(why) = &leg {
                self.warn(assembly, format!("leg {nth} is left out: {why}"));
            }
            legs.push(leg.ok());
        }
        let mut state = State::of(&raid, &mut legs, sectors, is_told)?;
        state.warnings.iter().for_each(|warning| self.warn(assembly, warning.clone()));
        let in_place =
            |place: u16| legs[usize::from(place)].as_ref().is_some_and(|leg| leg.config.recovered.is_none());
        if !raid.geometry.has_all_data(&in_place) {
            let stale = state.stale.iter().map(|stale| stale.position).collect::<Vec<_>>();
            let how = |place: u16| match &legs[usize::from(place)] {
                Some(_) => "not filled to its end",
                None if stale.contains(&place) => "out of date",
                None => "missing",
            };
            return Err(raid.too_few(&in_place, &how));
        }
        if let Some(why) = &state.refused {
            self.make_read_only(assembly, why.clone());
        }
        let writes = raid.geometry.is_redundant() && !assembly.plan.read_only && self.is_writable(assembly);
        for Stale { position, leg, why, how } in std::mem::take(&mut state.stale) {
            let (name, is_filled) = (leg.config.name.clone(), how.filter(|_| writes));
            self.warn(assembly, format!("{name}: {why}; {}", what_becomes(how, is_filled.is_some())));
            if is_filled.is_some() {
                let config = MemberConfig { recovered: Some(Sector(0)), ..leg.config };
                legs[usize::from(position)] = Some(Leg { config, comes_back: is_filled, ..leg });
            }
        }
        self.assemble(assembly, raid, legs, state, sectors, writes)
    }

    /// The array over what is there.
    fn assemble(
        &mut self,
        assembly: &mut Assembly,
        raid: Raid<'_>,
        legs: Vec<Option<Leg>>,
        state: State,
        sectors: Sectors,
        writes: bool,
    ) -> Built {
        let intent = state.intent;
        let is_redundant = raid.geometry.is_redundant();
        let mut members = Vec::with_capacity(legs.len());
        let mut sites = Vec::new();
        for (role, leg) in (0..).zip(legs) {
            let Some(Leg { config, meta, comes_back }) = leg else {
                members.push(None);
                continue;
            };
            members.push(Some(config));
            if let Some(Meta { name, layer, superblock: Some(superblock), .. }) = meta {
                sites.push(DmRaidLeg { role, name, layer, superblock, comes_back });
            }
        }
        let member = raid.geometry.sectors_on_member(0);
        let grown = state.has_grown.then_some(ArraySize { array: sectors, member });
        let record =
            writes.then(|| Box::new(DmRaidRecord::new(sites, intent.is_some(), grown)) as Box<dyn Record>);
        let node = self.node(assembly, NodeKind::Raid, true)?;
        let config = ArrayConfig {
            name: self.name.clone(),
            geometry: raid.geometry,
            members,
            resync_from: state.resync_from,
            intent,
            record,
        };
        let array = Array::new(node, config).map_err(|error| error.to_string())?;
        let speed = assembly.set_sync_speed(&self.name, NodeKind::Raid, &array, (None, None));
        speed.map_err(|error| error.to_string())?;
        self.copies = is_redundant.then(|| array.clone());
        self.cut(assembly, array, sectors)
    }

    /// The volume that an array makes, whose last row may be none of it.
    fn cut(&mut self, assembly: &mut Assembly, array: Arc<Array>, sectors: Sectors) -> Built {
        let size = array.sectors();
        if size == sectors {
            return Ok(array);
        }
        let node = self.node(assembly, NodeKind::Linear, false)?;
        let cut = Linear::new(node, array, Sector(0), sectors);
        let cut = cut.ok_or_else(|| format!("its legs make {size} sectors, and it has {sectors}"))?;
        Ok(Arc::new(cut))
    }

    /// An image, with its metadata volume where that is looked at; `synced` are the sectors that a bitmap there has bits for.
    fn leg(
        &self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        (image, meta): (LvIndex, Option<LvIndex>),
        synced: Sectors,
    ) -> Result<Leg, String> {
        // As for Linux: it is not there until it is put back, and what is written meanwhile is marked in the bitmap.
        if let Some(why) = split_off(text, image) {
            return Err(format!("{}: {why}", escape(&text.lvs[image.0].name)));
        }
        let layer = self.part(assembly, text, image)?;
        let flags = &text.lvs[image.0].flags;
        let meta = meta.map(|meta| self.meta(assembly, text, meta, synced)).transpose()?;
        let config = MemberConfig {
            name: escape(&text.lvs[image.0].name),
            layer,
            data_start: Sector(0),
            recovered: flags.has("REBUILD").then_some(Sector(0)),
            write_mostly: flags.has("WRITEMOSTLY"),
            bad: Vec::new(),
        };
        Ok(Leg { config, meta, comes_back: None })
    }

    fn meta(
        &self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        meta: LvIndex,
        synced: Sectors,
    ) -> Result<Meta, String> {
        let name = escape(&text.lvs[meta.0].name);
        let layer = self.part(assembly, text, meta)?;
        let read = assembly.read(&*layer, |source| {
            let superblock = read_superblock(source)?;
            let bitmap = superblock.is_some().then(|| read_bitmap(source, synced.0));
            Ok::<_, FormatError>((superblock, bitmap))
        });
        let (superblock, bitmap) = read.map_err(|error| format!("{name}: {error}"))?;
        Ok(Meta { name, layer, superblock, bitmap })
    }
}

/// A RAID volume that is open, and larger in the text of its group than its array is.
pub struct GrownRaid {
    /// What people call it.
    pub name: String,
    /// Its array.
    pub array: Arc<Array>,
    /// What that becomes.
    pub legs: GrownLegs,
    device: DeviceId,
    group: GroupId,
    lv: LvIndex,
}

impl Assembly {
    /// What an open RAID volume becomes by the text of its group; none: it is not open, or has no copies.
    pub(super) fn grown_raid(&mut self, group: GroupId, lv: LvIndex) -> Option<Result<GrownRaid, String>> {
        let known = &self.graph.groups[group.0];
        let array = known.arrays.get(&lv)?.copies.clone()?;
        let (text, device) = (known.text.clone(), known.lv(lv)?);
        let name = self.graph.device(device).name.clone();
        let (segment, sectors) = (&text.lvs[lv.0].segments[0], Sectors(text.lv_sectors(lv)));
        let SegmentType::Raid { images, .. } = &segment.kind else { return None };
        let legs = images.iter().map(|image| {
            // As when it was opened: what is left out has no part in the array.
            let device =
                self.graph.groups[group.0].lv(*image).filter(|_| split_off(&text, *image).is_none())?;
            self.layer(device).ok()
        });
        let legs = legs.collect();
        let grown = |geometry| {
            let legs = GrownLegs { geometry, sectors, legs };
            GrownRaid { name: name.clone(), array, legs, device, group, lv }
        };
        Some(geometry(segment, sectors).map(grown).map_err(|why| format!("{}: {why}", escape(&name))))
    }

    /// An open RAID volume has become what its group's text says: who asks for it from now on has all of it.
    ///
    /// # Errors
    ///
    /// Its array has not grown.
    pub fn raid_has_grown(&mut self, raid: &GrownRaid) -> Result<(), String> {
        let mut volume = Volume::new(raid.device, raid.group, raid.lv, raid.name.clone());
        let layer = volume.cut(self, raid.array.clone(), raid.legs.sectors)?;
        let copies = Some(raid.array.clone());
        self.graph.groups[raid.group.0].arrays.insert(raid.lv, OpenArray { layer, copies });
        Ok(())
    }
}

fn read_superblock(source: &dyn Source) -> Result<Option<Superblock>, FormatError> {
    let mut bytes = [0; 512];
    let read = source.read_at(0, &mut bytes);
    read.map_err(|error| FormatError::unreadable("dm-raid superblock", 0, &error))?;
    Superblock::is_at(&bytes).then(|| Superblock::decode(&bytes)).transpose()
}

/// The bitmap behind the superblock, whose UUID is zero. That of a smaller volume is one of this volume, which has grown.
fn read_bitmap(source: &dyn Source, sync_sectors: u64) -> Copy {
    let at = dm_raid::BITMAP_OFFSET;
    let room = (source.size().saturating_sub(at)) / SECTOR_BYTES;
    let covered = |bitmap: &BitmapSuperblock| (Uuid::default(), bitmap.sync_size.min(sync_sectors));
    let found = intent::read_at(source, at, covered, room)?;
    if found.0.sync_size == sync_sectors { Ok(found) } else { intent::grown(found, sync_sectors, room, at) }
}

/// Where the sectors of a volume of that size lie on its legs.
fn geometry(segment: &Segment, sectors: Sectors) -> Result<Geometry, String> {
    let SegmentType::Raid { level, images, stripe_size, data_copies, .. } = &segment.kind else {
        unreachable!("only RAID segments come here")
    };
    let count = u16::try_from(images.len()).map_err(|_| "it has too many legs".to_owned())?;
    let level = match level {
        RaidLevel::Raid1 => DmRaidLevel::Raid1,
        RaidLevel::Raid0 | RaidLevel::Raid0Meta => DmRaidLevel::Raid0,
        RaidLevel::Raid10 => {
            let copies =
                u8::try_from(data_copies.unwrap_or(2)).map_err(|_| "it has too many copies".to_owned())?;
            let layout = Raid10Layout::new(copies.max(2), 1, false, FarSets::One, count.into());
            DmRaidLevel::Raid10(layout.map_err(|error| error.to_string())?)
        }
        RaidLevel::Parity => DmRaidLevel::Parity(parity_layout(segment)?),
    };
    crate::dm_raid::geometry(level, count, Sectors(*stripe_size), sectors)
}

/// What the superblocks of the legs say together.
#[derive(Default)]
struct State {
    resync_from: Option<Sector>,
    intent: Option<IntentConfig>,
    /// It is larger than the superblocks say.
    has_grown: bool,
    /// Why it must not be written.
    refused: Option<String>,
    warnings: Vec<String>,
    /// Legs that are there, and are not to be read.
    stale: Vec<Stale>,
}

/// A leg that was away, or had failed, while others were written to.
struct Stale {
    position: u16,
    leg: Leg,
    why: String,
    /// How it can be filled; none: it has what the others have not.
    how: Option<ComesBack>,
}

/// What becomes of a stale leg that can be filled so.
fn what_becomes(how: Option<ComesBack>, is_filled: bool) -> &'static str {
    match how {
        None => {
            "it is left out, and what was written to it then is only there; to have it filled as the others are, and that be lost, activate \
             the volume on Linux, which does so by itself"
        }
        Some(_) if !is_filled => "it is left out; whoever serves the volume to be written fills it",
        Some(ComesBack::ByBitmap) => "it comes back, and is filled where it was written to meanwhile",
        Some(ComesBack::Whole) => "it comes back, and is filled from its start to its end",
    }
}

impl State {
    /// Takes out legs that cannot be believed. `is_told`: of one without a leg the parity is to be taken as it is.
    fn of(
        raid: &Raid<'_>,
        legs: &mut [Option<Leg>],
        sectors: Sectors,
        is_told: bool,
    ) -> Result<State, String> {
        let mut state = State::default();
        if !raid.geometry.is_redundant() {
            return Ok(state);
        }
        let Some(truth) = newest(legs) else {
            let why = "Linux has not used it yet: its metadata volumes have no superblocks";
            if raid.level == RaidLevel::Parity {
                return Err(why.into());
            }
            (state.resync_from, state.refused) = (Some(Sector(0)), Some(why.into()));
            return Ok(state);
        };
        raid.check(&truth)?;
        state.leave_out(&truth, legs);
        if truth.array_resync_offset != dm_raid::IN_SYNC {
            state.resync_from = Some(Sector(truth.array_resync_offset));
            let is_new = truth.events == dm_raid::EVENTS_OF_NEW && truth.array_resync_offset == 0;
            state.warnings.push(format!("{}: {}", intent::why_unsynced(is_new), raid.what_may_be_wrong()));
        }
        if let Some(old) = truth.size().filter(|old| *old < sectors.0) {
            state.has_grown = true;
            // In the sectors of a leg, where it has a parity.
            let from = raid.geometry.sync_sectors_of(Sectors(old)).0;
            state.resync_from = Some(state.resync_from.map_or(Sector(from), |known| known.min(Sector(from))));
            state.warnings.push(format!(
                "it has grown since it was last in use: from sector {old} on, {}",
                raid.what_may_be_wrong()
            ));
        }
        let copies = legs.iter_mut().flatten().filter_map(|leg| leg.meta.as_mut()?.bitmap.take()).collect();
        match intent::combine(copies, truth.events, false) {
            Ok(intent) => state.intent = intent,
            Err(error) => state.refused = Some(format!("its write-intent bitmap cannot be kept: {error}")),
        }
        if raid.level == RaidLevel::Parity && !legs.iter().all(is_whole) {
            state.without_a_leg(is_told);
        }
        state.settle_how(&truth, legs);
        Ok(state)
    }

    /// Takes out legs that cannot be believed, and notes how far others are in sync.
    fn leave_out(&mut self, truth: &Superblock, legs: &mut [Option<Leg>]) {
        for (position, place) in (0..).zip(legs) {
            let Some(Leg { config, meta: Some(meta), .. }) = place else { continue };
            match judge(truth, meta.superblock.as_ref(), position) {
                Judgement::Stays(recovered) => config.recovered = config.recovered.or(recovered),
                Judgement::Out(why) => {
                    self.warnings.push(format!("{}: {why}; it is left out", config.name));
                    *place = None;
                }
                Judgement::Stale(why) => {
                    let leg = place.take().expect("it is there");
                    self.stale.push(Stale { position, leg, why, how: None });
                }
            }
        }
    }

    /// Settles how each stale leg can be filled from those that are believed.
    fn settle_how(&mut self, truth: &Superblock, legs: &[Option<Leg>]) {
        let holders =
            || (0..).zip(legs).filter(|(_, leg)| is_whole(leg)).map(|(position, _): (u16, _)| position);
        for Stale { position, leg, why, how } in &mut self.stale {
            let Some(own) = leg.meta.as_mut().and_then(|meta| meta.superblock.as_mut()) else { continue };
            if holders().all(|holder| own.has_failed(holder)) {
                why.push_str(", and was used without the others since");
                continue;
            }
            // It went while it was filled, if it is not by the bitmap that it was.
            let was_whole = own.disk_recovery_offset == dm_raid::IN_SYNC || own.has_failed(*position);
            let is_known = was_whole
                && leg.config.recovered.is_none()
                && !self.has_grown
                && self.intent.as_ref().is_some_and(|it| own.events >= it.superblock.events_cleared);
            *how = Some(if is_known { ComesBack::ByBitmap } else { ComesBack::Whole });
            // It may tell of an array that was smaller.
            *own = Superblock { array_position: (*position).into(), ..truth.clone() };
        }
    }

    /// It has a parity, and not all legs. Where the parity may not fit, what a leg had is lost; then it is only read, as Linux does not
    /// start it. Its bitmap has what was written since the leg went, besides, so that it says nothing of one that Linux has left: Linux takes the
    /// parity as it is, and so does this.
    fn without_a_leg(&mut self, is_told: bool) {
        let dirty = self.intent.as_ref().map_or(0, |intent| intent.bits.dirty_chunks());
        if self.resync_from.is_none() && dirty > 0 {
            self.warnings.push(format!(
                "{dirty} chunks were written to without all legs, or when it was last in use; if that ended by a power cut, what a missing \
                 leg had may be garbage where data was being written then"
            ));
        }
        if self.resync_from.is_none() || is_told {
            self.resync_from = None;
            self.intent.iter_mut().for_each(|intent| intent.may_differ = false);
            return;
        }
        let remedy = "--set raid:start_dirty_degraded=1 takes the parity as it is (what was being written then may be garbage)";
        self.warnings
            .push(format!("what a missing leg had where its parity may not fit is not read; {remedy}"));
        self.refused.get_or_insert_with(|| {
            format!("it was not stopped properly and a leg is missing or out of date, so that nobody knows all of its data; {remedy}")
        });
    }
}

fn is_whole(leg: &Option<Leg>) -> bool {
    leg.as_ref().is_some_and(|leg| leg.config.recovered.is_none())
}

/// The superblock that is believed, if there is any: the newest.
///
/// Of several, one that few of the others call failed: a power cut may have left on one leg alone that another one has failed, and those that were
/// used without it since may have come to as many events. And a leg that is filled says first what the others are about to say: as long as these
/// do not, nothing was written that they do not know, so that one of them is believed which is in sync, and which it does not call failed.
fn newest(legs: &[Option<Leg>]) -> Option<Superblock> {
    let all: Vec<&Superblock> =
        legs.iter().flatten().filter_map(|leg| leg.meta.as_ref()?.superblock.as_ref()).collect();
    let events = all.iter().map(|superblock| superblock.events).max()?;
    let calls_failed = |by: &Superblock, own: &Superblock| {
        u16::try_from(own.array_position).is_ok_and(|position| by.has_failed(position))
    };
    let newest = || all.iter().copied().filter(|superblock| superblock.events == events);
    let doubts = |own: &Superblock| newest().filter(|other| calls_failed(other, own)).count();
    let first = newest().min_by_key(|own| doubts(own))?;
    let is_whole = |own: &Superblock| own.disk_recovery_offset == dm_raid::IN_SYNC && !calls_failed(own, own);
    let can_stand_for_it = |own: &&Superblock| {
        is_whole(own) && own.events.saturating_add(1) >= events && !calls_failed(first, own)
    };
    let whole = all.iter().copied().filter(can_stand_for_it);
    let whole = whole.min_by_key(|own| (Reverse(own.events), doubts(own)));
    Some(whole.unwrap_or(first).clone())
}

/// What is to be thought of a leg.
enum Judgement {
    /// It is in sync up to there (none: all of it).
    Stays(Option<Sector>),
    /// It lacks what others have.
    Stale(String),
    /// It is none of this array, as it is.
    Out(String),
}

fn judge(truth: &Superblock, own: Option<&Superblock>, position: u16) -> Judgement {
    let Some(own) = own else {
        return Judgement::Out("it has no superblock: it is new, and empty".into());
    };
    if own.array_position != u32::from(position) {
        let found = own.array_position;
        return Judgement::Out(format!("its superblock is that of leg {found}, expected {position}"));
    }
    if own.events.saturating_add(1) < truth.events {
        let (own, truth) = (own.events, truth.events);
        return Judgement::Stale(format!("it is out of date (events {own}, and the array is at {truth})"));
    }
    if truth.has_failed(position) {
        return Judgement::Stale("it has failed, or was away, as the others say".into());
    }
    let end = Some(own.disk_recovery_offset).filter(|offset| *offset != dm_raid::IN_SYNC);
    Judgement::Stays(end.map(Sector))
}

impl Raid<'_> {
    /// Whether the superblock is of an array such as the group's metadata tells of.
    fn check(&self, truth: &Superblock) -> Result<(), String> {
        truth.supports().map_err(|error| error.to_string())?;
        let (expected, legs) = (self.md_level, self.images.len());
        if truth.level != expected || usize::try_from(truth.num_devices) != Ok(legs) {
            return Err(format!(
                "its superblocks tell of a {} of {} legs, and the group's metadata of a {expected} of {legs}",
                truth.level, truth.num_devices
            ));
        }
        if let Geometry::Parity(parity) = &self.geometry
            && parity.layout().encode() != truth.layout
        {
            return Err(format!(
                "its superblocks tell of layout {}, and the group's metadata of {}",
                truth.layout,
                parity.layout()
            ));
        }
        let chunk = self.geometry.chunk().map_or(0, |chunk| chunk.0);
        if expected != Level::Raid1 && u64::from(truth.stripe_sectors) != chunk {
            return Err(format!(
                "its superblocks tell of stripes of {} sectors, and the group's metadata of {chunk}",
                truth.stripe_sectors
            ));
        }
        Ok(())
    }

    fn what_may_be_wrong(&self) -> &'static str {
        if self.level == RaidLevel::Parity {
            "its parity may not fit its data"
        } else {
            "its mirrors may differ"
        }
    }

    /// Says who is missing of one that is not whole, and how.
    fn too_few(&self, in_place: &dyn Fn(u16) -> bool, how: &dyn Fn(u16) -> &'static str) -> String {
        let lacking = (0..self.geometry.members()).filter(|role| !in_place(*role));
        let lacking: Vec<_> = lacking.map(|role| format!("{role} ({})", how(role))).collect();
        let lacking = lacking.join(", ");
        let Geometry::Parity(parity) = &self.geometry else {
            return format!(
                "too many of its legs are missing or out of date: some data has no copy in sync without legs {lacking}; give the disks that are \
                 missing as well"
            );
        };
        format!(
            "legs {lacking} of {} are missing or out of date, and its parity makes up for {}; give those disks as well",
            self.geometry.members(),
            parity.layout().parities()
        )
    }
}
