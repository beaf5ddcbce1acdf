//! A simulated client: a port that issues random bios and compares every answer with the [`Oracle`].
//!
//! Invariants:
//! 1. It never has two writes in flight that overlap, with those of other clients of the volume neither. (Who does,
//!    has no claim to any order.) Reads overlap writes freely.
//! 2. Every bio comes back once. One that fails without a fault of a device is a violation.
//! 3. What it does follows from its seed and the answers alone.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use blockwork_engine::{
    Bio, Completion, Context, Done, Errno, Flags, Nanos, Op, Port, PortState, SECTOR, Sector, Sectors,
    VolumeId, WorkerHandle,
};
use blockwork_memory::{Pool, Segment, Segments, bytes_in};

use crate::env::SimEnv;
use crate::oracle::{FlushId, Oracle, ReadId, WriteId, stamp};
use crate::random::Random;

/// What the clients of one volume share.
pub struct Referee {
    /// What the volume may hold.
    pub oracle: Oracle,
    /// What went wrong, in words.
    pub violations: Vec<String>,
    /// Bios that came back.
    pub answered: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those among them that asked for what the device cannot do.
    pub excused: u64,
    /// Other discards among them, for which a fault is the reason.
    pub failed_discards: u64,
    /// Flushes, and writes with FUA, that succeeded.
    pub durable: u64,
}

impl Referee {
    /// For a volume of that many sectors, all zeros.
    pub fn new(sectors: u64) -> Rc<RefCell<Referee>> {
        Rc::new(RefCell::new(Referee {
            oracle: Oracle::new(sectors),
            violations: Vec::new(),
            answered: 0,
            failed: 0,
            excused: 0,
            failed_discards: 0,
            durable: 0,
        }))
    }

    pub(crate) fn accuse(&mut self, violation: String) {
        // The first ones tell; a run that is off the rails would fill memory with the rest.
        if self.violations.len() < 20 {
            self.violations.push(violation);
        }
    }
}

/// Knows when the last client of a run has ended, and then stops its workers.
pub struct Closing {
    left: Cell<usize>,
    workers: RefCell<Vec<WorkerHandle<SimEnv>>>,
}

impl Closing {
    /// Will stop these workers.
    pub fn new(workers: Vec<WorkerHandle<SimEnv>>) -> Rc<Closing> {
        Rc::new(Closing { left: Cell::new(0), workers: RefCell::new(workers) })
    }

    /// Clients that have not ended.
    pub fn left(&self) -> usize {
        self.left.get()
    }

    pub(crate) fn enter(&self) {
        self.left.set(self.left.get() + 1);
    }

    pub(crate) fn leave(&self) {
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.workers.borrow().iter().for_each(WorkerHandle::stop);
        }
    }
}

/// What a client does.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Its number, in the content that it writes.
    pub number: u32,
    /// On which volume.
    pub volume: VolumeId,
    /// How many bios in all.
    pub bios: u64,
    /// How many at once.
    pub depth: usize,
    /// What it draws from.
    pub seed: u64,
    /// Longest read or write, bytes.
    pub len_max: u64,
    /// How often each operation: read, write, flush, discard, write-zeroes.
    pub weights: [u32; 5],
    /// Of 100 writes, how many with FUA.
    pub fua_percent: u32,
    /// Of 100 operations, how many on bytes that are no whole blocks.
    pub unaligned_percent: u32,
    /// Of 100 operations, how many begin where the last of their kind ended.
    pub sequential_percent: u32,
    /// Keeps to the first so many bytes of the volume: the smaller, the more it meets itself and others.
    pub region: u64,
    /// Of 100 turns, how many are followed by a pause.
    pub pause_percent: u32,
    /// Longest pause.
    pub pause_max: Nanos,
}

impl ClientConfig {
    /// Some of everything.
    pub fn new(number: u32, volume: VolumeId, bios: u64, depth: usize, seed: u64) -> ClientConfig {
        ClientConfig {
            number,
            volume,
            bios,
            depth,
            seed,
            len_max: 32 << 10,
            weights: [35, 45, 7, 6, 7],
            fua_percent: 10,
            unaligned_percent: 15,
            sequential_percent: 40,
            region: u64::MAX,
            pause_percent: 5,
            pause_max: Nanos::millis(2),
        }
    }
}

