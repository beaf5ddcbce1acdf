//! `blockwork md status`: arrays of running servers, or on disks that are named, as `/proc/mdstat` and `mdadm --detail` have
//! them.

use anyhow::{Result, bail};
use blockwork_daemon::{ArrayList, ArrayStatus, Servers, arrays_at, servers};
use blockwork_format::escape;
use blockwork_volume::{Assembly, Plan};

use super::progress::bar;
use super::verb_args::StatusArgs;
use crate::out;
use crate::serve::arrays_of;

pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    let (mut arrays, mut servers) = match args.disk.is_empty() {
        true => served()?,
        false => (on_disks(&args.disk)?, Servers::default()),
    };
    if let Some(name) = &args.array {
        let there: Vec<String> = arrays.iter().map(|array| escape(&array.name)).collect();
        arrays.retain(|array| array.is_called(name));
        if arrays.is_empty() {
            servers.complete()?;
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            let elsewhere =
                if args.disk.is_empty() { "; add --disk DISK... for one that no server has" } else { "" };
            bail!("no array is called {}; there are: {there}{elsewhere}", escape(name));
        }
        servers.warn();
        servers.silent.clear();
    }
    if arrays.is_empty() && servers.silent.is_empty() {
        let (whose, elsewhere) = match args.disk.is_empty() {
            true => ("of a running server (of this user)", "; add --disk DISK... for what no server has"),
            false => ("on these disks", ""),
        };
        log::warn!("there is no array {whose}{elsewhere}");
    }
    if args.json {
        out::print_json(&ArrayList { arrays })?;
    } else {
        out::print(&arrays.iter().map(text).collect::<String>())?;
    }
    Ok(servers.complete()?)
}

fn served() -> Result<(Vec<ArrayStatus>, Servers)> {
    let mut servers = servers()?;
    let arrays = servers.ask(|server| arrays_at(&server.socket));
    Ok((arrays.into_iter().flat_map(|(_, arrays)| arrays).collect(), servers))
}

/// Without a lock, and without writing anything: somebody may be using them.
fn on_disks(disks: &[String]) -> Result<Vec<ArrayStatus>> {
    let plan = Plan { disks: disks.to_vec(), read_only: true, unlocked: true, ..Plan::default() };
    let assembly = Assembly::open(plan)?;
    let graph = assembly.graph();
    for array in &graph.arrays {
        if let Some(why) = graph.device(array.device).refusal() {
            log::warn!("{}: it cannot be assembled: {why}", escape(&array.name));
        }
    }
    Ok(arrays_of(&assembly))
}

fn text(array: &ArrayStatus) -> String {
    let mut lines = vec![head(array)];
    if array.sync.runs() {
        lines.push(bar(&array.sync));
    } else {
        lines.extend(doubt(array));
    }
    if array.sync.mismatch_sectors > 0 {
        lines.push(format!("mismatch_cnt {}", array.sync.mismatch_sectors));
    }
    if let Some(dirty) = array.dirty_chunks {
        lines.push(format!("bitmap: {dirty} chunks set"));
    }
    let state = if array.active { "active" } else { "clean" };
    lines.push(format!("UUID {}, events {}, {state}", array.uuid, array.events));
    lines.extend(array.read_only.iter().map(|why| format!("read-only: {}", escape(why))));
    lines.extend(array.devices.iter().map(device));
    lines.join("\n      ") + "\n"
}

/// Where its copies may not be the same, or its parities not fit.
pub(super) fn doubt(array: &ArrayStatus) -> Option<String> {
    let from = array.resync_from?;
    Some(match has_parity(array) {
        true => format!("parities may not fit the data from byte {from} of each member on"),
        false => format!("mirrors may differ from byte {from} on"),
    })
}

pub(super) fn has_parity(array: &ArrayStatus) -> bool {
    matches!(&*array.level, "raid4" | "raid5" | "raid6")
}

/// `md/data : raid10 near=2, 1046528 blocks, 512K chunks [4/3] [UU_U]`
fn head(array: &ArrayStatus) -> String {
    let layout = array.layout.as_ref().map(|layout| format!(" {layout}")).unwrap_or_default();
    let chunk = array.chunk_size.map(|bytes| format!(", {}K chunks", bytes / 1024)).unwrap_or_default();
    let places = array.devices.iter().filter(|device| device.role.is_some() && device.state != "replacement");
    let marks: String = places.map(|device| if device.state == "in_sync" { 'U' } else { '_' }).collect();
    let all = usize::try_from(array.raid_disks).unwrap_or(usize::MAX);
    let good = all.saturating_sub(array.degraded);
    let (name, level, blocks) = (escape(&array.name), &array.level, array.bytes / 1024);
    format!("{name} : {level}{layout}, {blocks} blocks{chunk} [{all}/{good}] [{marks}]")
}

fn device(device: &blockwork_daemon::DeviceStatus) -> String {
    let role = device.role.map_or_else(|| "-".to_owned(), |role| role.to_string());
    let mut line = format!("{role:>3}  {:<11}  {}", device.state, device.name.as_deref().unwrap_or("-"));
    if device.write_mostly {
        line += ", write-mostly";
    }
    if let Some(recovered) = device.recovered {
        line += &format!(", in sync below byte {recovered}");
    }
    if device.bad_ranges > 0 {
        let s = if device.bad_ranges == 1 { "" } else { "s" };
        line += &format!(", {} range{s} cannot be read", device.bad_ranges);
    }
    if device.corrected_sectors > 0 {
        line += &format!(", {} sectors mended", device.corrected_sectors);
    }
    line
}
