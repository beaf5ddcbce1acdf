//! What was done with a group, in a sentence.

use blockwork_volume::lvm::edit::{Change, Draft, Made, NewSnapshot, NewThinSnapshot};

use crate::scan::size;

/// A change that was made in this draft.
pub(crate) fn said(draft: &Draft, change: &Change, made: &Made) -> String {
    let group = &draft.group().name;
    let bytes = |extents: u64| size(extents * draft.group().extent_sectors * 512);
    let name = change.volume(made).map(|name| format!("{group}/{name}")).unwrap_or_default();
    match (change, made) {
        (_, Made::Created(created)) => format!("{name}: {}", bytes(created.extents)),
        (_, Made::Pool(pool)) => format!(
            "{name}: a thin pool of {} in chunks of {}, with a map of {}",
            bytes(pool.extents),
            size(pool.chunk_sectors * 512),
            bytes(pool.metadata_extents)
        ),
        (Change::CreateThin(new), Made::Thin { extents }) => {
            format!("{name}: {} in {group}/{}", bytes(*extents), new.pool)
        }
        (Change::Snapshot(NewSnapshot { origin, .. }), Made::Snapshot(made)) => {
            format!("{name}: a snapshot of {origin}, with room for {}", bytes(made.extents))
        }
        (Change::SnapshotThin(NewThinSnapshot { origin, .. }), _) => {
            format!("{name}: a snapshot of {origin}, in its pool")
        }
        (_, Made::Resized(resized)) => {
            let (to, from) = (bytes(resized.to), bytes(resized.from));
            // Sizes are rounded for people: a small change of a large volume would not be seen.
            match to == from {
                true => {
                    format!("{name}: {to} ({} extents), before it was {from} ({})", resized.to, resized.from)
                }
                false => format!("{name}: {to}, before it was {from}"),
            }
        }
        (Change::Merge { .. }, _) => format!("{name}: it is to be merged into its origin"),
        (Change::Rename { volume, .. }, _) => format!("{group}/{volume} is {name} now"),
        (Change::Remove { volumes }, _) => {
            let names: Vec<String> = volumes.iter().map(|volume| format!("{group}/{volume}")).collect();
            format!("removed {}", names.join(", "))
        }
        (Change::TagVolume { volume, .. }, _) => {
            let lv = draft.group().lv(volume).map(|lv| &draft.group().lvs[lv.0]);
            format!("{name}: tags {}", lv.map(|lv| lv.tags.join(", ")).unwrap_or_default())
        }
        _ => format!("{group}: tags {}", draft.group().tags.join(", ")),
    }
}
