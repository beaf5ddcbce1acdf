//! The NFS leaf against a model of a server that restarts, forgets, loses answers, gives them twice, late, or in part.

mod nfs_lab;
mod running;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    Bio, Errno, Flags, Fua, LeafId, LeafLayer, LeafSource, Nanos, Op, Quiescence, Sector, Submitted, Volume,
    VolumeId, Worker,
};
use blockwork_leaf::{NfsOptions, NfsVersion};
use blockwork_sim::{ClientConfig, Closing, Random, Referee, SimCheck, SimClient, World};

use nfs_lab::server::{Asked, Habits, Server};
use nfs_lab::{Hand, address, filled, source};
use running::devices::draw_chaos;
use running::{Nodes, Stack, caught, quietly, run_all, seeds, worker};

const DISK: usize = 256 << 10;
const ROOM: usize = 1 << 20;

const VERSIONS: [NfsVersion; 2] = [NfsVersion::V3, NfsVersion::V4];

fn in_version(version: NfsVersion) -> NfsOptions {
    NfsOptions { version: Some(version), ..NfsOptions::default() }
}

/// One of each version.
fn hands(uncommitted_bytes: usize, options: &NfsOptions) -> [Hand; 2] {
    VERSIONS.map(|version| {
        let options = NfsOptions { version: Some(version), ..options.clone() };
        Hand::new(Server::new(1, DISK), uncommitted_bytes, &options)
    })
}

fn both() -> [Hand; 2] {
    hands(ROOM, &NfsOptions::default())
}

#[test]
fn a_vectored_write_is_one_call_and_a_batch_of_them_one_flush() {
    for mut hand in both() {
        let pieces: Vec<_> = (1..9).map(|value| filled(4096, value)).collect();
        assert_eq!(hand.write(Flags::NONE, 8, &pieces), Ok(8 * 4096));
        let once = Asked { writes: 1, ..Asked::default() };
        assert_eq!(hand.server.borrow().asked, once);
        for number in 0..4 {
            hand.start(number, Op::Write, Flags::NONE, 128 + 8 * number, &[filled(4096, 9)]);
        }
        assert_eq!(hand.wait(4).len(), 4);
        assert_eq!(hand.flush(), Ok(0));
        let reads = looks(&hand);
        assert_eq!(hand.server.borrow().asked, Asked { writes: 5, commits: 1, reads, ..once });
        // Nothing was written since.
        assert_eq!(hand.flush(), Ok(0));
        assert_eq!(hand.server.borrow().asked.commits, 1);
        let server = hand.server.borrow();
        assert!((0..8).all(|i| server.durable(4096 * (1 + i), 4096).iter().all(|byte| *byte == i as u8 + 1)));
    }
}

#[test]
fn fua_is_a_stable_write_and_needs_no_commit() {
    for mut hand in both() {
        assert_eq!(hand.write(Flags::FUA, 1, &[filled(512, 7)]), Ok(512));
        assert_eq!(hand.server.borrow().durable(512, 512), [7; 512]);
        assert_eq!(hand.flush(), Ok(0));
        assert_eq!(hand.server.borrow().asked, Asked { writes: 1, stable_writes: 1, ..Asked::default() });
    }
}

#[test]
fn what_a_restarted_server_has_forgotten_is_read_right_and_sent_again() {
    for mut hand in both() {
        hand.write(Flags::NONE, 0, &[filled(8192, 1)]).unwrap();
        hand.write(Flags::NONE, 4, &[filled(2048, 2)]).unwrap();
        hand.server.borrow_mut().restart(0);
        // Nobody has noticed; the server would say zeros.
        let mut expected = vec![1; 8192];
        expected[2048..4096].fill(2);
        assert_eq!(hand.read(0, 8192).unwrap(), expected);
        assert_eq!(hand.server.borrow().asked.reads, 0);
        expected.extend([0; 512]);
        assert_eq!(hand.read(0, 8704).unwrap(), expected);
        assert_eq!(hand.flush(), Ok(0));
        let (server, looks) = (hand.server.borrow(), looks(&hand));
        assert_eq!(server.durable(0, 8704), expected);
        // Two of the client, three that were sent again (the first was cut in two), and two COMMITs.
        assert_eq!(server.asked, Asked { reads: 1 + looks, writes: 5, commits: 2, stable_writes: 0 });
    }
}

