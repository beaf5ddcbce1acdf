//! When a worker calls a guest's driver, and when it has the driver call: turn by turn, on one thread, so that nothing depends on how
//! fast the machine is.

mod vhost_support;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blockwork_engine::{
    AtOnce, Awaited, Counter, Env, Errno, Layer, Leaf, LeafIo, LeafShared, LeafSource, Limits, Nanos, NodeId,
    Op, Sector, Sectors, Submitted, Wait,
};
use blockwork_export::vhost::{BIO_BYTES_MAX, BYTES_MAX};
use blockwork_format::vhost_user::{InflightArea, Message, VringFile, VringState, inflight};
use blockwork_format::virtio::blk::{request, status};
use blockwork_format::virtio::split;
use blockwork_layer::Delay;
use blockwork_memory::{Buffer, Mapping, Segment};
use blockwork_uring::clock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use vhost_support::Single;
use vhostload::{Area, Disk, Guest, Options, Queue, Request};

/// Longer than anything takes that is waited for here.
const PATIENCE: Nanos = Nanos::secs(20);

fn null(options: Options) -> Single {
    let leaf = blockwork_leaf::open("null:16M", &Default::default()).expect("there is room").source;
    Single::new(leaf, |disk| disk, options)
}

fn delayed(by: Nanos, options: Options) -> Single {
    let leaf = blockwork_leaf::open("null:1G", &Default::default()).expect("there is room").source;
    let delay = |disk: Arc<dyn Layer>| -> Arc<dyn Layer> {
        let sectors = disk.sectors();
        Arc::new(Delay::new(NodeId(1), disk, Sector(0), sectors, by).expect("all of it"))
    };
    Single::new(leaf, delay, options)
}

/// A turn that waits for the client, and for what is due.
fn turn(single: &mut Single) {
    let until = single.worker.next_timer().unwrap_or_else(|| clock() + PATIENCE);
    single.worker.turn(Wait::Soon { of: Awaited::Client, until: Some(until) });
}

fn taken(single: &Single) -> u64 {
    single.stats.rings(clock())[0].requests
}

/// Turns until so many were taken, which wait for nothing.
fn take(single: &mut Single, all: u64) {
    while taken(single) < all {
        single.worker.turn(Wait::Poll);
    }
}

/// Has calls that were made reach the driver, which forgets them.
fn settle_calls(single: &mut Single) {
    single.worker.turn(Wait::Poll);
    single.is_called();
}

/// So many reads at a time, until all is warm.
fn warm_up(single: &mut Single, reads: usize) {
    for _ in 0..4 {
        let all = taken(single) + reads as u64;
        single.start(reads);
        turn(single);
        take(single, all);
        assert_eq!(single.answered(), reads);
    }
    settle_calls(single);
}

#[test]
fn what_is_asked_of_a_file_goes_to_the_kernel_in_two_portions() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(16 << 20).unwrap();
    let path = file.path().to_str().unwrap();
    let leaf = blockwork_leaf::open(path, &Default::default()).unwrap().source;
    let mut single = Single::new(leaf, |disk| disk, Options::default());
    for round in 0..4 {
        let all = taken(&single) + 32;
        settle_calls(&mut single);
        single.start(32);
        let before = single.worker.env.enters();
        take(&mut single, all);
        // One tells of the driver's call, and one takes the first portion. The second one goes with the next wait.
        let calls = single.worker.env.enters() - before;
        assert!(round == 0 || calls == 2, "{calls}");
        let mut answered = 0;
        while answered < 32 {
            turn(&mut single);
            answered += single.answered();
        }
    }
    single.stop();
}

