//! Back ends that are killed, and others that go on with their rings by the ledger: each request is answered once, and what is
//! read is what was written.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blockwork_engine::{Bio, Done, Errno, FileId, Flags, Op, Sector, Wait};
use blockwork_export::blkif::in_process::GrantTable;
use blockwork_export::blkif::{BackRing, Ended, FrontConfig, FrontQueue, FrontRing, Ledger, SharedPages};
use blockwork_format::blkif::{Abi, PAGE_BYTES};
use blockwork_memory::{Buffer, Segment, Segments};
use blockwork_sim::Random;

use crate::rig::{Death, Lasting, Rig, still_serves};

/// Blocks of 4 KiB that the guest uses.
const BLOCKS: u64 = 200;
/// Blocks of a large request: more than a request names without pages of segments.
const LARGE: u64 = 20;

/// What was asked for.
struct Asked {
    /// Of which queue.
    queue: usize,
    start: u64,
    nr: u64,
    /// What is written, if anything.
    written: Option<u8>,
}

/// A guest that goes on whatever becomes of its back ends.
struct Guest {
    queues: Vec<FrontQueue>,
    random: Random,
    content: BTreeMap<u64, u8>,
    busy: BTreeSet<u64>,
    /// By cookie.
    asked: BTreeMap<u64, Asked>,
    next: u64,
}

impl Guest {
    fn new(queues: Vec<FrontQueue>, seed: u64) -> Guest {
        let (content, busy, asked) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Guest { queues, random: Random::new(seed), content, busy, asked, next: 0 }
    }

    fn ask(&mut self) {
        for queue in 0..self.queues.len() {
            while self.queues[queue].has_room() && self.random.below(4) > 0 {
                self.ask_one(queue);
            }
            self.queues[queue].publish();
        }
    }

    fn ask_one(&mut self, queue: usize) {
        let is_large = self.queues[queue].max_segments() as u64 >= LARGE && self.random.coin();
        let nr = if is_large { LARGE } else { 1 };
        let start = self.random.below(BLOCKS - nr + 1);
        if (start..start + nr).any(|block| self.busy.contains(&block)) {
            return;
        }
        self.busy.extend(start..start + nr);
        let bytes = nr as usize * PAGE_BYTES;
        let memory = Segment::new(Buffer::new(bytes), 0, bytes);
        let written = self.random.coin().then(|| self.random.below(256) as u8);
        memory.fill(written.unwrap_or(0xee));
        let (op, flags) = match (written, self.random.below(8)) {
            (None, _) => (Op::Read, Flags::NONE),
            // A barrier has no pages of segments.
            (Some(_), 0) if !is_large => (Op::Write, Flags::FUA),
            (Some(_), _) => (Op::Write, Flags::NONE),
        };
        let bio = Bio::with_data(op, flags, Sector(start * 8), Segments::from_iter([memory]));
        self.queues[queue].submit(self.next, bio).expect("there is room");
        self.asked.insert(self.next, Asked { queue, start, nr, written });
        self.next += 1;
    }

    fn hear(&mut self) {
        for queue in 0..self.queues.len() {
            let mut answers = Vec::new();
            self.queues[queue]
                .answers(&mut answers)
                .expect("each answer is to a request that was not answered");
            answers.into_iter().for_each(|done| self.check(queue, done));
        }
    }

    fn check(&mut self, by: usize, Done { cookie, result, data, .. }: Done) {
        result.expect("the device fails nothing");
        let Asked { queue, start, nr, written } =
            self.asked.remove(&cookie).expect("asked once, answered once");
        assert_eq!(by, queue, "answered in the ring in which it was asked");
        for (n, block) in (start..start + nr).enumerate() {
            self.busy.remove(&block);
            match written {
                Some(value) => drop(self.content.insert(block, value)),
                None => {
                    let mut found = [0; 1];
                    data[0].read_at(n * PAGE_BYTES + 7, &mut found);
                    let expected = self.content.get(&block).copied().unwrap_or(0);
                    assert_eq!(found[0], expected, "block {block}");
                }
            }
        }
    }
}

/// A guest's side of a queue, and what outlives its back ends.
struct Setup {
    queue: FrontQueue,
    ring: Lasting,
}

impl Setup {
    /// With a ring of so many pages.
    fn new(pages: usize) -> Setup {
        Setup::with(pages, Abi::NATIVE, 0)
    }

    fn with(pages: usize, abi: Abi, max_indirect_segments: u32) -> Setup {
        let pages: Vec<_> =
            (0..pages).map(|_| Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES)).collect();
        let shared = SharedPages::new(pages).expect("a power of two");
        let grants = GrantTable::default();
        let config = FrontConfig { abi, persistent: true, max_indirect_segments, barrier: true };
        let queue = FrontQueue::new(config, FrontRing::new(shared.clone(), abi), Box::new(grants.clone()));
        let ledger = Buffer::new(Ledger::bytes(queue.slots()));
        Setup { queue, ring: Lasting { shared, abi, max_indirect_segments, ledger, grants } }
    }
}