#[test]
fn a_write_of_which_a_part_is_durable_is_sent_again_as_a_whole() {
    for mut hand in both() {
        hand.server.borrow_mut().habits = Habits { short: 700_000, promoted: 500_000, ..Habits::default() };
        let value = |number: u64| number as u8 + 1;
        for number in 0..16 {
            hand.write(Flags::NONE, 16 * number, &[filled(8192, value(number))]).unwrap();
        }
        hand.server.borrow_mut().restart(0);
        assert_eq!(hand.flush(), Ok(0));
        let server = hand.server.borrow();
        for number in 0..16 {
            assert_eq!(server.durable(8192 * number as usize, 8192), [value(number); 8192], "write {number}");
        }
    }
}

#[test]
fn a_loss_of_which_the_server_tells_by_a_stable_write_is_made_good() {
    for mut hand in both() {
        hand.write(Flags::NONE, 0, &[filled(4096, 1)]).unwrap();
        hand.start(1, Op::Write, Flags::NONE, 8, &[filled(4096, 2)]);
        hand.server.borrow_mut().write_losses.push_back(Nanos(0));
        hand.start(2, Op::Write, Flags::FUA, 64, &[filled(512, 3)]);
        let mut ended = hand.wait(2);
        ended.sort_unstable_by_key(|ended| ended.token.0);
        assert_eq!([ended[0].result, ended[1].result], [Ok(4096), Err(Errno::EIO)]);
        assert_eq!(hand.flush(), Ok(0));
        let server = hand.server.borrow();
        assert_eq!(server.durable(0, 4096), [1; 4096]);
        assert_eq!(server.durable(4096, 4096), [2; 4096]);
        let reads = looks(&hand);
        assert_eq!(server.asked, Asked { writes: 5, stable_writes: 1, commits: 2, reads });
    }
}

#[test]
fn a_commit_covers_nothing_before_stable_writes_beside_it_have_ended() {
    for told in [Nanos::micros(1), Nanos::millis(50)] {
        let options = NfsOptions { connections: 2, ..NfsOptions::default() };
        for mut hand in hands(ROOM, &options) {
            hand.write(Flags::NONE, 0, &[filled(4096, 1)]).unwrap();
            hand.server.borrow_mut().write_losses.push_back(told);
            hand.start(1, Op::Write, Flags::FUA, 64, &[filled(512, 2)]);
            hand.start(2, Op::Flush, Flags::NONE, 0, &[]);
            let mut ended = hand.wait(2);
            ended.sort_unstable_by_key(|ended| ended.token.0);
            assert_eq!([ended[0].result, ended[1].result], [Err(Errno::EIO), Ok(0)]);
            assert_eq!(hand.server.borrow().durable(0, 4096), [1; 4096], "told after {told:?}");
        }
    }
}

#[test]
fn what_makes_durable_and_was_asked_twice_may_have_told_of_a_loss_the_first_time() {
    let options = NfsOptions { timeo: 10, ..NfsOptions::default() };
    for by_commit in [true, false] {
        for mut hand in hands(ROOM, &options) {
            hand.write(Flags::NONE, 0, &[filled(4096, 1)]).unwrap();
            if by_commit {
                hand.server.borrow_mut().losses.push_back(Nanos(0));
                hand.start(1, Op::Flush, Flags::NONE, 0, &[]);
            } else {
                hand.server.borrow_mut().write_losses.push_back(Nanos(0));
                hand.start(1, Op::Write, Flags::FUA, 64, &[filled(512, 2)]);
            }
            hand.lose_answer(|server| server.lost > 0);
            assert!(hand.wait(1)[0].result.is_ok(), "the second time nothing is wrong");
            assert_eq!(hand.flush(), Ok(0));
            assert_eq!(hand.server.borrow().durable(0, 4096), [1; 4096], "by a COMMIT: {by_commit}");
        }
    }
}

