//! A simulated world: one virtual clock, one list of things to come, the devices, and the seed that all of it follows.
//!
//! Invariants:
//! 1. Events happen in the order (time, number); nothing in here iterates over anything unordered. So a seed and a
//!    sequence of calls give one history, on any machine: [`World::log_hash`] is its fingerprint.
//! 2. Each part (each device, each worker's environment) draws from a random stream of its own.
//! 3. Time moves only in [`World::step`] and in an environment's `wait`.
//! 4. After a power cut no device changes any more; every request fails with EIO at once, so that whoever is running
//!    on it comes to rest. [`World::power_cut`] gives the world after that, on which a new stack can be opened.

use std::cell::{Ref, RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blockwork_engine::{
    Completion, Errno, FileId, FileOp, FileOpKind, LeafSource, Nanos, Notify, Sectors, Token,
};

use crate::content::{Content, SectorMap};
use crate::device::{Device, DeviceCounters};
use crate::env::SimEnv;
use crate::faults::{Chaos, Fault, Faults, Lies};
use crate::model::DeviceModel;
use crate::net::{Host, Net};
use crate::random::{Random, split_mix};
use crate::source::SimSource;

/// A simulated world. Cloning gives another handle on the same one. Belongs to one thread.
#[derive(Clone)]
pub struct World {
    inner: Rc<RefCell<Inner>>,
}

pub(crate) struct Inner {
    seed: u64,
    now: Nanos,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    devices: Vec<Device>,
    pub(crate) workers: Vec<WorkerSide>,
    /// Starts and completions of requests so far.
    events: u64,
    /// Requests that nobody has served, as the power was off.
    refused: u64,
    /// How many events and refused requests are too many.
    events_max: u64,
    cut_at: Option<u64>,
    off: bool,
    generation: u64,
    lost_data: bool,
    log: u64,
    journal: Option<Vec<String>>,
    chaos: Chaos,
    pub(crate) net: Net,
}

/// What the world keeps for one worker's environment.
pub(crate) struct WorkerSide {
    pub(crate) ready: VecDeque<Completion>,
    pub(crate) notified: Arc<Flag>,
    pub(crate) random: Random,
    pub(crate) chaos: Random,
}

#[derive(Default)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}
impl Notify for Flag {
    fn notify(&self) {
        self.0.store(true, Ordering::Release);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at: u64,
    number: u64,
    worker: usize,
    token: u64,
    what: Happening,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A request of that device ends.
    Request(usize),
    /// Somebody's time has come.
    Timer,
    /// Something of that number arrives over the network.
    Arrival(u64),
}

const DEVICE_STREAMS: u64 = 1 << 32;
const WORKER_STREAMS: u64 = 2 << 32;
const CHAOS_STREAMS: u64 = 3 << 32;
const NET_STREAM: u64 = 4 << 32;

impl World {
    /// An empty world.
    pub fn new(seed: u64) -> World {
        World::with_devices(seed, 0, Nanos(0), Vec::new())
    }

    fn with_devices(seed: u64, generation: u64, now: Nanos, devices: Vec<Device>) -> World {
        let inner = Inner {
            seed,
            now,
            queue: BinaryHeap::new(),
            scheduled: 0,
            devices,
            workers: Vec::new(),
            events: 0,
            refused: 0,
            events_max: u64::MAX,
            cut_at: None,
            off: false,
            generation,
            lost_data: false,
            log: seed,
            journal: None,
            chaos: Chaos::default(),
            net: Net::new(Random::part(seed, NET_STREAM)),
        };
        World { inner: Rc::new(RefCell::new(inner)) }
    }

    pub(crate) fn inner(&self) -> Ref<'_, Inner> {
        self.inner.borrow()
    }
    pub(crate) fn inner_mut(&self) -> RefMut<'_, Inner> {
        self.inner.borrow_mut()
    }

    /// Adds a device, all zeros. Its number is the `FileId` for environments of this world.
    pub fn add_device(&self, model: DeviceModel) -> FileId {
        let mut inner = self.inner_mut();
        let number = inner.devices.len();
        let random = inner.stream(DEVICE_STREAMS + number as u64);
        inner.devices.push(Device::new(model, Content::new(SectorMap::new()), random));
        FileId(u32::try_from(number).expect("a world has few devices"))
    }

    /// A leaf over a device, with the limits of its model.
    pub fn source(&self, device: FileId) -> Arc<dyn LeafSource> {
        Arc::new(self.lying_source(device, Lies::default()))
    }

    /// As `source`, but the leaf deceives its users: for proving that the tests would notice.
    pub fn lying_source(&self, device: FileId, lies: Lies) -> SimSource {
        let inner = self.inner();
        let there = &inner.devices[device.0 as usize];
        let model = &there.model;
        let name = format!("sim:{}:{}", model.name, device.0);
        SimSource::new(name, device, (model.sectors, model.limits()), lies, there.all())
    }

    /// Adds a machine that can be reached over TCP.
    pub fn add_host(&self, address: SocketAddr, host: Rc<RefCell<dyn Host>>) {
        self.inner_mut().net.add_host(address, host);
    }

    /// An environment for one more worker.
    pub fn env(&self) -> SimEnv {
        let mut inner = self.inner_mut();
        let number = inner.workers.len() as u64;
        let side = WorkerSide {
            ready: VecDeque::new(),
            notified: Arc::default(),
            random: inner.stream(WORKER_STREAMS + number),
            chaos: inner.stream(CHAOS_STREAMS + number),
        };
        inner.workers.push(side);
        SimEnv::new(self.clone(), inner.workers.len() - 1)
    }

    /// Number of devices.
    pub fn devices(&self) -> u32 {
        u32::try_from(self.inner().devices.len()).expect("a world has few devices")
    }

    /// The virtual time.
    pub fn now(&self) -> Nanos {
        self.inner().now
    }

    /// Starts and completions of requests so far, over all devices: the places at which the power can be cut.
    pub fn events(&self) -> u64 {
        self.inner().events
    }

    /// A fingerprint of all that has happened.
    pub fn log_hash(&self) -> u64 {
        self.inner().log
    }

    /// Keeps a readable journal from now on.
    pub fn keep_journal(&self) {
        self.inner_mut().journal.get_or_insert_default();
    }

    /// The journal, if one is kept.
    pub fn journal(&self) -> Vec<String> {
        self.inner().journal.clone().unwrap_or_default()
    }

    /// Sets how a device misbehaves.
    pub fn set_faults(&self, device: FileId, faults: Faults) {
        self.inner_mut().devices[device.0 as usize].faults = faults;
    }

    /// For layers that take each failed flush of a device for a loss, and rightly drop what may be lost: reads may find older content then,
    /// whether or not the device has forgotten anything.
    pub fn failed_flushes_lose_data(&self, device: FileId) {
        self.inner_mut().devices[device.0 as usize].failed_flushes_lose_data = true;
    }

    /// Lets `fault` befall the `n`-th request (from 0) that the device gets in its life.
    pub fn fail_nth(&self, device: FileId, n: u64, fault: Fault) {
        self.inner_mut().devices[device.0 as usize].plan(n, fault);
    }

    /// Ends all faults of all devices, and repairs unreadable sectors (with the content that they had).
    pub fn heal(&self) {
        let mut inner = self.inner_mut();
        inner.chaos = Chaos::default();
        inner.devices.iter_mut().for_each(Device::heal);
    }

    /// Sets how oddly environments behave.
    pub fn set_chaos(&self, chaos: Chaos) {
        self.inner_mut().chaos = chaos;
    }

    /// What a device was asked to do.
    pub fn counters(&self, device: FileId) -> DeviceCounters {
        self.inner().devices[device.0 as usize].counters
    }

    /// Faults that have struck so far, on all devices and machines.
    pub fn faults(&self) -> u64 {
        let inner = self.inner();
        let devices: u64 = inner.devices.iter().map(|device| device.counters.faults).sum();
        devices + inner.net.faults()
    }

    /// Whether a failed flush has made some device forget data.
    pub fn has_lost_data(&self) -> bool {
        self.inner().lost_data
    }

    /// The bytes of a sector as a read would find them now.
    pub fn peek(&self, device: FileId, sector: u64) -> [u8; 512] {
        self.inner().devices[device.0 as usize].peek(sector)
    }

    /// Puts `bytes`, whole sectors, on a device before anyone uses it; durable, and without a request.
    pub fn preload(&self, device: FileId, sector: u64, bytes: &[u8]) {
        self.inner_mut().devices[device.0 as usize].preload(sector, bytes);
    }

    /// Requests in flight on all devices.
    pub fn in_flight(&self) -> usize {
        self.inner().devices.iter().map(Device::in_flight).sum()
    }

    /// Whether nothing is under way and nothing waits to be heard: whoever still waits then, waits for ever.
    pub fn is_at_rest(&self) -> bool {
        let inner = self.inner();
        inner.queue.is_empty() && inner.workers.iter().all(|worker| worker.ready.is_empty())
    }

    /// Cuts the power when the `n`-th event happens (see [`World::events`]): after it, before anyone hears of it.
    pub fn cut_at_event(&self, n: u64) {
        self.inner_mut().cut_at = Some(n);
    }

    /// From now on, and after each power cut again, more than `max` events, or requests without power, are a panic: something begins again
    /// and again.
    pub fn ends_within(&self, max: u64) {
        self.inner_mut().events_max = max;
    }

    /// Whether the power has been cut.
    pub fn is_off(&self) -> bool {
        self.inner().off
    }

    /// Cuts the power now, unless that has happened, and gives the world after it: the same devices, with what was
    /// durable and some of what was not. Faults (also unreadable sectors) stay; time goes on.
    pub fn power_cut(&self) -> World {
        let mut inner = self.inner_mut();
        inner.switch_off();
        let generation = inner.generation + 1;
        let mut state = inner.seed ^ generation;
        let seed = split_mix(&mut state);
        let devices = inner
            .devices
            .iter()
            .zip(DEVICE_STREAMS..)
            .map(|(device, number)| device.after_cut(Random::part(seed, number)))
            .collect();
        let after = World::with_devices(seed, generation, inner.now + Nanos::secs(1), devices);
        after.ends_within(inner.events_max);
        after
    }

    /// Goes on to the next event, if there is one, and to all others of that time.
    pub fn step(&self) -> bool {
        self.step_until(None)
    }

    /// As `step`, but no further than to `deadline`, if there is one. Whether there was anything to go on to.
    pub fn step_until(&self, deadline: Option<Nanos>) -> bool {
        let mut inner = self.inner_mut();
        let Some(at) = inner.next_at().into_iter().chain(deadline).min() else { return false };
        inner.advance_to(at);
        true
    }
}

