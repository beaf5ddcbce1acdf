//! Servers that come up over guests which have spoiled their keys, or are gone: each costs its own disk and no other. Rings are not
//! to be had here, where there is no Xen; `tests/xen` has them.

use blockwork_engine::{
    Layer, LeafId, LeafLayer, LeafSource, NodeId, NodeInfo, NodeKind, Worker, WorkerConfig,
};
use blockwork_format::blkif::{Abi, QueueParameters};
use blockwork_uring::UringConfig;
use tempfile::TempDir;

use super::*;
use crate::blkif::Xenstore;
use crate::xen::store::tests::{connect, hang_up};

const DEVICE: VirtualDevice = VirtualDevice { number: 51712 };
const WHOSE: &str = "/vm/a";

/// A store with guests in it, and a worker that serves a disk.
struct Host {
    store: Store,
    folder: TempDir,
    stats: Arc<Stats>,
    volume: Volume,
    worker: Worker<Uring>,
}

impl Host {
    /// With these guests, which use rings of a server that was killed.
    fn new(guests: &[u16]) -> Host {
        let leaf =
            blockwork_leaf::open("memory:1M", &Default::default()).expect("a memory disk opens").source;
        let info = NodeInfo { name: "disk".into(), kind: NodeKind::Leaf, device: (0, 0) };
        let stats = Arc::new(Stats::new(vec![info]));
        let layer: Arc<dyn Layer> =
            Arc::new(LeafLayer::new(LeafId(0), NodeId(0), leaf.sectors(), leaf.limits().clone()));
        let volume = Volume::new("disk", layer, false);
        let leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]> = Arc::new([(NodeId(0), leaf)]);
        let config = WorkerConfig::new(Arc::new([volume.clone()]), leaves, stats.worker());
        let worker = Worker::new(Uring::new(&UringConfig::default()).expect("io_uring works here"), config);
        let (store, _) = connect();
        let host = Host { store, folder: tempfile::tempdir().unwrap(), stats, volume, worker };
        guests.iter().for_each(|guest| host.begin_guest(*guest));
        host
    }

    fn begin_guest(&self, domain: u16) {
        let home = format!("/local/domain/{domain}");
        self.write(&home, "");
        self.write(&format!("{home}/vm"), WHOSE);
        self.session(domain).expect("a new disk");
        let front = front(domain);
        for (key, value) in Self::rings().pairs() {
            self.write(&format!("{front}/{key}"), &value);
        }
        self.write(&format!("{front}/state"), "4");
        self.write(&format!("{}/state", back(domain)), "4");
        let ledger = LedgerFile::open(self.folder.path(), domain, DEVICE).unwrap();
        ledger.begin(WHOSE, &Self::rings()).unwrap();
    }

    fn rings() -> FrontParameters {
        let queues = vec![QueueParameters { ring_refs: vec![8], event_channel: 9 }];
        FrontParameters { abi: Abi::Bits64, persistent: true, queues }
    }

    fn write(&self, path: &str, value: &str) {
        self.store.clone().write(path, value).unwrap();
    }

    fn read(&self, path: &str) -> String {
        self.store.read(path).unwrap().unwrap_or_default()
    }

    /// Both ends' states.
    fn states(&self, domain: u16) -> [String; 2] {
        [front(domain), back(domain)].map(|folder| self.read(&format!("{folder}/state")))
    }

    /// As a server begins with a disk.
    fn session(&self, domain: u16) -> Result<Session, XenError> {
        let ledgers = self.folder.path().to_owned();
        let options = XenOptions { domain, device: DEVICE, first_worker: 0, ledgers };
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let mut session = Session::begin(
            &options,
            (VolumeId(0), &self.volume),
            &[self.worker.handle()],
            self.stats.clone(),
            (self.store.clone(), bell),
        )?;
        session.take_up();
        Ok(session)
    }
}

fn front(domain: u16) -> String {
    format!("/local/domain/{domain}/device/vbd/51712")
}

fn back(domain: u16) -> String {
    format!("/local/domain/0/backend/blockwork/{domain}/51712")
}

#[test]
fn rings_that_cannot_be_taken_up_are_left_as_they_are_and_the_disk_is_served_when_they_are_let_go() {
    for (key, value, said) in [
        ("protocol", "pdp11-abi", "protocol is \"pdp11-abi\", expected x86_64-abi"),
        ("ring-ref", "77", "does not say which of the guest's requests are open"),
        // It would be right, but there is no Xen.
        ("ring-ref", "8", "event-channel 9 cannot be bound to"),
    ] {
        let host = Host::new(&[4]);
        host.write(&format!("{}/{key}", front(4)), value);
        let mut session =
            host.session(4).unwrap_or_else(|error| panic!("the server does not start: {error}"));
        let error = host.read(&format!("{}/error", back(4)));
        assert!(error.contains(said), "{error}");
        session.follow().unwrap();
        assert_eq!(host.states(4), ["4", "4"], "another server may have them");
        for (theirs, ours) in [("6", "6"), ("1", "2")] {
            host.write(&format!("{}/state", front(4)), theirs);
            session.follow().unwrap();
            assert_eq!(host.states(4), [theirs, ours]);
        }
    }
}

