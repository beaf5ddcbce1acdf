//! Guests of the bench of rings: each keeps its ring full of random reads, and is served by a worker that turns when it is told to.

use std::sync::Arc;

use blockwork_engine::*;
use blockwork_export::blkif::{
    BackConfig, BackPort, BackRing, EventChannel, FrontConfig, FrontQueue, FrontRing, SharedPages,
    in_process::GrantTable,
};
use blockwork_format::blkif::{Abi, PAGE_BYTES};
use blockwork_format::virtio::blk::{request, status};
use blockwork_memory::{Buffer, Segment, Segments};
use blockwork_uring::{Signal, Uring, UringConfig, more};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use vhostload::{Disk, Options, Request};

use super::rig::RigLeaf;
use super::vhost_support::Single;

const SECTORS: u64 = 1 << 30;
/// 64 MiB.
const FILE_SECTORS: u64 = 1 << 17;

/// A guest with its server.
pub trait Guest {
    /// Requests that it keeps in the ring.
    fn depth(&self) -> u64;
    /// Takes what is answered, and has the ring full again. How many were answered.
    fn drive(&mut self) -> u64;
    fn worker(&mut self) -> &mut Worker<Uring>;
    fn stop(&mut self);
}

/// What it reads: sectors in no order, of so many.
struct Places {
    seed: u64,
    sectors: u64,
}

impl Places {
    fn of(sectors: u64) -> Places {
        Places { seed: 1, sectors }
    }

    fn next(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % (self.sectors / 8) * 8
    }
}

/// What it reads from.
#[derive(Clone, Copy)]
pub enum From {
    /// Nothing is copied.
    Null,
    /// What is read is filled.
    Touched,
    /// A file that the kernel has in memory: io_uring's reads of it end in the call that starts them.
    File,
}

impl From {
    fn open(self) -> Arc<dyn LeafSource> {
        let spec = match self {
            From::Null => return Arc::new(RigLeaf::null(Sectors(SECTORS), Limits::default())),
            From::Touched => format!("null:{}", SECTORS * SECTOR),
            From::File => {
                let (file, path) =
                    tempfile::NamedTempFile::new().expect("a scratch file").keep().expect("it stays");
                file.set_len(FILE_SECTORS * SECTOR).expect("there is room");
                std::io::copy(&mut &file, &mut std::io::sink()).expect("it is readable");
                path.to_str().expect("a name of letters").to_owned()
            }
        };
        let source = blockwork_leaf::open(&spec, &Default::default()).expect("there is room").source;
        if let From::File = self {
            std::fs::remove_file(spec).expect("it is ours");
        }
        source
    }

    fn places(self) -> Places {
        Places::of(if let From::File = self { FILE_SECTORS } else { SECTORS })
    }
}

/// With a virtqueue.
pub fn virtqueue(depth: u32, packed: bool, direct: bool, from: From) -> Box<dyn Guest> {
    let requests = u16::try_from(depth).expect("a ring has few requests");
    let options = Options { requests, packed, indirect: !direct, ..Options::default() };
    let single = Single::new(from.open(), |disk| disk, options);
    Box::new(Virtio { single: Some(single), depth: depth.into(), places: from.places() })
}

struct Virtio {
    /// There until it is stopped.
    single: Option<Single>,
    depth: u64,
    places: Places,
}

impl Guest for Virtio {
    fn depth(&self) -> u64 {
        self.depth
    }

    #[inline(never)]
    fn drive(&mut self) -> u64 {
        let Disk { guest, queues, .. } = &mut self.single.as_mut().expect("it runs").disk;
        let queue = &mut queues[0];
        let mut answered = 0;
        while let Some(finished) = queue.finished(guest) {
            assert_eq!(finished.status, status::OK);
            answered += 1;
        }
        queue.want_calls(guest, true);
        while queue.next_id().is_some() {
            let read = Request { kind: request::IN, sector: self.places.next(), len: 4096 };
            if queue.prepare(guest, read).is_none() {
                break;
            }
        }
        queue.publish(guest);
        answered
    }

    fn worker(&mut self) -> &mut Worker<Uring> {
        &mut self.single.as_mut().expect("it runs").worker
    }

    fn stop(&mut self) {
        self.single.take().expect("it is stopped once").stop();
    }
}

