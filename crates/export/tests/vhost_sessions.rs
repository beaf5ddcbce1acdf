//! Front ends of which nobody knows what they do next: messages in any order, good ones and bad ones, and rings that are written over while
//! they are used. Whatever they do the server answers or lets go of them, a guest of another disk of the same worker is served as ever, and
//! nothing of what they brought stays behind.
//!
//! A seed gives the moves of a session; when threads run is nobody's to say, so it may take some runs of one to see again what it has shown.
//! `SEEDS=10000 FROM=600 cargo test --release -p blockwork-export --test vhost_sessions`

mod vhost_support;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use blockwork_engine::Counter;
use blockwork_export::vhost::{DiskKeeper, VhostServer, VhostSocket};
use blockwork_format::vhost_user::{
    ConfigPart, FEATURE_LOG_ALL, InflightArea, LogArea, Message, Region, VringAddr, VringFile, VringState,
};
use blockwork_format::virtio::blk::{request, status};
use blockwork_sim::Random;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost_support::{Rig, read, write};
use vhostload::{Disk, Options, Request};

/// Nothing that a session waits for takes as long.
const PATIENCE: Duration = Duration::from_secs(30);
const SEEDS: u64 = 300;
const MOVES_MAX: u64 = 40;
const DATA_BYTES: usize = 16 << 10;

/// A number of the environment.
fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).map_or(or, |text| text.parse().expect("a number"))
}

/// A front end.
struct Stranger {
    random: Random,
    disk: Disk,
    /// The device has been told things, or its rings written over, so that what it says need not make sense any more.
    is_wild: bool,
    /// Its memory is still as large as it was.
    has_memory: bool,
    /// Requests of each queue that were not answered, while that can be told.
    under_way: Vec<u32>,
}

/// The session is over.
struct Over;

impl Stranger {
    fn new(seed: u64, socket: &Path) -> Stranger {
        let mut random = Random::new(seed);
        let options = Options {
            queues: 1 + random.below(3) as u16,
            ring_size: 4 << random.below(7),
            requests: 1 + random.below(40) as u16,
            data_bytes: DATA_BYTES,
            packed: random.coin(),
            indirect: random.coin(),
            event_idx: random.coin(),
            pieces: 1 + random.below(4) as usize,
            scattered: false,
        };
        let disk = Disk::new(socket, options).expect("the server takes a front end");
        let under_way = vec![0; disk.queues.len()];
        Stranger { random, disk, is_wild: false, has_memory: true, under_way }
    }

    fn run(mut self) {
        for _ in 0..1 + self.random.below(MOVES_MAX) {
            if self.step().is_err() {
                return;
            }
        }
    }

    fn step(&mut self) -> Result<(), Over> {
        match self.random.below(40) {
            0..14 => self.start(),
            14..22 => self.finish(),
            22..24 => self.reconnect(),
            24..27 => self.restart(),
            27 => self.scribble(),
            28 if self.random.below(8) == 0 => return self.send_bytes(),
            29 if self.random.below(8) == 0 => self.cut_memory(),
            // Who has begun with that goes on with it.
            30 => return self.tell_anything(),
            31.. if self.is_wild => return self.tell_anything(),
            _ => {
                let message = self.harmless();
                return self.tell(message);
            }
        }
        Ok(())
    }

    fn queue(&mut self) -> usize {
        self.random.below(self.disk.queues.len() as u64) as usize
    }

    /// Some requests, of which some are none.
    fn start(&mut self) {
        if !self.has_memory {
            return;
        }
        let queue = self.queue();
        for _ in 0..1 + self.random.below(32) {
            let kinds = [
                request::IN,
                request::OUT,
                request::FLUSH,
                request::GET_ID,
                request::DISCARD,
                request::WRITE_ZEROES,
                77,
            ];
            let kind = kinds[self.random.below(kinds.len() as u64) as usize];
            let sector =
                if self.random.below(9) == 0 { self.random.bits() } else { self.random.below(40_000) };
            let len = match self.random.below(4) {
                0 => self.random.below(DATA_BYTES as u64 + 1) as usize,
                1 => 16,
                _ => 512 * self.random.below(DATA_BYTES as u64 / 512 + 1) as usize,
            };
            if self.disk.start(queue, Request { kind, sector, len }).is_some() {
                self.under_way[queue] += 1;
            }
        }
    }

    fn finish(&mut self) {
        let queue = self.queue();
        // Of one that was told nonsense neither an answer nor a known number is to be expected; else all is answered.
        if !self.is_wild && self.random.coin() {
            for _ in 0..std::mem::take(&mut self.under_way[queue]) {
                self.disk.wait(queue, PATIENCE).expect("a request that is in order, or not, is answered");
            }
        } else if !self.is_wild {
            while self.disk.finished(queue).is_some() {
                self.under_way[queue] -= 1;
            }
        }
        if self.has_memory {
            let wanted = self.random.coin();
            self.disk.queues[queue].want_calls(&self.disk.guest, wanted);
        }
    }

