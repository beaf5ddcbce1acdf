//! Signals that a server looks at. SIGTERM, SIGINT and SIGHUP (its terminal is gone) ask for the end, SIGUSR1 for statistics.
//!
//! A second SIGTERM or SIGINT ends the server at once, as the second ^C of an impatient person should. What comes together with the first
//! one is the same wish: timeout(1) signals its command and then the process group, which has the command in it, too. Nothing is waited for then, but
//! what is mounted is taken away first: nobody else would do it, and whoever looks at a mount without a server finds an error
//! (`Transport endpoint is not connected`) until it is unmounted by hand. Unmounting is no call for a signal's handler, so a thread
//! does it; the third signal does not wait for that, either.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use blockwork_export::fuse::MountPoint;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

use crate::signals;

/// Exit code after a second signal, as a shell's for a process that ^C has ended.
const EXIT_AT_ONCE: i32 = 130;

/// Who signals again later than this after the first one is impatient. No person types ^C twice in that time, and nobody misses it.
const TOGETHER: Duration = Duration::from_millis(200);

/// From here on a signal waits until it is looked at, so that none ends us half-way up.
pub(super) fn heeded() -> io::Result<Signals> {
    Signals::new(signals::ending().into_iter().chain([SIGUSR1]))
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

    /// There was a first signal: one that does not come together with it is the second one.
    pub(super) fn arm_soon(&self) {
        self.armed.call_once(|| {
            let mounts = self.mounts.clone();
            #[allow(clippy::disallowed_methods, reason = "that this time has passed is the condition")]
            let soon = move || {
                thread::sleep(TOGETHER);
                register(&mounts);
            };
            if thread::Builder::new().name("blockwork-first".into()).spawn(soon).is_err() {
                register(&self.mounts);
            }
        });
    }

    /// From now on a signal that asks for the end is the second one, if there was no first one.
    pub(super) fn arm(&self) {
        self.armed.call_once(|| register(&self.mounts));
    }
}

fn register(mounts: &[MountPoint]) {
    let at_once = Arc::new(AtomicBool::new(mounts.is_empty()));
    for signal in [SIGTERM, SIGINT] {
        if let Err(error) = flag::register_conditional_shutdown(signal, EXIT_AT_ONCE, at_once.clone()) {
            log::warn!("another signal will not end this process at once: {error}");
        }
    }
    if mounts.is_empty() {
        return;
    }
    if let Err(error) = wait_in_a_thread(mounts.to_vec(), at_once.clone()) {
        log::warn!("another signal will leave mounts behind: {error}");
        at_once.store(true, Ordering::SeqCst);
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
