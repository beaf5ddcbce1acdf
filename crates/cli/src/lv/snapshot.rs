//! `blockwork lv snapshot`: a volume that stays as another one is now.

use anyhow::Result;
use blockwork_volume::lvm::edit::{Change, NewSnapshot, NewThinSnapshot, StoreSize};

use super::args::SnapshotArgs;
use super::{amount, in_group, split};
use crate::sizes::{KIB, sectors};
use crate::usage::usage;
use crate::vg::target::change;

pub(super) fn run(args: &SnapshotArgs) -> Result<()> {
    let (group, origin) = split(&args.volume)?;
    let name = args.name.as_deref().map(|name| in_group(group, name).map(str::to_owned)).transpose()?;
    let (origin, tags) = (origin.to_owned(), args.addtag.clone());
    if args.size.is_none() && args.extents.is_none() {
        return change(&args.place, group, Change::SnapshotThin(NewThinSnapshot { origin, name, tags }));
    }
    let size = store_size(args.size.as_deref(), args.extents.as_deref())?;
    let chunk_sectors = sectors("--chunksize", &args.chunksize, KIB)?;
    change(&args.place, group, Change::Snapshot(NewSnapshot { origin, name, size, chunk_sectors, tags }))
}

/// What `--size` and `--extents` of a snapshot say; one of them is there.
fn store_size(size: Option<&str>, extents: Option<&str>) -> Result<StoreSize> {
    let of_origin =
        extents.and_then(|text| text.split_once('%')).filter(|(_, unit)| unit.eq_ignore_ascii_case("ORIGIN"));
    match of_origin {
        None => amount::new_size(size, extents).map(StoreSize::Of),
        Some((text, _)) => {
            let hundredths = text.parse().ok().filter(|hundredths| (1..=100).contains(hundredths));
            let hundredths =
                hundredths.ok_or_else(|| usage!("--extents {text}%ORIGIN: expected 1 to 100"))?;
            Ok(StoreSize::PercentOrigin(hundredths))
        }
    }
}

#[cfg(test)]
mod tests {
    use blockwork_volume::lvm::edit::Size;

    use super::*;

    #[test]
    fn a_store_is_as_large_as_any_volume_or_as_its_origin_needs() {
        let extents = |text| store_size(None, Some(text));
        assert_eq!(store_size(Some("3M"), None).unwrap(), StoreSize::Of(Size::Bytes(3 << 20)));
        assert_eq!(extents("7").unwrap(), StoreSize::Of(Size::Extents(7)));
        assert_eq!(extents("50%FREE").unwrap(), StoreSize::Of(Size::PercentFree(50)));
        assert_eq!(extents("20%origin").unwrap(), StoreSize::PercentOrigin(20));
        for wrong in ["0%ORIGIN", "101%ORIGIN", "-1%ORIGIN", "%ORIGIN", "5%", "x"] {
            assert!(extents(wrong).is_err(), "{wrong}");
        }
    }
}
