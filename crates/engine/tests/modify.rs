//! Ragged writes beside whole-block ones: whichever of them comes first, on whichever worker, neither loses what the other has written.

mod rig;

use std::sync::Arc;

use blockwork_engine::*;
use blockwork_memory::Segments;
use rig::{Rig, limits};

/// Sectors of a block, and the first one of the block that they fight for.
const BLOCK: u64 = 8;
const AT: u64 = 80;

fn coarse() -> Limits {
    Limits { logical_block_size: 4096, ..limits() }
}

fn rig() -> Rig {
    let rig = Rig::new(coarse());
    rig.hold();
    rig.device.lock().unwrap().bytes.fill(1);
    rig
}

/// Writes the first sector of the block, which is not a whole one.
fn write_a_sector(rig: &mut Rig, cookie: u64, fill: u8) {
    let data: Segments = Segments::from_iter([rig.memory(1, fill)[0].clone()]);
    rig.client.borrow_mut().bytes_to_submit.push((cookie, Op::Write, Flags::NONE, AT * 512, 512, data));
    rig.turn_with_event();
}

fn submit(rig: &mut Rig, cookie: u64, bio: Bio) {
    rig.client.borrow_mut().to_submit.push((cookie, bio));
    rig.turn_with_event();
}

/// What reached the device, where.
fn seen(rig: &Rig) -> Vec<(Op, u64)> {
    rig.seen().iter().map(|seen| (seen.op, seen.sector)).collect()
}

/// Turns the worker until nothing happens any more by itself.
fn settle(rigs: &mut [&mut Rig]) {
    for _ in 0..8 {
        rigs.iter_mut().for_each(|rig| rig.worker.turn(Wait::Poll));
    }
}

/// What alters the whole block, and what the block holds after that.
fn whole_block(rig: &Rig) -> [(Bio, u8); 3] {
    let zeroes = |op| Bio::without_data(op, Flags::NONE, Sector(AT), Sectors(BLOCK));
    [(rig.write(AT, BLOCK, 7), 7), (zeroes(Op::WriteZeroes), 0), (zeroes(Op::Discard), 0)]
}

fn fills(rig: &Rig) -> Vec<u8> {
    rig.bytes(AT, BLOCK).chunks(512).map(|sector| sector[0]).collect()
}

fn filled(first: u8, others: u8) -> Vec<u8> {
    (0..BLOCK).map(|sector| if sector == 0 { first } else { others }).collect()
}

#[test]
fn a_whole_block_write_that_comes_while_a_ragged_one_is_open_is_not_undone() {
    for which in 0..3 {
        let mut rig = rig();
        write_a_sector(&mut rig, 0, 2);
        settle(&mut [&mut rig]);
        let read = rig.next_held();
        assert_eq!(seen(&rig), [(Op::Read, AT)]);
        let [(bio, fill)] = [whole_block(&rig).into_iter().nth(which).unwrap()];
        submit(&mut rig, 1, bio);
        // What touches nothing of the block, or alters nothing, waits for nobody.
        let (beside, behind) = (rig.write(AT + BLOCK, BLOCK, 9), rig.read(AT, BLOCK));
        submit(&mut rig, 2, beside);
        submit(&mut rig, 3, behind);
        assert_eq!(seen(&rig)[1..], [(Op::Write, AT + BLOCK), (Op::Read, AT)]);
        rig.complete(read, Ok(()));
        settle(&mut [&mut rig]);
        assert_eq!(seen(&rig)[3..], [(Op::Write, AT)], "the ragged one's");
        rig.complete_all();
        settle(&mut [&mut rig]);
        rig.complete_all();
        rig.all_succeeded(4);
        assert_eq!(fills(&rig), filled(fill, fill), "bio {which} came last");
        assert!(rig.worker.is_idle());
    }
}

