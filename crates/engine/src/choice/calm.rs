//! Whether each request has to be looked at: not while all are of one class, nothing is tried, and what they cost does not change.
//!
//! To look at a request (of which class it is, what it pays) takes a good tenth of the engine's instructions for one. So once all requests
//! of some windows were of one class and lay within a stretch, they go as they went, for [`CALM`] times as many as were looked at, and for as
//! long as they went so before, up to [`CALM_LONG`] times. A clock and a count of bytes for each window say what they cost then, and the
//! class's own watch is told of it, as of windows that were looked at: what a byte costs of one class alone is what a byte of all costs. So
//! an alarm comes as early as without, and from the same figures.
//!
//! Invariants:
//! 1. Requests go as is decided for their class, or as their class leads: a calm begins only where all classes that were ever seen under a
//!    question lead alike. One that is new goes their way until the calm ends.
//! 2. Requests that nobody looks at are counted as part of the stretch, so pairs are as frequent as without. None is measured while
//!    such requests are under way.

use super::float;
use super::rule::Way;
use super::watch::WINDOW;
use crate::units::Nanos;

/// Windows that are looked at between calms, and windows of a calm for each of those, at most: where it is not known yet for how long all
/// requests are of one class, and ever.
const LOOK: u32 = 2;
const CALM: u32 = 128;
const CALM_LONG: u32 = 512;
/// Windows that are looked at where no calm was possible.
const LOOK_LONG: u32 = 64;
/// A calm is not worth its beginning and its end if no more windows than that are left of a stretch.
const REST_MIN: u32 = 8;

/// What the end of a window comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Said {
    Nothing,
    /// A calm may begin, of that class.
    Ready(u8),
    /// In a calm of that class a byte cost so much, if that is known.
    Window {
        class: u8,
        each: Option<f64>,
    },
}

/// The state of a leaf and worker.
#[derive(Clone, Debug)]
pub(super) struct Calm {
    is_on: bool,
    /// How requests go while it is on, by question.
    ways: [Way; 2],
    /// It is on, and they go the usual way.
    as_usual: [bool; 2],
    /// Requests until the window ends, and of the window.
    left: u32,
    window: u32,
    /// When it began, later by the time in which the device had nothing to do, and bytes until then.
    began: Nanos,
    bytes: u64,
    idle_since: Nanos,
    /// Requests that were under way when it began, and those done since before the last window.
    flying: u32,
    timeless: u32,
    /// Bytes of a request, lately.
    request: f64,
    /// What a byte costs where it has become far dearer; what a window takes then; and when one of a calm is over for that, however few
    /// requests are done.
    dear: f64,
    long: Nanos,
    late: Nanos,
    /// The class that is looked at, and how many of the window's requests were of it.
    class: u8,
    seen: u32,
    /// Requests to look at before the next calm.
    looks: u32,
    /// Requests that the calm lasts, and those that were done in it; and in all before it, since others than of that class were seen.
    lasts: u32,
    went: u32,
    went_before: u32,
    /// Requests under way that nobody looked at; and such as somebody did, when the calm began.
    draining: u32,
    looked_at: u32,
    /// Calms so far.
    number: u32,
}

impl Default for Calm {
    fn default() -> Calm {
        Calm {
            is_on: false,
            ways: [Way::Usual; 2],
            as_usual: [false; 2],
            left: WINDOW,
            window: WINDOW,
            began: Nanos(0),
            bytes: 0,
            idle_since: Nanos(0),
            flying: 0,
            timeless: 0,
            request: 0.0,
            dear: 0.0,
            long: Nanos(0),
            late: Nanos(u64::MAX),
            class: 0,
            seen: 0,
            looks: LOOK_LONG * WINDOW,
            lasts: 0,
            went: 0,
            went_before: 0,
            draining: 0,
            looked_at: 0,
            number: 0,
        }
    }
}

impl Calm {
    /// How requests go that a question is asked about, if nobody has to look at them.
    #[inline]
    pub(super) fn way(&self, question: usize) -> Option<Way> {
        self.is_on.then(|| self.ways[question])
    }

    /// Whether they go the usual way then.
    #[inline]
    pub(super) fn is_as_usual(&self, question: usize) -> bool {
        self.as_usual[question]
    }

    /// Which calm it is, or was last: what was started before it and is done after it has not paid for all of its time.
    #[inline]
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// A request is given to the device, which had nothing to do until now.
    #[inline]
    pub(super) fn idle_until(&mut self, now: Nanos) {
        let idle = now.since(self.idle_since);
        self.began = self.began + idle;
        self.late = Nanos(self.late.0.saturating_add(idle.0));
    }

    /// A request is done that may be one nobody looked at.
    #[inline]
    pub(super) fn drains(&mut self) {
        if self.draining > 0 {
            self.draining -= 1;
            self.seen += 1;
        }
    }

