//! A volume group, as its text describes it: physical volumes, logical volumes and their segments.
//!
//! Invariants of a [`VolumeGroup`] that [`VolumeGroup::from_text`] returns:
//!
//! 1. Names are allowed ones, and unique in their list; so are UUIDs. Every reference is an index that is in range.
//! 2. The segments of an LV follow each other from extent 0 without a gap, and an LV has at least one.
//! 3. An area lies inside its PV or LV, and no extent of a PV is in two areas. An LV (or a part of one) that is a leg, a
//!    store or a pool's part is so once only.
//! 4. No LV is made of itself, and LVs are stacked to [`STACK_MAX`] at most: whoever follows them needs no own bound.
//! 5. Sizes of PVs and LVs are below 2^63 bytes, so that extents times [`VolumeGroup::extent_sectors`] never overflows; and they are
//!    at most [`EXTENTS_MAX`] extents each: LVM would read larger ones as others, or not at all. (The sum of all PVs may be larger:
//!    `pvresize` makes such groups, and LVM reads every volume of them.)
//!
//! Of types that are not known ([`SegmentType::Unknown`]) and of historical LVs nothing is checked; the tree keeps them.
//!
//! This is a view for reading. Changes are made in the tree, so that keys that are not known here survive.
//! Units: extents, and sectors of 512 bytes.

mod check;
mod read;
mod segment;
#[cfg(test)]
mod tests;

pub use segment::{Area, CacheParts, Message, RaidLevel, Segment, SegmentType};

use std::collections::{BTreeMap, BTreeSet};

use super::{Node, Section, Uuid};
use crate::FormatError;

/// PVs in a VG.
pub const PVS_MAX: usize = 16_384;

/// LVs in a VG, with the hidden ones.
pub const LVS_MAX: usize = 131_072;

/// Stripes, mirrors or legs of one segment.
pub const AREAS_MAX: usize = 4096;

/// How deep LVs are made of LVs. LVM itself needs about 6: a snapshot of a cached thin pool on RAID with integrity.
pub const STACK_MAX: usize = 32;

/// Largest size of a PV or an LV, sectors: below 2^63 bytes.
pub const SECTORS_MAX: u64 = i64::MAX.unsigned_abs() / crate::SECTOR_BYTES;

/// Largest size of a PV or an LV, extents: LVM counts them in 32 bits.
pub const EXTENTS_MAX: u64 = u32::MAX as u64;

/// Longest name of a VG or an LV, bytes.
pub const NAME_MAX: usize = 127;

/// Which PV: index into [`VolumeGroup::pvs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PvIndex(pub usize);

/// Which LV: index into [`VolumeGroup::lvs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LvIndex(pub usize);

/// A volume group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeGroup {
    /// Its name: the key of its section.
    pub name: String,
    /// Its identifier.
    pub id: Uuid,
    /// Number of the change that this text is: of several texts the highest one counts.
    pub seqno: u64,
    /// RESIZEABLE, EXPORTED, …
    pub flags: Flags,
    /// Tags.
    pub tags: Vec<String>,
    /// Sectors of an extent; at least 1.
    pub extent_sectors: u64,
    /// The host that owns it, if any.
    pub system_id: Option<String>,
    /// `none`, or the lock manager that a shared VG needs.
    pub lock_type: Option<String>,
    /// Who wrote the text.
    pub origin: Origin,
    /// Its physical volumes, in the order of the text.
    pub pvs: Vec<Pv>,
    /// Its logical volumes with the hidden ones, in the order of the text.
    pub lvs: Vec<Lv>,
    /// A key of the text that has several values, of which the first was taken.
    pub repeated: Option<FormatError>,
    /// The snapshots, in the order of the LVs that tie them: who asks for one of each LV of thousands must not look at all LVs for it.
    snapshots: Vec<Snapshot>,
    /// Of stores, where their snapshot is in that list.
    by_store: BTreeMap<LvIndex, usize>,
    /// Of volumes into which a thin snapshot is to be merged, that snapshot.
    merging_thins: BTreeMap<LvIndex, LvIndex>,
    /// What thin volumes have where nothing of their own is.
    external_origins: BTreeSet<LvIndex>,
    /// Of images that were split off a RAID which tracks what changes since, that RAID.
    split_off: BTreeMap<LvIndex, LvIndex>,
}