/// Has a ring with room for eight answered in two parts, the second one a while after the first. After the first: how many are still
/// under way, and how often the device wants to be called for what is asked for next.
fn two_parts(second: usize) -> (u32, u64) {
    let options = Options { ring_size: 8, requests: 8, ..Options::default() };
    let mut single = delayed(Nanos::millis(300), options);
    // Once round, so that the driver is known.
    single.start(1);
    while single.answered() == 0 {
        turn(&mut single);
    }
    let in_flight = |single: &Single| single.stats.rings(clock())[0].in_flight;
    single.start(4);
    while taken(&single) < 1 + 4 {
        turn(&mut single);
    }
    let later = clock() + Nanos::millis(10);
    while clock() < later {
        std::hint::spin_loop();
    }
    single.start(second);
    while taken(&single) < 1 + 4 + second as u64 {
        turn(&mut single);
    }
    while in_flight(&single) >= 4 + second as u32 {
        turn(&mut single);
    }
    let left = in_flight(&single);
    assert!(single.answered() >= 4);
    let kicks = single.start(1);
    let mut answered = 0;
    while answered < left as usize + 1 {
        turn(&mut single);
        answered += single.answered();
    }
    single.stop();
    (left, kicks)
}

#[test]
fn the_refill_of_a_full_ring_is_looked_for_and_that_of_another_is_called_for() {
    // On a machine that is held up, both parts may be due at once, which says nothing.
    let seen = |second: usize| {
        (0..10).map(|_| two_parts(second)).find(|(left, _)| *left as usize == second).map(|(_, kicks)| kicks)
    };
    assert_eq!(
        (seen(4), seen(3)),
        (Some(0), Some(1)),
        "kicks after the first part, of a ring that was full, and of one that was not"
    );
}

#[test]
fn what_is_due_at_once_is_told_of_while_the_rest_is_worked_on() {
    let mut single = delayed(Nanos::millis(5), Options::default());
    single.start(1);
    while single.answered() == 0 {
        turn(&mut single);
    }
    settle_calls(&mut single);
    let in_flight = |single: &Single| single.stats.rings(clock())[0].in_flight;
    // On a machine that is held up they are not all taken at one moment, and so are not due at one either, which says nothing.
    for _ in 0..50 {
        single.start(32);
        while in_flight(&single) < 32 {
            turn(&mut single);
        }
        while in_flight(&single) == 32 {
            assert!(!single.is_called());
            turn(&mut single);
        }
        let (is_called, mut answered) = (single.is_called(), single.answered());
        if answered == 32 {
            assert!(is_called, "not only when the worker sleeps next");
            return single.stop();
        }
        while answered < 32 {
            turn(&mut single);
            answered += single.answered();
        }
        settle_calls(&mut single);
    }
    panic!("never were all of them due at one moment");
}

#[test]
fn a_driver_that_waits_for_one_answer_is_called_in_the_turn_that_gives_it() {
    for packed in [false, true] {
        let mut single = null(Options { packed, ..Options::default() });
        warm_up(&mut single, 1);
        for _ in 0..10 {
            single.start(1);
            let before = single.worker.env.enters();
            turn(&mut single);
            assert_eq!(single.answered(), 1);
            assert!(single.is_called(), "not when the worker waits next (packed: {packed})");
            // One before it is done, one for the answer, and one to wait.
            assert!(single.worker.env.enters() - before <= 3);
        }
        single.stop();
    }
}

thread_local! {
    /// What happens while the device does something.
    static MEANWHILE: RefCell<Box<dyn FnMut()>> = RefCell::new(Box::new(|| ()));
}

/// A device that does everything at once.
#[derive(Default)]
struct Meanwhile(Arc<LeafShared>, Limits);

struct MeanwhileLeaf;

impl LeafSource for Meanwhile {
    fn open(&self) -> Box<dyn Leaf> {
        Box::new(MeanwhileLeaf)
    }
    fn limits(&self) -> &Limits {
        &self.1
    }
    fn sectors(&self) -> Sectors {
        Sectors(1 << 20)
    }
    fn name(&self) -> &str {
        "meanwhile"
    }
    fn read_now(&self, _: u64, into: &mut [u8]) -> std::io::Result<()> {
        into.fill(0);
        Ok(())
    }
    fn shared(&self) -> &Arc<LeafShared> {
        &self.0
    }
}

