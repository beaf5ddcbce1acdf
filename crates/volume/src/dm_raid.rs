//! Geometry of arrays that device-mapper's `raid` target makes: of LVM's RAID volumes, and of tables.

use blockwork_engine::Sectors;
use blockwork_format::md::raid0::Raid0Layout;
use blockwork_format::md::{ParityLayout, Raid10Layout};
use blockwork_layer::md::Geometry;

/// A level, with what its geometry needs besides devices and chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DmRaidLevel {
    Raid0,
    Raid1,
    Raid10(Raid10Layout),
    Parity(ParityLayout),
}

/// Where the sectors of a target of that size lie on its devices, as far as whole chunks of these make it.
pub(crate) fn geometry(
    level: DmRaidLevel,
    devices: u16,
    chunk: Sectors,
    sectors: Sectors,
) -> Result<Geometry, String> {
    match level {
        DmRaidLevel::Raid1 => Ok(Geometry::raid1(devices, sectors)),
        DmRaidLevel::Raid0 => {
            let each = Sectors(sectors.0.div_ceil(u64::from(devices)));
            // All devices give as much: one zone, in which the layout does not matter.
            let sizes = vec![each; usize::from(devices)];
            Geometry::raid0(chunk, &sizes, Raid0Layout::Alternate).map_err(|error| error.to_string())
        }
        DmRaidLevel::Parity(layout) => {
            let each = Sectors(sectors.0 / u64::from(layout.data_disks()));
            Geometry::parity(layout, chunk, each).map_err(|error| error.to_string())
        }
        DmRaidLevel::Raid10(layout) => {
            // What each device gets of the volume and its copies.
            let each = u128::from(sectors.0) * u128::from(layout.copies()) / u128::from(devices);
            let each = u64::try_from(each).map_err(|_| "it is too large".to_owned())?;
            Geometry::raid10(layout, chunk, Sectors(each)).map_err(|error| error.to_string())
        }
    }
}
