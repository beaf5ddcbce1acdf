//! `--table FILE`: stacks in dmsetup's syntax, over disks named by path or over tables that stand before.

mod snapshot;
mod thin;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use blockwork_engine::{Layer, Nanos, NodeId, NodeKind, Sector, Sectors};
use blockwork_format::escape;
use blockwork_format::md::{FarSets, Raid10Layout};
use blockwork_format::table::{self, Below, Device, Raid, Raid10Format, RaidKind, Target, TargetKind};
use blockwork_layer::md::{self, ArrayConfig, Geometry, MemberConfig, Record, Unrecorded};
use blockwork_layer::snapshot::{Merge, Merging, Origin, STEP as MERGE_STEP, Snapshot};
use blockwork_layer::{Delay, ErrorTarget, Linear, Segment, Stripe, Striped, Table, Zero};

use self::thin::TablePool;
use crate::assembly::{Assembly, read_table};
use crate::dm_raid::{self, DmRaidLevel};
use crate::error::VolumeError;
use crate::graph::{DeviceId, DeviceKind, NewDevice, Stack};
use crate::nodes::MAJOR_DM;
use snapshot::Kin;

/// Assembles every device that `text` (the content of `path`) defines, and adds it as `dm/NAME`.
pub(crate) fn assemble(assembly: &mut Assembly, path: &str, text: &str) -> Result<(), VolumeError> {
    let parsed = parse(path, text)?;
    let mut builder = Builder::new(assembly, path, &parsed);
    for device in &parsed.devices {
        builder.device(device)?;
    }
    Ok(())
}

/// The disks that the table in a file names, in the words that it has for them; what is called so may as well be a volume. For who must know
/// them before they are opened.
///
/// # Errors
///
/// It cannot be read, or is no table.
pub fn disks_of_table(path: &str) -> Result<Vec<String>, VolumeError> {
    let table = read(path)?;
    let targets = table.devices.iter().flat_map(|device| &device.targets);
    let named = targets.flat_map(|target| target.kind.devices());
    Ok(named.filter(|dev| table::reference(dev).is_none()).map(str::to_owned).collect())
}

/// The table in a file.
fn read(path: &str) -> Result<table::Table, VolumeError> {
    let text = read_table(path).map_err(|source| VolumeError::File { path: path.to_owned(), source })?;
    parse(path, &text)
}

fn parse(path: &str, text: &str) -> Result<table::Table, VolumeError> {
    table::parse(text)
        .map_err(|source| VolumeError::Table { path: path.to_owned(), source: Box::new(source) })
}

struct Builder<'a> {
    assembly: &'a mut Assembly,
    path: &'a str,
    /// All of the file.
    table: &'a table::Table,
    /// Devices of this file so far, by name.
    devices: HashMap<String, DeviceId>,
    /// What the device that is being built stands upon.
    below: Vec<DeviceId>,
    /// Origins of snapshots so far, with those.
    kin: HashMap<DeviceId, Kin>,
    /// Thin pools so far.
    pools: HashMap<DeviceId, TablePool>,
}

impl<'a> Builder<'a> {
    fn new(assembly: &'a mut Assembly, path: &'a str, table: &'a table::Table) -> Builder<'a> {
        let (devices, kin, pools) = (HashMap::new(), HashMap::new(), HashMap::new());
        Builder { assembly, path, table, devices, below: Vec::new(), kin, pools }
    }
}

impl Builder<'_> {
    fn device(&mut self, device: &Device) -> Result<(), VolumeError> {
        let name = device.name.clone().unwrap_or_else(|| stem(self.path));
        let full = format!("dm/{name}");
        if self.assembly.graph.find(&full).is_some() {
            let line = device.targets.first().map_or(0, |target| target.line_number);
            return Err(self.refuse(line, format!("{full} is defined twice")));
        }
        if let [target @ Target { kind: TargetKind::ThinPool(pool), .. }] = &device.targets[..] {
            let (pool, read_only) = self.thin_pool(&full, target, pool)?;
            let stack = Stack::Refused(thin::NOT_SERVED.into());
            let id = self.add(name, full, Sectors(target.length), stack, read_only);
            self.pools.insert(id, pool);
            return Ok(());
        }
        let mut segments = Vec::new();
        for target in &device.targets {
            segments.push(Segment { start: Sector(target.start), target: self.target(&full, target)? });
        }
        let root: Arc<dyn Layer> = match &segments[..] {
            [only] => only.target.clone(),
            _ => {
                let node = self.node(&full, NodeKind::Table)?;
                let line = device.targets[0].line_number;
                let table =
                    Table::new(node, segments).map_err(|error| self.refuse(line, error.to_string()))?;
                Arc::new(table)
            }
        };
        let raid10_chunk = match &device.targets[..] {
            [Target { kind: TargetKind::Raid(raid), .. }] => raid10_chunk(raid),
            _ => Sectors::ZERO,
        };
        let root = self.assembly.with_settings(&full, root, raid10_chunk)?;
        self.add(name, full, root.sectors(), Stack::Ready(root), None);
        Ok(())
    }

