//! Requests to a real file with a setting off, on and auto, in turns: how long each takes, and what auto has chosen. The setting is
//! `linearize` where they have several elements, and `fixed` where they have one.
//! `bench/run linearize fixed` runs it.
//!
//! ```text
//!   linearize FILE ELEMENTS ELEMENT_BYTES DEPTH REQUESTS ROUNDS read|write      # prints one line of JSON
//! ```
//!
//! Each way is a leaf of its own on the one file (so its lock has to be off: `FILE,lock=off`), and all are one worker's: requests and copies lie in
//! the same memory then. What a device takes for a MiB depends on where its pages happen to lie, by more than the ways may differ.
//! In each round all of them make their share of the requests, one way after the other, in all orders by turns: what a disk gives varies
//! more from second to second than the ways differ, and what one turn leaves behind in the disk falls on the next. Before that auto alone makes
//! requests until it has decided, or has made [`UNTIL`] times as many as each way will: what it decides from is the same noise, so that takes
//! its time.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use blockwork_engine::{
    Bio, ChoiceSnapshot, Completion, Context, Done, Flags, LeafId, LeafLayer, LeafSource, NodeId, NodeInfo,
    NodeKind, Op, Port, PortId, PortState, Sector, Sectors, Stats, Volume, VolumeId, Wait, Worker,
    WorkerConfig,
};
use blockwork_leaf::{OpenOptions, open};
use blockwork_memory::{Buffer, Segment, Segments};
use blockwork_uring::{Uring, UringConfig};
use rustix::time::{ClockId, clock_gettime};

const WAYS: [&str; 3] = ["off", "on", "auto"];
const AUTO: usize = 2;
/// Requests for finding out, at most, as a multiple of those of each way.
const UNTIL: usize = 4;
/// In which order they take their turns: each comes first, second and third, and behind each other one, as often.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

#[derive(Clone, Copy)]
struct Job {
    op: Op,
    elements: usize,
    /// Bytes of one.
    element: usize,
    depth: usize,
}

impl Job {
    /// What is asked about; of the other nothing is found out besides.
    fn settings(self, way: &str) -> Vec<(String, String)> {
        let [asked, other] = if self.elements > 1 { ["linearize", "fixed"] } else { ["fixed", "linearize"] };
        vec![(asked.to_owned(), way.to_owned()), (other.to_owned(), "off".to_owned())]
    }

    /// Memory for the requests of a client, each element by `buffer`.
    fn memory(self, buffer: impl Fn(usize) -> Buffer) -> Vec<Segments> {
        let piece = |_| Segment::new(buffer(self.element), 0, self.element);
        (0..self.depth).map(|_| (0..self.elements).map(piece).collect()).collect()
    }

    fn nr(self) -> Sectors {
        Sectors::from_bytes_floor((self.elements * self.element) as u64)
    }
}

/// How far the client is, how far it is to go, and which way.
#[derive(Default)]
struct Progress {
    done: Cell<u64>,
    wanted: Cell<u64>,
    way: Cell<u16>,
}

struct Client {
    job: Job,
    /// Places where a request fits.
    places: u64,
    asked: u64,
    progress: Rc<Progress>,
    /// Memory for requests that are not under way.
    idle: Vec<Segments>,
}

