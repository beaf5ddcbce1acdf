//! What front ends do with the protocol beside serving requests: a virtual machine that is stopped, saved, moved, or given memory.

mod vhost_support;

use std::os::fd::AsFd;

use blockwork_format::vhost_user::{ConfigPart, Message, Region, VringState};
use blockwork_format::virtio::blk::{CONFIG_WRITEBACK, feature, status};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost_support::{Rig, kinds, read, write};
use vhostload::{Disk, Options};

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
