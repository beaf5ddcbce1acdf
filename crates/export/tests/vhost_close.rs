//! Front ends that give descriptors whose close(2) waits: of files of a file system of FUSE's that never answers FLUSH. Each keeps itself waiting,
//! and nobody else; least of all the end of the server.
//!
//! Needs root and /dev/fuse.

mod vhost_support;

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blockwork_export::fuse::abi::{self, Attr, IN_HEADER, InHeader, InitReply, Reply, Request, opcode};
use blockwork_export::fuse::{Mount, MountOptions};
use blockwork_format::vhost_user::{InflightArea, LogArea, Message, Region, VringFile};
use blockwork_format::virtio::blk::status;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use vhost_support::{Rig, read, write};
use vhostload::{Client, Options};

/// Longer than anything takes that does not hang.
const LONG: Duration = Duration::from_secs(60);

/// FLUSH, which the server of `blockwork_export::fuse` never gets.
const FLUSH: u32 = 25;

/// A file of FUSE's whose server answers FLUSH when it is told to, not before. Declared first in a test: at its end everybody else goes on.
struct Mute {
    flushes: Receiver<u64>,
    server: Arc<OwnedFd>,
    ending: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    mount: Option<Mount>,
    path: PathBuf,
    _folder: tempfile::TempDir,
    /// What front ends give. Closed at the end, when nobody has to be asked any more.
    file: File,
}

impl Mute {
    fn new() -> Mute {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let options = MountOptions { root_mode: abi::S_IFREG | 0o600, allow_other: false, read_only: false };
        let (mount, server) = Mount::new(&path, options).unwrap();
        let (server, ending) = (Arc::new(server), Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap()));
        let (tell, flushes) = mpsc::channel();
        let (theirs, end) = (server.clone(), ending.clone());
        let thread = thread::spawn(move || serve(&theirs, &end, &tell));
        let file = File::options().read(true).write(true).open(&path).unwrap();
        Mute {
            flushes,
            server,
            ending,
            thread: Some(thread),
            mount: Some(mount),
            path,
            _folder: folder,
            file,
        }
    }

    /// Waits until somebody waits in close(2); the request.
    fn flush(&self) -> u64 {
        self.flushes.recv_timeout(LONG).expect("somebody closes the file")
    }

    fn answer(&self, request: u64) {
        rustix::io::write(&self.server, &abi::out_header(request, 0, 0)).unwrap();
    }
}

