//! Has the memory of a front end's guest be in huge pages, where that is asked for: a thread of its own looks for stretches all of whose small
//! pages are there, and gathers each in a huge one (see [`Mapping::gather`](blockwork_memory::Mapping::gather)).
//!
//! Invariant: it takes no more than an eighth of a processor, as whoever touches a stretch that is gathered waits for some milliseconds.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwork_memory::{Gathered, GuestLayout, HUGE_PAGE};
use blockwork_uring::clock;

use super::caretaker::{Caretaker, Rests};
use crate::complaints::Complaints;

/// It rests so many times as long as it worked.
const RESTS: u32 = 7;
/// And at least so long at a time, so that it need not wake up for each stretch that is huge already.
const REST_LEAST: Duration = Duration::from_millis(10);
/// When it has been through all of the memory it begins again after so long, since a guest comes to use more of it, and gives some back; where
/// it has found nothing new, after twice as long as the last time, up to the second; or to the third, where it has found what somebody worked on.
const AGAIN: (Duration, Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(32), Duration::from_secs(4));

/// What has become of all stretches, in one time through them.
#[derive(Default)]
struct Pass {
    all: usize,
    huge: usize,
    /// Somebody worked on some.
    is_busy: bool,
    refused: Option<io::Error>,
}

/// Gathers that memory. None: there is no thread for it, which is told.
pub(super) fn gather(name: &str, layout: &GuestLayout, complaints: &Arc<Complaints>) -> Option<Caretaker> {
    let (layout, told, export) = (layout.clone(), complaints.clone(), name.to_owned());
    let work = move |rests: &Rests| gather_all(&export, &layout, rests, &told);
    let started = Caretaker::start("huge pages", work).inspect_err(|error| {
        complaints.warn(clock(), || {
            format!("{name}: no thread that gathers the guest's memory in huge pages: {error}")
        });
    });
    started.ok()
}

fn gather_all(name: &str, layout: &GuestLayout, rests: &Rests, complaints: &Complaints) {
    let (mut told, mut warned) = (0, false);
    let (mut again, mut huge) = (AGAIN.0, 0);
    while let Some(pass) = pass(layout, rests).filter(|pass| pass.all > 0) {
        if pass.huge.abs_diff(told) > pass.all / 8 {
            pass.tell(name, complaints);
            told = pass.huge;
        } else if let (0, false, Some(error)) = (pass.huge, warned, &pass.refused) {
            warn(name, error, complaints);
            warned = true;
        }
        let most = if pass.is_busy { AGAIN.2 } else { AGAIN.1 };
        again = if pass.huge > huge { AGAIN.0 } else { (2 * again).min(most) };
        huge = pass.huge;
        if !rests.rest(again) {
            return;
        }
    }
}

/// Goes through all of it; none: it was to end before that.
fn pass(layout: &GuestLayout, rests: &Rests) -> Option<Pass> {
    let mut pass = Pass::default();
    let mut worked = Duration::ZERO;
    for region in layout.regions() {
        for stretch in 0..region.mapping.stretches() {
            let began = Instant::now();
            pass.all += 1;
            match region.mapping.gather(stretch) {
                Gathered::Huge => pass.huge += 1,
                Gathered::NotThere => {}
                Gathered::Busy => pass.is_busy = true,
                Gathered::Refused(error) => pass.refused = Some(error),
            }
            worked += began.elapsed();
            if worked * RESTS >= REST_LEAST {
                if !rests.rest(worked * RESTS) {
                    return None;
                }
                worked = Duration::ZERO;
            }
        }
    }
    Some(pass)
}

impl Pass {
    fn tell(&self, name: &str, complaints: &Complaints) {
        let mib = |stretches: usize| (stretches * HUGE_PAGE) >> 20;
        complaints.inform(clock(), || {
            let (huge, all) = (mib(self.huge), mib(self.all));
            format!("{name}: {huge} of {all} MiB of the guest's memory are in huge pages")
        });
    }
}

/// Of no stretch that is there was a huge page made.
fn warn(name: &str, error: &io::Error, complaints: &Complaints) {
    complaints.warn(clock(), || {
        format!(
            "{name}: none of the guest's memory can be had in huge pages: {error}; the kernel has to be Linux 6.1 or later with \
             CONFIG_TRANSPARENT_HUGEPAGE, and to have unbroken memory for this process; or give the guest huge pages when it starts \
             (QEMU: -object memory-backend-memfd,hugetlb=on,share=on,...)"
        )
    });
}
