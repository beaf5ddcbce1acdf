//! Volume groups and thin pools in the control API: how they are, and how they are changed while they are served. Documented in
//! `docs/control-api.md`.
//!
//! Who serves implements [`Groups`]. A change waits for disks, so it is asked for in a thread where that harms nobody.

use blockwork_volume::lvm::edit::Change;
use serde::{Deserialize, Serialize};

use crate::arrays::{DeviceStatus, Refusal, RefusalKind, SyncStatus};

/// How a group is. Field names are kept stable; sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// What its volumes' names begin with.
    pub name: String,
    /// As LVM prints it.
    pub uuid: String,
    /// The number of its last change.
    pub seqno: u64,
    /// Size of an extent.
    pub extent_bytes: u64,
    /// Of all its disks together.
    pub bytes: u64,
    /// What no volume uses.
    pub free_bytes: u64,
    /// How many disks it has.
    pub disks: usize,
    /// As `vgs -o vg_attr` has them.
    #[serde(default)]
    pub attributes: String,
    /// Snapshots of the old kind, as `vgs` counts them.
    #[serde(default)]
    pub snapshots: usize,
    /// Disks that are not there, or cannot be used.
    #[serde(default)]
    pub missing: Vec<String>,
    /// What its disks are to it.
    #[serde(default)]
    pub physical_volumes: Vec<PvStatus>,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its volumes, and the parts of those.
    pub volumes: Vec<LvStatus>,
}

/// A physical volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PvStatus {
    /// Its name in the group's metadata: `pv0`.
    pub name: String,
    /// As LVM prints it.
    pub uuid: String,
    /// Where it was when the group was written.
    pub device: Option<String>,
    /// What there is for volumes.
    pub bytes: u64,
    /// What no volume uses.
    pub free_bytes: u64,
}

/// A logical volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LvStatus {
    /// The group.
    pub group: String,
    /// Its name in the group.
    pub name: String,
    /// As LVM prints it.
    pub uuid: String,
    /// Its size.
    pub bytes: u64,
    /// As `lvs -o segtype` has it, but `snapshot` for one of the old kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// Of what it is a snapshot.
    pub origin: Option<String>,
    /// The thin pool that it lies in.
    pub pool: Option<String>,
    /// How full a pool or a snapshot is, or how much of a thin volume is mapped.
    pub data_percent: Option<f64>,
    /// How full a pool's map is.
    pub metadata_percent: Option<f64>,
    /// As `dmsetup status` has it, of pools and of snapshots of the old kind.
    pub status: Option<String>,
    /// How much of a RAID volume that is open, or was looked at, is in sync: Cpy%Sync of `lvs`.
    #[serde(default)]
    pub sync_percent: Option<f64>,
    /// What is being synced of one that is open, or was.
    #[serde(default)]
    pub sync: Option<SyncStatus>,
    /// How the legs are of a RAID volume that is open, or was looked at.
    #[serde(default)]
    pub legs: Vec<DeviceStatus>,
    /// As `lvs -o lv_attr` has them, but for what only the kernel's device mapper knows.
    #[serde(default)]
    pub attributes: String,
    /// As `lvs -o lv_health_status` has it: `partial`, `refresh needed`, `mismatches exist`; none: nothing is wrong.
    #[serde(default)]
    pub health: Option<String>,
    /// Whether a snapshot is being merged, out of it or into it.
    pub merging: bool,
    /// How far that is: `planned` (by the text; nobody does it), `waiting` (until no client has either of the two open), `running`, or
    /// `failed`.
    #[serde(default)]
    pub merge: Option<String>,
    /// Why it has failed.
    #[serde(default)]
    pub merge_failure: Option<String>,
    /// Whether people may name it: it is no part of another one.
    pub visible: bool,
    /// On what it lies, with first extents.
    pub areas: Vec<String>,
    /// Its tags.
    pub tags: Vec<String>,
}

/// The answer to `GET /v1/groups`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupList {
    /// The groups on the disks that are open.
    pub groups: Vec<GroupStatus>,
}