#[test]
fn a_ragged_write_reads_when_the_whole_block_writes_under_way_have_ended() {
    for which in 0..3 {
        let mut rig = rig();
        let [(bio, fill)] = [whole_block(&rig).into_iter().nth(which).unwrap()];
        let elsewhere = rig.write(AT + BLOCK, BLOCK, 9);
        submit(&mut rig, 0, bio);
        submit(&mut rig, 1, elsewhere);
        write_a_sector(&mut rig, 2, 2);
        settle(&mut [&mut rig]);
        assert_eq!(rig.seen().len(), 2, "bio {which} is waited for: {:?}", rig.seen());
        let held = rig.next_held();
        rig.complete(held, Ok(()));
        settle(&mut [&mut rig]);
        assert_eq!(seen(&rig)[2..], [(Op::Read, AT)], "though there is another one elsewhere");
        rig.complete_all();
        settle(&mut [&mut rig]);
        rig.complete_all();
        rig.all_succeeded(3);
        assert_eq!(fills(&rig), filled(2, fill), "bio {which}");
    }
}

#[test]
fn a_whole_block_write_that_fails_is_waited_for_like_any_other() {
    let mut rig = rig();
    let bio = rig.write(AT, BLOCK, 7);
    submit(&mut rig, 0, bio);
    write_a_sector(&mut rig, 1, 2);
    settle(&mut [&mut rig]);
    let held = rig.next_held();
    rig.complete(held, Err(Errno::EIO));
    settle(&mut [&mut rig]);
    rig.complete_all();
    settle(&mut [&mut rig]);
    rig.complete_all();
    assert_eq!(rig.results(), [(0, Err(Errno::EIO)), (1, Ok(()))]);
}

#[test]
fn turns_are_in_the_order_of_asking_so_that_nobody_starves() {
    let mut rig = rig();
    write_a_sector(&mut rig, 0, 2);
    settle(&mut [&mut rig]);
    write_a_sector(&mut rig, 1, 3);
    let whole = rig.write(AT, BLOCK, 7);
    submit(&mut rig, 2, whole);
    write_a_sector(&mut rig, 3, 4);
    while !rig.worker.is_idle() {
        rig.complete_all();
        settle(&mut [&mut rig]);
    }
    rig.all_succeeded(4);
    let order: Vec<_> = rig.results().iter().map(|(cookie, _)| *cookie).collect();
    assert_eq!(order, [0, 1, 2, 3]);
    assert_eq!(fills(&rig), filled(4, 7));
    assert_eq!(rig.seen().len(), 7);
}

#[test]
fn what_could_be_done_at_once_waits_as_well() {
    let mut rig = Rig::with(coarse(), |leaf| leaf, true, |config| config);
    let warm = [rig.write(0, BLOCK, 1)];
    rig.batch(warm);
    let runs = |rig: &mut Rig, sector| {
        let bio = rig.write(sector, BLOCK, 7);
        rig.run([bio])[0]
    };
    assert!(runs(&mut rig, AT));
    rig.hold();
    write_a_sector(&mut rig, 90, 2);
    settle(&mut [&mut rig]);
    let read = rig.next_held();
    assert!(runs(&mut rig, AT + 4 * BLOCK), "elsewhere");
    assert!(!runs(&mut rig, AT));
    rig.complete(read, Ok(()));
    settle(&mut [&mut rig]);
    rig.complete_all();
    settle(&mut [&mut rig]);
    rig.complete_all();
    assert_eq!(fills(&rig), filled(7, 7));
    assert!(rig.worker.is_idle());
}

