//! Writes that go together, where a call may have several (version 4 of NFS): how they are shared out, what a server has to show before it is
//! believed, and what becomes of them where it does them wrong, refuses them, or is another one after a restart.

use blockwork_engine::{Errno, Flags, Op};
use blockwork_leaf::{NfsOptions, NfsVersion};
use blockwork_memory::Segment;

use super::server::{Asked, Server};
use super::{Hand, filled};

const DISK: usize = 256 << 10;
const ROOM: usize = 1 << 20;

/// On a server of version 4 that has shown that it does several writes of a call right.
fn hand_4(server: Server, options: &NfsOptions) -> Hand {
    let mut hand = Hand::new(server, ROOM, &NfsOptions { version: Some(NfsVersion::V4), ..options.clone() });
    show(&mut hand);
    hand
}

/// Writes zeros in calls as large as they can be, until nothing is read back any more.
fn show(hand: &mut Hand) {
    for round in 0.. {
        assert!(round < 20, "it is never believed");
        hand.server.borrow_mut().asked = Asked::default();
        for number in 0..40 {
            hand.start(number, Op::Write, Flags::NONE, 8 * number, &[filled(512, 0)]);
        }
        assert!(hand.wait(40).iter().all(|ended| ended.result == Ok(512)));
        if hand.server.borrow().asked.reads == 0 {
            break;
        }
    }
    assert_eq!(hand.flush(), Ok(0));
    let server = &mut *hand.server.borrow_mut();
    (server.asked, server.gathered, server.calls) = Default::default();
}

fn on_connections(connections: u8) -> NfsOptions {
    NfsOptions { connections, timeo: 10, ..NfsOptions::default() }
}

/// Starts writes of one sector each, eight sectors apart.
fn start_writes(hand: &mut Hand, numbers: std::ops::Range<u64>) {
    for number in numbers {
        hand.start(number, Op::Write, Flags::NONE, 8 * number, &[filled(512, number as u8 + 1)]);
    }
}

fn hold_what_was_written(server: &Server, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        assert_eq!(server.durable(8 * 512 * number as usize, 512), [number as u8 + 1; 512], "{number}");
    }
}

#[test]
fn what_is_under_way_is_shared_out_among_the_connections() {
    for (connections, batch, gathered) in [
        (4, 1, vec![1]),
        (4, 4, vec![1; 4]),
        (4, 16, vec![4; 4]),
        (4, 11, vec![3, 3, 3, 2]),
        // A call has so many at most, and a connection one call.
        (1, 40, vec![15, 15, 10]),
    ] {
        let mut hand = hand_4(Server::new(1, DISK), &on_connections(connections));
        start_writes(&mut hand, 0..batch);
        assert!(hand.wait(batch as usize).iter().all(|ended| ended.result == Ok(512)));
        assert_eq!(hand.server.borrow().gathered, gathered, "{batch} on {connections} connections");
        assert_eq!(hand.flush(), Ok(0));
        hold_what_was_written(&hand.server.borrow(), 0..batch);
    }
}

#[test]
fn a_server_is_tried_with_two_writes_and_what_it_has_written_read_back() {
    let options = NfsOptions { version: Some(NfsVersion::V4), ..on_connections(4) };
    let mut hand = Hand::new(Server::new(1, DISK), ROOM, &options);
    start_writes(&mut hand, 0..40);
    hand.lose_answer(|server| server.asked.writes == 40);
    let mut gathered = hand.server.borrow().gathered.clone();
    gathered.sort_unstable();
    assert_eq!(
        (gathered.len(), gathered[37], gathered[38]),
        (39, 1, 2),
        "one call of two, all others of one"
    );
    assert_eq!(hand.server.borrow().asked.reads, 0);
    assert_eq!(hand.wait(40).len(), 40);
    assert_eq!(hand.server.borrow().asked.reads, 2);
    // What is larger is looked at again, also when it is believed in general.
    show(&mut hand);
    hand.start(1, Op::Write, Flags::NONE, 0, &[filled(16384, 1)]);
    for number in 2..6 {
        hand.start(number, Op::Write, Flags::NONE, 64 * number, &[filled(16384, 1)]);
    }
    assert_eq!(hand.wait(5).len(), 5);
    assert!(hand.server.borrow().asked.reads > 0);
}

/// As nfsd of Linux 6.1 does.
#[test]
fn a_server_that_does_all_but_the_first_write_of_a_call_wrong_is_asked_one_by_one() {
    for connections in [1, 4] {
        let options = NfsOptions { version: Some(NfsVersion::V4), ..on_connections(connections) };
        let mut hand = Hand::new(Server::new(1, DISK), ROOM, &options);
        hand.server.borrow_mut().garbles = true;
        for _ in 0..3 {
            start_writes(&mut hand, 0..40);
            assert!(hand.wait(40).iter().all(|ended| ended.result == Ok(512)));
        }
        assert_eq!(hand.flush(), Ok(0));
        let server = hand.server.borrow();
        hold_what_was_written(&server, 0..40);
        assert_eq!(server.garbled, 1, "it was found out by the first");
        assert_eq!(server.gathered.iter().filter(|writes| **writes > 1).count(), 1);
    }
}

