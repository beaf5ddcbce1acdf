//! The letters of `lv_attr`, of lvs(8).
//!
//! They tell of the text, and of what is known of volumes that are served or were looked at. What `lvs` asks the kernel's device mapper, which has
//! none of them: whether a volume is active and open (the fifth and the sixth letter), is `-`, but that a snapshot is invalid, or its merge has failed.

use std::collections::BTreeMap;

use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{Area, LvIndex, SegmentType};

use super::status::Fullness;

/// What a volume is to another one.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// The so-manieth leg's data.
    RaidImage(LvIndex, usize),
    RaidMeta,
    MirrorImage,
    MirrorLog,
    ThinData,
    /// Of whichever kind of pool.
    PoolMeta,
    CacheData,
    Cached,
}

/// The letters of a group's volumes.
pub(super) struct Letters<'a> {
    vg: &'a VolumeGroup,
    visible: &'a [bool],
    parts: BTreeMap<LvIndex, Part>,
    /// Volumes with snapshots of the old kind; whether one of these is being merged.
    origins: BTreeMap<LvIndex, bool>,
}

impl<'a> Letters<'a> {
    pub(super) fn of(vg: &'a VolumeGroup, visible: &'a [bool]) -> Letters<'a> {
        let mut parts = BTreeMap::new();
        for (lv, volume) in (0..).map(LvIndex).zip(&vg.lvs) {
            for segment in &volume.segments {
                match &segment.kind {
                    SegmentType::Raid { images, metas, .. } => {
                        let images = images.iter().enumerate();
                        parts.extend(images.map(|(nth, image)| (*image, Part::RaidImage(lv, nth))));
                        parts.extend(metas.iter().map(|meta| (*meta, Part::RaidMeta)));
                    }
                    SegmentType::Mirror { log, images, .. } => {
                        let image = |area: &Area| match *area {
                            Area::Lv { lv, .. } => Some((lv, Part::MirrorImage)),
                            Area::Pv { .. } => None,
                        };
                        parts.extend(images.iter().filter_map(image));
                        parts.extend(log.map(|log| (log, Part::MirrorLog)));
                    }
                    SegmentType::ThinPool { metadata, data, .. } => {
                        parts.extend([(*metadata, Part::PoolMeta), (*data, Part::ThinData)]);
                    }
                    SegmentType::CachePool { metadata, data, .. } => {
                        parts.extend([(*metadata, Part::PoolMeta), (*data, Part::CacheData)]);
                    }
                    SegmentType::Cache { origin, .. } | SegmentType::Writecache { origin, .. } => {
                        parts.insert(*origin, Part::Cached);
                    }
                    _ => {}
                }
            }
        }
        let mut origins = BTreeMap::new();
        for snapshot in vg.snapshots() {
            *origins.entry(snapshot.origin).or_default() |= snapshot.merging;
        }
        Letters { vg, visible, parts, origins }
    }

    /// Those of a volume, of whose health this is told in the words of `lv_health_status`; `full` is what is known of each.
    pub(super) fn letters(
        &self,
        lv: LvIndex,
        health: Option<&str>,
        full: &BTreeMap<LvIndex, &Fullness>,
    ) -> String {
        let volume = &self.vg.lvs[lv.0];
        let own = full.get(&lv).copied();
        let letter = |is: bool, letter: char| if is { letter } else { '-' };
        let permission = match () {
            () if volume.flags.has("PVMOVE") => '-',
            () if volume.flags.has("WRITE") => 'w',
            () => 'r',
        };
        let state = match own.and_then(Fullness::status) {
            Some("Invalid") => 'I',
            Some("Merge failed") => 'm',
            _ => '-',
        };
        [
            self.kind(lv, full),
            permission,
            self.policy(lv),
            letter(volume.flags.has("FIXED_MINOR"), 'm'),
            state,
            '-',
            self.target(lv),
            letter(self.zeroes(lv), 'z'),
            self.health(lv, health, own),
            letter(volume.flags.has("ACTIVATION_SKIP"), 'k'),
        ]
        .iter()
        .collect()
    }

    fn kind(&self, lv: LvIndex, full: &BTreeMap<LvIndex, &Fullness>) -> char {
        let (vg, volume) = (self.vg, &self.vg.lvs[lv.0]);
        let case = |small: char, is_large: bool| if is_large { small.to_ascii_uppercase() } else { small };
        if volume.flags.has("PVMOVE") {
            return 'p';
        }
        if let Some(merges) = self.origins.get(&lv) {
            return case('o', *merges);
        }
        if vg.is_external_origin(lv) {
            return 'o';
        }
        // LVM knows the spare by its name, too.
        if matches!(self.parts.get(&lv), Some(Part::RaidMeta | Part::PoolMeta)) || self.is_spare(lv) {
            return 'e';
        }
        let not_synced = volume.flags.has("NOTSYNCED");
        match volume.segments[0].kind {
            SegmentType::Cache { .. } | SegmentType::CachePool { .. } | SegmentType::Writecache { .. } => {
                return 'C';
            }
            SegmentType::Raid { .. } => return case('r', not_synced),
            SegmentType::Mirror { .. } => return case('m', not_synced),
            SegmentType::Thin { .. } if vg.merging_thin(lv).is_some() => return 'O',
            SegmentType::Thin { merge: Some(_), .. } => return 'S',
            SegmentType::Thin { .. } => return 'V',
            SegmentType::ThinPool { .. } => return 't',
            _ => {}
        }
        match self.parts.get(&lv) {
            Some(Part::CacheData) => 'C',
            Some(Part::ThinData) => 'T',
            Some(Part::MirrorImage) => 'i',
            Some(Part::RaidImage(raid, nth)) => {
                let in_sync = full.get(raid).is_some_and(|raid| raid.leg_is_in_sync(*nth));
                case('i', self.visible[lv.0] || !in_sync)
            }
            Some(Part::MirrorLog) => 'l',
            Some(Part::Cached) => 'o',
            Some(Part::RaidMeta | Part::PoolMeta) => 'e',
            None => match vg.snapshot_in(lv) {
                Some(snapshot) => case('s', snapshot.merging),
                None if vg.split_off(lv).is_some() => 'I',
                None => '-',
            },
        }
    }

    fn is_spare(&self, lv: LvIndex) -> bool {
        !self.visible[lv.0] && self.vg.lvs[lv.0].name.ends_with("_pmspare")
    }

    /// How it is allocated.
    fn policy(&self, lv: LvIndex) -> char {
        let volume = &self.vg.lvs[lv.0];
        let letter = match volume.allocation_policy.as_deref() {
            None | Some("inherit") => 'i',
            Some("contiguous") => 'c',
            Some("cling") => 'l',
            Some("cling_by_tags") => 't',
            Some("anywhere") => 'a',
            Some(_) => 'n',
        };
        if volume.flags.has("LOCKED") { letter.to_ascii_uppercase() } else { letter }
    }

    /// Which of the kernel's targets has to do with it.
    fn target(&self, lv: LvIndex) -> char {
        let (part, kind) = (self.parts.get(&lv), &self.vg.lvs[lv.0].segments[0].kind);
        match kind {
            SegmentType::Thin { .. } | SegmentType::ThinPool { .. } => 't',
            SegmentType::Cache { .. } | SegmentType::CachePool { .. } | SegmentType::Writecache { .. } => 'C',
            _ if matches!(part, Some(Part::Cached)) => 'C',
            SegmentType::Raid { .. } => 'r',
            _ if matches!(part, Some(Part::RaidImage(..) | Part::RaidMeta)) => 'r',
            _ if self.vg.split_off(lv).is_some() => 'r',
            SegmentType::Mirror { .. } => 'm',
            _ if matches!(part, Some(Part::MirrorImage | Part::MirrorLog)) => 'm',
            _ if self.vg.snapshot_in(lv).is_some() || self.origins.contains_key(&lv) => 's',
            SegmentType::Unknown => 'u',
            SegmentType::Error | SegmentType::Zero => 'v',
            _ => '-',
        }
    }

    /// Whether what it allocates is zeroed first.
    fn zeroes(&self, lv: LvIndex) -> bool {
        match self.vg.lvs[lv.0].segments[0].kind {
            SegmentType::ThinPool { zero_new_blocks, .. } => zero_new_blocks,
            SegmentType::Thin { pool, .. } => self.zeroes(pool),
            _ => false,
        }
    }

    fn health(&self, lv: LvIndex, words: Option<&str>, own: Option<&Fullness>) -> char {
        match words {
            Some("partial") => return 'p',
            Some("refresh needed") => return 'r',
            Some("mismatches exist") => return 'm',
            _ => {}
        }
        if self.vg.lvs[lv.0].flags.has("WRITEMOSTLY") {
            return 'w';
        }
        let is_pool = matches!(self.vg.lvs[lv.0].segments[0].kind, SegmentType::ThinPool { .. });
        let status = own.and_then(Fullness::status).filter(|_| is_pool).unwrap_or_default();
        let is_so = |word: &str| status.split(' ').any(|it| it == word);
        match () {
            () if is_so("Fail") || is_so("Error") => 'F',
            () if is_so("out_of_data_space") => 'D',
            () if is_so("ro") => 'M',
            () => '-',
        }
    }
}
