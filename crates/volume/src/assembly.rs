//! Disks to leaves, and leaves to the graph of devices: one [`Assembly`] holds all of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use blockwork_engine::{
    CounterTable, Layer, LeafId, LeafLayer, LeafSource, NodeId, NodeInfo, NodeKind, Sector, Sectors, Stats,
};
use blockwork_format::partition::Partition;
use blockwork_format::table::TABLE_BYTES_MAX;
use blockwork_layer::Linear;
use blockwork_layer::thin::Pool;
use blockwork_leaf::Opened;

use crate::error::VolumeError;
use crate::graph::{Content, Device, DeviceId, DeviceKind, DiskSource, Graph, NewDevice, Stack};
use crate::lvm::metadata::Texts;
use crate::nodes::MAJOR_DISK;
use crate::plan::{LayerSetting, Plan};
use crate::probe::{How, probe};
use crate::signature::fixed_vhd;
use crate::source::StackSource;
use crate::table;
use crate::thin::OpenPool;
use crate::volumes::belongs;

/// Leaves that one process can number.
const LEAVES_MAX: usize = 4096;

/// Devices on top of each other that are looked into. A guest's volume on its volume group on its partition on a logical
/// volume on mirrors on an array on partitions has 9.
pub const DEPTH_MAX: usize = 24;

/// Everything that was opened and assembled.
#[derive(Default)]
pub struct Assembly {
    pub(crate) graph: Graph,
    pub(crate) plan: Plan,
    /// Devices that nobody has looked at.
    pub(crate) unprobed: Vec<DeviceId>,
    /// Members of arrays that are in none yet.
    pub(crate) loose_members: Vec<DeviceId>,
    /// Physical volumes that are in no group yet.
    pub(crate) loose_pvs: Vec<DeviceId>,
    pub(crate) leaves: Vec<(NodeId, Arc<dyn LeafSource>)>,
    /// Disks that were closed while volumes are served, and the leaves that they had.
    pub(crate) closed: BTreeMap<DeviceId, LeafId>,
    by_spec: HashMap<String, DeviceId>,
    pub(crate) texts: Texts,
    /// Settings of layers that were for some device.
    pub(crate) settings_used: Vec<LayerSetting>,
    /// One that was for a device which cannot have it, and why.
    pub(crate) setting_unfit: Option<(LayerSetting, String)>,
    /// The thin pools of tables, by their devices' names.
    pub(crate) table_pools: BTreeMap<String, OpenPool>,
    /// Workers serve volumes of it: what these keep in memory is ahead of the disks, so that pools are not read behind their back.
    pub(crate) is_served: bool,
    /// For reading through stacks.
    counters: Option<(usize, CounterTable)>,
}

impl Assembly {
    /// Opens the disks, reads what they hold, and assembles what they make up.
    pub fn open(plan: Plan) -> Result<Assembly, VolumeError> {
        Assembly::over(plan, Vec::new())
    }

    /// The same of disks that are open already, each with what it is called, besides those of the plan: a simulator has its own, which no
    /// path leads to.
    ///
    /// # Errors
    ///
    /// As [`Assembly::open`].
    pub fn over(plan: Plan, disks: Vec<(String, Opened)>) -> Result<Assembly, VolumeError> {
        let mut assembly = Assembly { plan: plan.clone(), ..Assembly::default() };
        for (spec, opened) in disks {
            let disk = assembly.keep(&spec, opened)?;
            assembly.offer(disk);
        }
        for spec in &plan.disks {
            let disk = assembly.disk(spec)?;
            assembly.offer(disk);
        }
        assembly.assemble()
    }

    /// A disk was asked for. The same one may be given twice.
    fn offer(&mut self, disk: DeviceId) {
        let device = &mut self.graph.devices[disk.0];
        if !device.is_offered {
            device.is_offered = true;
            self.unprobed.push(disk);
        }
    }