#[test]
fn nothing_is_asked_behind_a_commit_while_another_connection_has_room() {
    let options = NfsOptions { connections: 2, ..NfsOptions::default() };
    for mut hand in hands(ROOM, &options) {
        hand.write(Flags::NONE, 0, &[filled(512, 1)]).unwrap();
        // It takes long, and then tells of a loss, which is of no interest here.
        hand.server.borrow_mut().losses.push_back(Nanos::millis(50));
        hand.server.borrow_mut().calls.clear();
        hand.start(0, Op::Flush, Flags::NONE, 0, &[]);
        for number in 1..9 {
            hand.start(number, Op::Write, Flags::NONE, 8 * number, &[filled(512, 2)]);
        }
        assert!(hand.wait(9).iter().all(|ended| ended.result.is_ok() != (ended.token.0 == 0)));
        let server = hand.server.borrow();
        let behind =
            |procedure| server.calls.iter().filter(move |call| call.1 == procedure).map(|call| call.0);
        let commit: Vec<_> = behind(21).collect();
        assert_eq!((commit.len(), behind(7).count()), (1, 8));
        assert!(behind(7).all(|stream| stream != commit[0]), "{:?}", server.calls);
    }
}

#[test]
fn where_no_connection_is_idle_calls_of_a_batch_go_together() {
    let options = NfsOptions { timeo: 10, ..NfsOptions::default() };
    let mut hand = Hand::new(Server::new(1, DISK), ROOM, &options);
    let start = |hand: &mut Hand, numbers: std::ops::Range<u64>| {
        for number in numbers {
            hand.start(number, Op::Write, Flags::NONE, 8 * number, &[filled(512, 2)]);
        }
    };
    // Each has its own while connections are idle.
    start(&mut hand, 0..4);
    assert_eq!(hand.wait(4).len(), 4);
    start(&mut hand, 0..4);
    hand.lose_answer(|server| server.asked.writes == 8);
    start(&mut hand, 4..8);
    assert_eq!(hand.wait(4).len(), 4);
    let server = hand.server.borrow();
    let mut streams: Vec<u32> = server.calls.iter().map(|call| call.0).collect();
    assert!(streams[8..12].iter().all(|stream| *stream == streams[8]), "{streams:?}");
    for idle in [0..4, 4..8] {
        streams[idle.clone()].sort_unstable();
        assert!(streams[idle].array_windows().all(|[one, next]| one < next), "{streams:?}");
    }
}

/// READs by which what is written together with something else for the first time is looked for.
fn looks(hand: &Hand) -> u64 {
    if hand.version() == NfsVersion::V4 { 2 } else { 0 }
}

#[test]
fn half_way_to_a_flush_that_is_expected_the_server_is_asked_to_commit() {
    for mut hand in both() {
        for round in 1..4 {
            let before = hand.server.borrow().asked.commits;
            let commits = |hand: &Hand| hand.server.borrow().asked.commits - before;
            let ahead = u64::from(round > 1);
            for number in 0..8 {
                hand.write(Flags::NONE, 8 * number, &[filled(4096, round)]).unwrap();
                // It goes with the fourth, and comes to the server before the fifth is answered or soon after that.
                match number {
                    0..3 => assert_eq!(commits(&hand), 0, "round {round}, {number}"),
                    3 | 4 => {}
                    _ => assert_eq!(commits(&hand), ahead, "round {round}, {number}"),
                }
            }
            assert_eq!(hand.flush(), Ok(0));
            assert_eq!(commits(&hand), ahead + 1, "round {round}");
            assert!(hand.server.borrow().durable(0, 8 * 4096).iter().all(|byte| *byte == round));
        }
    }
}

