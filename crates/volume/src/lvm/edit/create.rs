//! New logical volumes: what they are made of, and how large they become.

use std::ops::RangeInclusive;

use blockwork_format::dm_raid::ParityType;
use blockwork_format::lvm2::vg::PvIndex;
use blockwork_format::lvm2::{Node, Section, Uuid};
use blockwork_format::md::Level;
use serde::{Deserialize, Serialize};

use super::allocate::{FreeExtents, Policy, Request, Round, allocate};
use super::data::{Piece, wiped};
use super::draft::{Draft, check_tags, lv_list};
use super::error::{EditError, bytes_shown};
use super::raid::{self, Raid};
use super::section::{Birth, Keys, strings, striped, volume};

/// Smallest stripe of LVM, sectors.
const STRIPE_MIN: u64 = 8;
/// Most stripes or legs: what LVM takes for stripes; RAID has less ([`raid::LEGS_MAX`]).
const STRIPES_MAX: u64 = 128;
/// Region of a bitmap where nobody says otherwise, sectors, as LVM's `raid_region_size`.
pub const REGION_DEFAULT: u64 = 4096;
/// Stripe where nobody says otherwise, sectors.
pub const STRIPE_DEFAULT: u64 = 128;

/// How large a volume is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Size {
    /// Bytes, rounded up to whole extents.
    Bytes(u64),
    /// Extents.
    Extents(u64),
    /// So many hundredths of what is free, for all of its stripes or legs together.
    PercentFree(u64),
    /// So many hundredths of the group's extents.
    PercentGroup(u64),
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Size::Bytes(bytes) => f.write_str(&bytes_shown(*bytes)),
            Size::Extents(extents) => write!(f, "{extents} extents"),
            Size::PercentFree(hundredths) => write!(f, "{hundredths}%FREE"),
            Size::PercentGroup(hundredths) => write!(f, "{hundredths}%VG"),
        }
    }
}

/// What a volume is made of. Sizes are sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One run after the other.
    Linear,
    /// Stripes on different PVs.
    Striped {
        /// How many.
        stripes: u64,
        /// Sectors of a chunk.
        stripe_size: u64,
    },
    /// Legs with the same data on different PVs.
    Raid1 {
        /// Legs beside the first.
        mirrors: u64,
        /// Sectors of a bit of the bitmap.
        region_size: u64,
    },
    /// Stripes, each with copies on other PVs.
    Raid10 {
        /// How many stripes.
        stripes: u64,
        /// Copies of each beside the first.
        mirrors: u64,
        /// Sectors of a chunk.
        stripe_size: u64,
        /// Sectors of a bit of the bitmap.
        region_size: u64,
    },
    /// Stripes with one or two parities, each on a PV of its own.
    Parity {
        /// Which level, and which layout.
        #[serde(with = "parity_type")]
        kind: ParityType,
        /// How many stripes of data.
        stripes: u64,
        /// Sectors of a chunk.
        stripe_size: u64,
        /// Sectors of a bit of the bitmap.
        region_size: u64,
    },
}

/// A type with a parity, by its name.
mod parity_type {
    use blockwork_format::dm_raid::ParityType;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
    pub(super) fn serialize<S: Serializer>(kind: &ParityType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(kind.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ParityType, D::Error> {
        let name = String::deserialize(deserializer)?;
        ParityType::of_segment(&name)
            .ok_or_else(|| D::Error::custom(format!("{name:?} is no type with a parity")))
    }
}

/// A volume to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewVolume {
    /// Its name.
    pub name: String,
    /// How large.
    pub size: Size,
    /// Of what.
    pub shape: Shape,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Zero its start and end, so that nothing that was there before is taken for its content.
    pub wipe: bool,
    /// Of a RAID: its legs are taken for the same as they are, and not copied over each other; a parity for that of its data.
    pub no_sync: bool,
}

/// What a volume became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Its size, extents.
    pub extents: u64,
    /// Why it is larger or smaller than was asked for.
    pub rounded: Option<String>,
}

