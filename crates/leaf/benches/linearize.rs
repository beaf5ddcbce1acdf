//! Vectored requests to a real file with `linearize` off, on or auto: how long they take, and what was chosen. `bench/run linearize`
//! runs it.
//!
//! ```text
//!   linearize FILE off|on|auto ELEMENTS ELEMENT_BYTES DEPTH REQUESTS read|write      # prints one line of JSON
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use blockwork_engine::{
    Bio, Completion, Context, Done, Flags, LeafId, LeafLayer, NodeId, NodeInfo, NodeKind, Op, Port,
    PortState, Sector, Sectors, Stats, Volume, VolumeId, Worker, WorkerConfig, WorkerHandle,
};
use blockwork_leaf::{OpenOptions, open};
use blockwork_memory::{Buffer, Segment, Segments};
use blockwork_uring::{Uring, UringConfig};

struct Job {
    op: Op,
    requests: u64,
    /// Sectors of a request, and places where one fits.
    nr: Sectors,
    places: u64,
}

struct Client {
    job: Job,
    asked: u64,
    done: Rc<Cell<u64>>,
    /// Memory for requests that are not under way.
    idle: Vec<Segments>,
    worker: WorkerHandle<Uring>,
}

impl Port<Uring> for Client {
    fn open(&mut self, _: &mut Context<'_, Uring>) {}
    fn event(&mut self, _: &mut Context<'_, Uring>, _: u32, _: Completion) {}
    fn drain(&mut self, _: &mut Context<'_, Uring>) {}

    fn done(&mut self, _: &mut Context<'_, Uring>, done: Done) {
        done.result.expect("the file can be read and written");
        self.done.set(self.done.get() + 1);
        self.idle.push(done.data);
    }

    fn turn(&mut self, cx: &mut Context<'_, Uring>) -> PortState {
        let Job { op, requests, nr, places } = self.job;
        while self.asked < requests
            && let Some(data) = self.idle.pop()
        {
            // Scattered, so that nothing adjoins.
            let place = self.asked.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places;
            cx.submit(VolumeId(0), self.asked, Bio::with_data(op, Flags::NONE, Sector(place * nr.0), data));
            self.asked += 1;
        }
        if self.done.get() < requests {
            return PortState::Open;
        }
        self.worker.stop();
        PortState::Closed
    }
}

fn main() {
    // cargo adds `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let [file, way, elements, element, depth, requests, op] = args.as_slice() else {
        println!("usage: linearize FILE off|on|auto ELEMENTS ELEMENT_BYTES DEPTH REQUESTS read|write");
        return;
    };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let (elements, element, depth) = (number(elements), number(element), number(depth));
    // Alone: what is found out about registered buffers besides is not the question.
    let settings = vec![("linearize".to_owned(), way.clone()), ("fixed".to_owned(), "off".to_owned())];
    let source =
        open(file, &OpenOptions { settings, ..OpenOptions::default() }).expect("the file opens").source;
    let layer = LeafLayer::new(LeafId(0), NodeId(0), source.sectors(), source.limits().clone());
    let stats = Stats::new(vec![NodeInfo { name: file.clone(), kind: NodeKind::Leaf, device: (0, 0) }]);
    let volumes: Arc<[Volume]> = Arc::new([Volume::new("bench", Arc::new(layer), false)]);
    let nr = Sectors::from_bytes_floor((elements * element) as u64);
    let job = Job {
        op: if op == "read" { Op::Read } else { Op::Write },
        requests: number(requests) as u64,
        nr,
        places: source.sectors().0 / nr.0,
    };
    let config = WorkerConfig::new(volumes, vec![(NodeId(0), source)].into(), stats.worker());
    let mut worker = Worker::new(Uring::new(&UringConfig::default()).expect("io_uring works"), config);
    let memory =
        |_| -> Segments { (0..elements).map(|_| Segment::new(Buffer::new(element), 0, element)).collect() };
    let done = Rc::new(Cell::new(0));
    let idle = (0..depth).map(memory).collect();
    worker.add_port(Box::new(Client { job, asked: 0, done: done.clone(), idle, worker: worker.handle() }));
    let began = Instant::now();
    worker.run().expect("the worker runs");
    let seconds = began.elapsed().as_secs_f64();
    let found = stats.choices();
    let copied: u64 = found.iter().map(|class| class.requests[1]).sum();
    let workers: Vec<_> = found.iter().map(|class| class.workers).collect();
    println!(
        "{{\"requests\": {}, \"seconds\": {seconds:.6}, \"copied\": {copied}, \"trying_vectored_linear\": {workers:?}}}",
        done.get()
    );
}
