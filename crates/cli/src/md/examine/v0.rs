//! Superblocks 0.90.

use blockwork_format::md::v0::{Descriptor, Superblock};
use blockwork_format::md::{Level, v0};

use super::words::{Lines, date, in_brackets, parity_layout, state};

pub(super) fn text(s: &Superblock) -> String {
    let mut out = Lines::default();
    array(s, &mut out);
    out.line("Update Time", date(s.utime.into()));
    out.line("State", state(s.is_clean()));
    out.line_if(s.bitmap_sector().is_some(), "Internal Bitmap", "present");
    out.line("Active Devices", s.counts.active);
    out.line("Working Devices", s.counts.working);
    out.line("Failed Devices", s.counts.failed);
    out.line("Spare Devices", s.counts.spare);
    out.line("Checksum", format_args!("{:x} - correct", s.checksum));
    out.line("Events", s.events);
    out.gap();
    match s.level {
        Level::Raid5 | Level::Raid6 => out.line("Layout", parity_layout(s.layout)),
        Level::Raid10 => match s.raid10_layout() {
            Ok(layout) => out.line("Layout", layout),
            Err(_) => out.line("Layout", format_args!("{:#x}", s.layout)),
        },
        _ => {}
    }
    out.line_if(s.level.stripes(), "Chunk Size", format_args!("{}K", s.chunk_bytes / 1024));
    out.line_if(s.level == Level::Linear, "Rounding", format_args!("{}K", s.chunk_bytes / 1024));
    out.gap();
    disks(s, &mut out);
    out.done()
}

fn array(s: &Superblock, out: &mut Lines) {
    out.line("Magic", format_args!("{:08x}", blockwork_format::md::MAGIC));
    out.line("Version", format_args!("0.90.{:02}", s.patch_version));
    out.line("UUID", s.uuid);
    out.line("Creation Time", date(s.ctime.into()));
    out.line("Raid Level", s.level);
    if s.level.has_equal_members() {
        let bytes = u64::from(s.size_kib) << 10;
        out.line("Used Dev Size", format_args!("{}{}", s.size_kib, in_brackets(bytes)));
        let disks = u64::from(s.raid_disks);
        let bytes = match s.level {
            Level::Raid4 | Level::Raid5 => bytes * disks.saturating_sub(1),
            Level::Raid6 => bytes * disks.saturating_sub(2),
            Level::Raid10 => bytes * disks / s.raid10_layout().map_or(1, |layout| layout.copies().into()),
            _ => bytes,
        };
        out.line("Array Size", format_args!("{}{}", bytes >> 10, in_brackets(bytes)));
    }
    out.line("Raid Devices", s.raid_disks);
    out.line("Total Devices", s.counts.total);
    out.line("Preferred Minor", s.md_minor);
    out.gap();
}

fn disks(s: &Superblock, out: &mut Lines) {
    out.text("      Number   Major   Minor   RaidDevice State\n");
    out.text(&disk("this", &s.this_disk));
    out.gap();
    let places = s.raid_disks.saturating_add(s.counts.spare).min(v0::DISKS_MAX);
    for (number, descriptor) in (0..places).zip(&s.disks) {
        out.text(&disk(&format!("{number:>4}"), descriptor));
    }
}

fn disk(name: &str, disk: &Descriptor) -> String {
    const WORDS: [(u32, &str); 6] = [
        (0, " faulty"),
        (1, " active"),
        (2, " sync"),
        (3, " removed"),
        (9, " write-mostly"),
        (10, " failfast"),
    ];
    const IS_ONLY_ADVICE: u32 = 1 << 9 | 1 << 10;
    let words: String =
        WORDS.iter().filter(|(bit, _)| disk.state >> bit & 1 != 0).map(|(_, word)| *word).collect();
    let spare = if disk.state & !IS_ONLY_ADVICE == 0 { " spare" } else { "" };
    let ((major, minor), number, place) = (disk.device, disk.number, disk.raid_disk.cast_signed());
    format!("{name:>4} {number:>5}   {major:>5}    {minor:>5}    {place:>5}     {words}{spare}\n")
}