#[test]
fn where_the_memory_for_uncommitted_writes_ends_it_commits_by_itself_and_writes_stably() {
    for mut hand in hands(16 << 10, &NfsOptions::default()) {
        for number in 0..8 {
            hand.start(number, Op::Write, Flags::NONE, 8 * number, &[filled(4096, 3)]);
        }
        assert!(hand.wait(8).iter().all(|ended| ended.result == Ok(4096)));
        assert_eq!(hand.server.borrow().asked.stable_writes, 4);
        for number in 0..20 {
            hand.write(Flags::NONE, 8 * number, &[filled(4096, 4)]).unwrap();
        }
        let asked = hand.server.borrow().asked;
        assert!(asked.commits >= 3 && asked.commits <= 12, "{asked:?}");
        assert_eq!(hand.flush(), Ok(0));
        assert!(hand.server.borrow().durable(0, 20 * 4096).iter().all(|byte| *byte == 4));
    }
}

#[test]
fn what_the_server_refuses_fails_by_linuxs_number() {
    for mut hand in both() {
        for (status, errno) in [(28, 28), (69, 122), (70, 116), (5, 5), (13, 13)] {
            hand.server.borrow_mut().status = status;
            assert_eq!(hand.write(Flags::NONE, 0, &[filled(512, 1)]), Err(Errno(errno)));
        }
        hand.server.borrow_mut().status = 0;
        hand.write(Flags::NONE, 0, &[filled(512, 1)]).unwrap();
        hand.server.borrow_mut().status = 28;
        assert_eq!(hand.flush(), Err(Errno(28)));
        assert!(hand.has_failed());
    }
}

#[test]
fn a_commit_that_fails_while_all_is_sent_again_fails_the_flush() {
    for mut hand in both() {
        for sector in 0..40 {
            hand.write(Flags::NONE, 2 * sector, &[filled(512, 1)]).unwrap();
        }
        hand.server.borrow_mut().fickle = true;
        // It says another verifier at every COMMIT, so nothing is ever known to be safe.
        assert_eq!(hand.flush(), Err(Errno::EIO));
        assert_eq!(hand.server.borrow().asked.commits, 100);
        hand.server.borrow_mut().fickle = false;
        assert!(!hand.has_failed());
        assert_eq!(hand.flush(), Ok(0));
        assert_eq!(hand.server.borrow().durable(78 * 512, 512), [1; 512]);
    }
}

#[test]
fn a_file_that_was_cut_short_reads_short() {
    for mut hand in both() {
        hand.server.borrow_mut().shrink(1024);
        let data = filled(2048, 0xee);
        hand.start(1, Op::Read, Flags::NONE, 0, std::slice::from_ref(&data));
        assert_eq!(hand.wait(1)[0].result, Ok(1024));
        hand.start(1, Op::Read, Flags::NONE, 2, &[data]);
        assert_eq!(hand.wait(1)[0].result, Ok(0));
    }
}

#[test]
fn what_is_answered_in_part_is_asked_again_from_the_sectors_start_and_not_for_ever() {
    for mut hand in both() {
        let expected: Vec<u8> = (0..2048u32).map(|i| (i / 512) as u8 + 1).collect();
        let data: Vec<_> = (1..5).map(|value| filled(512, value)).collect();
        for flags in [Flags::NONE, Flags::FUA] {
            // Of each sector a part is given or taken first.
            hand.server.borrow_mut().habits = Habits { short: 600_000, ..Habits::default() };
            assert_eq!(hand.write(flags, 8, &data), Ok(2048));
            assert_eq!(hand.flush(), Ok(0));
            assert_eq!(hand.server.borrow().durable(4096, 2048), expected);
            assert_eq!(hand.read(8, 2048).unwrap(), expected);
        }
        hand.server.borrow_mut().habits = Habits::default();
        for at_most in [511, 1, 0] {
            hand.server.borrow_mut().at_most = at_most;
            let before = hand.server.borrow().asked;
            assert_eq!(hand.read(8, 2048), Err(Errno::EIO));
            assert_eq!(hand.write(Flags::NONE, 8, &data), Err(Errno::EIO));
            let after = hand.server.borrow().asked;
            assert_eq!((after.reads - before.reads, after.writes - before.writes), (16, 16));
        }
        // 700 bytes are one sector, and it goes on from there.
        hand.server.borrow_mut().at_most = 700;
        assert_eq!(hand.write(Flags::NONE, 8, &data), Ok(2048));
        assert_eq!(hand.flush(), Ok(0));
        assert_eq!(hand.read(8, 2048).unwrap(), expected);
    }
}

