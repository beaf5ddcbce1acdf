//! What is told of an md array: what `mdadm --detail` shows of one that is assembled.

use blockwork_format::md::{IN_SYNC, Level, Superblock, raid0::Raid0Layout, v1::Features};
use serde::Serialize;

use super::{DeviceReport, Reader, bytes};
use crate::graph::ArrayId;
use crate::md::{Array, Member, MemberState};

/// An md array.
#[derive(Clone, Debug, Serialize)]
pub struct ArrayReport {
    /// Its UUID.
    pub array_uuid: String,
    /// Its name with its homehost, as the superblock has it; none in 0.90.
    pub name: Option<String>,
    /// Version of its superblocks.
    pub version: &'static str,
    /// `raid10`
    pub level: String,
    /// As `mdadm` shows it: `near=2`; of a RAID0 of unequal members `original` or `alternate`.
    pub layout: Option<String>,
    /// Chunk, bytes.
    pub chunk_size: Option<u64>,
    /// Places.
    pub raid_disks: u32,
    /// Bytes of each member that are used, where all have the same.
    pub used_dev_size: Option<u64>,
    /// Events of the superblock that is believed.
    pub events: u64,
    /// Whether it was stopped, or idle, when its superblocks were written last.
    pub clean: bool,
    /// Places without a member that is in sync.
    pub degraded: u32,
    /// Its mirrors may differ from this byte of the array on.
    pub resync_from: Option<u64>,
    /// When it was made.
    pub creation_time: u64,
    /// Its write-intent bitmap, if it has one and is assembled.
    pub bitmap: Option<BitmapReport>,
    /// Its members: first by place, with those that are missing, then all others.
    pub members: Vec<MemberReport>,
    /// The array as a device.
    #[serde(flatten)]
    pub device: DeviceReport,
}

/// A write-intent bitmap: all copies of it together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BitmapReport {
    /// What a bit covers, bytes.
    pub chunk_size: u32,
    /// How many chunks there are.
    pub chunks: u64,
    /// How many of them may differ between members.
    pub dirty_chunks: u64,
}

/// A place of an array, or a device that has none.
#[derive(Clone, Debug, Serialize)]
pub struct MemberReport {
    /// The place, from 0; none for those that fill none.
    pub place: Option<u16>,
    /// The device; none where it is missing.
    pub volume: Option<String>,
    /// As of `md_member`; or `missing`.
    pub state: &'static str,
    /// Events of its superblock.
    pub events: Option<u64>,
    /// Bytes of its data that are in sync, where it is still being filled.
    pub recovered: Option<u64>,
}

/// What a member is to its array now.
pub(super) fn state_of(member: &Member, superblock: &Superblock) -> &'static str {
    match member.state {
        MemberState::InPlace { .. } if recovered(superblock).is_some() => "recovering",
        MemberState::InPlace { .. } => "in_sync",
        MemberState::Spare => "spare",
        MemberState::Replacement => "replacement",
        MemberState::Journal => "journal",
        MemberState::OutOfDate => "out_of_date",
        MemberState::Faulty => "faulty",
        MemberState::Foreign => "foreign",
        MemberState::Superseded => "superseded",
    }
}

/// Bytes of a member that are in sync, where not all are.
pub(super) fn recovered(superblock: &Superblock) -> Option<u64> {
    match superblock {
        Superblock::V0(_) => None,
        Superblock::V1(own) => Some(own.recovered_sectors()).filter(|all| *all != IN_SYNC).map(bytes),
    }
}

