//! How an array is, for people and reports.

use blockwork_engine::{Sector, Sectors};

use super::array::Array;
use super::gate::GateState;
use super::geometry::Geometry;
use super::sync_status::SyncStatus;

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
    /// Its level as Linux has it: 0, 1, 10.
    pub level: u8,
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
        let members: Vec<_> = (0..self.geometry.members()).map(|role| self.member_status(role)).collect();
        let degraded = members.iter().filter(|member| member.state != MemberState::InSync).count();
        ArrayStatus {
            name: self.name.clone(),
            level: match self.geometry {
                Geometry::Raid0(_) => 0,
                Geometry::Raid1(_) => 1,
                Geometry::Raid10(_) => 10,
            },
            chunk: self.geometry.chunk(),
            sectors: self.geometry.sectors(),
            members,
            replacements: Vec::new(),
            spares: Vec::new(),
            faulty: Vec::new(),
            sync: SyncStatus::default(),
            degraded,
            active: self.gate.state() != GateState::Clean,
            events: self.books().events,
            resync_from: self.resync_from(),
            dirty_chunks: self.intent.as_ref().map(|intent| intent.dirty_chunks().0),
        }
    }

    fn member_status(&self, role: u16) -> MemberStatus {
        let place = usize::from(role);
        let corrected = self.books().corrected[place];
        let Some(member) = &self.members[place] else {
            let state = MemberState::Missing;
            return MemberStatus { name: None, state, write_mostly: false, bad_ranges: 0, corrected };
        };
        let state = match member.recovered {
            _ if member.is_faulty() => MemberState::Faulty,
            Some(end) => MemberState::Recovering(end),
            None => MemberState::InSync,
        };
        MemberStatus {
            name: Some(member.name.clone()),
            state,
            write_mostly: member.write_mostly,
            bad_ranges: member.bad_ranges(),
            corrected,
        }
    }
}
