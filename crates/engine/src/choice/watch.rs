//! Whether times have changed: Page's test, on what requests cost that go the leading way, and on what pairs say.
//!
//! Page's test adds up by how many deviations each value lies above a level, less a slack, and starts again at nothing where the sum falls
//! below. While nothing has changed the sum stays small; a shift of d deviations makes it pass `h` after about h / (d - slack) values,
//! and no other test that is wrong as rarely is faster against shifts of one size. A value counts for a few deviations at most, so that one
//! stall changes nothing.
//!
//! What requests of the leading way cost is known without trying anything, so a change for the worse costs little: a shift of d deviations
//! of a window is an alarm after about [`ALARM`] / (d - [`SLACK`]) windows, two at least. What the other way costs is seen in pairs only: that
//! it became cheaper is noticed after some pairs, however rare these are.

/// The sum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page(f64);

impl Page {
    /// One more value, in deviations above the level; it counts for `most` at most. Returns the sum.
    pub(super) fn add(&mut self, deviations: f64, most: f64, slack: f64) -> f64 {
        self.0 = (self.0 + within(deviations, most) - slack).max(0.0);
        self.0
    }
}

/// Requests of the leading way that are looked at together, at least; where more are under way, as many as those: a stall holds up
/// all that are under way, and its time falls into one window.
pub(super) const WINDOW: u32 = 16;
/// The test of windows: what one counts for at most, in deviations, so that two stalls are no alarm; the slack, the alarm.
const MOST: f64 = 3.0;
const SLACK: f64 = 0.3;
const ALARM: f64 = 8.0;
/// So many windows in a row that are dearer than the other way by that part are an alarm of their own.
const MUCH: (u32, f64) = (2, 0.5);
/// No window is believed to be surer than that.
const DEVIATION_MIN: f64 = 0.02;
/// So many windows tell what is usual, and weigh in it later.
const USUAL: (f64, f64) = (16.0, 256.0);
/// Each alarm in vain doubles what the next one takes, at most so often; so many windows without one halve it.
const VAIN_MAX: u32 = 5;
const CALM: u32 = 4096;

/// What requests cost that go the leading way, beside what the other way is known to cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    page: Page,
    /// By how much windows are dearer than the other way, lately, and how much that varies.
    mean: f64,
    deviation: f64,
    /// And usually; by so many windows, counted as far as they weigh.
    usual: f64,
    windows: f64,
    much: u32,
    /// What a byte cost in the newest windows, nanoseconds.
    cost: f64,
    vain: u32,
    /// Windows without an alarm until one in vain is forgotten.
    calm: u32,
    /// The sum that is an alarm.
    alarm: f64,
}

impl Watch {
    /// Begins anew: windows are dearer than the other way by `excess`, usually, with that deviation.
    pub(super) fn begin(&mut self, excess: f64, deviation: f64) {
        let (vain, alarm) = (self.vain, alarm(self.vain));
        *self = Watch { mean: excess, deviation, vain, calm: CALM, alarm, ..Watch::default() };
    }

    /// What a byte cost in the newest windows.
    pub(super) fn cost(&self) -> f64 {
        self.cost
    }

    /// The last alarm was in vain.
    pub(super) fn was_in_vain(&mut self) {
        self.vain = (self.vain + 1).min(VAIN_MAX);
    }

    /// It was not.
    pub(super) fn was_right(&mut self) {
        self.vain = 0;
    }

    /// What a byte costs in the newest windows, the newest of which is `each`. And what is alarming above it: that which is usual, within what is
    /// known of the other way. Who knows that badly tries it again when anything has changed for the worse.
    #[inline]
    fn now(&self, each: f64, known_to: f64) -> (f64, f64) {
        let cost = (self.cost + each) / 2.0;
        if self.windows >= USUAL.0 {
            (cost, within(self.usual, known_to))
        } else {
            (if self.windows > 0.0 { cost } else { each }, known_to)
        }
    }

