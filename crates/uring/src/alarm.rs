//! A timer that ends what this thread waits for in the kernel: it makes a system call that hardly ever waits into one that never waits for
//! long.
//!
//! To write to an eventfd that does not block is the quickest way to call another process, and that process may have it block after all, at
//! any time, since both have the same open file description, and fill it. Then the worker would wait for that process, with all that it serves.
//! While the alarm runs, a signal with a handler that does nothing comes to this thread every [`PERIOD`], and whatever it waits for then ends
//! with EINTR. Who lets us wait for less than that, but often, is found out as well, since the signals come at all times alike: when a tenth of
//! a second has been waited in all, on average.
//!
//! Invariants:
//!
//! - The handler is there before the first timer is, and stays: nobody is killed by the signal.
//! - A handler of somebody else's is not replaced; then there is no alarm.
//! - Of a thread that sleeps at most three sleeps in a row are interrupted: then the alarm is off.
//!
//! Sources: timer_create(2) (`SIGEV_THREAD_ID`), signal(7) ("Interruption of system calls").

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

/// So long a call waits at most: ten signals a second cost nothing, and a tenth of a second is what a disk takes now and then, too.
const PERIOD: Duration = Duration::from_millis(100);

/// See the module. Belongs to the thread that first sets it.
#[derive(Default)]
pub(crate) struct Alarm {
    timer: Option<Timer>,
    /// There is none to be had, or none is wanted any more.
    is_given_up: bool,
    runs: bool,
    /// Set since the thread was last interrupted.
    is_wanted: bool,
}

impl Alarm {
    /// From now on no call of this thread waits for longer than [`PERIOD`]. False: that is not to be had.
    #[inline]
    pub fn set(&mut self) -> bool {
        self.is_wanted = true;
        self.runs || self.start()
    }

    #[cold]
    fn start(&mut self) -> bool {
        if self.is_given_up {
            return false;
        }
        if self.timer.is_none() {
            self.timer = Timer::new();
        }
        self.runs = self.timer.as_ref().is_some_and(|timer| timer.run(PERIOD));
        self.is_given_up = !self.runs;
        self.runs
    }

    /// The thread was interrupted while it waited.
    pub fn interrupted(&mut self) {
        if self.runs && !std::mem::take(&mut self.is_wanted) {
            self.runs = false;
            if let Some(timer) = &self.timer {
                timer.run(Duration::ZERO);
            }
        }
    }

    /// It was needed: what it guards is not to be done any more.
    #[cold]
    pub fn give_up(&mut self) {
        *self = Alarm { is_given_up: true, ..Alarm::default() };
    }

    #[cfg(test)]
    pub fn runs(&self) -> bool {
        self.runs
    }
}

/// A timer of the kernel's that sends its signal to the thread that made it.
struct Timer(libc::timer_t);

impl Timer {
    /// None where the kernel, a limit or a sandbox does not allow it, or the signal is somebody else's.
    fn new() -> Option<Timer> {
        let signal = libc::SIGRTMIN();
        handle(signal)?;
        let mut timer = MaybeUninit::<libc::timer_t>::uninit();
        // SAFETY: plain data, for which zeroes are a value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        // SAFETY: both live during the call, which writes the second if it succeeds; the signal has a handler that does nothing.
        unsafe {
            (libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr()) == 0)
                .then(|| Timer(timer.assume_init()))
        }
    }

    /// Has it come every `period` from now on; zero: never. Whether that worked.
    fn run(&self, period: Duration) -> bool {
        let period = libc::timespec {
            tv_sec: libc::time_t::try_from(period.as_secs()).expect("it is short"),
            tv_nsec: period.subsec_nanos().into(),
        };
        let times = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer is ours until it is dropped; `times` lives during the call.
        unsafe { libc::timer_settime(self.0, 0, &raw const times, ptr::null_mut()) == 0 }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: it is ours, and not used afterwards.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Has the process handle the signal by doing nothing, and this thread hear it if it did not.
fn handle(signal: libc::c_int) -> Option<()> {
    static IS_HANDLED: OnceLock<bool> = OnceLock::new();
    if !*IS_HANDLED.get_or_init(|| install(signal)) {
        return None;
    }
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call makes it a set, and it lives during the others.
    let failed = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut())
    };
    (failed == 0).then_some(())
}

/// Installs the handler, if there is none; whether that was done.
fn install(signal: libc::c_int) -> bool {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the structs are plain data, for which zeroes are a value (no flags: without SA_RESTART), and live during the calls. The handler does
    // nothing, which is allowed at any time.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(signal, ptr::null(), &raw mut before) == 0
            && before.sa_sigaction == libc::SIG_DFL
            && libc::sigaction(signal, &raw const action, ptr::null_mut()) == 0
    }
}