    /// Stops a ring, and perhaps takes the memory away and brings it again; then lets it go on where it was.
    fn restart(&mut self) {
        if self.is_wild {
            return;
        }
        let queue = self.queue();
        let index = queue as u32;
        let client = self.disk.client().expect("it is connected");
        let tell = |message: Message, files: &[BorrowedFd<'_>]| {
            client.tell(&message, files).expect("what is in order is obeyed");
        };
        let (base, _) =
            client.ask(&Message::GetVringBase(VringState { index, num: 0 })).expect("it says where it is");
        let num = u32::from_ne_bytes(base[4..8].try_into().expect("a number"));
        if self.random.coin() {
            let (region, file) = (self.disk.guest.region(), self.disk.guest.file.as_fd());
            tell(Message::RemMemReg(region), &[]);
            tell(Message::AddMemReg(region), &[file]);
        }
        let (kick, _) = self.disk.queues[queue].bells().expect("a descriptor");
        tell(Message::SetVringBase(VringState { index, num }), &[]);
        tell(Message::SetVringAddr(self.disk.queues[queue].address(index)), &[]);
        tell(Message::SetVringKick(VringFile { index, has_file: true }), &[kick.as_fd()]);
    }

    /// Writes over rings, tables and headers.
    fn scribble(&mut self) {
        if !self.has_memory {
            return;
        }
        self.is_wild = true;
        let len = self.disk.guest.region().size;
        // Rings come first.
        let end = if self.random.coin() { len.min(4096) } else { len };
        for _ in 0..1 + self.random.below(16) {
            let bytes = match self.random.below(3) {
                0 => self.random.bits().to_le_bytes(),
                1 => [0xff; 8],
                _ => self.random.below(300).to_le_bytes(),
            };
            let count = 1 + self.random.below(8);
            let at = self.random.below(end - count);
            self.disk.guest.memory.write_at(at as usize, &bytes[..count as usize]);
        }
        let queue = self.queue();
        self.disk.queues[queue].kick();
    }

    /// As a front end that was killed, and started again.
    fn reconnect(&mut self) {
        if !self.is_wild {
            self.disk.client = None;
            self.disk.connect().expect("the server takes a front end that keeps the protocol");
        }
    }

    /// What is no message.
    fn send_bytes(&mut self) -> Result<(), Over> {
        let mut bytes: Vec<u8> = (0..self.random.below(100)).map(|_| self.random.bits() as u8).collect();
        if self.random.coin() && bytes.len() >= 12 {
            let head = [self.random.below(50) as u32, 1, self.random.below(100) as u32];
            bytes[..12].copy_from_slice(head.map(u32::to_ne_bytes).as_flattened());
        }
        let client = self.disk.client().map_err(|_| Over)?;
        _ = client.send_raw(&bytes, &[]);
        Err(Over)
    }

    fn cut_memory(&mut self) {
        (self.is_wild, self.has_memory) = (true, false);
        let len = self.random.below(self.disk.guest.region().size / 4096) * 4096;
        ftruncate(&self.disk.guest.file, len).expect("a memfd may be cut");
        let queue = self.queue();
        self.disk.queues[queue].kick();
    }

    fn tell_anything(&mut self) -> Result<(), Over> {
        self.is_wild = true;
        let message = self.message();
        self.tell(message)
    }

    /// Messages that leave all as it was, but for the place where it is told of errors.
    fn harmless(&mut self) -> (Message, Vec<OwnedFd>) {
        let index = self.queue() as u32;
        let file = VringFile { index, has_file: true };
        let small = self.random.below(300) as u32;
        match self.random.below(6) {
            0 => (Message::GetFeatures, vec![]),
            1 => (Message::GetConfig(ConfigPart { offset: small, flags: 0, bytes: vec![0; 60] }), vec![]),
            2 => (Message::SetConfig(ConfigPart { offset: small, flags: 0, bytes: vec![0; 8] }), vec![]),
            3 => (Message::SetVringErr(file), vec![bell(0)]),
            4 => {
                let queues = 1 + self.random.below(9) as u16;
                (Message::GetInflightFd(InflightArea { size: 0, offset: 0, queues, queue_size: 128 }), vec![])
            }
            // Of a queue that there is not.
            _ => (Message::SetVringEnable(VringState { index: 8 + small, num: 0 }), vec![]),
        }
    }

