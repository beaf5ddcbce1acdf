//! One simulated device: when its requests are done, and what they have done by then.
//!
//! A request is started (its data is taken, its time of completion and its fault are drawn) and finished (its effect
//! on the content happens, reads get their data). Between the two it is in flight.
//!
//! Invariants:
//! 1. A change takes effect on `current` when it finishes, whole; before that, reads that overlap it see old or new.
//! 2. A read samples either when it starts or when it finishes, as the seed chooses.
//! 3. The memory of a write is not altered between start and finish; that of a read is filled with a pattern at the
//!    start, so that whoever takes a short read for a whole one is found out.
//! 4. A request lies within the device and its limits: assertions, as the queue above has to see to it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;
use std::rc::Rc;

use blockwork_engine::{Errno, FileOp, FileOpKind, Nanos, SECTOR};
use blockwork_memory::{Segments, bytes_in};

use crate::content::{Change, Content, SectorData};
use crate::faults::{Fault, Faults};
use crate::model::{Bucket, DeviceModel};
use crate::random::Random;

/// What is in the memory of a read until it has finished.
const POISON: u8 = 0xdb;

/// What a device has been asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Writes with FUA among them.
    pub fua_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Write-zeroes.
    pub zeroes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Most requests in flight at any time.
    pub in_flight_max: u64,
    /// Faults that struck.
    pub faults: u64,
}

impl DeviceCounters {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards + self.zeroes
    }
}

/// What happened in a step of a device, for the log and for whoever counts.
pub(crate) struct Finished {
    pub(crate) result: i32,
    pub(crate) lost_data: bool,
}

enum Work {
    Read { first: u64, nr: u64, early: Option<Vec<Option<SectorData>>>, into: Segments },
    Change { change: Change, durable: bool, from: Segments },
    Flush { mark: u64 },
}

struct InFlight {
    work: Work,
    fault: Option<Fault>,
}

/// What serves a device's requests.
struct Channels {
    count: u32,
    /// Until when the busy ones are busy.
    busy: BinaryHeap<Reverse<u64>>,
}

impl Channels {
    fn new(count: u32) -> Channels {
        Channels { count, busy: BinaryHeap::new() }
    }

    /// When the next one is free, now or later; whoever asks occupies it.
    fn free_at(&mut self, now: Nanos) -> Nanos {
        while self.busy.peek().is_some_and(|busy| busy.0 <= now.0) {
            self.busy.pop();
        }
        if self.busy.len() < self.count as usize {
            return now;
        }
        self.busy.pop().map_or(now, |free| Nanos(free.0))
    }

    fn occupy(&mut self, until: Nanos) {
        self.busy.push(Reverse(until.0));
    }
}

pub(crate) struct Device {
    pub(crate) model: DeviceModel,
    pub(crate) faults: Faults,
    pub(crate) counters: DeviceCounters,
    content: Content,
    random: Random,
    /// Faults by number of the request, from 0.
    planned: BTreeMap<u64, Fault>,
    started: u64,
    in_flight: BTreeMap<u64, InFlight>,
    channels: Channels,
    discard_channels: Channels,
    buckets: Vec<Bucket>,
    /// Until when the elements of earlier requests are dealt with.
    elements_until: Nanos,
    last_end: u64,
    latent: BTreeSet<u64>,
    for_ever: BTreeSet<u64>,
    /// Each flush that fails counts as one with which data was lost, and each DSYNC write that fails once and not again, which looks the same.
    pub(crate) failed_flushes_lose_data: bool,
}

impl Device {
    pub(crate) fn new(model: DeviceModel, content: Content, random: Random) -> Device {
        let serves = model.parallelism > 0 && model.discards_at_once > 0;
        assert!(serves, "{}: a device serves at least one request at a time", model.name);
        Device {
            faults: Faults::default(),
            counters: DeviceCounters::default(),
            content,
            random,
            planned: BTreeMap::new(),
            started: 0,
            in_flight: BTreeMap::new(),
            channels: Channels::new(model.parallelism),
            discard_channels: Channels::new(model.discards_at_once),
            buckets: model.caps.iter().copied().map(Bucket::new).collect(),
            elements_until: Nanos(0),
            last_end: 0,
            latent: BTreeSet::new(),
            for_ever: BTreeSet::new(),
            failed_flushes_lose_data: false,
            model,
        }
    }

