//! The arrays under the volumes of some workers: how they are, and what is asked of them.
//!
//! An array is code of the workers: what is asked of it runs there, as a task, and the answer comes back over a channel. So
//! whoever calls [`Arrays::act`] waits, in a thread where that harms nobody: that of a verb on the command line, or one that
//! the control API has for it.
//!
//! A disk that is brought in is given to every worker before its array hears of it, since any of them may get a bio
//! that reaches it from then on. From the moment when it is looked at until the array has it, or has refused it, it is on
//! its way, and counts as the array's: nobody else gets it meanwhile.
//!
//! A disk that is taken out of its array is closed, so that others can have it: when nothing of it is under way, the workers get something in its
//! place that only fails. Who wants it back has it opened anew.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use blockwork_daemon::{
    ArrayAnswer, ArrayGauges, ArrayRequest, ArrayStatus, Arrays, DeviceStatus, Disks, Refusal, RefusalKind,
    SyncStatus, Verb, WAIT_MILLIS_MAX, no_array,
};
use blockwork_engine::{
    Layer as _, Nanos, NodeId, SECTOR, Sectors, TaskContext, Volume, VolumeId, topmost_first,
};
use blockwork_format::escape;
use blockwork_format::md::{Level, Superblock, Uuid};
use blockwork_layer::md::{self, Added, MemberState, MemberStatus, NewMember, SyncAction, VerbError};
use blockwork_volume::{Assembly, Attached, NEWCOMER_NODES_MAX, Newcomer, Purpose};
use ring::rand::{SecureRandom, SystemRandom};

use super::offers::Offers;
use super::sandbox;
use super::served::Served;
use super::workers::Workers;

/// An array that is served.
#[derive(Clone)]
struct Known {
    name: String,
    uuid: Uuid,
    level: String,
    layout: Option<String>,
    read_only: Option<String>,
    /// Of the superblock that was believed when it was found. The array itself counts them only where it may write them.
    events: u64,
    array: Arc<md::Array>,
}

/// See the module's head.
pub(crate) struct ServedArrays {
    /// Those that volumes have lain on so far.
    known: Mutex<Vec<Known>>,
    /// RAID volumes of LVM, as of when that could be seen last.
    raid_volumes: Mutex<Vec<(String, Weak<md::Array>)>>,
    served: Arc<Served>,
    assembly: Arc<Mutex<Assembly>>,
    /// Where a disk that is brought in is told of.
    disks: Disks,
    /// By what clients reach the volumes.
    offers: Offers,
    /// What is written is recorded, disk by disk: none can come.
    is_logged: bool,
    /// Devices that an array is about to have.
    on_the_way: Mutex<Vec<OnTheWay>>,
}

/// A device that was brought in for an array which has not got it yet.
struct OnTheWay {
    /// As messages call it.
    device: String,
    array: Uuid,
}

/// Keeps a device on its way: until this is dropped, nobody else may have it.
struct Passage<'a> {
    device: String,
    on_the_way: &'a Mutex<Vec<OnTheWay>>,
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        lock(self.on_the_way).retain(|it| it.device != self.device);
    }
}

impl ServedArrays {
    /// Those of `workers`, whose volumes clients reach by `offers`; what is brought in is added to `disks`.
    pub(crate) fn new(workers: &Workers, disks: Disks, offers: Offers) -> ServedArrays {
        let arrays = ServedArrays {
            known: Mutex::default(),
            raid_volumes: Mutex::default(),
            served: workers.served.clone(),
            assembly: workers.assembly.clone(),
            disks,
            offers,
            is_logged: workers.log.is_some(),
            on_the_way: Mutex::default(),
        };
        arrays.learn(&lock(&workers.assembly));
        arrays
    }

    fn find(&self, name: &str) -> Result<Known, Refusal> {
        let all = self.known();
        let found = all.iter().find(|known| known.status().is_called(name)).cloned();
        found.ok_or_else(|| no_array(name, all.iter().map(|known| known.name.as_str())))
    }

    /// Finds what volumes lie on that have come.
    fn learn(&self, assembly: &Assembly) {
        let reached = nodes_under(&self.served);
        let mut known = lock(&self.known);
        for found in assembled(assembly) {
            let is_known = known.iter().any(|one| one.uuid == found.uuid);
            if reached.contains(&found.array.node()) && !is_known {
                known.push(found);
            }
        }
    }

