//! md arrays in the control API: how they are, and what can be asked of them. Documented in `docs/control-api.md`.
//!
//! Who serves implements [`Arrays`]. What is asked of an array may take as long as its disks do, so it is asked in a
//! thread where that harms nobody: never in the one that answers clients.

use std::fmt;

use blockwork_format::md::is_called;
use serde::{Deserialize, Serialize};

/// How an array is. Field names are kept stable; sizes are in bytes unless their name says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrayStatus {
    /// Its volume's name: `md/NAME`.
    pub name: String,
    /// As mdadm prints it.
    pub uuid: String,
    /// `raid0`, `raid1`, `raid10`; `raid4`, `raid5`, `raid6` of those that are only read.
    pub level: String,
    /// `near=2`, `far=2`, ...: of a RAID10; `left-symmetric` and so on: of one with parity.
    pub layout: Option<String>,
    /// Its chunk, where it has one.
    pub chunk_size: Option<u64>,
    /// Its size.
    pub bytes: u64,
    /// Places for members.
    pub raid_disks: u32,
    /// Of these, how many are missing, failed or not in sync.
    pub degraded: usize,
    /// Why nothing can be written to it, where that is so.
    pub read_only: Option<String>,
    /// Whether its superblocks say that writes may be under way.
    pub active: bool,
    /// Of its superblocks.
    pub events: u64,
    /// Mirrors may differ at and beyond this byte.
    pub resync_from: Option<u64>,
    /// Chunks that are set in its write-intent bitmap, where it has one.
    pub dirty_chunks: Option<u64>,
    /// Members by role, then spares and devices that have failed.
    pub devices: Vec<DeviceStatus>,
    /// What is being synced.
    pub sync: SyncStatus,
}

impl ArrayStatus {
    /// Whether people call it so: see [`is_called`].
    pub fn is_called(&self, name: &str) -> bool {
        self.uuid.parse().is_ok_and(|uuid| is_called(name, &self.name, uuid))
    }
}

/// The volume that people call so: by its own name, or, of an array, as [`is_called`] has it. `arrays` is asked for those where it takes that.
pub(crate) fn volume_called<'a>(
    asked: &str,
    volumes: impl IntoIterator<Item = &'a str>,
    arrays: impl FnOnce() -> Vec<ArrayStatus>,
) -> Option<&'a str> {
    let volumes: Vec<&str> = volumes.into_iter().collect();
    let of_name = |name: &str| volumes.iter().copied().find(|volume| *volume == name);
    of_name(asked).or_else(|| {
        let may_be_one = asked.starts_with("md/") || asked.starts_with("md:");
        let arrays = if may_be_one { arrays() } else { Vec::new() };
        of_name(&arrays.iter().find(|array| array.is_called(asked))?.name)
    })
}

/// A device of an array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The device; none for a place that nobody fills.
    pub name: Option<String>,
    /// Its place, from 0; none for a spare.
    pub role: Option<u16>,
    /// `in_sync`, `recovering`, `replacement`, `spare`, `faulty`, `missing`.
    pub state: String,
    /// In sync below this byte of its data, where it is not in sync as a whole.
    pub recovered: Option<u64>,
    /// Whether reads avoid it.
    pub write_mostly: bool,
    /// Ranges of it that cannot be read.
    pub bad_ranges: usize,
    /// Sectors that were mended since the array was opened.
    pub corrected_sectors: u32,
}

/// What is being synced, or was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// As in sysfs' `sync_action`: `idle`, `resync`, `recover`, `check`, `repair`.
    pub action: String,
    /// So far, sectors of 512 bytes.
    pub done_sectors: u64,
    /// In all, sectors.
    pub total_sectors: u64,
    /// KiB/s of late.
    pub speed_kib: u64,
    /// Sectors that the last check or repair found to differ.
    pub mismatch_sectors: u64,
}

impl SyncStatus {
    /// Whether anything is under way.
    pub fn runs(&self) -> bool {
        self.action != "idle"
    }

    /// The share that is done, 0 to 1.
    pub fn share(&self) -> f64 {
        if self.total_sectors == 0 { 0.0 } else { self.done_sectors as f64 / self.total_sectors as f64 }
    }
}

/// What is scraped of an array.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayGauges {
    /// Its volume's name: `md/NAME`, or `VG/LV` of a RAID volume of LVM.
    pub name: String,
    /// Places for members.
    pub members: u32,
    /// Of these, how many are missing, failed or not in sync.
    pub degraded: usize,
    /// What is being synced.
    pub sync: SyncStatus,
}

impl From<&ArrayStatus> for ArrayGauges {
    fn from(array: &ArrayStatus) -> ArrayGauges {
        let ArrayStatus { name, raid_disks, degraded, sync, .. } = array;
        ArrayGauges { name: name.clone(), members: *raid_disks, degraded: *degraded, sync: sync.clone() }
    }
}

/// The answer to `GET /v1/arrays`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrayList {
    /// The arrays under the volumes that are served.
    pub arrays: Vec<ArrayStatus>,
}

/// The body of `POST /v1/arrays`: an array, and what is to be done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayRequest {
    /// Its name: `md/NAME`.
    pub array: String,
    /// What to do.
    #[serde(flatten)]
    pub verb: Verb,
}

