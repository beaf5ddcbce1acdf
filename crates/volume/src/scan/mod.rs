//! What `blockwork scan` reports: disks, arrays, volume groups and tables as plain data.
//!
//! Each thing is told once, in the list of its kind, and others refer to it by name: an array by `md/NAME`, a group by
//! its name, a device by the name that `serve` takes. So the report is as long as what there is, however that is stacked.
//!
//! The JSON form of these structures is stable: fields are added, never renamed or removed; `docs/scan-json.md` describes
//! it. Sizes and offsets are bytes, times are seconds since 1970. Texts stand as they are on the disk: whoever prints
//! them escapes them, but for `warnings`, `refusal`, `read_only` and `problem`, which are safe to print.

mod array;
mod device;
mod group;
mod limits;
mod lv;

use std::collections::HashMap;

use blockwork_engine::SECTOR;
use blockwork_format::partition::Partition;
use serde::Serialize;

use crate::assembly::Assembly;
use crate::graph::{ArrayId, DeviceId, DeviceKind, Graph, GroupId};

pub use array::{ArrayReport, BitmapReport, MemberReport};
pub use device::{DeviceReport, MdMemberReport, PvMemberReport};
pub use group::{GroupReport, PvReport};
pub use limits::LimitsReport;
pub use lv::{AreaReport, LvReport, SegmentReport, StoreReport, UsageReport, percent_as_lvs};

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct ScanReport {
    /// The disks, in the order given.
    pub disks: Vec<DiskReport>,
    /// md arrays, in the order in which they were assembled.
    pub arrays: Vec<ArrayReport>,
    /// LVM2 volume groups, likewise.
    pub groups: Vec<GroupReport>,
    /// Tables' devices, where any were given.
    pub tables: Vec<TableReport>,
}

/// A disk.
#[derive(Clone, Debug, Serialize)]
pub struct DiskReport {
    /// As it was given on the command line.
    pub disk: String,
    /// The disk as a device.
    #[serde(flatten)]
    pub device: DeviceReport,
}

/// A partition.
#[derive(Clone, Debug, Serialize)]
pub struct PartitionReport {
    /// Its number.
    pub number: u32,
    /// First byte on the device below.
    pub start: u64,
    /// Type: GUID or 0xNN.
    pub type_id: String,
    /// The type's name, if it is a known one.
    pub type_name: Option<String>,
    /// Its UUID.
    pub part_uuid: Option<String>,
    /// Its name, GPT only.
    pub name: Option<String>,
    /// The partition as a device.
    #[serde(flatten)]
    pub device: DeviceReport,
}

/// A table's device.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    /// It, as a device.
    #[serde(flatten)]
    pub device: DeviceReport,
}

/// Reports on everything that was assembled.
pub fn scan(assembly: &Assembly) -> ScanReport {
    let reader = Reader::new(assembly.graph());
    let graph = reader.graph;
    let mut report = ScanReport {
        disks: Vec::new(),
        arrays: (0..graph.arrays.len()).map(|id| reader.array(ArrayId(id))).collect(),
        groups: (0..graph.groups.len()).map(|id| reader.group(GroupId(id))).collect(),
        tables: Vec::new(),
    };
    for (id, device) in graph.iter() {
        match &device.kind {
            DeviceKind::Disk { spec, .. } => {
                report.disks.push(DiskReport { disk: spec.clone(), device: reader.device(id) });
            }
            DeviceKind::Table => report.tables.push(TableReport { device: reader.device(id) }),
            DeviceKind::Partition(_) | DeviceKind::Array(_) | DeviceKind::Lv { .. } => {}
        }
    }
    report
}

/// The graph, and what has to be looked up in it from below.
struct Reader<'a> {
    graph: &'a Graph,
    /// Of each device, its partitions.
    partitions: Vec<Vec<(DeviceId, &'a Partition)>>,
    /// Of each member of an array: the array, and the member's index in it.
    members: HashMap<DeviceId, (ArrayId, usize)>,
    /// Of each physical volume that its group uses: the group.
    pvs: HashMap<DeviceId, GroupId>,
}

impl<'a> Reader<'a> {
    fn new(graph: &'a Graph) -> Reader<'a> {
        let mut partitions = vec![Vec::new(); graph.devices.len()];
        for (id, device) in graph.iter() {
            if let (DeviceKind::Partition(partition), [below]) = (&device.kind, &device.below[..]) {
                partitions[below.0].push((id, partition));
            }
        }
        let mut members = HashMap::new();
        for (id, array) in graph.arrays.iter().enumerate() {
            members.extend(
                array.members.iter().enumerate().map(|(nth, member)| (member.device, (ArrayId(id), nth))),
            );
        }
        let mut pvs = HashMap::new();
        for (id, group) in graph.groups.iter().enumerate() {
            pvs.extend(group.pvs.iter().flatten().map(|device| (*device, GroupId(id))));
        }
        Reader { graph, partitions, members, pvs }
    }

    fn partition(&self, id: DeviceId, partition: &Partition) -> PartitionReport {
        PartitionReport {
            number: partition.number,
            start: bytes(partition.start_sector),
            type_id: partition.type_id.clone(),
            type_name: partition.type_name.map(str::to_owned),
            part_uuid: partition.uuid.clone(),
            name: partition.name.clone(),
            device: self.device(id),
        }
    }

    /// A device's name, as others refer to it.
    fn name(&self, id: DeviceId) -> String {
        self.graph.device(id).name.clone()
    }
}

/// Sectors as bytes; what no device can have becomes the largest number.
fn bytes(sectors: u64) -> u64 {
    sectors.saturating_mul(SECTOR)
}
