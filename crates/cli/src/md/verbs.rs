//! The verbs that change an array or look after it. Each is asked for, and then waited for: always, where this process does
//! it; by `--wait`, where a server does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow, bail};
use blockwork_daemon::{ArrayAnswer, ArrayStatus, DeviceStatus, Verb};
use signal_hook::flag;

use super::progress::Progress;
use super::status::{doubt, has_parity};
use super::target::Target;
use super::verb_args::{
    AddArgs, DevicesArgs, GrowArgs, RemoveArgs, ReplaceArgs, ServedArgs, SpeedArgs, SyncArgs, Which,
};
use crate::out;
use crate::signals;
use crate::sizes::{KIB, bytes};
use crate::usage::bail_usage;

/// How long one look at what is being synced takes.
const STEP_MILLIS: u32 = 500;

pub(crate) fn add(args: &AddArgs) -> Result<()> {
    let force = args.force;
    // A server may have another working directory.
    let is_ours = !args.which.place.disk.is_empty();
    let named = |device: &String| if is_ours { device.clone() } else { absolute(device) };
    let verbs = args.devices.iter().map(|device| Verb::Add { device: named(device), force });
    Work { which: &args.which, takes_up: true, wait: args.wait }.run(verbs)
}

pub(crate) fn fail(args: &DevicesArgs) -> Result<()> {
    let verbs = args.devices.iter().map(|device| Verb::Fail { device: device.clone() });
    Work::brief(&args.which).run(verbs)
}

pub(crate) fn remove(args: &RemoveArgs) -> Result<()> {
    let verbs = args.devices.iter().map(|device| Verb::Remove { device: device.clone() });
    Work::brief(&args.which).run(verbs)
}

pub(crate) fn replace(args: &ReplaceArgs) -> Result<()> {
    let verb = Verb::Replace { device: args.device.clone(), with: args.with.clone() };
    Work { which: &args.which, takes_up: true, wait: args.wait }.run([verb])
}

pub(crate) fn check(args: &SyncArgs) -> Result<()> {
    Work { which: &args.which, takes_up: false, wait: args.wait }.run([Verb::Check])
}

pub(crate) fn repair(args: &SyncArgs) -> Result<()> {
    Work { which: &args.which, takes_up: false, wait: args.wait }.run([Verb::Repair])
}

pub(crate) fn grow(args: &GrowArgs) -> Result<()> {
    let size = args.size.as_deref().filter(|text| *text != "max");
    let size_kib = size.map(kib).transpose()?;
    let verb = Verb::Grow { size_kib, assume_clean: args.assume_clean };
    Work { which: &args.which, takes_up: true, wait: args.wait }.run([verb])
}

/// A size in KiB, which is what the control API has.
fn kib(text: &str) -> Result<u64> {
    let bytes = bytes("--size", text, KIB)?;
    if bytes == 0 || !bytes.is_multiple_of(KIB) {
        bail_usage!("--size {text}: expected whole KiB, or max");
    }
    Ok(bytes / KIB)
}

pub(crate) fn wait(which: &Which) -> Result<()> {
    Work { which, takes_up: true, wait: true }.run([])
}

pub(crate) fn stop_sync(args: &ServedArgs) -> Result<()> {
    Work::brief(&args.into()).run([Verb::Idle])
}

pub(crate) fn start_sync(args: &ServedArgs) -> Result<()> {
    Work::brief(&args.into()).run([Verb::Sync])
}

pub(crate) fn sync_speed(args: &SpeedArgs) -> Result<()> {
    Work::brief(&(&args.served).into()).run([Verb::SyncSpeed { min_kib: args.min, max_kib: args.max }])
}

/// What is asked for, and how it is gone about.
struct Work<'a> {
    which: &'a Which,
    /// What is due is taken up as well.
    takes_up: bool,
    /// A server's array is waited for.
    wait: bool,
}

