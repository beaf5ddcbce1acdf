//! What `blockwork scan` reports: the disks and what is on them, as a tree of plain data.
//!
//! The JSON form of these structures is stable: fields are added, never renamed. Sizes are bytes.

use blockwork_engine::{LeafSource, Limits, Sector, Sectors};
use serde::Serialize;

use crate::assembly::{Assembly, Disk, RangeView, SourceView};
use crate::signature::signature;

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
    let tables =
        assembly.volumes.iter().map(|named| &named.volume).filter(|volume| volume.name.starts_with("dm/"));
    ScanReport {
        disks: assembly.disks.iter().map(disk).collect(),
        tables: tables
            .map(|volume| TableReport {
                volume: volume.name.clone(),
                size: volume.sectors().bytes(),
                limits: volume.limits().into(),
            })
            .collect(),
    }
}

fn disk(disk: &Disk) -> DiskReport {
    let source = &*disk.source;
    let table = disk.partitions.as_ref().ok().and_then(Option::as_ref);
    let content = signature(&SourceView(source));
    let mut warnings = disk.warnings.clone();
    match &disk.partitions {
        Ok(Some(table)) => warnings.extend(table.warnings.iter().cloned()),
        Ok(None) => {}
        Err(error) => warnings.push(error.to_string()),
    }
    let size = source.sectors();
    let partitions = table.map_or(&[][..], |table| &table.partitions);
    DiskReport {
        disk: disk.spec.clone(),
        volume: disk.volume.clone(),
        size: size.bytes(),
        partition_table: table.map(|table| table.kind.to_string()),
        partition_table_id: table.map(|table| table.disk_id.clone()),
        content: content.as_ref().map(|found| found.kind.to_owned()),
        uuid: content.and_then(|found| found.uuid),
        limits: source.limits().into(),
        partitions: partitions.iter().map(|p| partition(source, &disk.volume, p)).collect(),
        warnings,
    }
}

fn partition(
    source: &dyn LeafSource,
    disk: &str,
    p: &blockwork_format::partition::Partition,
) -> PartitionReport {
    let range = RangeView { source, start: Sector(p.start_sector), sectors: Sectors(p.sectors) };
    let content = signature(&range);
    PartitionReport {
        number: p.number,
        volume: format!("{disk}/{}", p.number),
        start: range.start.bytes(),
        size: range.sectors.bytes(),
        type_id: p.type_id.clone(),
        type_name: p.type_name.map(str::to_owned),
        part_uuid: p.uuid.clone(),
        name: p.name.clone(),
        content: content.as_ref().map(|found| found.kind.to_owned()),
        uuid: content.and_then(|found| found.uuid),
    }
}