    /// Adds the device that was built, upon what its targets were found to stand on; and why nothing may be written to it, if that is by
    /// itself.
    fn add(
        &mut self,
        name: String,
        full: String,
        sectors: Sectors,
        stack: Stack,
        read_only: Option<String>,
    ) -> DeviceId {
        let mut below = std::mem::take(&mut self.below);
        below.sort_unstable();
        below.dedup();
        let id = self.assembly.graph.add(NewDevice {
            name: full,
            kind: DeviceKind::Table,
            sectors,
            below: below.into(),
            is_offered: matches!(stack, Stack::Ready(_)),
            stack,
            read_only,
        });
        self.devices.insert(name, id);
        id
    }

    fn node(&mut self, name: &str, kind: NodeKind) -> Result<NodeId, VolumeError> {
        self.assembly.graph.nodes.add(name, kind, MAJOR_DM)
    }

    fn target(&mut self, device: &str, target: &Target) -> Result<Arc<dyn Layer>, VolumeError> {
        let line = target.line_number;
        let sectors = Sectors(target.length);
        let name = format!("{device} {}+{}", target.start, target.length);
        Ok(match &target.kind {
            TargetKind::Zero => Arc::new(Zero::new(self.node(&name, NodeKind::Zero)?, sectors)),
            TargetKind::SnapshotOrigin(origin) => {
                let kin = self.kin(line, &origin.dev)?;
                self.stands_on(line, &origin.dev, &kin)?;
                let node = self.node(&name, NodeKind::SnapshotOrigin)?;
                self.cut(line, &name, Arc::new(Origin::new(node, kin.family)), sectors)?
            }
            TargetKind::Snapshot(snapshot) => {
                let kin = self.kin(line, &snapshot.origin.dev)?;
                self.stands_on(line, &snapshot.origin.dev, &kin)?;
                let node = self.node(&name, NodeKind::Snapshot)?;
                let nth = kin.by_line.get(&line).copied();
                let layer = nth.and_then(|nth| Snapshot::new(node, kin.family, nth));
                Arc::new(layer.ok_or_else(|| self.refuse(line, "it is no snapshot of its origin".into()))?)
            }
            TargetKind::SnapshotMerge(snapshot) => {
                let kin = self.kin(line, &snapshot.origin.dev)?;
                self.stands_on(line, &snapshot.origin.dev, &kin)?;
                let node = self.node(&name, NodeKind::SnapshotMerge)?;
                let merge = Merge::new(kin.family, MERGE_STEP);
                let merge =
                    merge.ok_or_else(|| self.refuse(line, "it is no snapshot of its origin".into()))?;
                self.cut(
                    line,
                    &name,
                    Arc::new(Merging::new(node, merge, !self.assembly.plan.read_only)),
                    sectors,
                )?
            }
            TargetKind::Error => Arc::new(ErrorTarget::new(self.node(&name, NodeKind::Error)?, sectors)),
            TargetKind::Linear(below) => {
                let layer = self.below(line, below)?;
                let node = self.node(&name, NodeKind::Linear)?;
                let size = layer.sectors();
                let linear = Linear::new(node, layer, Sector(below.offset), sectors);
                Arc::new(linear.ok_or_else(|| self.outside(target, below, size))?)
            }
            TargetKind::Delay { below, delay_ms } => {
                let layer = self.below(line, below)?;
                let node = self.node(&name, NodeKind::Delay)?;
                let size = layer.sectors();
                let delay = Nanos::millis(u64::from(*delay_ms));
                let delay = Delay::new(node, layer, Sector(below.offset), sectors, delay);
                Arc::new(delay.ok_or_else(|| self.outside(target, below, size))?)
            }
            TargetKind::Striped { chunk, stripes } => {
                let chunk = Sectors(u64::from(*chunk));
                let mut members = Vec::new();
                for below in stripes {
                    members.push(Stripe { below: self.below(line, below)?, start: Sector(below.offset) });
                }
                let node = self.node(&name, NodeKind::Striped)?;
                let striped = Striped::new(node, chunk, members, sectors);
                Arc::new(striped.map_err(|error| self.refuse(line, error.to_string()))?)
            }
            TargetKind::Raid(raid) => self.raid(device, target, raid)?,
            TargetKind::Thin(thin) => self.thin(device, target, thin)?,
            TargetKind::ThinPool(_) => {
                return Err(self.refuse(line, "a thin-pool is the only target of its device".into()));
            }
        })
    }

