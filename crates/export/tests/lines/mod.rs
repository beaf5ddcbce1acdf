//! A log that counts its lines. It is a process's only one, so tests that use it are programs of their own.

use std::sync::atomic::{AtomicUsize, Ordering};

use log::{LevelFilter, Log, Metadata, Record};

/// Lines so far, of those that people see.
static LINES: AtomicUsize = AtomicUsize::new(0);

struct Count;

impl Log for Count {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &Record<'_>) {
        LINES.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&self) {}
}

/// Counts from now on.
pub fn count() {
    log::set_logger(&Count).unwrap();
    log::set_max_level(LevelFilter::Info);
}

/// How many there were so far.
pub fn so_far() -> usize {
    LINES.load(Ordering::Relaxed)
}
