//! Whoever looks after an array while it is served: as people do, at any time, and now and then at the wrong one. It also knows when
//! disks begin to misbehave, and die.
//!
//! It takes away only what the array can do without even if all victims die at once, so no client may be told of an error. And
//! it begins only when mirrors agree: who loses the one copy of what differs reads the other one afterwards, which is no fault.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{FileId, Layer, Nanos, Sectors, TaskContext, WorkerHandle};
use blockwork_format::md::Uuid;
use blockwork_layer::md::{Added, Array, ArrayStatus, MemberState, NewMember, SyncAction, VerbError};
use blockwork_sim::{Closing, Faults, Random, Referee, SimEnv, World};

use crate::arrays::troubles::DEAD;

use super::disks::ArrayPlan;

/// What it does in one life of the array.
#[derive(Clone, Debug, Default)]
pub struct Visit {
    pub seed: u64,
    /// How often it does something.
    pub verbs: u64,
    /// Longest time between two of these.
    pub pause: Nanos,
    /// `sync_speed_min` and `sync_speed_max`, KiB/s: at little speed, copying takes longer than the clients' work.
    pub speed: (u64, u64),
    /// It lets the array do all that is due before it is stopped.
    pub stays: bool,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Deeds {
    /// How often.
    pub counts: BTreeMap<&'static str, u64>,
    /// When, and to whom.
    pub diary: Vec<String>,
}

pub type Tally = Rc<RefCell<Deeds>>;

pub struct Caretaker {
    pub visit: Visit,
    pub plan: ArrayPlan,
    pub world: World,
    pub array: Arc<Array>,
    pub disks: Vec<Arc<dyn Layer>>,
    /// Copies may differ.
    pub differs: bool,
    pub victims: Vec<FileId>,
    pub faults: Faults,
    /// Victims die.
    pub deadly: bool,
    /// The clients.
    pub closing: Rc<Closing>,
    pub workers: Vec<WorkerHandle<SimEnv>>,
    pub referee: Rc<RefCell<Referee>>,
    pub tally: Tally,
}

/// The device of that name.
fn device(name: &str) -> FileId {
    FileId(name.trim_start_matches('d').parse().expect("a device of the lab"))
}

fn name_of(device: FileId) -> String {
    format!("d{}", device.0)
}

/// All devices that belong to the array, by name.
fn known(status: &ArrayStatus) -> Vec<String> {
    let replacements = status.replacements.iter().map(|(_, member)| member);
    let all = status.members.iter().chain(replacements).chain(&status.spares).chain(&status.faulty);
    all.filter_map(|member| member.name.clone()).collect()
}

impl Caretaker {
    /// From the opening of the array to the end of its workers.
    pub async fn work(self, cx: TaskContext) {
        let random = &mut Random::part(self.visit.seed, 1);
        let (min, max) = self.visit.speed;
        self.array.set_speed(min, max);
        if self.differs {
            self.array.wait_sync(&cx).await;
        }
        let calm = self.array.status().resync_from.is_some();
        if !calm {
            self.victims.iter().for_each(|victim| self.world.set_faults(*victim, self.faults.clone()));
        }
        let mut dead = Vec::new();
        for _ in 0..self.visit.verbs {
            let pause = Nanos(random.below(self.visit.pause.0.max(1)));
            if !cx.pause(pause).await || self.world.is_off() {
                break;
            }
            self.act(calm, &mut dead, random, &cx).await;
        }
        while self.closing.left() > 0 && !self.world.is_off() && cx.pause(Nanos::millis(5)).await {}
        if self.visit.stays && !self.world.is_off() {
            for action in [SyncAction::Recover, SyncAction::Resync] {
                // Refused where nothing is due.
                let _ = self.array.start_sync(action, &cx).await;
                self.array.wait_sync(&cx).await;
            }
        }
        self.look_what_checks_found();
        self.workers.iter().for_each(WorkerHandle::stop);
    }

    /// Where no device misbehaves, and nothing was to be resynced, all parities fit at any time. (Mirrors may differ in what was discarded.)
    fn look_what_checks_found(&self) {
        let found = self.array.status().sync.mismatches;
        let all_is_well = self.plan.parity().is_some() && self.victims.is_empty() && !self.differs;
        if found > Sectors::ZERO && all_is_well && !self.world.is_off() {
            let violation = format!("a check found {found} sectors of parities that do not fit");
            self.referee.borrow_mut().violations.push(violation);
        }
    }

    async fn act(&self, calm: bool, dead: &mut Vec<FileId>, random: &mut Random, cx: &TaskContext) {
        let status = self.array.status();
        match random.below(if calm { 8 } else { 14 }) {
            0..2 => self.add(&status, dead, random, cx).await,
            2 => self.sync(SyncAction::Check, cx).await,
            3 => self.sync(SyncAction::Idle, cx).await,
            4 => self.sync(*random.choose(&[SyncAction::Resync, SyncAction::Recover]), cx).await,
            5 => self.remove(&status, random, cx).await,
            6 => {
                let (min, max) = *random.choose(&SPEEDS);
                self.array.set_speed(min, max);
            }
            7 => self.sync(SyncAction::Repair, cx).await,
            8..10 => self.fail(&status, random, cx).await,
            10..12 => self.replace(&status, random, cx).await,
            12 => self.add(&status, dead, random, cx).await,
            _ if self.deadly => {
                self.victims.iter().for_each(|victim| self.world.set_faults(*victim, DEAD));
                dead.clone_from(&self.victims);
                self.count("death");
                self.tally.borrow_mut().diary.push(format!("{} {dead:?} die", self.world.now().0));
            }
            _ => self.fail(&status, random, cx).await,
        }
    }

