//! Xen's block interface, as a hostile guest uses it: a ring that is served, and the keys that are read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use blockwork_engine::{
    CounterTable, LeafId, LeafLayer, LeafSource, Nanos, NodeId, PortId, RingStats, Sectors, Volume, VolumeId,
    Wait, Worker, WorkerConfig,
};
use blockwork_export::blkif::in_process::{Bell, GrantTable};
use blockwork_export::blkif::{
    Access, BackConfig, BackEnd, BackPort, BackRing, Ended, FrontRing, Offers, SharedPages,
};
use blockwork_format::blkif::{
    Abi, FrontParameters, Limits, PAGE_BYTES, Response, SEGMENT_BYTES, Status, ring,
};
use blockwork_memory::{Buffer, Segment};
use blockwork_sim::{DeviceModel, SimEnv, World};

use crate::input::Input;
use crate::{assert_printable, reached};

/// The layout of 32 bits.
pub(crate) const BITS_32: u8 = 1;
/// The guest uses the same pages again and again.
pub(crate) const PERSISTENT: u8 = 2;
/// What follows is keys and values, a line each, and no ring.
pub(crate) const KEYS: u8 = 128;

/// What follows in the input: the bytes of a slot as they are.
pub(crate) const BYTES: u8 = 0;
/// A request whose grants are some of those that there are.
pub(crate) const REQUEST: u8 = 1;
/// The index is set, and the back end looks.
pub(crate) const RING: u8 = 2;
/// Segments for the page that indirect requests name.
pub(crate) const LIST: u8 = 3;

/// Sectors of the device.
const SECTORS: u64 = 4096;
/// What the page that may only be read holds.
const UNTOUCHED: u8 = 0xa5;

/// A guest. The input: flags u8; then keys, or items that begin with a u8, modulo 4: bytes (count u8, the bytes), a request
/// (operation u8, segments u8, id u8, sector u16, and for each segment a page u8 and its sectors u8), the ring (how far
/// the index is beyond what was put in, i8), segments (count u8, and each as before).
pub fn blkif(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.u8();
    if flags & KEYS != 0 {
        return keys(input.0);
    }
    let mut guest = Guest::new(flags);
    while !input.0.is_empty() && guest.put < 200 {
        match input.u8() % 4 {
            BYTES => {
                let count = input.u8();
                guest.slot(input.bytes(count.into()));
            }
            REQUEST => guest.request(&mut input),
            RING => guest.ring(input.u8()),
            _ => guest.list(&mut input),
        }
        guest.look();
    }
    guest.ring(0);
    guest.look();
    guest.last_words();
}

struct Guest {
    abi: Abi,
    worker: Worker<SimEnv>,
    world: World,
    ring: Segment,
    /// To write, to read, for lists of segments.
    pages: [(u32, Segment); 3],
    end: BackEnd,
    stats: Arc<RingStats>,
    put: u32,
    seen: u32,
}

