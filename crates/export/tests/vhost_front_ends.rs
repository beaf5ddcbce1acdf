//! What front ends do with the protocol beside serving requests: a virtual machine that is stopped, saved, moved, or given memory.

mod vhost_support;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blockwork_engine::Sectors;
use blockwork_format::vhost_user::{
    ConfigPart, FEATURE_LOG_ALL, Message, Region, VringAddr, VringFile, VringState, protocol,
};
use blockwork_format::virtio::blk::{CONFIG_WRITEBACK, feature, request, status};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost_support::{Rig, kinds, read, write};
use vhostload::{Client, Disk, Options, Request};

/// Where a queue is, which stops by the question.
fn base(disk: &Disk) -> u32 {
    let (payload, _) =
        disk.client().unwrap().ask(&Message::GetVringBase(VringState { index: 0, num: 0 })).unwrap();
    u32::from_ne_bytes(payload[4..8].try_into().unwrap())
}

#[test]
fn a_device_that_is_reset_before_it_is_asked_says_where_it_was() {
    let rig = Rig::new("memory:16M", 1);
    for kind in kinds() {
        let used = || {
            let mut disk = rig.disk(kind.clone());
            for sector in 0..5 {
                assert_eq!(write(&mut disk, 0, sector, &[1; 512]).status, status::OK);
            }
            disk
        };
        let expected = base(&used());
        assert_ne!(expected & 0x7fff, 0);
        for reset in [Message::SetStatus(0), Message::ResetDevice, Message::ResetOwner] {
            let mut disk = used();
            disk.client().unwrap().tell(&reset, &[]).unwrap();
            disk.client().unwrap().tell(&reset, &[]).unwrap();
            assert_eq!(base(&disk), expected, "{reset:?}, {kind:?}");
            // The guest goes on where it was.
            disk.client = None;
            disk.connect().unwrap();
            assert_eq!(read(&mut disk, 0, 4, 512).1, [1; 512]);
            // A driver that has begun anew is where it is said to be.
            let client = disk.client().unwrap();
            client.tell(&reset, &[]).unwrap();
            client.tell(&Message::SetVringBase(VringState { index: 0, num: 3 }), &[]).unwrap();
            assert_eq!(base(&disk), 3);
        }
    }
    rig.stop();
}

#[test]
fn who_disables_all_rings_by_resetting_the_owner_goes_on_with_the_same() {
    let rig = Rig::new("memory:16M", 1);
    for kind in kinds() {
        let mut disk = rig.disk(kind.clone());
        assert_eq!(write(&mut disk, 0, 3, &[5; 512]).status, status::OK);
        disk.client().unwrap().tell(&Message::ResetOwner, &[]).unwrap();
        disk.start(0, Request { kind: request::IN, sector: 3, len: 512 }).unwrap();
        // Whoever served it would have by the end of this, which has the ring rest.
        let size = VringState { index: 0, num: kind.ring_size.into() };
        disk.client().unwrap().tell(&Message::SetVringNum(size), &[]).unwrap();
        assert_eq!(disk.finished(0), None, "{kind:?}");
        disk.client().unwrap().tell(&Message::SetVringEnable(VringState { index: 0, num: 1 }), &[]).unwrap();
        assert_eq!(disk.wait(0, Duration::from_secs(20)).unwrap().status, status::OK, "{kind:?}");
    }
    rig.stop();
}

