//! Snapshots that are merged into their origins while their group is served.
//!
//! The group's text says first that a snapshot is being merged. The merge begins when nobody has the origin or the snapshot open: what the
//! origin is changes in that moment, and a mounted file system would not outlive that. Until then both are what they were to those who have
//! them open, others may open the origin, and nobody else the snapshot. When all is merged, the text has no snapshot any more, and the
//! origin becomes what it is without one. A thread hears of clients that go and of merges that end, and does what is due then.
//!
//! A thin snapshot takes the place of its origin at once, when nobody has the two open: as the text and the pool have it, and then for
//! whoever comes. A text that says so when the server starts (LVM's, or of one that was killed) is done with then.
//!
//! Invariants: (1) no client finds another content in what it has opened; (2) nothing that a client who has gone has sent gets into the
//! origin as it is from then on; a guest, which goes on with the next server's disk as if it were the same, has none of the two when a merge
//! is asked for, and gets none while it waits; (3) a server that is killed at any time leaves a text by which the next one, or Linux, goes on: a merge
//! that had not begun begins there.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use blockwork_daemon::{Refusal, RefusalKind};
use blockwork_engine::{Volume, VolumeId};
use blockwork_format::escape;
use blockwork_layer::snapshot::{Merge, MergeEnd};
use blockwork_layer::thin::Mode;
use blockwork_volume::lvm::edit::{Draft, EditError};
use blockwork_volume::lvm::served::{Adopted, MergeState, TextMerge};

use super::families::{anew, with_nothing};
use super::groups::{ServedGroups, failed, refused};
use super::keeper::{Keeper, OnPanic};
use super::offers::InUse;
use crate::vg::change::author_of;

/// How long what has failed rests before it is tried again: twice as long each time, up to the second of these.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// What the thread hears, as far as it has not looked at it. That is bounded, however many clients come and go meanwhile.
#[derive(Default)]
struct Inbox {
    /// A client has closed a volume, or something else says that what waits could begin.
    begin: bool,
    /// Merges that have nothing left to do, each once.
    ended: Vec<(Weak<Merge>, MergeEnd)>,
    /// The server stops.
    stops: bool,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        !self.begin && self.ended.is_empty() && !self.stops
    }
}

/// Calls the thread.
#[derive(Clone, Default)]
pub(super) struct MergeCaller(Arc<(Mutex<Inbox>, Condvar)>);

impl MergeCaller {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, what: impl FnOnce(&mut Inbox)) {
        what(&mut self.inbox());
        self.0.1.notify_one();
    }

    /// What waits until nobody has a volume open may begin.
    pub(super) fn begin(&self) {
        self.tell(|inbox| inbox.begin = true);
    }

    fn end(&self, merge: &Weak<Merge>, end: MergeEnd) {
        self.tell(|inbox| {
            if !inbox.ended.iter().any(|(known, _)| known.ptr_eq(merge)) {
                inbox.ended.push((merge.clone(), end));
            }
        });
    }

    /// Takes out what has come since; waits for something, or until then.
    fn wait(&self, until: Option<Instant>) -> Inbox {
        let mut inbox = self.inbox();
        while inbox.is_empty() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            inbox = match left {
                Some(Duration::ZERO) => break,
                Some(left) => self.0.1.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.0.1.wait(inbox).unwrap_or_else(PoisonError::into_inner),
            };
        }
        std::mem::take(&mut inbox)
    }
}

/// The thread that begins merges, and takes what is merged out of the text.
pub(super) struct MergeKeeper {
    caller: MergeCaller,
    thread: Keeper,
}

impl MergeKeeper {
    /// Looks after the merges of these groups from now on.
    pub(super) fn start(groups: Arc<ServedGroups>, on_panic: OnPanic) -> Result<MergeKeeper> {
        let caller = MergeCaller::default();
        let of_exports = caller.clone();
        groups.offers.when_closed(move || of_exports.begin());
        let _ = groups.merge_caller.set(caller.clone());
        groups.watch_merges();
        // Thin snapshots that are to be merged, by a text of before.
        caller.begin();
        let of_thread = caller.clone();
        let what = "the thread that looks after merges";
        let thread = Keeper::start("merges", what, on_panic, move || {
            look_after(&of_thread, |due, next| groups.see_to(due, next));
        })?;
        Ok(MergeKeeper { caller, thread })
    }

