//! What it takes to find out which way is faster: instructions per request, by callgrind, of the engine over a leaf that serves one
//! request after the other in virtual time, with the setting and without.
//!
//! ```text
//!   bench/instructions                                            # runs it
//! ```
//!
//! `--elements N --element BYTES --auto 0|1 --ios M`: writes of so many elements, `linearize` off or auto; of one element it is `fixed` that is.
//! `--dearer PERCENT`: what goes the way instead takes so much longer; `--vectored-dearer PERCENT`: what goes the usual way does.
//! `--tell 1` prints what was found out.

mod rig;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::*;
use blockwork_memory::{Buffer, Segment, Segments};
use rig::{Deaf, RigLeaf, option};

const DEPTH: usize = 16;
const SECTORS: u64 = 1 << 30;
/// What a request takes, and how many have ended when the worker looks.
const SERVICE: u64 = 100_000;
const AT_ONCE: usize = 4;

/// What is served, and when it ends.
struct Slow {
    now: Nanos,
    free: Nanos,
    under_way: VecDeque<(Nanos, Completion)>,
    /// What goes the way instead takes (copies, and what does not go by known memory), and what goes the usual way, percent of what it would.
    percent: [u64; 2],
    noise: u64,
}

impl Env for Slow {
    fn now(&self) -> Nanos {
        self.now
    }
    fn random(&mut self) -> u64 {
        4
    }
    fn knows(&mut self, _: &Segment) -> bool {
        true
    }
    fn start(&mut self, token: Token, op: FileOp<'_>) {
        self.noise =
            self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Up to a tenth more or less.
        let varied = SERVICE * 9 / 10 + (self.noise >> 33) % (SERVICE / 5);
        // A copy, where there are several elements, and else what does not go by known memory.
        let is_instead = if op.len > 4096 { op.data.len() == 1 } else { !op.fixed };
        let service = varied * self.percent[usize::from(!is_instead)] / 100;
        self.free = Nanos(self.free.0.max(self.now.0) + service);
        let completion =
            Completion { token, result: i32::try_from(op.len).expect("a request's length"), flags: 0 };
        self.under_way.push_back((self.free, completion));
    }
    fn wait(&mut self, _: Wait, out: &mut Vec<Completion>) {
        for (at, completion) in self.under_way.drain(..AT_ONCE.min(self.under_way.len())) {
            self.now = at;
            out.push(completion);
        }
    }
    fn notifier(&self) -> Arc<dyn Notify> {
        Arc::new(Deaf)
    }
}

/// Keeps some writes under way, anywhere.
struct Client {
    nr: u64,
    state: u64,
    idle: Vec<Segments>,
    done: Rc<Cell<u64>>,
}

impl Port<Slow> for Client {
    fn open(&mut self, _: &mut Context<'_, Slow>) {}
    fn event(&mut self, _: &mut Context<'_, Slow>, _: u32, _: Completion) {}
    fn drain(&mut self, _: &mut Context<'_, Slow>) {}
    fn done(&mut self, _: &mut Context<'_, Slow>, done: Done) {
        done.result.expect("this leaf never fails");
        self.idle.push(done.data);
        self.done.set(self.done.get() + 1);
    }
    fn turn(&mut self, cx: &mut Context<'_, Slow>) -> PortState {
        while let Some(data) = self.idle.pop() {
            self.state =
                self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let sector = Sector((self.state >> 33) % (SECTORS / self.nr) * self.nr);
            cx.submit(VolumeId(0), 0, Bio::with_data(Op::Write, Flags::NONE, sector, data));
        }
        PortState::Open
    }
}

fn main() {
    let number = |name: &str, or: u64| option(name).unwrap_or(or);
    let (elements, element) = (number("--elements", 8) as usize, number("--element", 4096) as usize);
    let auto = number("--auto", 1) == 1;
    let limits = Limits {
        max_sectors: Sectors(4096),
        max_hw_sectors: Sectors(4096),
        max_segments: 256,
        linearize: if auto && elements > 1 { Linearize::Auto } else { Linearize::Off },
        hw_fixed: true,
        fixed: if auto && elements == 1 { Fixed::Auto } else { Fixed::Off },
        ..Limits::default()
    };
    let layer = LeafLayer::new(LeafId(0), NodeId(0), Sectors(SECTORS), limits.clone());
    let stats = Stats::new(vec![NodeInfo { name: "leaf".into(), kind: NodeKind::Leaf, device: (0, 0) }]);
    let volumes: Arc<[Volume]> = Arc::new([Volume::new("bench", Arc::new(layer), false)]);
    let source: Arc<dyn LeafSource> = Arc::new(RigLeaf::file(Sectors(SECTORS), limits));
    let config = WorkerConfig::new(volumes, vec![(NodeId(0), source)].into(), stats.worker());
    let percent = [100 + number("--dearer", 0), 100 + number("--vectored-dearer", 0)];
    let env = Slow { now: Nanos(1), free: Nanos(1), under_way: VecDeque::new(), percent, noise: 1 };
    let mut worker = Worker::new(env, config);
    let piece = |_| Segment::new(Buffer::new(element), 0, element);
    let memory = |_| -> Segments { (0..elements).map(piece).collect() };
    let done = Rc::new(Cell::new(0));
    let nr = (elements * element / 512) as u64;
    let client = Client { nr, state: 1, idle: (0..DEPTH).map(memory).collect(), done: done.clone() };
    worker.add_port(Box::new(client));
    worker.poke(PortId(0));
    let ios = number("--ios", 100_000);
    while done.get() < ios {
        worker.turn(Wait::Poll);
    }
    if option("--tell").is_some() {
        stats.choices().iter().for_each(|class| println!("{class:?}"));
    }
}
