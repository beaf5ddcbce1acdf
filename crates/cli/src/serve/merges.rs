//! Old snapshots that are merged into their origins while their group is served.
//!
//! The group's text says first that a snapshot is being merged. The merge begins when nobody has the origin or the snapshot open: what the
//! origin is changes in that moment, and a mounted file system would not outlive that. Until then both are what they were to those who have
//! them open, others may open the origin, and nobody else the snapshot. When all is merged, the text has no snapshot any more, and the
//! origin becomes what it is without one. A thread hears of clients that go and of merges that end, and does what is due then.
//!
//! Invariants: (1) no client finds another content in what it has opened; (2) nothing that a client who has gone has sent gets into the
//! origin as it is from then on; (3) a server that is killed at any time leaves a text by which the next one, or Linux, goes on: a merge
//! that had not begun begins there.

use std::sync::{Arc, Weak, mpsc};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use blockwork_daemon::Refusal;
use blockwork_engine::{Volume, VolumeId};
use blockwork_format::escape;
use blockwork_layer::snapshot::{Merge, MergeEnd};
use blockwork_volume::lvm::edit::{Draft, EditError};
use blockwork_volume::lvm::served::{Adopted, MergeState, TextMerge};

use super::groups::{ServedGroups, failed, refused};
use super::offers::InUse;
use crate::vg::change::author_of;

/// What the thread hears.
enum News {
    /// A client has closed a volume.
    Closed,
    /// A merge has nothing left to do.
    Ended(Weak<Merge>, MergeEnd),
    /// The server stops.
    Stop,
}

/// Calls the thread.
#[derive(Clone)]
pub(super) struct MergeCaller(mpsc::Sender<News>);

impl MergeCaller {
    fn call(&self, news: News) {
        // Nobody listens any more when the server is being stopped.
        let _ = self.0.send(news);
    }
}

/// The thread that begins merges, and takes what is merged out of the text.
pub(super) struct MergeKeeper {
    caller: MergeCaller,
    thread: JoinHandle<()>,
}

impl MergeKeeper {
    /// Looks after the merges of these groups from now on.
    pub(super) fn start(groups: Arc<ServedGroups>) -> Result<MergeKeeper> {
        let (send, hear) = mpsc::channel();
        let caller = MergeCaller(send);
        let of_exports = caller.clone();
        groups.offers.when_closed(move || of_exports.call(News::Closed));
        let _ = groups.merge_caller.set(caller.clone());
        groups.watch_merges();
        let thread = thread::Builder::new().name("merges".into()).spawn(move || {
            for news in hear {
                match news {
                    News::Closed => groups.begin_waiting(),
                    News::Ended(merge, end) => {
                        merge.upgrade().iter().for_each(|merge| groups.end(merge, end));
                    }
                    News::Stop => return,
                }
            }
        })?;
        Ok(MergeKeeper { caller, thread })
    }

    /// Ends it; what it is doing is done to its end.
    pub(super) fn stop(self) {
        self.caller.call(News::Stop);
        if self.thread.join().is_err() {
            log::error!("the thread that looks after merges has panicked");
        }
    }
}

/// What came of beginning a merge.
enum Begun {
    Now,
    /// It cannot begin yet: why, and when it does.
    Later(String),
    /// There is nothing to merge: the snapshot was lost.
    Never,
}

impl ServedGroups {
    /// Hears of the end of every merge that is under way.
    fn watch_merges(&self) {
        let Some(caller) = self.merge_caller.get() else { return };
        let merges = self.assembly().open_merges();
        for merge in merges {
            let (caller, itself) = (caller.clone(), Arc::downgrade(&merge));
            merge.when_ended(move |end| caller.call(News::Ended(itself.clone(), end)));
        }
    }

    /// Begins a merge that the text of a group has since just now; what came of it, in a sentence. With the turn.
    pub(super) fn begin_planned(&self, group: &str, snapshot: &str) -> String {
        let merges = self.assembly().merges_of_text();
        let Some(merge) = merges.into_iter().find(|one| one.group == group && one.snapshot == snapshot)
        else {
            return format!("{}/{}: it is no snapshot any more", escape(group), escape(snapshot));
        };
        let begun = self.begin(&merge);
        sentence(&merge, begun)
    }

    /// A client has gone: what waited for that begins.
    fn begin_waiting(&self) {
        let waiting = |groups: &ServedGroups| {
            let merges = groups.assembly().merges_of_text().into_iter();
            merges
                .filter(|one| matches!(one.state, MergeState::Waiting | MergeState::Lost))
                .collect::<Vec<_>>()
        };
        if waiting(self).is_empty() {
            return;
        }
        let _turn = self.turn();
        for merge in waiting(self) {
            match self.begin(&merge) {
                Ok(Begun::Later(_)) => {}
                Ok(Begun::Now) => log::info!("{}", sentence(&merge, Ok(Begun::Now))),
                other => log::error!("{}", sentence(&merge, other)),
            }
        }
    }

