//! Guests that keep the protocol: whatever the ring's size, the layout, the pages and the order in which the device answers,
//! what is read is what was written.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blockwork_engine::{
    Bio, Completion, Context, Done, Errno, Flags, Fua, Op, Port, PortState, Sector, Sectors, Wait,
    WorkerHandle,
};
use blockwork_export::blkif::in_process::Bell;
use blockwork_export::blkif::{Ended, EventChannel, FrontQueue, FrontWants, Mappings, Refused};
use blockwork_format::blkif::{Abi, SEGMENTS_MAX};
use blockwork_memory::{Buffer, Segment, Segments, slice_segments};
use blockwork_sim::{Chaos, Fault, Random, SimEnv};

use crate::rig::{Rig, SECTORS, WANTS, still_serves};

const BLOCK: u64 = 8;
/// The part of the device that guests keep to, blocks.
const BLOCKS: u64 = 800;

/// What the guests of a run share.
#[derive(Default)]
struct Judge {
    /// What the device holds, by block; what is not there is zeros.
    content: BTreeMap<u64, u64>,
    /// Blocks that something under way writes to or reads.
    busy: BTreeSet<u64>,
    read: u64,
    written: u64,
    left: usize,
}

/// A guest with one queue: writes and reads blocks that nothing else under way touches, each block filled with a number.
struct Guest {
    queue: FrontQueue,
    bell: Bell,
    judge: Rc<RefCell<Judge>>,
    random: Random,
    to_do: u64,
    depth: usize,
    bios: BTreeMap<u64, (Op, u64, u64)>,
    next: u64,
    worker: WorkerHandle<SimEnv>,
    answers: Vec<Done>,
}

impl Guest {
    fn draw(&mut self) -> Option<(u64, u64)> {
        let blocks = [1, 1, 2, 7, 30, 64];
        let nr = *self.random.choose(&blocks);
        let start = self.random.below(BLOCKS - nr);
        let judge = &mut self.judge.borrow_mut();
        if (start..start + nr).any(|block| judge.busy.contains(&block)) {
            return None;
        }
        judge.busy.extend(start..start + nr);
        Some((start, nr))
    }

    /// Memory whose pieces begin and end at any sector of any page.
    fn memory(&mut self, bytes: usize) -> Segments {
        let skip = self.random.index(8) * 512;
        let whole = Segment::new(Buffer::new(bytes + 8192), skip, bytes);
        if bytes < 8192 || self.random.coin() {
            return Segments::from_iter([whole]);
        }
        let cut = (self.random.index(bytes / 512 - 1) + 1) * 512;
        let second = Segment::new(Buffer::new(bytes - cut), 0, bytes - cut);
        Segments::from_iter([whole.slice(0, cut), second])
    }

    fn ask(&mut self) -> bool {
        if self.to_do == 0 || self.bios.len() >= self.depth || !self.queue.has_room() {
            return false;
        }
        let cookie = self.next;
        let (op, flags) = match self.random.below(20) {
            0..9 => (Op::Read, Flags::NONE),
            9..16 => (Op::Write, Flags::NONE),
            16 => (Op::Write, Flags::FUA),
            17 => (Op::Discard, Flags::NONE),
            _ => (Op::Flush, Flags::NONE),
        };
        // Where all that it draws is busy it asks for a flush: others may hold it, of whose answers it hears nothing.
        let place = if op == Op::Flush { None } else { (0..8).find_map(|_| self.draw()) };
        let (op, bio, place) = match place {
            None => (Op::Flush, Bio::flush(), (0, 0)),
            Some((start, nr)) => {
                // Without pages of segments, as of a barrier, a request names eleven pages.
                let is_short = flags.has(Flags::FUA) || self.queue.max_segments() < 256;
                let nr_blocks = if is_short { nr.min(7) } else { nr };
                self.give_back(start + nr_blocks, nr - nr_blocks);
                (op, self.bio(op, flags, start, nr_blocks, cookie), (start, nr_blocks))
            }
        };
        self.queue.submit(cookie, bio).expect("there is room, and the data fits");
        self.bios.insert(cookie, (op, place.0, place.1));
        self.next += 1;
        self.to_do -= 1;
        true
    }