impl<'a> Work<'a> {
    /// What is done when it is said to be done.
    fn brief(which: &'a Which) -> Work<'a> {
        Work { which, takes_up: false, wait: false }
    }

    fn run(&self, verbs: impl IntoIterator<Item = Verb>) -> Result<()> {
        // An array of ours must be left in order: a signal is looked at, and no end.
        let is_stopped = Arc::new(AtomicBool::new(false));
        if !self.which.place.disk.is_empty() {
            for signal in signals::ending() {
                flag::register(signal, is_stopped.clone())?;
            }
        }
        let target = Target::find(self.which)?;
        let done = self.done(&target, verbs, &is_stopped);
        // An array of ours is put to rest however it went.
        let left = target.leave();
        let answers = done?;
        left?;
        self.print(&answers)
    }

    /// Asks for everything, and waits as far as that is wanted.
    fn done(
        &self,
        target: &Target,
        verbs: impl IntoIterator<Item = Verb>,
        is_stopped: &AtomicBool,
    ) -> Result<Vec<ArrayAnswer>> {
        let mut answers = Vec::new();
        let mut is_brief = !self.takes_up;
        let mut asked = None;
        for verb in verbs {
            is_brief &= asked_sync(&verb).is_none();
            asked = asked.or(asked_sync(&verb));
            answers.push(target.ask(verb).map_err(|error| after(&answers, error))?);
        }
        if self.takes_up {
            target.take_up();
        }
        if self.wait || (target.is_ours() && !is_brief) {
            let (rest, is_done) = self.at_rest(target, is_stopped, &answers, asked)?;
            answers.iter().try_for_each(|answer| still_there(answer, &rest.array))?;
            if let Some(answer) = answers.last() {
                none_has_failed(answer, &rest.array)?;
            }
            if !is_done {
                return Err(after(&answers, anyhow!("{}", rest.said)));
            }
            answers.push(rest);
        }
        Ok(answers)
    }

    /// Waits until nothing is being synced and nothing is due, and shows how far it is. Whether what is waited for is done then.
    fn at_rest(
        &self,
        target: &Target,
        is_stopped: &AtomicBool,
        answers: &[ArrayAnswer],
        asked: Option<&str>,
    ) -> Result<(ArrayAnswer, bool)> {
        if let Some(answer) = answers.last() {
            log::info!("{}", answer.said);
        }
        let mut progress = Progress::default();
        loop {
            let mut answer = target.ask(Verb::Wait { millis: STEP_MILLIS })?;
            progress.show(&answer.array.sync);
            if answer.at_rest == Some(true) {
                // What was asked for may have begun and ended between two looks.
                let action = asked.or(progress.last_action());
                answer.said = outcome(&answer.array, action);
                let is_done = !is_left_undone(&answer.array, action);
                return Ok((answer, is_done));
            }
            if is_stopped.load(Ordering::Relaxed) {
                return Err(self.interrupted(&answer.array, answers));
            }
        }
    }

    /// What was begun is on record, and can go on.
    fn interrupted(&self, array: &ArrayStatus, answers: &[ArrayAnswer]) -> anyhow::Error {
        let sync = &array.sync;
        // What was added is one of its disks now.
        let mut disks = self.which.place.disk.clone();
        for device in answers.iter().flat_map(|answer| &answer.devices) {
            if !disks.contains(device) {
                disks.push(device.clone());
            }
        }
        let (name, disks) = (&array.name, disks.join(" "));
        let action = &sync.action;
        if matches!(action.as_str(), "check" | "repair") {
            return anyhow!("{name}: {action} was stopped at {:.1}%", sync.share() * 100.0);
        }
        anyhow!(
            "{name}: {action} was stopped at {:.1}%, which is on record; go on with: blockwork md wait {name} --disk {disks}",
            sync.share() * 100.0
        )
    }

    fn print(&self, answers: &[ArrayAnswer]) -> Result<()> {
        let Some(last) = answers.last() else { return Ok(()) };
        if self.which.place.json {
            let said: Vec<&str> = answers.iter().map(|answer| answer.said.as_str()).collect();
            let devices: Vec<&String> = answers.iter().flat_map(|answer| &answer.devices).collect();
            let json =
                serde_json::json!({ "said": said.join("; "), "devices": devices, "array": last.array });
            out::print_json_done(&json)
        } else {
            let lines: String = answers.iter().map(|answer| format!("{}\n", answer.said)).collect();
            out::print_done(&lines)
        }
    }
}

/// The check or repair that a verb asks for.
fn asked_sync(verb: &Verb) -> Option<&'static str> {
    match verb {
        Verb::Check => Some("check"),
        Verb::Repair => Some("repair"),
        _ => None,
    }
}