impl Shape {
    /// Whether mirrors have to be kept the same, or a parity that of its data.
    pub fn is_raid(&self) -> bool {
        !matches!(self, Shape::Linear | Shape::Striped { .. })
    }

    /// Stripes that a volume's extents are spread over.
    fn stripes(&self) -> u64 {
        match *self {
            Shape::Linear | Shape::Raid1 { .. } => 1,
            Shape::Striped { stripes, .. }
            | Shape::Raid10 { stripes, .. }
            | Shape::Parity { stripes, .. } => stripes,
        }
    }

    /// Copies of each extent.
    fn copies(&self) -> u64 {
        match *self {
            Shape::Linear | Shape::Striped { .. } | Shape::Parity { .. } => 1,
            Shape::Raid1 { mirrors, .. } | Shape::Raid10 { mirrors, .. } => mirrors.saturating_add(1),
        }
    }

    /// Legs with nothing but parity, as it were.
    fn parities(&self) -> u64 {
        if let Shape::Parity { kind, .. } = self { kind.parities().into() } else { 0 }
    }

    /// Stripes or legs, each of which gets as many extents.
    fn columns(&self) -> u64 {
        self.stripes() * self.copies() + self.parities()
    }

    /// Zero where there are none.
    fn stripe_size(&self) -> u64 {
        match *self {
            Shape::Linear | Shape::Raid1 { .. } => 0,
            Shape::Striped { stripe_size, .. }
            | Shape::Raid10 { stripe_size, .. }
            | Shape::Parity { stripe_size, .. } => stripe_size,
        }
    }

    /// What was asked for as a region; none where there is no bitmap.
    fn region_size(&self) -> Option<u64> {
        match *self {
            Shape::Linear | Shape::Striped { .. } => None,
            Shape::Raid1 { region_size, .. }
            | Shape::Raid10 { region_size, .. }
            | Shape::Parity { region_size, .. } => Some(region_size),
        }
    }

    /// Fewest and most stripes.
    fn stripes_range(&self) -> RangeInclusive<u64> {
        match self {
            Shape::Linear | Shape::Raid1 { .. } => 1..=1,
            Shape::Striped { .. } | Shape::Raid10 { .. } => 2..=STRIPES_MAX,
            Shape::Parity { kind, .. } => stripes_of_parity(*kind)..=raid::LEGS_MAX - self.parities(),
        }
    }

    fn check(&self, extent_sectors: u64) -> Result<(), EditError> {
        let wrong = |what, found: String, expected: String| Err(EditError::Value { what, found, expected });
        let range = self.stripes_range();
        if !range.contains(&self.stripes()) {
            let expected = format!("{} to {}", range.start(), range.end());
            return wrong("--stripes", self.stripes().to_string(), expected);
        }
        let is_mirrored = matches!(self, Shape::Raid1 { .. } | Shape::Raid10 { .. });
        let most = raid::LEGS_MAX / self.stripes();
        if is_mirrored && !(2..=most).contains(&self.copies()) {
            let expected = format!("1 to {}", most.saturating_sub(1));
            return wrong("--mirrors", (self.copies() - 1).to_string(), expected);
        }
        let stripe = self.stripe_size();
        let fits = stripe.is_power_of_two() && stripe >= STRIPE_MIN && extent_sectors.is_multiple_of(stripe);
        if stripe != 0 && !fits {
            let expected = format!(
                "a power of two from 4 KiB on, of which the group's extent ({}) is a multiple",
                bytes_shown(extent_sectors * 512)
            );
            return wrong("--stripesize", bytes_shown(stripe.saturating_mul(512)), expected);
        }
        match self.region_size().filter(|region| !raid::is_region(*region)) {
            Some(region) => {
                let expected = "a power of two from 4 KiB to 1 GiB".into();
                wrong("--regionsize", bytes_shown(region.saturating_mul(512)), expected)
            }
            None => Ok(()),
        }
    }
}

/// Fewest stripes of data with a parity, and how many there are where nobody says it, as for `lvcreate`.
pub fn stripes_of_parity(kind: ParityType) -> u64 {
    u64::from(kind.parities()) + 1
}