impl Inner {
    fn stream(&self, number: u64) -> Random {
        Random::part(self.seed, number)
    }

    pub(crate) fn now(&self) -> Nanos {
        self.now
    }
    pub(crate) fn chaos(&self) -> Chaos {
        self.chaos
    }

    /// When the next event is.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.queue.peek().map(|next| Nanos(next.0.at))
    }

    /// Lets everything up to and including `at` happen, and sets the clock to it.
    pub(crate) fn advance_to(&mut self, at: Nanos) {
        while self.next_at().is_some_and(|next| next <= at) {
            self.happen();
        }
        self.now = Nanos(self.now.0.max(at.0));
    }

    /// Lets the next event happen.
    fn happen(&mut self) {
        let Some(Reverse(next)) = self.queue.pop() else { return };
        self.now = Nanos(self.now.0.max(next.at));
        let result = match next.what {
            Happening::Timer => 0,
            Happening::Arrival(number) => return self.arrive(number),
            Happening::Request(_) if self.off => -Errno::EIO.0,
            Happening::Request(number) => {
                let finished = self.devices[number].finish(next.number);
                self.lost_data |= finished.lost_data;
                self.note("done", number, next.number, finished.result);
                finished.result
            }
        };
        self.workers[next.worker].ready.push_back(Completion { token: Token(next.token), result, flags: 0 });
        if next.what != Happening::Timer {
            self.count_event();
        }
    }

    /// Lets something arrive over the network.
    fn arrive(&mut self, number: u64) {
        let now = self.now;
        for value in [now.0, number] {
            self.mix(value);
        }
        let outcome = self.net.arrive(now, number);
        for (after, number) in outcome.follows {
            self.schedule_arrival(now + after, number);
        }
        for (worker, completion) in outcome.completions {
            self.workers[worker].ready.push_back(completion);
        }
    }

    /// Lets what the network keeps under `number` arrive at `at`.
    pub(crate) fn schedule_arrival(&mut self, at: Nanos, number: u64) {
        let (worker, token, what) = (0, 0, Happening::Arrival(number));
        self.queue.push(Reverse(Scheduled { at: at.0, number: self.scheduled, worker, token, what }));
        self.scheduled += 1;
    }

    /// Starts a request for a worker.
    pub(crate) fn start(&mut self, worker: usize, token: Token, op: &FileOp<'_>) {
        let number = self.scheduled;
        self.scheduled += 1;
        if self.off {
            self.refused += 1;
            self.expect_an_end();
            let completion = Completion { token, result: -Errno::EIO.0, flags: 0 };
            self.workers[worker].ready.push_back(completion);
            return;
        }
        let device = op.file.0 as usize;
        let now = self.now;
        let at = self
            .devices
            .get_mut(device)
            .expect("a worker uses devices of its world")
            .start(number, now, op)
            .0;
        self.note_start(device, number, op);
        let what = Happening::Request(device);
        self.queue.push(Reverse(Scheduled { at, number, worker, token: token.0, what }));
        self.count_event();
    }

    /// Lets a completion with `token` come at `at`.
    pub(crate) fn timer(&mut self, worker: usize, token: Token, at: Nanos) {
        let number = self.scheduled;
        self.scheduled += 1;
        let what = Happening::Timer;
        self.queue.push(Reverse(Scheduled { at: at.0, number, worker, token: token.0, what }));
    }

    fn count_event(&mut self) {
        self.events += 1;
        self.expect_an_end();
        if self.cut_at == Some(self.events) {
            self.switch_off();
        }
    }

    fn expect_an_end(&self) {
        let so_far = self.events + self.refused;
        assert!(so_far <= self.events_max, "{so_far} events, and no end: something begins again and again");
    }

    /// The power goes: requests in flight stay where they are (for `after_cut`), and whoever waits for them gets EIO now.
    fn switch_off(&mut self) {
        if self.off {
            return;
        }
        self.off = true;
        let mut later = std::mem::take(&mut self.queue).into_sorted_vec();
        later.reverse();
        for Reverse(event) in later {
            if matches!(event.what, Happening::Request(_)) {
                let completion = Completion { token: Token(event.token), result: -Errno::EIO.0, flags: 0 };
                self.workers[event.worker].ready.push_back(completion);
            } else {
                self.queue.push(Reverse(event));
            }
        }
        let events = self.events;
        self.write_journal(|| format!("power cut after event {events}"));
    }

    fn note_start(&mut self, device: usize, number: u64, op: &FileOp<'_>) {
        let kind = match op.kind {
            FileOpKind::Read => 0,
            FileOpKind::Write { dsync: false } => 1,
            FileOpKind::Write { dsync: true } => 2,
            FileOpKind::Sync => 3,
            FileOpKind::PunchHole => 4,
            FileOpKind::ZeroRange => 5,
            FileOpKind::BlkDiscard => 6,
            FileOpKind::BlkZeroOut => 7,
        };
        for value in [self.now.0, device as u64, number, kind, op.offset, op.len] {
            self.mix(value);
        }
        let line = (op.kind, op.offset / 512, Sectors::from_bytes_floor(op.len));
        let now = self.now.0;
        self.write_journal(|| {
            format!("{now} device {device} #{number} start {:?} {}+{}", line.0, line.1, line.2)
        });
    }

    fn note(&mut self, what: &str, device: usize, number: u64, result: i32) {
        for value in [self.now.0, device as u64, number, u64::from(result.cast_unsigned())] {
            self.mix(value);
        }
        let now = self.now.0;
        self.write_journal(|| format!("{now} device {device} #{number} {what} {result}"));
    }

    fn mix(&mut self, value: u64) {
        let mut state = self.log ^ value;
        self.log = split_mix(&mut state);
    }

    fn write_journal(&mut self, line: impl FnOnce() -> String) {
        if let Some(journal) = &mut self.journal {
            journal.push(line());
        }
    }
}