    /// All of them, but for those of the volumes that a change brings at this moment: nobody waits for disks here.
    fn known(&self) -> Vec<Known> {
        if let Ok(assembly) = self.assembly.try_lock() {
            self.learn(&assembly);
        }
        lock(&self.known).clone()
    }

    /// Has a worker run a task with the array, and waits for what becomes of it.
    fn run<T, F>(
        &self,
        known: &Known,
        task: impl FnOnce(Arc<md::Array>, TaskContext) -> F + Send + 'static,
    ) -> Result<T, Refusal>
    where
        F: Future<Output = T>,
        T: Send + 'static,
    {
        let array = known.array.clone();
        let done = self.served.run(move |cx| task(array, cx));
        done.map_err(|error| Refusal::new(RefusalKind::Failed, format!("{}: {error}", known.name)))
    }

    /// As `run`, of what the array may refuse.
    fn ask<T, F>(
        &self,
        known: &Known,
        task: impl FnOnce(Arc<md::Array>, TaskContext) -> F + Send + 'static,
    ) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, VerbError>>,
        T: Send + 'static,
    {
        self.run(known, task)?.map_err(|error| refusal(&error))
    }

    fn add(&self, known: &Known, device: &str, force: bool) -> Result<Said, Refusal> {
        let (newcomer, passage) = self.bring_in(known, device, force)?;
        let (name, was_opened) = (newcomer.name.clone(), newcomer.leaf.is_some());
        let superblock = match newcomer.superblock.map(|superblock| *superblock) {
            Some(Superblock::V1(superblock)) => Some(superblock),
            _ => None,
        };
        let device_uuid = random_uuid()?;
        let member = NewMember { name: name.clone(), layer: newcomer.layer, superblock, device_uuid };
        let added = self.ask(known, async move |array, cx| array.add(member, &cx).await);
        drop(passage);
        if added.is_err() && was_opened {
            self.let_go(known, std::slice::from_ref(&name));
        }
        let added = added?;
        let array = &known.name;
        let said = match added {
            Added::ReAdded { role } => {
                format!("{name} is back as member {role} of {array}; what it has missed is copied to it")
            }
            Added::Recovering { role } => format!("{name} is being filled as member {role} of {array}"),
            Added::Spare => format!("{name} is a spare of {array}"),
        };
        Ok(Said::about(said, name))
    }

    /// All arrays, and the devices that they have now, or are about to have.
    fn attached(&self, here: &Known) -> (Vec<Uuid>, Vec<Attached>) {
        // Those first: a device that has arrived meanwhile is among the array's then.
        let coming = |it: &OnTheWay| Attached { name: it.device.clone(), is_here: it.array == here.uuid };
        let mut attached: Vec<_> = lock(&self.on_the_way).iter().map(coming).collect();
        let of = |known: &Known| {
            let is_here = known.uuid == here.uuid;
            let names = known.status().devices.into_iter().filter_map(|device| device.name);
            names.map(move |name| Attached { name, is_here }).collect::<Vec<_>>()
        };
        let all = self.known();
        attached.extend(all.iter().flat_map(of));
        (all.iter().map(|known| known.uuid).collect(), attached)
    }

