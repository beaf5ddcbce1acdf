//! Writes of the same sectors of several members of a row that come together are one: of a row that is written as a whole nothing is read first,
//! and its parity is written once. Clients write a row piece by piece, and many pieces at a time.
//!
//! The first of them waits for its turn at the row (`stripes.rs`), and until all that has come by now has been looked at; who comes until then goes
//! with it. Only those of one worker come together: their memory is its own.
//!
//! A client that writes in order, and has more in flight than a row, sends the rest of a row when what it wrote before has been answered. So who
//! begins a row in such a stream waits for the rest of it, as Linux delays such stripes: as long as others are being written, whose answers make the
//! client go on, and for a moment more in which it can, if that has been of use lately; and no longer than it takes to write those twice. It has
//! the row meanwhile, and no room: nobody who is being written waits for it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use blockwork_engine::{Errno, Flags, Nanos, Sector, Sectors, Span};
use blockwork_memory::Segments;

/// What members are to have; none: zeros.
pub(super) type Sources = Vec<(u16, Option<Segments>)>;

/// Streams that are known at a time.
const STREAMS: usize = 16;

/// How long it is waited for what a client sends when all before it has been answered: it and a worker that sleeps wake up in that time, also
/// on virtual machines, where each takes up to 60 us (`bench/run vhost` shows what it is).
const MOMENT: Nanos = Nanos::micros(200);

/// And for each sector that it sends, which is copied from a socket.
const MOMENT_OF_SECTOR: Nanos = Nanos(250);

/// When so many moments in a row were waited for nothing, only one in so many is tried.
const IN_VAIN: u32 = 4;
const TRIED: u32 = 32;

/// Writes that have not begun. Of each array and worker.
#[derive(Default)]
pub(super) struct Gathering {
    waiting: RefCell<Vec<Rc<Batch>>>,
    /// Where writes have ended, the last of them first: one that begins there goes on with a stream.
    ends: RefCell<VecDeque<Sector>>,
    /// Sectors of the array in all writes that have come and were not answered.
    in_flight: Cell<u64>,
    /// As much was in flight lately. Of a client whose writes were all answered at once, it tells what comes next.
    lately: Cell<u64>,
    /// Batches that are being written.
    begun: Cell<u64>,
    /// And how many have been.
    ended: Cell<u64>,
    /// Moments in a row that were waited for nothing, or were not waited after some of those.
    in_vain: Cell<u32>,
}

/// A write of some sectors of the array that was not answered yet.
pub(super) struct UnderWay {
    gathering: Rc<Gathering>,
    span: Span,
    in_order: bool,
}

/// Writes that are one.
struct Batch {
    at: Sector,
    nr: Sectors,
    /// Of how many members it is all that is written of the row.
    whole: usize,
    sources: RefCell<Sources>,
    flags: Cell<Flags>,
    /// Of the first, while that waits for the rest of the row.
    held: RefCell<Option<Waker>>,
    /// It waits no longer when so many batches have been written.
    until: Cell<u64>,
    has_begun: Cell<bool>,
    result: RefCell<Option<Result<(), Errno>>>,
    /// Those that go with the first.
    others: RefCell<Vec<Waker>>,
}

/// The first of a batch. Dropped before it has told how that went, the others fail.
pub(super) struct Lead {
    gathering: Rc<Gathering>,
    batch: Rc<Batch>,
}

/// One that goes with another.
pub(super) struct Follow(Rc<Batch>);

/// Whether the rest of a row is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// It is there.
    Whole,
    /// Others are being written.
    Good,
    /// All others have been answered.
    Momentary,
    /// It should have come.
    Hopeless,
}

/// Who writes.
pub(super) enum Part {
    Lead(Lead),
    Follow(Follow),
}

