//! Disks to leaves, partitions to linear ranges, tables to stacks: one [`Assembly`] holds all of it.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use blockwork_engine::{
    Layer, LeafId, LeafLayer, LeafSource, Limits, NodeId, NodeInfo, NodeKind, SECTOR, Sector, Sectors, Stats,
    Volume,
};
use blockwork_format::partition::{self, PartitionTable};
use blockwork_format::table::TABLE_BYTES_MAX;
use blockwork_format::{FormatError, Source, escape};
use blockwork_layer::Linear;
use blockwork_leaf::{OpenOptions, Opened};

use crate::error::VolumeError;
use crate::table;

/// Leaves that one process can number.
const LEAVES_MAX: usize = 4096;
/// Volumes and layers that one process can number.
const NODES_MAX: usize = 65_000;
/// Major numbers that traces show: those of Linux' extended block devices and its device mapper.
const MAJOR_DISK: u32 = 259;
const MAJOR_DM: u32 = 253;
/// Minor numbers have 20 bits in a trace.
const MINOR_MAX: u32 = (1 << 20) - 1;

/// A queue setting for leaves.
pub type LeafOption = (String, String);

/// What is to be opened, and how.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// DISK arguments: paths with options, `null:SIZE`, `memory:SIZE`.
    pub disks: Vec<String>,
    /// Table files.
    pub tables: Vec<String>,
    /// Nothing will be written.
    pub read_only: bool,
    /// Queue settings for all leaves, by sysfs name.
    pub settings: Vec<LeafOption>,
    /// Take no locks: for looking at disks that may be in use.
    pub unlocked: bool,
}

/// A disk that was opened.
pub struct Disk {
    /// As it was given.
    pub spec: String,
    /// Its volume's name: `disk/FILENAME`.
    pub volume: String,
    /// The leaf.
    pub source: Arc<dyn LeafSource>,
    /// What people should know about it.
    pub warnings: Vec<String>,
    /// Its partition table, if it has one, or why that cannot be read.
    pub partitions: Result<Option<PartitionTable>, FormatError>,
    pub(crate) layer: Arc<dyn Layer>,
}

/// A volume and where it came from.
pub struct NamedVolume {
    /// The volume.
    pub volume: Volume,
    /// Whether it was named on the command line as a disk or table (and not found inside one).
    pub is_top: bool,
}

/// Everything that was opened and assembled.
#[derive(Default)]
pub struct Assembly {
    /// The disks.
    pub disks: Vec<Disk>,
    /// All volumes, in the order in which they were found.
    pub volumes: Vec<NamedVolume>,
    /// What people should know.
    pub warnings: Vec<String>,
    pub(crate) nodes: Vec<NodeInfo>,
    leaves: Vec<(NodeId, Arc<dyn LeafSource>)>,
    by_spec: HashMap<String, usize>,
    minors: HashMap<u32, u32>,
    plan: Plan,
}

impl Assembly {
    /// Opens the disks, reads what they hold, and assembles every volume.
    pub fn open(plan: Plan) -> Result<Assembly, VolumeError> {
        let mut assembly = Assembly { plan: plan.clone(), ..Assembly::default() };
        for spec in &plan.disks {
            let disk = assembly.disk(spec)?;
            assembly.add_volumes_of(disk)?;
        }
        for path in &plan.tables {
            let text = read_table(path).map_err(|source| VolumeError::File { path: path.clone(), source })?;
            table::assemble(&mut assembly, path, &text)?;
        }
        Ok(assembly)
    }

    /// The volume of that name.
    pub fn find(&self, name: &str) -> Result<&Volume, VolumeError> {
        let found = self.volumes.iter().find(|named| named.volume.name == name);
        found.map(|named| &named.volume).ok_or_else(|| {
            let names: Vec<_> = self.volumes.iter().map(|named| named.volume.name.as_str()).collect();
            let there_are = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            VolumeError::NoVolume { name: name.to_owned(), there_are }
        })
    }

    /// The leaves, by [`LeafId`].
    pub fn leaves(&self) -> Arc<[(NodeId, Arc<dyn LeafSource>)]> {
        self.leaves.clone().into()
    }

    /// Counters for all nodes.
    pub fn stats(&self) -> Stats {
        Stats::new(self.nodes.clone())
    }

    /// A node's description.
    pub fn node(&self, id: NodeId) -> &NodeInfo {
        &self.nodes[usize::from(id.0)]
    }

    /// Opens a disk, unless it is open already. Returns its index.
    pub(crate) fn disk(&mut self, spec: &str) -> Result<usize, VolumeError> {
        if let Some(&index) = self.by_spec.get(spec) {
            return Ok(index);
        }
        if self.leaves.len() >= LEAVES_MAX {
            return Err(VolumeError::TooMany { what: "disks", limit: LEAVES_MAX });
        }
        let options = OpenOptions {
            read_only: self.plan.read_only,
            settings: self.plan.settings.clone(),
            unlocked: self.plan.unlocked,
        };
        let Opened { source, warnings } = blockwork_leaf::open(spec, &options)?;
        self.warnings.extend(warnings.iter().map(|warning| format!("{}: {warning}", escape(spec))));
        let leaf = LeafId(u16::try_from(self.leaves.len()).expect("LEAVES_MAX is below 65536"));
        let volume = self.unused_name(&format!("disk/{}", base_name(source.name())));
        let node = self.add_node(source.name(), NodeKind::Leaf, MAJOR_DISK)?;
        self.leaves.push((node, source.clone()));
        let layer = LeafLayer::new(leaf, node, source.sectors(), source.limits().clone());
        let view = SourceView(&*source);
        let partitions = partition::read(&view, source.limits().logical_block_size);
        self.disks.push(Disk {
            spec: spec.to_owned(),
            volume,
            source,
            warnings,
            partitions,
            layer: Arc::new(layer),
        });
        self.by_spec.insert(spec.to_owned(), self.disks.len() - 1);
        Ok(self.disks.len() - 1)
    }