    /// The device has nothing to do from now on.
    #[inline]
    pub(super) fn idle_from(&mut self, now: Nanos) {
        self.idle_since = now;
    }

    /// A request is done. Whether [`Calm::window_done`] has to be asked.
    #[inline]
    pub(super) fn one_done(&mut self, now: Nanos) -> bool {
        self.left -= 1;
        self.left == 0 || now > self.late
    }

    /// Whether requests are under way that nobody looked at.
    #[inline]
    pub(super) fn is_draining(&self) -> bool {
        self.draining > 0
    }

    /// A request of that class was looked at. If it lay within a stretch that is watched, `rest` is what is left of that; else 0.
    #[inline]
    pub(super) fn looked(&mut self, class: u8, rest: u32) {
        self.seen += 1;
        if class != self.class {
            self.class = class;
            self.is_none();
        } else if rest < REST_MIN * self.window {
            self.looks = self.looks.max(LOOK * self.window);
        } else {
            self.looks = self.looks.saturating_sub(1);
        }
    }

    /// The last request of a window is done, `under_way` are still; the device was given so many bytes in all.
    #[inline]
    pub(super) fn window_done(&mut self, now: Nanos, under_way: u32, bytes: u64) -> Said {
        let requests = self.window - self.left;
        // What was given since, and how many requests that was: where answers come many at once, a window ends in the middle of them, and what it
        // was given is not what was done in it.
        let done = self.timeless + requests;
        let given = (done + under_way).saturating_sub(self.flying);
        let mut request = self.request;
        if given > 0 {
            request = float(bytes.saturating_sub(self.bytes)) / f64::from(given);
        }
        let window = WINDOW.max(under_way);
        if request != self.request || window != self.window {
            (self.request, self.window) = (request, window);
            self.long = self.long();
        }
        self.left = window;
        if !self.is_on {
            self.window_begins(now, under_way, bytes);
            return self.window_looked_at(requests);
        }
        self.went += requests;
        // At the same moment, as when a deep queue's answers come at once, nothing is known yet: the next window has this one's time too.
        let worth = request * f64::from(done);
        let mut each = None;
        if now > self.began && worth > 0.0 {
            each = Some(float(now.0 - self.began.0) / worth);
            self.window_begins(now, under_way, bytes);
        } else {
            self.timeless = done;
        }
        Said::Window { class: self.class, each }
    }

    /// What a window takes that is far dearer than usual. Computed when what it depends on changes, which is seldom.
    #[cold]
    fn long(&self) -> Nanos {
        let time = self.dear * self.request * f64::from(self.window);
        // Half of all times at most, so that one can be added to it.
        Nanos((time as i64).unsigned_abs())
    }

    #[inline(never)]
    fn window_looked_at(&mut self, requests: u32) -> Said {
        if std::mem::take(&mut self.seen) < requests {
            // There were others.
            self.is_none();
        }
        if self.looks == 0 { Said::Ready(self.class) } else { Said::Nothing }
    }

    #[inline]
    fn window_begins(&mut self, now: Nanos, under_way: u32, bytes: u64) {
        (self.began, self.bytes, self.flying, self.timeless) = (now, bytes, under_way, 0);
    }

    /// A calm begins: requests go by these ways, and `rest` are left of the stretch. A window of it is over when bytes of it have cost `dear`
    /// nanoseconds each on average, however few are done: what has become far dearer is not to last for a whole window.
    pub(super) fn begin(&mut self, ways: [Way; 2], (rest, dear): (u32, f64), under_way: u32) {
        self.dear = dear;
        self.long = self.long();
        (self.is_on, self.ways) = (true, ways);
        self.as_usual = ways.map(|way| way == Way::Usual);
        // As long as it was calm before: a new class does not wait for longer than there was reason to expect none.
        let [least, most] = [CALM, CALM_LONG].map(|windows| windows * LOOK * self.window);
        (self.lasts, self.went) = (rest.min(self.went_before.clamp(least, most)), 0);
        self.number = self.number.wrapping_add(1);
        self.looked_at = under_way;
    }

    /// No calm is possible for long.
    #[cold]
    pub(super) fn is_none(&mut self) {
        (self.looks, self.went_before) = (LOOK_LONG * self.window, 0);
    }

    /// A calm goes on, if it has not lasted.
    #[inline]
    pub(super) fn goes_on(&mut self) -> bool {
        self.late = self.began + self.long;
        self.went + self.window <= self.lasts
    }

