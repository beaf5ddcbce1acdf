//! Vectored requests to a real file with `linearize` off, on and auto, in turns: how long each takes, and what auto has chosen.
//! `bench/run linearize` runs it.
//!
//! ```text
//!   linearize FILE ELEMENTS ELEMENT_BYTES DEPTH REQUESTS ROUNDS read|write      # prints one line of JSON
//! ```
//!
//! Each way has a worker of its own on the one file. In each round all of them make their share of the requests, one way after the
//! other, in another order each time: what a disk gives varies more from second to second than the ways differ.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use blockwork_engine::{
    Bio, Completion, Context, Done, Flags, LeafId, LeafLayer, NodeId, NodeInfo, NodeKind, Op, Port, PortId,
    PortState, Sector, Sectors, Stats, Volume, VolumeId, Wait, Worker, WorkerConfig,
};
use blockwork_leaf::{OpenOptions, open};
use blockwork_memory::{Buffer, Segment, Segments};
use blockwork_uring::{Uring, UringConfig};

const WAYS: [&str; 3] = ["off", "on", "auto"];

#[derive(Clone, Copy)]
struct Job {
    op: Op,
    elements: usize,
    /// Bytes of one.
    element: usize,
    depth: usize,
}

impl Job {
    fn nr(self) -> Sectors {
        Sectors::from_bytes_floor((self.elements * self.element) as u64)
    }
}

/// How far a client is, and how far it is to go.
#[derive(Default)]
struct Progress {
    done: Cell<u64>,
    wanted: Cell<u64>,
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
    fn open(&mut self, _: &mut Context<'_, Uring>) {}
    fn event(&mut self, _: &mut Context<'_, Uring>, _: u32, _: Completion) {}
    fn drain(&mut self, _: &mut Context<'_, Uring>) {}

    fn done(&mut self, _: &mut Context<'_, Uring>, done: Done) {
        done.result.expect("the file can be read and written");
        self.progress.done.set(self.progress.done.get() + 1);
        self.idle.push(done.data);
    }

    fn turn(&mut self, cx: &mut Context<'_, Uring>) -> PortState {
        let (op, nr) = (self.job.op, self.job.nr());
        while self.asked < self.progress.wanted.get()
            && let Some(data) = self.idle.pop()
        {
            // Scattered, so that nothing adjoins.
            let place = self.asked.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.places;
            cx.submit(VolumeId(0), self.asked, Bio::with_data(op, Flags::NONE, Sector(place * nr.0), data));
            self.asked += 1;
        }
        PortState::Open
    }
}

/// A worker that goes one way.
struct Stand {
    worker: Worker<Uring>,
    port: PortId,
    progress: Rc<Progress>,
    stats: Stats,
}

impl Stand {
    fn new(file: &str, way: &str, job: Job) -> Stand {
        // Alone: what is found out about registered buffers besides is not the question.
        let settings = vec![("linearize".to_owned(), way.to_owned()), ("fixed".to_owned(), "off".to_owned())];
        let source =
            open(file, &OpenOptions { settings, ..OpenOptions::default() }).expect("the file opens").source;
        let layer = LeafLayer::new(LeafId(0), NodeId(0), source.sectors(), source.limits().clone());
        let node = NodeInfo { name: file.to_owned(), kind: NodeKind::Leaf, device: (0, 0) };
        let stats = Stats::new(vec![node]);
        let volumes: Arc<[Volume]> = Arc::new([Volume::new("bench", Arc::new(layer), false)]);
        let places = source.sectors().0 / job.nr().0;
        let config = WorkerConfig::new(volumes, vec![(NodeId(0), source)].into(), stats.worker());
        let mut worker = Worker::new(Uring::new(&UringConfig::default()).expect("io_uring works"), config);
        let piece = |_| Segment::new(Buffer::new(job.element), 0, job.element);
        let memory = |_| -> Segments { (0..job.elements).map(piece).collect() };
        let idle = (0..job.depth).map(memory).collect();
        let progress = Rc::new(Progress::default());
        let client = Client { job, places, asked: 0, progress: progress.clone(), idle };
        let port = worker.add_port(Box::new(client));
        Stand { worker, port, progress, stats }
    }

    /// Seconds that so many requests take.
    fn run(&mut self, requests: u64) -> f64 {
        let Progress { done, wanted } = &*self.progress;
        wanted.set(wanted.get() + requests);
        let began = Instant::now();
        self.worker.poke(self.port);
        self.worker.turn(Wait::Poll);
        while done.get() < wanted.get() {
            self.worker.turn(Wait::Until(None));
        }
        began.elapsed().as_secs_f64()
    }
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
    let mut stands = WAYS.map(|way| Stand::new(file, way, job));
    let mut seconds = WAYS.map(|_| Vec::new());
    for round in 0..rounds {
        for turn in 0..WAYS.len() {
            let way = (round + turn) % WAYS.len();
            seconds[way].push(stands[way].run((requests / rounds) as u64));
        }
    }
    let found = stands[2].stats.choices();
    let sum = |way: usize| found.iter().map(|class| class.requests[way]).sum::<u64>();
    let (all, copied) = (sum(0) + sum(1), sum(1));
    let told: Vec<_> = found
        .iter()
        .map(|class| (class.workers, class.ns_per_byte, class.pairs, class.settlements))
        .collect();
    let [off, on, auto] = seconds.map(|all| {
        let rounds: Vec<String> = all.iter().map(|one| format!("{one:.6}")).collect();
        format!("[{}]", rounds.join(", "))
    });
    println!(
        "{{\"off\": {off}, \"on\": {on}, \"auto\": {auto}, \"copied\": {:.4}, \"found\": \"{told:?}\"}}",
        copied as f64 / all.max(1) as f64
    );
}
