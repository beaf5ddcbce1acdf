//! What a server says about itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use blockwork_engine::{Layer, LeafSource, Limits, Merges, SECTOR, Sectors, Stats, Volume};
use blockwork_insight::trace::{NodeSet, TraceHub};

use crate::arrays::{Arrays, NoArrays, volume_called};
use crate::exports::{Exports, FixedExports};
use crate::groups::{Groups, NoGroups};
use crate::routes::Places;

/// The answer to `/v1/status`. Field names are kept stable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of Blockwork.
    pub version: String,
    /// The server's process.
    pub pid: u32,
    /// Since it began to serve, seconds.
    pub uptime_seconds: f64,
    /// Whether it has given up what it does not need (`--sandbox`).
    #[serde(default)]
    pub sandbox: bool,
    /// What it serves.
    pub volumes: Vec<VolumeStatus>,
    /// What it serves from.
    pub disks: Vec<DiskStatus>,
    /// Why its disks are not open, if they are not (`--migratable`): its volumes are as they were last then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away: Option<String>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name, such as `disk/a.img/1`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Where clients find it, such as `nbd+unix:///disk/a.img/1?socket=/run/a.sock`.
    pub exports: Vec<String>,
    /// Where guests' memory is pinned (`--guest-memory pinned`): by the addresses of their exports, bytes that are locked now, by all workers together.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pinned: BTreeMap<String, u64>,
    /// Of a snapshot, or of an origin into which one is merged: how full the store is, as `dmsetup status` has it (`USED/TOTAL METADATA`
    /// in sectors, `Invalid`, `Overflow`, `Merge failed`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// What its stack allows.
    pub limits: LimitsStatus,
}

/// A leaf device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its path, or what else people call it.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Whether a flush of it has failed, so that it refuses writes.
    pub failed: bool,
    /// What it allows, and how its queue is set.
    pub limits: LimitsStatus,
}

/// Limits by their names, and in the units, of sysfs' `queue/` folder. A limit of 2^64 - 1 (or half of that, in KiB) is
/// none.
pub type LimitsStatus = BTreeMap<String, serde_json::Value>;

/// What the control API tells of: given to [`Control::start`](crate::Control::start).
pub struct ControlState {
    pub(crate) stats: Arc<Stats>,
    pub(crate) trace: Arc<TraceHub>,
    pub(crate) arrays: Arc<dyn Arrays>,
    pub(crate) groups: Arc<dyn Groups>,
    pub(crate) exports: Arc<dyn Exports>,
    /// What is under way in threads: changes, and lists that wait for them.
    pub(crate) changes: Places,
    pub(crate) lists: Places,
    volumes: Volumes,
    disks: Disks,
    away: Option<Away>,
    sandbox: bool,
    started: Instant,
}

/// Why disks are not open.
#[derive(Clone)]
pub struct Away(Arc<Mutex<String>>);

impl Away {
    /// For this reason, such as `no guest uses them`.
    pub fn because(why: &str) -> Away {
        Away(Arc::new(Mutex::new(why.to_owned())))
    }

    /// Now for that one.
    pub fn set(&self, why: &str) {
        why.clone_into(&mut self.locked());
    }

    fn locked(&self) -> MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The disks that a server has open. Some may come and go while it runs.
#[derive(Clone, Default)]
pub struct Disks(Arc<Mutex<Vec<Disk>>>);

impl Disks {
    /// Adds one.
    pub fn add(&self, source: Arc<dyn LeafSource>) {
        let status = DiskStatus {
            name: source.name().to_owned(),
            bytes: bytes(source.sectors()),
            failed: false,
            limits: limits(source.limits()),
        };
        self.all().push(Disk { status, source });
    }

    /// Takes one out.
    pub fn remove(&self, source: &Arc<dyn LeafSource>) {
        self.all().retain(|disk| !Arc::ptr_eq(&disk.source, source));
    }

    fn all(&self) -> MutexGuard<'_, Vec<Disk>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The volumes that a server serves. They may come and go while it runs.
#[derive(Clone, Default)]
pub struct Volumes(Arc<Mutex<Vec<Served>>>);

struct Served {
    status: VolumeStatus,
    /// Where it is counted how much of guests' memory is locked, by addresses.
    pinned: Vec<(String, Arc<AtomicU64>)>,
    /// None while its disks are away.
    root: Option<Arc<dyn Layer>>,
}

impl Volumes {
    /// Adds one, and where clients find it.
    pub fn add(&self, volume: &Volume, exports: Vec<String>) {
        self.all().push(served(volume, exports));
    }

