//! Thin pools and their volumes, as `blockwork lv create` and `lv snapshot` are asked for them.

use anyhow::Result;
use blockwork_volume::lvm::edit::{self, NewThin, NewThinPool};

use super::amount;
use super::args::{CreateArgs, Discards, YesNo};
use crate::sizes::{KIB, MIB, bytes, sectors};
use crate::usage::bail_usage;

pub(super) fn new_pool(args: &CreateArgs, name: &str) -> Result<NewThinPool> {
    let thin = &args.thin;
    let metadata = thin.pool_metadata_size.as_deref();
    Ok(NewThinPool {
        name: name.to_owned(),
        size: amount::new_size(args.size.as_deref(), args.extents.as_deref())?,
        chunk_sectors: thin.chunksize.as_deref().map(|text| sectors("--chunksize", text, KIB)).transpose()?,
        metadata_bytes: metadata.map(|text| bytes("--pool-metadata-size", text, MIB)).transpose()?,
        zero: thin.zero == YesNo::Y,
        discards: match thin.discards {
            Discards::Passdown => edit::Discards::Passdown,
            Discards::Nopassdown => edit::Discards::NoPassdown,
            Discards::Ignore => edit::Discards::Ignore,
        },
        error_when_full: thin.error_when_full == YesNo::Y,
        tags: args.addtag.clone(),
    })
}

pub(super) fn new_volume(args: &CreateArgs, group: &str, name: &str, pool: &str) -> Result<NewThin> {
    let pool = match pool.split_once('/') {
        None => pool,
        Some((same, pool)) if same == group => pool,
        Some((other, _)) => {
            bail_usage!("--thin {pool}: a volume is in the group of its pool, not in {other}");
        }
    };
    let Some(virtual_size) = &args.thin.virtual_size else {
        bail_usage!(
            "--thin: how large the volume is to be is said by --virtual-size (-V), as it takes no room by itself"
        );
    };
    Ok(NewThin {
        name: name.to_owned(),
        pool: pool.to_owned(),
        bytes: bytes("--virtual-size", virtual_size, MIB)?,
        tags: args.addtag.clone(),
    })
}