#[test]
fn a_soft_mount_gives_up_and_a_hard_one_does_not() {
    let soft = NfsOptions { retrans: Some(1), timeo: 10, ..NfsOptions::default() };
    for mut hand in hands(ROOM, &soft) {
        hand.server.borrow_mut().mute = true;
        assert_eq!(hand.write(Flags::NONE, 0, &[filled(512, 1)]), Err(Errno(110)));
        let asked = hand.server.borrow().asked.writes;
        assert!((2..=3).contains(&asked), "asked {asked} times");
        hand.server.borrow_mut().mute = false;
        assert_eq!(hand.write(Flags::NONE, 0, &[filled(512, 1)]), Ok(512));
    }
    let hard = NfsOptions { timeo: 10, ..NfsOptions::default() };
    for mut hand in hands(ROOM, &hard) {
        // Of ten answers nine are lost.
        hand.server.borrow_mut().habits = Habits { lost: 900_000, ..Habits::default() };
        assert_eq!(hand.write(Flags::NONE, 0, &[filled(512, 1)]), Ok(512));
    }
}

#[test]
fn a_server_that_is_slow_is_not_asked_twice_while_it_goes_on() {
    let options = NfsOptions { timeo: 10, connections: 1, ..NfsOptions::default() };
    for mut hand in hands(ROOM, &options) {
        hand.server.borrow_mut().pace = Nanos::millis(400);
        for number in 0..16 {
            hand.start(number, Op::Write, Flags::FUA, 8 * number, &[filled(4096, 7)]);
        }
        let ended = hand.wait(16);
        assert!(ended.iter().all(|ended| ended.result == Ok(4096)), "{ended:?}");
        let server = hand.server.borrow();
        assert_eq!((server.asked.writes, server.came_from.len()), (16, 1));
    }
}

#[test]
fn a_call_that_was_dropped_is_asked_again_though_later_ones_are_answered() {
    let options = NfsOptions { timeo: 10, connections: 1, ..NfsOptions::default() };
    for mut hand in hands(ROOM, &options) {
        hand.start(0, Op::Write, Flags::FUA, 0, &[filled(4096, 7)]);
        hand.lose_answer(|server| server.asked.writes == 1);
        hand.server.borrow_mut().pace = Nanos::millis(400);
        for number in 1..16 {
            hand.start(number, Op::Write, Flags::FUA, 8 * number, &[filled(4096, 7)]);
        }
        hand.pass(|server| server.came_from.len() == 2);
        assert!(hand.ended() < 8, "its time is over before all of those are answered: {}", hand.ended());
        hand.wait(16);
    }
}

#[test]
fn what_is_asked_again_comes_from_the_same_port_and_is_done_once() {
    for mut hand in both() {
        hand.server.borrow_mut().remembers = true;
        for (flags, writes) in [(Flags::NONE, 1), (Flags::FUA, 2)] {
            hand.start(1, Op::Write, flags, 8 * writes, &[filled(4096, 7)]);
            hand.lose_answer(|server| server.asked.writes == writes);
            assert_eq!(hand.wait(1)[0].result, Ok(4096));
            assert_eq!(hand.server.borrow().asked.writes, writes);
        }
        let ports = hand.server.borrow().came_from.clone();
        assert!(ports.len() == 3 && ports.iter().all(|port| *port == ports[0]), "{ports:?}");
    }
}

#[test]
fn where_nobody_gets_through_from_its_port_a_connection_comes_from_another() {
    for mut hand in both() {
        assert_eq!(hand.write(Flags::NONE, 0, &[filled(4096, 7)]), Ok(4096));
        let first = hand.server.borrow().came_from[0];
        hand.server.borrow_mut().kept_off = Some(first);
        hand.server.borrow_mut().habits.closes = 1_000_000;
        hand.start(1, Op::Read, Flags::NONE, 8, &[filled(4096, 0)]);
        hand.pass(|server| server.came_from.len() == 2);
        hand.server.borrow_mut().habits.closes = 0;
        assert_eq!(hand.wait(1)[0].result, Ok(4096));
        let second = hand.server.borrow().came_from[2];
        // From then on that is its own.
        hand.start(2, Op::Read, Flags::NONE, 16, &[filled(4096, 0)]);
        hand.lose_answer(|server| server.asked.reads == 2);
        assert_eq!(hand.wait(1)[0].result, Ok(4096));
        assert_ne!(second, first);
        assert_eq!(hand.server.borrow().came_from, [first, first, second, second]);
    }
}

