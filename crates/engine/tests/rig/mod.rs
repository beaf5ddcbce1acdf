//! A rig for the engine's tests: one worker over a leaf that records what reaches it and completes when told.
#![allow(dead_code, reason = "each test file uses part of the rig")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use blockwork_engine::*;
use blockwork_memory::{Pool, Segment, Segments};

/// What reached the leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub op: Op,
    pub flags: Flags,
    pub sector: u64,
    pub nr: u64,
    pub segments: usize,
    pub fixed: bool,
}

/// A device of `len` bytes whose answers are scripted. Shared by test and leaf.
#[derive(Default)]
pub struct Device {
    pub bytes: Vec<u8>,
    pub seen: Vec<Seen>,
    /// Requests started and not completed, with their data: only in manual mode.
    pub held: VecDeque<Held>,
    /// Requests that were started, and have not been completed.
    pub under_way: i64,
    /// By so many workers.
    pub opened: u32,
    pub manual: bool,
    /// Sectors that cannot be read or written.
    pub bad: Vec<u64>,
    /// It has shrunk to so many bytes: what is behind that is not transferred.
    pub shrunk_to: Option<usize>,
    /// It tells its size whenever it is asked.
    pub tells_size: bool,
    /// The next flush fails.
    pub fail_flush: bool,
    /// Of the next FUA write the data is written, and the flush behind it fails.
    pub fail_fua: bool,
    /// Its leaf knows of losses by itself.
    pub tells_losses: bool,
    /// It makes a FUA write durable by one command.
    pub has_fua: bool,
    /// It does reads and writes at once; how many it has done so.
    pub instant: bool,
    pub at_once: usize,
    /// What it was asked about what it holds: where, and how far. All of it is data.
    pub questions: Vec<(u64, u64)>,
}

pub struct Held {
    pub token: Token,
    pub op: Op,
    pub sector: u64,
    pub nr: u64,
    /// What was transferred.
    pub bytes: usize,
}

#[derive(Clone)]
pub struct Source {
    pub device: Arc<Mutex<Device>>,
    pub limits: Limits,
    pub sectors: Sectors,
    pub shared: Arc<LeafShared>,
}

