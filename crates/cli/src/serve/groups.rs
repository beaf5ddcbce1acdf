//! The volume groups and thin pools of a server, which are changed while their volumes are served.
//!
//! A change is planned on the group's text by whoever asks (a thread of the control API), written by a task of a worker, and then
//! followed by the devices, the workers' volumes, the pools and what clients are offered. One change is made at a time.
//!
//! Invariants: (1) nothing that a client has open goes; (2) the text on the disks is the old one or the new one, and pools are told in
//! LVM's order, so that a server which is killed in the middle leaves what any next one, or LVM, makes complete; (3) what a change has
//! taken from clients and could not be made is given back; (4) what is in use follows a text that is written whatever else fails, before
//! the next change may give away what the text calls free.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Error, Result};
use blockwork_daemon::{
    GroupAnswer, GroupRequest, GroupStatus, Groups, PoolRequest, PoolStatus, Refusal, RefusalKind, absent,
};
use blockwork_engine::{Layer, Volume, VolumeId};
use blockwork_format::escape;
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::LvIndex;
use blockwork_layer::md;
use blockwork_layer::thin::{Pool, VerbError};
use blockwork_volume::lvm::edit::{Change, Commit, EditError};
use blockwork_volume::lvm::served::{
    Adopted, ChangedFamily, GrowingPool, GrownRaid, ResizedPool, Telling, grow, message, tell, untell,
};
use blockwork_volume::lvm::{Group, KnownSnapshot};
use blockwork_volume::{Assembly, Graph};

use super::autoextend::Caller;
use super::merges::{MergeCaller, MergeFailures};
use super::offers::Offers;
use super::served::Served;
use super::untold::{left_unfinished, makes_room, to_be_made};
use super::workers::Workers;
use crate::vg::change::author_of;
use crate::vg::status::{Fullness, Shown, of_group, snapshot_of, with_merges};
use crate::vg::target::unfinished;
use crate::vg::words::said;

/// Nodes that a change may need: a volume of eight mirrored stripes has about thirty.
const NODES_LEAST: usize = 64;

/// See the module's head.
pub(crate) struct ServedGroups {
    pub(super) served: Arc<Served>,
    assembly: Arc<Mutex<Assembly>>,
    pub(super) offers: Offers,
    /// Volumes that are new are served as well: nobody has said which are to be served.
    serves_all: bool,
    /// Held by whoever changes something.
    turn: Mutex<()>,
    /// Who is called when a pool fills up.
    caller: OnceLock<Caller>,
    /// Who is called when a merge has ended.
    pub(super) merge_caller: OnceLock<MergeCaller>,
    /// Merges that do not go on.
    pub(super) merge_failures: MergeFailures,
}

/// A change that was planned.
struct Planned {
    commit: Commit,
    text: Arc<VolumeGroup>,
    said: String,
    note: Option<String>,
    volume: Option<String>,
    /// Volumes that go, with their partitions, by their whole names.
    gone: Vec<String>,
}

/// A volume that clients cannot open any more.
struct Withdrawn {
    name: String,
    /// With its layers; none: those of a thin volume, and of its old snapshots, are let go.
    volume: Option<Volume>,
}

impl ServedGroups {
    /// Those of `workers`.
    pub(super) fn new(workers: &Workers, offers: Offers, serves_all: bool) -> ServedGroups {
        let (served, assembly) = (workers.served.clone(), workers.assembly.clone());
        let (turn, merge_failures) = (Mutex::new(()), MergeFailures::default());
        let (caller, merge_caller) = (OnceLock::new(), OnceLock::new());
        ServedGroups { served, assembly, offers, serves_all, turn, caller, merge_caller, merge_failures }
    }

    /// Has `caller` called for every pool that passes the mark beyond which it is to be extended.
    pub(super) fn call_when_filling(&self, caller: Caller) {
        let _ = self.caller.set(caller);
        self.watch_pools();
    }

    /// Pools may have come, and room for those that are beyond their mark.
    fn watch_pools(&self) {
        let Some(caller) = self.caller.get() else { return };
        let pools = self.assembly().autoextended();
        for (pool, autoextend) in pools {
            let (of_pool, itself) = (caller.clone(), Arc::downgrade(&pool));
            pool.watch(autoextend.threshold, move || {
                itself.upgrade().iter().for_each(|pool| of_pool.call(pool))
            });
            if pool.is_beyond(autoextend.threshold) != (false, false) {
                caller.call(&pool);
            }
        }
    }

