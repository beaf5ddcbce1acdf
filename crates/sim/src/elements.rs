//! What it costs that a request's memory is in several pieces: a client of a file server that makes a call of each.

use blockwork_engine::{FileOp, FileOpKind, Nanos};
use blockwork_memory::Segment;

use crate::model::Latency;
use crate::random::Random;

/// Bytes of a page.
const PAGE: usize = 4096;

/// Where a request is cut into calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// Between all elements: Linux's NFS client when the report `linearize` was written.
    Everywhere,
    /// Between elements whose common boundary does not lie between pages: the same in Linux 6.1.
    OffPages,
    /// Nowhere.
    Nowhere,
}

impl Cuts {
    /// Calls that a request of that memory is.
    fn calls(self, data: &[Segment]) -> u64 {
        let is_cut = |pair: &&[Segment]| {
            let end = pair[0].as_ptr().addr() + pair[0].len();
            match self {
                Cuts::Everywhere => true,
                Cuts::OffPages => !(end | pair[1].as_ptr().addr()).is_multiple_of(PAGE),
                Cuts::Nowhere => false,
            }
        };
        1 + data.windows(2).filter(is_cut).count() as u64
    }
}

/// What calls take at a server that makes one after the other, whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTimes {
    /// The first of a request, with all that is there once.
    pub request: Nanos,
    /// Each further one.
    pub further: Nanos,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Elements {
    /// Of reads.
    pub read: CallTimes,
    /// Of writes.
    pub write: CallTimes,
    /// What a call takes is multiplied by this, drawn anew each time: nanoseconds for a thousandth.
    pub noise: Latency,
    /// What the client is busy with a copy for that made one element of several: for each KiB of a request of one element that is
    /// longer than a page. (Memory of guests comes in pages; copies take no virtual time by themselves.)
    pub copy: Nanos,
    /// Where requests are cut.
    pub cuts: Cuts,
    /// Later on they are cut elsewhere.
    pub later: Option<Later>,
}

/// Requests are no longer cut where they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Later {
    /// That begins there.
    pub from: Nanos,
    /// From there on it is so. In between, what further calls take moves in proportion; the same as `from`: at once.
    pub until: Nanos,
    /// Where they are cut then.
    pub cuts: Cuts,
}

impl Later {
    /// How much of the change has come by then, 0 to 1.
    fn part(self, now: Nanos) -> f64 {
        if now >= self.until.max(self.from) {
            return 1.0;
        }
        let [gone, all] = [now, self.until].map(|time| time.0.saturating_sub(self.from.0));
        gone as f64 / all.max(1) as f64
    }
}

impl Elements {
    /// What a request takes that is begun at `now`.
    pub(crate) fn time(&self, now: Nanos, op: &FileOp<'_>, random: &mut Random) -> Nanos {
        let times = if op.kind == FileOpKind::Read { self.read } else { self.write };
        let further_of = |cuts: Cuts| (cuts.calls(op.data) - 1) * times.further.0;
        let further = match self.later.map(|later| (later, later.part(now))) {
            Some((later, part)) if part > 0.0 => {
                let [before, after] = [self.cuts, later.cuts].map(|cuts| further_of(cuts) as f64);
                (before + (after - before) * part) as u64
            }
            _ => further_of(self.cuts),
        };
        let noise = self.noise.draw(random).0;
        let calls = (times.request.0 + further).saturating_mul(noise) / 1000;
        let is_copied = op.data.len() == 1 && op.len > PAGE as u64;
        let copy = if is_copied { self.copy.0 * op.len / 1024 } else { 0 };
        Nanos(calls.saturating_add(copy))
    }
}

#[cfg(test)]
mod tests {
    use blockwork_engine::FileId;
    use blockwork_memory::Buffer;

    use super::*;

    #[test]
    fn a_request_is_cut_where_the_client_cuts() {
        let elements = |offset: usize, n: usize| -> Vec<Segment> {
            (0..n).map(|_| Segment::new(Buffer::new(PAGE + offset), offset, PAGE)).collect()
        };
        let (pages, off) = (elements(0, 8), elements(512, 8));
        let calls = |cuts: Cuts| (cuts.calls(&pages), cuts.calls(&off), cuts.calls(&off[..1]));
        assert_eq!(calls(Cuts::Everywhere), (8, 8, 1));
        assert_eq!(calls(Cuts::OffPages), (1, 8, 1));
        assert_eq!(calls(Cuts::Nowhere), (1, 1, 1));
    }

    #[test]
    fn calls_and_copies_take_time_and_cuts_may_come_to_an_end_at_once_or_little_by_little() {
        let times = CallTimes { request: Nanos(1000), further: Nanos(100) };
        let elements = |from: u64, until: u64| Elements {
            read: times,
            write: times,
            noise: Latency::Fixed(Nanos(1000)),
            copy: Nanos(5),
            cuts: Cuts::Everywhere,
            later: Some(Later { from: Nanos(from), until: Nanos(until), cuts: Cuts::Nowhere }),
        };
        let data: Vec<_> = (0..2).map(|_| Segment::new(Buffer::new(PAGE), 0, PAGE)).collect();
        let linear = [Segment::new(Buffer::new(2 * PAGE), 0, 2 * PAGE)];
        let time = |elements: &Elements, now: u64, data: &[Segment]| {
            let kind = FileOpKind::Write { dsync: false };
            let op = FileOp { file: FileId(0), kind, offset: 0, len: 8192, data, fixed: false };
            elements.time(Nanos(now), &op, &mut Random::new(1)).0
        };
        let step = elements(50, 50);
        assert_eq!(
            (time(&step, 49, &data), time(&step, 50, &data), time(&step, 0, &linear)),
            (1100, 1000, 1040)
        );
        let drift = elements(50, 150);
        let times = [0, 50, 75, 100, 149, 150, 1000].map(|now| time(&drift, now, &data));
        assert_eq!(times, [1100, 1100, 1075, 1050, 1001, 1000, 1000]);
        assert_eq!(time(&drift, 100, &linear), 1040, "a copy is a copy");
    }
}