    fn give_back(&self, start: u64, nr: u64) {
        let busy = &mut self.judge.borrow_mut().busy;
        busy.retain(|block| !(start..start + nr).contains(block));
    }

    fn bio(&mut self, op: Op, flags: Flags, start: u64, nr: u64, cookie: u64) -> Bio {
        let (sector, sectors) = (Sector(start * BLOCK), Sectors(nr * BLOCK));
        if op == Op::Discard {
            return Bio::without_data(op, flags, sector, sectors);
        }
        let data = self.memory(sectors.byte_len());
        if op == Op::Write {
            let mut at = 0;
            for block in start..start + nr {
                let value = cookie << 32 | block;
                let mut part = Segments::new();
                slice_segments(&data, at, 4096, &mut part);
                let bytes = value.to_le_bytes().repeat(512);
                let mut done = 0;
                for segment in &part {
                    segment.write_at(0, &bytes[done..done + segment.len()]);
                    done += segment.len();
                }
                at += 4096;
                self.judge.borrow_mut().content.insert(block, value);
            }
        }
        Bio::with_data(op, flags, sector, data)
    }

    fn check(&mut self, done: Done) {
        let (op, start, nr) = self.bios.remove(&done.cookie).expect("an answer comes once");
        assert_eq!(done.result, Ok(()), "{op:?} of {nr} blocks at {start}");
        let judge = &mut *self.judge.borrow_mut();
        for (n, block) in (start..start + nr).enumerate() {
            judge.busy.remove(&block);
            match op {
                Op::Read => {
                    let mut part = Segments::new();
                    slice_segments(&done.data, n * 4096, 4096, &mut part);
                    let mut bytes = Vec::new();
                    for segment in &part {
                        let mut piece = vec![0; segment.len()];
                        segment.read_at(0, &mut piece);
                        bytes.extend(piece);
                    }
                    if let Some(value) = judge.content.get(&block) {
                        let words =
                            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                        assert_eq!(
                            words.clone().find(|word| word != value),
                            None,
                            "block {block}: {value:#x}"
                        );
                        judge.read += 1;
                    }
                }
                Op::Write => judge.written += 1,
                // What it holds from now on is undefined.
                Op::Discard => drop(judge.content.remove(&block)),
                _ => {}
            }
        }
    }
}