#[test]
fn another_life_of_the_server_is_another_server() {
    let mut hand = hand_4(Server::new(1, DISK), &on_connections(2));
    start_writes(&mut hand, 0..8);
    assert_eq!(hand.wait(8).len(), 8);
    assert_eq!(hand.server.borrow().asked.reads, 0);
    hand.server.borrow_mut().restart(0);
    hand.server.borrow_mut().garbles = true;
    start_writes(&mut hand, 8..16);
    assert!(hand.wait(8).iter().all(|ended| ended.result == Ok(512)));
    assert_eq!(hand.flush(), Ok(0));
    assert!(hand.server.borrow().garbled > 0);
    hold_what_was_written(&hand.server.borrow(), 0..16);
}

#[test]
fn a_server_that_forgets_before_it_is_read_is_not_one_that_is_wrong() {
    let options = NfsOptions { version: Some(NfsVersion::V4), ..on_connections(4) };
    let mut hand = Hand::new(Server::new(1, DISK), ROOM, &options);
    start_writes(&mut hand, 0..2);
    hand.pass(|server| server.asked.writes == 2);
    // It restarts when it is asked what it has.
    hand.server.borrow_mut().habits.restarts = 1_000_000;
    hand.pass(|server| server.restarts == 1);
    hand.server.borrow_mut().habits.restarts = 0;
    assert_eq!(hand.wait(2).len(), 2);
    assert_eq!(hand.flush(), Ok(0));
    hold_what_was_written(&hand.server.borrow(), 0..2);
    show(&mut hand);
    start_writes(&mut hand, 0..16);
    assert_eq!(hand.wait(16).len(), 16);
    assert_eq!(hand.server.borrow().gathered, [4; 4]);
}

#[test]
fn calls_have_no_more_writes_than_the_server_takes() {
    for (writes_max, says_resource) in [(1, true), (1, false), (5, true), (5, false)] {
        let options = NfsOptions { version: Some(NfsVersion::V4), ..on_connections(2) };
        let mut hand = Hand::new(Server::new(1, DISK), ROOM, &options);
        hand.server.borrow_mut().writes_max = writes_max;
        hand.server.borrow_mut().says_resource = says_resource;
        show(&mut hand);
        start_writes(&mut hand, 0..40);
        assert_eq!(hand.wait(40).len(), 40);
        let most = hand.server.borrow().gathered.iter().copied().max().unwrap_or_default();
        assert!((writes_max / 2 + 1..=writes_max).contains(&most), "{most} writes of {writes_max}");
        assert_eq!(hand.flush(), Ok(0));
        hold_what_was_written(&hand.server.borrow(), 0..40);
    }
}

#[test]
fn nobody_reads_what_a_server_makes_of_a_write() {
    let options = NfsOptions { version: Some(NfsVersion::V4), ..on_connections(2) };
    let mut hand = Hand::new(Server::new(1, DISK), ROOM, &options);
    hand.server.borrow_mut().garbles = true;
    // One read that came to the server before, one that begins while what it has is wrong, one of more than that.
    hand.start(10, Op::Read, Flags::NONE, 8, &[filled(512, 0xee)]);
    start_writes(&mut hand, 0..2);
    hand.lose_answer(|server| server.garbled == 1);
    let data = [filled(512, 0xee), filled(1024, 0xee)];
    hand.start(11, Op::Read, Flags::NONE, 8, &data[..1]);
    hand.start(12, Op::Read, Flags::NONE, 7, &data[1..]);
    assert_eq!(hand.wait(5).len(), 5);
    let read = |data: &Segment, at| {
        let mut bytes = [0; 512];
        data.read_at(at, &mut bytes);
        bytes
    };
    assert_eq!([read(&data[0], 0), read(&data[1], 0), read(&data[1], 512)], [[2; 512], [0; 512], [2; 512]]);
    assert_eq!(hand.server.borrow().garbled, 2, "it was asked again");
}

/// A server that has shown that it does several writes right is replaced, when a read comes to it, by one that does not: how it has done what
/// was under way by then, or what is begun behind that, is not read.
#[test]
fn nobody_reads_what_the_next_life_of_a_server_makes_of_a_write() {
    for begun_before in [true, false] {
        let mut hand = hand_4(Server::new(1, DISK), &on_connections(1));
        if begun_before {
            start_writes(&mut hand, 0..4);
            hand.lose_answer(|server| server.asked.writes == 4);
        }
        hand.server.borrow_mut().habits.garbles = 1_000_000;
        hand.server.borrow_mut().habits.restarts = 1_000_000;
        hand.start(100, Op::Read, Flags::NONE, 400, &[filled(512, 0xee)]);
        hand.pass(|server| server.restarts == 1);
        hand.server.borrow_mut().habits.restarts = 0;
        if !begun_before {
            start_writes(&mut hand, 0..4);
        }
        hand.lose_answer(|server| server.garbled == 3);
        let data = filled(512, 0xee);
        hand.start(101, Op::Read, Flags::NONE, 8, std::slice::from_ref(&data));
        assert_eq!(hand.wait(6).len(), 6);
        let mut bytes = [0; 512];
        data.read_at(0, &mut bytes);
        assert_eq!(bytes, [2; 512], "begun before: {begun_before}");
        assert_eq!(hand.flush(), Ok(0));
        hold_what_was_written(&hand.server.borrow(), 0..4);
    }
}

