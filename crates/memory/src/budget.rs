//! Mappings that others have us make, and that stay: of memory that front ends share, and of pages that guests have granted.
//!
//! Linux lets a process have so many mappings and no more (`vm.max_map_count`, 65530 unless somebody has changed it). Where they are used up, the next
//! mmap fails, whosever it is: the allocator's, or a new thread's stack. So whoever lets others decide how many there are takes each out of the one
//! budget of the process, [`MAPPINGS`], of which [`mappings_max`] tells how many may be taken.

use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mappings in [`MAPPINGS`] at most: half of what Linux lets a process have where nobody has changed that, and enough for 64 front ends that have
/// all their regions.
pub const MAPPINGS_MAX: usize = 32_768;

/// What `vm.max_map_count` is where it cannot be read.
const MAX_MAP_COUNT: usize = 65_530;

/// How many may be in [`MAPPINGS`]: [`MAPPINGS_MAX`], or less where Linux lets this process have less, or it had many others when this was
/// asked first.
pub fn mappings_max() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| share(max_map_count(), others()))
}

/// Half of what is left beside `others`: the other half is for what the process comes to need itself.
fn share(limit: usize, others: usize) -> usize {
    (limit.saturating_sub(others) / 2).min(MAPPINGS_MAX)
}

/// How many mappings Linux lets a process have.
pub(crate) fn max_map_count() -> usize {
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    limit.and_then(|limit| limit.trim().parse().ok()).unwrap_or(MAX_MAP_COUNT)
}

/// How many this process has now.
fn others() -> usize {
    fs::read("/proc/self/maps").map_or(0, |maps| maps.iter().filter(|byte| **byte == b'\n').count())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_leaves_as_much_to_the_process_itself_whatever_the_limit() {
        for (limit, others, expected) in [
            (65_530, 40, 32_745),
            (1_048_576, 40, MAPPINGS_MAX),
            (1 << 62, 0, MAPPINGS_MAX),
            // A host that has lowered it, and a process that has much else.
            (1_000, 40, 480),
            (65_530, 60_000, 2_765),
            (100, 200, 0),
        ] {
            assert_eq!(share(limit, others), expected, "{others} of {limit}");
        }
    }

    #[test]
    fn what_is_read_of_this_process_is_what_linux_says() {
        // What /proc says is there on any Linux; a program has its own mappings at least, and fewer than it may have.
        assert!((10..max_map_count()).contains(&others()), "{} of {}", others(), max_map_count());
        assert!((1..=MAPPINGS_MAX).contains(&mappings_max()), "{}", mappings_max());
    }
}
