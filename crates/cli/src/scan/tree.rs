//! The report as a tree for people: a line for each device.
//!
//! What other things stand upon is told once: disks with their partitions; arrays; volume groups with their volumes, each
//! volume's parts, snapshots and thin volumes below it. A disk's line names the array or the group that it belongs to. So
//! the tree stays as long as the list of devices, where `lsblk` repeats an array under each of its members.
//!
//! Below it stands why something is not served or only read, once for each reason; and then the warnings.

use std::collections::HashMap;

use blockwork_format::escape;
use blockwork_volume::{
    ArrayReport, DeviceReport, DiskReport, GroupReport, LvReport, PartitionReport, ScanReport,
};

use super::columns;
use super::words::{self, size};

/// How deep volumes are put under each other; what would lie deeper stands by itself.
const DEPTH_MAX: usize = 16;

/// Names that are listed with a reason.
const NAMED_MAX: usize = 6;

/// How a tree is drawn.
#[derive(Clone, Copy)]
pub(super) struct Branches {
    next: &'static str,
    last: &'static str,
    /// Under a row that has more beside it.
    through: &'static str,
}

impl Branches {
    /// For terminals.
    pub(super) const DRAWN: Branches = Branches { next: "├─", last: "└─", through: "│ " };
    /// For everything else.
    pub(super) const ASCII: Branches = Branches { next: "|-", last: "`-", through: "| " };
}

/// What is shown, and how.
pub(super) struct Style {
    pub(super) branches: Branches,
    pub(super) uuids: bool,
    pub(super) limits: bool,
}

/// A line to be.
struct Row {
    name: String,
    size: Option<u64>,
    kind: String,
    uuid: Option<String>,
    text: String,
    below: Vec<Row>,
}

/// The whole text.
pub(super) fn text(report: &ScanReport, style: &Style) -> String {
    let sections = [
        report.disks.iter().map(disk).collect(),
        report.arrays.iter().map(array).collect(),
        report.groups.iter().map(group).collect(),
        report.tables.iter().map(|table| row(&table.device, "dm", None, String::new())).collect(),
    ];
    let mut lines = vec![["NAME", "SIZE", "TYPE", "UUID", "CONTENT"].map(str::to_owned)];
    for rows in sections {
        let rows: Vec<Row> = rows;
        if !rows.is_empty() && lines.len() > 1 {
            lines.push(Default::default());
        }
        let mut drawing = Drawing { style, lines: &mut lines };
        rows.iter().for_each(|row| drawing.draw(row, "", ""));
    }
    let mut text = columns::lines(&lines, &[1]);
    if style.limits {
        text.push('\n');
        text.push_str(&super::limits::table(report));
    }
    let notes = notes(report) + &warnings(report);
    if !notes.is_empty() {
        text.push('\n');
        text.push_str(&notes);
    }
    text
}

/// Rows become lines.
struct Drawing<'a> {
    style: &'a Style,
    lines: &'a mut Vec<[String; 5]>,
}

impl Drawing<'_> {
    fn draw(&mut self, row: &Row, own: &str, below: &str) {
        self.lines.push([
            format!("{own}{}", row.name),
            row.size.map_or(String::new(), size),
            row.kind.clone(),
            row.uuid.clone().filter(|_| self.style.uuids).unwrap_or_default(),
            row.text.clone(),
        ]);
        let Branches { next, last, through } = self.style.branches;
        for (nth, child) in row.below.iter().enumerate() {
            let (own, under) = if nth + 1 < row.below.len() { (next, through) } else { (last, "  ") };
            self.draw(child, &format!("{below}{own}"), &format!("{below}{under}"));
        }
    }
}

fn row(device: &DeviceReport, kind: &str, own_uuid: Option<&String>, text: String) -> Row {
    let uuid = device.uuid.as_ref().or(device.partition_table_id.as_ref()).or(own_uuid);
    Row {
        name: escape(&device.volume),
        size: Some(device.size),
        kind: kind.to_owned(),
        uuid: uuid.map(|uuid| escape(uuid)),
        text,
        below: device.partitions.iter().map(partition).collect(),
    }
}

fn disk(disk: &DiskReport) -> Row {
    row(&disk.device, "disk", None, words::disk(&disk.device, &disk.disk))
}

fn partition(partition: &PartitionReport) -> Row {
    row(&partition.device, "part", partition.part_uuid.as_ref(), words::partition(partition))
}

fn array(array: &ArrayReport) -> Row {
    let mut row = row(&array.device, &array.level, Some(&array.array_uuid), words::array(array));
    let missing = array.members.iter().filter(|member| member.volume.is_none());
    let missing = missing.filter_map(|member| member.place).map(|place| Row {
        name: format!("[member {place}]"),
        size: None,
        kind: String::new(),
        uuid: None,
        text: "missing".to_owned(),
        below: Vec::new(),
    });
    row.below.splice(0..0, missing);
    row
}

