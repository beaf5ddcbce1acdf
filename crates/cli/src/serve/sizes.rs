//! What nobody tells of, and a thread looks for now and then: disks that have grown, and guests of Xen's that have gone.
//!
//! Disks grow while they are served: an image that was made larger (`truncate -s +10G`, `qemu-img resize`), a block device that was.
//!
//! A look is one system call for each disk. Guests hear of the new size, files of
//! a mount have it, and NBD clients that come see it. Only what is served as the disk that it is grows with it: partitions, arrays and groups
//! have their sizes on record.
//!
//! Invariants: (1) no volume becomes smaller: a disk that has is told of by its queue (`engine/src/queue/shrunk.rs`), and is not looked at
//! any more; (2) while nothing has grown, nothing waits for this; (3) what is part of an array or a group keeps
//! the size that these know.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::Result;
use blockwork_format::escape;

use super::groups::ServedGroups;
use super::keeper::{Keeper, OnPanic};
use super::merges::MergeCaller;
use crate::scan::size;

/// How often they are looked at: what a person who has made one larger waits for.
const PAUSE: Duration = Duration::from_secs(2);

/// The thread that looks.
pub(super) struct SizeKeeper {
    /// The thread ends with it.
    goes_on: Sender<()>,
    thread: Keeper,
}

impl SizeKeeper {
    /// Looks after the disks of these groups' server from now on.
    pub(super) fn start(groups: Arc<ServedGroups>, on_panic: OnPanic) -> Result<SizeKeeper> {
        let (goes_on, stops) = mpsc::channel();
        let what = "the thread that looks for disks that have grown";
        let thread = Keeper::start("sizes", what, on_panic, move || {
            while stops.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                groups.follow_disks();
                groups.follow_guests();
            }
        })?;
        Ok(SizeKeeper { goes_on, thread })
    }

    /// Ends it; a disk that is followed is followed to the end.
    pub(super) fn stop(self) {
        drop(self.goes_on);
        self.thread.join();
    }
}

impl ServedGroups {
    /// What waits until nobody has a volume open may begin when its guest has gone.
    fn follow_guests(&self) {
        if self.offers.forget_gone_guests() {
            self.merge_caller.get().into_iter().for_each(MergeCaller::begin);
        }
    }

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
