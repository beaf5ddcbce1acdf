//! Text to [`Table`], with an error that names line, field, found, expected.

mod raid;
mod thin;

use std::collections::HashMap;
use std::fmt;

use super::{
    Below, DISCARD_PASSDOWN_ORIGIN, DISCARD_ZEROES_COW, Device, NAME_MAX, Persistence, SECTORS_MAX,
    STRIPES_MAX, Snapshot, TABLE_BYTES_MAX, TARGETS_MAX, Table, Target, TargetKind, reference,
};
use crate::bytes::index;
use crate::snapshot::{CHUNK_SECTORS_MAX, Layout};
use crate::{ErrorKind, FormatError, escape};

const PLACE: &str = "dm table";
const SUPPORTED: &str =
    "linear, striped, delay, raid, zero, error, snapshot-origin, snapshot, snapshot-merge, thin-pool or thin";

const FEATURES: &str = "discard_zeroes_cow or discard_passdown_origin";

/// Targets of the kernel that this crate knows to exist.
const NOT_YET: &[&str] = &[
    "mirror",
    "crypt",
    "flakey",
    "dust",
    "cache",
    "writecache",
    "era",
    "clone",
    "integrity",
    "verity",
    "multipath",
    "log-writes",
    "switch",
    "unstriped",
    "zoned",
    "ebs",
    "vdo",
    "pcache",
];

/// Parses a table.
///
/// # Errors
///
/// The first line that is wrong, or a table that is empty or too long.
pub fn parse(text: &str) -> Result<Table, FormatError> {
    if text.len() > TABLE_BYTES_MAX {
        let expected = format!("at most {TABLE_BYTES_MAX} bytes");
        return Err(error(ErrorKind::Limit, 1, "length of the text", text.len(), expected));
    }
    let mut parser = Parser::default();
    let mut last_line = 1;
    for (number, line) in (1..).zip(text.lines()) {
        parser.line(number, line)?;
        last_line = number;
    }
    if parser.devices.is_empty() {
        let expected = "at least one line `START LENGTH TARGET ARGS...`";
        return Err(error(ErrorKind::Invalid, last_line, "table", "empty", expected));
    }
    Ok(Table { devices: parser.devices })
}

fn error(
    kind: ErrorKind,
    line: u64,
    field: &'static str,
    found: impl fmt::Display,
    expected: impl fmt::Display,
) -> FormatError {
    FormatError::line(kind, PLACE, line, field, found, expected)
}

fn invalid(
    line: u64,
    field: &'static str,
    found: impl fmt::Display,
    expected: impl fmt::Display,
) -> FormatError {
    error(ErrorKind::Invalid, line, field, found, expected)
}

#[derive(Default)]
struct Parser {
    devices: Vec<Device>,
    /// Index of each device that has a name.
    by_name: HashMap<String, usize>,
    targets: usize,
}

impl Parser {
    fn line(&mut self, number: u64, line: &str) -> Result<(), FormatError> {
        let (name, words) = split(number, line)?;
        if words.is_empty() {
            return match name {
                Some(name) => Err(invalid(
                    number,
                    "targets",
                    format!("missing after \"{}:\"", escape(&name)),
                    SUPPORTED,
                )),
                None => Ok(()),
            };
        }
        self.targets += 1;
        if self.targets > TARGETS_MAX {
            let expected = format!("at most {TARGETS_MAX}");
            return Err(error(ErrorKind::Limit, number, "number of targets", self.targets, expected));
        }
        self.device(number, name)?;
        let target = target(number, &mut Words { line: number, words: words.into_iter() })?;
        self.check_references(&target)?;
        let device = self.devices.last_mut().expect("one was opened above");
        let end = device.sectors();
        if target.start != end {
            let what = if target.start > end { "a gap" } else { "an overlap" };
            let expected = format!("{end}, where the targets before it end (there is {what})");
            return Err(invalid(number, "start", target.start, expected));
        }
        let is_pool = |target: &Target| matches!(target.kind, TargetKind::ThinPool(_));
        if device.targets.iter().any(is_pool) {
            let expected = "no other target: a thin-pool is the only one of its device";
            return Err(invalid(number, "target", target.kind.name(), expected));
        }
        device.targets.push(target);
        Ok(())
    }