/// As QEMU does when a device is unplugged and another one plugged in: the connection stays, and the next one says that it begins.
#[test]
fn a_device_in_place_of_another_finds_nothing_of_that_one() {
    let rig = Rig::new("memory:16M", 1);
    for (kind, still_runs) in kinds().flat_map(|kind| [(kind.clone(), false), (kind, true)]) {
        let mut before = rig.disk(Options { queues: 2, ..kind.clone() });
        for queue in 0..2 {
            assert_eq!(write(&mut before, queue, 9, &[9; 512]).status, status::OK);
        }
        before.log_writes(true).unwrap();
        if !still_runs {
            base(&before);
        }
        // Ring 1 was left running, or both were. The next device has one, for which the old marks would have no room.
        let mut after =
            Disk::without_server(Options { ring_size: 2 * kind.ring_size, ..kind.clone() }).unwrap();
        after.replace(before.client.take().unwrap()).unwrap();
        assert_eq!(read(&mut after, 0, 9, 512).1, [9; 512], "{kind:?}");
        // What was agreed on before it said so holds.
        for sectors in [4096, 32768] {
            rig.resize(Sectors(sectors));
            // Looked at with each message, and once a second.
            after.client().unwrap().number(&Message::GetFeatures).unwrap();
            after.wait_for_config_change().unwrap();
        }
        let second = Message::GetVringBase(VringState { index: 1, num: 0 });
        let (payload, _) = after.client().unwrap().ask(&second).unwrap();
        let beginning: u32 = if kind.packed { 0x8000_8000 } else { 0 };
        assert_eq!(payload[4..8], beginning.to_ne_bytes(), "ring 1 is where nobody has said: {kind:?}");
        // Nothing is read or written for the one of before.
        assert!(before.start(1, Request { kind: request::IN, sector: 0, len: 512 }).is_some());
        assert_eq!(read(&mut after, 0, 9, 512).1, [9; 512], "{kind:?}");
        assert_eq!(before.finished(1), None);
    }
    rig.stop();
}

#[test]
fn a_ring_begins_at_its_beginning_where_nobody_says_otherwise() {
    let rig = Rig::new("memory:16M", 1);
    for kind in kinds() {
        let mut disk = rig.disk(kind.clone());
        let client = disk.client().unwrap();
        client.tell(&Message::ResetDevice, &[]).unwrap();
        let (kick, call) = disk.queues[0].bells().unwrap();
        let (state, file) = (|num| VringState { index: 0, num }, VringFile { index: 0, has_file: true });
        client.tell(&Message::SetVringNum(state(kind.ring_size.into())), &[]).unwrap();
        client.tell(&Message::SetVringAddr(disk.queues[0].address(0)), &[]).unwrap();
        client.tell(&Message::SetVringCall(file), &[call.as_fd()]).unwrap();
        client.tell(&Message::SetVringKick(file), &[kick.as_fd()]).unwrap();
        client.tell(&Message::SetVringEnable(state(1)), &[]).unwrap();
        disk.start(0, Request { kind: request::IN, sector: 0, len: 512 }).unwrap();
        assert_eq!(disk.wait(0, Duration::from_secs(20)).unwrap().status, status::OK, "{kind:?}");
    }
    rig.stop();
}

#[test]
fn what_is_behind_the_configuration_is_answered_by_nothing() {
    let rig = Rig::new("memory:16M", 1);
    let mut disk = rig.disk(Options::default());
    let behind = Message::GetConfig(ConfigPart { offset: 250, flags: 0, bytes: vec![0; 8] });
    let (payload, _) = disk.client().unwrap().ask(&behind).unwrap();
    assert!(payload.is_empty(), "{payload:?}");
    // Who waits for all hears no more than that.
    disk.client().unwrap().send_raw(&behind.encode(true), &[]).unwrap();
    assert_eq!(disk.config().unwrap_err().to_string(), "a short configuration");
    assert_eq!(disk.config().unwrap().capacity, 32768);
    assert_eq!(read(&mut disk, 0, 0, 512).0.status, status::OK);
    drop(disk);
    rig.stop();
}