impl Leaf for MeanwhileLeaf {
    fn submit(&mut self, _: &mut dyn Env, io: LeafIo<'_>) -> Submitted {
        Submitted::Now(self.transfer(io.op, io.sector, io.data))
    }
    fn at_once(&mut self) -> Option<&mut dyn AtOnce> {
        Some(self)
    }
}

impl AtOnce for MeanwhileLeaf {
    fn transfer(&mut self, _: Op, _: Sector, _: &[Segment]) -> Result<(), Errno> {
        MEANWHILE.with_borrow_mut(|meanwhile| meanwhile());
        Ok(())
    }
}

/// The driver's side of the first ring, and its memory, for what happens while the device does something.
fn driver(single: &mut Single) -> (Rc<RefCell<Queue>>, Guest) {
    let queue = single.disk.queues.pop().expect("it has one");
    let Guest { file, memory } = &single.disk.guest;
    let guest = Guest { file: file.try_clone().expect("a descriptor"), memory: memory.clone() };
    (Rc::new(RefCell::new(queue)), guest)
}

#[test]
fn an_instant_device_calls_a_driver_that_sleeps_before_the_first_answer_and_gives_the_others_while_that_wakes_up()
 {
    const READS: usize = 32;
    for packed in [false, true] {
        let mut single = Single::new(
            Arc::new(Meanwhile::default()),
            |disk| disk,
            Options { packed, ..Options::default() },
        );
        warm_up(&mut single, READS);
        single.start(READS);
        let (before, all) = (single.worker.env.enters(), taken(&single) + READS as u64);
        let (queue, guest) = driver(&mut single);
        // What the driver sees while the device does each of them: answers, and whether it was called.
        let seen = Rc::new(RefCell::new(Vec::new()));
        MEANWHILE.set(Box::new({
            let (queue, seen) = (queue.clone(), seen.clone());
            let (mut answered, mut is_called) = (0, false);
            move || {
                let mut queue = queue.borrow_mut();
                answered += std::iter::from_fn(|| queue.finished(&guest)).count();
                is_called |= queue.sleep(Duration::ZERO);
                seen.borrow_mut().push((answered, is_called));
            }
        }));
        turn(&mut single);
        assert_eq!(taken(&single), all, "several batches are done in one turn (packed: {packed})");
        MEANWHILE.with_borrow_mut(|look| look());
        let seen = seen.borrow();
        let called = seen.iter().position(|(_, is_called)| *is_called);
        assert_eq!(called, Some(0), "it slept before, so before the first is done (packed: {packed})");
        let behind: Vec<_> = seen.iter().enumerate().map(|(nth, (answered, _))| nth - answered).collect();
        assert_eq!(behind[..2], [0, 0], "the first is answered alone (packed: {packed})");
        // An answer in a packed ring can be seen as soon as it is there.
        let most = if packed { 0 } else { 1 };
        assert_eq!(behind.iter().max(), Some(&most), "then two at a time (packed: {packed})");
        assert_eq!(behind[READS], 0, "packed: {packed}");
        assert!(
            single.worker.env.enters() - before <= 3,
            "one early call, and one for all (packed: {packed})"
        );
        MEANWHILE.set(Box::new(|| ()));
        single.stop();
    }
}

/// A driver that asks for one more thing, and calls for it, while the device does the one before: so there is always something behind what
/// was taken, that the device was called for before it was done with that.
#[test]
fn a_call_that_comes_while_others_are_worked_on_is_not_lost() {
    const READS: u64 = 1000;
    for packed in [false, true] {
        let options = Options { packed, ring_size: 64, requests: 64, ..Options::default() };
        let mut single = Single::new(Arc::new(Meanwhile::default()), |disk| disk, options);
        warm_up(&mut single, 1);
        let (queue, guest) = driver(&mut single);
        let started = Rc::new(Cell::new(0));
        let ask = {
            let (queue, started) = (queue.clone(), started.clone());
            move || {
                let (number, mut queue) = (started.get(), queue.borrow_mut());
                let read = Request { kind: request::IN, sector: number % 1000 * 64, len: 4096 };
                if number < READS && queue.prepare(&guest, read).is_some() {
                    queue.want_calls(&guest, true);
                    queue.publish(&guest);
                    queue.kick();
                    started.set(number + 1);
                }
            }
        };
        ask();
        MEANWHILE.set(Box::new(ask));
        let mut answered = 0;
        for _ in 0..READS {
            single.worker.turn(Wait::Poll);
            while let Some(finished) = queue.borrow_mut().finished(&single.disk.guest) {
                assert_eq!(finished.status, status::OK);
                answered += 1;
            }
            if answered == started.get() {
                // The ring had no room for more, and none can be lost.
                MEANWHILE.with_borrow_mut(|ask| ask());
            }
        }
        assert_eq!((started.get(), answered), (READS, READS), "packed: {packed}");
        MEANWHILE.set(Box::new(|| ()));
        single.stop();
    }
}

