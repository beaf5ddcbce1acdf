//! Queue limits as a table, a line for each device, in the words of `lsblk --topology --discard`.

use blockwork_format::escape;
use blockwork_volume::{DeviceReport, ScanReport};

use super::columns::lines;
use super::words::size;

const TITLES: [&str; 18] = [
    "NAME",
    "LOG-SEC",
    "PHY-SEC",
    "MIN-IO",
    "OPT-IO",
    "MAX-KB",
    "SEGS",
    "DISC-GRAN",
    "DISC-MAX",
    "ZERO-MAX",
    "DMA",
    "CACHE",
    "FUA",
    "ROTA",
    "NR",
    "RA-KB",
    "LINEAR",
    "FIXED",
];

/// The table of all devices that have limits.
pub(super) fn table(report: &ScanReport) -> String {
    let mut rows = vec![TITLES.map(str::to_owned)];
    let mut take = |device: &DeviceReport| {
        rows.extend(row(device));
        rows.extend(device.partitions.iter().filter_map(|partition| row(&partition.device)));
    };
    report.disks.iter().for_each(|disk| take(&disk.device));
    report.arrays.iter().for_each(|array| take(&array.device));
    report.groups.iter().flat_map(|group| &group.lvs).for_each(|lv| take(&lv.device));
    report.tables.iter().for_each(|table| take(&table.device));
    let numbers: Vec<usize> = (1..TITLES.len()).collect();
    lines(&rows, &numbers)
}

fn row(device: &DeviceReport) -> Option<[String; 18]> {
    let limits = device.limits.as_ref()?;
    let flag = |flag: bool| u8::from(flag).to_string();
    Some([
        escape(&device.volume),
        limits.logical_block_size.to_string(),
        limits.physical_block_size.to_string(),
        limits.minimum_io_size.to_string(),
        limits.optimal_io_size.to_string(),
        // Of layers without a limit of their own, such as those upon nothing at all.
        Some(limits.max_sectors_kb).filter(|kb| *kb < 1 << 50).map_or("-".to_owned(), |kb| kb.to_string()),
        limits.max_segments.to_string(),
        limits.discard_granularity.to_string(),
        size(limits.discard_max_bytes),
        size(limits.write_zeroes_max_bytes),
        limits.dma_alignment.to_string(),
        if limits.write_cache == "write back" { "back" } else { "through" }.to_owned(),
        limits.fua.to_owned(),
        flag(limits.rotational),
        limits.nr_requests.to_string(),
        limits.read_ahead_kb.to_string(),
        limits.linearize.to_owned(),
        limits.fixed.to_owned(),
    ])
}
