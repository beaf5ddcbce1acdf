//! What `mdadm --examine` prints of a superblock, line by line, as we understand the superblock.
//!
//! Sizes in brackets (`47.00 MiB 49.28 MB`) are left out on both sides: they repeat the number before them. A name's
//! `(local to host ...)` depends on the machine, and is left out as well.

use std::collections::BTreeMap;

use blockwork_format::md::v1::{Features, Minor, Superblock};
use blockwork_format::md::{Level, Role, v0};

pub type Lines = BTreeMap<String, String>;

/// The lines `key : value` of mdadm's output; of a table of disks, nothing.
pub fn lines(printed: &str) -> Lines {
    let pairs = printed.lines().filter_map(|line| line.split_once(" : "));
    pairs.map(|(key, value)| (key.trim().to_owned(), without_brackets(key.trim(), value))).collect()
}

fn without_brackets(key: &str, value: &str) -> String {
    let cut = match key {
        "Array State" => value.split(" ('A'").next(),
        "Name" => value.split("  (local").next(),
        "UUID" | "Avail Dev Size" | "Used Dev Size" | "Array Size" => value.split(" (").next(),
        _ => None,
    };
    cut.unwrap_or(value).trim().to_owned()
}

/// What mdadm should print of a 1.x superblock on a device of so many sectors.
pub fn of_v1(superblock: &Superblock, device_sectors: u64) -> Lines {
    let s = superblock;
    let mut out = Lines::new();
    let mut line = |key: &str, value: String| {
        assert_eq!(out.insert(key.into(), value), None, "{key} twice");
    };
    line("Magic", "a92b4efc".into());
    line("Version", s.minor.to_string());
    line("Feature Map", s.features.to_string());
    line("Array UUID", s.set_uuid.to_string());
    line("Name", s.set_name.to_string());
    line("Creation Time", date(s.ctime.seconds()));
    line("Raid Level", s.level.to_string());
    line("Raid Devices", s.raid_disks.to_string());
    line("Avail Dev Size", format!("{} sectors", s.data_size));
    if let Some(sectors) = array_sectors(s) {
        line("Array Size", format!("{} KiB", sectors / 2));
        if s.size != s.data_size {
            line("Used Dev Size", format!("{} sectors", s.size));
        }
    }
    if s.data_offset != 0 {
        line("Data Offset", format!("{} sectors", s.data_offset));
    }
    line("Super Offset", format!("{} sectors", s.super_offset));
    let (before, after) = unused(s, device_sectors);
    line("Unused Space", format!("before={before} sectors, after={after} sectors"));
    if s.features.has(Features::RECOVERY_OFFSET) {
        line("Recovery Offset", format!("{} sectors", s.recovered_sectors()));
    }
    line("State", if s.is_clean() { "clean" } else { "active" }.into());
    line("Device UUID", s.device_uuid.to_string());
    if s.features.has(Features::BITMAP) {
        line("Internal Bitmap", format!("{} sectors from superblock", s.bitmap_offset));
    }
    let flags = [(Superblock::WRITE_MOSTLY, "write-mostly"), (Superblock::FAILFAST, "failfast")];
    let flags: Vec<_> =
        flags.iter().filter(|(bit, _)| s.devflags & bit != 0).map(|(_, name)| *name).collect();
    if !flags.is_empty() {
        line("Flags", flags.join(" "));
    }
    line("Update Time", date(s.utime.seconds()));
    if s.bad_block_log().is_some() {
        let entries = (u32::from(s.bblog_sectors) * 64) >> s.bblog_shift;
        let present = if s.features.has(Features::BAD_BLOCKS) { " - bad blocks present." } else { "" };
        line(
            "Bad Block Log",
            format!("{entries} entries available at offset {} sectors{present}", s.bblog_offset),
        );
    }
    line("Checksum", format!("{:x} - correct", s.checksum()));
    line("Events", s.events.to_string());
    if s.level == Level::Raid10 {
        line("Layout", s.raid10_layout().unwrap().to_string());
    }
    if s.features.has(Features::RAID0_LAYOUT) {
        line("Layout", if s.layout == 1 { "original" } else { "alternate" }.into());
    }
    if s.level.stripes() {
        line("Chunk Size", format!("{}K", s.chunk_sectors / 2));
    }
    let replaces = s.features.has(Features::REPLACEMENT) && s.role() != Role::Spare;
    line(
        "Device Role",
        format!("{}{}", if replaces { "Replacement device " } else { "" }, role(s, replaces)),
    );
    line("Array State", array_state(s));
    out
}

