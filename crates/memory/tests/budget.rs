//! The mappings of a process, used up. One test: the budget is the process's.

use std::fs::File;
use std::os::fd::AsFd;

use blockwork_memory::{MAPPINGS, MapError, Mapping, mappings_max};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

#[test]
fn shared_memory_and_pages_of_guests_are_mapped_from_one_budget() {
    const LEFT: usize = 2000;
    let all = mappings_max();
    let file = File::from(memfd_create("shared", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, 0x1000).unwrap();
    let map = || Mapping::new(file.as_fd(), 0x1000);
    // Pages of guests, which are kept.
    let pages = (0..all).take_while(|_| MAPPINGS.take(all - LEFT)).count();
    assert_eq!(pages, all - LEFT);
    let mut shared: Vec<_> = (0..LEFT).map(|_| map().unwrap()).collect();
    let error = map().unwrap_err();
    assert!(matches!(error, MapError::TooMany), "{error}");
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let words = [format!("all {all} mappings"), format!("of {} that", limit.trim())];
    assert!(words.iter().all(|words| error.to_string().contains(words)), "{error}");
    assert!(!MAPPINGS.take(all - LEFT));
    // What is let go of by either is there for the other.
    shared.truncate(LEFT - 1);
    shared.push(map().unwrap());
    assert!(map().is_err());
    MAPPINGS.give_back(pages);
    shared.extend((0..LEFT).map(|_| map().unwrap()));
    drop(shared);
    assert_eq!(MAPPINGS.taken(), 0);
}