/// The body of `POST /v1/groups`: a group, and what is to be done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRequest {
    /// Its name.
    pub group: String,
    /// What to do.
    #[serde(flatten)]
    pub change: Change,
    /// What is new is served, even by a server that was told which volumes to serve.
    #[serde(default)]
    pub serve: bool,
    /// The command line that asks: the group's text says who has changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The answer to `POST /v1/groups`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupAnswer {
    /// What was done, in a sentence.
    pub said: String,
    /// What people should know about it beside that.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The volume that it was done to, where it is one, and is still there.
    pub volume: Option<LvStatus>,
    /// How the group is now.
    pub group: GroupStatus,
}

/// The body of `POST /v1/pools`: a thin pool of a table, and what it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRequest {
    /// `dm/NAME`.
    pub pool: String,
    /// As `dmsetup message` has it: `create_thin 3`.
    pub message: String,
}

/// The answer to `GET /v1/pools` and `POST /v1/pools`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolList {
    /// The pools; after a message, the one that was told.
    pub pools: Vec<PoolStatus>,
}

/// A thin pool of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// `dm/NAME`.
    pub name: String,
    /// As `dmsetup status` has it.
    pub status: String,
}

/// The volume groups and pools of a server.
pub trait Groups: Send + Sync {
    /// How the groups are now. May wait for a change that is being made.
    fn list(&self) -> Vec<GroupStatus>;

    /// Does what is asked, and waits until it is done.
    ///
    /// # Errors
    ///
    /// It is not done: why.
    fn change(&self, request: &GroupRequest) -> Result<GroupAnswer, Refusal>;

    /// The thin pools of tables.
    fn pools(&self) -> Vec<PoolStatus>;

    /// Tells a pool of a table something, and waits until that is durable.
    ///
    /// # Errors
    ///
    /// It does not do it: why.
    fn tell(&self, request: &PoolRequest) -> Result<PoolStatus, Refusal>;
}

/// Of a server that has none.
pub(crate) struct NoGroups;

impl Groups for NoGroups {
    fn list(&self) -> Vec<GroupStatus> {
        Vec::new()
    }

    fn change(&self, request: &GroupRequest) -> Result<GroupAnswer, Refusal> {
        Err(absent("volume group", &request.group, []))
    }

    fn pools(&self) -> Vec<PoolStatus> {
        Vec::new()
    }

    fn tell(&self, request: &PoolRequest) -> Result<PoolStatus, Refusal> {
        Err(absent("thin pool of a table", &request.pool, []))
    }
}

/// Nothing of that kind has that name; there are `others`.
pub fn absent<'a>(what: &str, name: &str, others: impl IntoIterator<Item = &'a str>) -> Refusal {
    let there: Vec<String> = others.into_iter().map(blockwork_format::escape).collect();
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    let name = blockwork_format::escape(name);
    Refusal::new(RefusalKind::NotFound, format!("no {what} is called {name}; there are: {there}"))
}

#[cfg(test)]
mod tests {
    use blockwork_volume::lvm::edit::{NewThin, Resize};

    use super::*;

    #[test]
    fn what_is_asked_reads_as_it_is_documented() {
        let read = |text: &str| serde_json::from_str::<GroupRequest>(text).unwrap();
        let asked = |change| GroupRequest { group: "vg0".into(), change, serve: false, command: None };
        let thin = NewThin { name: "vm1".into(), pool: "pool".into(), bytes: 1 << 30, tags: Vec::new() };
        for (text, expected) in [
            (
                r#"{"group":"vg0","verb":"create-thin","name":"vm1","pool":"pool","bytes":1073741824}"#,
                Change::CreateThin(thin),
            ),
            (
                r#"{"group":"vg0","verb":"resize","volume":"vm1","to":{"more-bytes":4194304}}"#,
                Change::Resize { volume: "vm1".into(), to: Resize::MoreBytes(4 << 20), may_shrink: false },
            ),
            (
                r#"{"group":"vg0","verb":"remove","volumes":["a","b"]}"#,
                Change::Remove { volumes: vec!["a".into(), "b".into()] },
            ),
            (
                r#"{"group":"vg0","verb":"merge","volume":"before"}"#,
                Change::Merge { volume: "before".into() },
            ),
        ] {
            assert_eq!(read(text), asked(expected));
        }
        let error = serde_json::from_str::<GroupRequest>(r#"{"group":"vg0","verb":"melt"}"#).unwrap_err();
        assert!(error.to_string().contains("melt") && error.to_string().contains("create-thin"), "{error}");
    }
}