impl LeafSource for Source {
    fn open(&self) -> Box<dyn Leaf> {
        let mut device = self.device.lock().unwrap();
        device.opened += 1;
        Box::new(Handle { device: self.device.clone(), instant: device.instant })
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn sectors(&self) -> Sectors {
        self.sectors
    }
    fn name(&self) -> &str {
        "rig"
    }
    fn read_now(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let start = offset as usize;
        into.copy_from_slice(&self.device.lock().unwrap().bytes[start..start + into.len()]);
        Ok(())
    }
    fn shared(&self) -> &Arc<LeafShared> {
        &self.shared
    }
    fn tells_losses(&self) -> bool {
        self.device.lock().unwrap().tells_losses
    }
    fn has_fua(&self) -> bool {
        self.device.lock().unwrap().has_fua
    }
    fn sectors_now(&self) -> Option<Sectors> {
        let device = self.device.lock().unwrap();
        let bytes = device.shrunk_to.unwrap_or(device.bytes.len());
        device.tells_size.then(|| Sectors::from_bytes_floor(bytes as u64))
    }
}

struct Handle {
    device: Arc<Mutex<Device>>,
    instant: bool,
}

impl AtOnce for Handle {
    fn transfer(&mut self, op: Op, sector: Sector, data: &[Segment]) -> Result<(), Errno> {
        let mut device = self.device.lock().unwrap();
        let nr = blockwork_memory::bytes_in(data) as u64 / SECTOR;
        if device.bad.iter().any(|bad| (sector.0..sector.0 + nr).contains(bad)) {
            return Err(Errno::EIO);
        }
        device.at_once += 1;
        transfer(&mut device.bytes, op, sector, Sectors(nr), data);
        Ok(())
    }
}

impl Leaf for Handle {
    fn submit(&mut self, _env: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        let mut device = self.device.lock().unwrap();
        let (sector, nr) = (io.sector.0, io.nr.0);
        device.seen.push(Seen {
            op: io.op,
            flags: io.flags,
            sector,
            nr,
            segments: io.data.len(),
            fixed: io.fixed,
        });
        if device.bad.iter().any(|bad| (sector..sector + nr).contains(bad)) {
            return Submitted::Now(Err(Errno::EIO));
        }
        if io.op == Op::Flush && std::mem::take(&mut device.fail_flush) {
            return Submitted::Now(Err(Errno::EIO));
        }
        // A write makes a file grow again.
        let len = device.shrunk_to.filter(|_| io.op == Op::Read).unwrap_or(device.bytes.len());
        let bytes = transfer(&mut device.bytes[..len], io.op, io.sector, io.nr, io.data);
        if io.flags.has(Flags::FUA) && std::mem::take(&mut device.fail_fua) {
            return Submitted::Now(Err(Errno::EIO));
        }
        if device.manual {
            device.under_way += 1;
            device.held.push_back(Held { token: io.token, op: io.op, sector, nr, bytes });
            return Submitted::Started;
        }
        Submitted::Now(Ok(()))
    }
    fn at_once(&mut self) -> Option<&mut dyn AtOnce> {
        if self.instant { Some(self) } else { None }
    }
    fn allocation(&mut self, sector: Sector, nr: Sectors) -> Result<(Allocation, Sectors), Errno> {
        self.device.lock().unwrap().questions.push((sector.0, nr.0));
        Ok((Allocation::Data, nr))
    }
}

/// Does it as far as `bytes` go; how far that was.
fn transfer(bytes: &mut [u8], op: Op, sector: Sector, nr: Sectors, data: &[Segment]) -> usize {
    let start = (sector.bytes() as usize).min(bytes.len());
    let end = (start + nr.byte_len()).min(bytes.len());
    let mut at = start;
    match op {
        Op::Read | Op::Write => {
            for segment in data {
                let segment = segment.slice(0, segment.len().min(end.saturating_sub(at)));
                match op {
                    Op::Read => segment.write_at(0, &bytes[at..at + segment.len()]),
                    _ => segment.read_at(0, &mut bytes[at..at + segment.len()]),
                }
                at += segment.len();
            }
        }
        Op::Discard | Op::WriteZeroes => bytes[start..end].fill(0),
        Op::Flush => {}
    }
    at - start
}

/// An environment whose completions the test makes.
pub struct ManualEnv {
    pub ready: Rc<RefCell<Vec<Completion>>>,
    pub now: Nanos,
    /// Whether all memory is known, and how often that was asked.
    pub knows: bool,
    pub asked: u64,
    /// Operations are calls.
    pub calls: bool,
    /// How it was waited, since somebody wanted to know.
    pub waits: Option<Vec<Wait>>,
    /// What one takes that does not look.
    pub sleeps: Nanos,
    /// Called whenever it is waited.
    pub waiting: Option<Box<dyn FnMut()>>,
}

struct Deaf;
impl Notify for Deaf {
    fn notify(&self) {}
}

impl Env for ManualEnv {
    fn now(&self) -> Nanos {
        self.now
    }
    fn random(&mut self) -> u64 {
        4
    }
    fn knows(&mut self, _memory: &Segment) -> bool {
        self.asked += 1;
        self.knows
    }
    fn calls_return_late(&self) -> bool {
        self.calls
    }
    fn start(&mut self, _token: Token, _op: FileOp<'_>) {
        unreachable!("the rig's leaf starts nothing")
    }
    fn wait(&mut self, wait: Wait, out: &mut Vec<Completion>) {
        let looks = matches!(wait, Wait::Soon { .. });
        self.now = self.now + if looks { Nanos(1000) } else { self.sleeps };
        self.waits.iter_mut().for_each(|waits| waits.push(wait));
        self.waiting.iter_mut().for_each(|waiting| waiting());
        out.append(&mut self.ready.borrow_mut());
    }
    fn notifier(&self) -> Arc<dyn Notify> {
        Arc::new(Deaf)
    }
}

/// A client that submits what it is given, all of a batch at once, and keeps what comes back.
#[derive(Default)]
pub struct Client {
    pub to_submit: Vec<(u64, Bio)>,
    /// To be done on the spot, if that can be; which were.
    pub to_run: Vec<(u64, Bio)>,
    pub ran: Vec<u64>,
    pub bytes_to_submit: Vec<(u64, Op, Flags, u64, u64, Segments)>,
    pub done: Vec<Done>,
    pub turns: usize,
    pub close: bool,
}

struct ClientPort(Rc<RefCell<Client>>);

impl Port<ManualEnv> for ClientPort {
    fn open(&mut self, _cx: &mut Context<'_, ManualEnv>) {}
    fn event(&mut self, _cx: &mut Context<'_, ManualEnv>, _local: u32, _completion: Completion) {
        let mut client = self.0.borrow_mut();
        for (cookie, bio) in client.to_submit.drain(..) {
            _cx.submit(VolumeId(0), cookie, bio);
        }
        for (cookie, mut bio) in std::mem::take(&mut client.to_run) {
            if _cx.run(VolumeId(0), &mut bio, || cookie) {
                client.done.push(Done { cookie, op: bio.op, result: Ok(()), data: bio.data });
                client.ran.push(cookie);
            }
        }
        for (cookie, op, flags, offset, len, data) in client.bytes_to_submit.drain(..) {
            _cx.submit_bytes(VolumeId(0), cookie, op, flags, offset, len, data);
        }
    }
    fn done(&mut self, _cx: &mut Context<'_, ManualEnv>, done: Done) {
        self.0.borrow_mut().done.push(done);
    }
    fn turn(&mut self, _cx: &mut Context<'_, ManualEnv>) -> PortState {
        let mut client = self.0.borrow_mut();
        client.turns += 1;
        if client.close { PortState::Closed } else { PortState::Open }
    }
    fn drain(&mut self, _cx: &mut Context<'_, ManualEnv>) {
        self.0.borrow_mut().close = true;
    }
}

/// A worker, its device and its client.
pub struct Rig {
    pub worker: Worker<ManualEnv>,
    pub device: Arc<Mutex<Device>>,
    pub client: Rc<RefCell<Client>>,
    pub stats: Stats,
    pub pool: Pool,
    pub token: Token,
    pub shared: Arc<LeafShared>,
    pub ready: Rc<RefCell<Vec<Completion>>>,
    /// What another worker has in common with this one.
    pub volume: Volume,
    pub source: Arc<dyn LeafSource>,
    pub quiescence: Quiescence,
}

pub const SECTORS: u64 = 1 << 15; // 16 MiB

/// A range of the layer below.
#[derive(Debug)]
pub struct Half {
    pub shape: Shape,
    pub start: u64,
    pub below: Arc<dyn Layer>,
}

impl Layer for Half {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let to = Sector(span.sector.0 + if span.op == Op::Flush { 0 } else { self.start });
        cx.pass(self.shape.node, span.sector, &*self.below, span.moved_to(to))
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

/// Limits like an NVMe disk's, without read-ahead.
pub fn limits() -> Limits {
    Limits {
        max_hw_sectors: Sectors(512),
        max_sectors: Sectors(512),
        max_segments: 128,
        discard_granularity: 512,
        max_hw_discard: Sectors(1 << 14),
        max_discard: Sectors(1 << 14),
        max_write_zeroes: Sectors(1 << 14),
        write_cache: true,
        ..Limits::default()
    }
}

impl Rig {
    pub fn new(limits: Limits) -> Rig {
        Rig::with_stack(limits, |leaf| leaf)
    }

