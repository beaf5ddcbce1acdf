//! Sizes among the options. A number alone counts what it does for the tool whose option it is: KiB for mdadm's, and for what LVM's
//! man pages write as `Size[k|UNIT]`; MiB for LVM's `Size[m|UNIT]`.

use anyhow::Result;
use blockwork_format::SECTOR_BYTES;
use blockwork_leaf::parse_size_in;

use crate::usage::{bail_usage, usage};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// A size; a number alone counts `plain` bytes.
pub(crate) fn bytes(option: &str, text: &str, plain: u64) -> Result<u64> {
    parse_size_in(text, plain).map_err(|why| usage!("{option}: {why}"))
}

/// The same, in whole sectors.
pub(crate) fn sectors(option: &str, text: &str, plain: u64) -> Result<u64> {
    let bytes = bytes(option, text, plain)?;
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
        bail_usage!("{option} {text}: expected whole sectors of 512 bytes");
    }
    Ok(bytes / SECTOR_BYTES)
}