enum Kind {
    Read(ReadId),
    Write(WriteId, Flags),
    Flush(FlushId),
}

/// A client. See the module's head.
pub struct SimClient {
    config: ClientConfig,
    referee: Rc<RefCell<Referee>>,
    closing: Rc<Closing>,
    random: Random,
    in_flight: BTreeMap<u64, (Kind, String)>,
    issued: u64,
    sequence: u32,
    paused: bool,
    draining: bool,
    /// Where the last operation of each kind ended, bytes.
    ends: [u64; 5],
}

const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

impl SimClient {
    /// A client of `referee`'s volume.
    pub fn new(config: ClientConfig, referee: Rc<RefCell<Referee>>, closing: Rc<Closing>) -> SimClient {
        closing.enter();
        let random = Random::part(config.seed, u64::from(config.number));
        SimClient {
            config,
            referee,
            closing,
            random,
            in_flight: BTreeMap::new(),
            issued: 0,
            sequence: 0,
            paused: false,
            draining: false,
            ends: [0; 5],
        }
    }

    fn fill(&mut self, cx: &mut Context<'_, SimEnv>) {
        if self.paused || self.draining || cx.env.world().is_off() {
            return;
        }
        // Now and then let the queue run dry first, so that batches of all sizes are submitted.
        if self.in_flight.len() > self.config.depth / 2 && self.random.coin() {
            return;
        }
        while self.in_flight.len() < self.config.depth && self.issued < self.config.bios {
            self.issue(cx);
        }
        if self.random.chance(self.config.pause_percent, 100) {
            self.paused = true;
            let token = cx.token(0);
            let after = Nanos(self.random.below(self.config.pause_max.0));
            cx.env.timeout(token, after);
        }
    }

    fn draw_op(&mut self) -> usize {
        let total: u32 = self.config.weights.iter().sum();
        let mut at = self.random.below(u64::from(total));
        for (i, weight) in self.config.weights.iter().enumerate() {
            match at.checked_sub(u64::from(*weight)) {
                Some(rest) => at = rest,
                None => return i,
            }
        }
        unreachable!("smaller than the sum of all weights")
    }

    /// Issues one bio.
    fn issue(&mut self, cx: &mut Context<'_, SimEnv>) {
        let cookie = self.issued;
        self.issued += 1;
        let mut which = self.draw_op();
        if OPS[which] == Op::Flush {
            let id = self.referee.borrow_mut().oracle.begin_flush();
            self.in_flight.insert(cookie, (Kind::Flush(id), "flush".to_owned()));
            cx.submit(self.config.volume, cookie, Bio::flush());
            return;
        }
        let volume = cx.volume(self.config.volume);
        let block = u64::from(volume.limits().logical_block_size);
        let size = volume.sectors().bytes().min((self.config.region / block).max(1) * block);
        let unaligned = self.random.chance(self.config.unaligned_percent, 100);
        let unit = if unaligned { 1 } else { block };
        let (mut offset, mut len) = self.place(which, unit, block, size);
        let free = |this: &SimClient, at: (u64, u64)| this.referee.borrow().oracle.is_free(at.0, at.1);
        for _ in 0..4 {
            if OPS[which] == Op::Read || free(self, (offset, len)) {
                break;
            }
            (offset, len) = self.place(which, unit, block, size);
        }
        if OPS[which] != Op::Read && !free(self, (offset, len)) {
            which = 0;
        }
        self.ends[which] = offset + len;
        let bytes = unaligned || self.random.chance(1, 8);
        self.submit(cx, cookie, OPS[which], (offset, len), bytes);
    }