#[test]
fn the_used_ring_is_marked_where_the_front_end_says() {
    let rig = Rig::new("memory:16M", 1);
    for kind in kinds() {
        let mut disk = rig.disk(kind.clone());
        disk.log_writes(true).unwrap();
        let last_page = usize::try_from(disk.guest.region().size).unwrap() / 4096 * 4096 - 4096;
        let log = disk.guest.region().guest + last_page as u64;
        for flags in [0, VringAddr::LOGGED] {
            let address = VringAddr { flags, log, ..disk.queues[0].address(0) };
            disk.client().unwrap().tell(&Message::SetVringAddr(address), &[]).unwrap();
            disk.written_pages();
            assert_eq!(read(&mut disk, 0, 0, 512).0.status, status::OK);
            // Had the ring rest, so that all is marked.
            disk.log_writes(true).unwrap();
            let found = disk.written_pages().contains(&last_page);
            assert_eq!(found, flags == VringAddr::LOGGED, "{kind:?}");
        }
    }
    rig.stop();
}

#[test]
fn no_driver_is_given_a_choice_that_the_next_server_would_not_know_of() {
    let rig = Rig::new("memory:16M", 1);
    let disk = rig.disk(Options::default());
    let client = disk.client().unwrap();
    let offered = client.number(&Message::GetFeatures).unwrap();
    assert_eq!(offered & (feature::CONFIG_WCE | feature::FLUSH), feature::FLUSH);
    let offset = u32::try_from(CONFIG_WRITEBACK).unwrap();
    let through = ConfigPart { offset, flags: 0, bytes: vec![0] };
    let error = client.tell(&Message::SetConfig(through), &[]).unwrap_err().to_string();
    assert!(error.contains("was refused"), "{error}");
    drop(disk);
    rig.stop();
}

#[test]
fn a_log_of_a_migration_that_was_given_up_does_not_keep_memory_out() {
    let rig = Rig::new("memory:16M", 1);
    let mut disk = rig.disk(Options::default());
    disk.log_writes(true).unwrap();
    let size = 2 << 20;
    let file = memfd_create("more", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, size).unwrap();
    let above = Region { guest: 1 << 40, user: 1 << 40, size, offset: 0 };
    let add = |disk: &Disk| disk.client().unwrap().tell(&Message::AddMemReg(above), &[file.as_fd()]);
    let error = add(&disk).unwrap_err().to_string();
    assert!(error.contains("was refused"), "its log has no room for that: {error}");
    disk.log_writes(false).unwrap();
    add(&disk).unwrap();
    assert_eq!(write(&mut disk, 0, 0, &[1; 512]).status, status::OK);
    drop(disk);
    rig.stop();
}

/// Has a front end ask for marks of what is written, and its guest for something, where no log was shared. Beside it, a guest of the same worker: it is
/// answered after the first would have been.
fn asked_without_a_log(rig: &Rig, disk: &mut Disk) -> u16 {
    let enable = |disk: &Disk, num| {
        disk.client().unwrap().tell(&Message::SetVringEnable(VringState { index: 0, num }), &[]).unwrap();
    };
    enable(disk, 0);
    let id = disk.start(0, Request { kind: request::IN, sector: 0, len: 4096 }).unwrap();
    let features = disk.features | FEATURE_LOG_ALL;
    disk.client().unwrap().tell(&Message::SetFeatures(features), &[]).unwrap();
    enable(disk, 1);
    let mut other = Disk::new(&rig.socket_of(1), Options::default()).unwrap();
    assert_eq!(read(&mut other, 0, 0, 4096).0.status, status::OK);
    id
}

