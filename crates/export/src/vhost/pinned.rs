//! The memory of a front end's guest is pinned, where that is asked for: queues lend it to their workers' io_uring, which holds its pages once and for
//! all instead of for each request (`Uring::lend`). Here a thread of its own has all of its pages be there first, which would take workers long.
//!
//! Whoever asks for it says that the guest gives no memory back while it runs: what is read into pages that are no part of it any more is lost.
//!
//! Invariants:
//! 1. It takes half of a processor at most.
//! 2. Where the process may lock so much memory only, no more than that is brought. (Else a front end whose file is as large as it likes could have us fill
//!    the machine's memory; see docs/threat-model.md.)

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use blockwork_memory::{GuestLayout, lockable};
use blockwork_uring::clock;

use super::caretaker::{Caretaker, Rests};
use crate::complaints::Complaints;

/// It rests as long as it worked, when that is so long.
const WORKS: Duration = Duration::from_millis(5);

/// What is known of the pinned memory of an export's guests.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    /// What workers' rings hold of it, bytes: each counts for itself.
    pub(super) locked: Arc<AtomicU64>,
    complaints: Complaints,
}

impl Pinned {
    /// Has that memory be there. None: there is no thread for it, which is told.
    pub(super) fn bring(self: &Arc<Self>, name: &str, layout: &GuestLayout) -> Option<Caretaker> {
        let (pinned, layout, export) = (self.clone(), layout.clone(), name.to_owned());
        let work = move |rests: &Rests| {
            if let Err(why) = bring_all(&layout, rests, lockable()) {
                pinned.complaints.warn(clock(), || format!("{export}: {why}"));
            }
        };
        let started = Caretaker::start("pinned memory", work);
        let told = started.inspect_err(|error| {
            self.complaints.warn(clock(), || {
                format!("{name}: no thread that brings the guest's memory, none of which is pinned: {error}")
            });
        });
        told.ok()
    }
}

/// Why not all of it is brought.
#[derive(Debug, thiserror::Error)]
enum Unbrought {
    #[error(
        "only {} of {} MiB of the guest's memory are pinned, as no more may be locked: raise the limit (ulimit -l, or LimitMEMLOCK= of the systemd \
         unit); the rest is served as ever",
        brought >> 20,
        all >> 20
    )]
    Limit { brought: u64, all: u64 },
    #[error(
        "only {} of {} MiB of the guest's memory are pinned, as the rest is not there: {source}; the machine, the server's control group or its huge \
         pages have no memory for it: make room and start the guest anew; the rest is served as ever",
        brought >> 20,
        all >> 20
    )]
    Memory { brought: u64, all: u64, source: io::Error },
}

fn bring_all(layout: &GuestLayout, rests: &Rests, may_lock: Option<u64>) -> Result<(), Unbrought> {
    let all = layout.regions().iter().map(|region| region.mapping.len() as u64).sum();
    let (mut brought, mut began) = (0, Instant::now());
    for region in layout.regions() {
        for piece in 0..region.mapping.pieces() {
            let len = region.mapping.piece(piece).1 as u64;
            if may_lock.is_some_and(|most| brought + len > most) {
                return Err(Unbrought::Limit { brought, all });
            }
            let mut is_over = false;
            let goes_on = || {
                if began.elapsed() >= WORKS {
                    is_over |= !rests.rest(began.elapsed());
                    began = Instant::now();
                }
                !is_over
            };
            let done = region.mapping.bring(piece, goes_on);
            if is_over || region.mapping.is_torn() {
                return Ok(());
            }
            done.map_err(|source| Unbrought::Memory { brought, all, source })?;
            brought += len;
        }
    }
    Ok(())
}
