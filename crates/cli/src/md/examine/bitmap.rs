//! Bitmaps and lists of bad blocks.

use anyhow::{Result, anyhow};
use blockwork_format::md::Superblock;
use blockwork_format::md::bitmap::BitmapSuperblock;
use blockwork_format::{FormatError, escape};
use blockwork_volume::md::Examined;

use super::words::{Lines, in_brackets};

/// What `mdadm --examine-bitmap` prints.
pub(super) fn text(title: &str, examined: &Examined) -> Result<String> {
    let (bitmap, bits) = match &examined.bitmap {
        None => return Err(anyhow!("{}: the array has no write-intent bitmap", escape(title))),
        Some(Err(error)) => return Err(refused(title, error)),
        Some(Ok(read)) => read,
    };
    let uuid = match &examined.superblock {
        Superblock::V0(superblock) if superblock.bitmap_uuid() == bitmap.uuid => superblock.uuid,
        _ => bitmap.uuid,
    };
    let mut out = Lines::default();
    let mut line = |key: &str, value: String| out.with_width(16, key, value);
    line("Filename", escape(title));
    line("Magic", format!("{:08x}", BitmapSuperblock::MAGIC));
    line("Version", bitmap.version.to_string());
    line("UUID", uuid.to_string());
    line("Events", bitmap.events.to_string());
    line("Events Cleared", bitmap.events_cleared.to_string());
    line("State", state(bitmap.state).to_owned());
    line("Chunksize", chunk(bitmap.chunk_bytes));
    line("Daemon", format!("{}s flush period", bitmap.daemon_sleep));
    line(
        "Write Mode",
        match bitmap.write_behind {
            0 => "Normal".to_owned(),
            most => format!("Allow write behind, max {most}"),
        },
    );
    let bytes = bitmap.sync_size.saturating_mul(512);
    line("Sync Size", format!("{}{}", bitmap.sync_size / 2, in_brackets(bytes)));
    let (chunks, dirty) = (bits.chunks(), bits.dirty_chunks());
    let percent = 100.0 * dirty as f64 / chunks.max(1) as f64;
    line("Bitmap", format!("{chunks} bits (chunks), {dirty} dirty ({percent:.1}%)"));
    Ok(out.done())
}

fn state(state: u32) -> &'static str {
    match state {
        0 => "OK",
        2 => "Out of date",
        _ => "Unknown",
    }
}

fn chunk(bytes: u32) -> String {
    const UNITS: [&str; 4] = ["B", "KB", "MB", "GB"];
    // A power of two: nothing is lost.
    let unit = bytes.checked_ilog2().unwrap_or(0) / 10;
    format!("{} {}", bytes >> (10 * unit), UNITS[unit as usize])
}

/// What `mdadm --examine-badblocks` prints.
pub(super) fn bad_blocks(title: &str, examined: &Examined) -> Result<String> {
    let title = escape(title);
    Ok(match &examined.bad_blocks {
        None => format!("No bad-blocks list configured on {title}\n"),
        Some(Err(error)) => return Err(refused(&title, error)),
        Some(Ok(list)) if list.is_empty() => format!("Bad-blocks list is empty in {title}\n"),
        Some(Ok(list)) => {
            let ranges =
                list.iter().map(|range| format!("{:>20} for {} sectors\n", range.start, range.sectors));
            format!("Bad-blocks on {title}:\n{}", ranges.collect::<String>())
        }
    })
}

fn refused(title: &str, error: &FormatError) -> anyhow::Error {
    anyhow!("{}: {error}", escape(title))
}
