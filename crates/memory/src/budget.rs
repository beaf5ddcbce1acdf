//! Mappings that others have us make, and that stay: of memory that front ends share, and of pages that guests have granted.
//!
//! Linux lets a process have so many mappings and no more (`vm.max_map_count`, 65530 unless somebody has changed it). Where they are used up, the next
//! mmap fails, whosever it is: the allocator's, or a new thread's stack. So whoever lets others decide how many there are takes each out of the one
//! budget of the process, [`MAPPINGS`].

use std::sync::atomic::{AtomicUsize, Ordering};

/// Mappings in [`MAPPINGS`]: half of what Linux lets a process have, and enough for 64 front ends that have all their regions.
pub const MAPPINGS_MAX: usize = 32_768;

/// Those of this process.
pub static MAPPINGS: MappingBudget = MappingBudget::new();

/// A count of mappings, of which there may be so many.
#[derive(Debug)]
pub struct MappingBudget {
    taken: AtomicUsize,
}

impl MappingBudget {
    /// None is taken.
    #[allow(clippy::new_without_default, reason = "it is made for a static")]
    pub const fn new() -> MappingBudget {
        MappingBudget { taken: AtomicUsize::new(0) }
    }

    /// Takes one, unless `most` are taken; whether it did. Whoever can do without leaves some to those who cannot.
    pub fn take(&self, most: usize) -> bool {
        let more = |taken: usize| (taken < most).then_some(taken + 1);
        // A count, by which nothing else is ordered.
        self.taken.try_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// So many that were taken are gone.
    pub fn give_back(&self, count: usize) {
        let before = self.taken.fetch_sub(count, Ordering::Relaxed);
        debug_assert!(before >= count, "{count} are given back of {before} that were taken");
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}