    /// By this it hears that something else may begin.
    pub(super) fn caller(&self) -> MergeCaller {
        self.caller.clone()
    }

    /// Ends it; what it is doing is done to its end.
    pub(super) fn stop(self) {
        self.caller.tell(|inbox| inbox.stops = true);
        self.thread.join();
    }
}

/// What is to be done.
#[derive(Clone, Debug)]
enum Due {
    /// What waits begins, as far as it can.
    Begin,
    /// What has nothing left to do is taken out of the text.
    End(Weak<Merge>, MergeEnd),
}

impl Due {
    fn is(&self, other: &Due) -> bool {
        match (self, other) {
            (Due::Begin, Due::Begin) => true,
            (Due::End(one, _), Due::End(other, _)) => one.ptr_eq(other),
            _ => false,
        }
    }
}

/// What has failed, and is tried again.
struct Again {
    due: Due,
    at: Instant,
    /// How long it rests when it fails once more.
    pause: Duration,
}

/// Does what is due until the server stops, by `see_to`, which hears when that comes again if it fails, and tells whether it has not.
fn look_after(caller: &MergeCaller, mut see_to: impl FnMut(&Due, Duration) -> bool) {
    let mut again: Vec<Again> = Vec::new();
    loop {
        let Inbox { begin, ended, stops } = caller.wait(again.iter().map(|one| one.at).min());
        if stops {
            return;
        }
        let now = Instant::now();
        let mut due: Vec<Due> = again.iter().filter(|one| one.at <= now).map(|one| one.due.clone()).collect();
        let new = begin.then_some(Due::Begin).into_iter();
        for new in new.chain(ended.into_iter().map(|(merge, end)| Due::End(merge, end))) {
            if !due.iter().any(|known| known.is(&new)) {
                due.push(new);
            }
        }
        for due in due {
            // What has failed before keeps its pauses, whoever asks for it.
            let known = again.iter().position(|one| one.due.is(&due)).map(|at| again.swap_remove(at));
            let pause = known.map_or(PAUSE, |known| known.pause);
            if !see_to(&due, pause) {
                again.push(Again { due, at: Instant::now() + pause, pause: (2 * pause).min(PAUSE_MAX) });
            }
        }
    }
}

/// Why merges do not go on that could: by group and snapshot.
#[derive(Default)]
pub(super) struct MergeFailures(Mutex<BTreeMap<(String, String), String>>);

