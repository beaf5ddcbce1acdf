//! How fast a resync goes: `sync_speed_min` and `sync_speed_max`, in KiB per second and member.
//!
//! While clients do I/O, it goes no faster than the minimum; otherwise no faster than the maximum. The speed is that since a mark,
//! which moves every few seconds, so that what was not used then does not count for ever.

use std::sync::atomic::Ordering;

use blockwork_engine::Nanos;

use super::sync::Sync;

/// How long a mark stays.
const MARK: Nanos = Nanos::secs(3);

/// For how long a client counts as being at work after its last I/O.
const AT_WORK: Nanos = Nanos::millis(100);

/// Longest pause before it is looked again whether clients are at work.
const PAUSE_MAX: Nanos = Nanos::millis(100);

/// Sectors of a member in a window: while no client is at work, and while one is.
const WINDOW: u64 = 8192;
const WINDOW_BUSY: u64 = 1024;

/// Least sectors of a member in a window, whatever the limit.
const WINDOW_MIN: u64 = 128;

/// The pace of one pass.
#[derive(Debug)]
pub(super) struct Pacer {
    mark: Nanos,
    /// Begun since the mark.
    sectors: u64,
    client_seen: Option<Nanos>,
    at_work: bool,
    /// What it keeps to now, KiB per second.
    limit: u64,
    speed_kib: u64,
}

impl Pacer {
    pub(super) fn new(now: Nanos) -> Pacer {
        Pacer { mark: now, sectors: 0, client_seen: None, at_work: false, limit: 1, speed_kib: 0 }
    }

    /// How long to wait before more is begun.
    pub(super) fn wait(&mut self, sync: &Sync, now: Nanos) -> Option<Nanos> {
        if sync.take_client() {
            self.client_seen = Some(now);
        }
        self.at_work = self.client_seen.is_some_and(|seen| now.since(seen) < AT_WORK);
        let limit = if self.at_work { &sync.speed_min } else { &sync.speed_max };
        self.limit = limit.load(Ordering::Relaxed).max(1);
        self.move_mark(now);
        let due = u128::from(self.sectors) * 500_000_000 / u128::from(self.limit);
        let passed = u128::from(now.since(self.mark).0);
        let wait = u64::try_from(due.saturating_sub(passed)).unwrap_or(u64::MAX);
        (wait > 0).then(|| Nanos(wait).min(PAUSE_MAX))
    }

    /// What was begun beyond the limit counts on, up to a window; what was not used does not.
    fn move_mark(&mut self, now: Nanos) {
        let passed = now.since(self.mark);
        if passed >= MARK {
            let allowed = u128::from(passed.0) * u128::from(self.limit) / 500_000_000;
            let allowed = u64::try_from(allowed).unwrap_or(u64::MAX);
            (self.mark, self.sectors) = (now, self.sectors.saturating_sub(allowed).min(WINDOW));
        }
    }

    /// Sectors of each member in the next window, as of the last look: no more than a quarter of a second is worth.
    pub(super) fn window(&self) -> u64 {
        let most = if self.at_work { WINDOW_BUSY } else { WINDOW };
        most.min((self.limit / 2).max(1).next_multiple_of(WINDOW_MIN))
    }

    /// So many sectors more of each member are begun.
    pub(super) fn count(&mut self, sectors: u64) {
        self.sectors += sectors;
    }

    /// The speed, KiB per second.
    pub(super) fn speed_kib(&mut self, now: Nanos) -> u64 {
        let passed = now.since(self.mark);
        if passed > Nanos::millis(100) {
            let speed = u128::from(self.sectors) * 500_000_000 / u128::from(passed.0);
            self.speed_kib = u64::try_from(speed).unwrap_or(u64::MAX);
        }
        self.speed_kib
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_at_the_maximum_alone_and_at_the_minimum_beside_clients() {
        let sync = Sync::default();
        sync.speed_min.store(1000, Ordering::Relaxed);
        sync.speed_max.store(10_000, Ordering::Relaxed);
        let mut pacer = Pacer::new(Nanos(0));
        assert_eq!((pacer.wait(&sync, Nanos(0)), pacer.window()), (None, 5120));
        // 1000 KiB take 100 ms at 10,000 KiB/s, and 1 s at 1000.
        pacer.count(2000);
        assert_eq!(pacer.wait(&sync, Nanos::millis(50)), Some(Nanos::millis(50)));
        sync.note_client();
        assert_eq!((pacer.wait(&sync, Nanos::millis(100)), pacer.window()), (Some(PAUSE_MAX), 512));
        assert_eq!(pacer.wait(&sync, Nanos::millis(199)), Some(PAUSE_MAX));
        assert_eq!(pacer.wait(&sync, Nanos::millis(200)), None, "the client has gone");
        assert_eq!(pacer.speed_kib(Nanos::millis(200)), 5000);
        sync.note_client();
        assert_eq!(pacer.wait(&sync, Nanos::secs(1)), None, "the minimum is for the sync");
    }

    #[test]
    fn what_was_too_much_counts_beyond_the_mark() {
        let sync = Sync::default();
        sync.speed_max.store(1000, Ordering::Relaxed);
        let mut pacer = Pacer::new(Nanos(0));
        assert_eq!(pacer.wait(&sync, Nanos(0)), None);
        pacer.count(7000);
        assert_eq!(pacer.wait(&sync, Nanos::secs(3)), Some(PAUSE_MAX), "500 KiB too much");
        assert_eq!(pacer.wait(&sync, Nanos::millis(3499)), Some(Nanos::millis(1)));
        assert_eq!(pacer.wait(&sync, Nanos::millis(3500)), None);
    }
}
