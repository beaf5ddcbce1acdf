//! Who wants to know when a pool has become so full that it should be extended.
//!
//! The watcher is called by the task that has the pool's turn, or just had it, each time the pool becomes fuller than the mark after it was
//! not; so it must not wait. What it does about it comes back as devices that have grown.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::pool::Pool;

/// A mark, and who hears that it is passed.
#[derive(Default)]
pub(super) struct Watched {
    watch: OnceLock<Watch>,
    /// It is passed, and that was told.
    told: AtomicBool,
}

struct Watch {
    threshold: u64,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({:?})", self.watch.get().map(|watch| watch.threshold))
    }
}

impl Pool {
    /// Calls `tell` whenever more than `threshold` percent of its data or of its metadata come to be in use. Only the first watcher is
    /// heard of.
    pub fn watch(&self, threshold: u64, tell: impl Fn() + Send + Sync + 'static) {
        let _ = self.watched.watch.set(Watch { threshold, tell: Box::new(tell) });
        self.look_at_watch();
    }

    /// Whoever was told has found that the mark is not passed any more. When it is passed from now on, or has been since, that is told
    /// anew, also where nobody has looked meanwhile.
    pub fn watch_again(&self) {
        self.watched.told.store(false, Ordering::Release);
        self.look_at_watch();
    }

    /// Whether more of its data, and of its metadata, is in use than `threshold` percent.
    pub fn is_beyond(&self, threshold: u64) -> (bool, bool) {
        let editor = self.editor();
        let beyond = |free: u64, all: u64| {
            u128::from(all - free.min(all)) * 100 > u128::from(all) * u128::from(threshold)
        };
        (
            beyond(editor.free_data(), editor.data_blocks()),
            beyond(editor.free_metadata(), editor.metadata_blocks()),
        )
    }

    /// Tells once that the mark is passed.
    pub(super) fn look_at_watch(&self) {
        let Some(watch) = self.watched.watch.get() else { return };
        let (data, metadata) = self.is_beyond(watch.threshold);
        let is_beyond = data || metadata;
        if self.watched.told.swap(is_beyond, Ordering::AcqRel) != is_beyond && is_beyond {
            (watch.tell)();
        }
    }
}