    /// What a target wants of a device that has only `size` sectors.
    fn outside(&self, target: &Target, below: &Below, size: Sectors) -> VolumeError {
        let end = below.offset.saturating_add(target.length);
        let what =
            format!("sectors {} to {end} of {} are asked for, which has {size}", below.offset, below.dev);
        self.refuse(target.line_number, what)
    }

    /// An array without metadata: nothing is written about it (see [`Unrecorded`]).
    fn raid(&mut self, device: &str, target: &Target, raid: &Raid) -> Result<Arc<dyn Layer>, VolumeError> {
        let (line, sectors) = (target.line_number, Sectors(target.length));
        let name = format!("{device} {}+{}", target.start, target.length);
        let geometry = geometry(raid, sectors).map_err(|why| self.refuse(line, why))?;
        let mut members = Vec::with_capacity(raid.devices.len());
        for (role, below) in (0..).zip(&raid.devices) {
            let member = below.as_ref().map(|below| self.member(line, raid, role, below)).transpose()?;
            members.push(member);
        }
        let (resync_from, is_redundant) = (resync_from(raid, &geometry), geometry.is_redundant());
        let size = geometry.sectors();
        let config = ArrayConfig {
            name: name.clone(),
            geometry,
            members,
            resync_from,
            intent: None,
            record: (is_redundant && !self.assembly.plan.read_only)
                .then(|| Box::new(Unrecorded) as Box<dyn Record>),
        };
        let node = self.node(&name, NodeKind::Raid)?;
        let array = md::Array::new(node, config).map_err(|error| self.refuse(line, error.to_string()))?;
        let speed = (raid.min_recovery_rate, raid.max_recovery_rate);
        self.assembly.set_sync_speed(device, NodeKind::Raid, &array, speed)?;
        if size == sectors {
            return Ok(array);
        }
        let node = self.node(&name, NodeKind::Linear)?;
        let cut = Linear::new(node, array, Sector(0), sectors);
        Ok(Arc::new(cut.ok_or_else(|| {
            let what = format!("whole chunks of its devices make {size} sectors, and it has {sectors}");
            self.refuse(line, what)
        })?))
    }

    fn member(
        &mut self,
        line: u64,
        raid: &Raid,
        role: u16,
        below: &Below,
    ) -> Result<MemberConfig, VolumeError> {
        Ok(MemberConfig {
            name: escape(&below.dev),
            layer: self.below(line, below)?,
            data_start: Sector(0),
            recovered: raid.rebuild.contains(&role).then_some(Sector(0)),
            write_mostly: raid.write_mostly.contains(&role),
            bad: Vec::new(),
        })
    }

    /// The target that is being built stands upon an origin's device and all its stores.
    fn stands_on(&mut self, line: u64, origin: &str, kin: &Kin) -> Result<(), VolumeError> {
        let origin = self.device_below(line, origin)?;
        self.below.extend(kin.stores.iter().copied().chain([origin]));
        Ok(())
    }

    /// The first sectors of a layer.
    fn cut(
        &mut self,
        line: u64,
        name: &str,
        layer: Arc<dyn Layer>,
        sectors: Sectors,
    ) -> Result<Arc<dyn Layer>, VolumeError> {
        let size = layer.sectors();
        if size == sectors {
            return Ok(layer);
        }
        let node = self.node(name, NodeKind::Linear)?;
        let cut = Linear::new(node, layer, Sector(0), sectors);
        let what = || format!("{sectors} sectors are asked for, and the device below has {size}");
        Ok(Arc::new(cut.ok_or_else(|| self.refuse(line, what()))?))
    }

