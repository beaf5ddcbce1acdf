//! A socket whose disk comes and goes.

mod vhost_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use blockwork_export::vhost::{DiskKeeper, VhostServer, VhostSocket};
use blockwork_format::vhost_user::Message;
use blockwork_format::virtio::blk::{request, status};
use vhost_support::{Rig, kinds, read, write};
use vhostload::{Disk, Options, Request};

const PATIENCE: Duration = Duration::from_secs(20);

/// What was heard.
#[derive(Default)]
struct Heard {
    wishes: AtomicUsize,
    goings: AtomicUsize,
}

impl Heard {
    fn wishes(&self) -> usize {
        self.wishes.load(Ordering::Relaxed)
    }

    fn goings(&self) -> usize {
        self.goings.load(Ordering::Relaxed)
    }
}

impl DiskKeeper for Heard {
    fn is_wanted(&self) {
        self.wishes.fetch_add(1, Ordering::Relaxed);
    }

    fn is_left(&self) {
        self.goings.fetch_add(1, Ordering::Relaxed);
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not so in time: {what}");
        std::thread::yield_now();
    }
}

fn disk_at(rig: &Rig, disk: usize, options: Options) -> Disk {
    Disk::new(&rig.socket_of(disk), options).unwrap()
}

/// Reads, where the disk is away, and has it come when that is wanted.
fn read_and_bring(rig: &Rig, socket: &Arc<VhostSocket>, heard: &Heard, disk: &mut Disk) -> VhostServer {
    let id = disk.start(0, Request { kind: request::IN, sector: 0, len: 512 }).unwrap();
    until("the disk is wanted", || socket.is_waited_for() && heard.wishes() > 0);
    heard.wishes.store(0, Ordering::Relaxed);
    assert_eq!(disk.finished(0), None);
    let server = rig.bring(0, socket);
    let finished = disk.wait(0, PATIENCE).unwrap();
    assert_eq!((finished.id, finished.status), (id, status::OK));
    assert!(!socket.is_waited_for());
    server
}

#[test]
fn requests_wait_for_a_disk_that_is_away_and_none_goes_that_is_in_use() {
    let rig = Rig::unserved(&["memory:16M"], 1);
    let heard = Arc::new(Heard::default());
    let socket = rig.open(0, heard.clone());
    let away = || VhostSocket::take_away(std::slice::from_ref(&socket));
    for kind in kinds() {
        let mut disk = disk_at(&rig, 0, kind.clone());
        assert_eq!(disk.config().unwrap().capacity, 32768);
        let server = read_and_bring(&rig, &socket, &heard, &mut disk);
        let goings = heard.goings();
        assert!(!away(), "{kind:?}");
        assert_eq!(write(&mut disk, 0, 8, &[7; 512]).status, status::OK);
        // Who only stops does not leave.
        disk.client().unwrap().tell(&Message::ResetOwner, &[]).unwrap();
        assert_eq!(heard.goings(), goings);
        disk.client = None;
        disk.connect().unwrap();
        assert_eq!(read(&mut disk, 0, 8, 512).1, [7; 512]);
        let goings = heard.goings();
        disk.stop_as_it_moves().unwrap();
        assert!(heard.goings() > goings, "it was told of before the front end was answered: {kind:?}");
        assert_eq!(heard.wishes(), 0, "the disk was here");
        assert!(away() && away());
        // The socket stays without it, for the same front end and others.
        server.stop();
        assert_eq!(disk.config().unwrap().capacity, 32768);
        let mut next = disk_at(&rig, 0, kind.clone());
        let server = read_and_bring(&rig, &socket, &heard, &mut next);
        let goings = heard.goings();
        drop((disk, next));
        until("it is told that front ends have gone", || heard.goings() == goings + 2);
        assert!(away());
        server.stop();
    }
    // Ended while a guest waits.
    let mut disk = disk_at(&rig, 0, Options::default());
    let id = disk.start(0, Request { kind: request::IN, sector: 0, len: 512 });
    until("the disk is waited for", || socket.is_waited_for());
    // Its guest thinks better of it.
    disk.client().unwrap().tell(&Message::ResetOwner, &[]).unwrap();
    until("the disk is not waited for", || !socket.is_waited_for());
    disk.client = None;
    disk.connect().unwrap();
    until("the disk is waited for", || socket.is_waited_for());
    socket.end();
    assert!(id.is_some() && disk.finished(0).is_none() && !socket.is_waited_for());
    drop(socket);
    rig.stop();
}

#[test]
fn disks_go_together_or_not_at_all() {
    let rig = Rig::unserved(&["memory:16M", "memory:16M"], 1);
    let heard = Arc::new(Heard::default());
    let sockets: Vec<_> = (0..2).map(|disk| rig.open(disk, heard.clone())).collect();
    let servers: Vec<_> = (0..2).map(|disk| rig.bring(disk, &sockets[disk])).collect();
    let mut disks: Vec<_> = (0..2).map(|disk| disk_at(&rig, disk, Options::default())).collect();
    disks.iter_mut().for_each(|disk| assert_eq!(write(disk, 0, 0, &[1; 512]).status, status::OK));
    for at_rest in 0..2 {
        disks[at_rest].stop_as_it_moves().unwrap();
        assert!(!VhostSocket::take_away(&sockets), "the other one is in use");
        disks[at_rest].client = None;
        disks[at_rest].connect().unwrap();
        disks.iter_mut().for_each(|disk| assert_eq!(read(disk, 0, 0, 512).1, [1; 512]));
    }
    disks.iter_mut().for_each(|disk| drop(disk.stop_as_it_moves().unwrap()));
    assert!(VhostSocket::take_away(&sockets));
    servers.into_iter().for_each(VhostServer::stop);
    drop((disks, sockets));
    rig.stop();
}
