//! `blockwork status`: which ways running servers have chosen for their disks, and by which figures; whose disks are not open, and why; and which guests'
//! memory is pinned, and how much of it is locked.

use anyhow::Result;
use blockwork_daemon::{Status, get_json, servers};
use blockwork_format::escape;
use blockwork_insight::report::{ChoiceReport, DecisionReport, Report};
use serde_json::json;

use crate::args::StatusArgs;
use crate::out;

/// A disk of a server.
struct Disk {
    pid: u32,
    /// The server is in its sandbox.
    sandbox: bool,
    name: String,
    decisions: Vec<DecisionReport>,
    choices: Vec<ChoiceReport>,
}

/// A volume whose disks its server has not open.
struct Away {
    pid: u32,
    sandbox: bool,
    name: String,
    why: String,
}

/// A volume with a guest whose memory is pinned.
struct Pinned {
    pid: u32,
    sandbox: bool,
    name: String,
    address: String,
    locked: u64,
}

pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    let (mut disks, mut away, mut pinned) = (Vec::new(), Vec::new(), Vec::new());
    let mut servers = servers()?;
    for server in &servers.answering {
        away.extend(away_of(&server.status));
        pinned.extend(pinned_of(&server.status));
    }
    for (server, report) in servers.ask(|server| get_json::<Report>(&server.socket, "/v1/stats")) {
        disks.extend(disks_of(&server.status, report));
    }
    if disks.is_empty() && away.is_empty() && pinned.is_empty() && servers.silent.is_empty() {
        log::warn!(
            "{}",
            match servers.answering.is_empty() {
                true => "no server is running (of this user) that has a disk",
                false => "of the disks of running servers nothing can be chosen",
            }
        );
    }
    if args.json {
        let disk = |it: &Disk| json!({ "pid": it.pid, "name": it.name, "sandbox": it.sandbox, "decisions": it.decisions, "choices": it.choices });
        let away_one =
            |it: &Away| json!({ "pid": it.pid, "volume": it.name, "sandbox": it.sandbox, "why": it.why });
        let pinned_one = |it: &Pinned| json!({ "pid": it.pid, "volume": it.name, "sandbox": it.sandbox, "address": it.address, "locked_bytes": it.locked });
        out::print_json(&json!({
            "disks": disks.iter().map(disk).collect::<Vec<_>>(),
            "away": away.iter().map(away_one).collect::<Vec<_>>(),
            "pinned": pinned.iter().map(pinned_one).collect::<Vec<_>>(),
        }))?;
    } else {
        let (away, pinned) = (away.iter().map(away_text), pinned.iter().map(pinned_text));
        out::print(&disks.iter().map(text).chain(away).chain(pinned).collect::<String>())?;
    }
    Ok(servers.complete()?)
}

fn pinned_of(server: &Status) -> impl Iterator<Item = Pinned> {
    let (pid, sandbox) = (server.pid, server.sandbox);
    server.volumes.iter().flat_map(move |volume| {
        volume.pinned.iter().map(move |(address, locked)| {
            let (name, address, locked) = (volume.name.clone(), address.clone(), *locked);
            Pinned { pid, sandbox, name, address, locked }
        })
    })
}

fn away_of(server: &Status) -> impl Iterator<Item = Away> {
    let (pid, sandbox) = (server.pid, server.sandbox);
    let volume = move |why: &String| {
        let volumes = server.volumes.iter();
        let why = why.clone();
        volumes.map(move |it| Away { pid, sandbox, name: it.name.clone(), why: why.clone() })
    };
    server.away.iter().flat_map(volume)
}

/// Disks with something to choose.
fn disks_of(server: &Status, report: Report) -> impl Iterator<Item = Disk> {
    let Report { nodes, decisions, choices, .. } = report;
    let (pid, sandbox) = (server.pid, server.sandbox);
    nodes.into_iter().filter_map(move |node| {
        let decisions: Vec<_> = decisions.iter().filter(|it| it.node == node.node).cloned().collect();
        let choices: Vec<_> = choices.iter().filter(|it| it.node == node.node).cloned().collect();
        let has_any = !(decisions.is_empty() && choices.is_empty());
        has_any.then_some(Disk { pid, sandbox, name: node.name, decisions, choices })
    })
}

