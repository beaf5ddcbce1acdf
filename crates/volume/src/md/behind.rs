//! Members that the last update of the superblocks has not reached, because the power went in the midst of it.
//!
//! An update may have changed the size that the array uses of each member, and whether it has a bitmap (`md grow`). A member
//! without it is as good as the others: it is read and written as if its superblock said what the truth says.
//!
//! Invariant: what is read has a copy on each member that counts as in sync, or counts as a place where mirrors may differ. Up
//! to the smaller of two sizes, a member that is one event behind is as good as it always is: no write came between the two
//! events. Behind that,
//!
//! - a truth that is smaller uses nothing;
//! - a truth that is larger, and has a bitmap, leaves the member out: the bitmap of the larger array is written, and told of,
//!   only after all members know the size, so this is no cut that we make, and what the bits say of that member nobody knows;
//! - a truth that is larger, and has none, is resynced from the smaller end at the latest, whatever it says itself: also where
//!   somebody has said that the members agree there.

use blockwork_format::md::Superblock;
use blockwork_format::md::v1::{self, Features};

/// Whether the superblocks differ in nothing that an array cannot change but by a reshape.
pub(super) fn same_but_for_size(one: &v1::Superblock, other: &v1::Superblock) -> bool {
    let words =
        |s: &v1::Superblock| (s.level, s.layout, s.chunk_sectors, s.raid_disks, s.ctime, s.minor, s.set_uuid);
    words(one) == words(other)
}

/// Whether a device of `sectors` has another size than the truth only because the last update has not reached it, and can be
/// taken for one that has it.
pub(super) fn is_cut_off(truth: &Superblock, own: &Superblock, sectors: u64) -> bool {
    let (Superblock::V1(truth), Superblock::V1(own)) = (truth, own) else { return false };
    let is_told_apart = truth.size > own.size && truth.features.has(Features::BITMAP);
    truth.level.has_equal_members()
        && is_near(truth, own)
        && !is_told_apart
        && as_updated(truth, own, sectors).check(sectors).is_ok()
}

/// The superblock of a device of `sectors` as it would be had the last update reached it, but for its events: who writes to the
/// array makes them even first.
pub(super) fn caught_up(truth: &Superblock, own: &Superblock, sectors: u64) -> Superblock {
    match (truth, own) {
        (Superblock::V1(truth), Superblock::V1(own)) if is_near(truth, own) => {
            let updated = as_updated(truth, own, sectors);
            let updated = if updated.check(sectors).is_ok() { updated } else { (**own).clone() };
            Superblock::V1(Box::new(updated))
        }
        _ => own.clone(),
    }
}

fn is_near(truth: &v1::Superblock, own: &v1::Superblock) -> bool {
    same_but_for_size(truth, own) && truth.events.abs_diff(own.events) <= 1
}

fn as_updated(truth: &v1::Superblock, own: &v1::Superblock, sectors: u64) -> v1::Superblock {
    let mut updated = own.clone();
    if truth.level.has_equal_members() && own.size != truth.size {
        updated.size = truth.size;
        updated.data_size = own.room_for_data(sectors);
    }
    let has_bitmap = truth.features.has(Features::BITMAP);
    if has_bitmap && !own.features.has(Features::BITMAP) {
        updated.bitmap_offset = truth.bitmap_offset;
    }
    updated.features = updated.features.with(Features::BITMAP, has_bitmap);
    updated
}
