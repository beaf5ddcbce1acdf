//! `blockwork scan`: what disks hold, as a tree or as JSON.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use blockwork_format::escape;
use blockwork_volume::{Assembly, DiskReport, LimitsReport, PartitionReport, Plan, ScanReport, scan};

use crate::args::ScanArgs;

pub(crate) fn run(args: &ScanArgs) -> Result<()> {
    let plan = Plan {
        disks: args.disks.clone(),
        tables: args.table.clone(),
        read_only: true,
        unlocked: true,
        nested: true,
        ..Plan::default()
    };
    let assembly = Assembly::open(plan)?;
    let report = scan(&assembly);
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(());
    }
    let branches = if out.is_terminal() { ["├─", "└─"] } else { ["|-", "`-"] };
    write!(out, "{}", tree(&report, branches, args.limits))?;
    out.flush()?;
    Ok(())
}

/// The report as a table whose first column is a tree; warnings below.
pub(crate) fn tree(report: &ScanReport, branches: [&str; 2], limits: bool) -> String {
    let mut rows = vec![["NAME", "SIZE", "TYPE", "CONTENT", "LABEL", "UUID", "VOLUME"].map(str::to_owned)];
    for disk in &report.disks {
        rows.push(disk_row(disk));
        for (i, partition) in disk.partitions.iter().enumerate() {
            let branch = branches[usize::from(i + 1 == disk.partitions.len())];
            rows.push(partition_row(partition, branch));
        }
    }
    for table in &report.tables {
        let name = escape(&table.volume);
        rows.push([
            name.clone(),
            size(table.size),
            "dm".into(),
            String::new(),
            String::new(),
            String::new(),
            name,
        ]);
    }
    let mut text = columns(&rows);
    if limits {
        for disk in &report.disks {
            text.push_str(&format!("\n{}\n{}", escape(&disk.disk), limits_text(&disk.limits)));
        }
    }
    for disk in &report.disks {
        for warning in &disk.warnings {
            // Warnings are made to be printed: what came from the disk is escaped in them already.
            text.push_str(&format!("warning: {}: {warning}\n", escape(&disk.disk)));
        }
    }
    text
}

fn disk_row(disk: &DiskReport) -> [String; 7] {
    let content = disk.partition_table.as_ref().or(disk.content.as_ref());
    let uuid =
        disk.partition_table_id.as_ref().filter(|_| disk.partition_table.is_some()).or(disk.uuid.as_ref());
    [
        escape(&disk.disk),
        size(disk.size),
        "disk".into(),
        content.cloned().unwrap_or_default(),
        String::new(),
        uuid.cloned().unwrap_or_default(),
        escape(&disk.volume),
    ]
}

fn partition_row(partition: &PartitionReport, branch: &str) -> [String; 7] {
    [
        format!("{branch}{}", partition.number),
        size(partition.size),
        "part".into(),
        partition
            .content
            .clone()
            .or_else(|| partition.type_name.clone())
            .unwrap_or_else(|| partition.type_id.clone()),
        partition.name.as_deref().map(escape).unwrap_or_default(),
        partition.uuid.clone().or_else(|| partition.part_uuid.clone()).unwrap_or_default(),
        escape(&partition.volume),
    ]
}

fn columns(rows: &[[String; 7]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            // A column that is empty throughout but for its title is left out.
            if rows[1..].iter().all(|row| row[i].is_empty()) {
                continue;
            }
            let pad = " ".repeat(widths[i] - cell.chars().count());
            // Sizes are numbers: to the right.
            line += &if i == 1 { format!("{pad}{cell}  ") } else { format!("{cell}{pad}  ") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn limits_text(limits: &LimitsReport) -> String {
    let value = serde_json::to_value(limits).expect("limits are plain data");
    let fields = value.as_object().into_iter().flatten();
    fields
        .map(|(key, value)| {
            format!("  {key:24} {}\n", value.as_str().map_or(value.to_string(), str::to_owned))
        })
        .collect()
}

/// A size as `lsblk` shows it: up to one decimal, units of 1024.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.1}");
    format!("{}{}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_in_lsblk() {
        let sizes = [0, 512, 1536, 4 << 30, 3_800 << 30, u64::MAX];
        assert_eq!(sizes.map(size), ["0B", "512B", "1.5K", "4G", "3.7T", "16E"]);
    }
}