/// A size in extents, and what it costs.
#[derive(Clone, Copy)]
struct Extents {
    /// Of the volume.
    volume: u64,
    /// Of each stripe's or leg's data.
    column: u64,
    /// Of each leg's metadata.
    meta: u64,
}

impl Draft {
    /// Adds a volume.
    ///
    /// # Errors
    ///
    /// A name, tag, size or shape that cannot be, or not enough room.
    pub fn create_volume(&mut self, new: &NewVolume) -> Result<Created, EditError> {
        self.check_new_name(&new.name)?;
        check_tags(&new.tags)?;
        let extent = self.group().extent_sectors;
        new.shape.check(extent)?;
        if new.no_sync && new.shape.parities() == 2 {
            // Linux does not take such a table.
            let why = "both parities of a RAID6 have to fit its data from the beginning: leave --nosync out";
            return Err(EditError::volume(&new.name, why));
        }
        self.check_limit_of_volumes()?;
        let mut free = self.free();
        let wanted = self.wanted(new.size, &free, &new.shape)?;
        let approximate = matches!(new.size, Size::PercentFree(_) | Size::PercentGroup(_));
        let Some(rounds) = self.place(&mut free, &new.shape, wanted, approximate) else {
            let least = if approximate { new.shape.stripes() } else { wanted };
            return Err(self.no_room(&free, &new.shape, least));
        };
        let Extents { meta, .. } = self.extents(&new.shape, wanted);
        let column = rounds.iter().map(|round| round.count).sum::<u64>() - meta;
        let extents = Extents { volume: column * new.shape.stripes(), column, meta };
        if new.shape.is_raid() {
            self.add_raid(new, extents, &rounds)?;
        } else {
            self.add_striped(new, &rounds)?;
        }
        let rounded = self.rounded(new, extents.volume);
        Ok(Created { extents: extents.volume, rounded })
    }

    pub(super) fn check_limit_of_volumes(&self) -> Result<(), EditError> {
        let vg = self.group();
        let seen = vg.visible().into_iter().filter(|visible| *visible).count();
        if let Some(most) = self.group_limit("max_lv").filter(|most| seen >= *most) {
            let why = format!(
                "it may have {most} logical volumes at most; `vgchange --logicalvolume` changes that"
            );
            return Err(EditError::group(&vg.name, why));
        }
        let most = blockwork_format::lvm2::vg::LVS_MAX;
        if vg.lvs.len() + 2 * usize::try_from(raid::LEGS_MAX).expect("a small number") < most {
            return Ok(());
        }
        Err(EditError::group(&vg.name, format!("it has {} volumes, and {most} is the limit", vg.lvs.len())))
    }

    /// Extents that are asked for: whole stripes; at least one.
    pub(super) fn wanted(&self, size: Size, free: &FreeExtents, shape: &Shape) -> Result<u64, EditError> {
        let vg = self.group();
        let unit = shape.stripes();
        let part = |of: u64, hundredths: u64| u128::from(of) * u128::from(hundredths) / 100;
        // What is asked for in hundredths are extents of PVs. `lvcreate` counts copies, and neither parities nor metadata, and rounds up to whole
        // stripes: fewer will do.
        let of_volume = |physical: u128| {
            let extents = u64::try_from(physical / u128::from(shape.copies())).ok()?;
            extents.checked_next_multiple_of(unit)
        };
        let extents = match size {
            Size::Bytes(bytes) => bytes.div_ceil(vg.extent_sectors * 512).checked_next_multiple_of(unit),
            Size::Extents(extents) => extents.checked_next_multiple_of(unit),
            Size::PercentFree(hundredths) => of_volume(part(free.total(), hundredths)),
            Size::PercentGroup(hundredths) => {
                let all = vg.pvs.iter().map(|pv| pv.pe_count).sum();
                of_volume(part(all, hundredths))
            }
        };
        let Some(extents) = extents.filter(|extents| *extents <= vg.extents_max()) else {
            return Err(self.too_large(size.to_string()));
        };
        if extents > 0 {
            return self.check_regions(shape, extents);
        }
        match size {
            Size::Bytes(_) | Size::Extents(_) => {
                let expected = "at least one extent".into();
                Err(EditError::Value { what: "the size", found: "0".into(), expected })
            }
            // There is room for the least, and a part of it was asked for that is less.
            Size::PercentFree(_) | Size::PercentGroup(_)
                if self.place(&mut free.clone(), shape, unit, false).is_some() =>
            {
                let expected = "at least one extent, on each physical volume that it lies on".into();
                Err(EditError::Value { what: "the size", found: size.to_string(), expected })
            }
            Size::PercentFree(_) | Size::PercentGroup(_) => Err(self.no_room(free, shape, unit)),
        }
    }