/// Who wrote a text, when and why; as far as it says so.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// The command that made the change.
    pub description: Option<String>,
    /// Name of the host.
    pub host: Option<String>,
    /// Seconds since 1970.
    pub time: Option<i64>,
}

/// Status flags, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flags {
    /// Of `status`: who does not know one of them must not change the VG.
    pub status: Vec<String>,
    /// Of `flags`: who does not know one of them keeps it.
    pub compatible: Vec<String>,
}

impl Flags {
    /// Whether the flag is set, in whichever list.
    pub fn has(&self, flag: &str) -> bool {
        self.status.iter().chain(&self.compatible).any(|name| name == flag)
    }
}

/// A physical volume of a VG.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pv {
    /// How the segments call it: `pv0`.
    pub name: String,
    /// Its identifier, by which it is found.
    pub id: Uuid,
    /// Where it was last seen. Only a hint, never to be opened.
    pub device_hint: Option<String>,
    /// What [`Pv::device_id`] is: `sys_wwid`, `loop_file`, …
    pub device_id_type: Option<String>,
    /// What its device said of itself when it was last seen.
    pub device_id: Option<String>,
    /// ALLOCATABLE, MISSING, …
    pub flags: Flags,
    /// Tags.
    pub tags: Vec<String>,
    /// Size of its device, sectors, where the text has it.
    pub dev_sectors: Option<u64>,
    /// Where its first extent begins, sectors from the start of the device.
    pub pe_start: u64,
    /// How many extents it has.
    pub pe_count: u64,
    /// Start and size of its bootloader area, sectors.
    pub bootloader_area: Option<(u64, u64)>,
    /// Line of the text.
    pub line: u64,
}

impl Pv {
    /// Whether the VG's last writer could not find it.
    pub fn missing(&self) -> bool {
        self.flags.has("MISSING")
    }
}

/// A logical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lv {
    /// Its name.
    pub name: String,
    /// Its identifier.
    pub id: Uuid,
    /// READ, WRITE, VISIBLE, … Of VISIBLE see [`VolumeGroup::visible`].
    pub flags: Flags,
    /// Tags.
    pub tags: Vec<String>,
    /// On which host it was made.
    pub creation_host: Option<String>,
    /// When it was made, seconds since 1970.
    pub creation_time: Option<i64>,
    /// `contiguous`, `cling`, …, where it is not the VG's.
    pub allocation_policy: Option<String>,
    /// Read-ahead in sectors; −1: none. Absent: whatever the system thinks right.
    pub read_ahead: Option<i64>,
    /// Its segments, in the order of their extents; at least one.
    pub segments: Vec<Segment>,
    /// Line of the text.
    pub line: u64,
}

impl Lv {
    /// Whether it may be written.
    pub fn writable(&self) -> bool {
        self.flags.has("WRITE") || self.flags.has("WRITE_LOCKED")
    }

    /// How many extents it has.
    pub fn extents(&self) -> u64 {
        self.segments.last().map_or(0, |segment| segment.start_extent + segment.extent_count)
    }
}

/// A snapshot in a VG: what the LV that ties it to its origin says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// The LV that nobody sees: `snapshot0`.
    pub tie: LvIndex,
    /// What it is a snapshot of.
    pub origin: LvIndex,
    /// The LV with its exceptions. Its name is the one that the user gave the snapshot.
    pub store: LvIndex,
    /// Sectors of a chunk.
    pub chunk_size: u64,
    /// Whether it is being merged back into its origin.
    pub merging: bool,
}

