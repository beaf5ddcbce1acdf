//! Disks that grow while they are served: an image that was made larger (`truncate -s +10G`, `qemu-img resize`), a block device that was.
//!
//! Nobody tells of that, so a thread looks now and then, which is one system call for each disk. Guests hear of the new size, and NBD clients
//! that come see it; files of a mount keep theirs. Only what is served as the disk that it is grows with it: partitions, arrays and groups
//! have their sizes on record.
//!
//! Invariants: (1) no volume becomes smaller: a disk that has is told of by its queue (`engine/src/queue/shrunk.rs`), and is not looked at
//! any more; (2) while nothing has grown, nothing waits for this.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use blockwork_format::escape;

use super::groups::ServedGroups;
use super::keeper::{Keeper, OnPanic};
use crate::scan::size;

/// How often they are looked at: what a person who has made one larger waits for.
const PAUSE: Duration = Duration::from_secs(2);

/// The thread that looks.
pub(super) struct SizeKeeper {
    stops: Arc<(Mutex<bool>, Condvar)>,
    thread: Keeper,
}

impl SizeKeeper {
    /// Looks after the disks of these groups' server from now on.
    pub(super) fn start(groups: Arc<ServedGroups>, on_panic: OnPanic) -> Result<SizeKeeper> {
        let stops = Arc::<(Mutex<bool>, Condvar)>::default();
        let of_thread = stops.clone();
        let thread =
            Keeper::start("sizes", "the thread that looks for disks that have grown", on_panic, move || {
                let (stops, called) = &*of_thread;
                let mut stopped = stops.lock().unwrap_or_else(PoisonError::into_inner);
                while !*stopped {
                    stopped = called.wait_timeout(stopped, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
                    if !*stopped {
                        groups.follow_disks();
                    }
                }
            })?;
        Ok(SizeKeeper { stops, thread })
    }

    /// Ends it; a disk that is followed is followed to the end.
    pub(super) fn stop(self) {
        *self.stops.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stops.1.notify_one();
        self.thread.join();
    }
}

impl ServedGroups {
    /// Volumes that are disks which have grown become as large as these.
    fn follow_disks(&self) {
        let grown = self.assembly().grown_disks();
        if grown.is_empty() {
            return;
        }
        let _turn = self.turn();
        for name in grown {
            let Some((_, before)) = self.served.find(&name) else { continue };
            match self.resize(&name) {
                Ok(()) => {
                    let now = self.served.find(&name).map_or(0, |(_, volume)| volume.sectors().bytes());
                    let before = before.sectors().bytes();
                    log::info!("{}: it has grown from {} to {}", escape(&name), size(before), size(now));
                }
                Err(error) => log::error!("{}: it has grown, and keeps its size: {error:#}", escape(&name)),
            }
        }
    }
}