    /// Opens the device that this line belongs to, unless it is the one before.
    fn device(&mut self, line: u64, name: Option<String>) -> Result<(), FormatError> {
        if let Some(open) = self.devices.last() {
            if open.name == name {
                return Ok(());
            }
            if open.name.is_none() || name.is_none() {
                let expected = "a name on every line or on none (`NAME: START LENGTH TARGET ...`)";
                return Err(invalid(line, "name", name.map_or("missing".into(), |n| escape(&n)), expected));
            }
        }
        if let Some(name) = &name {
            check_name(line, name)?;
            if self.by_name.insert(name.clone(), self.devices.len()).is_some() {
                let expected = "each device's lines in one run";
                return Err(invalid(line, "name", format!("\"{}\" again", escape(name)), expected));
            }
        }
        self.devices.push(Device { name, targets: Vec::new() });
        Ok(())
    }

    /// A reference to a device of this table leads to an earlier one, and lies inside it.
    fn check_references(&self, target: &Target) -> Result<(), FormatError> {
        let per_device = match &target.kind {
            TargetKind::Striped { stripes, .. } => target.length / u64::try_from(stripes.len()).unwrap_or(1),
            TargetKind::Raid(raid) => raid.device_sectors(target.length).unwrap_or(target.length),
            _ => target.length,
        };
        let whole = match &target.kind {
            TargetKind::Snapshot(snapshot) | TargetKind::SnapshotMerge(snapshot) => vec![&snapshot.store],
            TargetKind::ThinPool(pool) => vec![&pool.metadata],
            TargetKind::Thin(thin) => std::iter::once(&thin.pool).chain(&thin.external_origin).collect(),
            _ => Vec::new(),
        };
        for dev in whole {
            self.check_reference(target.line_number, dev, 0)?;
        }
        for below in target.kind.below() {
            self.check_reference(target.line_number, &below.dev, below.offset + per_device)?;
        }
        Ok(())
    }

    /// A range of a device, up to `end`, is one of an earlier device if it is one of this table.
    fn check_reference(&self, line: u64, dev: &str, end: u64) -> Result<(), FormatError> {
        let Some(name) = reference(dev) else { return Ok(()) };
        let at = match self.by_name.get(name) {
            Some(at) => *at,
            // Not of this table: a device of the host.
            None if !dev.starts_with("dm/") => return Ok(()),
            None => {
                let found = format!("\"{}\"", escape(dev));
                return Err(invalid(line, "device", found, "a device that is defined above"));
            }
        };
        if at + 1 == self.devices.len() {
            let found = format!("\"{}\", itself", escape(dev));
            return Err(invalid(line, "device", found, "a device that is defined above"));
        }
        let size = self.devices[at].sectors();
        if end > size {
            let expected = format!("at most {size}, the size of {}", escape(name));
            return Err(invalid(line, "end of the range below", end, expected));
        }
        Ok(())
    }
}

fn check_name(line: u64, name: &str) -> Result<(), FormatError> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(['/', ',']) {
        let expected = format!("1 to {NAME_MAX} bytes without '/' and ','");
        return Err(invalid(line, "name", format!("\"{}\"", escape(name)), expected));
    }
    Ok(())
}

/// Cuts a line into its name and words, minding backslashes and comments.
fn split(line_number: u64, line: &str) -> Result<(Option<String>, Vec<String>), FormatError> {
    let mut words = Vec::new();
    let (mut word, mut quoted) = (None::<String>, false);
    for c in line.chars() {
        if quoted {
            word.get_or_insert_default().push(c);
            quoted = false;
        } else if c == '\\' {
            quoted = true;
            word.get_or_insert_default();
        } else if c == '#' {
            break;
        } else if c.is_whitespace() {
            words.extend(word.take());
        } else {
            word.get_or_insert_default().push(c);
        }
    }
    if quoted {
        return Err(invalid(line_number, "last character", "a backslash", "a character after it"));
    }
    words.extend(word);
    let name = match words.first().and_then(|first| first.strip_suffix(':')) {
        Some(name) => Some(name.to_owned()),
        None => return Ok((None, words)),
    };
    words.remove(0);
    Ok((name, words))
}