    fn count(&self, what: &'static str) {
        *self.tally.borrow_mut().counts.entry(what).or_default() += 1;
    }

    /// A verb has ended. Only a device that misbehaves excuses that something could not be read or written.
    fn tell<T: Debug>(
        &self,
        (done, refused): (&'static str, &'static str),
        to: impl Debug,
        result: Result<T, VerbError>,
    ) -> Option<T> {
        self.count(if result.is_ok() { done } else { refused });
        self.tally.borrow_mut().diary.push(format!("{} {done} {to:?}: {result:?}", self.world.now().0));
        if let Err(error @ VerbError::Io { .. }) = &result
            && self.victims.is_empty()
            && !self.world.is_off()
        {
            self.referee
                .borrow_mut()
                .violations
                .push(format!("{refused}, and no device misbehaves: {error}"));
        }
        result.ok()
    }

    /// Whether all data stays even if this member goes, and all victims with it.
    fn can_go(&self, status: &ArrayStatus, role: u16) -> bool {
        let is_victim = |name: &String| self.victims.contains(&device(name));
        let stays = |other: u16| {
            let member = &status.members[usize::from(other)];
            // Who replaces it is all that there is, once it has its data.
            let by = status.replacements.iter().filter(|(replaced, _)| *replaced == other);
            let will_be_victim = by.filter_map(|(_, by)| by.name.as_ref()).any(is_victim);
            let stays_well = !will_be_victim && !member.name.as_ref().is_none_or(is_victim);
            other != role && member.state == MemberState::InSync && member.bad_ranges == 0 && stays_well
        };
        self.plan.geometry().has_all_data(&stays)
    }

    /// A device that does not belong to the array, or not any more.
    async fn add(&self, status: &ArrayStatus, dead: &[FileId], random: &mut Random, cx: &TaskContext) {
        let known = known(status);
        let free = |device: &FileId| !known.contains(&name_of(*device)) && !dead.contains(device);
        let free: Vec<FileId> = self.plan.numbered().map(|(_, device)| device).filter(free).collect();
        if free.is_empty() {
            return;
        }
        let device = *random.choose(&free);
        let own = match self.plan.read_superblock(&self.world, device) {
            // Now and then nobody looks what is on it.
            Ok(own) => own.filter(|_| random.chance(3, 4)),
            Err(violation) => return self.referee.borrow_mut().violations.push(violation),
        };
        let new = NewMember {
            name: name_of(device),
            layer: self.disks[device.0 as usize].clone(),
            superblock: own.map(Box::new),
            device_uuid: Uuid([0x40 + device.0 as u8; 16]),
        };
        let result = self.array.add(new, cx).await;
        match self.tell(("add", "add refused"), device, result) {
            Some(Added::ReAdded { .. }) => self.count("re-added"),
            Some(Added::Recovering { .. }) => self.count("filled"),
            Some(Added::Spare) => self.count("added as a spare"),
            None => {}
        }
    }

    /// A member that can go, or whoever else belongs to the array.
    async fn fail(&self, status: &ArrayStatus, random: &mut Random, cx: &TaskContext) {
        let name = random.choose(&known(status)).clone();
        // Who replaces a member may have taken its place by the time that it is told.
        let members = (0..).zip(&status.members);
        let replacements = status.replacements.iter().map(|(role, member)| (*role, member));
        let mut holders = members.chain(replacements);
        let role = holders.find(|(_, member)| member.name.as_ref() == Some(&name)).map(|(role, _)| role);
        if role.is_some_and(|role| !self.can_go(status, role)) {
            return;
        }
        let result = self.array.fail(&name, cx).await;
        self.tell(("fail", "fail refused"), name, result);
    }

    async fn remove(&self, status: &ArrayStatus, random: &mut Random, cx: &TaskContext) {
        let known = known(status);
        let name = if random.coin() { "failed" } else { random.choose(&known) };
        let result = self.array.remove(name, cx).await;
        self.tell(("remove", "remove refused"), name, result);
    }

    /// A victim does not get the place of a sound member that is needed.
    async fn replace(&self, status: &ArrayStatus, random: &mut Random, cx: &TaskContext) {
        let role = random.below(self.plan.members.into()) as u16;
        let Some(name) = status.members[usize::from(role)].name.clone() else { return };
        let spares: Vec<_> = status.spares.iter().filter_map(|spare| spare.name.clone()).collect();
        if spares.is_empty() {
            return;
        }
        let with = random.choose(&spares).clone();
        if self.victims.contains(&device(&with)) && !self.can_go(status, role) {
            return;
        }
        let result = self.array.replace(&name, Some(&with), cx).await;
        self.tell(("replace", "replace refused"), (name, with), result);
    }

    async fn sync(&self, action: SyncAction, cx: &TaskContext) {
        let result = self.array.start_sync(action, cx).await;
        self.tell(("sync", "sync refused"), action, result);
    }
}

/// From nearly nothing to as fast as it goes.
pub const SPEEDS: [(u64, u64); 4] = [(64, 128), (128, 1000), (1000, 200_000), (200_000, 200_000)];
