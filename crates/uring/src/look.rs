//! Whether to look for completions for a moment before sleeping: only while that finds some (or where the worker has measured that
//! it pays), and only as long as half of the processors are left to others. A process that is held to one processor (its clients may have others) looks there, which is
//! given up soon if it takes the processor from the client.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use blockwork_engine::{Awaited, Nanos};

use crate::back_off::BackOff;

/// Of so many waits one looks, at least, where looking has been in vain.
const BACK_OFF_MAX: u32 = 1024;

/// Looks for the drivers of full rings take an eighth of the time, at most.
const REFILL_SHARE: u64 = 8;

/// Workers of this process that are looking just now.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// The right to look; dropped, it is another worker's.
pub(crate) struct Looking(());

impl Looking {
    /// Unless as many look already as half of this process's processors.
    fn begin() -> Option<Looking> {
        static MAX: OnceLock<usize> = OnceLock::new();
        let max =
            *MAX.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| (n.get() / 2).max(1)));
        // It only counts; nothing is published by it.
        let free = |looking: usize| (looking < max).then_some(looking + 1);
        LOOKING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok().map(|_| Looking(()))
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Who is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookedFor {
    /// Whom the worker expects.
    Awaited(Awaited),
    /// Clients with much under way, for a short time.
    Busy,
    /// The driver of a ring that was full, which has been told that there is room.
    Refill,
}

impl From<Awaited> for LookedFor {
    fn from(of: Awaited) -> LookedFor {
        LookedFor::Awaited(of)
    }
}

/// All looks, by who is looked for: that one does not come soon says nothing of the others.
#[derive(Debug)]
pub(crate) struct Looks {
    /// How long to look, at most.
    pub(crate) time: Nanos,
    client: Look,
    device: Look,
    measured: Look,
    busy: Look,
    refill: Look,
    budget: Budget,
}

impl Looks {
    pub(crate) fn new(time: Nanos) -> Looks {
        let always = Look { always: true, ..Look::default() };
        let [client, device, busy, refill] = Default::default();
        Looks { time, client, device, measured: always, busy, refill, budget: Budget::default() }
    }

    pub(crate) fn of(&mut self, of: LookedFor) -> &mut Look {
        match of {
            LookedFor::Awaited(Awaited::Client) => &mut self.client,
            LookedFor::Awaited(Awaited::Device) => &mut self.device,
            LookedFor::Awaited(Awaited::Measured) => &mut self.measured,
            LookedFor::Busy => &mut self.busy,
            LookedFor::Refill => &mut self.refill,
        }
    }

    /// How long to look for a refill, if it is looked for at `now`.
    pub(crate) fn refill_time(&mut self, now: Nanos) -> Nanos {
        if self.budget.allows(now, self.time) { self.time } else { Nanos(0) }
    }

    /// A refill was looked for, for so long.
    pub(crate) fn looked_for_refill(&mut self, time: Nanos) {
        self.budget.left = Nanos(self.budget.left.0.saturating_sub(time.0));
    }
}

/// Time that may be looked away: a share of what goes by, and not much more at once than one look takes.
#[derive(Debug, Default)]
struct Budget {
    left: Nanos,
    at: Nanos,
}

impl Budget {
    fn allows(&mut self, now: Nanos, time: Nanos) -> bool {
        let earned = now.since(self.at).0 / REFILL_SHARE;
        self.left = Nanos(self.left.0.saturating_add(earned).min(2 * time.0));
        self.at = now;
        self.left >= time
    }
}

/// What became of the looks so far.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// The worker measures by itself whether it is worth it.
    always: bool,
    back_off: BackOff<BACK_OFF_MAX>,
}

impl Look {
    /// The right to look this time, if it is worth it.
    pub(crate) fn begin(&mut self) -> Option<Looking> {
        if self.back_off.is_due() { Looking::begin() } else { None }
    }
    /// Something came.
    pub(crate) fn found(&mut self) {
        self.back_off.paid();
    }
    /// Nothing came.
    pub(crate) fn in_vain(&mut self) {
        if !self.always {
            self.back_off.in_vain();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, since the count of those who look is the process's.
    #[test]
    fn looks_in_vain_become_rare_and_one_that_finds_something_brings_them_back() {
        drop(Looking::begin().expect("nobody looks"));
        let mut look = Look::default();
        let looks = (0..100_000).filter(|_| {
            let began = look.begin().is_some();
            if began {
                look.in_vain();
            }
            began
        });
        assert!(looks.count() < 120);
        look.found();
        while look.begin().is_none() {}
        let mut looks = Looks::new(Nanos(1));
        let measured = looks.of(LookedFor::Awaited(Awaited::Measured));
        for _ in 0..100 {
            assert!(measured.begin().is_some(), "whether it pays is measured by who asks");
            measured.in_vain();
        }
        let all: Vec<_> = std::iter::from_fn(Looking::begin).collect();
        assert!(look.begin().is_none(), "{} look already", all.len());
        drop(all);
        assert!(look.begin().is_some());
    }

    #[test]
    fn refills_are_looked_for_an_eighth_of_the_time_at_most() {
        // A ring that is full each time, and refilled after 40 us: how long it is looked for in one second of such rounds.
        let looked = |round: u64| {
            let mut looks = Looks::new(Nanos::micros(60));
            let (mut now, mut looked) = (Nanos::secs(7), 0);
            while now < Nanos::secs(8) {
                now = now + Nanos::micros(round);
                if looks.refill_time(now) > Nanos(0) {
                    looks.looked_for_refill(Nanos::micros(40));
                    looked += 40;
                }
            }
            looked
        };
        assert_eq!(looked(1000), 40 * 1000, "each time: it costs less than that");
        let often = looked(50);
        assert!((120_000..=125_100).contains(&often), "{often} us of a second");
    }
}