impl VolumeGroup {
    /// The VG of a text, as a metadata area or a backup file holds it.
    ///
    /// # Errors
    ///
    /// Where the text is no description of a VG, or contradicts an invariant of this module. The error names the line,
    /// and the section as a path: `vg0/logical_volumes/lv1/segment1`.
    pub fn from_text(text: &[u8]) -> Result<Self, FormatError> {
        let (tree, repeated) = Section::parse_noting(text)?;
        Ok(VolumeGroup { repeated, ..Self::from_tree(&tree)? })
    }

    /// The number (`seqno`) in a text that may be no description of a VG otherwise: none, if it has not even that.
    pub fn seqno_in(text: &[u8]) -> Option<u64> {
        let tree = Section::parse(text).ok()?;
        let vg = tree.entries.iter().find_map(|entry| entry.node.as_section())?;
        let Node::Value(seqno) = vg.get("seqno")? else { return None };
        seqno.as_integer().and_then(|seqno| u64::try_from(seqno).ok())
    }

    /// The VG that a tree describes.
    ///
    /// # Errors
    ///
    /// As for [`VolumeGroup::from_text`].
    pub fn from_tree(tree: &Section) -> Result<Self, FormatError> {
        let vg = read::volume_group(tree)?;
        check::volume_group(&vg)?;
        Ok(vg)
    }

    /// The LV of that name.
    pub fn lv(&self, name: &str) -> Option<LvIndex> {
        self.lvs.iter().position(|lv| lv.name == name).map(LvIndex)
    }

    /// The PV with that identifier.
    pub fn pv(&self, id: &Uuid) -> Option<PvIndex> {
        self.pvs.iter().position(|pv| pv.id == *id).map(PvIndex)
    }

    /// Largest size of a PV or an LV of this group, extents.
    pub fn extents_max(&self) -> u64 {
        EXTENTS_MAX.min(SECTORS_MAX / self.extent_sectors)
    }

    /// Size of an LV, sectors.
    pub fn lv_sectors(&self, lv: LvIndex) -> u64 {
        self.lvs[lv.0].extents() * self.extent_sectors
    }

    /// The pool of a thin volume, and the number in it of what the volume holds: its own, or that of a snapshot that is to be merged
    /// into it. Linux does such a merge by activating the origin with the snapshot's number; what had its own is never seen again.
    pub fn thin_device(&self, lv: LvIndex) -> Option<(LvIndex, u64)> {
        let device = |lv: LvIndex| match self.lvs[lv.0].segments[0].kind {
            SegmentType::Thin { pool, device_id, .. } => Some((pool, device_id)),
            _ => None,
        };
        let own = device(lv)?;
        let merging = self.merging_thin(lv).and_then(device);
        Some(merging.filter(|(pool, _)| *pool == own.0).unwrap_or(own))
    }

    /// The thin snapshot that is to be merged into a volume.
    pub fn merging_thin(&self, origin: LvIndex) -> Option<LvIndex> {
        self.merging_thins.get(&origin).copied()
    }