    /// The same device after a power cut.
    pub(crate) fn after_cut(&self, mut random: Random) -> Device {
        let in_flight: Vec<Change> = self
            .in_flight
            .values()
            .filter_map(|flying| match &flying.work {
                Work::Change { change, .. } if flying.fault != Some(Fault::Misdirected) => {
                    Some(change.clone())
                }
                _ => None,
            })
            .collect();
        let durable = self.content.after_cut(&in_flight, self.model.atomic_sectors(), &mut random);
        let mut device = Device::new(self.model.clone(), Content::new(durable), random);
        device.faults = self.faults.clone();
        device.latent = self.latent.clone();
        device.for_ever = self.for_ever.clone();
        device
    }

    pub(crate) fn plan(&mut self, n: u64, fault: Fault) {
        self.planned.insert(n, fault);
    }

    pub(crate) fn heal(&mut self) {
        self.faults = Faults::default();
        self.planned.clear();
        self.latent.clear();
        self.for_ever.clear();
    }

    pub(crate) fn peek(&self, sector: u64) -> [u8; 512] {
        self.content.get(sector).map_or([0; 512], |data| **data)
    }

    pub(crate) fn all(&self) -> BTreeMap<u64, [u8; 512]> {
        self.content.all().map(|(sector, data)| (*sector, **data)).collect()
    }