impl Reader<'_> {
    pub(super) fn array(&self, id: ArrayId) -> ArrayReport {
        let array = &self.graph.arrays[id.0];
        let truth = Truth::of(&array.truth);
        let members = self.places(array);
        let in_sync = members.iter().filter(|member| member.state == "in_sync").count();
        let mut device = self.device(array.device);
        device.warnings.extend(array.warnings.iter().cloned());
        ArrayReport {
            array_uuid: array.truth.uuid().to_string(),
            name: truth.name,
            version: array.truth.version(),
            level: array.truth.level().to_string(),
            layout: truth.layout,
            chunk_size: Some(bytes(truth.chunk_sectors.into())).filter(|chunk| *chunk > 0),
            raid_disks: array.truth.raid_disks(),
            used_dev_size: array.truth.level().has_equal_members().then(|| bytes(truth.member_sectors)),
            events: array.truth.events(),
            clean: truth.clean,
            degraded: array.truth.raid_disks().saturating_sub(u32::try_from(in_sync).unwrap_or(u32::MAX)),
            resync_from: truth.resync_from,
            creation_time: array.truth.ctime_seconds(),
            bitmap: array.bitmap.map(|bitmap| BitmapReport {
                chunk_size: bitmap.chunk_bytes,
                chunks: bitmap.chunks,
                dirty_chunks: bitmap.dirty_chunks,
            }),
            members,
            device,
        }
    }

    fn places(&self, array: &Array) -> Vec<MemberReport> {
        let missing = array.missing().into_iter().map(|place| MemberReport {
            place: Some(place),
            volume: None,
            state: "missing",
            events: None,
            recovered: None,
        });
        let there = array.members.iter().map(|member| self.member(member));
        let mut members: Vec<MemberReport> = there.chain(missing).collect();
        members.sort_by_key(|member| member.place.map_or(u32::MAX, u32::from));
        members
    }

    fn member(&self, member: &Member) -> MemberReport {
        let superblock = match &self.graph.device(member.device).content {
            crate::graph::Content::MdMember(superblock) => superblock,
            _ => unreachable!("who is a member of an array has a superblock"),
        };
        MemberReport {
            place: member.place(),
            volume: Some(self.name(member.device)),
            state: state_of(member, superblock),
            events: Some(member.events),
            recovered: recovered(superblock),
        }
    }
}

/// What the two kinds of superblock tell of an array in different ways.
struct Truth {
    name: Option<String>,
    layout: Option<String>,
    chunk_sectors: u32,
    member_sectors: u64,
    clean: bool,
    resync_from: Option<u64>,
}

impl Truth {
    fn of(superblock: &Superblock) -> Truth {
        let resync = |offset: u64| Some(bytes(offset)).filter(|_| offset != IN_SYNC);
        let raid10 = |layout: Result<blockwork_format::md::Raid10Layout, _>| {
            layout.ok().map(|layout| layout.to_string())
        };
        let parity = || superblock.parity_layout().ok().map(|layout| layout.to_string());
        let is_mirrored = superblock.level().is_redundant();
        match superblock {
            Superblock::V0(own) => Truth {
                name: None,
                layout: match own.level {
                    Level::Raid10 => raid10(own.raid10_layout()),
                    level if level.has_parity() => parity(),
                    _ => None,
                },
                chunk_sectors: own.chunk_sectors(),
                member_sectors: own.member_sectors(),
                clean: own.is_clean(),
                resync_from: resync(own.resync_offset()).filter(|_| is_mirrored),
            },
            Superblock::V1(own) => Truth {
                name: Some(String::from_utf8_lossy(own.set_name.as_bytes()).into_owned()),
                layout: match own.level {
                    Level::Raid10 => raid10(own.raid10_layout()),
                    level if level.has_parity() => parity(),
                    Level::Raid0 if own.features.has(Features::RAID0_LAYOUT) => {
                        Raid0Layout::decode(own.layout).map(|layout| {
                            let name = match layout {
                                Raid0Layout::Original => "original",
                                Raid0Layout::Alternate => "alternate",
                            };
                            name.to_owned()
                        })
                    }
                    _ => None,
                },
                chunk_sectors: own.chunk_sectors,
                member_sectors: own.member_sectors(),
                clean: own.is_clean(),
                resync_from: resync(own.resync_offset).filter(|_| is_mirrored),
            },
        }
    }
}