#[test]
fn what_a_commit_without_an_answer_was_to_cover_is_kept_for_the_next_one() {
    let soft = NfsOptions { retrans: Some(1), timeo: 10, ..NfsOptions::default() };
    for is_ahead in [false, true] {
        for mut hand in hands(16 << 10, &soft) {
            // Three are more than half of the room: the server is asked to commit before anybody flushes.
            for number in 0..if is_ahead { 3 } else { 1 } {
                hand.write(Flags::NONE, 8 * number, &[filled(4096, 1)]).unwrap();
            }
            hand.server.borrow_mut().mute = true;
            assert_eq!(hand.flush(), Err(Errno(110)));
            let asked = hand.server.borrow().asked.commits;
            assert!(asked >= if is_ahead { 4 } else { 2 }, "asked {asked} times");
            assert!(!hand.has_failed());
            hand.server.borrow_mut().mute = false;
            assert_eq!(hand.write(Flags::NONE, 24, &[filled(4096, 1)]), Ok(4096));
            assert_eq!(hand.flush(), Ok(0));
            assert_eq!(hand.server.borrow().durable(if is_ahead { 8192 } else { 0 }, 4096), [1; 4096]);
        }
    }
}

#[test]
fn a_call_has_no_more_pieces_than_one_send_can_take() {
    let mut source = source(&Server::new(1, DISK), ROOM, &NfsOptions::default());
    let most = source.limits().max_hw_segments;
    assert!(source.limits_mut().set("max_segments", &(most + 1).to_string()).is_err());
    source.limits_mut().set("max_segments", &most.to_string()).unwrap();
    for version in VERSIONS {
        let mut hand = Hand::new(Server::new(1, 1 << 20), ROOM, &in_version(version));
        let pieces: Vec<_> = (0..most).map(|n| filled(512, (n % 251) as u8)).collect();
        for flags in [Flags::FUA, Flags::NONE] {
            assert_eq!(hand.write(flags, 0, &pieces), Ok(512 * most));
        }
        let server = hand.server.borrow();
        assert!((0..most as usize).all(|n| server.durable(512 * n, 512) == [(n % 251) as u8; 512]));
    }
}

#[test]
fn discards_are_not_asked_for() {
    for mut hand in both() {
        let discard = hand.start(1, Op::Discard, Flags::NONE, 0, &[]);
        assert_eq!(discard, Submitted::Now(Err(Errno::EOPNOTSUPP)));
    }
    let server = Server::new(1, DISK);
    let source = source(&server, ROOM, &NfsOptions::default());
    let limits = source.limits();
    assert!(!limits.discards() && limits.write_cache && limits.fua == Fua::Dsync);
    assert_eq!((limits.max_sectors.0, limits.max_write_zeroes.0), (128, 0));
}

fn habits(random: &mut Random) -> Habits {
    let slowness = *random.choose(&[Nanos(0), Nanos::micros(200), Nanos::millis(5)]);
    let none = Habits { slowness, ..Habits::default() };
    match random.below(11) {
        0 => none,
        10 => Habits { waits: 50_000, closes: 20_000, lost: 5_000, short: 50_000, ..none },
        7 => Habits { garbles: 1_000_000, restarts: 2_000, ..none },
        8 => Habits { garbles: 300_000, restarts: 20_000, jukebox: 10_000, lost: 5_000, ..none },
        1 => Habits { restarts: 20_000, ..none },
        2 => Habits { lost: 20_000, doubled: 100_000, ..none },
        3 => Habits { short: 300_000, promoted: 200_000, doubled: 50_000, restarts: 5_000, ..none },
        4 => Habits { closes: 30_000, short: 50_000, ..none },
        5 => Habits { jukebox: 50_000, restarts: 5_000, ..none },
        6 => Habits { loses: 50_000, restarts: 5_000, lost: 5_000, ..none },
        _ => {
            Habits { restarts: 10_000, lost: 10_000, doubled: 50_000, short: 100_000, closes: 10_000, ..none }
        }
    }
}

