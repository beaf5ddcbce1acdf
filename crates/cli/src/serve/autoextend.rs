//! Thin pools that are extended by themselves when they fill up, as LVM's dmeventd does it: by
//! `--set thin-pool:thin_pool_autoextend_threshold=PERCENT`.
//!
//! A pool calls when the mark is passed. A thread of the server then makes the change as a person would: in the group's text first, so that
//! whoever opens the group next finds the pool as large as it is.

use std::sync::{Arc, Weak, mpsc};

use anyhow::Result;
use blockwork_daemon::{GroupRequest, Groups, Refusal};
use blockwork_format::escape;
use blockwork_layer::thin::Pool;
use blockwork_volume::lvm::edit::{Change, Resize};
use blockwork_volume::lvm::served::GrowingPool;

use super::groups::ServedGroups;
use super::keeper::{Keeper, OnPanic};

/// What the thread hears.
enum News {
    /// A pool has passed its mark.
    Filling(Weak<Pool>),
    /// The server stops.
    Stop,
}

/// Calls the thread.
#[derive(Clone)]
pub(super) struct Caller(mpsc::Sender<News>);

impl Caller {
    /// A pool may have to be extended.
    pub(super) fn call(&self, pool: &Arc<Pool>) {
        // Nobody listens any more when the server is being stopped.
        let _ = self.0.send(News::Filling(Arc::downgrade(pool)));
    }
}

/// The thread that extends pools.
pub(super) struct Autoextender {
    caller: Caller,
    thread: Keeper,
}

impl Autoextender {
    /// Looks after the pools of these groups from now on.
    pub(super) fn start(groups: Arc<ServedGroups>, on_panic: OnPanic) -> Result<Autoextender> {
        let (send, hear) = mpsc::channel();
        let caller = Caller(send);
        groups.call_when_filling(caller.clone());
        let what = "the thread that extends thin pools";
        let thread = Keeper::start("autoextend", what, on_panic, move || {
            for news in hear {
                match news {
                    News::Filling(pool) => pool.upgrade().iter().for_each(|pool| look_after(&groups, pool)),
                    News::Stop => return,
                }
            }
        })?;
        Ok(Autoextender { caller, thread })
    }

    /// Ends it; a change that is being made is made to its end.
    pub(super) fn stop(self) {
        let _ = self.caller.0.send(News::Stop);
        self.thread.join();
    }
}

/// Extends a pool until it is not beyond its mark any more, or there is no room.
fn look_after(groups: &ServedGroups, pool: &Arc<Pool>) {
    while let Some(now) = groups.growing_pool(pool) {
        let (data, metadata) = pool.is_beyond(now.autoextend.threshold);
        let name = format!("{}/{}", escape(&now.group), escape(&now.name));
        let extended = match (data, metadata) {
            (false, false) => return,
            (_, true) => extend(groups, &now, now.metadata_extents, |volume, to| {
                Change::ResizePoolMetadata { volume, to }
            }),
            (true, false) => extend(groups, &now, now.data_extents, |volume, to| Change::Resize {
                volume,
                to,
                may_shrink: false,
            }),
        };
        match extended {
            Ok(said) => log::info!("{said}"),
            Err(error) => {
                let what = if metadata { "map" } else { "data" };
                log::warn!(
                    "{name}: more than {}% of its {what} is in use, and it cannot be extended: {error}",
                    now.autoextend.threshold
                );
                return;
            }
        }
    }
}

/// Extends by the share that was asked for, or by all that there is.
fn extend(
    groups: &ServedGroups,
    now: &GrowingPool,
    extents: u64,
    change: impl FnOnce(String, Resize) -> Change,
) -> Result<String, Refusal> {
    let wanted = extents.saturating_mul(now.autoextend.percent).div_ceil(100).max(1);
    let more = if now.free_extents > 0 { wanted.min(now.free_extents) } else { wanted };
    let change = change(now.name.clone(), Resize::MoreExtents(more));
    let request = GroupRequest { group: now.group.clone(), change, serve: false, command: None };
    groups.change(&request).map(|answer| answer.said)
}
