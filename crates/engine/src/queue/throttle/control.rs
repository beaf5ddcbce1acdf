//! How many bytes of large requests a device may have, so that small ones are served in time.
//!
//! First, what small ones take at best: with as few large ones as there can be (`Phase::Base`). What they may take is twice that, or
//! `wbt_lat_usec` if that is more: a disk that is far away gets no nearer by holding requests back. Then more is let
//! through, for as long as most small ones are in time (`Phase::Run`), and large ones wait at all. Now and then the first is
//! done again, since disks change.
//!
//! To see the best time costs large ones most of theirs, so it is done for a moment only, and where small ones are so few that the
//! moment does not tell, nothing is held back: theirs is not worth what a guess would cost.

use std::sync::atomic::Ordering::Relaxed;

use super::{LEAST, MOST, Pressure};
use crate::units::Nanos;

/// Small requests by which the best time is judged.
const BASE: usize = 8;
/// And by which the limit is.
const WINDOW: u32 = 16;
/// Fewer do while it has hardly been found, and where it takes longer than this until there are so many.
const WINDOW_TIME: Nanos = Nanos::millis(50);
const WINDOW_LEAST: u32 = 4;
/// Too many were late where more than one of so many was.
const LATE: u32 = 4;
/// The best time is looked for so long, once what was in flight before has gone; or half as long as that took, on a disk that is slow to
/// be done with it.
const BASE_TIME: Nanos = Nanos::millis(50);
/// What was in flight goes in the time that a small one has just taken, which was behind it. It is waited for half as long again, where
/// that time is between these.
const DRAIN_LEAST: Nanos = Nanos::millis(100);
const DRAIN_MOST: Nanos = Nanos::secs(1);
/// Fewer small requests do not tell it.
const BASE_LEAST: u32 = 4;
/// It is looked for again after as long.
const AGAIN: Nanos = Nanos::secs(5);

/// What is being found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Base,
    Run,
}

#[derive(Debug)]
pub(super) struct Control {
    /// What small requests may take in any case.
    least: Nanos,
    phase: Phase,
    /// What they may take here; none: they are too few to tell.
    target: Option<Nanos>,
    /// The limit has hardly been found: it is doubled until it is too much.
    rises: bool,
    /// The limit to go on with after the best time is known.
    limit: u64,
    /// What was in flight beyond the limit when it was lowered has gone when so many bytes have ended.
    drained: Option<u64>,
    /// Requests count that were issued since.
    since: Nanos,
    /// When the best time was looked for, and how long it may take until what was in flight then has gone.
    based_at: Nanos,
    drain: Nanos,
    taken: u32,
    late: u32,
    times: [Nanos; BASE],
}

impl Control {
    pub(super) fn new(least: Nanos) -> Control {
        Control {
            least,
            phase: Phase::Run,
            target: None,
            rises: true,
            limit: LEAST,
            drained: None,
            since: Nanos(0),
            based_at: Nanos(0),
            drain: DRAIN_LEAST,
            taken: 0,
            late: 0,
            times: [Nanos(0); BASE],
        }
    }

    /// A small request that was issued then is done now.
    pub(super) fn took(&mut self, pressure: &Pressure, now: Nanos, issued: Nanos) {
        if self.based_at == Nanos(0) || now.since(self.based_at) > AGAIN {
            // Nothing is known, or it has been known for long.
            self.based_at = now;
            self.drain = now.since(issued).clamp(DRAIN_LEAST, DRAIN_MOST);
            pressure.least_until.store((now + self.drain + Nanos(self.drain.0 / 2)).0, Relaxed);
            self.enter(pressure, now, Phase::Base, LEAST);
            return;
        }
        if self.phase == Phase::Base && now.0 >= pressure.least_until.load(Relaxed) {
            self.based(pressure, now);
            return;
        }
        if let Some(ended) = self.drained {
            if pressure.ended.load(Relaxed) < ended && pressure.in_flight.load(Relaxed) > 0 {
                return;
            }
            self.drained = None;
            self.since = now;
            if self.phase == Phase::Base {
                let time = BASE_TIME.max(Nanos(self.drain.0 / 2));
                pressure.least_until.store((now + time).0, Relaxed);
            }
        }
        if issued < self.since {
            return;
        }
        let time = now.since(issued);
        match self.phase {
            Phase::Base => {
                self.times[self.taken as usize] = time;
                self.taken += 1;
                if self.taken as usize == BASE {
                    self.based(pressure, now);
                }
            }
            Phase::Run => {
                let Some(target) = self.target else { return };
                self.taken += 1;
                self.late += u32::from(time > target);
                let few_do = self.rises || now.since(self.since) > WINDOW_TIME;
                if self.taken >= if few_do { WINDOW_LEAST } else { WINDOW } {
                    self.judge(pressure, now);
                }
            }
        }
    }

    /// The best time is known, or cannot be.
    fn based(&mut self, pressure: &Pressure, now: Nanos) {
        let times = &mut self.times[..self.taken as usize];
        times.sort_unstable();
        self.target = (self.taken >= BASE_LEAST).then(|| self.least.max(Nanos(2 * times[times.len() / 2].0)));
        pressure.least_until.store(0, Relaxed);
        self.enter(pressure, now, Phase::Run, if self.target.is_some() { self.limit } else { MOST });
    }

    /// A window is over: more, fewer, or as it is.
    fn judge(&mut self, pressure: &Pressure, now: Nanos) {
        let limit = self.limit;
        self.limit = if self.late * LATE > self.taken {
            let lower = if self.rises { limit / 2 } else { limit / 4 * 3 };
            self.rises = false;
            lower.max(LEAST)
        } else if pressure.held_at.load(Relaxed) < self.since.0 {
            limit // nothing waited: more would change nothing
        } else if self.rises {
            (2 * limit).min(MOST)
        } else {
            (limit + (limit / 8).max(LEAST)).min(MOST)
        };
        self.enter(pressure, now, Phase::Run, self.limit);
    }

    /// Goes on with that limit.
    fn enter(&mut self, pressure: &Pressure, now: Nanos, phase: Phase, limit: u64) {
        let before = match phase {
            Phase::Base => MOST,
            Phase::Run => pressure.limit.swap(limit, Relaxed),
        };
        let excess = pressure.in_flight.load(Relaxed).saturating_sub(limit);
        self.drained = (limit < before && excess > 0).then(|| pressure.ended.load(Relaxed) + excess);
        (self.phase, self.since) = (phase, now);
        (self.taken, self.late) = (0, 0);
    }
}