/// An error, behind what was done before it.
fn after(done: &[ArrayAnswer], error: anyhow::Error) -> anyhow::Error {
    match done {
        [] => error,
        done => {
            let said: Vec<&str> = done.iter().map(|answer| answer.said.as_str()).collect();
            anyhow!("{error}; before that: {}", said.join("; "))
        }
    }
}

/// How it ended, in words.
fn outcome(array: &ArrayStatus, action: Option<&str>) -> String {
    let name = &array.name;
    let state = members(array);
    match action {
        Some(action) if is_unfinished(array, action) => {
            format!("{name}: {action} was stopped at {:.1}%; {state}", array.sync.share() * 100.0)
        }
        Some(action @ ("check" | "repair")) => {
            let found = array.sync.mismatch_sectors;
            format!(
                "{name}: {action} is done: mismatch_cnt {found} (sectors in which copies differed, or parities did not fit); {state}"
            )
        }
        Some(action) => format!("{name}: {action} is done; {state}"),
        None => format!("{name}: nothing is being synced; {state}"),
    }
}

/// Whether somebody has stopped it.
fn is_unfinished(array: &ArrayStatus, action: &str) -> bool {
    match action {
        "check" | "repair" => array.sync.done_sectors < array.sync.total_sectors,
        "resync" => array.resync_from.is_some(),
        _ => array.devices.iter().any(|device| device.recovered.is_some()),
    }
}

/// Whether nothing is done any more, and what is waited for is not: somebody has stopped it, or a disk.
fn is_left_undone(array: &ArrayStatus, action: Option<&str>) -> bool {
    let has_doubt = doubt(array).is_some();
    let is_half_filled = is_unfinished(array, "recover");
    match action {
        Some(action @ ("check" | "repair")) => is_unfinished(array, action),
        // Mirrors may differ elsewhere, as where a discard has failed: what was to be filled has been.
        Some("recover") => is_half_filled || (has_doubt && has_parity(array)),
        _ => is_half_filled || has_doubt,
    }
}

/// How it is, and what is not as it should be. What has been stopped goes on by `md start-sync`.
fn members(array: &ArrayStatus) -> String {
    let mut said = match (array.degraded, doubt(array)) {
        (0, None) => "all members are in sync".to_owned(),
        (0, Some(doubt)) => format!("no member is missing, but {doubt}"),
        (n, doubt) => {
            let doubt = doubt.map_or_else(String::new, |doubt| format!("; {doubt}"));
            format!("degraded: {n} of {} members are not in sync{doubt}", array.raid_disks)
        }
    };
    let bad: usize = array.devices.iter().map(|device| device.bad_ranges).sum();
    if bad > 0 {
        let s = if bad == 1 { "" } else { "s" };
        said += &format!("; {bad} range{s} of members cannot be read");
    }
    if !array.sync.runs() && array.resync_from.is_some() {
        said += &format!(" (`blockwork md start-sync {}` has a server resync it)", array.name);
    }
    said
}

/// A device that was added must not have failed meanwhile.
fn still_there(answer: &ArrayAnswer, now: &ArrayStatus) -> Result<()> {
    let state_of = |status: &ArrayStatus, name: &str| {
        let found = status.devices.iter().find(|device| device.name.as_deref() == Some(name));
        found.map(|device| device.state.clone())
    };
    for device in &answer.devices {
        let was_good = state_of(&answer.array, device).is_some_and(|state| state != "faulty");
        let is_bad = state_of(now, device).is_none_or(|state| state == "faulty");
        let was_filled = state_of(&answer.array, device).is_some_and(|state| state == "recovering");
        if was_good && was_filled && is_bad {
            bail!("{device} has failed while it was being filled; {} goes on without it", now.name);
        }
    }
    Ok(())
}

/// Nor may any other device have: one that was to take a member's place, say. A member that was replaced goes, as somebody else has its place.
fn none_has_failed(answer: &ArrayAnswer, now: &ArrayStatus) -> Result<()> {
    let before = |name: &Option<String>| answer.array.devices.iter().find(|device| device.name == *name);
    let is_in_sync = |device: &DeviceStatus| device.state == "in_sync";
    let has_come = |role: u16| {
        let has_it = |device: &&DeviceStatus| device.role == Some(role) && is_in_sync(device);
        now.devices.iter().filter(has_it).any(|device| !before(&device.name).is_some_and(is_in_sync))
    };
    let has_failed = |device: &&DeviceStatus| {
        let was = before(&device.name).filter(|was| was.state != "faulty");
        device.state == "faulty" && was.is_some_and(|was| !was.role.is_some_and(has_come))
    };
    let Some(device) = now.devices.iter().find(has_failed) else { return Ok(()) };
    let name = device.name.as_deref().unwrap_or("a member");
    bail!("{name} has failed meanwhile; {} goes on without it: {}", now.name, members(now))
}

