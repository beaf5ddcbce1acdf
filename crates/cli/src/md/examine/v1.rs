//! Superblocks 1.x.

use blockwork_format::SECTOR_BYTES;
use blockwork_format::md::raid0::Raid0Layout;
use blockwork_format::md::v1::{Features, Superblock};
use blockwork_format::md::{Level, Raid10Layout, Role};
use blockwork_volume::md::Examined;

use super::words::{Lines, date, in_brackets, parity_layout, state};

/// Sectors at a superblock that mdadm and the kernel keep free for it.
const SUPERBLOCK_ROOM: u64 = 72;

pub(super) fn text(s: &Superblock, examined: &Examined) -> String {
    let mut out = Lines::default();
    array(s, &mut out);
    sizes(s, examined, &mut out);
    device(s, &mut out);
    shape(s, &mut out);
    out.gap();
    roles(s, &mut out);
    out.done()
}

fn array(s: &Superblock, out: &mut Lines) {
    out.line("Magic", format_args!("{:08x}", blockwork_format::md::MAGIC));
    out.line("Version", s.minor);
    out.line("Feature Map", s.features);
    out.line("Array UUID", s.set_uuid);
    out.line("Name", s.set_name);
    out.line("Creation Time", date(s.ctime.seconds()));
    out.line("Raid Level", s.level);
    out.line("Raid Devices", s.raid_disks);
    out.gap();
}

fn sizes(s: &Superblock, examined: &Examined, out: &mut Lines) {
    let sectors = |n: u64| format!("{n} sectors{}", in_brackets(n.saturating_mul(SECTOR_BYTES)));
    out.line("Avail Dev Size", sectors(s.data_size));
    if s.level.has_equal_members() {
        let bytes = array_bytes(s);
        out.line("Array Size", format_args!("{} KiB{}", bytes >> 10, in_brackets(bytes)));
        out.line_if(s.size != s.data_size, "Used Dev Size", sectors(s.size));
    }
    out.line_if(s.data_offset != 0, "Data Offset", format_args!("{} sectors", s.data_offset));
    let moves = s.features.has(Features::NEW_OFFSET) && s.reshape.new_offset != 0;
    let moved = s.data_offset.saturating_add_signed(s.reshape.new_offset.into());
    out.line_if(moves, "New Offset", format_args!("{moved} sectors"));
    out.line("Super Offset", format_args!("{} sectors", s.super_offset));
    let recovers = s.features.has(Features::RECOVERY_OFFSET);
    out.line_if(recovers, "Recovery Offset", format_args!("{} sectors", s.recovery_offset));
    let (before, after) = unused(s, examined);
    // By one sector behind, mdadm tells that nothing is known of them.
    let is_told = (before, after) != (0, 0) && after != 1 && !s.features.has(Features::NEW_OFFSET);
    out.line_if(is_told, "Unused Space", format_args!("before={before} sectors, after={after} sectors"));
}

fn device(s: &Superblock, out: &mut Lines) {
    out.line("State", state(s.resync_offset == blockwork_format::md::IN_SYNC));
    out.line("Device UUID", s.device_uuid);
    out.gap();
    let has_bitmap = s.features.has(Features::BITMAP);
    out.line_if(has_bitmap, "Internal Bitmap", format_args!("{} sectors from superblock", s.bitmap_offset));
    if let Some((at, sectors)) = s.partial_parity_log() {
        out.line("PPL", format_args!("{sectors} sectors at offset {at} sectors from superblock"));
    }
    if s.features.has(Features::RESHAPE_ACTIVE) {
        reshape(s, out);
    }
    let flags = [(Superblock::WRITE_MOSTLY, "write-mostly"), (Superblock::FAILFAST, "failfast")];
    let flags: Vec<_> =
        flags.iter().filter(|(bit, _)| s.devflags & bit != 0).map(|(_, word)| *word).collect();
    out.line_if(!flags.is_empty(), "Flags", flags.join(" "));
    out.line("Update Time", date(s.utime.seconds()));
    if s.bblog_sectors != 0 && s.bblog_offset != 0 {
        let present = if s.features.has(Features::BAD_BLOCKS) { " - bad blocks present." } else { "" };
        let entries = u64::from(s.bblog_sectors) * SECTOR_BYTES / 8;
        let place = s.bblog_offset;
        out.line(
            "Bad Block Log",
            format_args!("{entries} entries available at offset {place} sectors{present}"),
        );
    }
    out.line("Checksum", format_args!("{:x} - correct", s.checksum()));
    out.line("Events", s.events);
    out.gap();
}

fn reshape(s: &Superblock, out: &mut Lines) {
    let to = &s.reshape;
    let brackets = in_brackets(to.position.saturating_mul(SECTOR_BYTES));
    out.line("Reshape pos'n", format_args!("{}{brackets}", to.position / 2));
    if to.delta_disks != 0 {
        let before = i64::from(s.raid_disks) - i64::from(to.delta_disks);
        out.line("Delta Devices", format_args!("{} ({before}->{})", to.delta_disks, s.raid_disks));
    }
    let level = Level::from(to.new_level);
    out.line_if(level != s.level, "New Level", level);
    if to.new_layout != s.layout {
        match s.level {
            Level::Raid5 | Level::Raid6 => out.line("New Layout", parity_layout(to.new_layout)),
            Level::Raid10 => match Raid10Layout::decode(to.new_layout, s.raid_disks) {
                Ok(layout) => out.line("New Layout", layout),
                Err(_) => out.line("New Layout", format_args!("{:#x}", to.new_layout)),
            },
            _ => {}
        }
    }
    let chunk = to.new_chunk_sectors;
    out.line_if(chunk != s.chunk_sectors, "New Chunksize", format_args!("{}K", chunk / 2));
    out.gap();
}

