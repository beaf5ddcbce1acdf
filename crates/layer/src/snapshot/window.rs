//! The chunks that are being merged in this moment: looked at by every write to a chunk that is not merged yet, without a lock.
//!
//! Invariants: (1) one writer at a time, which opens the window before it waits for quiescence, and closes it before it opens the next;
//! (2) a reader that sees halves of two windows was under way when the second was opened, and so is waited for: whatever it
//! takes from them, it does no harm.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Runs of chunks in a window.
pub(super) const RUNS_MAX: usize = 128;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Window {
    /// How many runs there are: the first of these.
    open: AtomicUsize,
    runs: Box<[Bounds]>,
}

/// A run of chunks of the origin.
#[derive(Debug, Default)]
struct Bounds {
    start: AtomicU64,
    end: AtomicU64,
}

impl Default for Window {
    fn default() -> Window {
        Window { open: AtomicUsize::new(0), runs: (0..RUNS_MAX).map(|_| Bounds::default()).collect() }
    }
}

impl Window {
    /// Opens it: [`RUNS_MAX`] runs at most.
    pub(super) fn open(&self, chunks: impl Iterator<Item = Range<u64>>) {
        let mut open = 0;
        for (bounds, chunks) in self.runs.iter().zip(chunks) {
            bounds.start.store(chunks.start, Ordering::Relaxed);
            bounds.end.store(chunks.end, Ordering::Relaxed);
            open += 1;
        }
        self.open.store(open, Ordering::Release);
    }

    /// Nothing is being merged.
    pub(super) fn close(&self) {
        self.open.store(0, Ordering::Release);
    }

    /// Whether one of these chunks is being merged.
    #[inline]
    pub(super) fn touches(&self, chunks: Range<u64>) -> bool {
        self.runs[..self.open.load(Ordering::Acquire)].iter().any(|bounds| {
            bounds.start.load(Ordering::Relaxed) < chunks.end
                && chunks.start < bounds.end.load(Ordering::Relaxed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_chunks_that_it_was_opened_for_until_it_is_closed() {
        let window = Window::default();
        assert!(!window.touches(0..u64::MAX));
        window.open([3..5, 10..11].into_iter());
        let touched: Vec<u64> = (0..20).filter(|chunk| window.touches(*chunk..*chunk + 1)).collect();
        assert_eq!(touched, [3, 4, 10]);
        assert!(window.touches(0..4) && window.touches(4..10) && !window.touches(5..10));
        window.close();
        assert!(!window.touches(0..u64::MAX));
        window.open(std::iter::once(7..8));
        assert!(window.touches(7..8) && !window.touches(3..5), "what was open before is not open now");
    }
}