    /// Where and how much, in bytes.
    fn place(&mut self, which: usize, unit: u64, block: u64, size: u64) -> (u64, u64) {
        let random = &mut self.random;
        let blocks_max = (self.config.len_max / block).max(1);
        let blocks = match random.below(6) {
            0..3 => 1,
            3 => random.between(1, 4.min(blocks_max)),
            4 => random.between(1, 16.min(blocks_max)),
            // Discards and zeroes may be long: they need no memory.
            _ if which > 2 => random.between(1, blocks_max * 8),
            _ => random.between(1, blocks_max),
        };
        let mut len = (blocks * block).min(size);
        if unit == 1 {
            len = random.between(1, len);
        }
        let mut offset = self.ends[which] / unit * unit;
        if !random.chance(self.config.sequential_percent, 100) || offset + len > size {
            offset = random.below((size - len) / unit + 1) * unit;
        }
        (offset, len)
    }

    fn submit(
        &mut self,
        cx: &mut Context<'_, SimEnv>,
        cookie: u64,
        op: Op,
        (offset, len): (u64, u64),
        as_bytes: bool,
    ) {
        let flags = self.draw_flags(op);
        let block = u64::from(cx.volume(self.config.volume).limits().logical_block_size);
        let mut data = Segments::new();
        let kind = {
            let oracle = &mut self.referee.borrow_mut().oracle;
            match op {
                Op::Read => {
                    data = draw_memory(&mut self.random, cx.pool(), in_memory(len), in_memory(block));
                    data.iter().for_each(|segment| segment.fill(0xab));
                    Kind::Read(oracle.begin_read(offset, len))
                }
                Op::Write => {
                    self.sequence += 1;
                    let bytes = content(self.config.number, self.sequence, offset, len);
                    data = draw_memory(&mut self.random, cx.pool(), in_memory(len), in_memory(block));
                    store(&data, &bytes);
                    Kind::Write(oracle.begin_write(offset, &bytes), flags)
                }
                Op::Discard => Kind::Write(oracle.begin_discard(offset, len), flags),
                Op::WriteZeroes => Kind::Write(oracle.begin_zeroes(offset, len), flags),
                Op::Flush => unreachable!("a flush has no range"),
            }
        };
        let what = format!("{op:?} {flags:?} of {len} bytes at {offset}");
        self.in_flight.insert(cookie, (kind, what));
        let volume = self.config.volume;
        if as_bytes {
            cx.submit_bytes(volume, cookie, op, flags, offset, len, data);
        } else {
            let (sector, nr) = (Sector(offset / SECTOR), Sectors::from_bytes_floor(len));
            cx.submit(volume, cookie, Bio { op, flags, sector, nr, data });
        }
    }

    fn draw_flags(&mut self, op: Op) -> Flags {
        let mut flags = Flags::NONE;
        let random = &mut self.random;
        if op.is_write() && random.chance(self.config.fua_percent, 100) {
            flags = flags.with(Flags::FUA);
        }
        if random.chance(1, 16) {
            flags = flags.with(*random.choose(&[Flags::SYNC, Flags::NO_MERGE]));
        }
        if op == Op::WriteZeroes && random.chance(1, 4) {
            flags = flags.with(*random.choose(&[Flags::NO_UNMAP, Flags::FAST_ONLY]));
        }
        flags
    }

    fn answer(&mut self, cx: &mut Context<'_, SimEnv>, done: Done) {
        let world = cx.env.world();
        let referee = &mut *self.referee.borrow_mut();
        let Some((kind, what)) = self.in_flight.remove(&done.cookie) else {
            referee.accuse(format!("client {}: bio {} came back twice", self.config.number, done.cookie));
            return;
        };
        if world.is_off() {
            return; // whatever it says, nobody heard it
        }
        referee.answered += 1;
        if world.has_lost_data() {
            referee.oracle.data_was_lost();
        }
        if let Err(errno) = done.result {
            referee.failed += 1;
            let fault = world.faults() > 0 && errno != Errno::EAGAIN;
            let excused = excused(&kind, done.op, errno);
            referee.excused += u64::from(excused);
            referee.failed_discards += u64::from(!excused && fault && done.op == Op::Discard);
            if !fault && !excused {
                let number = self.config.number;
                referee.accuse(format!(
                    "client {number}: {what} failed with {errno}, without a fault that explains it"
                ));
            }
        }
        let ok = done.result.is_ok();
        match kind {
            Kind::Read(id) => {
                let bytes = ok.then(|| load(&done.data));
                if let Err(violation) = referee.oracle.end_read(id, bytes.as_deref()) {
                    referee.accuse(format!("client {}: {what}: {violation}", self.config.number));
                }
            }
            Kind::Write(id, flags) => {
                referee.oracle.end_write(id, ok, flags.has(Flags::FUA));
                referee.durable += u64::from(ok && flags.has(Flags::FUA));
            }
            Kind::Flush(id) => {
                referee.oracle.end_flush(id, ok);
                referee.durable += u64::from(ok);
            }
        }
    }
}

