//! Who reads: `cat` through Linux's page cache, and fio at random.
//!
//! Sources: the kernel's `mm/readahead.c` of Linux 4.4 (`ondemand_readahead`) and `mm/filemap.c`: facts, no code.

use std::collections::BTreeMap;
use std::ops::Range;

use blockwork_engine::{Nanos, Op, SECTOR, Sector, Sectors};
use blockwork_sim::Random;

use super::super::lab::{Ask, Next, Workload};

/// Sectors of a page.
pub(super) const PAGE: Sectors = Sectors(4096 / SECTOR);
/// Linux's default for `read_ahead_kb`, 128, and as much as `cat` reads at once; pages.
const READ_AHEAD: u64 = 32;
/// What `cat` takes for a page that is there: 4 GB/s.
const COPY: Nanos = Nanos::micros(1);

/// `cat` of a file that lies in one piece, and is not in the page cache.
///
/// The first read is as long as the read-ahead, so the kernel reads twice that, and marks the page in its middle. Whoever
/// comes to a marked page has the next window of 128 KiB read, whose first page is marked; then he waits for his page. So
/// one window is read while the one before is still on its way.
pub(super) struct Cat {
    start: Sector,
    pages: u64,
    /// The largest bio, pages.
    bio: u64,
    /// What of the current window has not been submitted yet.
    window: Range<u64>,
    mark: u64,
    /// The page that is copied next.
    at: u64,
    /// Pages that have come, from the first on without a gap.
    whole: u64,
    /// What has come behind them: first page, and how many.
    came: BTreeMap<u64, u64>,
}

impl Cat {
    /// Reads a file of so many pages at `start`.
    pub(super) fn new(start: Sector, pages: u64, bio: u64) -> Cat {
        let window = 0..pages.min(2 * READ_AHEAD);
        Cat { start, pages, bio, window, mark: READ_AHEAD, at: 0, whole: 0, came: BTreeMap::new() }
    }
}

impl Workload for Cat {
    fn total(&self) -> Sectors {
        Sectors(self.pages * PAGE.0)
    }

    fn next(&mut self, _: usize) -> Next {
        if self.window.is_empty() && self.at == self.mark {
            self.window = self.window.end..self.pages.min(self.window.end + READ_AHEAD);
            self.mark = if self.window.is_empty() { self.pages } else { self.window.start };
        }
        if self.window.is_empty() {
            let until = self.whole.min(self.mark);
            let pages = until - self.at;
            self.at = until;
            return if pages > 0 { Next::Busy(Nanos(pages * COPY.0)) } else { Next::Wait };
        }
        let pages = self.bio.min(self.window.end - self.window.start);
        let start = self.start + Sectors(self.window.start * PAGE.0);
        self.window.start += pages;
        Next::Ask(Ask { op: Op::Read, start, nr: Sectors(pages * PAGE.0) })
    }

    fn done(&mut self, ask: Ask) {
        self.came.insert(ask.start.since(self.start).0 / PAGE.0, ask.nr.0 / PAGE.0);
        while let Some(pages) = self.came.remove(&self.whole) {
            self.whole += pages;
        }
    }
}

/// fio's `randread` of single pages.
pub(super) struct RandomReads {
    random: Random,
    /// Pages of the volume.
    pages: u64,
    left: u64,
    depth: usize,
}

impl RandomReads {
    /// So many reads, anywhere in a volume, `depth` of them under way.
    pub(super) fn new(seed: u64, volume: Sectors, reads: u64, depth: usize) -> RandomReads {
        RandomReads { random: Random::part(seed, 0), pages: volume.0 / PAGE.0, left: reads, depth }
    }
}

impl Workload for RandomReads {
    fn total(&self) -> Sectors {
        Sectors(self.left * PAGE.0)
    }

    fn next(&mut self, under_way: usize) -> Next {
        if under_way >= self.depth || self.left == 0 {
            return Next::Wait;
        }
        self.left -= 1;
        let start = Sector(self.random.below(self.pages) * PAGE.0);
        Next::Ask(Ask { op: Op::Read, start, nr: PAGE })
    }

    fn done(&mut self, _: Ask) {}
}
