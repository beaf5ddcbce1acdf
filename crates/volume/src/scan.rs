//! What `blockwork scan` reports: the disks and what is on them, as a tree of plain data.
//!
//! The JSON form of these structures is stable: fields are added, never renamed. Sizes are bytes.

use blockwork_engine::{LeafSource, Limits, Sector, Sectors};
use blockwork_format::partition::Partition;
use serde::Serialize;

use crate::assembly::Assembly;
use crate::graph::{Content, Device, DeviceKind, Graph};

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct ScanReport {
    /// The disks, in the order given.
    pub disks: Vec<DiskReport>,
    /// Tables, where any were given.
    pub tables: Vec<TableReport>,
}

/// A disk.
#[derive(Clone, Debug, Serialize)]
pub struct DiskReport {
    /// As it was given on the command line.
    pub disk: String,
    /// Its volume's name, as `serve` takes it.
    pub volume: String,
    /// Size, bytes.
    pub size: u64,
    /// `gpt`, `mbr`, or none.
    pub partition_table: Option<String>,
    /// The table's GUID or signature.
    pub partition_table_id: Option<String>,
    /// What is on the disk itself.
    pub content: Option<String>,
    /// That one's UUID.
    pub uuid: Option<String>,
    /// Queue limits, by sysfs names.
    pub limits: LimitsReport,
    /// Its partitions.
    pub partitions: Vec<PartitionReport>,
    /// What is wrong or worth knowing, one sentence each.
    pub warnings: Vec<String>,
}

/// A partition.
#[derive(Clone, Debug, Serialize)]
pub struct PartitionReport {
    /// Its number.
    pub number: u32,
    /// Its volume's name.
    pub volume: String,
    /// First byte on the disk.
    pub start: u64,
    /// Size, bytes.
    pub size: u64,
    /// Type: GUID or 0xNN.
    pub type_id: String,
    /// The type's name, if it is a known one.
    pub type_name: Option<String>,
    /// Its UUID.
    pub part_uuid: Option<String>,
    /// Its name, GPT only.
    pub name: Option<String>,
    /// What is on it.
    pub content: Option<String>,
    /// That one's UUID.
    pub uuid: Option<String>,
}

/// A table's device.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    /// Its volume's name.
    pub volume: String,
    /// Size, bytes.
    pub size: u64,
    /// Queue limits, by sysfs names.
    pub limits: LimitsReport,
}

/// Limits, named as in sysfs.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "sysfs' own names")]
pub struct LimitsReport {
    pub logical_block_size: u32,
    pub physical_block_size: u32,
    pub minimum_io_size: u32,
    pub optimal_io_size: u32,
    pub max_sectors_kb: u64,
    pub max_segments: u32,
    pub discard_granularity: u32,
    pub discard_max_bytes: u64,
    pub write_zeroes_max_bytes: u64,
    pub dma_alignment: u32,
    pub write_cache: &'static str,
    pub fua: bool,
    pub rotational: bool,
    pub read_only: bool,
    pub nr_requests: u32,
    pub nomerges: u32,
    pub read_ahead_kb: u64,
}

impl From<&Limits> for LimitsReport {
    fn from(limits: &Limits) -> LimitsReport {
        LimitsReport {
            logical_block_size: limits.logical_block_size,
            physical_block_size: limits.physical_block_size,
            minimum_io_size: limits.io_min,
            optimal_io_size: limits.io_opt,
            max_sectors_kb: limits.max_sectors.bytes() / 1024,
            max_segments: limits.max_segments,
            discard_granularity: limits.discard_granularity,
            discard_max_bytes: limits.max_discard.bytes(),
            write_zeroes_max_bytes: limits.max_write_zeroes.bytes(),
            dma_alignment: limits.dma_alignment,
            write_cache: if limits.write_cache { "write back" } else { "write through" },
            fua: limits.fua,
            rotational: limits.rotational,
            read_only: limits.read_only,
            nr_requests: limits.nr_requests,
            nomerges: limits.merges as u32,
            read_ahead_kb: limits.read_ahead.bytes() / 1024,
        }
    }
}

/// Reports on everything that was assembled.
pub fn scan(assembly: &Assembly) -> ScanReport {
    let graph = assembly.graph();
    let mut report = ScanReport { disks: Vec::new(), tables: Vec::new() };
    for (_, device) in graph.iter() {
        match &device.kind {
            DeviceKind::Disk { spec, source } => report.disks.push(disk(graph, device, spec, &*source.0)),
            DeviceKind::Table => report.tables.extend(table(device)),
            DeviceKind::Partition(_) | DeviceKind::Array(_) | DeviceKind::Lv { .. } => {}
        }
    }
    report
}

fn table(device: &Device) -> Option<TableReport> {
    let layer = device.layer()?;
    Some(TableReport {
        volume: device.name.clone(),
        size: device.sectors.bytes(),
        limits: layer.limits().into(),
    })
}

fn disk(graph: &Graph, device: &Device, spec: &str, source: &dyn LeafSource) -> DiskReport {
    let table = match &device.content {
        Content::Partitions(table) => Some(table),
        _ => None,
    };
    let (content, uuid) = content(device);
    let partitions = table.map_or(&[][..], |table| &table.partitions);
    DiskReport {
        disk: spec.to_owned(),
        volume: device.name.clone(),
        size: device.sectors.bytes(),
        partition_table: table.map(|table| table.kind.to_string()),
        partition_table_id: table.map(|table| table.disk_id.clone()),
        content,
        uuid,
        limits: source.limits().into(),
        partitions: partitions.iter().map(|found| partition(graph, &device.name, found)).collect(),
        warnings: device.warnings.clone(),
    }
}

fn partition(graph: &Graph, disk: &str, partition: &Partition) -> PartitionReport {
    let volume = format!("{disk}/{}", partition.number);
    let device = graph.find(&volume).map(|id| graph.device(id));
    let (content, uuid) = device.map(content).unwrap_or_default();
    PartitionReport {
        number: partition.number,
        volume,
        start: Sector(partition.start_sector).bytes(),
        size: Sectors(partition.sectors).bytes(),
        type_id: partition.type_id.clone(),
        type_name: partition.type_name.map(str::to_owned),
        part_uuid: partition.uuid.clone(),
        name: partition.name.clone(),
        content,
        uuid,
    }
}

/// What a device holds, as blkid calls it, and that one's UUID.
fn content(device: &Device) -> (Option<String>, Option<String>) {
    match &device.content {
        Content::Unprobed | Content::Nothing | Content::Partitions(_) => (None, None),
        Content::MdMember(superblock) => {
            (Some("linux_raid_member".to_owned()), Some(superblock.uuid().to_string()))
        }
        Content::Pv(pv) => (Some("LVM2_member".to_owned()), Some(pv.label.pv.id.to_string())),
        Content::Signature(found) => (Some(found.kind.to_owned()), found.uuid.clone()),
    }
}