/// What may fail without a fault: what the device cannot do, and was not asked to replace.
fn excused(kind: &Kind, op: Op, errno: Errno) -> bool {
    let fast_only = matches!(kind, Kind::Write(_, flags) if flags.has(Flags::FAST_ONLY));
    errno == Errno::EOPNOTSUPP && (op == Op::Discard || fast_only)
}

impl Port<SimEnv> for SimClient {
    fn open(&mut self, _: &mut Context<'_, SimEnv>) {}

    fn event(&mut self, _: &mut Context<'_, SimEnv>, _: u32, _: Completion) {
        self.paused = false;
    }

    fn done(&mut self, cx: &mut Context<'_, SimEnv>, done: Done) {
        self.answer(cx, done);
    }

    fn turn(&mut self, cx: &mut Context<'_, SimEnv>) -> PortState {
        self.fill(cx);
        let ended = self.issued >= self.config.bios || self.draining || cx.env.world().is_off();
        if !ended || !self.in_flight.is_empty() {
            return PortState::Open;
        }
        self.closing.leave();
        PortState::Closed
    }

    fn drain(&mut self, _: &mut Context<'_, SimEnv>) {
        self.draining = true;
    }
}

/// What a client writes at a range of bytes: the part of its sectors' stamps.
fn content(client: u32, sequence: u32, offset: u64, len: u64) -> Vec<u8> {
    let (first, end) = (offset / SECTOR, (offset + len).div_ceil(SECTOR));
    let all: Vec<u8> = (first..end).flat_map(|sector| stamp(client, sequence, sector)).collect();
    let skip = in_memory(offset - first * SECTOR);
    all[skip..skip + in_memory(len)].to_vec()
}

/// Memory of `len` bytes: one buffer, or several pieces of several, cut at blocks and perhaps once elsewhere: as no
/// block then lies in more than two pieces, no device has too few segments for one block.
fn draw_memory(random: &mut Random, pool: &Pool, len: usize, block: usize) -> Segments {
    let mut cuts = vec![0, len];
    if random.chance(3, 8) {
        for _ in 0..random.below(6) {
            cuts.push(random.index(len / block + 1) * block);
        }
    }
    if random.chance(1, 8) {
        cuts.push(random.index(len));
    }
    cuts.sort_unstable();
    cuts.dedup();
    let pieces = cuts.windows(2).map(|cut| {
        let len = cut[1] - cut[0];
        let skip = *random.choose(&[0, 0, 0, 512, 4, 3]);
        Segment::new(pool.get(len + skip), skip, len)
    });
    pieces.collect()
}

fn store(data: &Segments, bytes: &[u8]) {
    let mut at = 0;
    for segment in data {
        segment.write_at(0, &bytes[at..at + segment.len()]);
        at += segment.len();
    }
}

pub(crate) fn load(data: &Segments) -> Vec<u8> {
    let mut bytes = vec![0; bytes_in(data)];
    let mut at = 0;
    for segment in data {
        segment.read_at(0, &mut bytes[at..at + segment.len()]);
        at += segment.len();
    }
    bytes
}

fn in_memory(n: u64) -> usize {
    usize::try_from(n).expect("a length in memory fits the address space")
}