/// The words of a line that are left.
struct Words {
    line: u64,
    words: std::vec::IntoIter<String>,
}

impl Words {
    fn next(&mut self, field: &'static str, expected: &str) -> Result<String, FormatError> {
        self.words.next().ok_or_else(|| invalid(self.line, field, "missing", expected))
    }

    fn number(&mut self, field: &'static str) -> Result<u64, FormatError> {
        let word = self.next(field, "a number")?;
        // Not `parse` alone: it takes a leading plus, which dmsetup's readers would not print.
        let digits = word.bytes().all(|c| c.is_ascii_digit());
        let number = word.parse().ok().filter(|n| digits && *n <= SECTORS_MAX);
        number.ok_or_else(|| {
            let expected = format!("a decimal number, at most {SECTORS_MAX}");
            invalid(self.line, field, format!("\"{}\"", escape(&word)), expected)
        })
    }

    fn below(&mut self, length: u64) -> Result<Below, FormatError> {
        let dev = self.next("device", "a path, or null:SIZE, memory:SIZE, dm/NAME")?;
        let offset = self.number("offset")?;
        match offset.checked_add(length).filter(|end| *end <= SECTORS_MAX) {
            Some(_) => Ok(Below { dev, offset }),
            None => {
                let expected = format!("at most {}, as the range is {length} long", SECTORS_MAX - length);
                Err(invalid(self.line, "offset", offset, expected))
            }
        }
    }

    /// A device that is mapped whole, from its start.
    fn whole(&mut self, start: u64) -> Result<Below, FormatError> {
        if start != 0 {
            let expected = "0: a snapshot's sectors, and its origin's, are those of the device below";
            return Err(invalid(self.line, "start", start, expected));
        }
        Ok(Below { dev: self.next("origin", "a device")?, offset: 0 })
    }

    fn end(&mut self, target: &str) -> Result<(), FormatError> {
        match self.words.next() {
            None => Ok(()),
            Some(word) => {
                let expected = format!("the end of the line after the arguments of {target}");
                Err(invalid(self.line, "argument", format!("\"{}\"", escape(&word)), expected))
            }
        }
    }
}

fn target(line_number: u64, words: &mut Words) -> Result<Target, FormatError> {
    let start = words.number("start")?;
    let length = words.number("length")?;
    if length == 0 {
        return Err(invalid(line_number, "length", 0, "at least 1 sector"));
    }
    if start.checked_add(length).is_none_or(|end| end > SECTORS_MAX) {
        return Err(invalid(line_number, "length", length, format!("at most {}", SECTORS_MAX - start)));
    }
    let name = words.next("target", SUPPORTED)?;
    let kind = match name.as_str() {
        "linear" => TargetKind::Linear(words.below(length)?),
        "striped" => striped(words, length)?,
        "delay" => delay(words, length)?,
        "raid" => raid::raid(words, length)?,
        "zero" => TargetKind::Zero,
        "error" => TargetKind::Error,
        "snapshot-origin" => TargetKind::SnapshotOrigin(words.whole(start)?),
        "snapshot" => TargetKind::Snapshot(Box::new(snapshot(words, start)?)),
        "snapshot-merge" => TargetKind::SnapshotMerge(Box::new(merging(words, start)?)),
        "thin-pool" => TargetKind::ThinPool(Box::new(thin::thin_pool(words, start)?)),
        "thin" => TargetKind::Thin(thin::thin(words)?),
        _ => return Err(unknown(line_number, &name)),
    };
    words.end(kind.name())?;
    Ok(Target { start, length, line_number, kind })
}

fn unknown(line: u64, name: &str) -> FormatError {
    if NOT_YET.contains(&name) {
        let found = format!("{name}, which is not supported yet");
        return error(ErrorKind::Unsupported, line, "target", found, SUPPORTED);
    }
    error(ErrorKind::Unsupported, line, "target", format!("\"{}\"", escape(name)), SUPPORTED)
}