impl Drop for Mute {
    /// Whoever waits in close(2) goes on.
    fn drop(&mut self) {
        rustix::io::write(&self.ending, &1_u64.to_ne_bytes()).unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        drop(self.mount.take());
        // The connection ends with the last that has it.
        self.server = self.ending.clone();
        assert!(thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

fn serve(server: &OwnedFd, ending: &OwnedFd, flushes: &Sender<u64>) {
    let mut bytes = vec![0; 1 << 20];
    loop {
        let mut ready = [PollFd::new(server, PollFlags::IN), PollFd::new(ending, PollFlags::IN)];
        poll(&mut ready, None).unwrap();
        if ready[1].revents().contains(PollFlags::IN) {
            return;
        }
        match rustix::io::read(server, &mut bytes) {
            Ok(len) => serve_one(server, &bytes[..len], flushes),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => {}
            Err(errno) => panic!("/dev/fuse: {errno}"),
        }
    }
}

fn serve_one(server: &OwnedFd, bytes: &[u8], flushes: &Sender<u64>) {
    let header = InHeader::parse(bytes).unwrap();
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, header.unique);
    match (header.opcode, Request::parse(header.opcode, &bytes[IN_HEADER..]).unwrap()) {
        (FLUSH, _) => return flushes.send(header.unique).unwrap(),
        (opcode::INIT, _) => reply.init(InitReply {
            minor: abi::MINOR_MIN,
            max_readahead: 0,
            flags: 0,
            max_background: 1,
            congestion_threshold: 1,
            max_write: 4096,
            max_pages: 1,
        }),
        (_, Request::Getattr | Request::Setattr { .. }) => {
            let mode = abi::S_IFREG | 0o600;
            reply.attr(&Attr {
                ino: 1,
                size: 1 << 20,
                mode,
                nlink: 1,
                uid: 0,
                gid: 0,
                accessed: Duration::ZERO,
                altered: Duration::ZERO,
                blksize: 4096,
            });
        }
        (_, Request::Open { .. }) => reply.open(0, 0),
        (_, Request::Release { .. }) => {}
        (_, Request::Forget | Request::Interrupt) => return,
        _ => {
            let refused = abi::out_header(header.unique, Errno::NOSYS.raw_os_error(), 0);
            rustix::io::write(server, &refused).unwrap();
            return;
        }
    }
    rustix::io::write(server, reply.finish()).unwrap();
}

/// What a front end may give beside a message, and the message; `at` is some of its memory.
fn messages(at: Region) -> Vec<Message> {
    let file = VringFile { index: 0, has_file: true };
    let area = InflightArea { size: 1 << 20, offset: 0, queues: 1, queue_size: 128 };
    vec![
        Message::AddMemReg(Region { guest: 1 << 40, user: 1 << 40, ..at }),
        Message::SetVringKick(file),
        Message::SetVringCall(file),
        Message::SetVringErr(file),
        Message::SetInflightFd(area),
        Message::SetLogBase(LogArea { size: 1 << 20, offset: 0 }),
        Message::SetLogFd,
        // One that wants no file.
        Message::GetFeatures,
    ]
}

/// Ends a server, for which somebody else is in the way of nothing.
fn ends(rig: Rig) {
    let (tell, told) = mpsc::channel();
    let ending = thread::spawn(move || {
        rig.stop();
        tell.send(()).unwrap();
    });
    assert_eq!(told.recv_timeout(LONG), Ok(()), "the server hangs");
    ending.join().unwrap();
}

#[test]
fn the_end_of_a_server_waits_for_no_file_that_a_front_end_gave() {
    let at = Rig::new("memory:16M", 1).disk(Options::default()).guest.region();
    for message in messages(at) {
        let mute = Mute::new();
        let rig = Rig::of(&["memory:16M", "memory:16M"], 1, false);
        let mut disk = rig.disk(Options::default());
        assert_eq!(write(&mut disk, 0, 8, &[7; 4096]).status, status::OK);
        disk.client().unwrap().send_raw(&message.encode(false), &[mute.file.as_fd()]).unwrap();
        mute.flush();
        // Others do not notice; nor do queues that run.
        let mut other = vhostload::Disk::new(&rig.socket_of(1), Options::default()).unwrap();
        assert_eq!(write(&mut other, 0, 8, &[9; 4096]).status, status::OK);
        assert!(read(&mut disk, 0, 8, 4096).1 == [7; 4096]);
        ends(rig);
    }
}

#[test]
fn a_front_end_that_has_gone_leaves_a_file_which_keeps_neither_the_disk_nor_the_server() {
    let mute = Mute::new();
    let rig = Rig::new("memory:16M", 1);
    let disk = rig.disk(Options::default());
    disk.client().unwrap().tell(&Message::SetBackendReqFd, &[mute.file.as_fd()]).unwrap();
    drop(disk);
    mute.flush();
    let mut next = rig.disk(Options::default());
    assert_eq!(write(&mut next, 0, 8, &[7; 4096]).status, status::OK);
    ends(rig);
}

#[test]
fn a_front_end_goes_on_when_what_it_gave_is_closed_and_not_before() {
    let mute = Mute::new();
    let rig = Rig::new("memory:16M", 1);
    let client = Client::connect(&rig.socket()).unwrap();
    client.send_raw(&Message::SetLogFd.encode(false), &[mute.file.as_fd()]).unwrap();
    let request = mute.flush();
    let asked = thread::spawn(move || client.number(&Message::GetQueueNum).unwrap());
    let moment = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    poll(&mut [], Some(&moment)).unwrap();
    assert!(!asked.is_finished(), "it could have us hold as many files as it likes");
    mute.answer(request);
    assert_eq!(asked.join().unwrap(), 8);
    ends(rig);
}

#[test]
fn the_file_that_these_tests_give_is_what_it_should_be() {
    let mute = Mute::new();
    let stat = fs::metadata(&mute.path).unwrap();
    assert_eq!((stat.len(), stat.permissions().mode()), (1 << 20, 0o100_600));
    let file = mute.file.try_clone().unwrap();
    let closing = thread::spawn(move || drop(file));
    let request = mute.flush();
    assert!(!closing.is_finished(), "close(2) waits for FLUSH");
    mute.answer(request);
    closing.join().unwrap();
}
