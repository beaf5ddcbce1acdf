//! Files of a front end's, mapped.

use std::os::fd::AsFd;

use blockwork_format::vhost_user::Region;
use blockwork_memory::{GuestRegion, Mapping, Place};

use super::given::Given;
use super::refusal::Refusal;

/// A part of a file of the front end's, mapped.
pub(super) fn place(what: &'static str, file: &Given, offset: u64, len: u64) -> Result<Place, Refusal> {
    let mapped = Mapping::of_memory(file.as_fd(), offset, len);
    mapped.map_err(|source| Refusal::Map { what, offset, len, source })
}

/// The memory of a guest's that a region is.
pub(super) fn map(region: &Region, file: &Given) -> Result<GuestRegion, Refusal> {
    let Region { guest, size: len, user, offset } = *region;
    let Place { mapping, offset } = place("memory", file, offset, len)?;
    Ok(GuestRegion { guest, user, len, mapping, offset: offset as u64 })
}