    /// Opens a disk, unless it is open, and tells all workers of it. It is on its way to the array then.
    fn bring_in(&self, known: &Known, device: &str, force: bool) -> Result<(Newcomer, Passage<'_>), Refusal> {
        let served = self.served.all();
        let served: Vec<&str> = served.iter().map(|(_, volume)| volume.name.as_str()).collect();
        // Held until all workers have the disk, since they must all number the next one alike; and until the device is on its
        // way, so that no two find it free.
        let mut assembly = lock(&self.assembly);
        let (arrays, attached) = self.attached(known);
        let purpose =
            Purpose { array: known.uuid, served: &served, arrays: &arrays, attached: &attached, force };
        let conflict = |text: String| Refusal::new(RefusalKind::Conflict, text);
        let full = assembly.room_for_nodes() < NEWCOMER_NODES_MAX;
        if !assembly.knows(device) && (full || self.is_logged) {
            let why = if full { TOO_MANY } else { LOGGED };
            return Err(conflict(format!("{}: it cannot be opened: {why}", escape(device))));
        }
        let newcomer =
            assembly.bring_in(device, &purpose).map_err(|error| conflict(sandbox::said(&error)))?;
        newcomer.warnings.iter().for_each(|warning| log::warn!("{}: {warning}", newcomer.name));
        self.served.name_nodes(&mut assembly).map_err(|error| conflict(error.to_string()))?;
        if let Some((leaf, node, source)) = newcomer.leaf.clone() {
            self.disks.add(source.clone());
            // What was there before, if anything was, had nothing under way.
            self.served.change_leaf(leaf, node, &source, &source);
        }
        let passage = self.send(&newcomer.name, known)?;
        Ok((newcomer, passage))
    }

    /// Has a device be on its way to an array, unless it is already. With the assembly locked.
    fn send(&self, device: &str, to: &Known) -> Result<Passage<'_>, Refusal> {
        let mut on_the_way = lock(&self.on_the_way);
        if on_the_way.iter().any(|it| it.device == device) {
            let why = format!("{device} is being added to {} at this moment by somebody else", to.name);
            return Err(Refusal::new(RefusalKind::Conflict, why));
        }
        on_the_way.push(OnTheWay { device: device.to_owned(), array: to.uuid });
        Ok(Passage { device: device.to_owned(), on_the_way: &self.on_the_way })
    }

    /// Closes the disks of devices that the array has no more, unless something else here uses them; why some stay open.
    fn let_go(&self, known: &Known, devices: &[String]) -> Vec<String> {
        let mut stay = Vec::new();
        for device in devices {
            if let Err(why) = self.close(known, device) {
                stay.push(format!("{device} stays open here: {why}"));
            }
        }
        stay
    }

    fn close(&self, known: &Known, device: &str) -> Result<(), String> {
        if self.is_logged {
            return Err("--log-writes records it".into());
        }
        let served = self.served.all();
        let served: Vec<&str> = served.iter().map(|(_, volume)| volume.name.as_str()).collect();
        // Held until it is closed, since somebody might want it for an array meanwhile.
        let mut assembly = lock(&self.assembly);
        let (arrays, attached) = self.attached(known);
        let purpose = Purpose {
            array: known.uuid,
            served: &served,
            arrays: &arrays,
            attached: &attached,
            force: false,
        };
        let Some(leaving) = assembly.leaving(device, &purpose)? else { return Ok(()) };
        if !self.served.change_leaf(leaving.leaf, leaving.node, &leaving.closed, &leaving.source) {
            return Err("it does not answer".into());
        }
        self.disks.remove(&leaving.source);
        assembly.close(leaving);
        Ok(())
    }

    fn remove(&self, known: &Known, device: &str) -> Result<Said, Refusal> {
        let wanted = device.to_owned();
        let gone = self.ask(known, async move |array, cx| array.remove(&wanted, &cx).await)?;
        let said = match &gone[..] {
            [] => format!("{} has no device that is {device}", known.name),
            gone => {
                let said = format!("removed from {}: {}", known.name, gone.join(", "));
                [vec![said], self.let_go(known, gone)].concat().join("; ")
            }
        };
        Ok(Said { said, devices: gone, at_rest: None })
    }

    fn replace(&self, known: &Known, device: &str, with: Option<&str>) -> Result<Said, Refusal> {
        let (old, new) = (device.to_owned(), with.map(str::to_owned));
        self.ask(known, async move |array, cx| array.replace(&old, new.as_deref(), &cx).await)?;
        let device = escape(device);
        let said = format!("{device} of {} is being replaced, and serves until that is done", known.name);
        Ok(Said::about(said, device))
    }

    fn sync(&self, known: &Known, action: SyncAction) -> Result<Said, Refusal> {
        self.ask(known, async move |array, cx| array.start_sync(action, &cx).await)?;
        let name = &known.name;
        Ok(Said::only(match action {
            SyncAction::Idle => format!("{name}: nothing is being synced"),
            action => format!("{name}: {action} has begun"),
        }))
    }

    fn resume_sync(&self, known: &Known) -> Result<Said, Refusal> {
        let action = self.ask(known, async move |array, cx| array.resume_sync(&cx).await)?;
        Ok(Said::only(format!("{}: {action} goes on", known.name)))
    }

    fn grow(&self, known: &Known, size_kib: Option<u64>, assume_clean: bool) -> Result<Said, Refusal> {
        let to = size_kib.map(|kib| Sectors(kib.saturating_mul(2)));
        let sizes = self.served.all().into_iter().map(|(id, volume)| (id, volume.sectors()));
        let before: HashMap<VolumeId, Sectors> = sizes.collect();
        let size = self.ask(known, async move |array, cx| array.grow(&cx, to, assume_clean).await)?;
        let changed =
            |(id, volume): &(VolumeId, Volume)| before.get(id).is_some_and(|size| *size != volume.sectors());
        // The layer stays, and has another size: clients that come from now on are to be told that one.
        for (id, volume) in self.served.all().into_iter().filter(changed) {
            let offered = self.offers.change(&volume.name, id, &volume);
            offered.map_err(|error| Refusal::new(RefusalKind::Failed, format!("{}: {error}", known.name)))?;
        }
        let said = format!("{} has {} KiB now", known.name, size.0 / 2);
        Ok(Said::only(said))
    }

    fn wait(&self, known: &Known, millis: u32) -> Result<Said, Refusal> {
        let limit = Nanos::millis(millis.min(WAIT_MILLIS_MAX).into());
        let at_rest = self.run(known, async move |array, cx| rests_within(&array, &cx, limit).await)?;
        let said = if at_rest { "nothing is being synced" } else { "it is still being synced" };
        Ok(Said { at_rest: Some(at_rest), ..Said::only(format!("{}: {said}", known.name)) })
    }

    /// What is not given stays.
    fn set_speed(known: &Known, min_kib: Option<u64>, max_kib: Option<u64>) -> Result<Said, Refusal> {
        let (min, max) = known.array.speed();
        // Whether it does not make sense by itself, or with what is in force.
        let asked = check_speed(min_kib.unwrap_or(0), max_kib.unwrap_or(u64::MAX));
        asked.map_err(|why| Refusal::new(RefusalKind::Invalid, why))?;
        let (min_kib, max_kib) = (min_kib.unwrap_or(min), max_kib.unwrap_or(max));
        check_speed(min_kib, max_kib).map_err(|why| Refusal::new(RefusalKind::Conflict, why))?;
        known.array.set_speed(min_kib, max_kib);
        Ok(Said::only(format!("{} is synced at {min_kib} to {max_kib} KiB/s", known.name)))
    }
}