    /// What a pool is called that is to be extended by itself, and how large it is.
    pub(super) fn growing_pool(&self, pool: &Arc<Pool>) -> Option<GrowingPool> {
        self.assembly().growing_pool(pool)
    }

    /// Nobody else changes anything meanwhile.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn assembly(&self) -> MutexGuard<'_, Assembly> {
        // Whoever panicked had only read it, or has ended the server.
        self.assembly.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn check_room(&self, assembly: &Assembly) -> Result<(), Refusal> {
        if assembly.room_for_nodes() >= NODES_LEAST {
            return Ok(());
        }
        let why = "too many volumes that were made since the server was started are there: remove some, or start it anew to make more";
        Err(Refusal::new(RefusalKind::Conflict, why))
    }

    /// What is refused for want of `--force`, and would be with it as well, is refused for that reason at once.
    fn plan(&self, request: &GroupRequest) -> Result<Planned, Refusal> {
        self.plan_as_asked(request).map_err(|refusal| {
            let mut forced = request.clone();
            match &mut forced.change {
                Change::Resize { may_shrink, .. } if !*may_shrink => *may_shrink = true,
                _ => return refusal,
            }
            self.plan_as_asked(&forced).err().unwrap_or(refusal)
        })
    }

    fn plan_as_asked(&self, request: &GroupRequest) -> Result<Planned, Refusal> {
        let mut assembly = self.assembly();
        self.check_room(&assembly)?;
        let author = author_of(request.command.as_deref()).map_err(failed)?;
        let mut editor = assembly.edit_group(&request.group, author).map_err(refused)?;
        let made = editor.draft_mut().make(&request.change).map_err(refused)?;
        let (commit, text) = editor.plan().map_err(refused)?;
        let said = said(editor.draft(), &request.change, &made);
        let gone = match &request.change {
            Change::Remove { volumes } => {
                let names = volumes.iter().map(|volume| format!("{}/{volume}", request.group));
                names.flat_map(|name| assembly.gone_with(&name)).collect()
            }
            _ => Vec::new(),
        };
        let volume = request.change.volume(&made).map(str::to_owned);
        Ok(Planned { commit, text, said, note: made.note().map(str::to_owned), volume, gone })
    }

    /// Takes volumes away from clients that may come; what has been taken, to be given back.
    fn withdraw(&self, names: &[String]) -> Result<Vec<Withdrawn>, Refusal> {
        let mut withdrawn = Vec::new();
        for name in names {
            let Some((id, volume)) = self.served.find(name) else { continue };
            if let Err(error) = self.take(id, name) {
                self.give_back(withdrawn);
                return Err(Refusal::new(RefusalKind::Conflict, error));
            }
            withdrawn.push(Withdrawn { name: name.clone(), volume: Some(volume) });
        }
        let volumes = withdrawn.iter().filter_map(|one| one.volume.clone()).collect();
        let unused = self.settle(volumes).and_then(|()| self.release_thin(names, &mut withdrawn));
        if let Err(error) = unused.and_then(|()| self.put_pools_to_rest(names)) {
            self.give_back(withdrawn);
            return Err(Refusal::new(RefusalKind::Conflict, error));
        }
        Ok(withdrawn)
    }

    /// Takes a volume away, unless a client has it open.
    pub(super) fn take(&self, id: VolumeId, name: &str) -> Result<()> {
        self.offers.remove(id, name)?;
        self.served.withdraw(id);
        self.offers.is_gone(name);
        Ok(())
    }

    /// Waits for I/O on volumes as they were.
    pub(super) fn settle(&self, volumes: Vec<Volume>) -> Result<()> {
        if volumes.is_empty() {
            return Ok(());
        }
        self.served.run(|cx| async move {
            cx.quiesce().await;
            for volume in volumes {
                volume.settle().await;
            }
            cx.quiesce().await;
        })
    }

