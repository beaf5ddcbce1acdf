//! Back ends that are killed, and others that go on with their rings by the ledger: each request is answered once, and what is
//! read is what was written.

use std::collections::{BTreeMap, BTreeSet};

use blockwork_engine::{Bio, Done, Errno, FileId, Flags, Op, Sector, Wait};
use blockwork_export::blkif::in_process::GrantTable;
use blockwork_export::blkif::{
    BackEnd, BackRing, Ended, FrontConfig, FrontQueue, FrontRing, Ledger, SharedPages,
};
use blockwork_format::blkif::{Abi, PAGE_BYTES};
use blockwork_memory::{Buffer, Segment, Segments};
use blockwork_sim::Random;

use crate::rig::{Rig, still_serves};

const ABI: Abi = Abi::Bits64;
/// Blocks of 4 KiB that the guest uses.
const BLOCKS: u64 = 100;

/// A guest that goes on whatever becomes of its back end.
struct Guest {
    queue: FrontQueue,
    random: Random,
    content: BTreeMap<u64, u8>,
    busy: BTreeSet<u64>,
    /// By cookie: the block, and what is written to it.
    asked: BTreeMap<u64, (u64, Option<u8>)>,
    next: u64,
}

impl Guest {
    fn ask(&mut self) {
        while self.queue.has_room() && self.random.below(4) > 0 {
            let block = self.random.below(BLOCKS);
            if !self.busy.insert(block) {
                continue;
            }
            let memory = Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES);
            let written = self.random.coin().then(|| self.random.below(256) as u8);
            memory.fill(written.unwrap_or(0xee));
            let (op, flags) = match (written, self.random.below(8)) {
                (None, _) => (Op::Read, Flags::NONE),
                (Some(_), 0) => (Op::Write, Flags::FUA),
                (Some(_), _) => (Op::Write, Flags::NONE),
            };
            let bio = Bio::with_data(op, flags, Sector(block * 8), Segments::from_iter([memory]));
            self.queue.submit(self.next, bio).expect("there is room");
            self.asked.insert(self.next, (block, written));
            self.next += 1;
        }
        self.queue.publish();
    }

    fn hear(&mut self) {
        let mut answers = Vec::new();
        self.queue.answers(&mut answers).expect("each answer is to a request that was not answered");
        for Done { cookie, result, data, .. } in answers {
            result.expect("the device fails nothing");
            let (block, written) = self.asked.remove(&cookie).expect("asked once, answered once");
            self.busy.remove(&block);
            match written {
                Some(value) => drop(self.content.insert(block, value)),
                None => {
                    let mut found = [0; 1];
                    data[0].read_at(7, &mut found);
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
    shared: SharedPages,
    grants: GrantTable,
    ledger: Buffer,
}

impl Setup {
    /// With a ring of so many pages.
    fn new(pages: usize) -> Setup {
        let pages: Vec<_> =
            (0..pages).map(|_| Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES)).collect();
        let shared = SharedPages::new(pages).expect("a power of two");
        let grants = GrantTable::default();
        let config = FrontConfig { abi: ABI, persistent: true, max_indirect_segments: 0, barrier: true };
        let queue = FrontQueue::new(config, FrontRing::new(shared.clone(), ABI), Box::new(grants.clone()));
        let ledger = Buffer::new(Ledger::bytes(queue.slots()));
        Setup { queue, shared, grants, ledger }
    }
}

fn lives(seed: u64) -> u32 {
    let mut rig = Rig::new(seed);
    let Setup { queue, shared, grants, ledger } = Setup::new(2);
    let mut guest = Guest {
        queue,
        random: Random::new(seed),
        content: BTreeMap::new(),
        busy: BTreeSet::new(),
        asked: BTreeMap::new(),
        next: 0,
    };
    let mut resumed = 0;
    for life in 0..20 {
        let (end, left): (BackEnd, u32) = rig.resume(shared.clone(), ABI, &ledger, &grants, life == 0);
        resumed += left;
        for _ in 0..guest.random.below(60) {
            guest.ask();
            rig.step();
            guest.hear();
        }
        still_serves(&end);
        rig.kill_worker();
    }
    rig.resume(shared, ABI, &ledger, &grants, false);
    for _ in 0..10_000 {
        rig.step();
        guest.hear();
    }
    assert_eq!(guest.queue.under_way(), 0, "requests that are never answered");
    for (block, value) in &guest.content {
        assert_eq!(rig.world.peek(FileId(0), block * 8)[9], *value);
    }
    resumed
}

#[test]
fn what_a_killed_back_end_has_taken_is_answered_once_by_the_next() {
    let resumed: u32 = (0..30).map(lives).sum();
    assert!(resumed > 1000, "only {resumed} requests were under way when their back end was killed");
}

#[test]
fn a_worker_that_is_told_to_end_leaves_nothing_open() {
    let mut rig = Rig::new(3);
    let Setup { mut queue, shared, grants, ledger } = Setup::new(1);
    let (end, _) = rig.resume(shared.clone(), ABI, &ledger, &grants, true);
    for n in 0..32 {
        queue.submit(n, Bio::flush()).unwrap();
    }
    queue.publish();
    rig.worker.turn(Wait::Poll);
    end.close();
    rig.worker.poke(rig.port.expect("it serves a ring"));
    rig.settle();
    assert!(end.ended().is_some());
    let (_, left) = rig.resume(shared, ABI, &ledger, &grants, false);
    assert_eq!(left, 0);
}

/// SIGTERM has come while a write waits for space in a pool, maybe for ever.
#[test]
fn a_write_that_waits_for_space_keeps_no_worker_from_ending_and_is_answered() {
    let mut rig = Rig::on_pool(4);
    let Setup { mut queue, shared, grants, ledger } = Setup::new(1);
    let (end, _) = rig.resume(shared.clone(), ABI, &ledger, &grants, true);
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
    let answered = BackRing::new(shared, ABI).next_answer();
    let left = Ledger::resume(ledger, ABI, 32, answered).expect("our own").left();
    assert_eq!((answered, left), (6, 0), "nothing is left open for the next server");
}