const TOO_MANY: &str = "too many disks have come since the server was started; start it anew with this one";
const LOGGED: &str =
    "--log-writes records a fixed set of disks; serve without it, or with this disk from the start";

/// Whether such limits of speed make sense.
pub(crate) fn check_speed(min_kib: u64, max_kib: u64) -> Result<(), String> {
    if max_kib == 0 || min_kib > max_kib {
        return Err(format!(
            "syncing at {min_kib} to {max_kib} KiB/s is not possible: expected a maximum of at least 1, and not below the \
             minimum"
        ));
    }
    Ok(())
}

/// What was done.
struct Said {
    said: String,
    devices: Vec<String>,
    at_rest: Option<bool>,
}

impl Said {
    fn only(said: String) -> Said {
        Said { said, devices: Vec::new(), at_rest: None }
    }

    fn about(said: String, device: String) -> Said {
        Said { said, devices: vec![device], at_rest: None }
    }
}

impl Arrays for ServedArrays {
    fn list(&self) -> Vec<ArrayStatus> {
        self.known().iter().map(Known::status).collect()
    }

    fn raid_volumes(&self) -> Vec<ArrayGauges> {
        let mut known = lock(&self.raid_volumes);
        // While a change has the assembly, those that there were: nobody waits for disks here.
        if let Ok(assembly) = self.assembly.try_lock() {
            *known = raid_volumes(&assembly);
        }
        let open = known.iter().filter_map(|(name, array)| Some((name, array.upgrade()?.status())));
        let gauges = open.map(|(name, now)| ArrayGauges {
            name: name.clone(),
            members: u32::try_from(now.members.len()).unwrap_or(u32::MAX),
            degraded: now.degraded,
            sync: sync_status(&now.sync),
        });
        gauges.collect()
    }

