//! How much a client writes between its flushes, so that the server begins to make it durable before it is asked to.
//!
//! A server that does nothing with what it was given until COMMIT leaves its disk idle while the client writes, and the client idle
//! while the disk works. A client that flushes regularly is known by that: when it has written so much of what its flushes have
//! found before, a COMMIT goes ahead, and the flush finds the rest. One for each flush at most: who flushes costs the server one COMMIT
//! anyway, and one that never flushes is not slowed down by any.

/// Where flushes find less than so many bytes, the disk is soon done with it. Where there is little memory for what is uncommitted, less than
/// that part of it.
const WORTHWHILE: (u64, u64) = (1 << 20, 64);

/// The habit of all clients of a file, seen by all workers.
pub(super) struct Habit {
    /// Memory for what is uncommitted, bytes: no flush finds more.
    room: u64,
    /// Bytes written since the last flush.
    written: u64,
    /// The most that flushes have found, bytes, of late: an eighth less with each that finds less.
    most: u64,
    /// A COMMIT has gone ahead of the next flush.
    ahead: bool,
}

impl Habit {
    /// Of a file with so much memory for what is uncommitted, bytes.
    pub(super) fn new(uncommitted_bytes: usize) -> Habit {
        Habit { room: uncommitted_bytes as u64, written: 0, most: 0, ahead: false }
    }

    /// The server has so many bytes more that it may forget.
    pub(super) fn writes(&mut self, bytes: u64) {
        self.written += bytes;
    }

    /// A flush finds them. One that finds nothing shares the round of that before it.
    pub(super) fn flushes(&mut self) {
        if self.written == 0 {
            return;
        }
        self.most = self.written.min(self.room).max(self.most - self.most.div_ceil(8));
        (self.written, self.ahead) = (0, false);
    }

    /// Whether it is time for a COMMIT that goes ahead of the next flush. Half-way: nfs-ganesha on two processors and a disk takes
    /// 64 KiB writes in random places, 16 under way and a flush after each 64, a seventh faster so than without; after a third or five
    /// eighths about the same, after three quarters no faster.
    pub(super) fn is_time(&self) -> bool {
        !self.ahead
            && self.most >= WORTHWHILE.0.min(self.room / WORTHWHILE.1)
            && self.written >= self.most / 2
    }

    /// It has gone, or another that nobody has asked for.
    pub(super) fn goes_ahead(&mut self) {
        self.ahead = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 64 << 10;

    /// Writes so many pieces, and flushes; after how many a COMMIT went ahead.
    fn round(habit: &mut Habit, pieces: u64) -> Option<u64> {
        let mut ahead = None;
        for piece in 1..=pieces {
            habit.writes(PIECE);
            if habit.is_time() {
                habit.goes_ahead();
                assert_eq!(ahead.replace(piece), None, "one for each flush");
            }
        }
        habit.flushes();
        ahead
    }

    #[test]
    fn half_way_to_a_flush_that_is_expected_one_goes_ahead() {
        for room in [super::super::UNCOMMITTED_BYTES, 1 << 30] {
            let mut habit = Habit::new(room);
            assert_eq!(
                [64, 64, 30, 64].map(|pieces| round(&mut habit, pieces)),
                [None, Some(32), None, Some(28)]
            );
        }
    }

    #[test]
    fn flushes_that_share_a_round_are_none_of_it() {
        let mut habit = Habit::new(super::super::UNCOMMITTED_BYTES);
        let rounds: Vec<_> =
            (0..20).flat_map(|_| [49, 14, 1, 0, 0, 0]).map(|pieces| round(&mut habit, pieces)).collect();
        assert_eq!(rounds[..6], [None; 6]);
        assert!(rounds[6..].chunks(6).all(|six| six[0] == Some(19) && six[1..] == [None; 5]), "{rounds:?}");
    }

    #[test]
    fn a_client_that_flushes_often_or_never_sees_none() {
        let mut habit = Habit::new(super::super::UNCOMMITTED_BYTES);
        assert!((0..100).all(|_| round(&mut habit, 15).is_none()));
        let mut habit = Habit::new(super::super::UNCOMMITTED_BYTES);
        assert_eq!(round(&mut habit, 100_000), None);
        // One that has become another is known after some rounds: an eighth less with each.
        let known = (0..40).position(|_| round(&mut habit, 64).is_some());
        assert_eq!(known, Some(16));
    }
}