/// Requests that were left for another back end, and answers that were put into a ring and not published when theirs was killed.
fn lives(seed: u64, queues: usize, abi: Abi, max_indirect_segments: u32) -> (u32, u32) {
    let mut rig = Rig::new(seed);
    let setups = (0..queues).map(|_| Setup::with(2, abi, max_indirect_segments));
    let (queues, rings): (Vec<_>, Vec<_>) = setups.map(|setup| (setup.queue, setup.ring)).unzip();
    let mut guest = Guest::new(queues, seed);
    let (mut resumed, mut unpublished) = (0, 0);
    for life in 0..20 {
        let death = Rc::new(Death::default());
        let mut ends = Vec::new();
        for ring in &rings {
            let (end, left) = rig.resume(ring, life == 0, death.clone());
            resumed += left;
            ends.push(end);
        }
        let steps = guest.random.below(60);
        let last = steps.saturating_sub(guest.random.below(4));
        for step in 0..steps {
            death.is_dead.set(step >= last);
            guest.ask();
            rig.step();
            guest.hear();
        }
        ends.iter().for_each(still_serves);
        unpublished += death.unpublished.get();
        rig.kill_worker();
    }
    rings.iter().for_each(|ring| drop(rig.resume(ring, false, Rc::default())));
    for _ in 0..10_000 {
        rig.step();
        guest.hear();
    }
    let under_way: usize = guest.queues.iter().map(FrontQueue::under_way).sum();
    assert_eq!(under_way, 0, "requests that are never answered");
    for (block, value) in &guest.content {
        assert_eq!(rig.world.peek(FileId(0), block * 8)[9], *value);
    }
    (resumed, unpublished)
}

#[test]
fn what_a_killed_back_end_has_taken_is_answered_once_by_the_next() {
    for queues in [1, 2] {
        for abi in [Abi::Bits64, Abi::Bits32] {
            for max_indirect_segments in [0, 256] {
                let (mut resumed, mut unpublished) = (0, 0);
                for seed in 0..15 {
                    let (left, put) = lives(seed, queues, abi, max_indirect_segments);
                    (resumed, unpublished) = (resumed + left, unpublished + put);
                }
                let shape = format!("{queues} queues, {abi:?}, {max_indirect_segments} segments");
                assert!(
                    resumed > 500,
                    "{shape}: only {resumed} requests were under way when their back end was killed"
                );
                assert!(
                    unpublished > 50,
                    "{shape}: only {unpublished} answers were in a ring and not published"
                );
            }
        }
    }
}

#[test]
fn a_worker_that_is_told_to_end_leaves_nothing_open() {
    let mut rig = Rig::new(3);
    let Setup { mut queue, ring } = Setup::new(1);
    let (end, _) = rig.resume(&ring, true, Rc::default());
    for n in 0..32 {
        queue.submit(n, Bio::flush()).unwrap();
    }
    queue.publish();
    rig.worker.turn(Wait::Poll);
    end.close();
    rig.worker.poke(rig.port.expect("it serves a ring"));
    rig.settle();
    assert!(end.ended().is_some());
    let (_, left) = rig.resume(&ring, false, Rc::default());
    assert_eq!(left, 0);
}

/// SIGTERM has come while a write waits for space in a pool, maybe for ever.
#[test]
fn a_write_that_waits_for_space_keeps_no_worker_from_ending_and_is_answered() {
    let mut rig = Rig::on_pool(4);
    let Setup { mut queue, ring } = Setup::new(1);
    let (end, _) = rig.resume(&ring, true, Rc::default());
    for n in 0..6 {
        let data = Segments::from_iter([Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES)]);
        queue.submit(n, Bio::with_data(Op::Write, Flags::NONE, Sector(n * 128), data)).unwrap();
    }
    queue.publish();
    let mut heard = Vec::new();
    let mut hear = |rig: &mut Rig| {
        for _ in 0..10_000 {
            rig.step();
            queue.answers(&mut heard).expect("each answer is to a request that was not answered");
        }
        heard.drain(..).map(|done| done.result).collect::<Vec<_>>()
    };
    assert_eq!(hear(&mut rig), [Ok(()); 4], "two wait for space");
    assert!(rig.worker.ended().is_none());
    rig.worker.handle().stop();
    assert_eq!(hear(&mut rig), [Err(Errno::EIO); 2]);
    assert_eq!((end.ended(), rig.worker.ended()), (Some(&Ended::Closed), Some(Ok(()))));
    let answered = BackRing::new(ring.shared, ring.abi).next_answer();
    let left = Ledger::resume(ring.ledger, ring.abi, 32, answered).expect("our own").left();
    assert_eq!((answered, left), (6, 0), "nothing is left open for the next server");
}

/// What a pool has not committed dies with the worker, and the guest, which goes on with the next one, would not hear of that.
#[test]
fn a_write_to_a_new_block_of_a_pool_is_answered_when_the_pool_has_committed() {
    let superblock = |rig: &Rig| (0..8).map(|sector| rig.world.peek(FileId(0), sector)).collect::<Vec<_>>();
    let mut rig = Rig::on_pool(4);
    let Setup { mut queue, ring } = Setup::new(1);
    let (end, _) = rig.resume(&ring, true, Rc::default());
    let before = superblock(&rig);
    let data = Segments::from_iter([Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES)]);
    queue.submit(0, Bio::with_data(Op::Write, Flags::NONE, Sector(0), data)).unwrap();
    queue.publish();
    let mut heard = Vec::new();
    while heard.is_empty() {
        rig.step();
        queue.answers(&mut heard).expect("each answer is to a request that was not answered");
    }
    assert_eq!(heard[0].result, Ok(()));
    assert!(superblock(&rig) != before, "it would be lost");
    still_serves(&end);
}
