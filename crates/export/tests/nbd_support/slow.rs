//! Slow disks: one that answers when nobody asks for more, so that whoever begins as much as it likes has begun all of it by then; one
//! that takes long to say what is allocated; and one that keeps its worker in each read until the test lets it go.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock};

use blockwork_engine::{
    Allocation, Completion, Ended, Env, Errno, Leaf, LeafIo, LeafShared, LeafSource, Limits, Nanos, Op,
    Sector, Sectors, Submitted, Token,
};
use rustix::time::{ClockId, clock_gettime};

/// Turns of the worker without a further request after which it answers, each of a tenth of a millisecond or more.
const QUIET: u32 = 5;

/// See the module. It reads as zeros.
pub struct SlowSource {
    bytes: u64,
    limits: Limits,
    shared: Arc<LeafShared>,
    most: Arc<AtomicUsize>,
    first: Arc<OnceLock<usize>>,
    quiet: u32,
}

impl SlowSource {
    pub fn new(bytes: u64) -> SlowSource {
        SlowSource::far(bytes, QUIET)
    }

    /// One that answers after so many turns without a further request.
    pub fn far(bytes: u64, quiet: u32) -> SlowSource {
        // As many requests at a time as anybody likes: what is under way then is what was begun.
        let limits = Limits { nr_requests: 1 << 16, ..Limits::default() };
        let (most, first) = (Arc::default(), Arc::default());
        SlowSource { bytes, limits, shared: Arc::default(), most, first, quiet }
    }

    /// Most bytes that were under way at a time.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
    /// Bytes that were under way when it answered first; none as long as it has not.
    pub fn first(&self) -> Option<usize> {
        self.first.get().copied()
    }
    /// The most, since this was asked before.
    pub fn most_since(&self) -> usize {
        self.most.swap(0, Ordering::SeqCst)
    }
}

impl LeafSource for SlowSource {
    fn open(&self) -> Box<dyn Leaf> {
        let (most, first) = (self.most.clone(), self.first.clone());
        Box::new(SlowLeaf { under_way: Vec::new(), quiet: 0, answers_after: self.quiet, most, first })
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn sectors(&self) -> Sectors {
        Sectors::from_bytes_floor(self.bytes)
    }
    fn name(&self) -> &str {
        "slow"
    }
    fn read_now(&self, _offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        into.fill(0);
        Ok(())
    }
    fn shared(&self) -> &Arc<LeafShared> {
        &self.shared
    }
}

struct SlowLeaf {
    under_way: Vec<(Token, u32)>,
    quiet: u32,
    answers_after: u32,
    most: Arc<AtomicUsize>,
    first: Arc<OnceLock<usize>>,
}

/// The next turn of the worker, or soon after.
fn tick(env: &mut dyn Env, token: Token) {
    env.network().expect("timers").timer(token.of_leaf(0), Nanos::micros(100));
}

impl Leaf for SlowLeaf {
    fn submit(&mut self, env: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        if io.op != Op::Read {
            return Submitted::Now(if io.op == Op::Flush { Ok(()) } else { Err(Errno::EOPNOTSUPP) });
        }
        io.data.iter().for_each(|segment| segment.fill(0));
        if self.under_way.is_empty() {
            tick(env, io.token);
        }
        self.under_way.push((io.token, u32::try_from(io.nr.bytes()).unwrap()));
        let bytes = self.under_way.iter().map(|(_, bytes)| *bytes as usize).sum();
        self.most.fetch_max(bytes, Ordering::SeqCst);
        self.quiet = 0;
        Submitted::Started
    }

    fn event(&mut self, env: &mut dyn Env, _local: u32, _completion: Completion, ended: &mut Vec<Ended>) {
        self.quiet += 1;
        if self.quiet < self.answers_after {
            return tick(env, self.under_way[0].0);
        }
        self.first.get_or_init(|| self.under_way.iter().map(|(_, bytes)| *bytes as usize).sum());
        ended.extend(self.under_way.drain(..).map(|(token, bytes)| Ended { token, result: Ok(bytes) }));
    }
}

/// A disk that takes a while for each question about what is allocated, as one in very many pieces does. It is all holes, and read at once.
pub struct PuzzledSource {
    disk: SlowSource,
    pub seen: Arc<Seen>,
}

/// What happened to it.
pub struct Seen {
    /// Questions so far.
    pub questions: AtomicUsize,
    /// Questions before the first read, once there was one.
    pub before_read: OnceLock<usize>,
    /// The first question waits for somebody here twice: to be seen, and to go on.
    pub first: Barrier,
}

struct PuzzledLeaf {
    seen: Arc<Seen>,
}

impl PuzzledSource {
    pub fn new(bytes: u64) -> PuzzledSource {
        let seen =
            Seen { questions: AtomicUsize::new(0), before_read: OnceLock::new(), first: Barrier::new(2) };
        PuzzledSource { disk: SlowSource::new(bytes), seen: Arc::new(seen) }
    }
}

impl LeafSource for PuzzledSource {
    fn open(&self) -> Box<dyn Leaf> {
        Box::new(PuzzledLeaf { seen: self.seen.clone() })
    }
    fn limits(&self) -> &Limits {
        self.disk.limits()
    }
    fn sectors(&self) -> Sectors {
        self.disk.sectors()
    }
    fn name(&self) -> &str {
        "puzzled"
    }
    fn read_now(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.disk.read_now(offset, into)
    }
    fn shared(&self) -> &Arc<LeafShared> {
        self.disk.shared()
    }
}

/// Processor time of this thread, nanoseconds.
fn worked() -> u128 {
    std::time::Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap().as_nanos()
}

impl Leaf for PuzzledLeaf {
    fn submit(&mut self, _env: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        if io.op == Op::Read {
            io.data.iter().for_each(|segment| segment.fill(0));
            self.seen.before_read.get_or_init(|| self.seen.questions.load(Ordering::SeqCst));
        }
        Submitted::Now(Ok(()))
    }

    fn allocation(&mut self, _sector: Sector, nr: Sectors) -> Result<(Allocation, Sectors), Errno> {
        if self.seen.questions.fetch_add(1, Ordering::SeqCst) == 0 {
            self.seen.first.wait();
            self.seen.first.wait();
        }
        let start = worked();
        while worked() < start + 2_000_000 {}
        Ok((Allocation::Hole, nr.min(Sectors(2048))))
    }
}

/// A disk each read of which keeps the worker until somebody has been at its gate twice: to see that it has begun, and to let it go on.
pub struct GatedSource {
    disk: SlowSource,
    pub gate: Arc<Barrier>,
}

struct GatedLeaf(Arc<Barrier>);

impl GatedSource {
    pub fn new(bytes: u64) -> GatedSource {
        GatedSource { disk: SlowSource::new(bytes), gate: Arc::new(Barrier::new(2)) }
    }
}

impl LeafSource for GatedSource {
    fn open(&self) -> Box<dyn Leaf> {
        Box::new(GatedLeaf(self.gate.clone()))
    }
    fn limits(&self) -> &Limits {
        self.disk.limits()
    }
    fn sectors(&self) -> Sectors {
        self.disk.sectors()
    }
    fn name(&self) -> &str {
        "gated"
    }
    fn read_now(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.disk.read_now(offset, into)
    }
    fn shared(&self) -> &Arc<LeafShared> {
        self.disk.shared()
    }
}

impl Leaf for GatedLeaf {
    fn submit(&mut self, _env: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        if io.op == Op::Read {
            self.0.wait();
            self.0.wait();
            io.data.iter().for_each(|segment| segment.fill(0));
        }
        Submitted::Now(Ok(()))
    }
}