#[test]
fn nothing_is_written_to_a_guest_that_moves_before_there_is_a_log_of_it() {
    let rig = Rig::of(&["memory:16M", "memory:16M"], 1, false);
    for kind in kinds() {
        // As QEMU before 7.2 with a server that was started anew: the log comes last.
        let mut disk = rig.disk(kind.clone());
        let id = asked_without_a_log(&rig, &mut disk);
        assert_eq!(disk.finished(0), None, "{kind:?}");
        disk.log_writes(true).unwrap();
        let finished = disk.wait(0, Duration::from_secs(20)).unwrap();
        assert_eq!((finished.id, finished.status), (id, status::OK));
        let written = disk.written_pages();
        assert!(written.contains(&disk.queues[0].data(id).offset), "{kind:?}: {written:?}");
        // The guest stays here after all.
        disk.log_writes(false).unwrap();
        asked_without_a_log(&rig, &mut disk);
        assert_eq!(disk.finished(0), None, "a log of before is none for the next time: {kind:?}");
        disk.log_writes(false).unwrap();
        assert_eq!(disk.wait(0, Duration::from_secs(20)).unwrap().status, status::OK);
        // Nor will there be one from a front end that cannot share it.
        let client = disk.client().unwrap();
        client.tell(&Message::SetProtocolFeatures(protocol::MQ | protocol::REPLY_ACK), &[]).unwrap();
        asked_without_a_log(&rig, &mut disk);
        assert_eq!(disk.wait(0, Duration::from_secs(20)).unwrap().status, status::OK);
    }
    rig.stop();
}

#[test]
fn what_a_guest_has_taken_is_taken_again_when_the_volume_cannot_do_it_any_more() {
    let rig = Rig::new("memory:16M", 1);
    let disk = rig.disk(Options::default());
    let client = disk.client().unwrap();
    let offered = client.number(&Message::GetFeatures).unwrap();
    assert_ne!(offered & feature::DISCARD, 0);
    // As large, and without discards: as an origin is that has its first snapshot.
    rig.resize(Sectors(32768));
    let now = client.number(&Message::GetFeatures).unwrap();
    assert_eq!(now, offered & !feature::DISCARD);
    client.tell(&Message::SetFeatures(offered), &[]).unwrap();
    let error = client.tell(&Message::SetFeatures(offered | 1 << 20), &[]).unwrap_err().to_string();
    assert!(error.contains("was refused"), "{error}");
    drop(disk);
    assert_eq!(write(&mut rig.disk(Options::default()), 0, 0, &[1; 512]).status, status::OK);
    rig.stop();
}

/// As QEMU's virtio-mem with `dynamic-memslots=on`: one file of 1 TiB, a region for each part that is plugged in.
#[test]
fn a_guest_of_many_parts_of_one_file_needs_no_addresses_but_for_these() {
    const PART: u64 = 4 << 30;
    let rig = Rig::new("memory:16M", 1);
    let mut disk = rig.disk(Options::default());
    let client = disk.client().unwrap();
    let file = memfd_create("plugged", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 256 * PART).unwrap();
    for n in 0..256 {
        let address = (1 << 40) + n * PART;
        let region = Region { guest: address, user: address, size: PART, offset: n * PART };
        client.tell(&Message::AddMemReg(region), &[file.as_fd()]).unwrap();
    }
    // What the rings lie in, too, in two parts, of which the second does not begin with a page.
    let whole = disk.guest.region();
    let len = 4096 + 16;
    let first = Region { size: len, ..whole };
    let second = Region {
        guest: whole.guest + len,
        user: whole.user + len,
        size: whole.size - len,
        offset: whole.offset + len,
    };
    client.tell(&Message::RemMemReg(whole), &[]).unwrap();
    for part in [second, first] {
        client.tell(&Message::AddMemReg(part), &[disk.guest.file.as_fd()]).unwrap();
    }
    let bytes: Vec<u8> = (0..64 << 10).map(|n: u32| n.to_le_bytes()[n as usize % 2]).collect();
    assert_eq!(write(&mut disk, 0, 8, &bytes).status, status::OK);
    assert!(read(&mut disk, 0, 8, 64 << 10).1 == bytes);
    drop(disk);
    rig.stop();
}