    /// A rig whose volume is what `stack` makes of the leaf. Nodes 1 to 9 are the stack's.
    pub fn with_stack(limits: Limits, stack: impl FnOnce(Arc<dyn Layer>) -> Arc<dyn Layer>) -> Rig {
        Rig::with(limits, stack, false, |config| config)
    }

    /// Likewise, of a device that does reads and writes at once, or does not, and of a worker that is made otherwise.
    pub fn with(
        limits: Limits,
        stack: impl FnOnce(Arc<dyn Layer>) -> Arc<dyn Layer>,
        instant: bool,
        configure: impl FnOnce(WorkerConfig) -> WorkerConfig,
    ) -> Rig {
        let bytes = vec![0; (SECTORS * SECTOR) as usize];
        let device = Device { bytes, instant, ..Device::default() };
        let device = Arc::new(Mutex::new(device));
        let shared = Arc::new(LeafShared::default());
        let sectors = Sectors(SECTORS);
        let source =
            Source { device: device.clone(), limits: limits.clone(), sectors, shared: shared.clone() };
        let leaf: Arc<dyn Layer> = Arc::new(LeafLayer::new(LeafId(0), NodeId(0), sectors, limits));
        let kind = |i| if i == 0 { NodeKind::Leaf } else { NodeKind::Other("test") };
        let node = |i| NodeInfo { name: format!("node{i}"), kind: kind(i), device: (253, i) };
        let stats = Stats::new((0..10).map(node).collect());
        let volume = Volume::new("rig", stack(leaf), false);
        let volumes: Arc<[Volume]> = Arc::new([volume.clone()]);
        let source: Arc<dyn LeafSource> = Arc::new(source);
        let leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]> = Arc::new([(NodeId(0), source.clone())]);
        let ready = Rc::new(RefCell::new(Vec::new()));
        let env = ManualEnv {
            ready: ready.clone(),
            now: Nanos(0),
            knows: true,
            asked: 0,
            calls: false,
            waits: None,
            sleeps: Nanos(1000),
            waiting: None,
        };
        let config = configure(WorkerConfig::new(volumes, leaves, stats.worker()));
        let quiescence = config.quiescence.clone();
        let mut worker = Worker::new(env, config);
        let client = Rc::new(RefCell::new(Client::default()));
        let port = worker.add_port(Box::new(ClientPort(client.clone())));
        // The engine's own form of a port's token: what the port would get from `Context::token(0)`.
        let token = Token(1 << 63 | u64::from(port.0) << 32);
        let pool = Pool::new(64 << 20);
        Rig { worker, device, client, stats, pool, token, shared, ready, volume, source, quiescence }
    }