/// With a ring of Xen's, of so many pages; of what it reads into, the pages stay mapped or not.
pub fn xen(pages: u32, kept: bool, from: From) -> Box<dyn Guest> {
    let leaf = from.open();
    let layer = LeafLayer::new(LeafId(0), NodeId(0), leaf.sectors(), leaf.limits().clone());
    let volume = Volume::new("null", Arc::new(layer), false);
    let counters = Arc::new(CounterTable::new(1));
    let config = WorkerConfig::new(Arc::new([volume]), Arc::new([(NodeId(0), leaf)]), counters);
    let mut worker = Worker::new(Uring::new(&UringConfig::default()).expect("io_uring works here"), config);
    let abi = Abi::Bits64;
    let ring: Vec<_> = (0..pages).map(|_| Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES)).collect();
    let ring = SharedPages::new(ring).expect("as many pages as a ring may have");
    let (grants, back) = (GrantTable::default(), BackRing::new(ring.clone(), abi));
    let bell = || Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"));
    let (kick, call) = (bell(), bell());
    let back_config = BackConfig {
        name: "bench".to_owned(),
        volume: VolumeId(0),
        persistent: kept,
        max_indirect_segments: 0,
        stats: Arc::new(RingStats::new("bench".to_owned(), back.slots())),
    };
    let channel = Bells { kick: kick.clone(), call: Signal::new(call.clone()) };
    let (port, _) = BackPort::new(back_config, back, Box::new(channel), Box::new(grants.clone()));
    worker.add_port(Box::new(port));
    let front_config = FrontConfig { abi, persistent: kept, max_indirect_segments: 0, barrier: false };
    let queue = FrontQueue::new(front_config, FrontRing::new(ring, abi), Box::new(grants));
    let page = |_| Segments::from_iter([Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES)]);
    let memory = (0..queue.slots()).map(page).collect();
    Box::new(Xen { worker, queue, kick, call, memory, answers: Vec::new(), places: from.places() })
}

struct Xen {
    worker: Worker<Uring>,
    queue: FrontQueue,
    kick: Arc<OwnedFd>,
    call: Arc<OwnedFd>,
    memory: Vec<Segments>,
    answers: Vec<Done>,
    places: Places,
}

impl Guest for Xen {
    fn depth(&self) -> u64 {
        self.queue.slots().into()
    }

    #[inline(never)]
    fn drive(&mut self) -> u64 {
        let _ = rustix::io::read(&*self.call, &mut [0; 8]);
        self.queue.answers(&mut self.answers).expect("our back end keeps the protocol");
        let answered = self.answers.len();
        for done in self.answers.drain(..) {
            assert_eq!(done.result, Ok(()));
            self.memory.push(done.data);
        }
        while self.queue.has_room()
            && let Some(data) = self.memory.pop()
        {
            let read = Bio::with_data(Op::Read, Flags::NONE, Sector(self.places.next()), data);
            self.queue.submit(0, read).expect("there is room");
        }
        if self.queue.publish() {
            rustix::io::write(&*self.kick, &1_u64.to_ne_bytes()).expect("an eventfd takes eight bytes");
        }
        answered as u64
    }

    fn worker(&mut self) -> &mut Worker<Uring> {
        &mut self.worker
    }

    fn stop(&mut self) {}
}

/// An event channel of two eventfds.
struct Bells {
    kick: Arc<OwnedFd>,
    call: Signal,
}

impl Bells {
    fn watch(&self, cx: &mut Context<'_, Uring>) {
        let token = cx.token(0);
        cx.env.watch(token, self.kick.clone());
    }
}

impl EventChannel<Uring> for Bells {
    fn open(&mut self, cx: &mut Context<'_, Uring>) {
        self.watch(cx);
        cx.wake_me();
    }

    fn event(&mut self, cx: &mut Context<'_, Uring>, local: u32, completion: Completion) {
        match local {
            0 if !more(completion.flags) => self.watch(cx),
            0 => {}
            _ => self.call.completed(),
        }
    }

    fn notify(&mut self, cx: &mut Context<'_, Uring>) {
        let token = cx.token(1);
        assert!(cx.env.signal_now(token, &mut self.call), "the guest hears its calls");
    }

    fn close(&mut self, _: &mut Context<'_, Uring>) {}
}
