//! The arguments of `thin-pool`: `METADATA DATA BLOCK LOW_WATER [N FEATURE×N]`, and of `thin`: `POOL DEVICE_ID [EXTERNAL_ORIGIN]`.
//!
//! Source: the kernel's `Documentation/admin-guide/device-mapper/thin-provisioning.rst`.

use super::{Words, invalid};
use crate::table::thin::{FEATURES, FEATURES_MAX};
use crate::table::{Below, Thin, ThinPool, ThinPoolFeatures};
use crate::thin::{DATA_BLOCK_SECTORS_MAX, DATA_BLOCK_SECTORS_MIN, DEVICES_MAX};
use crate::{FormatError, escape};

pub(super) fn thin_pool(words: &mut Words, start: u64) -> Result<ThinPool, FormatError> {
    let line = words.line;
    if start != 0 {
        return Err(invalid(line, "start", start, "0: a pool is the only target of its device"));
    }
    let metadata = words.next("metadata device", "a device")?;
    let data = Below { dev: words.next("data device", "a device")?, offset: 0 };
    let block = words.number("block")?;
    let (least, most) = (DATA_BLOCK_SECTORS_MIN, DATA_BLOCK_SECTORS_MAX);
    let block_sectors = u32::try_from(block).ok();
    let block_sectors =
        block_sectors.filter(|block| (least..=most).contains(block) && block.is_multiple_of(least));
    let Some(block_sectors) = block_sectors else {
        let expected = format!("a multiple of {least} sectors, from {least} to {most}");
        return Err(invalid(line, "block", block, expected));
    };
    let low_water = words.number("low water mark")?;
    let features = features(words)?;
    Ok(ThinPool { metadata, data, block_sectors, low_water, features })
}

fn features(words: &mut Words) -> Result<ThinPoolFeatures, FormatError> {
    let line = words.line;
    let mut features = ThinPoolFeatures::default();
    let Some(count) = words.words.next() else { return Ok(features) };
    let count = count.parse().ok().filter(|count| *count <= FEATURES_MAX).ok_or_else(|| {
        let found = format!("\"{}\"", escape(&count));
        invalid(line, "number of features", found, format!("0 to {FEATURES_MAX}"))
    })?;
    for _ in 0..count {
        let word = words.next("feature", FEATURES)?;
        if !features.set(&word) {
            return Err(invalid(line, "feature", format!("\"{}\"", escape(&word)), FEATURES));
        }
    }
    Ok(features)
}

pub(super) fn thin(words: &mut Words) -> Result<Thin, FormatError> {
    let line = words.line;
    let pool = words.next("pool", "a pool that is defined above: dm/NAME")?;
    let id = words.number("device number")?;
    let Some(device_id) = u32::try_from(id).ok().filter(|id| u64::from(*id) < DEVICES_MAX) else {
        return Err(invalid(line, "device number", id, format!("less than {DEVICES_MAX}")));
    };
    let external_origin = words.words.next();
    if external_origin.as_ref() == Some(&pool) {
        let expected = "a device that is not the pool itself";
        return Err(invalid(line, "external origin", format!("\"{}\"", escape(&pool)), expected));
    }
    Ok(Thin { pool, device_id, external_origin })
}
