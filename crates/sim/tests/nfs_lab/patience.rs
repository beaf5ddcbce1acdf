//! A server that asks for patience, and a line that is slow: neither is given up, and whoever waits learns why.

use blockwork_engine::{Flags, Nanos, Op};
use blockwork_leaf::{NfsOptions, NfsVersion};

use super::said::{listen, said};
use super::server::Server;
use super::{Hand, filled};

const DISK: usize = 256 << 10;
const ROOM: usize = 1 << 20;

const JUKEBOX: u32 = 10008;
const GRACE: u32 = 10013;

fn hand(version: NfsVersion, options: &NfsOptions) -> Hand {
    Hand::new(Server::new(1, DISK), ROOM, &NfsOptions { version: Some(version), ..options.clone() })
}

/// A server that says that for so long to a write; how often it was asked, and what was logged meanwhile and then.
fn asks_for_patience(version: NfsVersion, status: u32, seconds: u64) -> (u64, Vec<String>, Vec<String>) {
    listen();
    let mut hand = hand(version, &NfsOptions::default());
    hand.server.borrow_mut().status = status;
    hand.start(1, Op::Write, Flags::NONE, 0, &[filled(4096, 7)]);
    hand.pass_time(Nanos::secs(seconds));
    let (asked, meanwhile) = (hand.server.borrow().asked.writes, said());
    hand.server.borrow_mut().status = 0;
    assert_eq!(hand.wait(1)[0].result, Ok(4096));
    (asked, meanwhile, said())
}

#[test]
fn a_server_that_asks_for_patience_for_an_hour_is_asked_seldom_and_told_of() {
    for version in [NfsVersion::V3, NfsVersion::V4] {
        for (status, why) in [(JUKEBOX, "slow storage"), (GRACE, "it has restarted")] {
            let (asked, meanwhile, then) = asks_for_patience(version, status, 3600);
            assert!((240..260).contains(&asked), "asked {asked} times in an hour");
            // After some seconds, and every five minutes.
            assert!((11..=13).contains(&meanwhile.len()), "{meanwhile:#?}");
            let words = ["nfs://sim/disk: WRITE at byte 0", "asking for patience for 1", why];
            assert!(words.iter().all(|word| meanwhile[0].contains(word)), "{meanwhile:#?}");
            assert_eq!(then, ["nfs://sim/disk: the server does again what it is asked"]);
        }
    }
}

#[test]
fn of_a_server_that_asks_for_patience_for_some_seconds_nothing_is_said() {
    for version in [NfsVersion::V3, NfsVersion::V4] {
        let (asked, meanwhile, then) = asks_for_patience(version, JUKEBOX, 6);
        assert!((3..=4).contains(&asked), "asked {asked} times");
        assert_eq!((meanwhile, then), (Vec::new(), Vec::new()));
    }
}

#[test]
fn a_call_of_which_bytes_move_is_not_begun_anew_however_long_that_takes() {
    let options = NfsOptions { timeo: 10, connections: 1, ..NfsOptions::default() };
    for version in [NfsVersion::V3, NfsVersion::V4] {
        let mut hand = hand(version, &options);
        // 16 KiB in a second, while each call has a second.
        hand.server.borrow_mut().line = Nanos::micros(61);
        for (number, flags) in [(1, Flags::NONE), (2, Flags::FUA)] {
            hand.start(number, Op::Write, flags, 0, &[filled(64 << 10, 7)]);
            hand.pass(|server| server.asked.writes == number || server.came_from.len() > 1);
            assert_eq!(hand.server.borrow().came_from.len(), 1, "it was given up while it moved");
            assert_eq!(hand.wait(1)[0].result, Ok(64 << 10));
        }
        // One that stands still is.
        hand.server.borrow_mut().line = Nanos::secs(1_000);
        hand.start(3, Op::Write, Flags::NONE, 0, &[filled(4096, 9)]);
        hand.pass(|server| server.asked.writes == 3 || server.came_from.len() > 1);
        assert_eq!(hand.server.borrow().asked.writes, 2, "nothing of it can have come");
    }
}
