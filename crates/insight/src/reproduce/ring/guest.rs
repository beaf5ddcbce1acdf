//! The guest: fio's threads, the request queue of its block layer, and blkfront's ring behind it.
//!
//! Each thread reads pages of 4 KiB and has four of them under way. A read that finds room in the ring goes there at once.
//! One that does not waits in the guest's queue, and there it is added to the end of what waits already, if it follows that on
//! the disk: as many pages as a request of the ring has segments for. That is what Linux' queue does (without a scheduler
//! worth the name: noop), and all that the guest does.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use blockwork_engine::{
    Bio, Completion, Context, Done, Errno, Flags, Nanos, Op, Port, PortState, SECTOR, Sector, Sectors,
    WorkerHandle,
};
use blockwork_export::blkif::in_process::Bell;
use blockwork_export::blkif::{EventChannel, FrontQueue};
use blockwork_format::blkif::SEGMENTS_MAX;
use blockwork_memory::{Segment, Segments};
use blockwork_sim::{Random, SimEnv};

use super::super::lab::Progress;
use super::Access;

/// Sectors of a page.
pub(super) const PAGE: u64 = 4096 / SECTOR;
/// Reads that a thread has under way.
pub(super) const DEPTH: u32 = 4;
/// Where the regions of sequential threads lie apart, pages: 1 GiB.
const REGION: u64 = 1 << 18;

/// What a guest tells.
#[derive(Default)]
pub(super) struct Told {
    pub(super) ended: Cell<Nanos>,
    /// Requests that were put into the ring.
    pub(super) requests: Cell<u64>,
    pub(super) failed: Cell<Option<Errno>>,
}

/// Pages in a row that wait for room in the ring, and whose they are.
struct Waiting {
    page: u64,
    threads: Vec<u32>,
}

/// See the module's head.
pub(super) struct Guest {
    queue: FrontQueue,
    bell: Bell,
    access: Access,
    random: Random,
    /// The next page of each thread.
    next: Vec<u64>,
    waiting: VecDeque<Waiting>,
    /// In the ring, by cookie.
    in_ring: BTreeMap<u64, Waiting>,
    cookie: u64,
    /// Reads to come, and those that came back.
    left: u64,
    done: u64,
    total: u64,
    answers: Vec<Done>,
    worker: WorkerHandle<SimEnv>,
    told: Rc<Told>,
    progress: Progress,
}

/// What a guest does.
pub(super) struct Job {
    pub(super) access: Access,
    pub(super) seed: u64,
    /// Reads in all.
    pub(super) reads: u64,
    /// Reads under way at once.
    pub(super) in_flight: u32,
}

impl Guest {
    pub(super) fn new(
        job: &Job,
        (queue, bell): (FrontQueue, Bell),
        worker: WorkerHandle<SimEnv>,
        told: Rc<Told>,
        progress: Progress,
    ) -> Guest {
        let threads = job.in_flight / DEPTH;
        Guest {
            queue,
            bell,
            access: job.access,
            random: Random::part(job.seed, 0),
            next: (0..threads).map(|thread| u64::from(thread) * REGION).collect(),
            waiting: VecDeque::new(),
            in_ring: BTreeMap::new(),
            cookie: 0,
            left: job.reads,
            done: 0,
            total: job.reads,
            answers: Vec::new(),
            worker,
            told,
            progress,
        }
    }

    /// A thread asks for its next page.
    fn read(&mut self, thread: u32) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let page = match self.access {
            Access::Random => self.random.below(self.next.len() as u64 * REGION),
            Access::Sequential => {
                let next = &mut self.next[thread as usize];
                *next += 1;
                *next - 1
            }
        };
        let follows = |waiting: &&mut Waiting| {
            waiting.page + waiting.threads.len() as u64 == page && waiting.threads.len() < SEGMENTS_MAX
        };
        match self.waiting.iter_mut().find(follows) {
            Some(waiting) => waiting.threads.push(thread),
            None => self.waiting.push_back(Waiting { page, threads: vec![thread] }),
        }
        // As soon as there is room, so that only what does not fit waits for others.
        self.fill();
    }

    /// Puts into the ring what waits and fits.
    fn fill(&mut self) {
        while self.queue.has_room()
            && let Some(waiting) = self.waiting.pop_front()
        {
            let bytes = Sectors(waiting.threads.len() as u64 * PAGE).byte_len();
            let memory = Segment::new(blockwork_memory::Buffer::new(bytes), 0, bytes);
            let data = Segments::from_iter([memory]);
            let bio = Bio::with_data(Op::Read, Flags::NONE, Sector(waiting.page * PAGE), data);
            self.queue.submit(self.cookie, bio).expect("there is room, and it has few pages");
            self.in_ring.insert(self.cookie, waiting);
            self.cookie += 1;
        }
    }

    /// What the ring's interrupt does: takes the answers, fills the ring anew; then the threads go on.
    fn interrupt(&mut self) {
        let mut answers = std::mem::take(&mut self.answers);
        self.queue.answers(&mut answers).expect("our back end keeps the protocol");
        self.fill();
        for done in answers.drain(..) {
            let Waiting { threads, .. } = self.in_ring.remove(&done.cookie).expect("an answer comes once");
            self.done += threads.len() as u64;
            if let Err(errno) = done.result {
                self.told.failed.set(Some(errno));
                self.left = 0;
            }
            threads.into_iter().for_each(|thread| self.read(thread));
        }
        self.answers = answers;
        (self.progress)(self.done as f64 / self.total as f64);
    }
}

impl Port<SimEnv> for Guest {
    fn open(&mut self, cx: &mut Context<'_, SimEnv>) {
        self.bell.open(cx);
        for thread in 0..u32::try_from(self.next.len()).expect("a guest has few threads") {
            (0..DEPTH).for_each(|_| self.read(thread));
        }
    }

    fn event(&mut self, _: &mut Context<'_, SimEnv>, _: u32, _: Completion) {}

    fn done(&mut self, _: &mut Context<'_, SimEnv>, _: Done) {}

    fn turn(&mut self, cx: &mut Context<'_, SimEnv>) -> PortState {
        self.interrupt();
        if self.queue.publish() {
            self.bell.notify(cx);
        }
        if !self.in_ring.is_empty() || !self.waiting.is_empty() {
            return PortState::Open;
        }
        self.told.ended.set(cx.now());
        self.told.requests.set(self.cookie);
        self.worker.stop();
        PortState::Closed
    }

    fn drain(&mut self, _: &mut Context<'_, SimEnv>) {}
}
