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

/// The pace of one pass.
#[derive(Debug)]
pub(super) struct Pacer {
    mark: Nanos,
    /// Since the mark.
    sectors: u64,
    client_seen: Option<Nanos>,
    at_work: bool,
    speed_kib: u64,
}

impl Pacer {
    pub(super) fn new(now: Nanos) -> Pacer {
        Pacer { mark: now, sectors: 0, client_seen: None, at_work: false, speed_kib: 0 }
    }

    /// How long to wait before more is begun.
    pub(super) fn wait(&mut self, sync: &Sync, now: Nanos) -> Option<Nanos> {
        if sync.take_client() {
            self.client_seen = Some(now);
        }
        self.at_work = self.client_seen.is_some_and(|seen| now.since(seen) < AT_WORK);
        let limit = if self.at_work { &sync.speed_min } else { &sync.speed_max };
        let limit = limit.load(Ordering::Relaxed).max(1);
        let due = u128::from(self.sectors) * 500_000_000 / u128::from(limit);
        let passed = u128::from(now.since(self.mark).0);
        let wait = u64::try_from(due.saturating_sub(passed)).unwrap_or(u64::MAX);
        (wait > 0).then(|| Nanos(wait).min(PAUSE_MAX))
    }

    /// As of the last look.
    pub(super) fn is_client_at_work(&self) -> bool {
        self.at_work
    }

    /// So many sectors more of each member are done; the speed now, KiB per second.
    pub(super) fn count(&mut self, sectors: u64, now: Nanos) -> u64 {
        self.sectors += sectors;
        let passed = now.since(self.mark);
        if passed.0 > 0 {
            let speed = u128::from(self.sectors) * 500_000_000 / u128::from(passed.0);
            self.speed_kib = u64::try_from(speed).unwrap_or(u64::MAX);
        }
        if passed >= MARK {
            (self.mark, self.sectors) = (now, 0);
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
        assert_eq!(pacer.wait(&sync, Nanos(0)), None);
        // 1000 KiB take 100 ms at 10,000 KiB/s, and 1 s at 1000.
        assert_eq!(pacer.count(2000, Nanos::millis(50)), 20_000);
        assert_eq!(pacer.wait(&sync, Nanos::millis(50)), Some(Nanos::millis(50)));
        sync.note_client();
        assert_eq!(pacer.wait(&sync, Nanos::millis(100)), Some(PAUSE_MAX));
        assert!(pacer.is_client_at_work());
        assert_eq!(pacer.wait(&sync, Nanos::millis(199)), Some(PAUSE_MAX));
        assert_eq!(pacer.wait(&sync, Nanos::millis(200)), None, "the client has gone");
        sync.note_client();
        assert_eq!(pacer.wait(&sync, Nanos::secs(1)), None, "the minimum is for the sync");
    }
}