    /// Lets go of the layers of thin volumes, and of their partitions, served or not: a pool deletes none that somebody holds on to. A write
    /// may wait for room in a full pool.
    fn release_thin(&self, names: &[String], withdrawn: &mut [Withdrawn]) -> Result<()> {
        self.release_thin_families(withdrawn)?;
        let mut assembly = self.assembly();
        for one in withdrawn.iter_mut().filter(|one| assembly.thin_device(&one.name).is_some()) {
            one.volume = None;
        }
        let thin = names.iter().filter_map(|name| Some((name, assembly.thin_device(name)?)));
        let thin: Vec<_> = thin.collect();
        // A volume is in use as long as one of its partitions is: all are let go of first.
        thin.iter().for_each(|(name, _)| assembly.forget_layers(name));
        for (name, (pool, device)) in thin {
            if pool.is_in_use(device) {
                let name = escape(name);
                anyhow::bail!(
                    "{name} is in use: I/O of a client that has gone is still under way; try again"
                );
            }
        }
        Ok(())
    }

    /// Old snapshots of thin volumes that go, and which go with them, hold on to their origins.
    fn release_thin_families(&self, withdrawn: &mut [Withdrawn]) -> Result<()> {
        let changed: Vec<ChangedFamily> = {
            let mut assembly = self.assembly();
            let is_thin = |name: &&String| assembly.thin_device(name).is_some();
            let names = withdrawn.iter().map(|one| &one.name);
            let thin: Vec<String> = names.filter(is_thin).cloned().collect();
            thin.iter().filter_map(|name| assembly.forget_family(name)).collect()
        };
        for ChangedFamily { family, volumes } in changed {
            if let Some(family) = family {
                let retired = family.clone();
                self.served.run(|cx| async move {
                    retired.retire().await;
                    cx.quiesce().await;
                })?;
                // Not before: until then it may still lose one of them.
                self.assembly().let_go(&family);
            }
            let members = withdrawn.iter_mut().filter(|one| volumes.contains(&one.name));
            members.for_each(|one| one.volume = None);
        }
        Ok(())
    }

    /// Pools that go have nothing left to write: where they lie, something else may be from then on.
    fn put_pools_to_rest(&self, names: &[String]) -> Result<()> {
        for name in names {
            let Some(pool) = self.assembly().open_pool_named(name) else { continue };
            let committed = self.served.run(|cx| async move {
                let transaction = pool.status().transaction_id;
                pool.set_transaction_id(&cx, transaction, transaction).await
            })?;
            // One that is read-only writes nothing anyhow.
            if let Err(error) = committed
                && !matches!(error, VerbError::ReadOnly(_))
            {
                anyhow::bail!("{}: its last changes cannot be written: {error}", escape(name));
            }
        }
        Ok(())
    }

    fn give_back(&self, withdrawn: Vec<Withdrawn>) {
        for Withdrawn { name, volume } in withdrawn {
            let given = match volume {
                Some(volume) => self.offer(volume).map(|_| ()),
                None => self.add(&name),
            };
            if let Err(error) = given {
                log::error!("{}: it cannot be served again: {error}", escape(&name));
            }
        }
    }

    /// Serves a volume.
    fn offer(&self, volume: Volume) -> Result<VolumeId> {
        let id = self.served.add(volume.clone())?;
        match self.offers.add(id, &volume) {
            Ok(_) => Ok(id),
            Err(error) => {
                self.served.withdraw(id);
                Err(error)
            }
        }
    }

    pub(super) fn write(&self, commit: Commit) -> Result<(), Refusal> {
        let written = self.served.run(|cx| async move { commit.write(&cx).await }).map_err(failed)?;
        written.map_err(failed)
    }

    pub(super) fn adopt(&self, group: &str, text: Arc<VolumeGroup>) -> Result<Adopted, Refusal> {
        let mut assembly = self.assembly();
        assembly.adopt(group, text).map_err(refused)
    }

    /// Pools hear what their groups' texts have for them still, as where a server was killed before it had told them; what they make by that
    /// can be opened. LVM does it when it activates a pool.
    pub(super) fn finish_what_was_cut_short(&self) {
        let untold: Vec<(String, Vec<String>)> = {
            let assembly = self.assembly();
            let groups = assembly.graph().groups.iter().filter(|_| !assembly.is_read_only());
            groups.filter_map(|group| Some((group.name.clone(), to_be_made(group)?))).collect()
        };
        for (group, made) in untold {
            let _turn = self.turn();
            match self.tell_pools(&group, None) {
                Err(error) => log::warn!("{}", left_unfinished(&group, &error)),
                Ok(()) if self.serves_all => {
                    // That there were none was found when the server began.
                    made.iter().for_each(|name| self.assembly().forget_layers(name));
                    self.add_all(&made).iter().for_each(|note| log::warn!("{note}"));
                }
                Ok(()) => {}
            }
        }
    }