    pub(crate) fn preload(&mut self, first: u64, bytes: &[u8]) {
        let (sectors, rest) = bytes.as_chunks::<512>();
        assert!(rest.is_empty(), "a device is preloaded with whole sectors, not with {} bytes", bytes.len());
        assert!(
            first + sectors.len() as u64 <= self.model.sectors.0,
            "{}: preloaded beyond its end",
            self.model.name
        );
        let sectors = sectors.iter().map(|sector| Rc::new(*sector)).collect();
        self.content.complete_durably(&Change::Data { first, sectors });
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes a request; returns when it will be done.
    pub(crate) fn start(&mut self, id: u64, now: Nanos, op: &FileOp<'_>) -> Nanos {
        self.check(op);
        let fault = self.draw_fault(op);
        let done = self.done_at(now, op, fault);
        let (first, nr) = (op.offset / SECTOR, op.len / SECTOR);
        let work = match op.kind {
            FileOpKind::Read => self.start_read(first, nr, op),
            FileOpKind::Write { dsync } => Work::Change {
                change: Change::Data { first, sectors: self.take_data(op) },
                durable: dsync || !self.model.volatile(),
                from: op.data.iter().cloned().collect(),
            },
            FileOpKind::Sync => Work::Flush { mark: self.content.mark() },
            FileOpKind::PunchHole
            | FileOpKind::ZeroRange
            | FileOpKind::BlkDiscard
            | FileOpKind::BlkZeroOut => {
                let change = Change::Zero { range: first..first + nr };
                Work::Change { change, durable: !self.model.volatile(), from: Segments::new() }
            }
        };
        self.count(op);
        self.counters.faults += u64::from(fault.is_some());
        self.in_flight.insert(id, InFlight { work, fault });
        self.counters.in_flight_max = self.counters.in_flight_max.max(self.in_flight.len() as u64);
        done
    }

    /// A request's time has come.
    pub(crate) fn finish(&mut self, id: u64) -> Finished {
        let InFlight { work, fault } = self.in_flight.remove(&id).expect("only what was started is finished");
        let (result, lost_data) = match work {
            Work::Read { first, nr, early, into } => {
                (self.finish_read(first, nr, early, &into, fault), false)
            }
            Work::Change { change, durable, from } => match fault {
                Some(Fault::LostFlush) if durable && self.model.volatile() && self.model.keeps_content => {
                    self.finish_without_flush(change)
                }
                fault => {
                    // What fails for ever is known not to be a flush.
                    let once = matches!(fault, Some(Fault::Error(_) | Fault::Latent));
                    let dsync = durable && self.model.volatile();
                    let result = self.finish_change(change, durable, &from, fault);
                    let failed = once && result < 0 && result != -Errno::EAGAIN.0;
                    (result, self.failed_flushes_lose_data && dsync && failed)
                }
            },
            Work::Flush { mark } => {
                let (result, lost_data) = self.finish_flush(mark, fault);
                (result, lost_data || (self.failed_flushes_lose_data && result < 0))
            }
        };
        Finished { result, lost_data }
    }

    fn check(&self, op: &FileOp<'_>) {
        let name = &self.model.name;
        let block = u64::from(self.model.limits.logical_block_size);
        assert_eq!(
            op.offset % block,
            0,
            "{name}: {:?} is not aligned to its blocks: offset {}",
            op.kind,
            op.offset
        );
        assert_eq!(op.len % block, 0, "{name}: {:?} is not whole blocks: {} bytes", op.kind, op.len);
        let end = op.offset.checked_add(op.len).expect("an offset on a device fits 64 bits");
        assert!(
            end <= self.model.sectors.bytes(),
            "{name}: {:?} of {} bytes at {} lies outside",
            op.kind,
            op.len,
            op.offset
        );
        assert_eq!(
            op.len == 0,
            op.kind == FileOpKind::Sync,
            "{name}: only a flush has no range: {:?}",
            op.kind
        );
        let carries = matches!(op.kind, FileOpKind::Read | FileOpKind::Write { .. });
        assert_eq!(
            bytes_in(op.data) as u64,
            if carries { op.len } else { 0 },
            "{name}: {:?}: its memory",
            op.kind
        );
    }

    fn count(&mut self, op: &FileOp<'_>) {
        let counters = &mut self.counters;
        match op.kind {
            FileOpKind::Read => {
                counters.reads += 1;
                counters.read_bytes += op.len;
            }
            FileOpKind::Write { dsync } => {
                counters.writes += 1;
                counters.fua_writes += u64::from(dsync);
                counters.written_bytes += op.len;
            }
            FileOpKind::Sync => counters.flushes += 1,
            FileOpKind::PunchHole | FileOpKind::BlkDiscard => counters.discards += 1,
            FileOpKind::ZeroRange | FileOpKind::BlkZeroOut => counters.zeroes += 1,
        }
    }

    fn start_read(&mut self, first: u64, nr: u64, op: &FileOp<'_>) -> Work {
        let early =
            if self.model.keeps_content && self.random.coin() { Some(self.sample(first, nr)) } else { None };
        if self.model.keeps_content {
            op.data.iter().for_each(|segment| segment.fill(POISON));
        }
        Work::Read { first, nr, early, into: op.data.iter().cloned().collect() }
    }

    fn sample(&mut self, first: u64, nr: u64) -> Vec<Option<SectorData>> {
        let flying: Vec<&Change> = self
            .in_flight
            .values()
            .filter_map(|flying| match &flying.work {
                Work::Change { change, .. } => Some(change),
                _ => None,
            })
            .filter(|change| overlap(&change.range(), &(first..first + nr)))
            .collect();
        self.content.sample(first, nr, &flying, &mut self.random)
    }

    fn take_data(&self, op: &FileOp<'_>) -> Vec<SectorData> {
        if !self.model.keeps_content {
            return Vec::new();
        }
        split_sectors(op.data)
    }

    /// When a request that arrives now is done: channel, then caps, then elements, then service.
    fn done_at(&mut self, now: Nanos, op: &FileOp<'_>, fault: Option<Fault>) -> Nanos {
        let discards = matches!(op.kind, FileOpKind::PunchHole | FileOpKind::BlkDiscard);
        let mut begin = if discards { &mut self.discard_channels } else { &mut self.channels }.free_at(now);
        let transfers = matches!(op.kind, FileOpKind::Read | FileOpKind::Write { .. });
        if transfers {
            let write = op.kind != FileOpKind::Read;
            for bucket in &mut self.buckets {
                begin = bucket.admit(write, op.len, begin);
            }
            if let Some(elements) = &self.model.elements {
                let start = begin.max(self.elements_until);
                begin = start + elements.time(start, op, &mut self.random);
                self.elements_until = begin;
            }
        }
        let mut service = self.latency(op).0 + self.model.overhead.0;
        if transfers && self.model.channel_bandwidth > 0 {
            let nanos = u128::from(op.len) * 1_000_000_000 / u128::from(self.model.channel_bandwidth);
            service += u64::try_from(nanos).unwrap_or(u64::MAX >> 1);
        }
        service = service.saturating_mul(u64::from(self.faults.slowdown.max(1)));
        if fault == Some(Fault::Stall) {
            service += self.faults.stall_time.0;
        }
        let done = Nanos(begin.0.saturating_add(service));
        if discards { &mut self.discard_channels } else { &mut self.channels }.occupy(done);
        if transfers {
            self.last_end = op.offset + op.len;
        }
        done
    }

    fn latency(&mut self, op: &FileOp<'_>) -> Nanos {
        let latency = &self.model.latency;
        let random = &mut self.random;
        let sequential = latency.sequential.as_ref().filter(|_| op.offset == self.last_end);
        match op.kind {
            FileOpKind::Read => sequential.unwrap_or(&latency.read).draw(random),
            FileOpKind::Write { dsync } => {
                let write = sequential.unwrap_or(&latency.write).draw(random);
                let flush =
                    if dsync && self.model.volatile() { latency.flush.draw(random) } else { Nanos(0) };
                write + flush
            }
            FileOpKind::Sync => latency.flush.draw(random),
            FileOpKind::PunchHole | FileOpKind::BlkDiscard => latency.discard.draw(random),
            FileOpKind::ZeroRange | FileOpKind::BlkZeroOut => latency.write.draw(random),
        }
    }

    fn draw_fault(&mut self, op: &FileOp<'_>) -> Option<Fault> {
        let n = self.started;
        self.started += 1;
        if let Some(fault) = self.planned.remove(&n) {
            return Some(fault);
        }
        let faults = &self.faults;
        if self.random.rate(faults.again) {
            return Some(Fault::Error(Errno::EAGAIN));
        }
        let eio = Fault::Error(Errno::EIO);
        let candidates: &[(u32, Fault)] = match op.kind {
            FileOpKind::Read => &[
                (faults.read_errors, eio),
                (faults.latent_errors, Fault::Latent),
                (faults.permanent_errors, Fault::ForEver),
                (faults.short, Fault::Short),
                (faults.stalls, Fault::Stall),
            ],
            FileOpKind::Write { dsync } => &[
                (if dsync && self.model.volatile() { faults.lost_flushes } else { 0 }, Fault::LostFlush),
                (faults.write_errors, eio),
                (faults.permanent_errors, Fault::ForEver),
                (faults.short, Fault::Short),
                (faults.misdirected, Fault::Misdirected),
                (faults.stalls, Fault::Stall),
            ],
            FileOpKind::Sync => &[
                (faults.flush_errors, eio),
                (faults.lost_flushes, Fault::LostFlush),
                (faults.stalls, Fault::Stall),
            ],
            _ => &[(faults.discard_errors, eio), (faults.stalls, Fault::Stall)],
        };
        candidates.iter().find(|(rate, _)| self.random.rate(*rate)).map(|(_, fault)| *fault)
    }

    fn finish_read(
        &mut self,
        first: u64,
        nr: u64,
        early: Option<Vec<Option<SectorData>>>,
        into: &Segments,
        fault: Option<Fault>,
    ) -> i32 {
        let range = first..first + nr;
        if let Some(errno) = self.new_error(&range, fault) {
            return -errno.0;
        }
        if self.latent.range(range.clone()).next().is_some() || self.for_ever.range(range).next().is_some() {
            return -Errno::EIO.0;
        }
        let nr = self.shortened(nr, fault);
        if self.model.keeps_content {
            let data = early.unwrap_or_else(|| self.sample(first, nr));
            write_sectors(into, data.into_iter().take(usize::try_from(nr).unwrap_or(usize::MAX)));
        } else {
            into.iter().for_each(|segment| segment.fill(0));
        }
        bytes(nr)
    }

    fn finish_change(
        &mut self,
        mut change: Change,
        durable: bool,
        from: &Segments,
        fault: Option<Fault>,
    ) -> i32 {
        let carries = !from.is_empty();
        if !self.model.keeps_content {
            // Without content there are no sectors in it to count.
            let nr = bytes_in(from) as u64 / SECTOR;
            return match fault {
                Some(Fault::Error(errno)) => -errno.0,
                Some(Fault::Latent | Fault::ForEver | Fault::LostFlush) => -Errno::EIO.0,
                _ => bytes(self.shortened(nr, fault)),
            };
        }
        if let Change::Data { sectors, .. } = &change {
            assert!(
                *sectors == split_sectors(from),
                "the memory of a write was altered while it was in flight"
            );
        }
        let range = change.range();
        let mut error = self.new_error(&range, fault);
        if self.for_ever.range(range.clone()).next().is_some() {
            error = Some(Errno::EIO);
        }
        if let Some(errno) = error {
            if errno != Errno::EAGAIN {
                self.apply_torn(&change, durable);
            }
            return -errno.0;
        }
        if fault == Some(Fault::Misdirected) {
            change = self.misdirect(change);
        }
        let nr = self.shortened(range.end - range.start, fault.filter(|_| carries));
        change.truncate(nr);
        let written = change.range();
        self.latent.retain(|sector| !written.contains(sector));
        self.apply(change, durable);
        if carries { bytes(nr) } else { 0 }
    }

    /// A DSYNC write of which the flush fails and loses what it should have made durable, the write's own data too.
    fn finish_without_flush(&mut self, change: Change) -> (i32, bool) {
        let range = change.range();
        if self.for_ever.range(range.clone()).next().is_some() {
            // Where the data fails, no flush is tried.
            self.apply_torn(&change, false);
            return (-Errno::EIO.0, false);
        }
        self.latent.retain(|sector| !range.contains(sector));
        self.apply(change, false);
        self.finish_flush(self.content.mark(), Some(Fault::LostFlush))
    }

    fn apply(&mut self, change: Change, durable: bool) {
        if durable {
            self.content.complete_durably(&change);
        } else {
            self.content.complete_cached(change, self.model.cache_bytes);
        }
    }

    /// A failed change has happened to some of its atomic units.
    fn apply_torn(&mut self, change: &Change, durable: bool) {
        let (range, unit) = (change.range(), self.model.atomic_sectors());
        let mut at = range.start;
        while at < range.end {
            let end = ((at / unit + 1) * unit).min(range.end);
            if self.random.coin() {
                let part = match change {
                    Change::Zero { .. } => Change::Zero { range: at..end },
                    Change::Data { first, sectors } => {
                        let skip = usize::try_from(at - first).expect("a request's sectors fit memory");
                        let take = usize::try_from(end - at).expect("a unit's sectors fit memory");
                        Change::Data { first: at, sectors: sectors[skip..skip + take].to_vec() }
                    }
                };
                self.apply(part, durable);
            }
            at = end;
        }
    }

    fn misdirect(&mut self, change: Change) -> Change {
        let range = change.range();
        let nr = range.end - range.start;
        let block = u64::from(self.model.limits.logical_block_size) / SECTOR;
        let first = self.random.below((self.model.sectors.0 - nr) / block + 1) * block;
        match change {
            Change::Data { sectors, .. } => Change::Data { first, sectors },
            Change::Zero { .. } => Change::Zero { range: first..first + nr },
        }
    }

    fn finish_flush(&mut self, mark: u64, fault: Option<Fault>) -> (i32, bool) {
        match fault {
            Some(Fault::LostFlush) => {
                let lost = self.content.lose(mark, &mut self.random);
                (-Errno::EIO.0, lost > 0)
            }
            Some(Fault::Error(errno)) => (-errno.0, false),
            Some(Fault::Latent | Fault::ForEver) => (-Errno::EIO.0, false),
            Some(Fault::Short | Fault::Stall | Fault::Misdirected) | None => {
                self.content.flush(mark);
                (0, false)
            }
        }
    }

    /// Makes the errors that `fault` stands for; says which one the request gets.
    fn new_error(&mut self, range: &Range<u64>, fault: Option<Fault>) -> Option<Errno> {
        let block = u64::from(self.model.limits.logical_block_size) / SECTOR;
        let blocks = (range.end - range.start) / block;
        let first = |random: &mut Random| range.start + random.below(blocks.max(1)) * block;
        match fault {
            Some(Fault::Error(errno)) => Some(errno),
            Some(Fault::Latent) => {
                let first = first(&mut self.random);
                self.latent.extend(first..first + block);
                Some(Errno::EIO)
            }
            Some(Fault::ForEver) => {
                let first = first(&mut self.random);
                self.for_ever.extend(first..first + block);
                Some(Errno::EIO)
            }
            Some(Fault::LostFlush) => Some(Errno::EIO),
            Some(Fault::Short | Fault::Stall | Fault::Misdirected) | None => None,
        }
    }

    /// Sectors that are transferred: at least one block, and less than all if the fault is `Short` and that is possible.
    fn shortened(&mut self, nr: u64, fault: Option<Fault>) -> u64 {
        let block = u64::from(self.model.limits.logical_block_size) / SECTOR;
        if fault == Some(Fault::Short) && nr > block {
            self.random.between(1, nr / block - 1) * block
        } else {
            nr
        }
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn bytes(nr: u64) -> i32 {
    i32::try_from(nr * SECTOR).expect("a request transfers less than 2 GiB")
}

/// The sectors that the segments' bytes make up.
fn split_sectors(data: &[blockwork_memory::Segment]) -> Vec<SectorData> {
    let mut all = vec![0; bytes_in(data)];
    let mut at = 0;
    for segment in data {
        segment.read_at(0, &mut all[at..at + segment.len()]);
        at += segment.len();
    }
    let (sectors, rest) = all.as_chunks::<512>();
    assert!(rest.is_empty(), "a request's memory is whole sectors");
    sectors.iter().map(|sector| Rc::new(*sector)).collect()
}

/// Fills the segments with sectors, as far as those go.
fn write_sectors(into: &Segments, sectors: impl Iterator<Item = Option<SectorData>>) {
    let mut all = Vec::new();
    for sector in sectors {
        match sector {
            Some(data) => all.extend_from_slice(&*data),
            None => all.extend_from_slice(&[0; 512]),
        }
    }
    let mut at = 0;
    for segment in into {
        let take = segment.len().min(all.len() - at);
        segment.write_at(0, &all[at..at + take]);
        at += take;
    }
}