/// What runs came to.
#[derive(Debug, Default)]
struct Sum {
    answered: u64,
    durable: u64,
    restarts: u64,
    sent_again: u64,
    losses: u64,
    gathered: u64,
    garbled: u64,
}

/// A stack of one volume on the server's file.
fn stack(server: &Rc<RefCell<Server>>, room: usize, options: &NfsOptions) -> Stack {
    let mut nodes = Nodes::default();
    let node = nodes.next();
    let source = Arc::new(source(&server.borrow(), room, options));
    let leaf = LeafLayer::new(LeafId(0), node, source.sectors(), source.limits().clone());
    let volume = Volume::new("disk", Arc::new(leaf), false);
    Stack { volumes: Arc::new([volume]), leaves: Arc::new([(node, source)]), nodes: 1 }
}

/// On workers of one server: the first writes until it commits by itself, and flushes on `flushing` while the server finds a loss, which
/// it tells `told` later. How the flush ends, and what is read behind it.
fn flush_beside_a_loss(workers: u16, flushing: usize, told: Nanos) -> (Result<(), Errno>, Vec<u8>) {
    let world = World::new(1);
    let server = Rc::new(RefCell::new(Server::new(1, DISK)));
    server.borrow_mut().losses.push_back(told);
    world.add_host(address(), server.clone());
    let stack = stack(&server, 16 << 10, &NfsOptions::default());
    let quiescence = Quiescence::default();
    let mut workers: Vec<_> =
        (0..workers).map(|n| worker(&stack, world.env(), n, false, &quiescence)).collect();
    let root = stack.volumes[0].root.clone();
    let (written, flushed) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(None)));
    let (writing, writer_root) = (written.clone(), root.clone());
    workers[0].spawn(|cx| async move {
        for sector in [0, 8, 16] {
            let data = std::iter::once(filled(4096, 7)).collect();
            let write = Bio::with_data(Op::Write, Flags::NONE, Sector(sector), data);
            assert_eq!(cx.bio(&writer_root, write).await.0, Ok(()));
        }
        writing.set(true);
    });
    let (result, flusher_root, model) = (flushed.clone(), root.clone(), server.clone());
    workers[flushing].spawn(|cx| async move {
        // Until the COMMIT that nobody asked for has come to the server.
        while !written.get() || model.borrow().lost == 0 {
            cx.sleep(Nanos::micros(1)).await;
        }
        result.set(Some(cx.bio(&flusher_root, Bio::flush()).await.0));
    });
    let content = Rc::new(RefCell::new(vec![0; 4096]));
    let (read, result) = (content.clone(), flushed.clone());
    workers[0].spawn(|cx| async move {
        while result.get().is_none() {
            cx.sleep(Nanos::micros(1)).await;
        }
        let data = filled(4096, 0xee);
        let into = std::iter::once(data.clone()).collect();
        let bio = Bio::with_data(Op::Read, Flags::NONE, Sector(8), into);
        assert_eq!(cx.bio(&root, bio).await.0, Ok(()));
        data.read_at(0, &mut read.borrow_mut());
    });
    workers.iter().for_each(|worker| worker.handle().stop());
    let well = run_all(&world, workers);
    let flushed = flushed.get().expect("it has ended");
    assert_eq!(well, flushed.is_ok(), "who stops hears that writes are lost");
    (flushed, content.take())
}

#[test]
fn a_flush_behind_or_beside_a_commit_that_finds_a_loss_fails() {
    for (workers, flushing) in [(1, 0), (2, 1)] {
        for told in [Nanos::micros(1), Nanos::millis(50)] {
            let (flushed, read) = flush_beside_a_loss(workers, flushing, told);
            assert_eq!(flushed, Err(Errno::EIO), "worker {flushing} of {workers}, told after {told:?}");
            assert_eq!(read, [7; 4096], "what is there is what was answered");
        }
    }
}