    fn begin(&self, merge: &TextMerge) -> Result<Begun> {
        match merge.state {
            MergeState::Begun => return Ok(Begun::Now),
            MergeState::Idle => return Ok(Begun::Later(when_served(merge))),
            MergeState::Lost => {
                self.give_up(merge)?;
                return Ok(Begun::Never);
            }
            MergeState::Waiting => {}
        }
        self.offers.withhold(&merge.snapshot_volumes, true);
        let origins = self.find_all(&merge.origin_volumes);
        if origins.is_empty() {
            return Ok(Begun::Later(when_served(merge)));
        }
        let snapshots = self.find_all(&merge.snapshot_volumes);
        if let Err(in_use) = self.offers.withhold_unused(&[&origins[..], &snapshots].concat()) {
            return Ok(Begun::Later(when_closed(&in_use)));
        }
        let begun = self.switch_to_merge(merge, &snapshots);
        self.offers.withhold(&merge.origin_volumes, false);
        begun.map(|()| Begun::Now)
    }

    /// The origin is what the snapshot was from now on, and that is a volume no more. Nobody can open either of them.
    fn switch_to_merge(&self, merge: &TextMerge, snapshots: &[(VolumeId, Volume)]) -> Result<()> {
        self.check_room(&self.assembly()).map_err(|refusal| anyhow!(refusal.text))?;
        for (id, volume) in snapshots {
            self.offers.remove(*id, &volume.name)?;
            self.served.withdraw(*id);
        }
        self.settle(snapshots.iter().map(|(_, volume)| volume.clone()).collect())?;
        let Some(changed) = self.assembly().part_merged(merge)? else { return Ok(()) };
        let switched = self.switch(changed, &merge.origin_volumes);
        self.watch_merges();
        switched
    }

    fn find_all(&self, names: &[String]) -> Vec<(VolumeId, Volume)> {
        names.iter().filter_map(|name| self.served.find(name)).collect()
    }

    /// Nothing is left to do of a merge: the text hears of that, and the origin is built anew.
    fn end(&self, merge: &Arc<Merge>, end: MergeEnd) {
        let _turn = self.turn();
        let Some(known) = self.assembly().text_of_merge(merge) else { return };
        let name = format!("{}/{}", escape(&known.group), escape(&known.snapshot));
        let ended = match end {
            MergeEnd::Merged => self.take_out(&known),
            MergeEnd::Invalid => self.give_up(&known),
        };
        match ended {
            Ok(notes) => {
                let origin = escape(&known.origin);
                match end {
                    MergeEnd::Merged => log::info!("{name}: it is merged into {origin}, and gone"),
                    MergeEnd::Invalid => {
                        log::error!("{name}: it is invalid: nothing of it is merged; remove it")
                    }
                }
                notes.iter().for_each(|note| log::warn!("{note}"));
            }
            Err(error) => log::error!(
                "{name}: all is merged, and the group's text cannot say so: {}; whoever serves or activates its origin next goes on there",
                error.text
            ),
        }
    }

    fn take_out(&self, merge: &TextMerge) -> Result<Vec<String>, Refusal> {
        let adopted = self.edit(merge, |draft| draft.end_merge(&merge.snapshot))?;
        Ok(self.follow(adopted))
    }

    /// The snapshot is none that could be merged: it can be removed as any other.
    fn give_up(&self, merge: &TextMerge) -> Result<Vec<String>, Refusal> {
        let adopted = self.edit(merge, |draft| draft.give_up_merge(&merge.snapshot))?;
        let mut notes = self.follow(adopted);
        if merge.state == MergeState::Begun {
            let changed = self.assembly().part_merged(merge).map_err(refused)?;
            notes.extend(
                changed.and_then(|changed| self.switch(changed, &[]).err()).map(|error| error.to_string()),
            );
        }
        self.offers.withhold(&merge.snapshot_volumes, false);
        Ok(notes)
    }

    fn edit(
        &self,
        merge: &TextMerge,
        change: impl FnOnce(&mut Draft) -> Result<(), EditError>,
    ) -> Result<Adopted, Refusal> {
        let (commit, text) = {
            let mut assembly = self.assembly();
            self.check_room(&assembly)?;
            let author = author_of(None).map_err(failed)?;
            let mut editor = assembly.edit_group(&merge.group, author).map_err(refused)?;
            change(editor.draft_mut()).map_err(refused)?;
            editor.plan().map_err(refused)?
        };
        self.write(commit)?;
        self.adopt(&merge.group, text)
    }
}

fn when_served(merge: &TextMerge) -> String {
    format!("{} is not served: it begins when that is, or when Linux activates it", escape(&merge.origin))
}

fn when_closed(in_use: &InUse) -> String {
    let InUse { volume, by, lasts } = in_use;
    let until = if *lasts { "the server is started anew" } else { "the last client has gone" };
    format!("{} is in use: {by}; it begins when {until}", escape(volume))
}

/// What came of beginning a merge, for people.
fn sentence(merge: &TextMerge, begun: Result<Begun>) -> String {
    let name = format!("{}/{}", escape(&merge.group), escape(&merge.snapshot));
    let origin = format!("{}/{}", escape(&merge.group), escape(&merge.origin));
    match begun {
        Ok(Begun::Now) => {
            format!("{name}: it is being merged into {origin}, which is what it was from now on")
        }
        Ok(Begun::Later(why)) => format!("{name}: it is to be merged into {origin}; {why}"),
        Ok(Begun::Never) => {
            format!("{name}: it was lost before it could be merged, and {origin} stays as it is")
        }
        Err(error) => format!(
            "{name}: it is to be merged into {origin}, and that cannot begin: {error:#}; whoever opens the group next goes on with it"
        ),
    }
}
