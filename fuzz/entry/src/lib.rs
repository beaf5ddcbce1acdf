//! The bodies of the fuzz targets: each takes any bytes, gives them to a parser, and asserts what must be true of
//! whatever comes back.
//!
//! They are here, and not in the fuzz targets themselves, so that they run on stable too: `tests/corpus.rs` runs every
//! target over its corpus and over a fixed number of mutations of it, whenever the tests run.
//!
//! A body says how far an input got with [`reached`]: the test asserts that mutated inputs still get deep, and are not
//! all refused at the first check.
//!
//! Not here: how a target is added (`fuzz/README.md`), and the seeds of the corpora ([`seeds`]).

#![forbid(unsafe_code)]

mod blkif;
mod blktrace;
mod cache_metadata;
mod dm_raid;
mod dm_table;
mod exception_store;
mod input;
mod log_writes;
mod lvm2;
mod md;
mod mirror_log;
mod nbd;
mod nfs3;
mod nfs4;
mod partition;
mod reach;
pub mod seeds;
mod thin_edit;
mod thin_metadata;
mod virtqueue;

pub use blkif::blkif;
pub use blktrace::blktrace;
pub use cache_metadata::{cache_metadata, writecache};
pub use dm_raid::dm_raid;
pub use dm_table::dm_table;
pub use exception_store::exception_store;
pub use log_writes::log_writes;
pub use lvm2::{lvm2_pv, lvm2_text};
pub use md::{md_bad_blocks, md_bitmap, md_superblock};
pub use mirror_log::mirror_log;
pub use nbd::nbd;
pub use nfs3::nfs3;
pub use nfs4::nfs4;
pub use partition::{gpt, mbr, partition};
pub use reach::{reached, take_reached};
pub use thin_edit::thin_edit;
pub use thin_metadata::thin_metadata;
pub use virtqueue::{vhost_user, virtqueue};

/// A target's body.
pub type Body = fn(&[u8]);

/// Every target: its name (of its corpus, and of the fuzz target) and its body.
pub const TARGETS: &[(&str, Body)] = &[
    ("gpt", gpt),
    ("mbr", mbr),
    ("partition", partition),
    ("dm_table", dm_table),
    ("blkif", blkif),
    ("blktrace", blktrace),
    ("log_writes", log_writes),
    ("nbd", nbd),
    ("nfs3", nfs3),
    ("nfs4", nfs4),
    ("lvm2_pv", lvm2_pv),
    ("lvm2_text", lvm2_text),
    ("md_superblock", md_superblock),
    ("md_bitmap", md_bitmap),
    ("md_bad_blocks", md_bad_blocks),
    ("dm_raid", dm_raid),
    ("mirror_log", mirror_log),
    ("exception_store", exception_store),
    ("thin_metadata", thin_metadata),
    ("thin_edit", thin_edit),
    ("cache_metadata", cache_metadata),
    ("writecache", writecache),
    ("vhost_user", vhost_user),
    ("virtqueue", virtqueue),
];

/// Asserts that text is safe to print: what comes out of an image must have been escaped.
pub fn assert_printable(text: &str) {
    assert!(!text.contains(|c: char| c.is_control()), "not escaped: {text:?}");
}