    /// A disk as a volume, and each of its partitions.
    fn add_volumes_of(&mut self, index: usize) -> Result<(), VolumeError> {
        let disk = &self.disks[index];
        if self.volumes.iter().any(|named| named.volume.name == disk.volume) {
            return Ok(()); // the same disk given twice
        }
        let (name, below, spec) = (disk.volume.clone(), disk.layer.clone(), disk.spec.clone());
        let found = match &disk.partitions {
            Ok(Some(table)) => {
                self.warnings
                    .extend(table.warnings.iter().map(|warning| format!("{}: {warning}", escape(&spec))));
                table
                    .partitions
                    .iter()
                    .map(|p| (p.number, Sector(p.start_sector), Sectors(p.sectors)))
                    .collect()
            }
            Ok(None) => Vec::new(),
            Err(error) => {
                self.warnings.push(format!("{}: {error}", escape(&spec)));
                Vec::new()
            }
        };
        self.add_volume(&name, below.clone(), true);
        for (number, start, sectors) in found {
            let node = self.add_node(&format!("{name}/{number}"), NodeKind::Partition, MAJOR_DISK)?;
            match Linear::new(node, below.clone(), start, sectors) {
                Some(layer) => self.add_volume(&format!("{name}/{number}"), Arc::new(layer), false),
                None => self.warnings.push(format!(
                    "{spec}: partition {number} (sectors {start} to {}) does not lie within the disk's {} sectors; it \
                     is left out",
                    start.0.saturating_add(sectors.0),
                    below.sectors()
                )),
            }
        }
        Ok(())
    }

    pub(crate) fn add_volume(&mut self, name: &str, root: Arc<dyn Layer>, is_top: bool) {
        let read_only = self.plan.read_only || root.limits().read_only;
        self.volumes.push(NamedVolume { volume: Volume::new(name, root, read_only), is_top });
    }

    /// A new node for counters and traces.
    pub(crate) fn add_node(&mut self, name: &str, kind: NodeKind, major: u32) -> Result<NodeId, VolumeError> {
        if self.nodes.len() >= NODES_MAX {
            return Err(VolumeError::TooMany { what: "layers", limit: NODES_MAX });
        }
        let minor = self.minors.entry(major).or_default();
        let device = (major, (*minor).min(MINOR_MAX));
        *minor += 1;
        self.nodes.push(NodeInfo { name: name.to_owned(), kind, device });
        Ok(NodeId(u16::try_from(self.nodes.len() - 1).expect("NODES_MAX is below 65536")))
    }

    /// A node of a table.
    pub(crate) fn add_dm_node(&mut self, name: &str, kind: NodeKind) -> Result<NodeId, VolumeError> {
        self.add_node(name, kind, MAJOR_DM)
    }

    /// `name`, or the first of `name#2`, `name#3`, ... that no disk has.
    fn unused_name(&self, name: &str) -> String {
        let taken = |name: &str| self.disks.iter().any(|disk| disk.volume == name);
        if !taken(name) {
            return name.to_owned();
        }
        (2..).map(|n| format!("{name}#{n}")).find(|name| !taken(name)).expect("disks are bounded")
    }
}

/// A table's text; not much more of it than a table may have, so that the parser can refuse it and memory is bounded.
fn read_table(path: &str) -> std::io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(TABLE_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// A leaf as something a parser can read.
pub(crate) struct SourceView<'a>(pub(crate) &'a dyn LeafSource);

impl Source for SourceView<'_> {
    fn size(&self) -> u64 {
        self.0.sectors().bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.size()) {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.0.read_now(offset, buf)
    }
}

/// A range of a leaf, likewise.
pub(crate) struct RangeView<'a> {
    pub(crate) source: &'a dyn LeafSource,
    pub(crate) start: Sector,
    pub(crate) sectors: Sectors,
}

impl Source for RangeView<'_> {
    fn size(&self) -> u64 {
        self.sectors.0 * SECTOR
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.size()) {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        SourceView(self.source).read_at(self.start.bytes() + offset, buf)
    }
}

/// The part of a disk's name that names its volume: a path's last component; `null` and `memory` of those.
fn base_name(name: &str) -> String {
    for kind in ["null", "memory"] {
        if name.strip_prefix(kind).is_some_and(|rest| rest.starts_with(':')) {
            return kind.to_owned();
        }
    }
    Path::new(name).file_name().map_or_else(|| name.to_owned(), |file| file.to_string_lossy().into_owned())
}

/// Sets one of a layer's limits; `what` is `LAYER:KEY=VALUE` or `KEY=VALUE`. Returns the setting for leaves.
pub fn parse_setting(what: &str) -> Result<LeafOption, VolumeError> {
    let refuse = |reason: String| VolumeError::Setting { setting: what.to_owned(), what: reason };
    let (key, value) = what.split_once('=').ok_or_else(|| refuse("expected KEY=VALUE".to_owned()))?;
    let key = match key.split_once(':') {
        None => key,
        Some(("leaf", key)) => key,
        Some((layer, _)) => {
            return Err(refuse(format!("no layer {layer:?} has settings; expected leaf:{key}")));
        }
    };
    // Found out here rather than when the first disk is opened.
    Limits::default().set(key, value).map_err(|error| refuse(error.to_string()))?;
    Ok((key.to_owned(), value.to_owned()))
}