    /// Whether a bitmap can tell of so large a volume.
    fn check_regions(&self, shape: &Shape, extents: u64) -> Result<u64, EditError> {
        let region = self.region(shape, extents);
        if region <= raid::REGION_LARGEST {
            return Ok(extents);
        }
        let (found, expected) = (self.extents_shown(extents), "at most 4 PiB of a RAID volume".into());
        Err(EditError::Value { what: "the size", found, expected })
    }

    fn extents(&self, shape: &Shape, volume: u64) -> Extents {
        let column = volume / shape.stripes();
        let meta = if shape.is_raid() {
            let vg = self.group();
            // With a parity, a bit is for what is at one place of all legs.
            let of_bits = if shape.parities() > 0 { column } else { volume };
            let sectors = of_bits.saturating_mul(vg.extent_sectors);
            raid::meta_extents(vg.extent_sectors, sectors, self.region(shape, volume))
        } else {
            0
        };
        Extents { volume, column, meta }
    }

    /// Sectors of a bit of the bitmap, in a volume of so many extents.
    fn region(&self, shape: &Shape, volume: u64) -> u64 {
        // The kernel refuses one smaller than a chunk.
        let asked = shape.region_size().map(|region| region.max(shape.stripe_size()));
        asked.map_or(0, |asked| raid::region_for(asked, self.group().extent_sectors, volume))
    }

    /// Takes extents for a volume of so many: as many, or fewer if that will do. Those of its metadata are for the size that was asked for.
    pub(super) fn place(
        &self,
        free: &mut FreeExtents,
        shape: &Shape,
        volume: u64,
        approximate: bool,
    ) -> Option<Vec<Round>> {
        let Extents { column, meta, .. } = self.extents(shape, volume);
        let columns = usize::try_from(shape.columns()).expect("at most STRIPES_MAX of them");
        let request = Request {
            extents: column.checked_add(meta)?,
            columns,
            there: Vec::new(),
            // The metadata of a leg lies before its data, on the same PV.
            first: meta + 1,
            apart: shape.is_raid().then_some(&[]),
            policy: self.policy(None),
            approximate,
        };
        allocate(free, &request)
    }

    /// The policy of a volume, or of the group.
    pub(super) fn policy(&self, of_volume: Option<&str>) -> Policy {
        let of_volume = of_volume.filter(|policy| *policy != "inherit");
        match of_volume.map(str::to_owned).or_else(|| self.group_text("allocation_policy")).as_deref() {
            Some("contiguous") => Policy::Contiguous,
            Some("cling" | "cling_by_tags") => Policy::Cling,
            _ => Policy::Normal,
        }
    }

    pub(super) fn no_room(&self, free: &FreeExtents, shape: &Shape, volume: u64) -> EditError {
        let Extents { column, meta, .. } = self.extents(shape, volume);
        let columns = shape.columns();
        let each = self.extents_shown(column.saturating_add(meta));
        let needed = if columns == 1 {
            format!("{each} {}", is_or_are(column.saturating_add(meta)))
        } else {
            format!("{each} on each of {columns} physical volumes are")
        };
        room(self, free, needed)
    }

