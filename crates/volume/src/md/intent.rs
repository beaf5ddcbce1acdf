//! The write-intent bitmap of an array, as its members have it.
//!
//! Each member has a copy. One that belongs to the array and is as new as its superblocks is believed; of several, a chunk
//! may differ where any of them says so. Where none can be believed, every chunk may differ.

use blockwork_format::md::Uuid;
use blockwork_format::md::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};
use blockwork_format::md::v1::Superblock;
use blockwork_format::{FormatError, SECTOR_BYTES, Source};
use blockwork_layer::md::IntentConfig;

/// A bitmap as it was read from a member.
pub(crate) type Copy = Result<(BitmapSuperblock, Bits), FormatError>;

/// Reads a member's copy; `None` where its superblock says that there is none.
pub(super) fn read(source: &dyn Source, superblock: &Superblock) -> Option<Copy> {
    let offset = superblock.bitmap_sector()?.saturating_mul(SECTOR_BYTES);
    let room = superblock.bitmap_room_sectors(source.size() / SECTOR_BYTES).unwrap_or(0);
    Some(read_at(source, offset, superblock.set_uuid, superblock.sync_sectors().unwrap_or(0), room))
}

/// Reads the bitmap at byte `offset`: that of the array with this UUID, for so many sectors, with so much room.
pub(crate) fn read_at(source: &dyn Source, offset: u64, uuid: Uuid, sync_sectors: u64, room: u64) -> Copy {
    let unreadable = |at| move |error| FormatError::unreadable("md bitmap", at, &error);
    let mut head = [0; BITMAP_SUPERBLOCK_BYTES];
    source.read_at(offset, &mut head).map_err(unreadable(offset))?;
    let bitmap = BitmapSuperblock::decode(&head, offset)?;
    bitmap.check_for(uuid, sync_sectors, room, offset)?;
    // `decode` has bounded their number, `check_for` their place.
    let mut bytes = vec![0; usize::try_from(bitmap.bits_bytes()).expect("at most BITS_MAX bits")];
    let at = offset + head.len() as u64;
    source.read_at(at, &mut bytes).map_err(unreadable(at))?;
    let bits = Bits::decode(&bitmap, &bytes, at)?;
    Ok((bitmap, bits))
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