/// Clients write and read over a server with habits; in the end the server forgets what it may, and is read.
fn run(seed: u64, sum: &mut Sum) -> Vec<String> {
    let random = &mut Random::part(seed, 1);
    let world = World::new(seed);
    let mut model = Server::new(seed, DISK);
    model.habits = habits(random);
    model.garbles = random.chance(model.habits.garbles, 1_000_000);
    let waits = model.habits.waits > 0;
    model.remembers = waits || random.chance(1, 2);
    let server = Rc::new(RefCell::new(model));
    world.add_host(address(), server.clone());
    world.set_chaos(draw_chaos(random));
    let connections = *random.choose(&[1, 1, 3]);
    // Calls of version 4 that are taken apart are new ones.
    let version = Some(*random.choose(if waits { &VERSIONS[..1] } else { &VERSIONS }));
    let options = NfsOptions { version, connections, timeo: 5, ..NfsOptions::default() };
    let room = *random.choose(&[16 << 10, 256 << 10, ROOM]);
    let first = stack(&server, room, &options);
    let referee = Referee::new(first.volumes[0].sectors().0);
    let quiescence = Quiescence::default();
    let count = *random.choose(&[1u16, 1, 2]);
    let mut workers: Vec<_> =
        (0..count).map(|n| worker(&first, world.env(), n, false, &quiescence)).collect();
    let closing = Closing::new(workers.iter().map(Worker::handle).collect());
    for number in 0..4 {
        let depth = *random.choose(&[1, 4, 16]);
        let mut config = ClientConfig::new(number, VolumeId(0), random.between(20, 120), depth, seed);
        config.region = *random.choose(&[16 << 10, 64 << 10, u64::MAX]);
        let client = SimClient::new(config, referee.clone(), closing.clone());
        let at = number as usize % workers.len();
        workers[at].add_port(Box::new(client));
    }
    if run_all(&world, workers) {
        let oracle = &mut referee.borrow_mut().oracle;
        let flush = oracle.begin_flush();
        oracle.end_flush(flush, true);
    } else if server.borrow().lost == 0 {
        referee.borrow_mut().violations.push("the last flush has failed".to_owned());
    }
    sum.losses += server.borrow().lost;
    let restarts = server.borrow().restarts;
    sum.garbled += server.borrow().garbled;
    sum.gathered += server.borrow().gathered.iter().filter(|writes| **writes > 1).count() as u64;
    server.borrow_mut().restart(0);
    server.borrow_mut().habits = Habits::default();
    world.heal();
    let second = stack(&server, room, &options);
    let mut checker = worker(&second, world.env(), 9, false, &Quiescence::default());
    let closing = Closing::new(vec![checker.handle()]);
    checker.add_port(Box::new(SimCheck::new(VolumeId(0), referee.clone(), closing)));
    run_all(&world, vec![checker]);
    let referee = &mut *referee.borrow_mut();
    sum.answered += referee.answered;
    sum.durable += referee.durable;
    sum.restarts += restarts;
    sum.sent_again += u64::from(restarts > 0);
    std::mem::take(&mut referee.violations)
}

#[test]
fn nothing_that_was_flushed_is_lost_and_nothing_is_ever_read_wrong() {
    let (all, seeds) = seeds(400);
    let mut sum = Sum::default();
    quietly(|| {
        for seed in all {
            let mut violations = Vec::new();
            let outcome = caught(|| violations = run(seed, &mut sum));
            violations.extend(outcome.err());
            assert!(violations.is_empty(), "FROM={seed} SEEDS=1: {violations:#?}");
        }
    });
    if seeds >= 200 {
        assert!(sum.answered > 30_000 && sum.durable > 3_000, "{sum:?}");
        assert!(sum.restarts > 100 && sum.sent_again > 30 && sum.losses > 8, "{sum:?}");
        assert!(sum.gathered > 1000 && sum.garbled > 10, "{sum:?}");
    }
}