impl Port<SimEnv> for Guest {
    fn open(&mut self, cx: &mut Context<'_, SimEnv>) {
        self.bell.open(cx);
    }
    fn event(&mut self, _: &mut Context<'_, SimEnv>, _: u32, _: Completion) {}
    fn done(&mut self, _: &mut Context<'_, SimEnv>, _: Done) {}
    fn turn(&mut self, cx: &mut Context<'_, SimEnv>) -> PortState {
        let mut answers = std::mem::take(&mut self.answers);
        self.queue.answers(&mut answers).expect("our back end keeps the protocol");
        answers.drain(..).for_each(|done| self.check(done));
        self.answers = answers;
        while self.ask() {}
        if self.queue.publish() {
            self.bell.notify(cx);
        }
        if self.to_do > 0 || !self.bios.is_empty() {
            return PortState::Open;
        }
        let mut judge = self.judge.borrow_mut();
        judge.left -= 1;
        if judge.left == 0 {
            self.worker.stop();
        }
        PortState::Closed
    }
    fn drain(&mut self, _: &mut Context<'_, SimEnv>) {}
}

/// How the back end moves data.
#[derive(Clone, Copy)]
enum Data {
    /// Straight to and from the guest's pages.
    Straight,
    /// Through buffers of the worker's.
    Copied,
}

/// Runs guests of one device until all that they ask for is done.
fn run(mut rig: Rig, seed: u64, wants: FrontWants, depth: usize, bios: u64, data: Data) -> (u64, u64) {
    rig.world.set_chaos(Chaos {
        spurious_wakeups: 10_000,
        partial_batches: 300_000,
        shuffled_batches: 300_000,
    });
    let device = rig.connect(wants);
    let judge = Rc::new(RefCell::new(Judge { left: device.front.len(), ..Judge::default() }));
    let mut ends = Vec::new();
    for (n, ((queue, bell), (port, end))) in (0..).zip(device.front.into_iter().zip(device.back)) {
        rig.worker.add_port(Box::new(match data {
            Data::Straight => port,
            Data::Copied => port.with_own_buffers(),
        }));
        ends.push(end);
        rig.worker.add_port(Box::new(Guest {
            queue,
            bell,
            judge: judge.clone(),
            random: Random::part(seed, n),
            to_do: bios,
            depth,
            bios: BTreeMap::new(),
            next: (n + 1) << 20,
            worker: rig.worker.handle(),
            answers: Vec::new(),
        }));
    }
    rig.worker.run().expect("the device flushes");
    ends.iter().for_each(|end| assert_eq!(end.ended(), Some(&Ended::Closed)));
    for ring in &rig.stats {
        let figures = ring.snapshot(rig.worker.now());
        assert!(figures.requests >= bios && figures.in_flight == 0, "{figures:?}");
        assert!(figures.high_water <= figures.size && figures.high_water as usize <= depth, "{figures:?}");
    }
    let granted = device.grants.len() as u64;
    assert!(granted <= granted_max(wants, depth), "{granted} grants were not taken back");
    let judge = judge.borrow();
    (judge.read, judge.written)
}

/// Pages that a guest has granted at most when it has nothing under way any more: its rings, pages of segments, and where pages stay
/// granted, those of as many requests as its rings hold.
fn granted_max(wants: FrontWants, depth: usize) -> u64 {
    let slots = u64::from(wants.abi.slots(wants.ring_pages)).min(depth as u64);
    let segments = u64::from(wants.max_indirect_segments).max(SEGMENTS_MAX as u64);
    // A request of 256 segments names them in one page.
    let lists = u64::from(wants.max_indirect_segments > 0);
    let of_requests = slots * (lists + if wants.persistent { segments } else { 0 });
    u64::from(wants.queues) * (u64::from(wants.ring_pages) + of_requests)
}

#[test]
fn what_is_read_is_what_was_written() {
    let mut seed = 0;
    for abi in [Abi::Bits64, Abi::Bits32] {
        for persistent in [false, true] {
            for (ring_pages, queues, depth) in [(1, 1, 64), (8, 1, 300), (2, 3, 64), (16, 1, 5)] {
                for max_indirect_segments in [0, 256] {
                    seed += 1;
                    let wants = FrontWants { ring_pages, queues, abi, persistent, max_indirect_segments };
                    for data in [Data::Straight, Data::Copied] {
                        for rig in [Rig::new(seed), Rig::on_memory(seed)] {
                            let (read, written) = run(rig, seed, wants, depth, 1000, data);
                            assert!(read > 30 && written > 50, "{wants:?}: {read} read, {written} written");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_larger_ring_takes_more_at_a_time() {
    for (ring_pages, fit) in [(1, 32), (2, 64), (8, 256)] {
        let mut rig = Rig::new(7);
        let device = rig.connect(FrontWants { ring_pages, ..WANTS });
        let [(mut queue, _)] = <[_; 1]>::try_from(device.front).ok().expect("one queue");
        let [(port, end)] = <[_; 1]>::try_from(device.back).ok().expect("one queue");
        for n in 0..1000 {
            let memory = Segment::new(Buffer::new(4096), 0, 4096);
            let read = Bio::with_data(Op::Read, Flags::NONE, Sector(n * 8), Segments::from_iter([memory]));
            match queue.submit(n, read) {
                Ok(()) => assert!(n < fit),
                Err(refused) => assert!(refused == Refused::Full && n >= fit),
            }
        }
        queue.publish();
        rig.worker.add_port(Box::new(port));
        rig.settle();
        let mut answers = Vec::new();
        queue.answers(&mut answers).unwrap();
        assert_eq!(answers.len() as u64, fit);
        let figures = rig.stats[0].snapshot(rig.worker.now());
        assert_eq!((u64::from(figures.high_water), u64::from(figures.size)), (fit, fit));
        assert!(figures.full.0 > 50_000, "it was full until the first answer: {figures:?}");
        still_serves(&end);
    }
}

/// A read of 1 MiB.
fn large() -> Bio {
    let memory = Segment::new(Buffer::new(1 << 20), 0, 1 << 20);
    Bio::with_data(Op::Read, Flags::NONE, Sector(0), Segments::from_iter([memory]))
}

#[test]
fn buffers_of_the_workers_are_bounded_whatever_a_ring_asks_for() {
    let most_under_way = |requests: usize| {
        let mut rig = Rig::new(5);
        let device = rig.connect(FrontWants { ring_pages: 16, ..WANTS });
        let [(mut queue, _)] = <[_; 1]>::try_from(device.front).ok().expect("one queue");
        let [(port, end)] = <[_; 1]>::try_from(device.back).ok().expect("one queue");
        (0..requests as u64).for_each(|n| queue.submit(n, large()).unwrap());
        queue.publish();
        rig.worker.add_port(Box::new(port.with_own_buffers()));
        rig.worker.turn(Wait::Poll);
        let most = rig.world.in_flight();
        rig.settle();
        let mut answers = Vec::new();
        queue.answers(&mut answers).unwrap();
        assert!(answers.len() == requests && answers.iter().all(|done| done.result.is_ok()));
        still_serves(&end);
        most
    };
    assert_eq!(most_under_way(100), 16 * most_under_way(1), "requests of 1 MiB at a time");
}

#[test]
fn requests_under_way_are_each_rings_share_of_the_mappings_that_there_are() {
    static ALL: Mappings = Mappings::new(&blockwork_memory::MAPPINGS, 0, 16);
    let mut rig = Rig::new(5);
    let small = |n: u64| {
        let memory = Segment::new(Buffer::new(4096), 0, 4096);
        Bio::with_data(Op::Read, Flags::NONE, Sector(n * 100), Segments::from_iter([memory]))
    };
    let mut guests = Vec::new();
    for ring in 0..2 {
        let device = rig.connect(WANTS);
        let [(mut queue, _)] = <[_; 1]>::try_from(device.front).ok().expect("one queue");
        let [(port, end)] = <[_; 1]>::try_from(device.back).ok().expect("one queue");
        (0..30).for_each(|n| queue.submit(n, small(n + 30 * ring)).unwrap());
        queue.publish();
        rig.worker.add_port(Box::new(port.with_own_buffers().within(&ALL)));
        guests.push((queue, end));
    }
    rig.worker.turn(Wait::Poll);
    assert_eq!(rig.world.in_flight(), 2 * 4);
    rig.settle();
    for (queue, end) in &mut guests {
        let mut answers = Vec::new();
        queue.answers(&mut answers).unwrap();
        assert!(answers.len() == 30 && answers.iter().all(|done| done.result.is_ok()));
        still_serves(end);
    }
}

#[test]
fn a_ring_is_full_also_where_its_requests_are_not_taken_yet() {
    let write = |n: u64, flags| {
        let memory = Segment::new(Buffer::new(4096), 0, 4096);
        Bio::with_data(Op::Write, flags, Sector(n * 8), Segments::from_iter([memory]))
    };
    // No more buffers; and a barrier that nothing is taken behind.
    let asks: [&dyn Fn(u64) -> Bio; 2] =
        [&|_| large(), &|n| write(n, if n == 1 { Flags::FUA } else { Flags::NONE })];
    for ask in asks {
        let mut rig = Rig::new(5);
        let device = rig.connect(WANTS);
        let [(mut queue, _)] = <[_; 1]>::try_from(device.front).ok().expect("one queue");
        let [(port, end)] = <[_; 1]>::try_from(device.back).ok().expect("one queue");
        let port = rig.worker.add_port(Box::new(port.with_own_buffers()));
        (0..20).for_each(|n| queue.submit(n, ask(n)).unwrap());
        queue.publish();
        rig.worker.turn(Wait::Poll);
        let figures = rig.stats[0].snapshot(rig.worker.now());
        assert!((figures.high_water, figures.is_full) == (20, false), "{figures:?}");
        // It fills up while nothing more is taken.
        (20..32).for_each(|n| queue.submit(n, ask(n)).unwrap());
        queue.publish();
        rig.worker.poke(port);
        rig.worker.turn(Wait::Poll);
        let figures = rig.stats[0].snapshot(rig.worker.now());
        assert!((figures.high_water, figures.is_full) == (32, true), "{figures:?}");
        rig.settle();
        let figures = rig.stats[0].snapshot(rig.worker.now());
        assert_eq!((figures.requests, figures.in_flight, figures.is_full), (32, 0, false));
        assert!(figures.full.0 > 0, "{figures:?}");
        still_serves(&end);
    }
}

#[test]
fn what_a_guest_writes_is_what_it_had_when_its_request_was_taken() {
    let mut rig = Rig::new(19);
    let device = rig.connect(WANTS);
    let [(mut queue, _)] = <[_; 1]>::try_from(device.front).ok().expect("one queue");
    let [(port, _)] = <[_; 1]>::try_from(device.back).ok().expect("one queue");
    let memory = Segment::new(Buffer::new(4096), 0, 4096);
    memory.fill(1);
    let data = Segments::from_iter([memory.clone()]);
    queue.submit(0, Bio::with_data(Op::Write, Flags::FUA, Sector(80), data)).unwrap();
    queue.publish();
    rig.worker.add_port(Box::new(port.with_own_buffers()));
    rig.worker.turn(Wait::Poll);
    memory.fill(2);
    rig.settle();
    let mut answers = Vec::new();
    queue.answers(&mut answers).unwrap();
    assert!(answers.len() == 1 && answers[0].result.is_ok());
    let block = rig.world.peek(blockwork_engine::FileId(0), 80);
    assert!(block[..512].iter().all(|&byte| byte == 1));
}

#[test]
fn a_write_that_overtakes_no_barrier_is_durable_when_that_is_done() {
    // A device that forgets what was not flushed: the barrier's own data and all that was before must be there after a cut.
    let mut rig = Rig::with(3, |model| {
        model.cache_bytes = 1 << 30;
        model.limits.write_cache = true;
        model.limits.fua = Fua::Flush;
    });
    let device = rig.connect(WANTS);
    let [(mut queue, _)] = <[_; 1]>::try_from(device.front).ok().expect("one queue");
    let [(port, _)] = <[_; 1]>::try_from(device.back).ok().expect("one queue");
    let write = |value: u8, sector: u64, flags| {
        let memory = Segment::new(Buffer::new(4096), 0, 4096);
        memory.fill(value);
        Bio::with_data(Op::Write, flags, Sector(sector), Segments::from_iter([memory]))
    };
    (0..20).for_each(|n| queue.submit(n, write(1, n * 8, Flags::NONE)).unwrap());
    queue.submit(20, write(2, 800, Flags::FUA)).unwrap();
    queue.submit(21, write(3, 0, Flags::NONE)).unwrap();
    queue.publish();
    rig.worker.add_port(Box::new(port));
    let mut answers = Vec::new();
    while answers.iter().all(|done: &Done| done.cookie != 20) {
        rig.step();
        queue.answers(&mut answers).unwrap();
    }
    assert_eq!(answers.len(), 21, "nothing overtakes a barrier, in either direction");
    assert!(answers.iter().all(|done| done.result.is_ok()));
    let after = rig.world.power_cut();
    let device = blockwork_engine::FileId(0);
    (1..20).for_each(|n| assert_eq!(after.peek(device, n * 8)[7], 1));
    assert_eq!(after.peek(device, 800)[7], 2);
}

#[test]
fn a_back_end_that_comes_back_gets_what_was_not_answered() {
    let mut rig = Rig::new(11);
    let device = rig.connect(FrontWants { persistent: true, ..WANTS });
    let [(mut queue, _)] = <[_; 1]>::try_from(device.front).ok().expect("one queue");
    let mut answers = Vec::new();
    for n in 0..10 {
        let memory = Segment::new(Buffer::new(4096), 0, 4096);
        memory.fill(n as u8 + 1);
        let bio = Bio::with_data(Op::Write, Flags::NONE, Sector(n * 8), Segments::from_iter([memory]));
        queue.submit(n, bio).unwrap();
    }
    queue.publish();
    // The first back end is gone before it has looked at anything.
    drop(device.back);
    let mut fresh = rig.fresh_ring();
    queue.reconnect(fresh.front.take().expect("a new ring"));
    queue.publish();
    let end = rig.serve(fresh, &device.grants);
    rig.settle();
    queue.answers(&mut answers).unwrap();
    assert_eq!((answers.len(), queue.under_way()), (10, 0));
    assert!(answers.iter().all(|done| done.result.is_ok()));
    (0..10).for_each(|n| {
        assert_eq!(rig.world.peek(blockwork_engine::FileId(0), n * 8)[0], n as u8 + 1);
    });
    still_serves(&end);
}

#[test]
fn a_read_that_the_device_fails_fails_and_the_others_do_not() {
    let mut rig = Rig::new(17);
    rig.world.fail_nth(blockwork_engine::FileId(0), 3, Fault::Error(Errno::EIO));
    let device = rig.connect(WANTS);
    let [(mut queue, _)] = <[_; 1]>::try_from(device.front).ok().expect("one queue");
    let [(port, end)] = <[_; 1]>::try_from(device.back).ok().expect("one queue");
    for n in 0..8 {
        let memory = Segment::new(Buffer::new(4096), 0, 4096);
        memory.fill(0xee);
        let data = Segments::from_iter([memory]);
        queue.submit(n, Bio::with_data(Op::Read, Flags::NONE, Sector(n * 800), data)).unwrap();
    }
    queue.publish();
    rig.worker.add_port(Box::new(port.with_own_buffers()));
    rig.settle();
    let mut answers = Vec::new();
    queue.answers(&mut answers).unwrap();
    let failed: Vec<_> = answers.iter().filter(|done| done.result == Err(Errno::EIO)).collect();
    assert_eq!((answers.len(), failed.len()), (8, 1));
    let mut found = [0; 4096];
    failed[0].data[0].read_at(0, &mut found);
    assert_eq!(found, [0xee; 4096], "nothing of the worker's buffer is the guest's to see");
    still_serves(&end);
}

#[test]
fn what_the_back_end_cannot_do_comes_back_as_an_error() {
    let mut rig = Rig::new(13);
    let device = rig.connect(WANTS);
    let [(mut queue, _)] = <[_; 1]>::try_from(device.front).ok().expect("one queue");
    let [(port, end)] = <[_; 1]>::try_from(device.back).ok().expect("one queue");
    let memory = || Segments::from_iter([Segment::new(Buffer::new(4096), 0, 4096)]);
    queue.submit(0, Bio::with_data(Op::Read, Flags::NONE, Sector(SECTORS - 4), memory())).unwrap();
    queue.submit(1, Bio::without_data(Op::Discard, Flags::NONE, Sector(u64::MAX - 1), Sectors(8))).unwrap();
    let zeroes = Bio::without_data(Op::WriteZeroes, Flags::NONE, Sector(0), Sectors(8));
    assert_eq!(queue.submit(2, zeroes), Err(Refused::NotSupported(Op::WriteZeroes)));
    let odd = Segments::from_iter([Segment::new(Buffer::new(4096), 100, 512)]);
    assert_eq!(
        queue.submit(3, Bio::with_data(Op::Read, Flags::NONE, Sector(0), odd)),
        Err(Refused::Unaligned)
    );
    queue.publish();
    rig.worker.add_port(Box::new(port));
    rig.settle();
    let mut answers = Vec::new();
    queue.answers(&mut answers).unwrap();
    let results: Vec<_> = answers.iter().map(|done| (done.cookie, done.result)).collect();
    assert_eq!(results, [(0, Err(Errno::EIO)), (1, Err(Errno::EIO))]);
    still_serves(&end);
}