    fn tell(&mut self, (message, files): (Message, Vec<OwnedFd>)) -> Result<(), Over> {
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let client = self.disk.client().map_err(|_| Over)?;
        let answer = match message {
            Message::GetFeatures
            | Message::GetVringBase(_)
            | Message::GetConfig(_)
            | Message::GetInflightFd(_) => client.ask(&message).map(drop),
            _ => client.tell(&message, &files),
        };
        match answer {
            // Refused, or obeyed: it goes on.
            Err(error) if !error.to_string().contains("was refused") => Err(Over),
            _ => Ok(()),
        }
    }

    /// One that some front end might send at some time, with what goes along.
    fn message(&mut self) -> (Message, Vec<OwnedFd>) {
        let index =
            if self.random.below(9) == 0 { self.random.below(12) as u32 } else { self.queue() as u32 };
        let place = (index as usize).min(self.disk.queues.len() - 1);
        let small = self.random.below(300) as u32;
        let state = VringState { index, num: small };
        let file = VringFile { index, has_file: true };
        let guest = || self.disk.guest.file.try_clone().expect("a descriptor").into();
        let region = self.disk.guest.region();
        match self.random.below(24) {
            0 => (Message::SetVringEnable(VringState { index, num: small % 2 }), vec![]),
            1 => (Message::SetVringEnable(VringState { index, num: 1 }), vec![]),
            2 => (Message::SetVringNum(state), vec![]),
            3 => (Message::SetVringBase(state), vec![]),
            4 | 5 => (Message::GetVringBase(state), vec![]),
            6 => (Message::SetVringAddr(self.address(index, place)), vec![]),
            7 | 8 => (Message::SetVringKick(file), vec![bell(small % 2)]),
            9 | 10 => (Message::SetVringCall(file), vec![bell(0)]),
            11 => (Message::RemMemReg(region), vec![]),
            12 => (Message::AddMemReg(region), vec![guest()]),
            13 => (Message::SetMemTable(vec![region]), vec![guest()]),
            14 => {
                let half = region.size / 8192 * 4096;
                let parts = [
                    Region { size: half, ..region },
                    Region {
                        guest: region.guest + half,
                        user: region.user + half,
                        size: region.size - half,
                        offset: half,
                    },
                ];
                let count = 1 + self.random.below(2) as usize;
                (Message::SetMemTable(parts[..count].to_vec()), (0..count).map(|_| guest()).collect())
            }
            15 => {
                let bits = self.random.bits() & self.random.bits();
                (Message::SetFeatures(self.disk.features & !bits), vec![])
            }
            16 => (Message::SetFeatures(self.disk.features | FEATURE_LOG_ALL), vec![]),
            17 => {
                let size = 4096 << self.random.below(8);
                let log = memfd_create("log", MemfdFlags::CLOEXEC).expect("a memfd");
                ftruncate(&log, size).expect("a memfd grows");
                (Message::SetLogBase(LogArea { size, offset: 0 }), vec![log])
            }
            18 | 19 => {
                // With marks that nobody has made.
                let marks = memfd_create("marks", MemfdFlags::CLOEXEC).expect("a memfd");
                let size = 64 << self.random.below(9);
                ftruncate(&marks, size).expect("a memfd grows");
                for _ in 0..self.random.below(9) {
                    let bytes = self.random.bits().to_le_bytes();
                    _ = rustix::io::pwrite(&marks, &bytes, self.random.below(size / 8) * 8);
                }
                let queue_size = 4 << self.random.below(7);
                (Message::SetInflightFd(InflightArea { size, offset: 0, queues: 1, queue_size }), vec![marks])
            }
            20 => (Message::SetStatus(small.into()), vec![]),
            21 => {
                let anew = [Message::ResetDevice, Message::ResetOwner, Message::SetOwner];
                (anew[small as usize % 3].clone(), vec![])
            }
            22 => (Message::SetProtocolFeatures(self.random.bits() & self.random.bits()), vec![]),
            _ => (Message::Unknown(100 + small), vec![]),
        }
    }

    /// Where the ring is, or nearly.
    fn address(&mut self, index: u32, place: usize) -> VringAddr {
        let mut address = self.disk.queues[place].address(index);
        if self.random.coin() {
            let by = 16 * self.random.below(64);
            let part = [&mut address.descriptors, &mut address.available, &mut address.used];
            *part[self.random.below(3) as usize] += by;
        }
        address
    }
}

fn bell(value: u32) -> OwnedFd {
    eventfd(value, EventfdFlags::CLOEXEC).expect("an eventfd")
}

/// What this process has that a session brings: descriptors, and mappings of memory.
fn brought() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_memory =
        |line: &&str| ["guest", "log", "marks", "inflight"].iter().any(|name| line.contains(name));
    (descriptors, maps.lines().filter(|line| line.contains("/memfd:")).filter(of_memory).count())
}