#[test]
fn a_guest_that_moves_has_two_front_ends_and_one_of_them_the_disk() {
    let rig = Rig::new("memory:16M", 2);
    for kind in kinds() {
        let mut first = rig.disk(kind.clone());
        assert_eq!(write(&mut first, 0, 0, &[1; 512]).status, status::OK);
        // It has all that it needs, and waits.
        let mut second = rig.disk(kind.clone());
        let id = second.start(0, Request { kind: request::IN, sector: 0, len: 512 }).unwrap();
        assert_eq!(write(&mut first, 0, 0, &[2; 512]).status, status::OK);
        assert_eq!(second.finished(0), None, "the first has the disk");
        base(&first);
        let finished = second.wait(0, Duration::from_secs(20)).unwrap();
        assert_eq!((finished.id, finished.status), (id, status::OK));
        let mut found = [0; 512];
        second.read_data(0, id, &mut found);
        assert_eq!(found, [2; 512]);
        // The other way round, without its being asked for: it is gone.
        first.client = None;
        let mut third = rig.disk(kind.clone());
        let id = third.start(0, Request { kind: request::IN, sector: 0, len: 512 }).unwrap();
        assert_eq!(write(&mut second, 0, 0, &[3; 512]).status, status::OK);
        assert_eq!(third.finished(0), None);
        drop(second);
        assert_eq!(third.wait(0, Duration::from_secs(20)).unwrap().id, id);
        third.read_data(0, id, &mut found);
        assert_eq!(found, [3; 512]);
    }
    rig.stop();
}

#[test]
fn a_third_front_end_waits_and_keeps_no_server_from_its_end() {
    let rig = Rig::new("memory:16M", 1);
    let (first, second) = (rig.disk(Options::default()), rig.disk(Options::default()));
    let third = Client::connect(&rig.socket()).unwrap();
    third.send_raw(&Message::GetFeatures.encode(false), &[]).unwrap();
    drop(first);
    assert!(!third.is_closed(), "there is an answer");
    // One is served, one waits for the disk or has it, one is not accepted.
    let fourth = Client::connect(&rig.socket()).unwrap();
    rig.stop();
    assert!(third.is_closed() && fourth.is_closed());
    drop(second);
}

#[test]
fn a_front_end_that_never_rests_is_told_of_a_resize() {
    let rig = Rig::new("memory:16M", 1);
    let disk = rig.disk(Options::default());
    rig.resize(Sectors(4096));
    let told = AtomicBool::new(false);
    let client = disk.client().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50_000 {
                if told.load(Ordering::Relaxed) {
                    return;
                }
                client.number(&Message::GetFeatures).unwrap();
            }
            panic!("it was not told while it spoke");
        });
        disk.wait_for_config_change().unwrap();
        told.store(true, Ordering::Relaxed);
    });
    assert_eq!(disk.config().unwrap().capacity, 4096);
    drop(disk);
    rig.stop();
}

#[test]
fn a_guest_that_runs_is_told_of_a_resize_of_when_nobody_was_connected() {
    for packed in [false, true] {
        let rig = Rig::new("memory:16M", 1);
        let mut disk = rig.disk(Options { packed, ..Options::default() });
        assert_eq!(disk.config().unwrap().capacity, 32768);
        assert_eq!(write(&mut disk, 0, 0, &[1; 512]).status, status::OK);
        base(&disk);
        rig.resize(Sectors(4096));
        // As after a server that was started anew: nobody knows what the front end of before was told.
        disk.connect().unwrap();
        disk.wait_for_config_change().unwrap();
        assert_eq!(disk.config().unwrap().capacity, 4096);
        drop(disk);
        rig.stop();
    }
}

#[test]
fn a_descriptor_to_be_called_by_about_the_log_is_taken_and_not_used() {
    let rig = Rig::new("memory:16M", 1);
    let mut disk = rig.disk(Options::default());
    let call = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    disk.client().unwrap().tell(&Message::SetLogFd, &[call.as_fd()]).unwrap();
    assert_eq!(write(&mut disk, 0, 0, &[1; 512]).status, status::OK);
    drop(disk);
    rig.stop();
}
