//! A disk that answers when nobody asks for more: whoever begins as much as it likes while a disk is slow has begun all of it by then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blockwork_engine::{
    Completion, Ended, Env, Errno, Leaf, LeafIo, LeafShared, LeafSource, Limits, Nanos, Op, Sectors,
    Submitted, Token,
};

/// Turns of the worker without a further request after which it answers.
const QUIET: u32 = 5;

/// See the module. It reads as zeros.
pub struct SlowSource {
    bytes: u64,
    limits: Limits,
    shared: LeafShared,
    most: Arc<AtomicUsize>,
}

impl SlowSource {
    pub fn new(bytes: u64) -> SlowSource {
        // As many requests at a time as anybody likes: what is under way then is what was begun.
        let limits = Limits { nr_requests: 1 << 16, ..Limits::default() };
        SlowSource { bytes, limits, shared: LeafShared::default(), most: Arc::default() }
    }

    /// Most bytes that were under way at a time.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

impl LeafSource for SlowSource {
    fn open(&self) -> Box<dyn Leaf> {
        Box::new(SlowLeaf { under_way: Vec::new(), quiet: 0, most: self.most.clone() })
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
    fn shared(&self) -> &LeafShared {
        &self.shared
    }
}

struct SlowLeaf {
    under_way: Vec<(Token, u32)>,
    quiet: u32,
    most: Arc<AtomicUsize>,
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
        if self.quiet < QUIET {
            return tick(env, self.under_way[0].0);
        }
        ended.extend(self.under_way.drain(..).map(|(token, bytes)| Ended { token, result: Ok(bytes) }));
    }
}