/// Waits until there is no more of that than this.
fn wait_until_gone(before: (usize, usize)) {
    let end = Instant::now() + PATIENCE;
    loop {
        let now = brought();
        if now.0 <= before.0 && now.1 <= before.1 {
            return;
        }
        assert!(Instant::now() < end, "descriptors and mappings: {now:?}, {before:?} before");
        std::thread::yield_now();
    }
}

/// Has a disk come whenever it is wanted, and go whenever it may.
struct Tide(mpsc::Sender<Option<mpsc::Sender<()>>>);

impl DiskKeeper for Tide {
    fn is_wanted(&self) {
        let _ = self.0.send(None);
    }

    fn is_left(&self) {
        let (heed, heeded) = mpsc::channel();
        let _ = self.0.send(Some(heed));
        let _ = heeded.recv();
    }
}

/// The disk comes and goes until it is enough; how often.
fn come_and_go(
    rig: &Rig,
    socket: Arc<VhostSocket>,
    told: mpsc::Receiver<Option<mpsc::Sender<()>>>,
    is_enough: &AtomicBool,
) -> usize {
    let (mut here, mut stays) = (None, 0);
    let all = [socket];
    while !is_enough.load(Ordering::Relaxed) {
        // Whoever leaves is answered at the end of this turn.
        let _told = told.recv_timeout(Duration::from_millis(1));
        if VhostSocket::take_away(&all) {
            here.take().into_iter().for_each(VhostServer::stop);
        }
        if here.is_none() && all[0].is_waited_for() {
            here = Some(rig.bring(0, &all[0]));
            stays += 1;
        }
    }
    // Who tells that it leaves is answered, and waited for then.
    drop(told);
    all[0].end();
    stays
}

#[test]
fn whatever_a_front_end_does_its_disk_may_come_and_go() {
    let rig = Rig::unserved(&["memory:16M"], 2);
    let (send, told) = mpsc::channel();
    let socket = rig.open(0, Arc::new(Tide(send)));
    let is_enough = AtomicBool::new(false);
    let stays = std::thread::scope(|scope| {
        let tide = scope.spawn(|| come_and_go(&rig, socket, told, &is_enough));
        let enough = Enough(&is_enough);
        let from = number("FROM", 0);
        for seed in from..from + number("SEEDS", SEEDS) {
            Stranger::new(seed, &rig.socket()).run();
        }
        drop(enough);
        tide.join().unwrap()
    });
    let (done, seeds) = (rig.count(Counter::In), number("SEEDS", SEEDS));
    assert!(done > 5 * seeds && stays as u64 > seeds / 2, "{done} requests, {stays} stays");
    rig.stop();
}

/// Says so at its end, also by a panic.
struct Enough<'a>(&'a AtomicBool);

impl Drop for Enough<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sessions of strangers with that disk, beside a guest of another one.
fn sessions(spec: &str) {
    let rig = Rig::of(&[spec, "memory:16M"], 1, false);
    let mut guest = Disk::new(&rig.socket_of(1), Options::default()).unwrap();
    let mut round = 0_u64;
    let mut serves = |seed: u64| {
        round += 1;
        let (sector, data) = (round % 4000 * 8, [round as u8; 4096]);
        assert_eq!(write(&mut guest, 0, sector, &data).status, status::OK, "seed {seed}");
        assert!(read(&mut guest, 0, sector, 4096).1 == data, "seed {seed}");
    };
    serves(0);
    let before = brought();
    let from = number("FROM", 0);
    for seed in from..from + number("SEEDS", SEEDS) {
        let socket = rig.socket();
        let (send, ended) = mpsc::channel();
        let began = Instant::now();
        let stranger = std::thread::spawn(move || {
            Stranger::new(seed, &socket).run();
            _ = send.send(());
        });
        while ended.try_recv() == Err(TryRecvError::Empty) {
            serves(seed);
            assert!(began.elapsed() < PATIENCE, "seed {seed}: the session does not go on");
        }
        assert_ne!(ended.recv_timeout(PATIENCE), Err(RecvTimeoutError::Timeout));
        assert!(stranger.join().is_ok(), "seed {seed}");
    }
    wait_until_gone(before);
    // Most of them get far enough to move something; how much depends on how fast this machine is.
    let done = rig.count(Counter::In);
    assert!(done > 5 * number("SEEDS", SEEDS), "{done} requests");
    // The other disk has been written to by strangers, and is a disk.
    let mut disk = rig.disk(Options::default());
    assert_eq!(write(&mut disk, 0, 8, &[7; 4096]).status, status::OK);
    assert!(read(&mut disk, 0, 8, 4096).1 == [7; 4096]);
    drop((disk, guest));
    rig.stop();
}

/// One after the other, since what is brought is counted. On a file requests are under way while messages come.
#[test]
fn whatever_a_front_end_does_others_are_served_and_nothing_of_it_stays() {
    sessions("memory:16M");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    sessions(path.to_str().unwrap());
}
