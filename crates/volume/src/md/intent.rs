//! The write-intent bitmap of an array, as its members have it.
//!
//! Each member has a copy. One that belongs to the array and is as new as its superblocks is believed; of several, a chunk
//! may differ where any of them says so. Where none can be believed, every chunk may differ.

use std::ops::Range;

use blockwork_engine::Sector;
use blockwork_format::md::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};
use blockwork_format::md::v1::Superblock;
use blockwork_format::md::{Uuid, v0};
use blockwork_format::{FormatError, SECTOR_BYTES, Source};
use blockwork_layer::md::IntentConfig;

/// A bitmap as it was read from a member.
pub(crate) type Copy = Result<(BitmapSuperblock, Bits), FormatError>;

/// Reads a member's copy; `None` where its superblock says that there is none.
pub(super) fn read(source: &dyn Source, superblock: &Superblock) -> Option<Copy> {
    let offset = superblock.bitmap_sector()?.saturating_mul(SECTOR_BYTES);
    let room = superblock.bitmap_room_sectors(source.size() / SECTOR_BYTES).unwrap_or(0);
    let sync_sectors = superblock.sync_sectors().unwrap_or(0);
    Some(read_at(source, offset, |_| (superblock.set_uuid, sync_sectors), room))
}

/// The same of a superblock 0.90: its bitmap lies behind it, up to the end of what is kept for the two.
pub(super) fn read_old(source: &dyn Source, superblock: &v0::Superblock) -> Option<Copy> {
    let sector = superblock.bitmap_sector()?;
    let room = (source.size() / SECTOR_BYTES).saturating_sub(sector);
    let expected = (superblock.bitmap_uuid(), superblock.member_sectors());
    Some(read_at(source, sector.saturating_mul(SECTOR_BYTES), |_| expected, room))
}

/// Reads the bitmap at byte `offset`, in so much room: that of the array with the UUID, and for as many sectors, as `expected` says of its
/// superblock.
pub(crate) fn read_at(
    source: &dyn Source,
    offset: u64,
    expected: impl FnOnce(&BitmapSuperblock) -> (Uuid, u64),
    room: u64,
) -> Copy {
    let unreadable = |at| move |error| FormatError::unreadable("md bitmap", at, &error);
    let mut head = [0; BITMAP_SUPERBLOCK_BYTES];
    source.read_at(offset, &mut head).map_err(unreadable(offset))?;
    let bitmap = BitmapSuperblock::decode(&head, offset)?;
    let (uuid, sync_sectors) = expected(&bitmap);
    bitmap.check_for(uuid, sync_sectors, room, offset)?;
    // `decode` has bounded their number, `check_for` their place.
    let mut bytes = vec![0; usize::try_from(bitmap.bits_bytes()).expect("at most BITS_MAX bits")];
    let at = offset + head.len() as u64;
    source.read_at(at, &mut bytes).map_err(unreadable(at))?;
    let bits = Bits::decode(&bitmap, &bytes, at)?;
    Ok((bitmap, bits))
}

/// The bitmap of an array that has grown to so many sectors, in so much room: all that is new may differ. `offset` is for errors.
pub(crate) fn grown(
    (superblock, old): (BitmapSuperblock, Bits),
    sync_sectors: u64,
    room: u64,
    offset: u64,
) -> Copy {
    // The last chunk of the old part may have sectors of the new one.
    let first_new = superblock.sync_size / superblock.chunk_sectors();
    let superblock = superblock.grown(sync_sectors);
    superblock.check(offset)?;
    superblock.check_for(superblock.uuid, sync_sectors, room, offset)?;
    let mut bits = old.grown(superblock.chunks());
    for chunk in first_new..bits.chunks() {
        bits.set(chunk);
    }
    Ok((superblock, bits))
}

/// What the copies of the members in place say together; `events` are the array's, `is_clean` whether it was stopped.
///
/// # Errors
///
/// There are copies, and none is a bitmap of this array: what is wrong with the first.
pub(crate) fn combine(
    copies: Vec<Copy>,
    events: u64,
    is_clean: bool,
) -> Result<Option<IntentConfig>, FormatError> {
    let mut known = Vec::with_capacity(copies.len());
    let mut first_error = None;
    for copy in copies {
        match copy {
            Ok(copy) => known.push(copy),
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    let Some((newest, _)) = known.iter().rev().max_by_key(|(bitmap, _)| bitmap.events) else {
        return first_error.map_or(Ok(None), Err);
    };
    let superblock = newest.clone();
    let mut believed = known
        .into_iter()
        .filter(|(bitmap, bits)| !bitmap.is_stale(events) && bits.chunks() == superblock.chunks());
    Ok(Some(match believed.next() {
        Some((_, mut bits)) => {
            believed.for_each(|(_, other)| bits.merge(&other));
            IntentConfig { superblock, bits, may_differ: !is_clean }
        }
        None => {
            let bits = Bits::dirty(superblock.chunks());
            IntentConfig { superblock, bits, may_differ: true }
        }
    }))
}

/// Why mirrors may differ, or a parity may not fit.
pub(crate) fn why_unsynced(is_new: bool) -> &'static str {
    if is_new {
        "it is new, and not resynced yet, as is done while it is served"
    } else {
        "it was not stopped properly, or not resynced to its end"
    }
}

/// Where the parity of an array that was not stopped may not fit its data, in sectors of a member: what a bitmap says; where there is none, all
/// from `from` to `size`.
pub(crate) fn stale(intent: Option<&IntentConfig>, from: Sector, size: u64) -> Vec<Range<u64>> {
    let Some(IntentConfig { superblock, bits, .. }) = intent else {
        return Some(from.0..size).filter(|range| !range.is_empty()).into_iter().collect();
    };
    let chunk = superblock.chunk_sectors();
    let mut stale: Vec<Range<u64>> = Vec::new();
    let mut next = bits.next_dirty(0);
    while let Some(dirty) = next {
        let (start, end) = (dirty * chunk, (dirty + 1) * chunk);
        match stale.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => stale.push(start..end),
        }
        next = bits.next_dirty(dirty + 1);
    }
    stale
}
