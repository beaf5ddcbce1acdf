//! How an array is, for people and reports.

use blockwork_engine::{Sector, Sectors};
use blockwork_format::md::Level;

use super::array::Array;
use super::devices::Holders;
use super::form::Form;
use super::gate::GateState;
use super::geometry::Geometry;
use super::member::Member;
use super::sync_status::{SyncAction, SyncStatus};

/// How a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has all of its data.
    InSync,
    /// It has its data below this sector.
    Recovering(Sector),
    /// It failed while it was served.
    Faulty,
    /// Its place is empty.
    Missing,
    /// It waits for a place.
    Spare,
}

/// A member in [`ArrayStatus`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// What people call it; none for a missing one.
    pub name: Option<String>,
    /// How it is.
    pub state: MemberState,
    /// Reads avoid it.
    pub write_mostly: bool,
    /// Ranges of it that cannot be read.
    pub bad_ranges: usize,
    /// Sectors that were mended since the array was opened.
    pub corrected: u32,
}

/// How an array is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayStatus {
    /// What people call it.
    pub name: String,
    /// Its level.
    pub level: Level,
    /// Its chunk, where it has one.
    pub chunk: Option<Sectors>,
    /// Its size.
    pub sectors: Sectors,
    /// By role.
    pub members: Vec<MemberStatus>,
    /// Devices that are filled to take the place of a member that is still there, with its role.
    pub replacements: Vec<(u16, MemberStatus)>,
    /// Devices that wait for a place.
    pub spares: Vec<MemberStatus>,
    /// Devices that failed, have no place any more, and were not removed yet.
    pub faulty: Vec<MemberStatus>,
    /// What is done with the copies.
    pub sync: SyncStatus,
    /// How much is in sync, of how much: of what is being synced, or, where nothing is, by what is on record. As dm-raid's ratio, of which
    /// `lvs` makes Cpy%Sync; but what a bitmap has clear counts, wherever it lies.
    pub in_sync: (Sectors, Sectors),
    /// Members that are missing, failed or not in sync.
    pub degraded: usize,
    /// The superblocks say that writes may be under way.
    pub active: bool,
    /// Of the superblocks.
    pub events: u64,
    /// Mirrors may differ at and beyond it.
    pub resync_from: Option<Sector>,
    /// Chunks that are set in the bitmap, if there is one.
    pub dirty_chunks: Option<u64>,
}

impl Array {
    /// How it is now.
    pub fn status(&self) -> ArrayStatus {
        let (Form { geometry, intent, .. }, sync) = (self.form(), self.sync_status());
        let members: Vec<_> = (0..geometry.members()).map(|role| self.member_status(role)).collect();
        let degraded = members.iter().filter(|member| member.state != MemberState::InSync).count();
        let of_role = |(role, holders): (u16, Holders)| {
            let member = self.devices.get(holders.replacement()?)?;
            Some((role, status_of(member, state_of(member, true))))
        };
        let without_role = |faulty: bool| {
            let all = self.devices.all().filter(|(index, _)| self.devices.role_of(*index).is_none());
            let all = all.filter(|(_, member)| member.is_faulty() == faulty);
            all.map(|(_, member)| status_of(member, state_of(member, false))).collect()
        };
        ArrayStatus {
            name: self.name.clone(),
            level: match geometry {
                Geometry::Linear(_) => Level::Linear,
                Geometry::Raid0(_) => Level::Raid0,
                Geometry::Raid1(_) => Level::Raid1,
                Geometry::Raid10(_) => Level::Raid10,
                Geometry::Parity(parity) => parity.layout().level(),
            },
            chunk: geometry.chunk(),
            sectors: geometry.sectors(),
            members,
            replacements: self.devices.roles().filter_map(of_role).collect(),
            spares: without_role(false),
            faulty: without_role(true),
            in_sync: self.in_sync(&sync),
            sync,
            degraded,
            active: self.gate.state() != GateState::Clean,
            events: self.books().events,
            resync_from: self.resync_from(),
            dirty_chunks: intent.as_ref().map(|intent| intent.dirty_chunks().0),
        }
    }

    fn in_sync(&self, sync: &SyncStatus) -> (Sectors, Sectors) {
        if sync.action != SyncAction::Idle {
            return (sync.done, sync.total);
        }
        if let Some((device, role)) = self.next_to_recover() {
            let recovered = self.devices.get(device).and_then(Member::recovered);
            let total = self.geometry().sectors_on_member(role);
            return (recovered.map_or(total, |end| Sectors(end.0.min(total.0))), total);
        }
        let total = self.geometry().sync_sectors();
        let is_whole = self.devices.roles().all(|(_, holders)| holders.member().is_some());
        let left = match (self.intent(), self.resync_from()) {
            // What is set there may be what a member lacks that is away.
            (Some(_), None) if !is_whole => 0,
            (Some(intent), _) => intent.kept_chunks().saturating_mul(intent.chunk_sectors()),
            (None, from) => from.map_or(0, |from| total.0.saturating_sub(from.0)),
        };
        (Sectors(total.0.saturating_sub(left)), total)
    }

    fn member_status(&self, role: u16) -> MemberStatus {
        match self.devices.member(role) {
            Some(member) => status_of(member, state_of(member, true)),
            None => MemberStatus {
                name: None,
                state: MemberState::Missing,
                write_mostly: false,
                bad_ranges: 0,
                corrected: 0,
            },
        }
    }
}

fn state_of(member: &Member, has_role: bool) -> MemberState {
    match member.recovered() {
        _ if member.is_faulty() => MemberState::Faulty,
        _ if !has_role => MemberState::Spare,
        Some(end) => MemberState::Recovering(end),
        None => MemberState::InSync,
    }
}

fn status_of(member: &Member, state: MemberState) -> MemberStatus {
    MemberStatus {
        name: Some(member.name.clone()),
        state,
        write_mostly: member.write_mostly,
        bad_ranges: member.bad.len(),
        corrected: member.corrected(),
    }
}
