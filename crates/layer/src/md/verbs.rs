//! What people do to an array that is served: add, fail, remove and replace devices, check, repair, grow.

use std::sync::Arc;

use blockwork_engine::{Layer, Sectors, TaskContext};
use blockwork_format::md::Uuid;
use blockwork_format::md::v1::Superblock;

use super::array::Array;
use super::sync_status::{SyncAction, SyncStatus};
use super::verb_error::VerbError;

/// A device that is to become part of an array.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// What people call it.
    pub name: String,
    /// The whole device.
    pub layer: Arc<dyn Layer>,
    /// Its superblock, if it has one of this array: it may be one that comes back. None: what is on it does not count.
    pub superblock: Option<Box<Superblock>>,
    /// What it is called in its superblock, where it gets a new one: drawn at random by the caller.
    pub device_uuid: Uuid,
}

/// What became of a device that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It has its old place again, and lacks only what the bitmap says.
    ReAdded {
        /// That place.
        role: u16,
    },
    /// It takes the place of a missing member, and is filled.
    Recovering {
        /// That place.
        role: u16,
    },
    /// It waits for a place.
    Spare,
}

impl Array {
    fn closed(&self) -> VerbError {
        VerbError::ReadOnly { array: self.name.clone() }
    }
    /// See the design.
    pub async fn add(&self, _: NewMember, _: &TaskContext) -> Result<Added, VerbError> {
        Err(self.closed())
    }
    /// See the design.
    pub async fn fail(&self, _: &str, _: &TaskContext) -> Result<(), VerbError> {
        Err(self.closed())
    }
    /// See the design.
    pub async fn remove(&self, _: &str, _: &TaskContext) -> Result<Vec<String>, VerbError> {
        Err(self.closed())
    }
    /// See the design.
    pub async fn replace(&self, _: &str, _: Option<&str>, _: &TaskContext) -> Result<(), VerbError> {
        Err(self.closed())
    }
    /// See the design.
    pub async fn start_sync(&self, _: SyncAction, _: &TaskContext) -> Result<(), VerbError> {
        Err(self.closed())
    }
    /// See the design.
    pub async fn wait_sync(&self, _: &TaskContext) -> SyncStatus {
        SyncStatus::default()
    }
    /// See the design.
    pub async fn grow(
        &self,
        _: &TaskContext,
        _: Option<Sectors>,
        _assume_clean: bool,
    ) -> Result<Sectors, VerbError> {
        Err(self.closed())
    }
    /// See the design.
    pub fn set_speed(&self, _min_kib: u64, _max_kib: u64) {}
}