/// What is a file here gets its whole path.
fn absolute(device: &str) -> String {
    let path = device.split(',').next().unwrap_or(device);
    let parent = path.rsplit_once('/').map(|(disk, _)| disk);
    let is_file = |path: &str| Path::new(path).is_file() || is_block_device(Path::new(path));
    if device.starts_with('/') || !(is_file(path) || parent.is_some_and(is_file)) {
        return device.to_owned();
    }
    match std::env::current_dir() {
        // A comma in a path is written twice.
        Ok(here) => format!("{}/{device}", here.to_string_lossy().replace(',', ",,")),
        Err(_) => device.to_owned(),
    }
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|found| found.file_type().is_block_device())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_somebody_has_stopped_is_not_done() {
        let device = |state: &str, recovered: Option<u64>| {
            json!({ "name": "a", "role": 0, "state": state, "recovered": recovered, "write_mostly": false,
                    "bad_ranges": 0, "corrected_sectors": 0 })
        };
        let told = |level: &str,
                    resync_from: Option<u64>,
                    device: serde_json::Value,
                    action: Option<&str>| {
            let total = if action == Some("repair") { 1 } else { 4 };
            let array = json!({
                "name": "md/m", "uuid": "1", "level": level, "layout": null, "chunk_size": null, "bytes": 4096,
                "raid_disks": 2, "degraded": 0, "read_only": null, "active": true, "events": 3,
                "resync_from": resync_from, "dirty_chunks": null, "devices": [device],
                "sync": { "action": "idle", "done_sectors": 1, "total_sectors": total, "speed_kib": 0, "mismatch_sectors": 0 },
            });
            let array = serde_json::from_value(array).expect("a status");
            (outcome(&array, action), !is_left_undone(&array, action))
        };
        let said = |from, device, action| told("raid1", from, device, Some(action));
        let whole = || device("in_sync", None);
        assert_eq!(
            said(None, whole(), "resync"),
            ("md/m: resync is done; all members are in sync".into(), true)
        );
        let (words, is_done) = said(Some(512), whole(), "resync");
        assert!(
            words.starts_with(
                "md/m: resync was stopped at 25.0%; no member is missing, but mirrors may differ"
            )
        );
        assert!(!is_done);
        let (words, is_done) = said(None, whole(), "recover");
        assert!(words.starts_with("md/m: recover is done; ") && is_done);
        let half = || device("recovering", Some(512));
        let (words, is_done) = said(None, half(), "recover");
        assert!(words.starts_with("md/m: recover was stopped at 25.0%; ") && !is_done);

        // Nobody has seen it run.
        let waited = |level, from, device| told(level, from, device, None);
        assert!(waited("raid5", None, whole()).1 && !waited("raid5", None, half()).1);
        assert_eq!(
            waited("raid5", Some(512), whole()),
            (
                "md/m: nothing is being synced; no member is missing, but parities may not fit the data from byte 512 of each \
                 member on (`blockwork md start-sync md/m` has a server resync it)"
                    .into(),
                false
            )
        );
        // A member was filled: elsewhere mirrors may differ all the same, but a parity has to fit.
        assert!(
            said(Some(512), whole(), "recover").1 && !told("raid6", Some(512), whole(), Some("recover")).1
        );
        // A check is asked for what it finds.
        let (words, is_done) = said(Some(512), whole(), "repair");
        assert!(words.contains("no member is missing, but mirrors may differ from byte 512 on") && is_done);
        let (words, is_done) = said(None, whole(), "check");
        assert!(words.starts_with("md/m: check was stopped at 25.0%; all members are in sync") && !is_done);
        let mut bad = whole();
        bad["bad_ranges"] = json!(123);
        let (words, is_done) = waited("raid5", None, bad);
        assert!(words.ends_with("all members are in sync; 123 ranges of members cannot be read") && is_done);
    }
}