    /// What a target lies on: a device of this file, a volume, or a disk, which is opened.
    fn below(&mut self, line: u64, below: &Below) -> Result<Arc<dyn Layer>, VolumeError> {
        let id = self.device_below(line, &below.dev)?;
        self.below.push(id);
        self.assembly.layer(id).map_err(|why| self.refuse(line, format!("{}: {why}", escape(&below.dev))))
    }

    fn device_below(&mut self, line: u64, dev: &str) -> Result<DeviceId, VolumeError> {
        if let Some(id) = self.known_device(dev) {
            return Ok(id);
        }
        if table::reference(dev).is_some() {
            let what = format!("{dev:?} is not defined; a table can only use those that stand before it");
            return Err(self.refuse(line, what));
        }
        // Which line names a disk that cannot be opened is half of what there is to know about it.
        self.assembly.disk(dev).map_err(|error| self.refuse(line, error.to_string()))
    }

    /// A device that is known already: one of this file, a volume, or a disk that is open.
    fn known_device(&self, dev: &str) -> Option<DeviceId> {
        if let Some(name) = table::reference(dev) {
            let of_file = self.devices.get(name).copied();
            return of_file.or_else(|| self.assembly.graph.find(&format!("dm/{name}")));
        }
        self.assembly.graph.find(dev).or_else(|| self.assembly.open_disk(dev))
    }

    fn refuse(&self, line: u64, what: String) -> VolumeError {
        VolumeError::Target { path: self.path.to_owned(), line, what }
    }
}

/// Where the sectors of an array lie.
fn geometry(raid: &Raid, sectors: Sectors) -> Result<Geometry, String> {
    let count = u16::try_from(raid.devices.len()).expect("RAID_DEVICES_MAX is below 65536");
    let level = match raid.kind {
        RaidKind::Raid0 => DmRaidLevel::Raid0,
        RaidKind::Raid1 => DmRaidLevel::Raid1,
        RaidKind::Raid10 { format, copies, use_near_sets } => {
            // The kernel's dm-raid has far copies in sets unless it is told otherwise; md has not.
            let sets = if use_near_sets { FarSets::One } else { FarSets::Copies };
            let layout = match format {
                Raid10Format::Near => Raid10Layout::new(copies, 1, false, FarSets::One, count.into()),
                Raid10Format::Far => Raid10Layout::new(1, copies, false, sets, count.into()),
                Raid10Format::Offset => Raid10Layout::new(1, copies, true, sets, count.into()),
            };
            DmRaidLevel::Raid10(layout.map_err(|error| error.to_string())?)
        }
        RaidKind::Parity(kind) => {
            let layout = kind.layout(count);
            DmRaidLevel::Parity(layout.ok_or_else(|| format!("its {count} devices have no room for data"))?)
        }
    };
    dm_raid::geometry(level, count, Sectors(raid.chunk.into()), sectors)
}

/// From where on its mirrors may differ, or its parity may not fit. Nothing is on record, so it is everywhere, unless the table says otherwise.
/// Where a device is missing, or is to be rebuilt, a parity is taken as it is: there is nothing else to find what was on that device from. Linux takes
/// it so always.
fn resync_from(raid: &Raid, geometry: &Geometry) -> Option<Sector> {
    let is_whole = raid.rebuild.is_empty() && raid.devices.iter().all(Option::is_some);
    let may_differ = geometry.copies() > 1 || geometry.is_redundant() && is_whole;
    (may_differ && !raid.nosync).then_some(Sector(0))
}

/// The chunk of a RAID10; zero of others.
fn raid10_chunk(raid: &Raid) -> Sectors {
    match raid.kind {
        RaidKind::Raid10 { .. } => Sectors(raid.chunk.into()),
        RaidKind::Raid0 | RaidKind::Raid1 | RaidKind::Parity(_) => Sectors::ZERO,
    }
}

/// A table's name where it has none of its own: its file's, without the extension.
fn stem(path: &str) -> String {
    Path::new(path).file_stem().map_or_else(|| "table".to_owned(), |stem| stem.to_string_lossy().into_owned())
}