/// Requests of the first ring, in its memory and marked there as taken by a server that has died.
fn mark_as_taken(single: &Single, requests: u16, size: u16) -> (InflightArea, File) {
    let bytes = inflight::queue_bytes(size, false);
    let area = InflightArea { size: bytes as u64, offset: 8 << 40 | 64, queues: 1, queue_size: size };
    let file = File::from(memfd_create("marks", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(area.offset + area.size).unwrap();
    let at = Mapping::of_memory(file.as_fd(), area.offset, area.size).unwrap();
    let marks = Buffer::of_mapping(&at.mapping, at.offset, bytes);
    marks.store_u16(inflight::VERSION, inflight::VERSION_1, Ordering::Relaxed);
    marks.store_u16(inflight::ENTRIES, size, Ordering::Relaxed);
    let Disk { guest, queues, .. } = &single.disk;
    let available = Area::at_user(queues[0].address(0).available, 1).offset + split::ENTRIES;
    for nth in 0..requests {
        let head = guest.memory.load_u16(available + 2 * usize::from(nth), Ordering::Relaxed);
        let entry = inflight::entry(head, false);
        marks.write_at(entry + inflight::split::COUNTER, &u64::from(nth).to_ne_bytes());
        marks.write_at(entry + inflight::split::INFLIGHT, &[1]);
    }
    (area, file)
}

/// Ends the ring, which the worker hears of before it takes its next turn; where to go on.
fn end_ring(single: &mut Single) -> u32 {
    let Single { worker, disk, .. } = single;
    let client = disk.client().unwrap();
    let handle = worker.handle();
    let left = move || handle.locks("worker")[0].acquisitions;
    let before = left();
    let (payload, _) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| client.ask(&Message::GetVringBase(VringState { index: 0, num: 0 })));
        while left() == before {
            std::thread::yield_now();
        }
        while !asking.is_finished() {
            worker.turn(Wait::Poll);
        }
        asking.join().unwrap().unwrap()
    });
    u32::from_ne_bytes(payload[4..8].try_into().unwrap())
}