    /// Adds one whose disks are away, as it was last.
    pub fn add_away(&self, status: VolumeStatus) {
        self.all().push(Served { status, pinned: Vec::new(), root: None });
    }

    /// Another one, in the place of the one that has been called `name`.
    pub fn replace(&self, name: &str, volume: &Volume) {
        if let Some(known) = self.all().iter_mut().find(|known| known.status.name == name) {
            let pinned = std::mem::take(&mut known.pinned);
            *known = Served { pinned, ..served(volume, std::mem::take(&mut known.status.exports)) };
        }
    }

    /// Clients find this one there as well.
    pub fn add_export(&self, name: &str, address: &str) {
        let mut all = self.all();
        let known = all.iter_mut().filter(|known| known.status.name == name);
        known.for_each(|known| known.status.exports.push(address.to_owned()));
    }

    /// How much of the memory of the guest at that address is locked, of which there is some where it is pinned, is counted there.
    pub fn add_pinned(&self, name: &str, address: &str, locked: Arc<AtomicU64>) {
        let mut all = self.all();
        if let Some(known) = all.iter_mut().find(|known| known.status.name == name) {
            known.pinned.push((address.to_owned(), locked));
        }
    }

    /// Clients find one there now, in place of where it was found.
    pub fn replace_export(&self, old: &str, new: &str) {
        let mut all = self.all();
        let exports = all.iter_mut().flat_map(|known| &mut known.status.exports);
        exports.filter(|known| *known == old).for_each(|known| new.clone_into(known));
    }

    /// Clients find none of them there any more.
    pub fn forget_export(&self, address: &str) {
        for known in self.all().iter_mut() {
            known.status.exports.retain(|known| known != address);
            known.pinned.retain(|(known, _)| known != address);
        }
    }

    /// Takes one out.
    pub fn remove(&self, name: &str) {
        self.all().retain(|known| known.status.name != name);
    }

    fn all(&self) -> MutexGuard<'_, Vec<Served>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VolumeStatus {
    /// As a volume is now, found there.
    pub fn of(volume: &Volume, exports: Vec<String>) -> VolumeStatus {
        VolumeStatus {
            name: volume.name.clone(),
            bytes: bytes(volume.sectors()),
            read_only: volume.read_only,
            exports,
            pinned: BTreeMap::new(),
            status: None,
            limits: limits(volume.limits()),
        }
    }
}

fn served(volume: &Volume, exports: Vec<String>) -> Served {
    let status = VolumeStatus::of(volume, exports);
    Served { status, pinned: Vec::new(), root: Some(volume.root.clone()) }
}

struct Disk {
    status: DiskStatus,
    source: Arc<dyn LeafSource>,
}

impl ControlState {
    /// A server that has just begun.
    pub fn new(stats: Arc<Stats>, trace: Arc<TraceHub>) -> ControlState {
        ControlState {
            stats,
            trace,
            arrays: Arc::new(NoArrays),
            groups: Arc::new(NoGroups),
            exports: Arc::new(FixedExports),
            changes: Places::default(),
            lists: Places::default(),
            volumes: Volumes::default(),
            disks: Disks::default(),
            away: None,
            sandbox: false,
            started: Instant::now(),
        }
    }

    /// Whether it is in its sandbox.
    pub fn set_sandboxed(&mut self, sandbox: bool) {
        self.sandbox = sandbox;
    }

    /// That its disks are not open, and why.
    pub fn set_away(&mut self, away: Away) {
        self.away = Some(away);
    }

    /// Its arrays, which can be asked for something.
    pub fn set_arrays(&mut self, arrays: Arc<dyn Arrays>) {
        self.arrays = arrays;
    }

    /// Its volume groups and pools, which can be asked for something.
    pub fn set_groups(&mut self, groups: Arc<dyn Groups>) {
        self.groups = groups;
    }

    /// Its exports, which can be asked to change.
    pub fn set_exports(&mut self, exports: Arc<dyn Exports>) {
        self.exports = exports;
    }

    /// Its volumes, to be changed.
    pub fn volumes(&self) -> Volumes {
        self.volumes.clone()
    }

