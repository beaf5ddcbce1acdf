//! What is said of a device in its line. Texts from disks are escaped here.

use blockwork_format::escape;
use blockwork_volume::{
    ArrayReport, DeviceReport, GroupReport, LvReport, MdMemberReport, PartitionReport, PvMemberReport,
    PvReport, percent_as_lvs,
};

/// Percent as `lvs` shows them.
pub(crate) fn percent(percent: f64) -> String {
    format!("{:.2}", percent_as_lvs(percent))
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

/// Phrases, put together when the line is made.
#[derive(Default)]
struct Phrases(Vec<String>);

impl Phrases {
    fn add(&mut self, phrase: impl Into<String>) {
        self.0.push(phrase.into());
    }

    fn add_if(&mut self, holds: bool, phrase: &str) {
        if holds {
            self.add(phrase);
        }
    }

    /// What holds for every device: what is on it first, then whether it can be served.
    fn around(self, device: &DeviceReport) -> String {
        let mut all = Phrases(content(device).into_iter().collect());
        all.0.extend(self.0);
        all.add_if(device.refusal.is_some(), "not served");
        all.add_if(device.read_only.is_some() && device.refusal.is_none(), "read-only");
        all.0.join(", ")
    }
}

/// What is on a device.
fn content(device: &DeviceReport) -> Option<String> {
    if let Some(member) = &device.md_member {
        return Some(md_member(member));
    }
    if let Some(pv) = &device.pv {
        return Some(pv_member(pv));
    }
    if let Some(table) = &device.partition_table {
        return Some(table.clone());
    }
    let kind = device.content.as_ref()?;
    Some(match &device.label {
        Some(label) => format!("{kind} \"{}\"", escape(label)),
        None => kind.clone(),
    })
}

fn md_member(member: &MdMemberReport) -> String {
    let Some(array) = &member.array else {
        let name = member.name.as_ref().unwrap_or(&member.array_uuid);
        return format!("left out of the array {}", escape(name));
    };
    let array = escape(array);
    let place = member.place.map_or(String::new(), |place| format!(" {place}"));
    let recovered = member.recovered.unwrap_or(0);
    match member.state {
        "in_sync" => format!("member{place} of {array}"),
        "recovering" => format!("member{place} of {array}, recovering, in sync to {}", size(recovered)),
        "spare" => format!("spare of {array}"),
        "replacement" => format!("replacement for member{place} of {array}"),
        "journal" => format!("journal of {array}"),
        "out_of_date" => format!("out-of-date member{place} of {array} (events {})", member.events),
        "faulty" => format!("failed member of {array}"),
        "foreign" => format!("has the UUID of {array}, and is no member"),
        other => format!("{other} member{place} of {array}"),
    }
}

fn pv_member(pv: &PvMemberReport) -> String {
    match (&pv.group, &pv.metadata_of) {
        (Some(group), _) => format!("PV of {}", escape(group)),
        (None, Some(group)) => format!("PV of {}, not used", escape(group)),
        (None, None) => "PV without a group".to_owned(),
    }
}

pub(super) fn disk(device: &DeviceReport, given_as: &str) -> String {
    let mut phrases = Phrases::default();
    // Two disks of one name: only their paths tell which is which.
    if device.volume.contains('#') {
        phrases.add(escape(given_as));
    }
    phrases.around(device)
}

pub(super) fn partition(partition: &PartitionReport) -> String {
    let device = &partition.device;
    let mut phrases = Phrases::default();
    if content(device).is_none() {
        phrases.add(format!("({})", partition.type_name.as_ref().unwrap_or(&partition.type_id)));
    }
    if let Some(name) = partition.name.as_ref().filter(|name| Some(*name) != device.label.as_ref()) {
        phrases.add(format!("named \"{}\"", escape(name)));
    }
    phrases.around(device)
}

pub(super) fn array(array: &ArrayReport) -> String {
    let mut phrases = Phrases::default();
    let mut shape: Vec<String> = array.layout.iter().cloned().collect();
    shape.extend(array.chunk_size.map(size));
    let there = array.members.iter().filter(|member| member.state == "in_sync").count();
    shape.push(format!("[{}/{there}]", array.raid_disks));
    phrases.add(shape.join(" "));
    phrases.add(if array.clean { "clean" } else { "active" });
    phrases.add_if(array.degraded > 0, "degraded");
    if let Some(from) = array.resync_from {
        phrases.add(format!("not resynced from {}", size(from)));
    }
    if let Some(bitmap) = array.bitmap.filter(|bitmap| bitmap.dirty_chunks > 0) {
        phrases.add(format!("{} of {} bitmap chunks dirty", bitmap.dirty_chunks, bitmap.chunks));
    }
    phrases.around(&array.device)
}

pub(super) fn group(group: &GroupReport) -> String {
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut phrases = Phrases::default();
    phrases.add(count(group.pvs.len(), "PV"));
    phrases.add(count(group.lvs.iter().filter(|lv| lv.visible).count(), "LV"));
    phrases.add(format!("{} free", size(group.free)));
    phrases.add_if(group.partial, "partial");
    phrases.add_if(group.exported, "exported");
    if let Some(owner) = &group.system_id {
        phrases.add(format!("of host {}", escape(owner)));
    }
    if let Some(lock) = &group.lock_type {
        phrases.add(format!("shared by {}", escape(lock)));
    }
    phrases.add_if(group.read_only.is_some(), "read-only");
    phrases.0.join(", ")
}

/// A physical volume that is not there.
pub(super) fn missing_pv(pv: &PvReport) -> String {
    match &pv.device_hint {
        Some(hint) => format!("missing, was {} once", escape(hint)),
        None => "missing".to_owned(),
    }
}

/// What a volume is, in LVM's words: the types of its segments.
pub(super) fn lv_type(lv: &LvReport) -> String {
    if lv.role.contains(&"thicksnapshot") {
        return "snapshot".to_owned();
    }
    let mut types: Vec<&str> = Vec::new();
    for segment in &lv.segments {
        if !types.contains(&&*segment.kind) {
            types.push(&segment.kind);
        }
        // Two say that it is mixed.
        if types.len() == 2 {
            break;
        }
    }
    escape(&types.join("+"))
}

pub(super) fn lv(lv: &LvReport) -> String {
    let mut phrases = Phrases::default();
    if let [only] = &lv.segments[..]
        && only.areas.len() > 1
    {
        let stripe = only.stripe_size.map_or(String::new(), |stripe| format!(" of {}", size(stripe)));
        let what = if only.kind == "striped" { "stripes" } else { "legs" };
        phrases.add(format!("{} {what}{stripe}", only.areas.len()));
    }
    if let Some(origin) = &lv.origin {
        let what = match (lv.role.contains(&"snapshot"), lv.merging) {
            (true, false) => "snapshot of",
            (true, true) => "merging into",
            (false, _) => "caches",
        };
        phrases.add(format!("{what} {}", escape(origin)));
    }
    if let Some(chunk) = lv.chunk_size {
        phrases.add(format!("chunk {}", size(chunk)));
    }
    if let Some(usage) = &lv.usage {
        phrases.add(format!("data {}%", percent(usage.data_percent)));
        phrases.0.extend(usage.metadata_percent.map(|part| format!("metadata {}%", percent(part))));
    }
    if let Some(store) = &lv.store {
        let used = store.percent.map_or(String::new(), |part| format!(", {}% full", percent(part)));
        phrases.add(format!("store {}{used}", size(store.size)));
    }
    if !lv.visible {
        phrases.0.extend(part(lv).map(str::to_owned));
    }
    phrases.add_if(lv.partial, "partial");
    phrases.around(&lv.device)
}

/// As what a volume is a part of another one.
fn part(lv: &LvReport) -> Option<&'static str> {
    ["image", "metadata", "data", "log", "spare"].into_iter().find(|part| lv.role.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_in_lsblk() {
        let sizes = [0, 512, 1536, 4 << 30, 3_800 << 30, u64::MAX];
        assert_eq!(sizes.map(size), ["0B", "512B", "1.5K", "4G", "3.7T", "16E"]);
    }

    #[test]
    fn only_nothing_is_shown_as_nothing_and_only_all_as_all() {
        let shown = [0.0, 0.000_6, 33.333, 99.999, 100.0].map(percent);
        assert_eq!(shown, ["0.00", "0.01", "33.33", "99.99", "100.00"]);
    }
}
