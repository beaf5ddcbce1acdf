//! A RAID4, 5 or 6 of LVM, for reading. What a leg had that is missing is computed from the others.
//!
//! Whether it was stopped Linux does not write down. Its bitmap has what was being written then; of one without a leg it also has all
//! that was written since that went, so that it says nothing there: Linux computes all of it, and so does this.

use blockwork_engine::{NodeKind, Sector, Sectors};
use blockwork_format::dm_raid::{self, Superblock};
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{Segment, SegmentType};
use blockwork_format::md::{Level, ParityLayout};
use blockwork_layer::md::{Array, ArrayConfig, Geometry, IntentConfig};

use super::raid::{Leg, leave_out, newest};
use super::stack::{Built, Volume};
use crate::assembly::Assembly;
use crate::md::intent;

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
        let size = Sectors(sectors.0 / u64::from(layout.data_disks()));
        let geometry =
            Geometry::parity(layout, Sectors(*stripe_size), size).map_err(|error| error.to_string())?;
        if geometry.sectors() != sectors {
            return Err(format!("its legs make {} sectors, and it has {sectors}", geometry.sectors()));
        }
        let mut legs = Vec::with_capacity(images.len());
        for (nth, (image, meta)) in images.iter().zip(metas).enumerate() {
            let leg = self.leg(assembly, text, (*image, Some(*meta)), size);
            if let Err(why) = &leg {
                self.warn(assembly, format!("leg {nth} is left out: {why}"));
            }
            legs.push(leg.ok());
        }
        let truth =
            newest(&legs).ok_or("Linux has not used it yet: its metadata volumes have no superblocks")?;
        truth.supports().map_err(|error| error.to_string())?;
        leave_out(&truth, &mut legs).into_iter().for_each(|warning| self.warn(assembly, warning));
        if (truth.level, truth.layout) != (level, number) {
            return Err(format!(
                "its superblocks tell of a {} of layout {}, and the group's metadata of a {level} of layout {number}",
                truth.level, truth.layout
            ));
        }
        let (resync_from, intent) = self.unsynced(assembly, &truth, &mut legs, (sectors, size))?;
        let members = legs.into_iter().map(|leg| leg.map(|leg| leg.config)).collect();
        let node = self.node(assembly, NodeKind::Raid, true)?;
        let name = self.name.clone();
        let config = ArrayConfig { name, geometry, members, resync_from, intent, record: None };
        let array = Array::new(node, config).map_err(|error| error.to_string())?;
        Ok(array)
    }

    /// From where on, or in which chunks, the parity may not fit the data. See the module.
    fn unsynced(
        &mut self,
        assembly: &mut Assembly,
        truth: &Superblock,
        legs: &mut [Option<Leg>],
        (sectors, size): (Sectors, Sectors),
    ) -> Result<(Option<Sector>, Option<IntentConfig>), String> {
        let is_told = assembly.starts_dirty_degraded(&self.name, NodeKind::Raid);
        if is_told.map_err(|error| error.to_string())? {
            return Ok((None, None));
        }
        let is_degraded =
            legs.iter().any(|leg| leg.as_ref().is_none_or(|leg| leg.config.recovered.is_some()));
        // One that has grown since it was last in use has no parity in what is new.
        let data_disks = sectors.0 / size.0.max(1);
        let known = truth
            .size()
            .filter(|old| *old < sectors.0)
            .map_or(dm_raid::IN_SYNC, |old| old / data_disks.max(1));
        let from = truth.array_resync_offset.min(known);
        let copies = legs.iter_mut().flatten().filter_map(|leg| leg.meta.as_mut()?.bitmap.take()).collect();
        let intent = intent::combine(copies, truth.events, false).unwrap_or_else(|error| {
            self.warn(assembly, format!("its write-intent bitmap is not believed: {error}"));
            None
        });
        if from != dm_raid::IN_SYNC {
            if is_degraded {
                self.warn(
                    assembly,
                    format!(
                        "its parity was computed up to sector {from} of each leg only: what a missing one had behind that is not read; \
                         --set raid:start_dirty_degraded=1 takes the parity as it is"
                    ),
                );
            }
            return Ok((Some(Sector(from)).filter(|from| from.0 < size.0), None));
        }
        match intent {
            Some(intent) if is_degraded => {
                let dirty = intent.bits.dirty_chunks();
                if dirty > 0 {
                    self.warn(
                        assembly,
                        format!(
                            "{dirty} of {} chunks were written to without all legs, or when it was last in use; if that ended by a power \
                             cut, what a missing leg had may be garbage where data was being written then",
                            intent.bits.chunks()
                        ),
                    );
                }
                Ok((None, None))
            }
            intent => Ok((None, intent)),
        }
    }
}