impl UnderWay {
    /// A write of the `nr` sectors at `at` of some of those members of which `whole` are all that is written of the row.
    pub(super) fn join(
        &self,
        (at, nr): (Sector, Sectors),
        whole: usize,
        sources: Sources,
        flags: Flags,
    ) -> Part {
        let mut waiting = self.gathering.waiting.borrow_mut();
        if let Some(batch) = waiting.iter().find(|batch| (batch.at, batch.nr) == (at, nr)) {
            let mut all = batch.sources.borrow_mut();
            // Of two writes to one place at once, either may be the last.
            all.retain(|(role, _)| !sources.iter().any(|(other, _)| other == role));
            all.extend(sources);
            batch.flags.set(batch.flags.get().with(flags));
            if all.len() >= whole {
                batch.held.take().into_iter().for_each(Waker::wake);
            }
            return Part::Follow(Follow(batch.clone()));
        }
        let batch = Rc::new(Batch {
            at,
            nr,
            whole,
            sources: RefCell::new(sources),
            flags: Cell::new(flags),
            held: RefCell::default(),
            until: Cell::default(),
            has_begun: Cell::default(),
            result: RefCell::default(),
            others: RefCell::default(),
        });
        waiting.push(batch.clone());
        Part::Lead(Lead { gathering: self.gathering.clone(), batch })
    }

    /// Where it ends.
    pub(super) fn end(&self) -> Sector {
        self.span.end()
    }

    /// How long the client has for another one.
    fn moment(&self) -> Nanos {
        Nanos(MOMENT.0 + self.span.nr.0 * MOMENT_OF_SECTOR.0)
    }

    /// Whether the next `rest` sectors will come when others are answered.
    fn brings_more(&self, rest: Sectors) -> bool {
        self.in_order && self.gathering.lately.get().saturating_sub(self.span.nr.0) >= rest.0
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let in_flight = &self.gathering.in_flight;
        in_flight.set(in_flight.get() - self.span.nr.0);
    }
}

impl Gathering {
    /// A write has come.
    pub(super) fn enter(self: &Rc<Gathering>, span: Span) -> UnderWay {
        let mut ends = self.ends.borrow_mut();
        let known = ends.iter().position(|end| *end == span.sector);
        if let Some(at) = known {
            ends.remove(at);
        }
        ends.truncate(STREAMS - 1);
        ends.push_front(span.end());
        let (in_flight, lately) = (self.in_flight.get() + span.nr.0, self.lately.get());
        self.in_flight.set(in_flight);
        self.lately.set(in_flight.max(lately - lately / 8));
        UnderWay { gathering: self.clone(), span, in_order: known.is_some() }
    }

