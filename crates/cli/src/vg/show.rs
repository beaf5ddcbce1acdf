//! `blockwork vg show`: a line for each group, as `vgs` has it.

use anyhow::{Result, bail};
use blockwork_daemon::{GroupStatus, Servers, groups_at, servers};
use blockwork_format::escape;
use blockwork_volume::{Assembly, Plan};
use serde_json::{Value, json};

use super::args::ShowArgs;
use super::status::{Fullness, Shown, of_group};
use crate::out;
use crate::scan::size;

/// Disks that are only looked at.
pub(crate) fn look(disks: &[String]) -> Result<Assembly> {
    let plan = Plan { disks: disks.to_vec(), read_only: true, unlocked: true, ..Plan::default() };
    let assembly = Assembly::open(plan)?;
    for warning in assembly.warnings() {
        log::warn!("{warning}");
    }
    Ok(assembly)
}

/// The groups that were found, or the one of that name.
pub(crate) fn groups(assembly: &Assembly, name: Option<&str>) -> Result<Vec<Shown>> {
    let graph = assembly.graph();
    let found = graph.groups.iter().filter(|group| name.is_none_or(|name| name == group.name));
    let found: Vec<Shown> = found.map(|group| Shown::of(group, graph)).collect();
    match name {
        Some(name) if found.is_empty() => bail!("there is no volume group {name:?} on these disks"),
        _ => Ok(found),
    }
}

/// The groups of running servers, as full as they are now, or the one of that name; and which servers may have others, to be told when these
/// are shown ([`Servers::complete`]).
pub(crate) fn served(name: Option<&str>) -> Result<(Vec<GroupStatus>, Servers)> {
    let (mut found, mut away) = (Vec::new(), String::new());
    let mut servers = servers()?;
    for (server, groups) in servers.ask(|server| groups_at(&server.socket)) {
        if let Some(why) = &server.status.away {
            let volumes: Vec<String> = server.status.volumes.iter().map(|it| escape(&it.name)).collect();
            let (pid, volumes, why) = (server.pid, volumes.join(", "), escape(why));
            away += &format!("; the disks of server {pid}, which has {volumes}, are not open: {why}");
            continue;
        }
        found.extend(groups);
    }
    let there: Vec<String> = found.iter().map(|group| escape(&group.name)).collect();
    found.retain(|group| name.is_none_or(|name| name == group.name));
    if found.is_empty() {
        servers.complete()?;
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        let what = name
            .map_or_else(|| "a volume group".to_owned(), |name| format!("the volume group {}", escape(name)));
        bail!(
            "no running server serves {what} (served are: {there}){away}; to read disks, add --disk DISK... (all of the group's)"
        );
    }
    if name.is_none() && !away.is_empty() {
        log::warn!("not all groups are shown{away}");
    }
    if name.is_some() {
        servers.warn();
        servers.silent.clear();
    }
    Ok((found, servers))
}

pub(super) fn run(args: &ShowArgs) -> Result<()> {
    let name = args.group.as_deref();
    let (found, servers) = if args.disk.is_empty() {
        served(name)?
    } else {
        // How full volumes are is not shown.
        let found = groups(&look(&args.disk)?, name)?;
        let found = found.iter().map(|shown| of_group(shown, |_| Fullness::default()));
        (found.collect(), Servers::default())
    };
    if args.json {
        out::print_json(&found.iter().map(json).collect::<Vec<_>>())?;
        return Ok(servers.complete()?);
    }
    let mut rows =
        vec![["VG", "#PV", "#LV", "#SN", "Attr", "VSize", "VFree", "Tags"].map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(row));
    out::print(&table(&rows))?;
    Ok(servers.complete()?)
}

fn row(group: &GroupStatus) -> Vec<String> {
    let [pvs, lvs, snapshots] = [group.disks, volumes(group), group.snapshots].map(|n| n.to_string());
    let tags = group.tags.iter().map(|tag| escape(tag)).collect::<Vec<_>>().join(",");
    let (name, attributes) = (escape(&group.name), escape(&group.attributes));
    vec![name, pvs, lvs, snapshots, attributes, size(group.bytes), size(group.free_bytes), tags]
}

/// Volumes that people see.
fn volumes(group: &GroupStatus) -> usize {
    group.volumes.iter().filter(|volume| volume.visible).count()
}

fn json(group: &GroupStatus) -> Value {
    json!({
        "group": group.name,
        "uuid": group.uuid,
        "seqno": group.seqno,
        "attributes": group.attributes,
        "extent_bytes": group.extent_bytes,
        "bytes": group.bytes,
        "free_bytes": group.free_bytes,
        "volumes": volumes(group),
        "snapshots": group.snapshots,
        "tags": group.tags,
        "missing": group.missing,
        "physical_volumes": group.physical_volumes,
    })
}

/// Rows in columns, the first row being their titles.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let begin = text.len();
        for (cell, width) in row.iter().zip(&widths) {
            let gap = " ".repeat(width - cell.chars().count() + 2);
            text.extend([cell.as_str(), &gap]);
        }
        text.truncate(begin + text[begin..].trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_however_wide_that_is() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        assert_eq!(
            table(&[row(["LV", "Tags", "On"]), row(["r\u{f6}ot", "", "a"])]),
            "LV    Tags  On\nr\u{f6}ot        a\n"
        );
        // No width of a format can be said to be more than 65535.
        let wide = "t".repeat(70_000);
        let text = table(&[row(["LV", "Tags", "On"]), row(["a", &wide, "b"]), row(["c", "", ""])]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0].len(), lines[1].len(), lines[2]), (70_008, 70_007, "c"));
    }
}
