//! What happens to disks, in order: for tests of what reaches them, in which form, and when.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Mutex;

use blockwork_engine::{Flags, LeafId, Op, Sector, Sectors, WriteTap};
use blockwork_memory::Segment;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// With its first sector and their number.
    Altered(Op, Flags, u64, u64),
    FlushStarted,
    Flushed,
}

/// All that happened since it was asked last.
#[derive(Default)]
pub struct Log(Mutex<Vec<Seen>>);

impl Log {
    fn push(&self, seen: Seen) {
        self.0.lock().unwrap().push(seen);
    }

    /// Takes what there is.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// What there is, and stays.
    pub fn so_far(&self) -> Vec<Seen> {
        self.0.lock().unwrap().clone()
    }
}

impl WriteTap for Log {
    fn altered(&self, _leaf: LeafId, op: Op, flags: Flags, sector: Sector, nr: Sectors, _data: &[Segment]) {
        self.push(Seen::Altered(op, flags, sector.0, nr.0));
    }
    fn flush_started(&self, _leaf: LeafId) -> u64 {
        self.push(Seen::FlushStarted);
        0
    }
    fn flushed(&self, _leaf: LeafId, _ticket: u64) {
        self.push(Seen::Flushed);
    }
}
