//! When operations on files go to the kernel: a few at a time, while the turn still starts more.
//!
//! A client with many requests under way sends them in one piece, and a turn starts them all. Handed over together at its end,
//! they would reach the disk together (the block layer holds back what one `io_uring_enter` submits until it has all), complete
//! together, be answered together and come back together: the disk idles while we work, we while it does. In portions, the disk
//! works on the first while the turn prepares the last, and the requests spread out.
//!
//! A disk that has a good deal to do already needs nothing early: portions grow with what the kernel has. And where requests are
//! prepared in no time, as those of a guest's ring are, what the disk waits for is the kernel (1 to 2 us for each, where the disk does one in 10).
//! There one early portion does, that keeps the disk busy while the kernel takes the others: the head of what such a client says that it has
//! ([`Portion::expect`]).
//!
//! Operations that continue the one before are kept together, for the block layer to merge.

use blockwork_engine::{FileId, FileOp, FileOpKind};

/// File operations that make a portion, at least; and at least half of those that the kernel has.
///
/// Measured on a virtio disk, 2 processors, 4 KiB at random over NBD at depth 32, O_DIRECT, medians of 4 rounds in turn: without
/// portions 53,000 reads and 68,000 writes a second; of 16, 55,000 and 74,000; of 8, 56,000 and 80,000; of 4, 59,000 and 84,000; of 2,
/// 65,000 and 85,000, but then each operation costs half a system call more (0.64 in all, against 0.41) and kicks the virtual
/// disk by itself, which takes a sixth more of the processor at depth 128.
pub(crate) const PORTION: usize = 4;
/// Of a client that has said how much it has, those that follow the head: the block layer holds back no more than that (its
/// `BLK_MAX_REQUEST_COUNT`), so that less at a time would be calls for nothing.
const REST: usize = 32;

/// Of so many operations, how many go to the kernel first.
///
/// 4 KiB of a file on a virtual disk for a guest's ring, by turns with fio and io_uring, as parts of its rate, medians of 9 to 11 (in brackets
/// calls of io_uring_enter for a request). Reads, depth 32: a head of 17 0.81 to 0.86 (0.094), of 12 0.85 to 0.89, of 10 0.85 to 0.91 (0.094), of 8 0.87 to
/// 0.91, of 6 0.88 (0.095), of 4 0.83 (0.138). Depth 16: of 9 0.84 (0.188), of 4 0.86, of 3 0.89. Depth 8: all 0.82 (0.25), 3 0.88 (0.378).
/// Depth 4: all 0.77 (0.50), 2 0.79 (0.75). Writes, which this disk does sooner, depth 32: of 17 0.75 to 0.80 (0.095), of 12 0.78 to 0.85 (0.094 to 0.14), of 10 0.77 to
/// 0.88 (0.098 to 0.12), of 6 0.79 to 0.81 (0.124): a smaller head is done by itself and comes back alone from then on, which is a little faster and takes
/// a tenth more of the processor. The least that there is (`bare_ring`), reads, depth 32: in one piece 0.76, with a head of 17 0.83 to 0.86, of 8
/// 0.88; in fours, which takes 0.34 calls, 0.91.
fn head(kind: FileOpKind, operations: usize) -> usize {
    let head = match kind {
        FileOpKind::Read if operations < 6 => operations,
        FileOpKind::Read => (operations / 3).clamp(3, 10),
        _ => (operations / 2 + 1).clamp(9, 17),
    };
    // All of them go with the call that sleeps.
    if head < operations { head } else { REST }
}

/// What has been queued since the kernel was last called.
#[derive(Default)]
pub(crate) struct Portion {
    waiting: usize,
    /// As many as a client has, in this turn.
    expected: Option<usize>,
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
        let least = match self.expected.map(|expected| head(op.kind, expected)) {
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
        self.expected = None;
    }

    /// A client has so many for this turn, and prepares them in no time. Of several clients the one with the most counts.
    #[inline]
    pub(crate) fn expect(&mut self, operations: usize) {
        self.expected = self.expected.max(Some(operations));
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_part_goes_first_of_all_but_a_few() {
        let heads = |kind| [1, 5, 6, 8, 12, 16, 24, 32, 64].map(|operations| head(kind, operations));
        assert_eq!(heads(FileOpKind::Read), [REST, REST, 3, 3, 4, 5, 8, 10, 10]);
        assert_eq!(heads(FileOpKind::Write { dsync: false }), [REST, REST, REST, REST, 9, 9, 13, 17, 17]);
    }

    /// The same in a turn of clients that have 7, 32 and 20.
    fn calls_where_expected(before: usize, count: u64) -> Vec<usize> {
        let mut portion = Portion::default();
        [7, 32, 20].into_iter().for_each(|operations| portion.expect(operations));
        let calls = calls_of(&mut portion, before, (0..count).map(|i| i * 8192));
        portion.turn_over();
        portion.submitted();
        assert_eq!(calls_of(&mut portion, 0, [0, 8192, 0, 8192, 0]), [4]);
        calls
    }

    #[test]
    fn a_head_goes_first_and_then_as_many_as_the_block_layer_takes() {
        assert_eq!(calls_where_expected(0, 32), [10]);
        assert_eq!(calls_where_expected(9, 32), [10]);
        assert_eq!(calls_where_expected(0, 80), [10, 42, 74]);
        assert_eq!(calls_where_expected(10, 31), [], "the disk has as much to do as the head would be");
        assert_eq!(calls_where_expected(10, 32), [32]);
        assert_eq!(calls_where_expected(128, 100), [64]);
    }

    #[test]
    fn a_run_is_not_torn_apart() {
        assert_eq!(calls(0, (0..1000).map(|i| i * 4096)), []);
        // Two runs: the second one's start ends the first.
        assert_eq!(calls(0, (0..20).map(|i| i * 4096 + if i < 10 { 0 } else { 1 << 30 })), [11]);
        assert_eq!(calls(0, [u64::MAX; 5]), [4]);
    }
}