    /// Tells pools what the group's text has for them, and notes there that they know.
    pub(super) fn tell_pools(&self, group: &str, command: Option<&str>) -> Result<(), Refusal> {
        let (tellings, commit, text) = {
            let mut assembly = self.assembly();
            let mut editor =
                assembly.edit_group(group, author_of(command).map_err(failed)?).map_err(refused)?;
            let all = editor.draft().untold().map_err(refused)?;
            if all.is_empty() {
                return Ok(());
            }
            let mut tellings = Vec::new();
            for untold in all {
                let telling = editor.telling(&untold).map_err(refused)?;
                editor.draft_mut().settle(&untold.pool).map_err(refused)?;
                tellings.push((untold, telling));
            }
            let (commit, text) = editor.plan().map_err(refused)?;
            (tellings, commit, text)
        };
        let mut made = Vec::new();
        for (untold, telling) in tellings {
            let pool = untold.pool.clone();
            let told = match telling {
                Telling::Open(pool) => {
                    let told = self.served.run(|cx| async move { tell(&pool, &untold, &cx).await });
                    told.map_err(failed)?.map_err(|error| error.to_string())
                }
                Telling::Idle(commit) => {
                    made.push(pool.clone());
                    let told = self.served.run(|cx| async move {
                        match commit {
                            Some(commit) => commit.write(&cx).await,
                            None => Ok(()),
                        }
                    });
                    told.map_err(failed)?.map_err(|error| error.to_string())
                }
            };
            told.map_err(|error| Refusal::new(RefusalKind::Conflict, format!("the pool {pool}: {error}")))?;
        }
        let written = self.served.run(|cx| async move { commit.write(&cx).await }).map_err(failed)?;
        // The change itself is on the disks: that nothing has changed would be said of this text alone.
        written.map_err(|error| failed(error.cause()))?;
        self.adopt(group, text)?;
        let mut assembly = self.assembly();
        made.iter().try_for_each(|pool| assembly.open_made_pool(group, pool)).map_err(refused)?;
        self.served.name_nodes(&mut assembly).map_err(failed)
    }