    /// Another worker of the same server; its requests are held by this one's device.
    pub fn another_worker(&self) -> Rig {
        let (volume, source) = (self.volume.clone(), self.source.clone());
        let quiescence = self.quiescence.clone();
        let configure = |mut config: WorkerConfig| {
            config.volumes = Arc::new([volume]);
            config.leaves = Arc::new([(NodeId(0), source)]);
            config.quiescence = quiescence;
            config
        };
        Rig::with(self.source.limits().clone(), |leaf| leaf, false, configure)
    }

    pub fn memory(&self, nr: u64, fill: u8) -> Segments {
        let len = Sectors(nr).byte_len();
        let segment = Segment::new(self.pool.get(len), 0, len);
        segment.fill(fill);
        Segments::from_iter([segment])
    }

    pub fn read(&self, sector: u64, nr: u64) -> Bio {
        Bio::with_data(Op::Read, Flags::NONE, Sector(sector), self.memory(nr, 0xee))
    }
    pub fn write(&self, sector: u64, nr: u64, fill: u8) -> Bio {
        Bio::with_data(Op::Write, Flags::NONE, Sector(sector), self.memory(nr, fill))
    }

    /// Submits a batch: all of it in one turn of the worker.
    pub fn batch(&mut self, bios: impl IntoIterator<Item = Bio>) {
        let numbered = bios.into_iter().enumerate().map(|(i, bio)| (i as u64, bio));
        self.client.borrow_mut().to_submit.extend(numbered);
        self.turn_with_event();
    }