impl Guest {
    fn new(flags: u8) -> Guest {
        let world = World::new(1);
        let device =
            world.add_device(DeviceModel { keeps_content: false, ..DeviceModel::null(Sectors(SECTORS)) });
        let source: Arc<dyn LeafSource> = world.source(device);
        let leaf = LeafLayer::new(LeafId(0), NodeId(0), source.sectors(), source.limits().clone());
        let volumes: Arc<[Volume]> = Arc::new([Volume::new("disk", Arc::new(leaf), false)]);
        let counters = Arc::new(CounterTable::new(1));
        let config = WorkerConfig::new(volumes, Arc::new([(NodeId(0), source)]), counters);
        let mut worker = Worker::new(world.env(), config);
        let page = || Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES);
        let (ring, mut grants) = (page(), GrantTable::default());
        let abi = if flags & BITS_32 != 0 { Abi::Bits32 } else { Abi::Bits64 };
        let shared = SharedPages::new(vec![ring.clone()]).expect("one page");
        FrontRing::new(shared.clone(), abi);
        let pages = [Access::Write, Access::Read, Access::Write].map(|access| {
            let page = page();
            page.fill(if access == Access::Read { UNTOUCHED } else { 0 });
            (grants.grant(page.clone(), access), page)
        });
        let stats = Arc::new(RingStats::new("fuzzed", abi.slots(1)));
        let config = BackConfig {
            name: "fuzzed".to_owned(),
            volume: VolumeId(0),
            persistent: flags & PERSISTENT != 0,
            max_indirect_segments: 64,
            stats: stats.clone(),
        };
        let (_, bell) = Bell::pair();
        let (port, end) = BackPort::new(config, BackRing::new(shared, abi), Box::new(bell), Box::new(grants));
        worker.add_port(Box::new(port));
        Guest { abi, worker, world, ring, pages, end, stats, put: 0, seen: 0 }
    }

    fn slot(&mut self, bytes: &[u8]) {
        let at = self.abi.slot_at(self.put, self.abi.slots(1));
        self.ring.write_at(at, &bytes[..bytes.len().min(self.abi.slot_bytes())]);
        self.put += 1;
    }

    /// A grant: mostly one of those that there are.
    fn gref(&self, page: u8) -> u32 {
        self.pages.get(usize::from(page % 4)).map_or(u32::from(page), |(gref, _)| *gref)
    }

    fn segment(&self, input: &mut Input<'_>) -> [u8; SEGMENT_BYTES] {
        let (page, sectors) = (input.u8(), input.u8());
        let mut bytes = [0; SEGMENT_BYTES];
        bytes[..4].copy_from_slice(&self.gref(page).to_le_bytes());
        (bytes[4], bytes[5]) = (sectors & 15, sectors >> 4);
        bytes
    }

    fn request(&mut self, input: &mut Input<'_>) {
        let (operation, count, id) = (input.u8() % 8, input.u8(), input.u8());
        let sector = u64::from(input.u16()).to_le_bytes();
        let (at_id, at_sector, at_body) = if self.abi == Abi::Bits64 { (8, 16, 24) } else { (4, 12, 20) };
        let mut bytes = vec![0; self.abi.slot_bytes()];
        (bytes[0], bytes[1], bytes[at_id]) = (operation, count % 16, id);
        bytes[at_sector..at_sector + 8].copy_from_slice(&sector);
        if operation == 6 {
            (bytes[1], bytes[2]) = (count & 1, count >> 1);
            bytes[at_body + 4..at_body + 8].copy_from_slice(&self.pages[2].0.to_le_bytes());
        } else {
            for n in 0..usize::from(count % 16).min(11) {
                let segment = self.segment(input);
                bytes[at_body + n * SEGMENT_BYTES..][..SEGMENT_BYTES].copy_from_slice(&segment);
            }
        }
        self.slot(&bytes);
    }

    fn list(&mut self, input: &mut Input<'_>) {
        for n in 0..usize::from(input.u8() % 64) {
            let segment = self.segment(input);
            self.pages[2].1.write_at(n * SEGMENT_BYTES, &segment);
        }
    }

    fn ring(&mut self, beyond: u8) {
        let beyond = u32::from(beyond);
        let wild = if beyond > 240 { beyond.wrapping_neg() } else { 0 };
        self.ring.buffer().store_u32(ring::REQ_PROD, self.put.wrapping_add(wild), Ordering::Release);
        self.worker.poke(PortId(0));
        for _ in 0..10_000 {
            self.worker.turn(Wait::Poll);
            if self.worker.is_idle() && self.world.is_at_rest() {
                return;
            }
            self.world.step();
        }
        panic!("the back end does not come to rest");
    }

    /// Looks at what was answered.
    fn look(&mut self) {
        let end = self.ring.buffer().load_u32(ring::RSP_PROD, Ordering::Acquire);
        let known = self.seen..=self.put;
        // What goes beyond its own requests gets answers to what it did not mean to ask.
        assert!(known.contains(&end) || self.end.ended().is_some(), "{} answers to {}", end, self.put);
        while self.seen < end.min(self.put) {
            let mut bytes = [0; 12];
            self.ring.read_at(self.abi.slot_at(self.seen, self.abi.slots(1)), &mut bytes);
            match Response::decode(&bytes).status {
                Status::Okay => reached("okay"),
                _ => reached("refused"),
            }
            self.seen += 1;
        }
    }

    fn last_words(&self) {
        let mut bytes = [0; PAGE_BYTES];
        self.pages[1].1.read_at(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == UNTOUCHED), "a page was written to that may be read");
        if let Some(Ended::Broken(reason)) = self.end.ended() {
            reached("broken");
            assert_printable(reason);
        } else {
            assert_eq!(self.stats.snapshot(Nanos(0)).in_flight, 0);
        }
    }
}

fn keys(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let pairs: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let limits = Limits { max_ring_page_order: 4, max_queues: 8 };
    match FrontParameters::read(&mut |key| pairs.get(key).map(|value| (*value).to_owned()), limits) {
        Ok(found) => {
            reached("keys");
            assert!((1..=8).contains(&found.queues.len()));
            for queue in &found.queues {
                assert!(queue.ring_refs.len().is_power_of_two() && queue.ring_refs.len() <= 16);
            }
            let again: BTreeMap<_, _> = found.pairs().into_iter().collect();
            assert_eq!(FrontParameters::read(&mut |key| again.get(key).cloned(), limits), Ok(found));
        }
        Err(error) => {
            reached("keys refused");
            assert_printable(&error.to_string());
        }
    }
}
