//! LVM2: what the bytes on a physical volume mean, and the text in which a volume group is described.
//!
//! From the outside in: a [`Label`] in one of the first four sectors of a disk says that it is a PV, and where its
//! metadata areas are. An [`AreaHeader`] opens each area, and says where in the ring behind it the text lies
//! ([`RawLocation`]), with its CRC. The text is parsed into a [`Section`], which keeps everything but comments and white
//! space, so that what a newer LVM wrote survives our rewriting; and a [`VolumeGroup`] is the typed, checked view of it.
//!
//! Invariants:
//!
//! 1. What was read has the right CRC, and lies where it may: areas inside the disk, texts inside their area.
//! 2. `parse(print(x)) == x` for every tree ([`Section`]); [`Section::print`] writes what LVM itself would write, byte
//!    by byte, but for the comments.
//! 3. A [`VolumeGroup`] is consistent: see there.
//! 4. Every limit is a named constant here or in [`text`]; what is over it is refused before memory is taken for it.
//!
//! Paths in metadata (`device = "/dev/sda"`) are hints and only text here: PVs are found by UUID.
//!
//! Order of writes that change metadata: the text to [`AreaHeader::place`] in every area; slot 1 (precommitted) of every
//! header; slot 0 = it and slot 1 cleared in every header. A text is never written over the committed one. [`commit`] makes
//! the steps of that.
//!
//! Sources: lvm2's `lib/format_text`, `lib/label` and `lib/config` as documentation of the format; man lvm(8),
//! vgcfgbackup(8), pvck(8).

mod area;
pub mod commit;
mod crc;
mod label;
pub mod names;
pub mod text;
mod uuid;
pub mod vg;

pub use area::{AreaHeader, RawLocation, mend_header_crc};
pub use label::{DiskArea, Extension, FoundLabel, Label, PvHeader, mend_label_crc};
pub use text::{Entry, Node, Section, Style, Value};
pub use uuid::Uuid;
pub use vg::VolumeGroup;

/// Bytes of a label, of an area's header, and the unit to which texts in the ring are aligned.
pub const BLOCK_BYTES: usize = 512;

/// Sectors in which a label is looked for: 0 to 3.
pub const LABEL_SECTORS: u64 = 4;

/// Longest text that is read, bytes. A VG of 2,000 LVs has about 1 MiB.
pub const TEXT_BYTES_MAX: usize = 32 << 20;