    /// Runs these in one turn of the worker, under the next numbers: which of them were done on the spot.
    pub fn run(&mut self, bios: impl IntoIterator<Item = Bio>) -> Vec<bool> {
        let first = self.results().len() as u64;
        let numbered: Vec<_> = (first..).zip(bios).collect();
        let end = first + numbered.len() as u64;
        self.client.borrow_mut().to_run.extend(numbered);
        self.turn_with_event();
        let client = self.client.borrow();
        (first..end).map(|cookie| client.ran.contains(&cookie)).collect()
    }

    pub fn turn_with_event(&mut self) {
        self.ready.borrow_mut().push(Completion { token: self.token, result: 0, flags: 0 });
        self.worker.turn(Wait::Poll);
        self.counts_in_flight();
    }
    /// Whatever became of requests: statistics have as many in flight as the device, if that is this rig's alone.
    fn counts_in_flight(&self) {
        let device = self.device.lock().unwrap();
        if device.opened == 1 {
            assert_eq!(self.stats.snapshot()[0].in_flight(), Some(device.under_way as u64));
        }
    }

    /// Completes a held request.
    pub fn complete(&mut self, held: Held, result: Result<(), Errno>) {
        let result = result.map_or_else(|errno| -errno.0, |()| held.bytes as i32);
        self.complete_with(held, result);
    }
    pub fn complete_with(&mut self, held: Held, result: i32) {
        self.device.lock().unwrap().under_way -= 1;
        self.ready.borrow_mut().push(Completion { token: held.token, result, flags: 0 });
        self.worker.turn(Wait::Poll);
        self.counts_in_flight();
    }
    /// Completes everything that is held, until nothing is.
    pub fn complete_all(&mut self) {
        loop {
            let Some(held) = self.device.lock().unwrap().held.pop_front() else { return };
            self.complete(held, Ok(()));
        }
    }
    pub fn hold(&self) {
        self.device.lock().unwrap().manual = true;
    }
    pub fn next_held(&self) -> Held {
        self.device.lock().unwrap().held.pop_front().expect("a request is held")
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.device.lock().unwrap().seen.clone()
    }
    pub fn clear_seen(&self) {
        self.device.lock().unwrap().seen.clear();
    }
    /// What came back, in order of completion.
    pub fn results(&self) -> Vec<(u64, Result<(), Errno>)> {
        self.client.borrow().done.iter().map(|done| (done.cookie, done.result)).collect()
    }
    pub fn all_succeeded(&self, count: usize) {
        let results = self.results();
        assert_eq!(results.len(), count, "{results:?}");
        assert!(results.iter().all(|(_, result)| result.is_ok()), "{results:?}");
    }
    /// What a completed read brought.
    pub fn data_of(&self, cookie: u64) -> Vec<u8> {
        let client = self.client.borrow();
        let done = client.done.iter().find(|done| done.cookie == cookie).expect("it has completed");
        let mut all = Vec::new();
        for segment in &done.data {
            let mut bytes = vec![0; segment.len()];
            segment.read_at(0, &mut bytes);
            all.extend(bytes);
        }
        all
    }
    pub fn bytes(&self, sector: u64, nr: u64) -> Vec<u8> {
        let start = (sector * SECTOR) as usize;
        self.device.lock().unwrap().bytes[start..start + (nr * SECTOR) as usize].to_vec()
    }
    pub fn count(&self, counter: Counter) -> u64 {
        self.stats.get(NodeId(0), counter)
    }
}
