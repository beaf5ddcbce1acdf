//! What an array does to bring its copies in line, in the words of sysfs.

use std::fmt;

use blockwork_engine::Sectors;

/// What is done with the copies of an array: sysfs' `sync_action`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncAction {
    /// Nothing.
    #[default]
    Idle,
    /// Where mirrors may differ, one is copied to the others.
    Resync,
    /// A member is filled.
    Recover,
    /// Copies are compared.
    Check,
    /// Copies are compared, and made the same.
    Repair,
}

impl fmt::Display for SyncAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SyncAction::Idle => "idle",
            SyncAction::Resync => "resync",
            SyncAction::Recover => "recover",
            SyncAction::Check => "check",
            SyncAction::Repair => "repair",
        })
    }
}

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncStatus {
    /// What is being done.
    pub action: SyncAction,
    /// How much of `total` is done; as sysfs' `sync_completed`.
    pub done: Sectors,
    /// Of a member (recover), or of the array.
    pub total: Sectors,
    /// What was copied or compared per member and second lately, KiB.
    pub speed_kib: u64,
    /// Sectors in which copies differed in the last check or repair; as sysfs' `mismatch_cnt`, in units of 64 KiB or the chunk if
    /// that is smaller: one different byte counts as all sectors of its unit.
    pub mismatches: Sectors,
}