    /// Reads what the disks that were asked for hold, and assembles what they make up.
    fn assemble(mut self) -> Result<Assembly, VolumeError> {
        self.settle();
        if self.plan.nested {
            self.look_into_volumes();
        }
        self.tell_what_is_left();
        for path in self.plan.tables.clone() {
            let text =
                read_table(&path).map_err(|source| VolumeError::File { path: path.clone(), source })?;
            table::assemble(&mut self, &path, &text)?;
        }
        self.probe_unoffered_disks();
        Ok(self)
    }

    /// All devices, arrays and groups.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What people should know, each with whom it is about.
    pub fn warnings(&self) -> Vec<String> {
        self.graph.warnings()
    }

    /// Workers begin to serve volumes of it.
    pub fn begin_to_serve(&mut self) {
        self.is_served = true;
        self.graph.nodes.begin_to_serve();
    }

    /// The thin pool of a table that has this name (`dm/NAME`).
    pub fn table_pool(&self, name: &str) -> Option<Arc<Pool>> {
        self.table_pools.get(name).map(OpenPool::pool)
    }

    /// The names of the thin pools of tables.
    pub fn table_pools(&self) -> impl Iterator<Item = &str> {
        self.table_pools.keys().map(String::as_str)
    }

    /// The leaves, by [`LeafId`].
    pub fn leaves(&self) -> Arc<[(NodeId, Arc<dyn LeafSource>)]> {
        self.leaves.clone().into()
    }

    /// The arrays that are open, of md and of LVM. A change of a group writes through those below its disks and its pools, whether or not
    /// a volume that is served lies on them.
    pub fn arrays(&self) -> impl Iterator<Item = Arc<dyn Layer>> {
        let of_md = self.graph.arrays.iter().filter_map(|array| array.layer.clone());
        let of_lvm =
            self.graph.groups.iter().flat_map(|group| group.arrays.values().map(|array| array.layer.clone()));
        of_md.map(|array| array as Arc<dyn Layer>).chain(of_lvm)
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.graph.nodes.infos().len()
    }

    /// How many more layers can be numbered.
    pub fn room_for_nodes(&self) -> usize {
        self.graph.nodes.room()
    }

    /// Nodes that were another layer's, of a volume that has gone, and have become one's that has come since this was last asked.
    pub fn take_renewed_nodes(&mut self) -> Vec<NodeId> {
        self.graph.nodes.take_renewed()
    }

    /// Nodes that go by another name, with their volume, since this was last asked.
    pub fn take_renamed_nodes(&mut self) -> BTreeSet<NodeId> {
        self.graph.nodes.take_renamed()
    }

    /// The number of the leaf that has this node.
    pub(crate) fn leaf_of(&self, node: NodeId) -> LeafId {
        number_of(&self.leaves, node)
    }

    /// Counters for all nodes.
    pub fn stats(&self) -> Stats {
        Stats::new(self.graph.nodes.infos().to_vec())
    }

    /// A node's description.
    pub fn node(&self, id: NodeId) -> &NodeInfo {
        &self.graph.nodes.infos()[usize::from(id.0)]
    }

    /// A disk that is open already.
    pub(crate) fn open_disk(&self, spec: &str) -> Option<DeviceId> {
        self.by_spec.get(spec).copied()
    }

    /// Opens a disk, unless it is open already.
    pub(crate) fn disk(&mut self, spec: &str) -> Result<DeviceId, VolumeError> {
        if let Some(&disk) = self.by_spec.get(spec) {
            return Ok(disk);
        }
        let opened = blockwork_leaf::open(spec, &self.plan.open_options())?;
        self.keep(spec, opened)
    }