    /// Its disks, to be added to.
    pub fn disks(&self) -> Disks {
        self.disks.clone()
    }

    /// How things are now.
    pub fn status(&self) -> Status {
        let disk =
            |disk: &Disk| DiskStatus { failed: disk.source.shared().has_failed(), ..disk.status.clone() };
        // An array may have grown, and stores fill up.
        let volume = |Served { status, pinned, root }: &Served| match root {
            Some(root) => {
                let locked = |(address, locked): &(String, Arc<AtomicU64>)| {
                    (address.clone(), locked.load(Ordering::Relaxed))
                };
                let pinned = pinned.iter().map(locked).collect();
                let (bytes, own) = (bytes(root.sectors()), root.status());
                VolumeStatus { bytes, status: own, pinned, ..status.clone() }
            }
            None => status.clone(),
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            sandbox: self.sandbox,
            volumes: self.volumes.all().iter().map(volume).collect(),
            disks: self.disks.all().iter().map(disk).collect(),
            away: self.away(),
        }
    }

    /// Why its disks are not open, if they are not.
    pub(crate) fn away(&self) -> Option<String> {
        self.away.as_ref().map(|away| away.locked().clone())
    }

    /// The nodes of a volume's stack as it is now: an array's members may come and go.
    pub(crate) fn nodes(&self, volume: &str) -> Option<NodeSet> {
        let name = self.names().volume_called(volume)?;
        let volumes = self.volumes.all();
        let found = volumes.iter().find(|served| served.status.name == name)?;
        Some(NodeSet::under(&**found.root.as_ref()?))
    }

    /// What volumes are called.
    pub(crate) fn names(&self) -> Names {
        Names { volumes: self.volumes(), arrays: Arc::clone(&self.arrays) }
    }

    pub(crate) fn volume_names(&self) -> Vec<String> {
        self.volumes.all().iter().map(|served| served.status.name.clone()).collect()
    }
}

/// What the volumes of a server are called, for a thread of its own.
pub(crate) struct Names {
    volumes: Volumes,
    arrays: Arc<dyn Arrays>,
}

impl Names {
    /// The name of the volume that people call so.
    pub(crate) fn volume_called(&self, asked: &str) -> Option<String> {
        let names: Vec<String> = self.volumes.all().iter().map(|served| served.status.name.clone()).collect();
        volume_called(asked, names.iter().map(String::as_str), || self.arrays.list()).map(str::to_owned)
    }
}

/// A length that may be "no limit".
fn bytes(sectors: Sectors) -> u64 {
    sectors.0.saturating_mul(SECTOR)
}

fn limits(limits: &Limits) -> LimitsStatus {
    let kib = |sectors: Sectors| sectors.0 / 2;
    let merges = match limits.merges {
        Merges::All => 0,
        Merges::Simple => 1,
        Merges::None => 2,
    };
    let all: [(&str, serde_json::Value); 23] = [
        ("logical_block_size", limits.logical_block_size.into()),
        ("physical_block_size", limits.physical_block_size.into()),
        ("minimum_io_size", limits.io_min.into()),
        ("optimal_io_size", limits.io_opt.into()),
        ("max_hw_sectors_kb", kib(limits.max_hw_sectors).into()),
        ("max_sectors_kb", kib(limits.max_sectors).into()),
        ("max_segments", limits.max_segments.into()),
        ("chunk_sectors", limits.chunk_sectors.0.into()),
        ("discard_granularity", limits.discard_granularity.into()),
        ("discard_max_hw_bytes", bytes(limits.max_hw_discard).into()),
        ("discard_max_bytes", bytes(limits.max_discard).into()),
        ("write_zeroes_max_bytes", bytes(limits.max_write_zeroes).into()),
        ("dma_alignment", limits.dma_alignment.saturating_sub(1).into()),
        ("write_cache", limits.write_cache_name().into()),
        ("fua", limits.fua.name().into()),
        ("rotational", u8::from(limits.rotational).into()),
        ("ro", u8::from(limits.read_only).into()),
        ("nr_requests", limits.nr_requests.into()),
        ("wbt_lat_usec", (limits.wbt_lat.0 / 1000).into()),
        ("nomerges", merges.into()),
        ("read_ahead_kb", kib(limits.read_ahead).into()),
        ("linearize", limits.linearize.name().into()),
        ("fixed", limits.fixed.name().into()),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
