//! An array about which nothing is written: device-mapper's `raid` target with `-` for its metadata devices.
//!
//! Whoever writes such a table takes the kernel's word for what follows: after a crash mirrors may differ where writes were
//! under way, or a parity may not fit, and nothing will tell; a member that failed is as good as any other when the table is
//! loaded again, and a parity is made of what it has then, so that what was written without it is lost: it has to be left out of
//! the table, or be given for one to be rebuilt. While it runs, all is as with other arrays: a member that fails is left out, reads
//! go to the others.

use super::record::{ArrayState, Record, Site};

/// A record without any place to write to: the array may be written, and nothing about it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unrecorded;

impl Record for Unrecorded {
    fn sites(&self) -> &[Site] {
        &[]
    }

    fn superblock(&self, site: usize, _: &ArrayState) -> Vec<u8> {
        unreachable!("there is no site {site}")
    }

    fn events(&self, site: usize) -> u64 {
        unreachable!("there is no site {site}")
    }
}