/// A front end may have 64 rings with thousands of marks each, and start them as often as it likes: other guests of the worker wait for none of that.
#[test]
fn marks_are_looked_through_before_a_worker_takes_its_turn() {
    const READS: usize = 3;
    for packed in [false, true] {
        let mut single = null(Options { packed, ..Options::default() });
        single.worker.turn(Wait::Poll);
        end_ring(&mut single);
        let bytes = inflight::queue_bytes(128, packed);
        let area = InflightArea { size: bytes as u64, offset: 0, queues: 1, queue_size: 128 };
        let file = File::from(memfd_create("marks", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(area.size).unwrap();
        let client = single.disk.client().unwrap();
        client.tell(&Message::SetInflightFd(area), &[file.as_fd()]).unwrap();
        let (kick, _) = single.disk.queues[0].bells().unwrap();
        client.tell(&Message::SetVringKick(VringFile { index: 0, has_file: true }), &[kick.as_fd()]).unwrap();
        let at = Mapping::of_memory(file.as_fd(), 0, area.size).unwrap();
        let marks = Buffer::of_mapping(&at.mapping, at.offset, bytes);
        let found = [inflight::VERSION, inflight::ENTRIES].map(|at| marks.load_u16(at, Ordering::Relaxed));
        assert_eq!(found, [inflight::VERSION_1, 128], "packed: {packed}");
        single.start(READS);
        let mut answered = 0;
        for _ in 0..100 {
            single.worker.turn(Wait::Poll);
            answered += single.answered();
        }
        assert_eq!(answered, READS, "packed: {packed}");
        single.stop();
    }
}

#[test]
fn of_descriptors_to_call_by_a_busy_worker_has_the_last() {
    let mut single = null(Options::default());
    turn(&mut single);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let at = VringFile { index: 0, has_file: true };
    for _ in 0..700 {
        let call = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        single.disk.client().unwrap().tell(&Message::SetVringCall(at), &[call.as_fd()]).unwrap();
    }
    // Others open some meanwhile.
    assert!(open() < before + 300, "{} descriptors, {before} before", open());
    let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    single.disk.client().unwrap().tell(&Message::SetVringCall(at), &[call.as_fd()]).unwrap();
    turn(&mut single);
    single.worker.turn(Wait::Poll);
    assert_eq!(rustix::io::read(&call, &mut [0; 8]), Ok(8), "it was announced by another, perhaps");
    single.stop();
}

#[test]
fn what_was_taken_before_a_restart_is_answered_before_its_ring_ends() {
    // More than a batch.
    const READS: u16 = 100;
    let mut single = null(Options { requests: READS, ..Options::default() });
    single.worker.turn(Wait::Poll);
    assert_eq!(end_ring(&mut single), 0);
    single.start(READS.into());
    let (area, marks) = mark_as_taken(&single, READS, 128);
    let client = single.disk.client().unwrap();
    client.tell(&Message::SetInflightFd(area), &[marks.as_fd()]).unwrap();
    let kick = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    client.tell(&Message::SetVringKick(VringFile { index: 0, has_file: true }), &[kick.as_fd()]).unwrap();
    assert_eq!(end_ring(&mut single), READS.into());
    assert_eq!(single.answered(), READS.into());
    single.stop();
}

#[test]
fn of_a_large_request_only_so_much_is_under_way_at_a_time() {
    const PARTS: u64 = 6;
    let len = PARTS as usize * BIO_BYTES_MAX;
    let mut single =
        delayed(Nanos::millis(200), Options { requests: 1, data_bytes: len, ..Options::default() });
    let begun = |single: &Single| single.stats.get(NodeId(0), Counter::In);
    let queue = &mut single.disk.queues[0];
    queue.prepare(&single.disk.guest, Request { kind: request::IN, sector: 0, len }).expect("room");
    queue.publish(&single.disk.guest);
    while begun(&single) == 0 {
        assert_eq!(single.answered(), 0);
        turn(&mut single);
    }
    // All that were submitted together are due together.
    assert_eq!(begun(&single), (BYTES_MAX / BIO_BYTES_MAX) as u64);
    while single.answered() == 0 {
        turn(&mut single);
    }
    assert_eq!(begun(&single), PARTS);
    single.stop();
}

#[test]
fn requests_in_many_small_pieces_count_as_more_than_they_are() {
    const PIECES: usize = 512;
    const REQUESTS: u16 = 1024;
    let options = |pieces| Options {
        ring_size: REQUESTS,
        requests: REQUESTS,
        pieces,
        data_bytes: PIECES,
        ..Options::default()
    };
    for (pieces, most) in [(1, u64::from(REQUESTS)), (PIECES, (BYTES_MAX / (512 * PIECES)) as u64)] {
        let mut single = delayed(Nanos::secs(2), options(pieces));
        for n in 0..u64::from(REQUESTS) {
            let read = Request { kind: request::IN, sector: n, len: PIECES };
            single.disk.queues[0].prepare(&single.disk.guest, read).expect("room");
        }
        single.disk.queues[0].publish(&single.disk.guest);
        take(&mut single, most);
        (0..10).for_each(|_| single.worker.turn(Wait::Poll));
        assert_eq!(taken(&single), most, "{pieces} pieces");
        single.stop();
    }
}