impl Port<Uring> for Client {
    fn open(&mut self, cx: &mut Context<'_, Uring>) {
        self.idle = if self.job.elements == 1 {
            // The worker's own memory, which can be registered.
            self.job.memory(|len| cx.pool().get(len))
        } else {
            self.job.memory(Buffer::new)
        };
    }
    fn event(&mut self, _: &mut Context<'_, Uring>, _: u32, _: Completion) {}
    fn drain(&mut self, _: &mut Context<'_, Uring>) {}

    fn done(&mut self, _: &mut Context<'_, Uring>, done: Done) {
        done.result.expect("the file can be read and written");
        self.progress.done.set(self.progress.done.get() + 1);
        self.idle.push(done.data);
    }

    fn turn(&mut self, cx: &mut Context<'_, Uring>) -> PortState {
        let (op, nr, volume) = (self.job.op, self.job.nr(), VolumeId(self.progress.way.get()));
        while self.asked < self.progress.wanted.get()
            && let Some(data) = self.idle.pop()
        {
            // Scattered, so that nothing adjoins.
            let place = self.asked.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.places;
            cx.submit(volume, self.asked, Bio::with_data(op, Flags::NONE, Sector(place * nr.0), data));
            self.asked += 1;
        }
        PortState::Open
    }
}

/// A worker that goes all ways.
struct Stand {
    worker: Worker<Uring>,
    port: PortId,
    progress: Rc<Progress>,
    stats: Stats,
}

impl Stand {
    fn new(file: &str, job: Job) -> Stand {
        let sources = WAYS.map(|way| {
            let options = OpenOptions { settings: job.settings(way), ..OpenOptions::default() };
            open(file, &options).expect("the file opens").source
        });
        let places = sources[0].sectors().0 / job.nr().0;
        let leaf = |n: usize| NodeId(n as u16);
        let volume = |n: usize, source: &dyn LeafSource| {
            let layer = LeafLayer::new(LeafId(n as u16), leaf(n), source.sectors(), source.limits().clone());
            Volume::new(WAYS[n], Arc::new(layer), false)
        };
        let volumes: Vec<Volume> =
            sources.iter().enumerate().map(|(n, source)| volume(n, &**source)).collect();
        let nodes = WAYS.map(|way| NodeInfo { name: way.to_owned(), kind: NodeKind::Leaf, device: (0, 0) });
        let stats = Stats::new(nodes.into());
        let sources: Vec<_> = sources.into_iter().enumerate().map(|(n, source)| (leaf(n), source)).collect();
        let config = WorkerConfig::new(volumes.into(), sources.into(), stats.worker());
        let mut worker = Worker::new(Uring::new(&UringConfig::default()).expect("io_uring works"), config);
        let progress = Rc::new(Progress::default());
        let client = Client { job, places, asked: 0, progress: progress.clone(), idle: Vec::new() };
        let port = worker.add_port(Box::new(client));
        Stand { worker, port, progress, stats }
    }

    /// Seconds that so many requests take that way, and seconds of the processor's time.
    fn run(&mut self, way: usize, requests: u64) -> [f64; 2] {
        let Progress { done, wanted, way: chosen } = &*self.progress;
        chosen.set(way as u16);
        wanted.set(wanted.get() + requests);
        let (began, before) = (Instant::now(), processor_seconds());
        self.worker.poke(self.port);
        self.worker.turn(Wait::Poll);
        while done.get() < wanted.get() {
            self.worker.turn(Wait::Until(None));
        }
        [began.elapsed().as_secs_f64(), processor_seconds() - before]
    }

    /// What auto found out about the requests of the benchmark: those that there are most of. (Two that happen to adjoin are one of another class.)
    fn found(&self) -> Option<ChoiceSnapshot> {
        let of_auto = self.stats.choices().into_iter().filter(|class| usize::from(class.node.0) == AUTO);
        of_auto.max_by_key(|class| class.requests.iter().sum::<u64>())
    }

    /// Requests that auto made until it had decided, and whether it has; `each` at a time, `most` at most.
    fn decide(&mut self, each: usize, most: usize) -> (usize, bool) {
        let is_trying = |found: &ChoiceSnapshot| found.workers[0] > 0;
        let mut made = 0;
        while made < most && self.found().as_ref().is_none_or(is_trying) {
            self.run(AUTO, each as u64);
            made += each;
        }
        (made, !self.found().as_ref().is_none_or(is_trying))
    }
}

/// Of this thread, until now.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() {
    // cargo adds `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let [file, elements, element, depth, requests, rounds, op] = args.as_slice() else {
        println!("usage: linearize FILE ELEMENTS ELEMENT_BYTES DEPTH REQUESTS ROUNDS read|write");
        return;
    };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let op = if op == "read" { Op::Read } else { Op::Write };
    let job = Job { op, elements: number(elements), element: number(element), depth: number(depth) };
    let (requests, rounds) = (number(requests), number(rounds).max(1));
    let mut stand = Stand::new(file, job);
    let (made, is_decided) = stand.decide(requests / rounds, UNTIL * requests);
    let before = stand.found().map_or([0; 2], |found| found.requests);
    let mut turns = WAYS.map(|_| Vec::new());
    for order in ORDERS.iter().cycle().take(rounds) {
        for way in *order {
            turns[way].push(stand.run(way, (requests / rounds) as u64));
        }
    }
    let found = stand.found().expect("auto has made requests");
    let [usual, instead] = [0, 1].map(|way| found.requests[way] - before[way]);
    let list = |turns: &[[f64; 2]], what: usize| {
        let turns: Vec<String> = turns.iter().map(|turn| format!("{:.6}", turn[what])).collect();
        turns.join(", ")
    };
    let [off, on, auto] = turns
        .map(|turns| format!("{{\"seconds\": [{}], \"processor\": [{}]}}", list(&turns, 0), list(&turns, 1)));
    println!(
        "{{\"requests\": {}, \"until_decided\": {made}, \"decided\": {is_decided}, \"off\": {off}, \"on\": {on}, \"auto\": {auto}, \
         \"ways\": {:?}, \"by_way\": [{usual}, {instead}], \"ns_per_byte\": {:?}, \"pairs\": {}, \"decisions\": {}, \"changes\": {}, \"alarms\": {}}}",
        requests / rounds,
        found.subject.ways(),
        found.ns_per_byte,
        found.pairs,
        found.settlements,
        found.changes,
        found.alarms,
    );
}