#[test]
fn a_guest_that_is_gone_or_has_another_back_end_is_a_matter_of_its_own() {
    let host = Host::new(&[3, 4]);
    host.write(&format!("{}/backend", front(4)), "/local/domain/0/backend/vbd/4/51712");
    let said = |domain| {
        let error = host.session(domain).err().expect("it cannot be served");
        assert!(error.is_of_one_guest(), "{error}");
        error.to_string()
    };
    assert!(said(4).contains("has another back end"));
    host.store.clone().remove("/local/domain/4").unwrap();
    assert!(said(4).contains("there is no domain 4"));
    host.write("/local/domain/4", "");
    let file = LedgerFile::open(host.folder.path(), 3, DEVICE).unwrap();
    let error = host.session(3).err().expect("another server has it");
    assert!(!error.is_of_one_guest(), "{error}");
    drop(file);
    host.session(3).unwrap();
}

#[test]
fn a_front_end_that_was_connected_before_it_was_served_keeps_its_nodes() {
    let host = Host::new(&[4]);
    // Its server was killed when it had not looked at the rings.
    host.write(&format!("{}/state", back(4)), "2");
    let mut session = host.session(4).unwrap();
    assert_eq!(host.read(&format!("{}/ring-ref", front(4))), "8");
    session.follow().unwrap();
    let error = host.read(&format!("{}/error", back(4)));
    assert!(error.contains("event-channel 9 cannot be bound to"), "they would be served: {error}");
}

#[test]
fn a_guest_that_connects_while_the_server_ends_is_the_next_ones() {
    let host = Host::new(&[4]);
    host.write(&format!("{}/state", back(4)), "2");
    // One whose worker has ended, and one that is told to end.
    let mut session = host.session(4).unwrap();
    let BackStep::Connect(rings) = session.device.front_changed().unwrap() else { panic!("it has rings") };
    session.conclude(&rings, Err(StartError::Ending)).unwrap();
    assert!(session.is_ending(), "it would try again for ever");
    session.run(&mpsc::channel().1).unwrap();
    drop(session);
    let mut next = host.session(4).unwrap();
    next.stopping.store(true, Ordering::Release);
    next.follow().unwrap();
    assert_eq!(host.states(4), ["4", "2"]);
    assert_eq!(host.read(&format!("{}/error", back(4))), "");
    // Which has it.
    drop(next);
    let mut last = host.session(4).unwrap();
    last.follow().unwrap();
    let error = host.read(&format!("{}/error", back(4)));
    assert!(error.contains("event-channel 9 cannot be bound to"), "they would be served: {error}");
}

#[test]
fn who_spoils_its_keys_again_and_again_does_not_fill_the_log() {
    let host = Host::new(&[4]);
    host.write(&format!("{}/state", front(4)), "1");
    host.write(&format!("{}/state", back(4)), "2");
    let mut session = host.session(4).unwrap();
    for _ in 0..100 {
        for (protocol, state) in [("pdp11-abi", "3"), ("x86_64-abi", "6"), ("x86_64-abi", "1")] {
            host.write(&format!("{}/protocol", front(4)), protocol);
            host.write(&format!("{}/state", front(4)), state);
            session.follow().unwrap();
        }
    }
    assert!(session.refusals.unsaid() > 0, "each was told of");
}

#[test]
fn rings_of_a_front_end_that_is_closing_are_taken_up_again() {
    let host = Host::new(&[4]);
    [front(4), back(4)].iter().for_each(|folder| host.write(&format!("{folder}/state"), "5"));
    let session = host.session(4).unwrap();
    let error = host.read(&format!("{}/error", back(4)));
    assert!(error.contains("event-channel 9 cannot be bound to"), "they would be served: {error}");
    assert_eq!((host.states(4), session.device.state().text()), (["5", "5"].map(str::to_owned), "5".into()));
}

#[test]
fn a_disk_is_served_until_the_server_ends_also_when_xenstored_is_gone() {
    let host = Host::new(&[4]);
    let mut session = host.session(4).unwrap();
    hang_up(&host.store);
    let (stopping, bell) = (session.stopping.clone(), session.bell.clone());
    let ring = |bell: &OwnedFd| rustix::io::write(bell, &1_u64.to_ne_bytes()).unwrap();
    // As a queue does that has ended: whoever serves on hears that, and goes on.
    ring(&bell);
    let ending = thread::spawn(move || {
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        while poll(&mut [PollFd::new(&*bell, PollFlags::IN)], Some(&time)) != Ok(0) {
            thread::yield_now();
        }
        stopping.store(true, Ordering::Release);
        ring(&bell);
    });
    session.serve(&mpsc::channel().1);
    let was_ending = session.is_ending();
    let _ = rustix::io::read(&*session.bell, &mut [0; 8]);
    ending.join().unwrap();
    assert!(was_ending, "a guest whose server was not told to end has no disk any more");
}
