//! When operations on files go to the kernel: a few at a time, while the turn still starts more.
//!
//! A client with many requests under way sends them in one piece, and a turn starts them all. Handed over together at its end,
//! they would reach the disk together (the block layer holds back what one `io_uring_enter` submits until it has all), complete
//! together, be answered together and come back together: the disk idles while we work, we while it does. In portions, the disk
//! works on the first while the turn prepares the last, and the requests spread out.
//!
//! A disk that has a good deal to do already needs nothing early: portions grow with what the kernel has. And where requests are
//! prepared in no time, as those of a guest's ring are, one portion does, that keeps the disk busy while the kernel takes the others: such a
//! client says how large ([`Portion::begin_with`]).
//!
//! Operations that continue the one before are kept together, for the block layer to merge.

use blockwork_engine::{FileId, FileOp};

/// File operations that make a portion, at least; and at least half of those that the kernel has.
///
/// Measured on a virtio disk, 2 processors, 4 KiB at random over NBD at depth 32, O_DIRECT, medians of 4 rounds in turn: without
/// portions 53,000 reads and 68,000 writes a second; of 16, 55,000 and 74,000; of 8, 56,000 and 80,000; of 4, 59,000 and 84,000; of 2,
/// 65,000 and 85,000, but then each operation costs half a system call more (0.64 in all, against 0.41) and kicks the virtual
/// disk by itself, which takes a sixth more of the processor at depth 128.
pub(crate) const PORTION: usize = 4;
/// Of a client that has said how many to begin with, those that follow: the block layer holds back no more than that (its
/// `BLK_MAX_REQUEST_COUNT`), so that less at a time would be calls for nothing.
const REST: usize = 32;

/// What has been queued since the kernel was last called.
#[derive(Default)]
pub(crate) struct Portion {
    waiting: usize,
    /// As many as a client begins with, in this turn.
    head: Option<usize>,
    /// Where the last operation ended.
    end: Option<(FileId, u64)>,
}

impl Portion {
    /// This operation was queued; tells whether to call the kernel now, which has `in_kernel` of all kinds, this one and
    /// others that wait included.
    #[inline]
    pub(crate) fn queued(&mut self, op: &FileOp<'_>, in_kernel: usize) -> bool {
        let continues = self.end == Some((op.file, op.offset));
        // Where there is no sum, nothing continues it (the kernel refuses the operation).
        self.end = op.offset.checked_add(op.len).map(|end| (op.file, end));
        self.waiting += 1;
        let under_way = in_kernel.saturating_sub(self.waiting);
        let least = match self.head {
            None => PORTION,
            Some(head) if under_way < head => head,
            Some(_) => REST,
        };
        self.waiting >= (under_way / 2).max(least) && !continues
    }

    /// All that was queued has been handed over.
    #[inline]
    pub(crate) fn submitted(&mut self) {
        self.waiting = 0;
    }

    /// The turn is over.
    #[inline]
    pub(crate) fn turn_over(&mut self) {
        self.head = None;
    }

    /// Until the turn is over, so many go first, unless the kernel has as many, and then all others. Of several clients in a turn the
    /// one with the most has its way.
    #[inline]
    pub(crate) fn begin_with(&mut self, operations: usize) {
        self.head = self.head.max(Some(operations));
    }
}

#[cfg(test)]
mod tests {
    use blockwork_engine::FileOpKind;

    use super::*;

    /// After how many operations of 4 KiB at these offsets the kernel is called, which has so many from before.
    fn calls(before: usize, offsets: impl IntoIterator<Item = u64>) -> Vec<usize> {
        calls_of(&mut Portion::default(), before, offsets)
    }

    fn calls_of(portion: &mut Portion, before: usize, offsets: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let mut calls = Vec::new();
        for (number, offset) in (1..).zip(offsets) {
            let op = FileOp {
                file: FileId(3),
                kind: FileOpKind::Read,
                offset,
                len: 4096,
                data: &[],
                fixed: false,
            };
            if portion.queued(&op, before + number) {
                portion.submitted();
                calls.push(number);
            }
        }
        calls
    }

    #[test]
    fn scattered_operations_go_in_portions() {
        let scattered = || (0..32).map(|i| i * 8192);
        assert_eq!(calls(0, scattered()), [4, 8, 12, 18, 27]);
        assert_eq!(calls(20, scattered()), [10, 25]);
        assert_eq!(calls(64, scattered()), [32]);
    }

    /// The same in a turn of two clients that begin with 7 and 10.
    fn calls_with_a_head(before: usize, count: u64) -> Vec<usize> {
        let mut portion = Portion::default();
        [7, 10, 8].into_iter().for_each(|head| portion.begin_with(head));
        let calls = calls_of(&mut portion, before, (0..count).map(|i| i * 8192));
        portion.turn_over();
        portion.submitted();
        assert_eq!(calls_of(&mut portion, 0, [0, 8192, 0, 8192, 0]), [4]);
        calls
    }

    #[test]
    fn a_head_goes_first_and_then_as_many_as_the_block_layer_takes() {
        assert_eq!(calls_with_a_head(0, 32), [10]);
        assert_eq!(calls_with_a_head(9, 32), [10]);
        assert_eq!(calls_with_a_head(0, 80), [10, 42, 74]);
        assert_eq!(calls_with_a_head(10, 31), [], "the disk has as much to do as the head would be");
        assert_eq!(calls_with_a_head(10, 32), [32]);
        assert_eq!(calls_with_a_head(128, 100), [64]);
    }

    #[test]
    fn a_run_is_not_torn_apart() {
        assert_eq!(calls(0, (0..1000).map(|i| i * 4096)), []);
        // Two runs: the second one's start ends the first.
        assert_eq!(calls(0, (0..20).map(|i| i * 4096 + if i < 10 { 0 } else { 1 << 30 })), [11]);
        assert_eq!(calls(0, [u64::MAX; 5]), [4]);
    }
}