/// What can be done with an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Verb {
    /// Takes a device in: back to its place where it was a member, else as a spare, which takes the place of a missing member
    /// at once.
    Add {
        /// A disk as `serve --disk` takes it, or `PATH/NUMBER` for a partition of a disk. An absolute path, unless the
        /// server has it under this name.
        device: String,
        /// Even if it holds something else, which is lost.
        #[serde(default)]
        force: bool,
    },
    /// Gives a member up.
    Fail {
        /// Its name, the last part of that, or its role.
        device: String,
    },
    /// Takes out what has failed, or a spare.
    Remove {
        /// Its name, the last part of that, or its role; `failed` or `detached` for all that are so.
        device: String,
    },
    /// Has a spare take a member's place, which is read meanwhile.
    Replace {
        /// The member.
        device: String,
        /// The spare; any, where none is named.
        #[serde(default)]
        with: Option<String>,
    },
    /// Compares all copies.
    Check,
    /// Compares all copies, and makes them equal.
    Repair,
    /// Stops what is being synced.
    Idle,
    /// Goes on with a recovery or resync that was stopped, or that stopped by itself.
    Sync,
    /// Makes use of what members have more than they had.
    Grow {
        /// Use of each member, KiB; all that they have room for, where it is left out.
        #[serde(default)]
        size_kib: Option<u64>,
        /// What is new is taken to be alike on all mirrors, and not synced.
        #[serde(default)]
        assume_clean: bool,
    },
    /// Waits until nothing is being synced and nothing is due.
    Wait {
        /// At most so long.
        millis: u32,
    },
    /// Limits what syncing takes, or tells the limits; what is left out stays as it is.
    SyncSpeed {
        /// KiB/s that are used even while clients are served.
        #[serde(default)]
        min_kib: Option<u64>,
        /// KiB/s at most.
        #[serde(default)]
        max_kib: Option<u64>,
    },
}

/// The answer to `POST /v1/arrays`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrayAnswer {
    /// What was done, in a sentence.
    pub said: String,
    /// The devices that it was done to.
    pub devices: Vec<String>,
    /// Nothing is being synced, and nothing is due: of `wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_rest: Option<bool>,
    /// How the array is now.
    pub array: ArrayStatus,
}

/// Longest time that [`Verb::Wait`] waits, milliseconds.
pub const WAIT_MILLIS_MAX: u32 = 30_000;

/// Why something is not done with an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of reason.
    pub kind: RefusalKind,
    /// The reason, and what can be done. Safe to print.
    pub text: String,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// What is asked for can never be: 400.
    Invalid,
    /// There is no such array or device: 404.
    NotFound,
    /// It cannot be done as things are: 409.
    Conflict,
    /// It was tried and has failed: 500.
    Failed,
}

impl Refusal {
    /// One of this kind.
    pub fn new(kind: RefusalKind, text: impl fmt::Display) -> Refusal {
        Refusal { kind, text: text.to_string() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

/// The arrays of a server.
pub trait Arrays: Send + Sync {
    /// How they are now. Does no I/O, and does not wait.
    fn list(&self) -> Vec<ArrayStatus>;

    /// The same of RAID volumes of LVM, of which [`Groups::list`](crate::Groups::list) tells more, and waits for disks.
    fn raid_volumes(&self) -> Vec<ArrayGauges>;

    /// Does what is asked. Waits until it is done (not until an array is in sync).
    ///
    /// # Errors
    ///
    /// It is not done: why.
    fn act(&self, request: &ArrayRequest) -> Result<ArrayAnswer, Refusal>;
}

/// Of a server that has none.
pub(crate) struct NoArrays;

impl Arrays for NoArrays {
    fn list(&self) -> Vec<ArrayStatus> {
        Vec::new()
    }

    fn raid_volumes(&self) -> Vec<ArrayGauges> {
        Vec::new()
    }

    fn act(&self, request: &ArrayRequest) -> Result<ArrayAnswer, Refusal> {
        Err(no_array(&request.array, []))
    }
}

/// No array has that name; there are `others`.
pub fn no_array<'a>(name: &str, others: impl IntoIterator<Item = &'a str>) -> Refusal {
    let there: Vec<String> = others.into_iter().map(blockwork_format::escape).collect();
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    let name = blockwork_format::escape(name);
    Refusal::new(RefusalKind::NotFound, format!("no array is called {name}; there are: {there}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_reads_as_it_is_documented() {
        let read = |text: &str| serde_json::from_str::<ArrayRequest>(text).unwrap();
        let verb = |verb| ArrayRequest { array: "md/data".into(), verb };
        for (text, expected) in [
            (r#"{"array":"md/data","verb":"check"}"#, Verb::Check),
            (
                r#"{"array":"md/data","verb":"add","device":"/srv/c.img"}"#,
                Verb::Add { device: "/srv/c.img".into(), force: false },
            ),
            (
                r#"{"array":"md/data","verb":"sync-speed","min_kib":1,"max_kib":2}"#,
                Verb::SyncSpeed { min_kib: Some(1), max_kib: Some(2) },
            ),
            (r#"{"array":"md/data","verb":"sync-speed"}"#, Verb::SyncSpeed { min_kib: None, max_kib: None }),
        ] {
            assert_eq!(read(text), verb(expected));
        }
        let error = serde_json::from_str::<ArrayRequest>(r#"{"array":"md/x","verb":"melt"}"#).unwrap_err();
        assert!(error.to_string().contains("melt") && error.to_string().contains("repair"), "{error}");
    }
}