    /// The volumes into which a thin snapshot is to be merged, each with that.
    pub fn merging_thins(&self) -> impl Iterator<Item = (LvIndex, LvIndex)> + '_ {
        self.merging_thins.iter().map(|(origin, snapshot)| (*origin, *snapshot))
    }

    /// Whether a thin volume reads there what it has nothing of its own for. Nobody writes to such a volume: LVM makes it read-only.
    pub fn is_external_origin(&self, lv: LvIndex) -> bool {
        self.external_origins.contains(&lv)
    }

    /// Into which volume a snapshot of either kind is to be merged, or being so.
    pub fn merged_into(&self, lv: LvIndex) -> Option<LvIndex> {
        match self.lvs[lv.0].segments.first()?.kind {
            SegmentType::Thin { merge, .. } => merge,
            _ => self.snapshot_in(lv).filter(|one| one.merging).map(|one| one.origin),
        }
    }

    /// The RAID that an image was split off and may be put back into, which tracks what changes until then
    /// (`lvconvert --splitmirrors 1 --trackchanges`): whoever sees such an image sees what the RAID was, and nobody writes to it.
    pub fn split_off(&self, image: LvIndex) -> Option<LvIndex> {
        self.split_off.get(&image).copied()
    }

    /// The images that were split off a RAID and may be put back; LVM makes no more than one.
    pub fn split_images(&self, raid: LvIndex) -> impl Iterator<Item = LvIndex> + '_ {
        self.split_off.iter().filter(move |(_, of)| **of == raid).map(|(image, _)| *image)
    }

    /// The snapshots, in the order of the LVs that tie them.
    pub fn snapshots(&self) -> impl Iterator<Item = Snapshot> + '_ {
        self.snapshots.iter().copied()
    }

    /// The snapshot whose exceptions an LV holds.
    pub fn snapshot_in(&self, store: LvIndex) -> Option<Snapshot> {
        self.by_store.get(&store).map(|place| self.snapshots[*place])
    }

    /// Whether there is nothing behind a snapshot but zeros: `lvcreate --type snapshot --virtualsize`.
    pub fn has_virtual_origin(&self, snapshot: &Snapshot) -> bool {
        matches!(self.lvs[snapshot.origin.0].segments[0].kind, SegmentType::Zero)
    }

    /// Of each LV, whether it is a volume of the user, and not a part of one.
    ///
    /// The flag VISIBLE says so but for snapshots: there the LV that ties store and origin together has the flag, and the
    /// store, which bears the snapshot's name, has it not. A snapshot is seen where its origin is; one whose origin is only
    /// virtual always is; and one that is being merged is not, of either kind.
    pub fn visible(&self) -> Vec<bool> {
        let mut visible: Vec<bool> = self.lvs.iter().map(|lv| lv.flags.has("VISIBLE")).collect();
        for snapshot in self.snapshots() {
            let is_seen =
                self.has_virtual_origin(&snapshot) || self.lvs[snapshot.origin.0].flags.has("VISIBLE");
            visible[snapshot.tie.0] = false;
            visible[snapshot.store.0] = is_seen && !snapshot.merging;
        }
        self.merging_thins.values().for_each(|snapshot| visible[snapshot.0] = false);
        visible
    }

    /// Flags of `status` lists that this crate does not know, each with the path of its section: a VG that has some may be
    /// read, and must not be changed.
    pub fn unknown_status(&self) -> Vec<(String, String)> {
        const VG: &[&str] = &["EXPORTED", "RESIZEABLE", "PVMOVE", "READ", "WRITE", "CLUSTERED", "SHARED"];
        const PV: &[&str] = &["ALLOCATABLE", "EXPORTED", "MISSING"];
        const LV: &[&str] = &[
            "READ",
            "WRITE",
            "FIXED_MINOR",
            "VISIBLE",
            "PVMOVE",
            "LOCKED",
            "NOTSYNCED",
            "REBUILD",
            "WRITEMOSTLY",
        ];
        let mut unknown = Vec::new();
        let mut look = |path: &dyn Fn() -> String, flags: &Flags, known: &[&str]| {
            let strange = flags.status.iter().filter(|flag| !known.contains(&flag.as_str()));
            unknown.extend(strange.map(|flag| (path(), flag.clone())));
        };
        look(&|| self.name.clone(), &self.flags, VG);
        for pv in &self.pvs {
            look(&|| format!("{}/physical_volumes/{}", self.name, pv.name), &pv.flags, PV);
        }
        for lv in &self.lvs {
            look(&|| format!("{}/logical_volumes/{}", self.name, lv.name), &lv.flags, LV);
        }
        unknown
    }
}
