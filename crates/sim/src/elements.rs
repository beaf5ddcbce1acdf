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
    /// From that time on they are cut there.
    pub later: Option<(Nanos, Cuts)>,
}

impl Elements {
    /// What a request takes that is begun at `now`.
    pub(crate) fn time(&self, now: Nanos, op: &FileOp<'_>, random: &mut Random) -> Nanos {
        let cuts = self.later.filter(|(from, _)| now >= *from).map_or(self.cuts, |(_, cuts)| cuts);
        let times = if op.kind == FileOpKind::Read { self.read } else { self.write };
        let further = (cuts.calls(op.data) - 1) * times.further.0;
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
    fn calls_and_copies_take_time_and_cuts_may_come_to_an_end() {
        let times = CallTimes { request: Nanos(1000), further: Nanos(100) };
        let elements = Elements {
            read: times,
            write: times,
            noise: Latency::Fixed(Nanos(1000)),
            copy: Nanos(5),
            cuts: Cuts::Everywhere,
            later: Some((Nanos(50), Cuts::Nowhere)),
        };
        let data: Vec<_> = (0..2).map(|_| Segment::new(Buffer::new(PAGE), 0, PAGE)).collect();
        let linear = [Segment::new(Buffer::new(2 * PAGE), 0, 2 * PAGE)];
        let time = |now: u64, data: &[Segment]| {
            let kind = FileOpKind::Write { dsync: false };
            let op = FileOp { file: FileId(0), kind, offset: 0, len: 8192, data, fixed: false };
            elements.time(Nanos(now), &op, &mut Random::new(1)).0
        };
        assert_eq!((time(49, &data), time(50, &data), time(0, &linear)), (1100, 1000, 1040));
    }
}