impl MergeFailures {
    fn all(&self) -> MutexGuard<'_, BTreeMap<(String, String), String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, merge: &TextMerge, failure: Option<String>) {
        let key = (merge.group.clone(), merge.snapshot.clone());
        match failure {
            Some(why) => _ = self.all().insert(key, why),
            None => _ = self.all().remove(&key),
        }
    }

    /// Says so of these, which are all that there are.
    pub(super) fn add_to(&self, merges: &mut [TextMerge]) {
        let is_it = |merge: &TextMerge, (group, snapshot): &(String, String)| {
            merge.group == *group && merge.snapshot == *snapshot
        };
        let mut all = self.all();
        all.retain(|key, _| merges.iter().any(|merge| is_it(merge, key)));
        for (key, why) in &*all {
            let found = merges.iter_mut().find(|merge| is_it(merge, key));
            found.into_iter().for_each(|merge| merge.failure = Some(why.clone()));
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
    /// The thin snapshot is what its origin was: that is all.
    Replaced,
}

impl ServedGroups {
    /// Hears of the end of every merge that is under way.
    fn watch_merges(&self) {
        let Some(caller) = self.merge_caller.get() else { return };
        let merges = self.assembly().open_merges();
        for merge in merges {
            let (caller, itself) = (caller.clone(), Arc::downgrade(&merge));
            merge.when_ended(move |end| caller.end(&itself, end));
        }
    }

    /// No guest has a snapshot that is to be merged, or its origin, and none gets one of them from now on. These volumes.
    ///
    /// # Errors
    ///
    /// A guest has one: what to do.
    pub(super) fn keep_from_guests(&self, group: &str, snapshot: &str) -> Result<Vec<String>, Refusal> {
        let origin = self.status_of(group).and_then(|status| {
            let found = status.volumes.into_iter().find(|volume| volume.name == snapshot)?;
            found.origin
        });
        let is_known = |one: &TextMerge| one.group == group && one.snapshot == snapshot;
        if self.assembly().merges_of_text().iter().any(is_known) {
            return Ok(Vec::new());
        }
        let both = origin.iter().map(String::as_str).chain([snapshot]);
        let both: Vec<String> = both.map(|volume| format!("{group}/{volume}")).collect();
        let partitions: Vec<String> =
            both.iter().flat_map(|name| self.assembly().partitions_on(name)).collect();
        let names = [both, partitions].concat();
        self.offers.withhold_from_guests(&names, true);
        for name in &names {
            let Some((id, _)) = self.served.find(name) else { continue };
            let Some(address) = self.offers.guest_of(id) else { continue };
            self.offers.withhold_from_guests(&names, false);
            return Err(Refusal::new(RefusalKind::Conflict, has_guest(name, &address)));
        }
        Ok(names)
    }

    /// Begins a merge that the text of a group has since just now; what came of it, in a sentence. With the turn.
    pub(super) fn begin_planned(&self, group: &str, snapshot: &str) -> String {
        let merges = self.assembly().merges_of_text();
        let Some(merge) = merges.into_iter().find(|one| one.group == group && one.snapshot == snapshot)
        else {
            return format!("{}/{}: it is no snapshot any more", escape(group), escape(snapshot));
        };
        let begun = self.begin(&merge);
        self.merge_failures.note(&merge, begun.as_ref().err().map(|error| format!("{error:#}")));
        if let (Err(_), Some(caller)) = (&begun, self.merge_caller.get()) {
            caller.begin();
        }
        sentence(&merge, begun)
    }

    /// Does what is due; false: it has failed, and is tried again after that pause.
    fn see_to(&self, due: &Due, pause: Duration) -> bool {
        match due {
            Due::Begin => self.begin_waiting(pause),
            Due::End(merge, end) => merge.upgrade().is_none_or(|merge| self.end(&merge, *end, pause)),
        }
    }

    /// A client has gone: what waited for that begins. False: something has failed, and is tried again after that pause.
    fn begin_waiting(&self, pause: Duration) -> bool {
        if self.assembly().is_read_only() {
            return true; // whatever begins, the text would have to say so
        }
        let waiting = || -> Vec<TextMerge> {
            let merges = self.assembly().merges_of_text();
            let is_waiting = |one: &TextMerge| match one.state {
                MergeState::Waiting | MergeState::Lost => true,
                // As Linux, which does it when the origin is activated.
                MergeState::Due => !self.find_all(&one.origin_volumes).is_empty(),
                MergeState::Idle | MergeState::Begun => false,
            };
            merges.into_iter().filter(is_waiting).collect()
        };
        if waiting().is_empty() {
            return true;
        }
        let _turn = self.turn();
        let mut is_done = true;
        for merge in waiting() {
            let begun = self.begin(&merge);
            self.merge_failures.note(&merge, begun.as_ref().err().map(|error| format!("{error:#}")));
            match begun {
                Ok(Begun::Later(_)) => {}
                Ok(done @ (Begun::Now | Begun::Replaced)) => log::info!("{}", sentence(&merge, Ok(done))),
                Ok(Begun::Never) => log::error!("{}", sentence(&merge, Ok(Begun::Never))),
                // Its origin is what it is to be, and the group may be one that is not to be changed here.
                Err(error) if merge.state == MergeState::Due => {
                    log::warn!("{}", sentence(&merge, Err(error)))
                }
                Err(error) => {
                    is_done = false;
                    log::error!("{}; {}", sentence(&merge, Err(error)), tried_again(pause));
                }
            }
        }
        is_done
    }

    fn begin(&self, merge: &TextMerge) -> Result<Begun> {
        match merge.state {
            MergeState::Begun => return Ok(Begun::Now),
            MergeState::Idle => return Ok(Begun::Later(when_served(merge))),
            MergeState::Lost => {
                self.give_up(merge)?;
                return Ok(Begun::Never);
            }
            MergeState::Due => {
                self.end_thin(merge)?;
                return Ok(Begun::Replaced);
            }
            MergeState::Waiting => {}
        }
        self.offers.withhold(&merge.snapshot_volumes, true);
        self.offers.withhold_from_guests(&merge.origin_volumes, true);
        let origins = self.find_all(&merge.origin_volumes);
        if origins.is_empty() && !merge.is_thin {
            return Ok(Begun::Later(when_served(merge)));
        }
        let snapshots = self.find_all(&merge.snapshot_volumes);
        if let Err(in_use) = self.offers.withhold_unused(&[&origins[..], &snapshots].concat()) {
            return Ok(Begun::Later(when_closed(&in_use)));
        }
        let begun = match merge.is_thin {
            true => self.replace_origin(merge, origins, snapshots).map(|()| Begun::Replaced),
            false => self.switch_to_merge(merge, &snapshots).map(|()| Begun::Now),
        };
        self.offers.withhold(&merge.origin_volumes, false);
        begun
    }

    /// A thin snapshot takes the place of its origin. Nobody can open either of them. Whatever fails, the origin is what the text says then.
    fn replace_origin(
        &self,
        merge: &TextMerge,
        origins: Vec<(VolumeId, Volume)>,
        snapshots: Vec<(VolumeId, Volume)>,
    ) -> Result<()> {
        self.check_room(&self.assembly()).map_err(|refusal| anyhow!(refusal.text))?;
        for (id, volume) in &snapshots {
            self.take(*id, &volume.name)?;
        }
        let empty: Vec<Volume> = origins.iter().map(|(_, volume)| with_nothing(volume)).collect();
        for ((id, _), volume) in origins.iter().zip(&empty) {
            self.offers.change(&volume.name, *id, volume)?;
        }
        origins.iter().for_each(|(id, _)| self.served.withdraw(*id));
        let mut old: Vec<Volume> = origins.into_iter().chain(snapshots).map(|(_, volume)| volume).collect();
        let pool = self.assembly().thin_device(&format!("{}/{}", merge.group, merge.origin));
        if pool.is_some_and(|(pool, _)| pool.mode() == Mode::OutOfDataSpace) {
            // Nobody could make room meanwhile for what waits for that. It goes by the layers that it has, and so nowhere.
            old.clear();
        }
        self.settle(old)?;
        // A pool deletes only what nobody has layers of.
        self.assembly().forget_thin_merge(merge);
        let ended = self.end_thin(merge);
        let mut served = Ok(());
        for volume in empty {
            served = served.and(self.serve_anew(&volume));
        }
        ended.and(served)
    }

    /// A volume that was taken from clients is built anew, and theirs again.
    fn serve_anew(&self, old: &Volume) -> Result<()> {
        let before = self.served.layers();
        let (volume, failure) = anew(old, self.build_opened(&old.name));
        let id = self.served.add(volume.clone())?;
        self.offers.change(&volume.name, id, &volume)?;
        self.served.open([volume.root], &before)?;
        failure.map_or(Ok(()), Err)
    }

    /// The text and the pool hear that a thin snapshot has taken the place of its origin.
    fn end_thin(&self, merge: &TextMerge) -> Result<()> {
        let failed = |refusal: Refusal| anyhow!(refusal.text);
        self.tell_pools(&merge.group, None).map_err(failed)?;
        let adopted =
            self.edit(merge, |draft| draft.end_thin_merge(&merge.snapshot).map(drop)).map_err(failed)?;
        let notes = self.follow(adopted).into_iter();
        // It is done: the pool is told with the next change if it cannot be told now, as where a write waits in what it is to delete.
        let untold = self.tell_pools(&merge.group, None).err().map(|refusal| refusal.text);
        notes.chain(untold).for_each(|note| log::warn!("{note}"));
        Ok(())
    }

    /// The origin is what the snapshot was from now on, and that is a volume no more. Nobody can open either of them.
    fn switch_to_merge(&self, merge: &TextMerge, snapshots: &[(VolumeId, Volume)]) -> Result<()> {
        self.check_room(&self.assembly()).map_err(|refusal| anyhow!(refusal.text))?;
        for (id, volume) in snapshots {
            self.take(*id, &volume.name)?;
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

    /// Nothing is left to do of a merge: the text hears of that, and the origin is built anew. False: that has failed, and is tried again
    /// after that pause.
    fn end(&self, merge: &Arc<Merge>, end: MergeEnd, pause: Duration) -> bool {
        let _turn = self.turn();
        let Some(known) = self.assembly().text_of_merge(merge) else { return true };
        let name = format!("{}/{}", escape(&known.group), escape(&known.snapshot));
        let ended = match end {
            MergeEnd::Merged => self.take_out(&known),
            MergeEnd::Invalid => self.give_up(&known),
        };
        let is_done = ended.is_ok();
        match ended {
            Ok(notes) => {
                self.merge_failures.note(&known, None);
                let origin = escape(&known.origin);
                match end {
                    MergeEnd::Merged => log::info!("{name}: it is merged into {origin}, and gone"),
                    MergeEnd::Invalid => {
                        log::error!("{name}: it is invalid: nothing of it is merged; remove it")
                    }
                }
                notes.iter().for_each(|note| log::warn!("{note}"));
            }
            Err(error) => {
                let what = match end {
                    MergeEnd::Merged => "all is merged, and the group's text cannot say so",
                    MergeEnd::Invalid => {
                        "it is invalid, and the group's text cannot say that nothing of it is merged"
                    }
                };
                let why = format!("{what}: {}", error.text);
                log::error!(
                    "{name}: {why}; {}; whoever serves or activates its origin next goes on there",
                    tried_again(pause)
                );
                self.merge_failures.note(&known, Some(why));
            }
        }
        is_done
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
                changed.and_then(|changed| self.switch(changed, &[]).err()).map(|error| format!("{error:#}")),
            );
        }
        self.offers.withhold(&merge.snapshot_volumes, false);
        self.offers.withhold_from_guests(&merge.origin_volumes, false);
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

/// A merge that waited for the guest would begin when the server is started anew, whether the guest has gone by then or goes on.
fn has_guest(name: &str, address: &str) -> String {
    let (name, address) = (escape(name), escape(address));
    format!(
        "{name} is the disk of a guest, at {address}, and what that has mounted must not become something else: shut it down, take the disk \
         away (`blockwork export remove {address}`), and ask again"
    )
}

fn when_closed(in_use: &InUse) -> String {
    let InUse { volume, by, until } = in_use;
    format!("{} is in use: {by}; it begins when {until}", escape(volume))
}

fn tried_again(pause: Duration) -> String {
    format!("it is tried again in {} s", pause.as_secs())
}

/// What came of beginning a merge, for people.
fn sentence(merge: &TextMerge, begun: Result<Begun>) -> String {
    let name = format!("{}/{}", escape(&merge.group), escape(&merge.snapshot));
    let origin = format!("{}/{}", escape(&merge.group), escape(&merge.origin));
    match begun {
        Ok(Begun::Now) => {
            format!("{name}: it is being merged into {origin}, which is what it was from now on")
        }
        Ok(Begun::Replaced) => {
            format!("{name}: it has taken the place of its origin {origin}, and is gone")
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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn what_clients_close_while_the_thread_is_at_work_is_heard_of_once() {
        let caller = MergeCaller::default();
        let mut begun = 0;
        caller.begin();
        look_after(&caller, |due, _| {
            assert!(matches!(due, Due::Begin));
            begun += 1;
            if begun == 1 {
                // All of them close theirs before this is over.
                (0..100_000).for_each(|_| caller.begin());
            } else {
                caller.tell(|inbox| inbox.stops = true);
            }
            true
        });
        assert_eq!(begun, 2);
    }

    #[test]
    fn what_has_failed_comes_again_later_each_time_until_it_has_succeeded() {
        let caller = MergeCaller::default();
        let ended = Weak::new();
        caller.end(&ended, MergeEnd::Merged);
        caller.end(&ended, MergeEnd::Merged);
        let mut pauses = Vec::new();
        look_after(&caller, |due, pause| {
            pauses.push((matches!(due, Due::End(..)), pause.as_secs()));
            match pauses.len() {
                // Of its own accord, by the clock.
                1 => {}
                // Whoever asks for it has it tried at once, and does not make its pauses shorter.
                2..5 => caller.end(&ended, MergeEnd::Merged),
                5 => caller.begin(),
                _ => caller.tell(|inbox| inbox.stops = true),
            }
            pauses.len() >= 4
        });
        assert_eq!(pauses, [(true, 1), (true, 2), (true, 4), (true, 8), (true, 1), (false, 1)]);
    }

    #[test]
    fn a_thread_that_waits_for_the_next_attempt_is_stopped_at_once() {
        let caller = MergeCaller::default();
        let of_thread = caller.clone();
        let thread = thread::spawn(move || of_thread.wait(Some(Instant::now() + PAUSE_MAX)).stops);
        caller.tell(|inbox| inbox.stops = true);
        assert!(thread.join().unwrap());
    }
}