fn snapshot(words: &mut Words, start: u64) -> Result<Snapshot, FormatError> {
    let line = words.line;
    let origin = words.whole(start)?;
    let store = words.next("store", "a device")?;
    let word = words.next("kind of store", "P, PO or N")?;
    let persistence = match word.to_ascii_uppercase().as_str() {
        "P" => Persistence::Persistent,
        "PO" => Persistence::PersistentOverflow,
        "N" => Persistence::Transient,
        _ => return Err(invalid(line, "kind of store", format!("\"{}\"", escape(&word)), "P, PO or N")),
    };
    let chunk = words.number("chunk")?;
    let layout = u32::try_from(chunk).ok().and_then(Layout::new).ok_or_else(|| {
        let expected = format!("a power of two up to {CHUNK_SECTORS_MAX} sectors");
        invalid(line, "chunk", chunk, expected)
    })?;
    let mut target = Snapshot {
        origin,
        store,
        persistence,
        chunk: layout,
        discard_zeroes_cow: false,
        discard_passdown_origin: false,
    };
    let count = words.words.next();
    let count = match count.as_deref() {
        None | Some("0") => 0,
        Some("1") => 1,
        Some("2") => 2,
        Some(other) => {
            return Err(invalid(line, "number of features", format!("\"{}\"", escape(other)), "0 to 2"));
        }
    };
    for _ in 0..count {
        match words.next("feature", FEATURES)?.as_str() {
            DISCARD_ZEROES_COW => target.discard_zeroes_cow = true,
            DISCARD_PASSDOWN_ORIGIN => target.discard_passdown_origin = true,
            other => return Err(invalid(line, "feature", format!("\"{}\"", escape(other)), FEATURES)),
        }
    }
    if target.discard_passdown_origin && !target.discard_zeroes_cow {
        return Err(invalid(line, "feature", DISCARD_PASSDOWN_ORIGIN, "discard_zeroes_cow besides"));
    }
    Ok(target)
}

fn merging(words: &mut Words, start: u64) -> Result<Snapshot, FormatError> {
    let snapshot = snapshot(words, start)?;
    if snapshot.persistence == Persistence::Transient {
        let expected = "P or PO: what is only in memory cannot be merged";
        return Err(invalid(words.line, "kind of store", "N", expected));
    }
    Ok(snapshot)
}

fn delay(words: &mut Words, length: u64) -> Result<TargetKind, FormatError> {
    let below = words.below(length)?;
    let delay = words.number("delay")?;
    let delay_ms = u32::try_from(delay)
        .map_err(|_| invalid(words.line, "delay", delay, "at most 4294967295 milliseconds"))?;
    Ok(TargetKind::Delay { below, delay_ms })
}

fn striped(words: &mut Words, length: u64) -> Result<TargetKind, FormatError> {
    let line = words.line;
    let n = words.number("number of stripes")?;
    let n = match u32::try_from(n) {
        Ok(n) if (1..=STRIPES_MAX).contains(&n) => n,
        _ => return Err(invalid(line, "number of stripes", n, format!("1 to {STRIPES_MAX}"))),
    };
    let chunk = words.number("chunk")?;
    let chunk = match u32::try_from(chunk) {
        Ok(chunk) if chunk > 0 => chunk,
        _ => return Err(invalid(line, "chunk", chunk, "1 to 4294967295 sectors")),
    };
    if !length.is_multiple_of(u64::from(n)) {
        return Err(invalid(line, "length", length, format!("a multiple of the number of stripes, {n}")));
    }
    let width = length / u64::from(n);
    if !width.is_multiple_of(u64::from(chunk)) {
        let expected = format!("a multiple of {n} stripes x chunk {chunk}");
        return Err(invalid(line, "length", length, expected));
    }
    let mut stripes = Vec::with_capacity(index(n.min(64)));
    for _ in 0..n {
        stripes.push(words.below(width)?);
    }
    Ok(TargetKind::Striped { chunk, stripes })
}