    /// Takes back what pools were told of what is new; whether none of them has any of it.
    fn untell_pools(&self, group: &str, command: Option<&str>) -> Result<bool, Refusal> {
        let mut told = Vec::new();
        {
            let mut assembly = self.assembly();
            let mut editor =
                assembly.edit_group(group, author_of(command).map_err(failed)?).map_err(refused)?;
            for untold in editor.draft().untold().map_err(refused)? {
                match editor.telling(&untold) {
                    Ok(Telling::Open(pool)) => told.push((pool, untold)),
                    Ok(Telling::Idle(None)) => return Ok(false),
                    // It hears all at once, and has not; or refuses.
                    Ok(Telling::Idle(Some(_))) | Err(_) => {}
                }
            }
        }
        for (pool, untold) in told {
            let untold = self.served.run(|cx| async move { untell(&pool, &untold, &cx).await });
            if !untold.map_err(failed)?.map_err(failed)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What is new in the text and no pool could be told of goes again. What a pool knows stays: the next change finds it there, and whoever
    /// has asked for it hears of that.
    fn take_back(&self, request: &GroupRequest, volume: Option<&String>) -> Result<(), String> {
        let (Change::CreateThin(_) | Change::SnapshotThin(_), Some(volume)) = (&request.change, volume)
        else {
            return Err(format!(
                "the text of {} has the change all the same: the next change that the pool takes makes it complete",
                escape(&request.group)
            ));
        };
        let name = format!("{}/{}", escape(&request.group), escape(volume));
        let stays = |error: Refusal| {
            format!(
                "{name} cannot be taken back: {error}; it stays in the text of its group, and the next change that its pool takes makes it"
            )
        };
        if !self.untell_pools(&request.group, request.command.as_deref()).map_err(stays)? {
            return Err(format!(
                "{name} is made all the same, since its pool has it: it is served when the server is started anew"
            ));
        }
        let change = Change::Remove { volumes: vec![volume.clone()] };
        let again = GroupRequest { change, ..request.clone() };
        let undone = self.plan(&again).and_then(|planned| {
            self.write(planned.commit)?;
            self.adopt(&request.group, planned.text)
        });
        undone.map(|_| ()).map_err(stays)
    }

    /// What is in use goes by the new text; what people should know of that.
    pub(super) fn follow(&self, adopted: Adopted) -> Vec<String> {
        // What says itself of which volumes it is.
        let failed = |done: Result<()>| done.err().map(|error| format!("{error:#}"));
        // All else is built upon these.
        let grown = adopted.raids.into_iter().filter_map(|raid| failed(self.grow_raid(raid)));
        let mut notes: Vec<String> = grown.collect();
        notes.extend(adopted.families.into_iter().filter_map(|family| failed(self.switch(family, &[]))));
        let mut note = |what: &str, done: Result<()>| {
            notes.extend(done.err().map(|error| format!("{}: {error:#}", escape(what))));
        };
        for array in adopted.arrays {
            let name = self.assembly().node(array.node()).name.clone();
            note(&name, self.retire(array));
        }
        for pool in adopted.pools {
            note("the pool has grown, and", self.grow(pool));
        }
        if !adopted.renamed.is_empty() {
            note("counters and traces", self.served.name_nodes(&mut self.assembly()));
        }
        for (old, new) in adopted.renamed {
            note(&new, self.rename(&old, &new));
        }
        for name in adopted.resized {
            note(&name, self.resize(&name));
        }
        notes
    }

    /// An array whose volume is gone writes nothing any more.
    fn retire(&self, array: Arc<dyn Layer>) -> Result<()> {
        let retired = self.served.run(|cx| async move {
            match array.retire(cx) {
                Some(retiring) => retiring.await,
                None => Ok(()),
            }
        })?;
        Ok(retired?)
    }

    /// The array of a RAID volume becomes as large as the text of its group says.
    fn grow_raid(&self, raid: Result<GrownRaid, String>) -> Result<()> {
        let grown = raid.map_err(Error::msg).and_then(|raid| {
            self.served.name_nodes(&mut self.assembly())?;
            let (array, legs) = (raid.array.clone(), raid.legs.clone());
            let grown = self.served.run(|cx| async move { array.grow_legs(&cx, legs).await })?;
            // What is not on record yet has its new size all the same, and takes no writes.
            let built = self.assembly().raid_has_grown(&raid);
            grown?;
            built.map_err(Error::msg)
        });
        grown.context(
            "a RAID volume is larger in the text of its group, and will be when the server is started anew",
        )
    }

    fn grow(&self, pool: ResizedPool) -> Result<()> {
        let grown = {
            let mut assembly = self.assembly();
            let grown = assembly.grown_pool(pool);
            self.served.name_nodes(&mut assembly)?;
            grown?
        };
        Ok(self.served.run(|cx| async move { grow(grown, &cx).await })??)
    }

    /// Volumes that are new can be opened; what people should know of that.
    fn add_all(&self, names: &[String]) -> Vec<String> {
        let note = |name: &String| {
            let error = self.add(name).err()?;
            Some(format!("{}: {error}", escape(name)))
        };
        names.iter().filter_map(note).collect()
    }

    /// What is new is not served by who was told which volumes to serve. A pool never is.
    fn unserved(&self, name: &str) -> Option<String> {
        let is_pool = self.assembly().is_pool(name);
        (!is_pool).then(|| {
            format!(
                "{}: it is not served, since this server was told which volumes to serve: it would be if it were made with --serve, and is by \
                 the next server that names it",
                escape(name)
            )
        })
    }

    fn rename(&self, old: &str, new: &str) -> Result<()> {
        let Some((id, volume)) = self.served.find(old) else { return Ok(()) };
        let mut volume = volume;
        volume.name = new.to_owned();
        self.served.set(id, volume.clone());
        self.offers.change(old, id, &volume)
    }

    /// A volume that is served gets its new layers.
    pub(super) fn resize(&self, name: &str) -> Result<()> {
        let Some((id, volume)) = self.served.find(name) else { return Ok(()) };
        let resized = volume.with_root(self.build(name)?.root);
        let is_smaller = resized.sectors() < volume.sectors();
        self.served.set(id, resized.clone());
        self.offers.change(name, id, &resized)?;
        // What it has lost is somebody else's with the next change.
        self.settle(if is_smaller { vec![volume] } else { Vec::new() })
    }

    fn add(&self, name: &str) -> Result<()> {
        if self.assembly().is_pool(name) {
            return Ok(());
        }
        let before = self.served.layers();
        let volume = self.build_opened(name)?;
        self.served.open([volume.root.clone()], &before)?;
        self.offer(volume).map(drop)
    }

    /// The same as [`Self::build`], also of a thin volume that nobody has built yet.
    pub(super) fn build_opened(&self, name: &str) -> Result<Volume> {
        let pool_of = self.assembly().thin_device(name);
        // Once it is open, its layer needs nothing that would have to be read.
        let device = match pool_of {
            Some((pool, id)) => Some(self.served.run(move |cx| async move { pool.device(&cx, id).await })??),
            None => None,
        };
        let volume = self.build(name);
        drop(device);
        volume
    }

    /// The volume of that name, with layers that all counters know.
    pub(super) fn build(&self, name: &str) -> Result<Volume> {
        let mut assembly = self.assembly();
        let chosen = assembly.choose(&[name.to_owned()]);
        self.served.name_nodes(&mut assembly)?;
        let mut chosen = chosen?;
        Ok(chosen.remove(0).volume)
    }

    pub(super) fn status_of(&self, group: &str) -> Option<GroupStatus> {
        self.list().into_iter().find(|known| known.name == group)
    }

    /// Blocks that each device of the open pools of a group maps, by pool and device.
    fn mapped(&self, pools: &[(LvIndex, Arc<Pool>)]) -> HashMap<(LvIndex, u64), u64> {
        let mut all = HashMap::new();
        for (lv, pool) in pools {
            let pool = pool.clone();
            let details = self.served.run(|cx| async move { pool.devices_of(&cx).await });
            // A pool whose metadata cannot be read says so itself.
            let details = details.ok().and_then(Result::ok).unwrap_or_default();
            all.extend(details.into_iter().map(|(device, details)| ((*lv, device), details.mapped_blocks)));
        }
        all
    }

    fn change_with_turn(&self, request: &GroupRequest) -> Result<GroupAnswer, Refusal> {
        let command = request.command.as_deref();
        // What was cut short before comes first; a pool may need the room that it is about to get for that.
        let untold = self.tell_pools(&request.group, command).err();
        let planned = self.plan(request)?;
        let pools = self.check_pools(request, &planned.text, untold.as_ref())?;
        let withdrawn = self.withdraw(&planned.gone)?;
        if let Err(error) = self.write(planned.commit) {
            self.give_back(withdrawn);
            return Err(error);
        }
        // A pool deletes only what nobody has layers of.
        drop(withdrawn);
        let mut adopted = self.adopt(&request.group, planned.text)?;
        let added = std::mem::take(&mut adopted.added);
        let mut notes: Vec<String> = planned.note.into_iter().collect();
        notes.extend(self.follow(adopted));
        notes
            .extend(untold.filter(|_| pools.is_empty()).map(|error| unfinished(&request.group, &error.text)));
        let has_news = !pools.is_empty() || makes_room(&request.change);
        match if has_news { self.tell_pools(&request.group, command) } else { Ok(()) } {
            Ok(()) => {}
            // It has the room, whatever else a pool has yet to be told.
            Err(error) if makes_room(&request.change) => notes.push(error.to_string()),
            Err(error) => {
                notes.iter().for_each(|note| log::warn!("{note}"));
                return Err(match self.take_back(request, planned.volume.as_ref()) {
                    Ok(()) => error,
                    Err(rest) => {
                        log::error!("{rest}");
                        Refusal::new(error.kind, format!("{}; but {rest}", error.text))
                    }
                });
            }
        }
        if self.serves_all || request.serve {
            notes.extend(self.add_all(&added));
        } else {
            notes.extend(added.iter().filter_map(|name| self.unserved(name)));
        }
        self.watch_pools();
        let said = match &request.change {
            Change::Merge { volume } => self.begin_planned(&request.group, volume),
            _ => planned.said,
        };
        let group = self.status_of(&request.group);
        let group = group.ok_or_else(|| absent("volume group", &request.group, []))?;
        let is_it = |name: &String| group.volumes.iter().find(|volume| volume.name == *name).cloned();
        let volume = planned.volume.as_ref().and_then(is_it);
        Ok(GroupAnswer { said, notes, volume, group })
    }
}

impl Groups for ServedGroups {
    fn list(&self) -> Vec<GroupStatus> {
        let (groups, mut merges) = {
            let assembly = self.assembly();
            let graph = assembly.graph();
            let groups: Vec<Open> = graph.groups.iter().map(|group| Open::of(group, graph)).collect();
            (groups, assembly.merges_of_text())
        };
        self.merge_failures.add_to(&mut merges);
        let groups = groups.into_iter().map(|group| {
            let mapped = self.mapped(&group.pools);
            let status = of_group(&group.shown, |lv| group.fullness(lv, &mapped));
            with_merges(status, &merges)
        });
        groups.collect()
    }

    fn change(&self, request: &GroupRequest) -> Result<GroupAnswer, Refusal> {
        let _turn = self.turn();
        let kept = match &request.change {
            Change::Merge { volume } => self.keep_from_guests(&request.group, volume)?,
            _ => Vec::new(),
        };
        let changed = self.change_with_turn(request);
        if changed.is_err() {
            self.offers.withhold_from_guests(&kept, false);
        }
        changed
    }

    fn pools(&self) -> Vec<PoolStatus> {
        let assembly = self.assembly();
        let pool = |name: &str| {
            let pool = assembly.table_pool(name)?;
            Some(PoolStatus { name: name.to_owned(), status: pool.status().to_string() })
        };
        assembly.table_pools().filter_map(pool).collect()
    }

    fn tell(&self, request: &PoolRequest) -> Result<PoolStatus, Refusal> {
        let conflict = |error: String| Refusal::new(RefusalKind::Conflict, error);
        let change = crate::message::change(std::slice::from_ref(&request.message));
        let change = change.map_err(|error| Refusal::new(RefusalKind::Invalid, error))?;
        let pool = {
            let assembly = self.assembly();
            let found = assembly.table_pool(&request.pool);
            found.ok_or_else(|| absent("thin pool of a table", &request.pool, assembly.table_pools()))?
        };
        let _turn = self.turn();
        let of_task = pool.clone();
        let told = self.served.run(move |cx| async move { message(&of_task, change, &cx).await });
        told.map_err(failed)?.map_err(|error| conflict(format!("{}: {error}", escape(&request.pool))))?;
        Ok(PoolStatus { name: request.pool.clone(), status: pool.status().to_string() })
    }
}

/// What is told of a group, without holding on to the assembly.
struct Open {
    shown: Shown,
    pools: Vec<(LvIndex, Arc<Pool>)>,
    snapshots: HashMap<LvIndex, Fullness>,
    /// Arrays of RAID volumes.
    raids: BTreeMap<LvIndex, md::ArrayStatus>,
}

impl Open {
    fn of(group: &Group, graph: &Graph) -> Open {
        let pools = group.thin_pools.iter().filter_map(|(lv, pool)| Some((*lv, pool.pool()?))).collect();
        let full =
            |(store, known): (&LvIndex, &KnownSnapshot)| Some((*store, Fullness::from(known.status()?)));
        let snapshots = group.snapshots.iter().filter_map(full).collect();
        let raids = group.raids().map(|(lv, array)| (lv, array.status())).collect();
        Open { shown: Shown::of(group, graph), pools, snapshots, raids }
    }

    fn fullness(&self, lv: LvIndex, mapped: &HashMap<(LvIndex, u64), u64>) -> Fullness {
        let full = self.fullness_alone(lv, mapped);
        match self.raids.get(&lv) {
            Some(array) => full.with_sync(array, true),
            None => full,
        }
    }

    fn fullness_alone(&self, lv: LvIndex, mapped: &HashMap<(LvIndex, u64), u64>) -> Fullness {
        let pool_at = |lv: LvIndex| self.pools.iter().find(|(pool, _)| *pool == lv).map(|(_, pool)| pool);
        if let Some(pool) = pool_at(lv) {
            return Fullness::from(&pool.status());
        }
        let text = &self.shown.text;
        if let Some((pool, device_id)) = text.thin_device(lv) {
            let found = pool_at(pool).zip(mapped.get(&(pool, device_id)));
            let sectors = text.lv_sectors(lv);
            return found.map_or_else(Fullness::default, |(pool, blocks)| {
                Fullness::of_thin(*blocks, pool.block().0, sectors)
            });
        }
        let snapshot = snapshot_of(text, lv);
        snapshot.and_then(|snapshot| self.snapshots.get(&snapshot.store)).cloned().unwrap_or_default()
    }
}

pub(super) fn refused(error: EditError) -> Refusal {
    let kind = match error {
        EditError::Absent { .. } => RefusalKind::NotFound,
        EditError::Name { .. } | EditError::Value { .. } => RefusalKind::Invalid,
        _ => RefusalKind::Conflict,
    };
    Refusal::new(kind, error)
}

pub(super) fn failed(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(RefusalKind::Failed, error)
}