    fn rounded(&self, new: &NewVolume, size: u64) -> Option<String> {
        let asked = match new.size {
            Size::Bytes(bytes) => bytes,
            Size::Extents(extents) => extents.saturating_mul(self.group().extent_sectors * 512),
            Size::PercentFree(_) | Size::PercentGroup(_) => return None,
        };
        let got = size * self.group().extent_sectors * 512;
        let of_stripes = if new.shape.stripes() > 1 { " of all stripes" } else { "" };
        (asked != got).then(|| {
            let (asked, got) = (bytes_shown(asked), bytes_shown(got));
            format!("{asked} is rounded up to whole extents{of_stripes}: {got}")
        })
    }

    /// A linear or striped volume over what was allocated.
    fn add_striped(&mut self, new: &NewVolume, rounds: &[Round]) -> Result<(), EditError> {
        let stripe = new.shape.stripe_size();
        let vg = self.group();
        let mut start = 0;
        let mut segments = Vec::with_capacity(rounds.len());
        for round in rounds {
            segments.push(striped(vg, start, round.count, stripe, &round.starts));
            start += round.count * round.starts.len() as u64;
        }
        if new.wipe {
            let wipes: Vec<_> = columns(rounds).iter().flat_map(|runs| wiped(vg, runs)).collect();
            self.data.extend(wipes);
        }
        let id = (self.author.ids)();
        let birth = Birth { id, time: self.author.time, host: &self.author.host };
        let section = volume(&birth, &["READ", "WRITE", "VISIBLE"], &new.tags, segments);
        self.add_visible(&new.name, section)
    }

    /// A RAID volume with its legs.
    fn add_raid(&mut self, new: &NewVolume, extents: Extents, rounds: &[Round]) -> Result<(), EditError> {
        let legs = columns(rounds);
        let region = self.region(&new.shape, extents.volume);
        let raid = self.raid_of(&new.shape, extents.volume, region, new.no_sync);
        for (nth, mut runs) in (0u16..).zip(legs) {
            let meta = split_meta(&mut runs, extents.meta);
            self.data.extend(raid.meta_writes(self.group(), nth, meta, extents.meta));
            if new.wipe {
                let wipes = wiped(self.group(), &runs);
                self.data.extend(wipes);
            }
            let name = &new.name;
            self.add_hidden(&format!("{name}_rimage_{nth}"), &runs)?;
            self.add_hidden(&format!("{name}_rmeta_{nth}"), &[(meta, extents.meta)])?;
        }
        let mut status = vec!["READ", "WRITE", "VISIBLE"];
        if new.no_sync {
            status.push("NOTSYNCED");
        }
        let parts = (0..raid.legs)
            .flat_map(|nth| ["rmeta", "rimage"].map(|kind| format!("{}_{kind}_{nth}", new.name)));
        let segment = segment_of_raid(&new.shape, extents.volume, region, parts);
        let id = (self.author.ids)();
        let birth = Birth { id, time: self.author.time, host: &self.author.host };
        let section = volume(&birth, &status, &new.tags, vec![segment]);
        self.add_visible(&new.name, section)
    }

    fn raid_of(&self, shape: &Shape, volume: u64, region: u64, in_sync: bool) -> Raid {
        let sectors = volume * self.group().extent_sectors;
        let legs = u16::try_from(shape.columns()).expect("at most LEGS_MAX of them");
        let copies = u8::try_from(shape.copies()).expect("at most LEGS_MAX of them");
        let (level, layout) = match shape {
            Shape::Parity { kind, .. } => (kind.level(), kind.layout_number()),
            Shape::Raid10 { .. } => (Level::Raid10, raid::near(copies, legs)),
            Shape::Raid1 { .. } | Shape::Linear | Shape::Striped { .. } => (Level::Raid1, 0),
        };
        Raid {
            level,
            layout,
            legs,
            stripe_sectors: u32::try_from(shape.stripe_size()).expect("it divides an extent"),
            sectors,
            leg_sectors: sectors / shape.stripes(),
            region_sectors: region,
            in_sync,
        }
    }