    fn act(&self, request: &ArrayRequest) -> Result<ArrayAnswer, Refusal> {
        let known = &self.find(&request.array)?;
        let done = match &request.verb {
            Verb::Add { device, force } => self.add(known, device, *force),
            Verb::Fail { device } => {
                let wanted = device.clone();
                let device = self.ask(known, async move |array, cx| array.fail(&wanted, &cx).await)?;
                Ok(Said::about(format!("{device} of {} is given up", known.name), device))
            }
            Verb::Remove { device } => self.remove(known, device),
            Verb::Replace { device, with } => self.replace(known, device, with.as_deref()),
            Verb::Check => self.sync(known, SyncAction::Check),
            Verb::Repair => self.sync(known, SyncAction::Repair),
            Verb::Idle => self.sync(known, SyncAction::Idle),
            Verb::Sync => self.resume_sync(known),
            Verb::Grow { size_kib, assume_clean } => self.grow(known, *size_kib, *assume_clean),
            Verb::Wait { millis } => self.wait(known, *millis),
            Verb::SyncSpeed { min_kib, max_kib } => ServedArrays::set_speed(known, *min_kib, *max_kib),
        };
        let Said { said, devices, at_rest } = done?;
        Ok(ArrayAnswer { said, devices, at_rest, array: known.status() })
    }
}

impl Known {
    fn status(&self) -> ArrayStatus {
        let now = self.array.status();
        let sync = &now.sync;
        let members = (0..).zip(&now.members).map(|(role, member)| device_status(Some(role), member, None));
        let replacements = now
            .replacements
            .iter()
            .map(|(role, member)| device_status(Some(*role), member, Some("replacement")));
        let others = now.spares.iter().chain(&now.faulty).map(|member| device_status(None, member, None));
        ArrayStatus {
            name: self.name.clone(),
            uuid: self.uuid.to_string(),
            level: self.level.clone(),
            layout: self.layout.clone(),
            chunk_size: now.chunk.map(Sectors::bytes),
            bytes: now.sectors.bytes(),
            raid_disks: u32::try_from(now.members.len()).unwrap_or(u32::MAX),
            degraded: now.degraded,
            read_only: self.read_only.clone(),
            active: now.active,
            events: now.events.max(self.events),
            resync_from: now.resync_from.map(|from| from.0.saturating_mul(SECTOR)),
            dirty_chunks: now.dirty_chunks,
            devices: members.chain(replacements).chain(others).collect(),
            sync: sync_status(sync),
        }
    }
}

/// What an array syncs, as the control API has it.
pub(crate) fn sync_status(sync: &md::SyncStatus) -> SyncStatus {
    SyncStatus {
        action: sync.action.to_string(),
        done_sectors: sync.done.0,
        total_sectors: sync.total.0,
        speed_kib: sync.speed_kib,
        mismatch_sectors: sync.mismatches.0,
    }
}

/// RAID volumes of LVM that are open. They are let go when they are removed, whoever has looked at them.
fn raid_volumes(assembly: &Assembly) -> Vec<(String, Weak<md::Array>)> {
    let of_group = |group: &blockwork_volume::lvm::Group| {
        let raids = group.raids().map(|(lv, array)| {
            (format!("{}/{}", group.name, group.text.lvs[lv.0].name), Arc::downgrade(array))
        });
        let mut raids: Vec<_> = raids.collect();
        raids.sort_by(|(one, _), (other, _)| one.cmp(other));
        raids
    };
    assembly.graph().groups.iter().flat_map(of_group).collect()
}