#[test]
fn a_volume_that_has_become_smaller_meanwhile_refuses_who_has_waited() {
    let mut rig = rig();
    write_a_sector(&mut rig, 0, 2);
    settle(&mut [&mut rig]);
    let whole = rig.write(AT, BLOCK, 7);
    submit(&mut rig, 1, whole);
    let small: Arc<dyn Layer> = Arc::new(LeafLayer::new(LeafId(0), NodeId(0), Sectors(AT), coarse()));
    let smaller = rig.volume.with_root(small);
    rig.worker.set_volume(VolumeId(0), smaller);
    rig.complete_all();
    settle(&mut [&mut rig]);
    let results = rig.results();
    assert_eq!(results, [(0, Err(Errno::ENOSPC)), (1, Err(Errno::ENOSPC))]);
    assert_eq!(fills(&rig), filled(1, 1));
}

/// Two workers of one server.
fn two_workers() -> [Rig; 2] {
    let one = rig();
    let other = one.another_worker();
    [one, other]
}

#[test]
fn it_is_so_over_all_workers() {
    // A whole-block write of one worker is under way when another one's ragged write begins.
    let [mut one, mut other] = two_workers();
    let bio = one.write(AT, BLOCK, 7);
    submit(&mut one, 0, bio);
    let whole = one.next_held();
    write_a_sector(&mut other, 0, 2);
    settle(&mut [&mut one, &mut other]);
    assert_eq!(seen(&one), [(Op::Write, AT)]);
    one.complete(whole, Ok(()));
    settle(&mut [&mut one, &mut other]);
    assert_eq!(seen(&one)[1..], [(Op::Read, AT)]);
    // While it is open, a second one comes.
    let read = one.next_held();
    let bio = one.write(AT, BLOCK, 8);
    submit(&mut one, 1, bio);
    settle(&mut [&mut one, &mut other]);
    assert_eq!(one.seen().len(), 2);
    other.complete(read, Ok(()));
    let written = one.next_held();
    assert_eq!(seen(&one)[2..], [(Op::Write, AT)]);
    other.complete(written, Ok(()));
    settle(&mut [&mut one, &mut other]);
    let whole = one.next_held();
    one.complete(whole, Ok(()));
    one.all_succeeded(2);
    other.all_succeeded(1);
    assert_eq!(fills(&one), filled(8, 8));
}

#[test]
fn a_worker_that_has_ended_is_not_waited_for() {
    let [one, mut other] = two_workers();
    write_a_sector(&mut other, 0, 2);
    settle(&mut [&mut other]);
    assert!(one.seen().is_empty(), "the first worker has not looked");
    let device = one.device.clone();
    drop(one);
    settle(&mut [&mut other]);
    assert_eq!(device.lock().unwrap().seen.len(), 1);
}

/// Prepares everything before it goes on, and does not end with a whole block.
#[derive(Debug)]
struct Late {
    below: Arc<dyn Layer>,
    shape: Shape,
}

impl Layer for Late {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let node = self.shape.node;
        if !cx.was_prepared(node, span) {
            return Err(Defer { node, span, reason: Reason::Delay });
        }
        cx.pass(node, span.sector, &*self.below, span)
    }
    fn prepare(&self, _: Defer, _: TaskContext) -> Preparation {
        Box::pin(async { Ok(()) })
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

#[test]
fn the_last_sector_of_an_uneven_volume_is_had_where_its_layer_has_something_to_do_first() {
    const LAST: u64 = 10 * BLOCK;
    let mut rig = Rig::with_stack(coarse(), |below| {
        let limits = below.limits().clone();
        Arc::new(Late { below, shape: Shape { node: NodeId(1), sectors: Sectors(LAST + 1), limits } })
    });
    for (cookie, op) in [(0, Op::Write), (1, Op::Read)] {
        let data: Segments = Segments::from_iter([rig.memory(1, 7)[0].clone()]);
        rig.client.borrow_mut().bytes_to_submit.push((cookie, op, Flags::NONE, LAST * 512, 512, data));
        rig.turn_with_event();
        settle(&mut [&mut rig]);
    }
    rig.all_succeeded(2);
    assert_eq!(rig.bytes(LAST, 1), [7; 512]);
    assert!(!rig.bytes(LAST + 1, BLOCK - 1).contains(&7));
}