    /// A part of another volume, over these runs.
    pub(super) fn add_hidden(&mut self, name: &str, runs: &[Piece]) -> Result<(), EditError> {
        let id: Uuid = (self.author.ids)();
        let vg = self.group();
        let mut start = 0;
        let mut segments = Vec::with_capacity(runs.len());
        for (at, count) in joined(runs) {
            segments.push(striped(vg, start, count, 0, &[at]));
            start += count;
        }
        let birth = Birth { id, time: self.author.time, host: &self.author.host };
        let section = volume(&birth, &["READ", "WRITE"], &[], segments);
        self.change(|vg, _| {
            lv_list(vg).set(name, Node::Section(section));
            Ok(())
        })
    }

    /// LVM lists the volumes that are seen before those that are not.
    pub(super) fn add_visible(&mut self, name: &str, section: Section) -> Result<(), EditError> {
        self.change(|vg, old| {
            let visible = old.lvs.iter().zip(old.visible()).filter(|(_, visible)| *visible);
            let seen: Vec<&str> = visible.map(|(lv, _)| lv.name.as_str()).collect();
            lv_list(vg).set_behind(&seen, name, Node::Section(section));
            Ok(())
        })
    }
}

/// The segment of a RAID volume over these parts.
fn segment_of_raid(shape: &Shape, extents: u64, region: u64, parts: impl Iterator<Item = String>) -> Section {
    let name = match shape {
        Shape::Parity { kind, .. } => kind.name(),
        Shape::Raid10 { .. } => "raid10",
        Shape::Raid1 { .. } | Shape::Linear | Shape::Striped { .. } => "raid1",
    };
    let mut keys = Keys::default()
        .number("start_extent", 0)
        .number("extent_count", extents)
        .text("type", name)
        .number("device_count", shape.columns());
    if let Shape::Raid10 { .. } = shape {
        keys = keys.number("data_copies", shape.copies());
    }
    keys = keys.number("region_size", region);
    if shape.stripe_size() > 0 {
        keys = keys.number("stripe_size", shape.stripe_size());
    }
    let mut section = keys.done();
    section.set("raids", strings(parts));
    section
}

/// Of each column, its runs in order.
pub(super) fn columns(rounds: &[Round]) -> Vec<Vec<Piece>> {
    let count = rounds.first().map_or(0, |round| round.starts.len());
    (0..count).map(|n| rounds.iter().map(|round| (round.starts[n], round.count)).collect()).collect()
}

/// The same, with one for those that follow each other: what one leg has for want of room elsewhere in a shorter piece may go on in the
/// next round, and is one segment for LVM.
pub(super) fn joined(runs: &[Piece]) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::with_capacity(runs.len());
    for (at, count) in runs {
        match joined.last_mut() {
            Some(((pv, start), before)) if (*pv, *start + *before) == *at => *before += count,
            _ => joined.push((*at, *count)),
        }
    }
    joined
}

/// Takes the metadata of a leg off its first run.
fn split_meta(runs: &mut [Piece], meta: u64) -> (PvIndex, u64) {
    let ((pv, start), count) = runs[0];
    runs[0] = ((pv, start + meta), count - meta);
    (pv, start)
}

/// The verb for so many.
pub(super) fn is_or_are(count: u64) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// What to say where there is no room.
pub(super) fn room(draft: &Draft, free: &FreeExtents, needed: String) -> EditError {
    let pvs = match free.pvs() {
        0 => String::new(),
        1 => " on 1 physical volume".to_owned(),
        count => format!(" on {count} physical volumes"),
    };
    let policy = match draft.policy(None) {
        Policy::Normal => "",
        Policy::Contiguous => ", and the policy `contiguous` wants them in one piece",
        Policy::Cling => ", and the policy `cling` wants them where the volume is already",
    };
    EditError::Room {
        needed,
        free: format!("{} {}{pvs}", draft.extents_shown(free.total()), is_or_are(free.total())),
        why: policy.to_owned(),
        remedy: "make it smaller, remove a volume, or add a disk with `blockwork vg extend`".into(),
    }
}