/// A device as the control API has it; `kind` tells of it where it is more than its state.
pub(crate) fn device_status(role: Option<u16>, member: &MemberStatus, kind: Option<&str>) -> DeviceStatus {
    let (state, recovered) = match member.state {
        MemberState::InSync => ("in_sync", None),
        MemberState::Recovering(end) => ("recovering", Some(end.bytes())),
        MemberState::Faulty => ("faulty", None),
        MemberState::Missing => ("missing", None),
        MemberState::Spare => ("spare", None),
    };
    DeviceStatus {
        name: member.name.clone(),
        role,
        state: kind.unwrap_or(state).to_owned(),
        recovered,
        write_mostly: member.write_mostly,
        bad_ranges: member.bad_ranges,
        corrected_sectors: member.corrected,
    }
}

/// How the arrays are that were assembled, to be looked at only: such an array knows its members, and not what else has a
/// superblock of it.
pub(crate) fn arrays_of(assembly: &Assembly) -> Vec<ArrayStatus> {
    let status = |known: &Known| {
        let mut status = known.status();
        status.devices.extend(others(assembly, known.array.node()));
        status
    };
    assembled(assembly).iter().map(status).collect()
}

/// The devices of an array that have no place in it.
fn others(assembly: &Assembly, array: NodeId) -> Vec<DeviceStatus> {
    let graph = assembly.graph();
    let is_it = |found: &&blockwork_volume::md::Array| {
        found.layer.as_ref().is_some_and(|layer| layer.node() == array)
    };
    let members = graph.arrays.iter().find(is_it).map_or(&[][..], |found| &found.members);
    let other = |member: &blockwork_volume::md::Member| {
        let state = match member.state {
            blockwork_volume::md::MemberState::Spare => "spare",
            blockwork_volume::md::MemberState::Replacement => "replacement",
            blockwork_volume::md::MemberState::Faulty | blockwork_volume::md::MemberState::OutOfDate => {
                "faulty"
            }
            _ => return None,
        };
        Some(DeviceStatus {
            name: Some(escape(graph.device(member.device).title())),
            role: None,
            state: state.to_owned(),
            recovered: None,
            write_mostly: false,
            bad_ranges: 0,
            corrected_sectors: 0,
        })
    };
    members.iter().filter_map(other).collect()
}

fn assembled(assembly: &Assembly) -> Vec<Known> {
    let graph = assembly.graph();
    let known = |array: &blockwork_volume::md::Array| {
        let truth = &*array.truth;
        let raid10 = match truth {
            Superblock::V0(truth) => truth.raid10_layout(),
            Superblock::V1(truth) => truth.raid10_layout(),
        };
        let layout = match truth.level() {
            Level::Raid10 => raid10.ok().map(|layout| layout.to_string()),
            level if level.has_parity() => truth.parity_layout().ok().map(|layout| layout.to_string()),
            _ => None,
        };
        Some(Known {
            name: array.name.clone(),
            uuid: truth.uuid(),
            level: truth.level().to_string(),
            layout,
            read_only: graph.device(array.device).read_only.clone(),
            events: truth.events(),
            array: array.layer.clone()?,
        })
    };
    graph.arrays.iter().filter_map(known).collect()
}

/// Whether nothing is synced any more, and nothing due, before so long.
async fn rests_within(array: &md::Array, cx: &TaskContext, limit: Nanos) -> bool {
    let mut rest = pin!(array.wait_sync(cx));
    let mut late = pin!(cx.pause(limit));
    poll_fn(|context| match rest.as_mut().poll(context) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending => late.as_mut().poll(context).map(|_| false),
    })
    .await
}

/// Numbers of all layers of the volumes that are served.
fn nodes_under(served: &Served) -> HashSet<NodeId> {
    topmost_first(served.all().into_iter().map(|(_, volume)| volume.root))
        .iter()
        .map(|layer| layer.node())
        .collect()
}

fn refusal(error: &VerbError) -> Refusal {
    let kind = match error {
        VerbError::NoDevice { .. } => RefusalKind::NotFound,
        VerbError::Io { .. } => RefusalKind::Failed,
        _ => RefusalKind::Conflict,
    };
    Refusal::new(kind, error)
}

fn random_uuid() -> Result<Uuid, Refusal> {
    let mut bytes = [0; 16];
    let drawn = SystemRandom::new().fill(&mut bytes);
    drawn.map_err(|_| Refusal::new(RefusalKind::Failed, "the system gives no random numbers"))?;
    Ok(Uuid(bytes))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked had only read what it guards, or has ended the server.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