#[test]
fn a_connection_waits_for_its_share_until_another_is_answered() {
    let mut hand = hand_4(Server::new(1, DISK), &on_connections(2));
    start_writes(&mut hand, 0..8);
    hand.pass(|server| server.asked.writes == 8);
    // Both connections are busy. When one is answered all three go there, which are less than a half of what is under way then.
    start_writes(&mut hand, 8..11);
    assert_eq!(hand.wait(11).len(), 11);
    assert_eq!(hand.server.borrow().gathered, [4, 4, 3]);
    assert_eq!(hand.flush(), Ok(0));
    hold_what_was_written(&hand.server.borrow(), 0..11);
}

#[test]
fn calls_are_no_longer_than_the_largest_write() {
    let mut hand = hand_4(Server::new(1, 1 << 20), &on_connections(1));
    for number in 0..5 {
        hand.start(number, Op::Write, Flags::NONE, 56 * number, &[filled(28 << 10, number as u8 + 1)]);
    }
    assert_eq!(hand.wait(5).len(), 5);
    assert_eq!(hand.server.borrow().gathered, [2, 2, 1], "64 KiB hold two of 28");
}

#[test]
fn a_write_that_fails_takes_none_of_its_call_along() {
    for failing in 0..6 {
        let mut hand = hand_4(Server::new(1, DISK), &on_connections(1));
        start_writes(&mut hand, 0..6);
        hand.server.borrow_mut().refuses_once = Some((failing, 28));
        let mut ended = hand.wait(6);
        ended.sort_unstable_by_key(|ended| ended.token.0);
        let rest = if failing == 5 { vec![6] } else { vec![6, 5 - failing] };
        assert_eq!(hand.server.borrow().gathered, rest, "what follows it is asked for again");
        for (number, ended) in ended.iter().enumerate() {
            let expected = if number as u32 == failing { Err(Errno(28)) } else { Ok(512) };
            assert_eq!(ended.result, expected, "{number} of 6, the {failing}th fails");
        }
        assert_eq!(hand.flush(), Ok(0));
        hold_what_was_written(&hand.server.borrow(), (0..6).filter(|number| *number != failing.into()));
    }
}

#[test]
fn a_soft_mount_gives_up_what_waits_as_well() {
    let options = NfsOptions { retrans: Some(1), ..on_connections(1) };
    let mut hand = hand_4(Server::new(1, DISK), &options);
    hand.server.borrow_mut().mute = true;
    start_writes(&mut hand, 0..40);
    assert!(hand.wait(40).iter().all(|ended| ended.result == Err(Errno(110))));
    assert!(hand.server.borrow().gathered.iter().all(|writes| *writes == 15), "only the first call was made");
    hand.server.borrow_mut().mute = false;
    start_writes(&mut hand, 0..40);
    assert!(hand.wait(40).iter().all(|ended| ended.result == Ok(512)));
}

#[test]
fn what_makes_durable_goes_alone() {
    let mut hand = hand_4(Server::new(1, DISK), &on_connections(1));
    for number in 0..4 {
        hand.start(number, Op::Write, Flags::FUA, 8 * number, &[filled(512, number as u8 + 1)]);
    }
    start_writes(&mut hand, 4..8);
    assert_eq!(hand.wait(8).len(), 8);
    let mut gathered = hand.server.borrow().gathered.clone();
    gathered.sort_unstable();
    assert_eq!(gathered, [1, 1, 1, 1, 4]);
    hold_what_was_written(&hand.server.borrow(), 0..4);
}

#[test]
fn what_is_not_answered_in_time_is_asked_again_as_it_was() {
    let mut hand = hand_4(Server::new(1, DISK), &on_connections(1));
    hand.server.borrow_mut().mute = true;
    start_writes(&mut hand, 0..8);
    hand.pass(|server| server.gathered.len() == 6);
    let gathered = hand.server.borrow().gathered.clone();
    assert!(gathered[0] > 1 && gathered.iter().all(|writes| *writes == gathered[0]), "{gathered:?}");
    hand.server.borrow_mut().mute = false;
    assert!(hand.wait(8).iter().all(|ended| ended.result == Ok(512)));
    assert_eq!(hand.flush(), Ok(0));
    hold_what_was_written(&hand.server.borrow(), 0..8);
}