    /// Makes a device of a disk that was opened as `spec`.
    pub(crate) fn keep(&mut self, spec: &str, opened: Opened) -> Result<DeviceId, VolumeError> {
        if self.leaves.len() >= LEAVES_MAX {
            return Err(VolumeError::TooMany { what: "disks", limit: LEAVES_MAX });
        }
        let Opened { source, warnings } = opened;
        let leaf = LeafId(u16::try_from(self.leaves.len()).expect("LEAVES_MAX is below 65536"));
        let name = self.graph.unused_name(&format!("disk/{}", base_name(source.name())));
        let node = self.graph.nodes.add(source.name(), NodeKind::Leaf, MAJOR_DISK)?;
        self.leaves.push((node, source.clone()));
        let layer = LeafLayer::new(leaf, node, source.sectors(), source.limits().clone());
        let read_only = self.opened_read_only(&*source);
        let disk = self.graph.add(NewDevice {
            name,
            sectors: source.sectors(),
            kind: DeviceKind::Disk { spec: spec.to_owned(), source: DiskSource(source) },
            below: Arc::default(),
            stack: Stack::Ready(Arc::new(layer)),
            is_offered: false,
            read_only,
        });
        self.graph.devices[disk.0].warnings = warnings;
        self.by_spec.insert(spec.to_owned(), disk);
        Ok(disk)
    }

    /// Why a disk must not be written, where that is so by its own options.
    pub(crate) fn opened_read_only(&self, source: &dyn LeafSource) -> Option<String> {
        let by_itself = source.limits().read_only && !self.plan.read_only;
        by_itself.then(|| "it was opened read-only".to_owned())
    }

    /// Disks that are offered as such, belong to nothing else, and have grown since they were looked at: their names. Partitions in them have
    /// sizes of their own, and keep these.
    pub fn grown_disks(&mut self) -> Vec<String> {
        let mut grown = Vec::new();
        for device in self.graph.devices.iter_mut().filter(|device| device.is_offered && !belongs(device)) {
            let DeviceKind::Disk { source: DiskSource(source), .. } = &device.kind else { continue };
            let (Some(node), sectors) = (device.layer().map(|layer| layer.node()), source.grow()) else {
                continue;
            };
            if sectors <= device.sectors {
                continue;
            }
            let leaf = number_of(&self.leaves, node);
            let layer = LeafLayer::new(leaf, node, sectors, source.limits().clone());
            (device.sectors, device.stack) = (sectors, Stack::Ready(Arc::new(layer)));
            grown.push(device.name.clone());
        }
        grown
    }

    /// Looks what a device holds, and adds its partitions.
    pub(crate) fn probe(&mut self, id: DeviceId) {
        let Some(layer) = self.graph.device(id).layer().cloned() else { return };
        if self.graph.device(id).depth > DEPTH_MAX {
            let warning = format!("it was not looked into: more than {DEPTH_MAX} devices lie below it");
            return self.graph.warn(id, warning);
        }
        let how = How {
            block_bytes: self.graph.block_bytes(id),
            partitions: !matches!(self.graph.device(id).kind, DeviceKind::Partition(_)),
        };
        let mut texts = std::mem::take(&mut self.texts);
        let probed = self.read(&*layer, |source| probe(source, &how, &mut texts));
        self.texts = texts;
        let is_disk = matches!(self.graph.device(id).kind, DeviceKind::Disk { .. });
        let fixed_vhd = is_disk.then(|| self.read(&*layer, |source| fixed_vhd(&source))).flatten();
        let partitions = match &probed.content {
            Content::Partitions(table) => table.partitions.clone(),
            _ => Vec::new(),
        };
        let device = &mut self.graph.devices[id.0];
        // A volume may well be made to hold such an image.
        let advice = match (&device.kind, &probed.content) {
            (DeviceKind::Disk { .. }, Content::Signature(signature)) => signature.advice().or(fixed_vhd),
            (DeviceKind::Disk { .. }, _) => fixed_vhd,
            _ => None,
        };
        device.content = probed.content;
        device.warnings.extend(probed.warnings.into_iter().chain(advice));
        for partition in partitions {
            self.add_partition(id, &layer, partition);
        }
    }

    fn add_partition(&mut self, disk: DeviceId, below: &Arc<dyn Layer>, partition: Partition) {
        let number = partition.number;
        match self.keep_partition(disk, below, partition) {
            Ok(device) => self.unprobed.push(device),
            Err(warning) => self.graph.warn(disk, format!("partition {number}: {warning}")),
        }
    }