    /// A window cost `each` a byte; the other way costs `other`, known to that part of it. Whether it is time to try that again.
    #[inline(always)]
    pub(super) fn window(&mut self, each: f64, other: f64, known_to: f64) -> bool {
        let excess = each / other - 1.0;
        let deviation = self.deviation.max(DEVIATION_MIN);
        let off = excess - self.mean;
        self.mean += within(off, 2.0 * deviation) / 16.0;
        // The mean deviation is 0.8 of what is normal.
        self.deviation += (1.25 * less(off.abs(), 4.0 * deviation) - self.deviation) / 32.0;
        let (cost, level) = self.now(each, known_to);
        let above = excess - level;
        self.cost = cost;
        self.windows = less(self.windows + 1.0, USUAL.1);
        self.usual += within(excess - self.usual, 4.0 * deviation) / self.windows;
        let sum = self.page.add(above / deviation, MOST, SLACK);
        if sum > self.alarm || self.is_much(above) {
            self.calm = CALM;
            return true;
        }
        self.calm -= 1;
        if self.calm == 0 {
            self.was_calm();
        }
        false
    }

    /// Whether one more window is so much dearer that it needs no sum.
    #[inline]
    fn is_much(&mut self, above: f64) -> bool {
        if above > MUCH.1 {
            self.much += 1;
            self.much >= MUCH.0 + self.vain
        } else {
            self.much = 0;
            false
        }
    }

    /// No alarm for so long.
    #[cold]
    fn was_calm(&mut self) {
        (self.calm, self.vain) = (CALM, self.vain.saturating_sub(1));
        self.alarm = alarm(self.vain);
    }
}

/// The sum that is an alarm after so many in vain.
fn alarm(vain: u32) -> f64 {
    ALARM * f64::from(1u32 << vain)
}

/// The lesser one. Numbers only: `min` has to care for what is none, and takes six instructions where this takes one.
#[inline]
fn less(one: f64, other: f64) -> f64 {
    if one < other { one } else { other }
}

/// Not further from 0 than `most`, which is not below it: `clamp` without its question whether the bounds are in order.
#[inline]
fn within(value: f64, most: f64) -> f64 {
    let value = less(value, most);
    if value > -most { value } else { -most }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows until the alarm, at most so many, each of which costs what `each` says of it.
    fn alarm_after(watch: &mut Watch, most: usize, each: impl Fn(usize) -> f64) -> Option<usize> {
        (0..most).find(|n| watch.window(each(*n), 1.0, 0.01))
    }

    fn watch() -> Watch {
        let mut watch = Watch::default();
        watch.begin(-0.02, 0.05);
        watch
    }

    /// What windows cost while nothing changes: 2 % less than the other way, give or take 5 %.
    fn usual(n: usize) -> f64 {
        0.98 + [0.05, -0.05, -0.05, 0.05, 0.0][n % 5]
    }

    #[test]
    fn a_stall_is_no_alarm_and_a_shift_is_one() {
        assert_eq!(alarm_after(&mut watch(), 10_000, usual), None);
        let stalls = |n: usize| if n.is_multiple_of(50) { 3.0 } else { usual(n) };
        assert_eq!(alarm_after(&mut watch(), 10_000, stalls), None);
        assert!(alarm_after(&mut watch(), 100, |n| usual(n) + 0.12).unwrap() < 20);
        assert_eq!(alarm_after(&mut watch(), 100, |_| 5.0), Some(1));
    }

    #[test]
    fn alarms_in_vain_become_rarer_and_are_forgotten() {
        let mut watch = watch();
        let shifted = |n: usize| usual(n) + 0.08;
        let first = alarm_after(&mut watch, 1000, shifted).unwrap();
        watch.was_in_vain();
        watch.begin(-0.02, 0.05);
        let second = alarm_after(&mut watch, 1000, shifted).unwrap();
        assert!(second > first + 5, "{first} {second}");
        watch.begin(-0.02, 0.05);
        assert_eq!(watch.alarm, 2.0 * ALARM);
        assert_eq!(alarm_after(&mut watch, 2 * CALM as usize, usual), None);
        assert_eq!(watch.alarm, ALARM); // from then on, not only when it begins anew
        watch.begin(-0.02, 0.05);
        assert_eq!(alarm_after(&mut watch, 1000, shifted), Some(first));
    }
}
