//! Where an array's sectors lie: from its superblocks to a geometry.

use blockwork_engine::Sectors;
use blockwork_format::md::raid0::{self, Raid0Layout};
use blockwork_format::md::v1::Features;
use blockwork_format::md::{Level, Raid10Layout, Superblock};
use blockwork_layer::md::Geometry;

/// The geometry of an array with this superblock. `room` has of each place the sectors of data that its member has room
/// for, where one is there: a RAID0 and a linear array use all of them.
///
/// # Errors
///
/// A level that cannot be served, a RAID0 or linear array of which a member is missing, or sizes that make no array.
pub(super) fn geometry(truth: &Superblock, room: &[Option<u64>]) -> Result<Geometry, String> {
    let shape = Shape::of(truth)?;
    let text = |error: blockwork_layer::md::GeometryError| error.to_string();
    match truth.level() {
        Level::Linear => {
            let sizes: Option<Vec<Sectors>> = room.iter().map(|room| room.map(Sectors)).collect();
            Geometry::linear(shape.chunk, &sizes.ok_or_else(|| missing(truth, room))?).map_err(text)
        }
        Level::Raid0 => {
            let sizes: Option<Vec<u64>> = room.iter().copied().collect();
            let sizes = sizes.ok_or_else(|| missing(truth, room))?;
            let layout = shape.raid0_layout(&sizes)?;
            let sizes: Vec<Sectors> = sizes.into_iter().map(Sectors).collect();
            Geometry::raid0(shape.chunk, &sizes, layout).map_err(text)
        }
        Level::Raid1 => {
            let members = u16::try_from(room.len()).map_err(|_| "it has too many members".to_owned())?;
            if shape.size > Sectors::MAX {
                return Err(format!("its members have {} sectors, more than a device can", shape.size));
            }
            Ok(Geometry::raid1(members, shape.size))
        }
        Level::Raid10 => {
            let layout = shape.raid10.clone().expect("a RAID10 has a layout")?;
            Geometry::raid10(layout, shape.chunk, shape.size).map_err(text)
        }
        Level::Raid4 | Level::Raid5 | Level::Raid6 => {
            let layout = truth.parity_layout().map_err(|error| error.to_string())?;
            Geometry::parity(layout, shape.chunk, shape.size).map_err(text)
        }
        other => Err(format!("its level is {other}, which has another geometry")),
    }
}

/// Which places have no member that holds all of its data, for people.
pub(super) fn missing(truth: &Superblock, room: &[Option<u64>]) -> String {
    let missing: Vec<String> = (0..)
        .zip(room)
        .filter(|(_, room)| room.is_none())
        .map(|(place, _): (u32, _)| place.to_string())
        .collect();
    let which = match &missing[..] {
        [only] => format!("member {only} of {} is missing or not in sync", room.len()),
        _ => format!("members {} of {} are missing or not in sync", missing.join(", "), room.len()),
    };
    let why = match truth.parity_layout().ok().filter(|_| truth.level().has_parity()) {
        Some(layout) => format!("its parity makes up for {}", layout.parities()),
        None => "without that some data has no copy".to_owned(),
    };
    format!("{which}, and {why}; give those disks as well")
}

/// What both versions of superblock tell of a shape.
struct Shape {
    chunk: Sectors,
    /// Of each member, in levels where all have the same.
    size: Sectors,
    /// As the superblock has it, where it is meant.
    raid0: Option<u32>,
    raid10: Option<Result<Raid10Layout, String>>,
}

impl Shape {
    fn of(truth: &Superblock) -> Result<Shape, String> {
        let is_raid10 = truth.level() == Level::Raid10;
        match truth {
            Superblock::V1(one) => {
                let supported = one.supports(blockwork_format::md::Access::Read);
                supported.map_err(|error| error.to_string())?;
                let stated = one.features.has(Features::RAID0_LAYOUT).then_some(one.layout);
                let raid10 = is_raid10.then(|| one.raid10_layout().map_err(|error| error.to_string()));
                let size = Sectors(one.member_sectors());
                Ok(Shape { chunk: Sectors(one.chunk_sectors.into()), size, raid0: stated, raid10 })
            }
            Superblock::V0(one) => {
                one.supports_reading().map_err(|error| error.to_string())?;
                let raid10 = is_raid10.then(|| one.raid10_layout().map_err(|error| error.to_string()));
                let size = Sectors(one.member_sectors());
                Ok(Shape { chunk: Sectors(one.chunk_sectors().into()), size, raid0: None, raid10 })
            }
        }
    }

    fn raid0_layout(&self, sizes: &[u64]) -> Result<Raid0Layout, String> {
        let chunk = u32::try_from(self.chunk.0).map_err(|_| "its chunk is too large".to_owned())?;
        let zones = raid0::zones(chunk, sizes).map_err(|error| error.to_string())?;
        raid0::layout(&zones, self.raid0).map_err(|error| error.to_string())
    }
}