    /// Makes a device of a partition.
    ///
    /// # Errors
    ///
    /// It does not lie within its disk, or there are too many devices.
    pub(crate) fn keep_partition(
        &mut self,
        disk: DeviceId,
        below: &Arc<dyn Layer>,
        partition: Partition,
    ) -> Result<DeviceId, String> {
        let layer = self.partition_layer(disk, below, &partition)?;
        let Device { name, is_offered, .. } = self.graph.device(disk);
        let (name, is_offered) = (format!("{name}/{}", partition.number), *is_offered);
        Ok(self.graph.add(NewDevice {
            name: self.graph.unused_name(&name),
            sectors: Sectors(partition.sectors),
            kind: DeviceKind::Partition(partition),
            below: Arc::from([disk]),
            stack: Stack::Ready(layer),
            is_offered,
            read_only: None,
        }))
    }

    /// The layer of a partition of `disk`, whose layer is `below`.
    ///
    /// # Errors
    ///
    /// As [`Assembly::keep_partition`].
    pub(crate) fn partition_layer(
        &mut self,
        disk: DeviceId,
        below: &Arc<dyn Layer>,
        partition: &Partition,
    ) -> Result<Arc<dyn Layer>, String> {
        let name = format!("{}/{}", self.graph.device(disk).name, partition.number);
        let (start, sectors) = (Sector(partition.start_sector), Sectors(partition.sectors));
        let node = self.graph.nodes.of_volume(disk, &name, NodeKind::Partition, MAJOR_DISK);
        let node = node.map_err(|error| error.to_string())?;
        let layer = Linear::new(node, below.clone(), start, sectors).ok_or_else(|| {
            let (end, disk) = (start.0.saturating_add(sectors.0), below.sectors());
            format!("it (sectors {start} to {end}) does not lie within the {disk} sectors; it is left out")
        })?;
        let layer = self.with_settings(&name, Arc::new(layer), Sectors::ZERO);
        layer.map_err(|error| error.to_string())
    }

    /// Looks at disks that only tables name, for reports: they take no part in arrays and groups.
    fn probe_unoffered_disks(&mut self) {
        let unprobed = |device: &Device| !device.is_offered && matches!(device.kind, DeviceKind::Disk { .. });
        let mut left: Vec<_> =
            self.graph.iter().filter(|(_, device)| unprobed(device)).map(|(id, _)| id).collect();
        while let Some(id) = left.pop() {
            self.probe(id);
            left.append(&mut self.unprobed);
        }
    }

    /// Lets somebody read a layer.
    pub(crate) fn read<T>(&mut self, layer: &dyn Layer, reader: impl FnOnce(&StackSource<'_>) -> T) -> T {
        let nodes = self.graph.nodes.infos().len();
        let counters = match self.counters.take() {
            Some((room, counters)) if room >= nodes => (room, counters),
            // Twice as many, so that they are not made anew for each device.
            _ => (2 * nodes, CounterTable::new(2 * nodes)),
        };
        let read = reader(&StackSource {
            layer,
            leaves: &self.leaves,
            counters: &counters.1,
            is_at_rest: !self.is_served,
        });
        self.counters = Some(counters);
        read
    }
}

fn number_of(leaves: &[(NodeId, Arc<dyn LeafSource>)], node: NodeId) -> LeafId {
    let leaf = leaves.iter().position(|(known, _)| *known == node).expect("a disk is a leaf");
    LeafId(u16::try_from(leaf).expect("LEAVES_MAX is below 65536"))
}

/// A table's text; not much more of it than a table may have, so that the parser can refuse it and memory is bounded.
pub(crate) fn read_table(path: &str) -> std::io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(TABLE_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// The part of a disk's name that names its volume: a path's last component; `null` and `memory` of those.
fn base_name(name: &str) -> String {
    for kind in ["null", "memory"] {
        if name.strip_prefix(kind).is_some_and(|rest| rest.starts_with(':')) {
            return kind.to_owned();
        }
    }
    // How to speak with the server is no part of what the disk is called.
    let name = if name.starts_with("nfs://") { name.split('?').next().unwrap_or(name) } else { name };
    Path::new(name).file_name().map_or_else(|| name.to_owned(), |file| file.to_string_lossy().into_owned())
}
