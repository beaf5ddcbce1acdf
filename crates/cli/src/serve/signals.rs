//! Signals that a server looks at. SIGTERM, SIGINT and SIGHUP (its terminal is gone) ask for the end, SIGUSR1 for statistics.
//!
//! A second SIGTERM or SIGINT ends the server at once, as the second ^C of an impatient person should. Nothing is waited for then, but
//! what is mounted is taken away first: nobody else would do it, and whoever looks at a mount without a server finds an error
//! (`Transport endpoint is not connected`) until it is unmounted by hand. Unmounting is no call for a signal's handler, so a thread
//! does it; the third signal does not wait for that, either.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::{fs, io};

use blockwork_export::fuse::MountPoint;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

/// Exit code after a second signal, as a shell's for a process that ^C has ended.
const EXIT_AT_ONCE: i32 = 130;

/// From here on a signal waits until it is looked at, so that none ends us half-way up.
pub(super) fn heeded() -> io::Result<Signals> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGUSR1])?;
    // nohup(1) has it ignored, and that is meant.
    if !ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default(), SIGHUP) {
        signals.handle().add_signal(SIGHUP)?;
    }
    Ok(signals)
}

/// Whether a process ignores a signal, by its `/proc/PID/status`: see proc(5), SigIgn.
fn ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// What has a second signal end the process.
pub(super) struct SecondSignal {
    mounts: Vec<MountPoint>,
    armed: Once,
}

impl SecondSignal {
    pub(super) fn new(mounts: Vec<MountPoint>) -> SecondSignal {
        SecondSignal { mounts, armed: Once::new() }
    }

    /// From now on a signal that asks for the end is the second one, whichever the first was, and whether there was one.
    pub(super) fn arm(&self) {
        self.armed.call_once(|| {
            let at_once = Arc::new(AtomicBool::new(self.mounts.is_empty()));
            for signal in [SIGTERM, SIGINT] {
                if let Err(error) = flag::register_conditional_shutdown(signal, EXIT_AT_ONCE, at_once.clone())
                {
                    log::warn!("another signal will not end this process at once: {error}");
                }
            }
            if self.mounts.is_empty() {
                return;
            }
            if let Err(error) = wait_in_a_thread(self.mounts.clone(), at_once.clone()) {
                log::warn!("another signal will leave mounts behind: {error}");
                at_once.store(true, Ordering::SeqCst);
            }
        });
    }
}

fn wait_in_a_thread(mounts: Vec<MountPoint>, at_once: Arc<AtomicBool>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let end = move || {
        if signals.forever().next().is_none() {
            return;
        }
        at_once.store(true, Ordering::SeqCst);
        for mount in &mounts {
            if let Err(error) = mount.detach() {
                log::warn!("{error}");
            }
        }
        low_level::exit(EXIT_AT_ONCE);
    };
    thread::Builder::new().name("blockwork-exit".into()).spawn(end).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_nohup_has_ignored_is_known_by_its_bit() {
        let status = "SigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert!(ignored(status, SIGHUP));
        assert!(!ignored(status, SIGINT) && !ignored(status, SIGTERM) && !ignored("", SIGHUP));
    }
}