/// mdadm does not round a RAID10's members to chunks here, and so may print more than there is.
fn array_sectors(s: &Superblock) -> Option<u64> {
    let whole = s.array_sectors()?;
    let copies = if s.level == Level::Raid10 { s.raid10_layout().unwrap().copies() } else { s.raid_disks };
    let printed = s.size * u64::from(s.raid_disks) / u64::from(copies);
    let chunks = printed - whole;
    assert!(
        s.level == Level::Raid1 || chunks < u64::from(s.chunk_sectors) * u64::from(s.raid_disks),
        "{whole} of {printed}"
    );
    Some(printed)
}

fn role(s: &Superblock, replaces: bool) -> String {
    match s.role() {
        Role::Active(place) if replaces => place.to_string(),
        // mdadm has no word for it here.
        Role::Faulty => "spare".into(),
        role => role.to_string(),
    }
}

/// Room before and behind the data, as mdadm counts it: without 36 KiB for the superblock and what it may write beside
/// it, the bitmap and the list of bad blocks.
fn unused(s: &Superblock, device_sectors: u64) -> (u64, u64) {
    let log = s.bad_block_log();
    if s.minor == Minor::V1_0 {
        let first = [Some(s.super_offset), s.bitmap_sector(), log.map(|log| log.start)];
        let end = first.into_iter().flatten().min().unwrap();
        return (s.data_offset, end - s.data_offset - s.member_sectors());
    }
    let start = (s.super_offset + 72).max(log.map_or(0, |log| log.end()));
    (s.data_offset - start, device_sectors - s.data_offset - s.member_sectors())
}

fn array_state(s: &Superblock) -> String {
    let count = |place: u32| {
        s.roles.iter().filter(|role| matches!(role, Role::Active(at) if u32::from(*at) == place)).count()
    };
    let letter = |place| match count(place) {
        0 => '.',
        1 => 'A',
        2 => 'R',
        _ => '?',
    };
    (0..s.raid_disks).map(letter).collect()
}

/// What mdadm should print of a 0.90 superblock.
pub fn of_v0(s: &v0::Superblock, array_kib: u64) -> Lines {
    let count = |wanted: fn(&v0::Descriptor) -> bool| s.disks.iter().filter(|disk| wanted(disk)).count();
    let pairs = [
        ("Magic", "a92b4efc".into()),
        ("Version", "0.90.00".into()),
        ("UUID", s.uuid.to_string()),
        ("Creation Time", date(s.ctime.into())),
        ("Raid Level", s.level.to_string()),
        ("Used Dev Size", s.size_kib.to_string()),
        ("Array Size", array_kib.to_string()),
        ("Raid Devices", s.raid_disks.to_string()),
        ("Total Devices", count(|disk| disk.state != 0).to_string()),
        ("Preferred Minor", s.md_minor.to_string()),
        ("Update Time", date(s.utime.into())),
        ("State", if s.is_clean() { "clean" } else { "active" }.into()),
        ("Internal Bitmap", "present".into()),
        ("Active Devices", count(|disk| disk.state & 2 != 0).to_string()),
        ("Working Devices", count(|disk| disk.state & 2 != 0).to_string()),
        ("Failed Devices", "0".into()),
        ("Spare Devices", "0".into()),
        ("Checksum", format!("{:x} - correct", s.checksum)),
        ("Events", s.events.to_string()),
        (
            "Layout",
            if s.level == Level::Raid10 { s.raid10_layout().unwrap().to_string() } else { String::new() },
        ),
        ("Chunk Size", if s.level.stripes() { format!("{}K", s.chunk_bytes / 1024) } else { String::new() }),
    ];
    let pairs = pairs.into_iter().filter(|(key, value): &(&str, String)| {
        !value.is_empty() && (*key != "Internal Bitmap" || s.bitmap_sector().is_some())
    });
    pairs.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// As ctime does in UTC: `Sat Nov 21 02:41:00 2026`.
pub fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [(&str, u64); 12] = [
        ("Jan", 31),
        ("Feb", 28),
        ("Mar", 31),
        ("Apr", 30),
        ("May", 31),
        ("Jun", 30),
        ("Jul", 31),
        ("Aug", 31),
        ("Sep", 30),
        ("Oct", 31),
        ("Nov", 30),
        ("Dec", 31),
    ];
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut day, in_day) = (seconds / 86_400, seconds % 86_400);
    let weekday = DAYS[usize::try_from(day % 7).unwrap()];
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    for (month, days) in MONTHS {
        let days = days + u64::from(month == "Feb" && leap(year));
        if day < days {
            let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
            return format!("{weekday} {month} {:>2} {hour:02}:{minute:02}:{second:02} {year}", day + 1);
        }
        day -= days;
    }
    unreachable!("a year has twelve months");
}