    fn forget(&self, batch: &Rc<Batch>) {
        self.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, batch));
    }

    fn outlook(&self, batch: &Batch) -> Outlook {
        if batch.sources.borrow().len() >= batch.whole {
            Outlook::Whole
        } else if self.ended.get() >= batch.until.get() {
            Outlook::Hopeless
        } else if self.begun.get() == 0 {
            Outlook::Momentary
        } else {
            Outlook::Good
        }
    }

    /// Whether to wait a moment more. It counts as one in vain until it was not.
    fn tries_a_moment(&self) -> bool {
        let in_vain = self.in_vain.replace(self.in_vain.get().saturating_add(1));
        in_vain < IN_VAIN || in_vain.is_multiple_of(TRIED)
    }

    /// A batch has been written.
    fn end(&self) {
        self.begun.set(self.begun.get() - 1);
        self.ended.set(self.ended.get() + 1);
        for batch in self.waiting.borrow().iter().filter(|batch| self.outlook(batch) != Outlook::Good) {
            batch.held.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl Lead {
    /// Waits for the rest of the row, which is in the `rest` sectors behind the write, if that is to come. `moment` waits for so long.
    pub(super) async fn gather<M: Future<Output = ()>>(
        &self,
        write: &UnderWay,
        rest: Sectors,
        moment: impl Fn(Nanos) -> M,
    ) {
        let Lead { gathering, batch } = self;
        if !write.brings_more(rest) {
            return;
        }
        batch.until.set(gathering.ended.get() + 2 * gathering.begun.get().max(1));
        let mut waited: Option<Pin<Box<M>>> = None;
        poll_fn(|cx| {
            let is_over = match gathering.outlook(batch) {
                Outlook::Whole => {
                    if waited.is_some() {
                        gathering.in_vain.set(0);
                    }
                    true
                }
                Outlook::Hopeless => true,
                Outlook::Good => false,
                Outlook::Momentary => {
                    (waited.is_none() && !gathering.tries_a_moment())
                        || waited
                            .get_or_insert_with(|| Box::pin(moment(write.moment())))
                            .as_mut()
                            .poll(cx)
                            .is_ready()
                }
            };
            if is_over {
                return Poll::Ready(());
            }
            *batch.held.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// What is to be written, with the flags that any of them has. Nobody joins from now on.
    pub(super) fn begin(&self) -> (Sources, Flags) {
        self.gathering.forget(&self.batch);
        self.batch.has_begun.set(true);
        self.gathering.begun.set(self.gathering.begun.get() + 1);
        (self.batch.sources.take(), self.batch.flags.get())
    }

    /// The row is written, and let go, but something else has to be waited for before that is told: nobody waits for this one meanwhile.
    pub(super) fn is_written(&self) {
        if self.batch.has_begun.replace(false) {
            self.gathering.end();
        }
    }

    /// How it went.
    pub(super) fn tell(self, result: Result<(), Errno>) -> Result<(), Errno> {
        *self.batch.result.borrow_mut() = Some(result);
        result
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.gathering.forget(&self.batch);
        self.is_written();
        self.batch.result.borrow_mut().get_or_insert(Err(Errno::EIO));
        self.batch.others.take().into_iter().for_each(Waker::wake);
    }
}

impl Follow {
    /// How it went.
    pub(super) async fn result(self) -> Result<(), Errno> {
        poll_fn(|cx| match *self.0.result.borrow() {
            Some(result) => Poll::Ready(result),
            None => {
                self.0.others.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_engine::Op;
    use std::pin::pin;
    use std::task::Context;

    fn lead(part: Part) -> Lead {
        match part {
            Part::Lead(lead) => lead,
            Part::Follow(_) => panic!("it goes with another"),
        }
    }

    fn follow(part: Part) -> Follow {
        match part {
            Part::Follow(follow) => follow,
            Part::Lead(_) => panic!("it goes by itself"),
        }
    }

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn span(sector: u64, nr: u64) -> Span {
        Span { op: Op::Write, flags: Flags::NONE, sector: Sector(sector), nr: Sectors(nr), at: Sectors::ZERO }
    }

    #[test]
    fn those_of_one_place_go_together_until_the_first_begins() {
        let gathering = Rc::new(Gathering::default());
        let write = gathering.enter(span(0, 8));
        let join =
            |at, role, flags| write.join((Sector(at), Sectors(8)), 3, Vec::from([(role, None)]), flags);
        let first = lead(join(0, 0, Flags::NONE));
        let beside = lead(join(8, 0, Flags::NONE));
        let second = follow(join(0, 2, Flags::FUA));
        let again = follow(join(0, 0, Flags::NONE));
        let (sources, flags) = first.begin();
        assert_eq!(sources.iter().map(|(role, _)| *role).collect::<Vec<_>>(), [2, 0]);
        assert!(flags.has(Flags::FUA));
        let late = lead(join(0, 1, Flags::NONE));
        assert_eq!(poll(second.result()), Poll::Pending);
        assert_eq!(first.tell(Ok(())), Ok(()));
        assert_eq!(poll(again.result()), Poll::Ready(Ok(())));
        let with_late = follow(join(0, 3, Flags::NONE));
        drop(late);
        assert_eq!(poll(with_late.result()), Poll::Ready(Err(Errno::EIO)), "nobody has written that");
        assert!(!beside.begin().1.has(Flags::FUA) && gathering.waiting.borrow().is_empty());
        drop((beside, write));
        assert_eq!((gathering.begun.get(), gathering.ended.get(), gathering.in_flight.get()), (0, 2, 0));
    }

    /// A client that writes in order, pieces of 8 sectors, rows of two members with chunks of 8.
    struct Stream {
        gathering: Rc<Gathering>,
        writes: VecDeque<(UnderWay, Part)>,
        next: u64,
    }

    const REST: Sectors = Sectors(8);

    impl Stream {
        fn new() -> Stream {
            Stream { gathering: Rc::default(), writes: VecDeque::new(), next: 0 }
        }
        fn send(&mut self) {
            let write = self.gathering.enter(span(8 * self.next, 8));
            let place = (Sector(self.next / 2 * 8), Sectors(8));
            let part = write.join(place, 2, Vec::from([(self.next as u16 % 2, None)]), Flags::NONE);
            self.writes.push_back((write, part));
            self.next += 1;
        }
        /// Whether the one who leads that write may begin.
        fn may_begin(&self, nth: usize) -> bool {
            let (write, Part::Lead(lead)) = &self.writes[nth] else { panic!("{nth} goes with another") };
            poll(lead.gather(write, REST, |_| std::future::pending())).is_ready()
        }
        fn begin(&self, nth: usize) {
            let (_, Part::Lead(lead)) = &self.writes[nth] else { panic!("{nth} goes with another") };
            lead.begin();
        }
    }

    #[test]
    fn who_begins_a_row_in_a_stream_waits_for_the_rest_of_it() {
        let mut stream = Stream::new();
        (0..5).for_each(|_| stream.send());
        assert!(stream.may_begin(0) && stream.may_begin(2), "those are whole");
        stream.begin(0);
        stream.begin(2);
        assert!(!stream.may_begin(4));
        stream.writes.drain(..2);
        assert!(!stream.may_begin(2), "the second row is being written still");
        stream.send();
        assert!(stream.may_begin(2), "it is whole");
    }

    #[test]
    fn nobody_waits_for_what_does_not_come() {
        let mut stream = Stream::new();
        (0..5).for_each(|_| stream.send());
        stream.begin(0);
        assert!(!stream.may_begin(4));
        // Others are written all the time.
        let others: Vec<_> = (0..2).map(|nth| stream.gathering.enter(span(8000 + 80 * nth, 8))).collect();
        let place = |nth| (Sector(800 + 8 * nth), Sectors(8));
        let part =
            |nth: usize| lead(others[nth].join(place(nth as u64), 2, Vec::from([(0, None)]), Flags::NONE));
        let mut waiting = pin!(async {
            let (write, Part::Lead(lead)) = &stream.writes[4] else { panic!("it goes with another") };
            lead.gather(write, REST, |_| std::future::pending()).await;
        });
        let mut poll = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        for nth in 0..2 {
            let other = part(nth);
            other.begin();
            assert!(poll().is_pending(), "{nth}");
            drop(other);
        }
        assert!(poll().is_ready(), "as many as two for each that was being written have been");
    }

    /// A stream whose first row has been answered while the second one waits for its other half. Whether that waits a moment; then it comes, or not.
    fn waits_a_moment(stream: &mut Stream, comes: bool) -> bool {
        (0..3).for_each(|_| stream.send());
        stream.begin(0);
        let Some((write, Part::Lead(lead))) = stream.writes.pop_back() else {
            panic!("it goes with another")
        };
        let (asked, is_over) = (Cell::new(0), Cell::new(false));
        let moment = |_| {
            asked.set(asked.get() + 1);
            poll_fn(|_| if is_over.get() { Poll::Ready(()) } else { Poll::Pending })
        };
        let mut waiting = pin!(lead.gather(&write, REST, moment));
        let mut poll = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!poll());
        stream.writes.clear();
        let has_waited = !poll();
        assert_eq!(asked.get(), u32::from(has_waited));
        if has_waited {
            if comes {
                stream.send();
            } else {
                is_over.set(true);
            }
            assert!(poll());
        }
        stream.writes.clear();
        stream.next = stream.next.next_multiple_of(2);
        has_waited
    }

    #[test]
    fn a_moment_is_waited_while_that_is_of_use() {
        let mut stream = Stream::new();
        assert!((0..3).all(|_| waits_a_moment(&mut stream, false)));
        assert!((0..9).all(|_| waits_a_moment(&mut stream, true)));
        let waited = (0..2 * TRIED).filter(|_| waits_a_moment(&mut stream, false)).count() as u32;
        assert_eq!(waited, IN_VAIN + 1, "one in {TRIED} is tried");
    }

    #[test]
    fn only_a_stream_with_enough_in_flight_lately_waits() {
        let mut stream = Stream::new();
        stream.send();
        stream.begin(0);
        stream.next = 4;
        stream.send();
        assert!(stream.may_begin(1), "it does not go on where another ended");
        stream.next = 1;
        (0..2).for_each(|_| stream.send());
        assert!(!stream.may_begin(3), "it goes on");
        // All are answered, and others are sent one by one: the first of them may be of as many as there were.
        let waits = |stream: &mut Stream| {
            stream.writes.clear();
            stream.gathering.in_vain.set(0);
            stream.send();
            let waits = !stream.may_begin(0);
            stream.next += 1;
            stream.gathering.enter(span(8 * (stream.next - 1), 8));
            waits
        };
        stream.next = 4;
        stream.gathering.enter(span(8 * 3, 8));
        assert!(waits(&mut stream));
        let waited = (0..20).filter(|_| waits(&mut stream)).count();
        assert!((1..12).contains(&waited), "{waited}");
        assert!(!waits(&mut stream), "a client that writes one by one sends nothing before that is answered");
    }
}