fn shape(s: &Superblock, out: &mut Lines) {
    match s.level {
        Level::Raid0 if s.features.has(Features::RAID0_LAYOUT) => {
            let word = match Raid0Layout::decode(s.layout) {
                Some(Raid0Layout::Original) => "original",
                Some(Raid0Layout::Alternate) => "alternate",
                None if s.layout == 0 => "dangerous",
                None => "-unknown-",
            };
            out.line("Layout", word);
        }
        Level::Raid5 | Level::Raid6 => out.line("Layout", parity_layout(s.layout)),
        Level::Raid10 => match s.raid10_layout() {
            Ok(layout) => out.line("Layout", layout),
            Err(_) => out.line("Layout", format_args!("{:#x}", s.layout)),
        },
        _ => {}
    }
    out.line_if(s.level.stripes(), "Chunk Size", format_args!("{}K", s.chunk_sectors / 2));
    out.line_if(s.level == Level::Linear, "Rounding", format_args!("{}K", s.chunk_sectors / 2));
}

fn roles(s: &Superblock, out: &mut Lines) {
    let role = match s.role() {
        // mdadm has no word of its own for one that failed.
        Role::Spare | Role::Faulty => "spare".to_owned(),
        Role::Active(place) if s.features.has(Features::REPLACEMENT) => format!("Replacement device {place}"),
        other => other.to_string(),
    };
    out.with_width(14, "Device Role", role);
    let mut devices = vec![0u32; places(s)];
    for role in &s.roles {
        if let Role::Active(place) = role
            && let Some(count) = devices.get_mut(usize::from(*place))
        {
            *count += 1;
        }
    }
    let letter = |count: &u32| match count {
        0 => '.',
        1 => 'A',
        2 if i32::from(s.level) > 0 => 'R',
        _ => '?',
    };
    let letters: String = devices.iter().map(letter).collect();
    let legend = "('A' == active, '.' == missing, 'R' == replacing)";
    out.with_width(14, "Array State", format_args!("{letters} {legend}"));
    let beyond = |role: &Role| matches!(role, Role::Active(place) if usize::from(*place) > devices.len());
    if letters.contains('?') || s.roles.iter().any(beyond) {
        out.text("WARNING Array state is inconsistent - each number should appear only once\n");
        for (slot, role) in s.roles.iter().enumerate() {
            match role {
                Role::Spare | Role::Faulty => out.text(&format!(" {slot}:-")),
                role => out.text(&format!(" {slot}:{}", u16::from(*role))),
            }
        }
        out.gap();
    }
}

/// Places of the array, those included that it gives up while it shrinks.
fn places(s: &Superblock) -> usize {
    let leaving = match s.features.has(Features::RESHAPE_ACTIVE) {
        true => s.reshape.delta_disks.min(0).unsigned_abs(),
        false => 0,
    };
    // `check` has bounded the one; the other is nothing to believe.
    let most = blockwork_format::md::RAID_DISKS_MAX;
    usize::try_from(s.raid_disks.saturating_add(leaving).min(most)).unwrap_or_default()
}

/// Size of the array as mdadm computes it, without rounding a RAID10's members to chunks.
fn array_bytes(s: &Superblock) -> u64 {
    let disks = u128::from(s.raid_disks);
    let (times, by) = match s.level {
        Level::Raid4 | Level::Raid5 => (disks.saturating_sub(1), 1),
        Level::Raid6 => (disks.saturating_sub(2), 1),
        Level::Raid10 => (disks, s.raid10_layout().map_or(1, |layout| layout.copies().into())),
        _ => (1, 1),
    };
    let bytes = u128::from(s.size) * u128::from(SECTOR_BYTES) * times / by;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Sectors before and behind the data that nothing uses, as mdadm counts them.
fn unused(s: &Superblock, examined: &Examined) -> (u64, u64) {
    let log = s.bad_block_log();
    let used = s.data_offset.saturating_add(s.member_sectors());
    if s.data_offset < s.super_offset {
        let parity = s.partial_parity_log();
        let parity = parity.and_then(|(at, _)| s.super_offset.checked_add_signed(at.into()));
        let others = [log.map(|log| log.start), s.bitmap_sector(), parity];
        let end = others.into_iter().flatten().fold(s.super_offset, u64::min);
        return (s.data_offset, end.saturating_sub(used));
    }
    let bitmap = match &examined.bitmap {
        // From the superblock on, not from the start of the device: so does mdadm.
        Some(Ok((bitmap, _))) if s.bitmap_offset > 0 => {
            u64::from(s.bitmap_offset.unsigned_abs()) + bitmap.disk_sectors().next_multiple_of(8)
        }
        _ => s
            .partial_parity_log()
            .map_or(0, |(at, sectors)| u64::try_from(i64::from(at) + i64::from(sectors)).unwrap_or(0)),
    };
    let first = (s.super_offset + SUPERBLOCK_ROOM).max(bitmap).max(log.map_or(0, |log| log.end()));
    (s.data_offset.saturating_sub(first), examined.sectors.saturating_sub(used))
}