fn group(group: &GroupReport) -> Row {
    let missing = group.pvs.iter().filter(|pv| pv.volume.is_none()).map(|pv| Row {
        name: format!("[{}]", escape(&pv.name)),
        size: Some(pv.size),
        kind: "pv".to_owned(),
        uuid: Some(pv.pv_uuid.clone()),
        text: words::missing_pv(pv),
        below: Vec::new(),
    });
    let mut below: Vec<Row> = missing.collect();
    below.extend(Volumes::new(group).rows());
    Row {
        name: escape(&group.group),
        size: Some(group.size),
        kind: "vg".to_owned(),
        uuid: Some(group.vg_uuid.clone()),
        text: words::group(group),
        below,
    }
}

/// The volumes of a group, each below the one that it belongs to.
struct Volumes<'a> {
    lvs: &'a [LvReport],
    roots: Vec<usize>,
    /// Of each volume, those below it.
    below: Vec<Vec<usize>>,
}

impl<'a> Volumes<'a> {
    fn new(group: &'a GroupReport) -> Volumes<'a> {
        let lvs = &group.lvs[..];
        let by_name: HashMap<&str, usize> =
            lvs.iter().enumerate().map(|(nth, lv)| (&*lv.name, nth)).collect();
        let above = |lv: &LvReport| {
            let is_store = lv.role.contains(&"thicksnapshot");
            let origin = lv.origin.as_ref().filter(|_| is_store);
            let pool = lv.pool.as_ref().filter(|_| lv.layout.contains(&"thin"));
            let name = lv.parent.as_ref().or(origin).or(pool)?;
            by_name.get(&**name).copied()
        };
        let above: Vec<Option<usize>> = lvs.iter().map(above).collect();
        let mut volumes = Volumes { lvs, roots: Vec::new(), below: vec![Vec::new(); lvs.len()] };
        for nth in 0..lvs.len() {
            match grounded(&above, nth) {
                Some(above) => volumes.below[above].push(nth),
                None => volumes.roots.push(nth),
            }
        }
        // As `lvs` sorts them; parts of the volume itself come last.
        let key = |nth: &usize| (!lvs[*nth].visible, &*lvs[*nth].name);
        volumes.roots.sort_by(|one, other| key(one).cmp(&key(other)));
        volumes.below.iter_mut().for_each(|below| below.sort_by(|one, other| key(one).cmp(&key(other))));
        volumes
    }

    fn rows(&self) -> Vec<Row> {
        self.roots.iter().map(|root| self.row(*root)).collect()
    }

    fn row(&self, nth: usize) -> Row {
        let lv = &self.lvs[nth];
        let mut row = row(&lv.device, &words::lv_type(lv), Some(&lv.lv_uuid), words::lv(lv));
        if !lv.visible {
            row.name = format!("[{}]", escape(&lv.name));
        }
        row.below.extend(self.below[nth].iter().map(|below| self.row(*below)));
        row
    }
}

/// Under which volume another one stands: the one above it, unless that lies too deep, or the way up is a circle.
fn grounded(above: &[Option<usize>], nth: usize) -> Option<usize> {
    let direct = above[nth]?;
    let mut at = direct;
    for _ in 0..DEPTH_MAX {
        match above[at] {
            None => return Some(direct),
            Some(next) => at = next,
        }
    }
    None
}

/// Why devices are not served, or only for reading: each reason with whom it is about.
fn notes(report: &ScanReport) -> String {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for device in devices(report) {
        let refusal = device.refusal.as_ref().map(|why| format!("not served: {why}"));
        let read_only = device.read_only.as_ref().map(|why| format!("read-only: {why}"));
        let Some(reason) = refusal.or(read_only) else { continue };
        let nth = *known.entry(reason.clone()).or_insert(reasons.len());
        if nth == reasons.len() {
            reasons.push((reason, Vec::new()));
        }
        reasons[nth].1.push(&device.volume);
    }
    let mut text = String::new();
    for (reason, names) in reasons {
        let named: Vec<String> = names.iter().take(NAMED_MAX).map(|name| escape(name)).collect();
        let more = names.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        text += &format!("{}{more}: {reason}\n", named.join(", "));
    }
    text
}

/// All devices, in the order of the tree.
fn devices(report: &ScanReport) -> Vec<&DeviceReport> {
    let tops = (report.disks.iter().map(|disk| &disk.device))
        .chain(report.arrays.iter().map(|array| &array.device))
        .chain(report.groups.iter().flat_map(|group| &group.lvs).map(|lv| &lv.device))
        .chain(report.tables.iter().map(|table| &table.device));
    tops.flat_map(|top| std::iter::once(top).chain(top.partitions.iter().map(|part| &part.device))).collect()
}

/// Warnings are made to be printed: what came from a disk is escaped in them already.
fn warnings(report: &ScanReport) -> String {
    let mut text = String::new();
    let mut tell = |title: &str, warnings: &[String]| {
        warnings.iter().for_each(|warning| text += &format!("warning: {}: {warning}\n", escape(title)));
    };
    // A disk is called as it was given.
    let given: HashMap<&str, &str> =
        report.disks.iter().map(|disk| (&*disk.device.volume, &*disk.disk)).collect();
    for device in devices(report) {
        tell(given.get(&*device.volume).unwrap_or(&&*device.volume), &device.warnings);
    }
    for group in &report.groups {
        tell(&group.group, &group.warnings);
    }
    text
}
