//! Bios that a layer has deferred for a time and nothing else: they need no task, which would cost several times the bio.
//!
//! Invariants: none goes on before its time; those that are due go on in the order of their times, [`AT_ONCE`] in a round of a turn,
//! so that a client sees the first answers while we work on the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::layer::{NodeId, Span};
use crate::units::Nanos;

/// So many go on in one round.
pub(super) const AT_ONCE: usize = 16;

/// A bio that waits.
#[derive(Debug)]
pub(super) struct Pause {
    pub(super) bio: u32,
    /// Who deferred it, and which part.
    pub(super) node: NodeId,
    pub(super) span: Span,
}

/// All that wait.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// When each ends, a number that gives equal times an order, and its place in `waiting`.
    ends: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    waiting: slab::Slab<Pause>,
    count: u64,
}

impl Pauses {
    pub(super) fn begin(&mut self, until: Nanos, pause: Pause) {
        self.count += 1;
        self.ends.push(Reverse((until, self.count, self.waiting.insert(pause))));
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// When the first of them goes on.
    #[inline]
    pub(super) fn next(&self) -> Option<Nanos> {
        self.ends.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next one, if its time has come at `now`: it goes on.
    #[inline]
    pub(super) fn due(&mut self, now: Nanos) -> Option<Pause> {
        let Reverse((at, _, place)) = self.ends.peek()?;
        let place = (*at <= now).then_some(*place)?;
        self.ends.pop();
        Some(self.waiting.remove(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::{Flags, Op};
    use crate::units::{Sector, Sectors};

    #[test]
    fn they_go_on_in_the_order_of_their_times_and_of_equal_times_as_they_came() {
        let (op, flags) = (Op::Read, Flags::NONE);
        let span = Span { op, flags, sector: Sector(0), nr: Sectors(8), at: Sectors::ZERO };
        let mut pauses = Pauses::default();
        for bio in 0..40 {
            let until = Nanos(if bio % 2 == 0 { 500 } else { 400 });
            pauses.begin(until, Pause { bio, node: NodeId(0), span });
        }
        assert_eq!((pauses.next(), pauses.len()), (Some(Nanos(400)), 40));
        let mut due = |now| -> Vec<u32> {
            std::iter::from_fn(|| pauses.due(Nanos(now))).map(|pause| pause.bio).collect()
        };
        assert_eq!(due(399), []);
        assert_eq!(due(499), (0..20).map(|i| 2 * i + 1).collect::<Vec<_>>());
        assert_eq!(due(500), (0..20).map(|i| 2 * i).collect::<Vec<_>>());
        assert_eq!((pauses.next(), pauses.len()), (None, 0));
    }
}
