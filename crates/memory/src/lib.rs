//! I/O memory: page-aligned buffers, a pool of them per worker, most of it cut from slabs that the kernel can be told of, memory shared with other processes or granted by other
//! domains of Xen's, and segments that point into any of them.
//!
//! This is one of the few crates that contain `unsafe` (see ARCHITECTURE.md): it owns raw memory that the kernel
//! reads and writes behind Rust's back (io_uring), so nothing here ever hands out a `&[u8]` or `&mut [u8]` to that
//! memory. Everybody else copies in and out through [`Buffer`] and [`Segment`], which check their bounds.
//!
//! Invariants:
//! 1. A [`Segment`] keeps its [`Buffer`] alive, and a buffer keeps its allocation alive: an address taken from a
//!    segment is valid for as long as the segment (or a clone of it) exists.
//! 2. Buffers are aligned to [`PAGE`] and are not `Send`: a worker's memory is touched by that worker and, while a
//!    request is in flight, by the kernel.
//! 3. A buffer that comes from a [`Pool`] goes back to it when its last reference is dropped; taking one from a
//!    warm pool allocates nothing.
//! 4. A [`Mapping`] stays mapped while anything points into it, also if its file is cut short meanwhile by who shares it:
//!    then it turns into private zeros and says so ([`Mapping::is_torn`]), and no process ends by SIGBUS (`fault`).
//! 5. Memory is zeroed when it is first allocated, and *not* when it is reused: whoever reads into a buffer fills
//!    all of it, or the rest is some earlier request's data. (The engine asserts it: a read completes only when
//!    every byte of it was written.)

mod budget;
mod buffer;
mod fault;
mod granted;
mod guest;
mod huge;
mod lockable;
mod mapping;
mod near;
mod pieces;
mod pool;
mod segment;
mod slab;
mod words;

pub use budget::{MAPPINGS, MAPPINGS_MAX, MappingBudget, mappings_max};
pub use buffer::{Buffer, PAGE};
pub use granted::GrantDevice;
pub use guest::{
    GUEST_BYTES_MAX, GUEST_REGIONS_MAX, GuestLayout, GuestMemory, GuestRange, GuestRanges, GuestRegion,
    LayoutError, NotGuestMemory,
};
pub use huge::{Gathered, HUGE_PAGE};
pub use lockable::lockable;
pub use mapping::{MAPPED_BYTES_MAX, MapError, Mapping, Place};
pub use near::bring_near;
pub use pieces::{InPiece, PIECE_BYTES};
pub use pool::Pool;
pub use segment::{Segment, Segments, bytes_in, copy_between, slice_segments};
pub use slab::{SLAB_BYTES, Slab};
