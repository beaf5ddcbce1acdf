//! The log of dm-mirror on a disk: in which regions the copies of a mirror have the same content. LVM's old mirrors
//! have one in their `_mlog` volume.
//!
//! Little-endian, no checksum:
//!
//! | byte | what |
//! | --- | --- |
//! | 0 | magic u32 "MiRr"; version u32 (2); nr_regions u64 |
//! | 1024 | a bit for each region, the lowest of each byte first: 1, the region is clean |
//!
//! The kernel clears a region's bit, durably, before it writes to any copy, and sets it when all copies have what was
//! written. One that a copy has missed, or that was never copied, stays cleared. In a new log LVM has `nr_regions` of
//! all ones, and bits that say whether the copies are the same from the start.
//!
//! (1) Clean runs are in order, apart, and within the mirror; (2) regions beyond `nr_regions` are new, and not clean.
//!
//! Source: the kernel's `drivers/md/dm-log.c`, for the facts.

#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::bytes::{length, u32_le, u64_le};
use crate::{ErrorKind, FormatError, Source};

/// Where the bits are, bytes from the start of the log.
pub const BITS_OFFSET: u64 = 1024;

/// Most regions of a mirror: 16 MiB of bits.
pub const REGIONS_MAX: u64 = 1 << 27;

/// Most clean runs that are told apart. A mirror that was in use when the power went has some hundred regions that
/// are not clean.
pub const RUNS_MAX: usize = 4096;

const MAGIC: u32 = 0x4d69_5272;
/// That before it has bits in the order of the machine's words, which on little-endian ones is the same.
const VERSIONS: Range<u32> = 1..3;
const PLACE: &str = "mirror log";
/// Bits that are read at once, bytes.
const BATCH_BYTES: usize = 64 << 10;

/// Reads which regions are clean of a mirror that has so many: where each run of them begins and ends.
///
/// # Errors
///
/// No log, one of another version or without room for the regions; or more regions or runs than are read here.
pub fn read_clean(log: &dyn Source, regions: u64) -> Result<Vec<Range<u64>>, FormatError> {
    if regions > REGIONS_MAX {
        return Err(FormatError::limit(PLACE, BITS_OFFSET, "regions", regions, at_most(REGIONS_MAX)));
    }
    let room = log.size().saturating_sub(BITS_OFFSET).saturating_mul(8);
    if regions > room {
        let expected = format!("{regions} for the regions of its mirror");
        return Err(FormatError::invalid(PLACE, BITS_OFFSET, "room for bits", room, expected));
    }
    let known = read_header(log)?.min(regions);
    let mut runs = Runs::default();
    let mut bits = vec![0; BATCH_BYTES];
    let mut first = 0;
    while first < known {
        let bytes = usize::try_from((known - first).div_ceil(8)).unwrap_or(usize::MAX).min(BATCH_BYTES);
        read(log, BITS_OFFSET + first / 8, &mut bits[..bytes])?;
        let next = (first + length(bytes) * 8).min(known);
        (first..next)
            .zip(ones(&bits))
            .filter(|(_, is_clean)| *is_clean)
            .try_for_each(|(n, _)| runs.add(n))?;
        first = next;
    }
    Ok(runs.0)
}

/// Of how many regions it has bits.
fn read_header(log: &dyn Source) -> Result<u64, FormatError> {
    let mut header = [0; 16];
    read(log, 0, &mut header)?;
    let (magic, version) = (u32_le(&header, 0), u32_le(&header, 4));
    if magic != MAGIC {
        return Err(FormatError::invalid(
            PLACE,
            0,
            "magic",
            format!("{magic:#010x}"),
            format!("{MAGIC:#010x}"),
        ));
    }
    if !VERSIONS.contains(&version) {
        let mut error = FormatError::invalid(PLACE, 4, "version", version, "1 or 2");
        error.kind = ErrorKind::Unsupported;
        return Err(error);
    }
    Ok(u64_le(&header, 8))
}

fn read(log: &dyn Source, at: u64, into: &mut [u8]) -> Result<(), FormatError> {
    log.read_at(at, into).map_err(|error| FormatError::unreadable(PLACE, at, &error))
}

/// The bits, in order.
fn ones(bytes: &[u8]) -> impl Iterator<Item = bool> {
    bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1))
}

#[derive(Default)]
struct Runs(Vec<Range<u64>>);

impl Runs {
    /// One more clean region, behind the others.
    fn add(&mut self, region: u64) -> Result<(), FormatError> {
        let count = self.0.len();
        match self.0.last_mut() {
            Some(last) if last.end == region => last.end += 1,
            _ if count == RUNS_MAX => {
                let found = format!("in more than {RUNS_MAX} pieces");
                let expected = at_most(RUNS_MAX);
                return Err(FormatError::limit(PLACE, BITS_OFFSET, "what is clean", found, expected));
            }
            _ => self.0.push(region..region + 1),
        }
        Ok(())
    }
}

fn at_most(limit: impl std::fmt::Display) -> String {
    format!("at most {limit}")
}