    /// It ends. Returns how many requests nobody looked at: those that are done, and those under way.
    pub(super) fn end(&mut self, under_way: u32) -> [u32; 2] {
        (self.is_on, self.as_usual) = (false, [false; 2]);
        self.late = Nanos(u64::MAX);
        // Some of those that somebody looked at may be under way still, in the calm's first window.
        self.draining = under_way.saturating_sub(self.looked_at.saturating_sub(self.went));
        self.looks = LOOK * self.window;
        self.went_before = self.went_before.saturating_add(self.went);
        [self.went.saturating_sub(self.looked_at), self.draining]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_worth_what_was_done_in_it_and_not_what_was_given() {
        // Sixteen are under way. Of seventeen that are answered one comes first, and the others at once, four times as late; each is followed by
        // another when all of its moment are done.
        const BYTES: u64 = 4096;
        let (mut calm, mut now, mut given, mut windows) = (Calm::default(), 0, 16 * BYTES, Vec::new());
        let each = 17_000.0 / (17.0 * BYTES as f64);
        calm.begin([Way::Usual; 2], (10_000, 2.0 * each), 16);
        for _ in 0..200 {
            for (took, done) in [(3_400, 1), (13_600, 16)] {
                now += took;
                for under_way in (16 - done..16).rev() {
                    if !calm.one_done(Nanos(now)) {
                        continue;
                    }
                    if let Said::Window { each: Some(each), .. } =
                        calm.window_done(Nanos(now), under_way, given)
                    {
                        windows.push(each);
                    }
                    _ = calm.goes_on();
                }
                given += u64::from(done) * BYTES;
            }
        }
        let measured: Vec<_> = windows.iter().copied().skip(2).collect();
        assert!(measured.len() > 150, "{}", measured.len());
        // Now and then a window has the answers of one moment and a few.
        let far = measured.iter().filter(|one| (*one / each - 1.0).abs() > 0.1).count();
        let mean = measured.iter().sum::<f64>() / measured.len() as f64;
        assert!(
            far * 5 < measured.len() && (mean / each - 1.0).abs() < 0.15,
            "{far} are far off, {mean} of {each}"
        );
    }

    /// A calm of so many requests while eight are under way that were looked at, one done each nanosecond; ends after so many.
    fn calm_of(lasts: u32, most: u32) -> (Calm, u32) {
        let mut calm = Calm::default();
        calm.begin([Way::Usual; 2], (lasts, 1.0), 8);
        for done in 1..=most {
            let now = Nanos(u64::from(done));
            if calm.one_done(now) {
                assert!(matches!(calm.window_done(now, 8, u64::from(done + 8) * 4096), Said::Window { .. }));
                if !calm.goes_on() {
                    return (calm, done);
                }
            }
        }
        (calm, most)
    }

    #[test]
    fn a_calm_lasts_for_whole_windows_and_tells_whom_nobody_looked_at() {
        let (mut calm, done) = calm_of(100, 1000);
        assert_eq!((done, calm.end(8)), (96, [88, 8]));
        // At the end of a window that is all, of sixteen: eight of those that were done were looked at. Before that none.
        let (mut calm, done) = calm_of(16, 1000);
        assert_eq!((done, calm.end(10)), (16, [8, 10]));
        assert_eq!(calm_of(16, 3).0.end(10), [0, 2]);
    }

    #[test]
    fn a_calm_is_as_long_as_it_was_before_until_others_are_seen() {
        let (mut calm, mut done) = (Calm::default(), 0u32);
        let mut windows = |calm: &mut Calm| {
            calm.begin([Way::Usual; 2], (u32::MAX, 1.0), 0);
            let before = done;
            loop {
                done += 1;
                let now = Nanos(u64::from(done));
                if calm.one_done(now) {
                    calm.window_done(now, 0, u64::from(done) * 4096);
                    if !calm.goes_on() {
                        calm.end(0);
                        return (done - before) / WINDOW / LOOK;
                    }
                }
            }
        };
        for others in 0..4 {
            let lasted: Vec<_> = (0..5).map(|_| windows(&mut calm)).collect();
            assert_eq!(lasted, [CALM, CALM, 2 * CALM, CALM_LONG, CALM_LONG], "{others}");
            match others {
                0 => calm.looked(1, u32::MAX),
                1 => calm.is_none(),
                _ => {
                    // A window whose requests nobody asked about.
                    (0..WINDOW).for_each(|_| _ = calm.one_done(Nanos(0)));
                    assert_eq!(calm.window_done(Nanos(0), 0, 0), Said::Nothing);
                }
            }
        }
    }

    #[test]
    fn a_window_is_late_by_what_requests_are_worth_lately() {
        let (mut calm, _) = calm_of(1000, 32);
        assert_eq!(calm.late, Nanos(32 + 16 * 4096));
        // The next sixteen are twice as large, and so are those after them.
        for done in 33..=48 {
            _ = calm.one_done(Nanos(done));
        }
        let given = (32 + 8) * 4096 + 16 * 8192;
        assert!(matches!(calm.window_done(Nanos(48), 8, given), Said::Window { each: Some(_), .. }));
        assert!(calm.goes_on() && calm.late == Nanos(48 + 16 * 8192), "{:?}", calm.late);
    }
}
