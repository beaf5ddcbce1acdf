//! The chunks that are being merged in this moment: looked at by every write to a chunk that is not merged yet, without a lock.
//!
//! Invariants: (1) one writer at a time, which opens the window before it waits for quiescence, and closes it, or opens the next,
//! only when the exceptions of its chunks are gone (or stay, since the step has failed); (2) a write that finds a chunk's exception
//! *after* it has found the chunk in no window may go to the store. Either it was under way when the window was opened for the
//! chunk, and is waited for; or it has read what was stored at the end of that window or later, in whatever mixture with what was
//! there before: all of that is stored with Release and read with Acquire, so it would not have found the exception. An exception
//! that was found before the look at the window says nothing: window and exception may both have gone in between.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::exceptions::{Exceptions, Run};

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
            bounds.start.store(chunks.start, Ordering::Release);
            bounds.end.store(chunks.end, Ordering::Release);
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
            bounds.start.load(Ordering::Acquire) < chunks.end
                && chunks.start < bounds.end.load(Ordering::Acquire)
        })
    }

    /// What the chunks from `first` on, at most `most` of them, have in common for a write; and whether they are being merged.
    #[inline]
    pub(super) fn find(&self, exceptions: &Exceptions, first: u64, most: u64) -> (Run, bool) {
        let mut run = exceptions.run(first, most);
        // Without exceptions they go to the origin, whose content is theirs for ever.
        while run.new.is_some() {
            if self.touches(first..first + run.chunks) {
                return (run, true);
            }
            let again = exceptions.run(first, run.chunks);
            if again == run {
                break;
            }
            run = again;
        }
        (run, false)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the merge and a writer of another worker are two threads")]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::fence;
    use std::thread;

    use blockwork_format::snapshot::Exception;

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

    /// Cells stand for chunks, and a counter for the epochs of one worker: odd while a write is under way.
    struct Merged {
        window: Window,
        exceptions: Exceptions,
        origin: Vec<AtomicU64>,
        store: Vec<AtomicU64>,
        epoch: AtomicU64,
        /// The chunk that the writer is to write.
        now: AtomicU64,
    }

    impl Merged {
        fn new(chunks: u64) -> Merged {
            let exceptions = Exceptions::new(chunks, chunks + 2, chunks);
            (0..chunks).for_each(|old| exceptions.insert(Exception { old, new: old + 2 }).unwrap());
            let cells = |n: u64| (0..n).map(|_| AtomicU64::new(0)).collect();
            let (origin, store) = (cells(chunks), cells(chunks + 2));
            let (epoch, now) = (AtomicU64::new(0), AtomicU64::new(0));
            Merged { window: Window::default(), exceptions, origin, store, epoch, now }
        }

        /// Those writes that are under way come to their end.
        fn quiesce(&self) {
            // A write that begins now sees the window.
            fence(Ordering::SeqCst);
            let epoch = self.epoch.load(Ordering::SeqCst);
            while epoch % 2 == 1 && self.epoch.load(Ordering::SeqCst) == epoch {
                thread::yield_now();
            }
        }

        /// What `Merge::step` does.
        fn merge(&self, chunks: Range<u64>) {
            self.window.open(std::iter::once(chunks.clone()));
            self.quiesce();
            for old in chunks.clone() {
                let content = self.store[old as usize + 2].load(Ordering::SeqCst);
                self.origin[old as usize].store(content, Ordering::SeqCst);
            }
            chunks.for_each(|old| self.exceptions.remove(Exception { old, new: old + 2 }));
            self.window.close();
        }

        /// Writes a chunk, as soon as it may be written.
        fn write(&self, chunk: u64, content: u64) {
            loop {
                self.epoch.fetch_add(1, Ordering::SeqCst);
                let (run, waits) = self.window.find(&self.exceptions, chunk, 1);
                match run.new {
                    Some(_) if waits => {}
                    Some(new) => self.store[new as usize].store(content, Ordering::SeqCst),
                    None => self.origin[chunk as usize].store(content, Ordering::SeqCst),
                }
                self.epoch.fetch_add(1, Ordering::SeqCst);
                if !waits {
                    return;
                }
            }
        }
    }

    #[test]
    fn no_write_goes_to_a_chunk_of_the_store_whose_exception_is_gone() {
        const CHUNKS: u64 = 1 << 15;
        const STEP: u64 = 2;
        let (merged, both) = (Merged::new(CHUNKS), Barrier::new(2));
        let mut written = vec![0; CHUNKS as usize];
        thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                for first in (0..CHUNKS).step_by(STEP as usize) {
                    merged.now.store(first + STEP - 1, Ordering::SeqCst);
                    // Both are at work, however few processors there are: two ends of writes, so the writer has seen that.
                    let epoch = merged.epoch.load(Ordering::SeqCst);
                    while merged.epoch.load(Ordering::SeqCst) < epoch + 4 {
                        thread::yield_now();
                    }
                    merged.merge(first..first + STEP);
                }
                merged.now.store(CHUNKS, Ordering::SeqCst);
            });
            both.wait();
            for content in 1.. {
                let chunk = merged.now.load(Ordering::SeqCst);
                let Some(written) = written.get_mut(chunk as usize) else { break };
                merged.write(chunk, content);
                *written = content;
            }
        });
        let at_rest: Vec<u64> = merged.origin.iter().map(|cell| cell.load(Ordering::SeqCst)).collect();
        let lost = (0..CHUNKS as usize).filter(|chunk| at_rest[*chunk] != written[*chunk]).count();
        assert_eq!(lost, 0, "chunks of {CHUNKS} whose last write nobody finds");
    }
}
