//! Accepting clients while the process, or the system, has run out of something: what is said about it, and how often.
//!
//! Invariant: of one listener a line is said when that begins, at most one in [`QUIET`], and one when it is over, if its beginning was told of;
//! however often accepting is tried meanwhile.

use blockwork_engine::{Errno, Nanos};

/// Between two shortages that are told of.
const QUIET: Nanos = Nanos::secs(10);

/// What a listener has run out of.
#[derive(Debug, Default)]
pub struct Shortage {
    /// Since when, and whether that was said; `None`: clients are accepted.
    since: Option<(Nanos, bool)>,
    /// Before then no other one is told of.
    quiet_until: Nanos,
}

impl Shortage {
    /// A client of `listener` could not be accepted.
    pub fn begins(&mut self, now: Nanos, listener: &str, errno: Errno) {
        if self.since.is_some() {
            return;
        }
        let is_told = now >= self.quiet_until;
        self.since = Some((now, is_told));
        if is_told {
            self.quiet_until = now + QUIET;
            log::warn!("{listener}: clients cannot be accepted, and wait: {errno}; {}", remedy(errno));
        }
    }

    /// One was accepted.
    pub fn is_over(&mut self, now: Nanos, listener: &str) {
        if let Some((since, true)) = self.since.take() {
            log::warn!(
                "{listener}: clients are accepted again, after {:.1} s",
                now.since(since).0 as f64 / 1e9
            );
        }
    }
}

/// What to do about it.
fn remedy(errno: Errno) -> &'static str {
    match errno.0 {
        libc::EMFILE => {
            "all files that this server may have open are in use: let it have more (ulimit -n; LimitNOFILE= of its unit in systemd), or \
             let clients go that need not be there"
        }
        libc::ENFILE => {
            "all files of this machine are in use: see who has them (lsof), or allow more (sysctl fs.file-max)"
        }
        libc::ENOBUFS | libc::ENOMEM => "this machine has no memory for it: see who uses it up",
        _ => "it is tried again until it works",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_that_flickers_is_told_of_every_ten_seconds() {
        let mut shortage = Shortage::default();
        let mut told = 0;
        // Ten times a second one client gets through, and the next one does not.
        for tick in 0..300 {
            let now = Nanos::millis(100 * tick);
            shortage.begins(now, "x", Errno(libc::EMFILE));
            told += u32::from(shortage.since == Some((now, true)));
            shortage.begins(now, "x", Errno(libc::EMFILE));
            shortage.is_over(now, "x");
            assert_eq!(shortage.since, None);
        }
        assert_eq!(told, 3);
    }
}