/// ```text
/// disk/a.img (server 4711)
///   io         io_uring  chosen  the kernel has io_uring
///   linearize  auto      chosen  measured on clients' requests, class by class
///     writes of 32 KiB in 4 KiB off pages: linear, by 88.3 MB/s linear and 17.1 MB/s vectored, 8 pairs; 25 linear, 4071 vectored
/// ```
fn text(disk: &Disk) -> String {
    let mut text = head(&disk.name, disk.pid, disk.sandbox);
    for it in &disk.decisions {
        text += &format!("  {:<9}  {:<8}  {:<6}  {}\n", it.setting, it.value, it.by(), escape(&it.why));
        text.extend(disk.choices.iter().filter(|class| class.setting == it.setting).map(class));
    }
    text
}

fn head(name: &str, pid: u32, sandbox: bool) -> String {
    let sandbox = if sandbox { ", in its sandbox" } else { "" };
    format!("{} (server {pid}{sandbox})\n", escape(name))
}

/// ```text
/// vg0/root (server 4711)
///   its disks are not open: no guest uses them
/// ```
fn away_text(it: &Away) -> String {
    format!("{}  its disks are not open: {}\n", head(&it.name, it.pid, it.sandbox), escape(&it.why))
}

/// ```text
/// vg0/root (server 4711)
///   vhost-user:/run/root.sock: the guest's memory is pinned, 4096 MiB are locked
/// ```
fn pinned_text(it: &Pinned) -> String {
    let (head, address, mib) = (head(&it.name, it.pid, it.sandbox), escape(&it.address), it.locked >> 20);
    format!("{head}  {address}: the guest's memory is pinned, {mib} MiB are locked\n")
}

fn class(it: &ChoiceReport) -> String {
    let rate = |(way, cost): (&String, &Option<f64>)| match cost {
        Some(cost) if *cost > 0.0 => format!("{:.1} MB/s {way}", 1e3 / cost),
        _ => format!("{way} not known yet"),
    };
    let rates: Vec<String> = it.ns_per_byte.iter().map(rate).collect();
    let requests: Vec<String> = it.requests.iter().map(|(way, n)| format!("{n} {way}")).collect();
    let (class, decision, pairs) = (escape(&it.class), escape(&it.decision), it.pairs);
    let changes = match it.changes {
        0 => String::new(),
        n => format!(", changed {n} times"),
    };
    format!(
        "    {class}: {decision}{changes}, by {}, {pairs} pairs; {}\n",
        escape(&rates.join(" and ")),
        escape(&requests.join(", "))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_decided_stands_under_its_setting_with_its_figures() {
        let decision = |setting: &str, value: &str, asked, why: &str| DecisionReport {
            node: 0,
            setting: setting.into(),
            value: value.into(),
            asked,
            why: why.into(),
        };
        let costs = [("linear", Some(11.3)), ("vectored", None)];
        let class = ChoiceReport {
            node: 0,
            setting: "linearize".into(),
            class: "writes of 32 KiB in 4 KiB off pages".into(),
            decision: "linear".into(),
            ns_per_byte: costs.map(|(way, cost)| (way.to_owned(), cost)).into(),
            pairs: 8,
            decisions: 2,
            changes: 1,
            alarms: 0,
            requests: [("linear", 4071), ("vectored", 25)].map(|(way, n)| (way.to_owned(), n)).into(),
        };
        let disk = Disk {
            pid: 7,
            sandbox: false,
            name: "a\u{1b}.img".into(),
            decisions: vec![
                decision("io", "threads", false, "io_uring_setup: EPERM"),
                decision("linearize", "auto", false, "measured"),
                decision("fua", "flush", true, "fua=flush"),
            ],
            choices: vec![class],
        };
        let text = text(&disk);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("(server 7)") && !text.contains('\u{1b}'), "{text}");
        assert_eq!(lines[1], "  io         threads   chosen  io_uring_setup: EPERM");
        let class = "    writes of 32 KiB in 4 KiB off pages: linear, changed 1 times, by 88.5 MB/s linear and vectored not \
                     known yet, 8 pairs; 4071 linear, 25 vectored";
        assert_eq!(lines[3], class);
        assert_eq!(lines[4], "  fua        flush     asked   fua=flush");
    }
}
