//! Writes of the same sectors of several members of a row that come together are one: of a row that is written as a whole nothing is read first,
//! and its parity is written once. Clients write a row piece by piece, and many pieces at a time.
//!
//! The first of them waits for its turn at the row (`stripes.rs`), and until all that has come by now has been looked at; who comes until then goes
//! with it. Only those of one worker come together: their memory is its own.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use blockwork_engine::{Errno, Flags, Sector, Sectors};
use blockwork_memory::Segments;

/// What members are to have; none: zeros.
pub(super) type Sources = Vec<(u16, Option<Segments>)>;

/// Writes that have not begun. Of each array and worker.
#[derive(Default)]
pub(super) struct Gathering(RefCell<Vec<Rc<Batch>>>);

/// Writes that are one.
struct Batch {
    at: Sector,
    nr: Sectors,
    sources: RefCell<Sources>,
    flags: Cell<Flags>,
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

/// Who writes.
pub(super) enum Part {
    Lead(Lead),
    Follow(Follow),
}

impl Gathering {
    /// A write of the `nr` sectors at `at` of some members.
    pub(super) fn join(
        self: &Rc<Gathering>,
        at: Sector,
        nr: Sectors,
        sources: Sources,
        flags: Flags,
    ) -> Part {
        let mut waiting = self.0.borrow_mut();
        if let Some(batch) = waiting.iter().find(|batch| (batch.at, batch.nr) == (at, nr)) {
            let mut all = batch.sources.borrow_mut();
            // Of two writes to one place at once, either may be the last.
            all.retain(|(role, _)| !sources.iter().any(|(other, _)| other == role));
            all.extend(sources);
            batch.flags.set(batch.flags.get().with(flags));
            return Part::Follow(Follow(batch.clone()));
        }
        let batch = Rc::new(Batch {
            at,
            nr,
            sources: RefCell::new(sources),
            flags: Cell::new(flags),
            result: RefCell::default(),
            others: RefCell::default(),
        });
        waiting.push(batch.clone());
        Part::Lead(Lead { gathering: self.clone(), batch })
    }

    fn forget(&self, batch: &Rc<Batch>) {
        self.0.borrow_mut().retain(|other| !Rc::ptr_eq(other, batch));
    }
}

impl Lead {
    /// What is to be written, with the flags that any of them has. Nobody joins from now on.
    pub(super) fn begin(&self) -> (Sources, Flags) {
        self.gathering.forget(&self.batch);
        (self.batch.sources.take(), self.batch.flags.get())
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

    fn poll(future: impl Future<Output = Result<(), Errno>>) -> Poll<Result<(), Errno>> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn those_of_one_place_go_together_until_the_first_begins() {
        let gathering = Rc::new(Gathering::default());
        let join = |at, role, flags| gathering.join(Sector(at), Sectors(8), Vec::from([(role, None)]), flags);
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
        assert!(!beside.begin().1.has(Flags::FUA) && gathering.0.borrow().is_empty());
    }
}
