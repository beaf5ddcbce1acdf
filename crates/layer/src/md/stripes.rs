//! Rows that somebody reads and writes as a whole: a parity fits the data only from one write to the next, so whoever computes by it, or
//! anew, has all of its row for itself.
//!
//! Ranges are of sectors of members: what lies side by side within a chunk does not belong together. They are had in the order in which they
//! were asked for, as far as they meet: nobody starves, and who holds one must not wait for another.

use std::array;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::{Poll, Waker};

use blockwork_engine::{Lock, LockSnapshot, Sector, Sectors, Turn, Turns};

#[derive(Debug)]
struct Asked {
    ticket: u64,
    start: u64,
    end: u64,
    /// None: it has it, or has not been polled yet.
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// In the order in which they came.
    asked: Vec<Asked>,
}

/// How many that write may have memory at once: each has some MiB at most.
const ROOMS: usize = 64;

/// The rows of an array. Cloning shares them.
#[derive(Clone, Debug)]
pub(super) struct Stripes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Lock<Queue>,
    rooms: [Turns; ROOMS],
    /// How many have waited for a room.
    waited: AtomicUsize,
}

impl Default for Stripes {
    fn default() -> Stripes {
        let rooms = array::from_fn(|_| Turns::default());
        Stripes(Arc::new(Shared { queue: Lock::default(), rooms, waited: AtomicUsize::new(0) }))
    }
}

/// A range that its owner has for itself; dropped, it is the next one's.
#[derive(Debug)]
pub(super) struct Held {
    stripes: Stripes,
    ticket: u64,
}

impl Asked {
    fn meets(&self, other: &Asked) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl Queue {
    /// Where that is, and whether nobody who came before it is in its way.
    fn position(&self, ticket: u64) -> (usize, bool) {
        let at = self.asked.partition_point(|asked| asked.ticket < ticket);
        let own = &self.asked[at];
        debug_assert_eq!(own.ticket, ticket);
        (at, !self.asked[..at].iter().any(|asked| asked.meets(own)))
    }
}

impl Stripes {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock()
    }

    /// Waits until nobody else has any of these sectors of members.
    pub(super) async fn hold(&self, sector: Sector, nr: Sectors) -> Held {
        let held = {
            let mut queue = self.queue();
            let ticket = queue.next;
            queue.next += 1;
            queue.asked.push(Asked { ticket, start: sector.0, end: sector.0 + nr.0, waker: None });
            Held { stripes: self.clone(), ticket }
        };
        poll_fn(|cx| {
            let mut queue = self.queue();
            let (at, is_first) = queue.position(held.ticket);
            queue.asked[at].waker = (!is_first).then(|| cx.waker().clone());
            if is_first { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        held
    }

    /// Waits until there is memory to write. For who holds a range already, and waits for nothing but members before this is dropped.
    pub(super) async fn room(&self) -> Turn {
        let Shared { rooms, waited, .. } = &*self.0;
        match rooms.iter().find_map(Turns::try_take) {
            Some(turn) => turn,
            None => rooms[waited.fetch_add(1, Ordering::Relaxed) % ROOMS].take().await,
        }
    }

    pub(super) fn snapshot(&self, name: String) -> LockSnapshot {
        self.0.queue.snapshot(name)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut queue = self.stripes.queue();
        let (at, _) = queue.position(self.ticket);
        let own = queue.asked.remove(at);
        let behind = queue.asked[at..].iter_mut().filter(|asked| asked.meets(&own));
        let wakers: Vec<_> = behind.filter_map(|asked| asked.waker.take()).collect();
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Wake};

    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll(future: Pin<&mut impl Future<Output = Held>>, count: &Arc<Count>) -> Option<Held> {
        let waker = Waker::from(count.clone());
        match future.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(held) => Some(held),
            Poll::Pending => None,
        }
    }

    #[test]
    fn those_that_meet_have_their_turns_in_order_and_others_at_once() {
        let stripes = Stripes::default();
        let count = Arc::new(Count::default());
        let hold = |sector, nr| stripes.hold(Sector(sector), Sectors(nr));
        let (mut first, mut second) = (pin!(hold(0, 16)), pin!(hold(8, 16)));
        let (mut beside, mut third) = (pin!(hold(24, 8)), pin!(hold(16, 4)));
        let held = poll(first.as_mut(), &count).unwrap();
        assert!(poll(second.as_mut(), &count).is_none());
        let other = poll(beside.as_mut(), &count).unwrap();
        assert!(poll(third.as_mut(), &count).is_none(), "it does not go past the second");
        drop(other);
        assert_eq!(count.0.load(Ordering::Relaxed), 0, "nobody waits for that");
        drop(held);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        let held = poll(second.as_mut(), &count).unwrap();
        assert!(poll(third.as_mut(), &count).is_none());
        drop(held);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert!(poll(third.as_mut(), &count).is_some());
        assert!(stripes.queue().asked.is_empty());
    }

    #[test]
    fn who_does_not_wait_any_longer_is_in_nobodys_way() {
        let stripes = Stripes::default();
        let count = Arc::new(Count::default());
        let hold = |sector, nr| Box::pin(stripes.hold(Sector(sector), Sectors(nr)));
        let held = poll(hold(0, 8).as_mut(), &count).unwrap();
        let (mut gone, mut next) = (hold(0, 16), hold(8, 8));
        assert!(poll(gone.as_mut(), &count).is_none() && poll(next.as_mut(), &count).is_none());
        drop(gone);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(poll(next.as_mut(), &count).is_some());
        drop(held);
    }
}
