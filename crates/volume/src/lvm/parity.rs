//! A RAID4, 5 or 6 of LVM: read where all of its legs are there, so that what its parity is for is not needed.

use std::num::NonZeroU64;
use std::sync::Arc;

use blockwork_engine::{Layer, NodeKind, Sector, Sectors};
use blockwork_format::escape;
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{LvIndex, Segment, SegmentType};
use blockwork_format::md::{Level, ParityLayout};
use blockwork_layer::md::{Parity, ParityConfig};

use super::raid::{judge, read_superblock};
use super::stack::{Built, Volume};
use crate::assembly::Assembly;

/// Level and layout of a segment type, by its name; md's numbers. Source: `Documentation/admin-guide/device-mapper/dm-raid.rst`.
pub(super) fn layout_of(type_name: &str) -> Option<(Level, u32)> {
    Some(match type_name {
        "raid4" => (Level::Raid5, 4),
        "raid5_la" => (Level::Raid5, 0),
        "raid5_ra" => (Level::Raid5, 1),
        "raid5" | "raid5_ls" => (Level::Raid5, 2),
        "raid5_rs" => (Level::Raid5, 3),
        "raid5_n" => (Level::Raid5, 5),
        "raid6" | "raid6_zr" => (Level::Raid6, 8),
        "raid6_nr" => (Level::Raid6, 9),
        "raid6_nc" => (Level::Raid6, 10),
        "raid6_n_6" => (Level::Raid6, 5),
        "raid6_la_6" => (Level::Raid6, 16),
        "raid6_ra_6" => (Level::Raid6, 17),
        "raid6_ls_6" => (Level::Raid6, 18),
        "raid6_rs_6" => (Level::Raid6, 19),
        _ => return None,
    })
}

impl Volume {
    /// The layer of a volume with parity.
    pub(super) fn parity(
        &mut self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        segment: &Segment,
        sectors: Sectors,
    ) -> Built {
        let SegmentType::Raid { images, metas, stripe_size, .. } = &segment.kind else {
            unreachable!("only RAID segments come here")
        };
        let (level, number) = layout_of(&segment.type_name).expect("others are refused by their name");
        let count = u16::try_from(images.len()).map_err(|_| "it has too many legs".to_owned())?;
        let layout = ParityLayout::new(level, number, count)
            .ok_or_else(|| format!("its {count} legs are too few for its type"))?;
        let alone = "with parity it is read here only with all of its legs; let Linux serve it";
        let whole = |why: String| format!("{why}, and {alone}");
        self.check_superblocks(assembly, text, metas, (level, number)).map_err(whole)?;
        let mut members = Vec::with_capacity(images.len());
        for image in images {
            let layer = self.part(assembly, text, *image).map_err(whole)?;
            let lv = &text.lvs[image.0];
            if lv.flags.has("REBUILD") {
                return Err(whole(format!("{} is being rebuilt", escape(&lv.name))));
            }
            members.push((layer, Sector(0)));
        }
        let (chunk, data) =
            (NonZeroU64::new(*stripe_size).ok_or("it has no stripe size")?, layout.data_disks());
        let size = Sectors(sectors.0 / u64::from(data));
        let node = self.node(assembly, NodeKind::Raid, true)?;
        let array = Parity::new(node, ParityConfig { layout, chunk, members, size });
        let array = array.map_err(|error| error.to_string())?;
        if array.sectors() != sectors {
            return Err(format!("its legs make {} sectors, and it has {sectors}", array.sectors()));
        }
        Ok(Arc::new(array))
    }

    /// Whether all legs are in sync, by what their superblocks say.
    fn check_superblocks(
        &self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        metas: &[LvIndex],
        (level, number): (Level, u32),
    ) -> Result<(), String> {
        let mut superblocks = Vec::with_capacity(metas.len());
        for meta in metas {
            let name = escape(&text.lvs[meta.0].name);
            let layer = self.part(assembly, text, *meta)?;
            let found = assembly.read(&*layer, |source| read_superblock(source));
            superblocks.push((found.map_err(|error| format!("{name}: {error}"))?, name));
        }
        let all = superblocks.iter().filter_map(|(superblock, _)| superblock.as_ref());
        let Some(truth) = all.max_by_key(|superblock| superblock.events) else {
            return Err("Linux has not used it yet: its metadata volumes have no superblocks".into());
        };
        truth.supports().map_err(|error| error.to_string())?;
        if (truth.level, truth.layout) != (level, number) {
            return Err(format!(
                "its superblocks tell of a {} of layout {}, and the group's metadata of a {level} of layout {number}",
                truth.level, truth.layout
            ));
        }
        for (position, (superblock, name)) in (0..).zip(&superblocks) {
            match judge(truth, superblock.as_ref(), position) {
                Ok(None) => {}
                Ok(Some(end)) => return Err(format!("{name}: its leg is in sync up to sector {end} only")),
                Err(why) => return Err(format!("{name}: {why}")),
            }
        }
        Ok(())
    }
}
