//! When a worker calls a guest's driver, and when it has the driver call: turn by turn, on one thread, so that nothing depends on how
//! fast the machine is.

mod vhost_support;

use std::sync::Arc;

use blockwork_engine::{Awaited, Layer, Nanos, NodeId, Sector, Token, Wait};
use blockwork_layer::Delay;
use blockwork_uring::clock;
use vhost_support::Single;
use vhostload::Options;

/// Longer than anything takes that is waited for here.
const PATIENCE: Nanos = Nanos::secs(20);

fn null(options: Options) -> Single {
    let leaf = blockwork_leaf::open("null:16M", &Default::default()).expect("there is room").source;
    Single::new(leaf, |disk| disk, options)
}

fn delayed(by: Nanos, options: Options) -> Single {
    let leaf = blockwork_leaf::open("null:16M", &Default::default()).expect("there is room").source;
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

/// Has calls that were made reach the driver, which forgets them.
fn settle_calls(single: &mut Single) {
    // No watch is of that token.
    single.worker.env.submit_and_unhear(Token(u64::MAX));
    single.is_called();
}

/// Batches of so many reads, each answered in one turn, until all is warm.
fn warm_up(single: &mut Single, reads: usize) {
    for _ in 0..4 {
        single.start(reads);
        let mut answered = 0;
        while answered < reads {
            turn(single);
            answered += single.answered();
        }
    }
    settle_calls(single);
}

#[test]
fn an_instant_device_calls_its_driver_for_the_first_answers_and_gives_the_others_while_that_wakes_up() {
    for packed in [false, true] {
        let mut single = null(Options { packed, ..Options::default() });
        warm_up(&mut single, 32);
        single.start(32);
        let before = single.worker.env.enters();
        turn(&mut single);
        assert!(single.is_called(), "not only when the worker sleeps next (packed: {packed})");
        assert_eq!(single.answered(), 32, "packed: {packed}");
        assert!(single.worker.env.enters() - before <= 2, "one call for all (packed: {packed})");
        single.stop();
    }
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
    let taken = |single: &Single| single.stats.rings(clock())[0].requests;
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
