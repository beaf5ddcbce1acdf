//! A driver that does as it should, and a server that is killed after each of its stores: the next one takes up what was not
//! answered, all of it, once, and in its order, also if it is killed while it finds that out.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_format::vhost_user::VringAddr;
use blockwork_format::virtio::{Descriptor, descriptor_flag, split as ring_split};
use blockwork_memory::{GuestLayout, GuestMemory, GuestRegion, Mapping};
use blockwork_sim::Random;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;
use crate::vhost::cut::watched::watch;
use crate::vhost::ring::{Chain, PACKED_BASE, Ring, RingPlace};

/// The guest's memory, and in it the parts of the ring.
const MEMORY: u64 = 1 << 20;
const AVAILABLE: usize = 0x400;
const USED: usize = 0x800;
const GUEST_BYTES: usize = 0x1000;
/// Where the marks are, in the same file, which the front end keeps.
const MARKS: usize = 0x1000;
const BYTES: usize = 0x2000;

/// Memory that outlives servers.
#[derive(Clone)]
struct Shared {
    mapping: Arc<Mapping>,
    all: Buffer,
}

impl Shared {
    fn holding(bytes: &[u8]) -> Shared {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, BYTES as u64).unwrap();
        let mapping = Mapping::new(file.as_fd(), BYTES as u64).unwrap();
        let all = Buffer::of_mapping(&mapping, 0, BYTES);
        all.write_at(0, bytes);
        Shared { mapping, all }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.all.read_at(0, &mut bytes);
        bytes
    }

    fn layout(&self) -> GuestLayout {
        let (mapping, len) = (self.mapping.clone(), GUEST_BYTES as u64);
        GuestLayout::new(vec![GuestRegion { guest: MEMORY, user: MEMORY, len, mapping, offset: 0 }]).unwrap()
    }
}

/// The guest's side: each request has a number, which is the length of its first descriptor.
#[derive(Clone)]
struct Driver {
    is_packed: bool,
    size: u16,
    /// Where the next descriptor is made available, and where the next one is used.
    next: Position,
    seen: Position,
    /// Split: the same as indices.
    next_index: u16,
    seen_index: u16,
    /// Free descriptors (split), or names of requests (packed).
    free: Vec<u16>,
    room: u16,
    /// By name: the request, and its descriptors.
    posted: BTreeMap<u16, (u32, Vec<u16>)>,
    last: u32,
    answered: BTreeSet<u32>,
}

impl Driver {
    fn new(is_packed: bool, size: u16) -> Driver {
        let begin = Position { index: 0, wrap: true };
        Driver {
            is_packed,
            size,
            next: begin,
            seen: begin,
            next_index: 0,
            seen_index: 0,
            free: (0..size).collect(),
            room: size,
            posted: BTreeMap::new(),
            last: 0,
            answered: BTreeSet::new(),
        }
    }

    /// Makes a request of so many descriptors available, if there is room for it.
    fn post(&mut self, memory: &Buffer, count: u16) {
        if self.room < count {
            return;
        }
        self.room -= count;
        self.last += 1;
        let lens: Vec<u32> =
            std::iter::once(self.last).chain(std::iter::repeat(1)).take(count.into()).collect();
        if self.is_packed { self.post_packed(memory, &lens) } else { self.post_split(memory, &lens) }
    }

    fn post_split(&mut self, memory: &Buffer, lens: &[u32]) {
        let chain = self.free.split_off(self.free.len() - lens.len());
        for (i, len) in lens.iter().enumerate() {
            let next = chain.get(i + 1).copied();
            let flags = if next.is_some() { descriptor_flag::NEXT } else { 0 };
            let address = MEMORY + 0x100 * i as u64;
            let bytes = Descriptor { address, len: *len, flags, next: next.unwrap_or(0) }.encode();
            memory.write_at(16 * usize::from(chain[i]), &bytes);
        }
        let entry = ring_split::ENTRIES + 2 * usize::from(self.next_index % self.size);
        memory.store_u16(AVAILABLE + entry, chain[0], Ordering::Relaxed);
        self.next_index = self.next_index.wrapping_add(1);
        memory.store_u16(AVAILABLE + ring_split::INDEX, self.next_index, Ordering::Release);
        self.posted.insert(chain[0], (self.last, chain));
    }

    fn post_packed(&mut self, memory: &Buffer, lens: &[u32]) {
        let id = self.free.pop().unwrap();
        for (i, &len) in lens.iter().enumerate() {
            let mark = if self.next.wrap { descriptor_flag::AVAIL } else { descriptor_flag::USED };
            let flags = mark | if i + 1 < lens.len() { descriptor_flag::NEXT } else { 0 };
            let address = MEMORY + 0x100 * i as u64;
            let bytes = PackedDescriptor { address, len, id, flags }.encode();
            memory.write_at(16 * usize::from(self.next.index), &bytes);
            self.next.advance(1, self.size);
        }
        self.posted.insert(id, (self.last, vec![0; lens.len()]));
    }

    /// Takes note of what was used.
    fn consume(&mut self, memory: &Buffer) {
        while let Some(id) = self.used(memory) {
            let (request, descriptors) = self.posted.remove(&id).expect("what was posted is used, once");
            assert!(self.answered.insert(request));
            let count = u16::try_from(descriptors.len()).unwrap();
            self.room += count;
            if self.is_packed {
                self.seen.advance(count, self.size);
                self.free.insert(0, id);
            } else {
                self.free.extend(descriptors);
            }
        }
    }

    fn used(&mut self, memory: &Buffer) -> Option<u16> {
        if self.is_packed {
            let at = 16 * usize::from(self.seen.index);
            let flags = memory.load_u16(at + 14, Ordering::Acquire);
            let is = |flag| (flags & flag != 0) == self.seen.wrap;
            return (is(descriptor_flag::AVAIL) && is(descriptor_flag::USED) && self.room < self.size)
                .then(|| memory.load_u16(at + 12, Ordering::Relaxed));
        }
        if memory.load_u16(USED + ring_split::INDEX, Ordering::Acquire) == self.seen_index {
            return None;
        }
        let entry = ring_split::ENTRIES + ring_split::USED_ENTRY * usize::from(self.seen_index % self.size);
        self.seen_index = self.seen_index.wrapping_add(1);
        Some(memory.load_u16(USED + entry, Ordering::Relaxed))
    }
}

/// A server, and what it has taken.
struct Server {
    ring: Ring,
    guest: GuestMemory,
    in_flight: Vec<(Head, u32)>,
    resuming: bool,
}

impl Server {
    /// One that comes to this memory, where marks are for `entries` descriptors.
    fn start(shared: &Shared, driver: &Driver, entries: u16) -> Server {
        let layout = shared.layout();
        let [available, used] = [AVAILABLE, USED].map(|at| MEMORY + at as u64);
        let address = VringAddr { index: 0, flags: 0, descriptors: MEMORY, used, available, log: 0 };
        let (size, is_packed) = (driver.size.into(), driver.is_packed);
        let place = Place { mapping: shared.mapping.clone(), offset: MARKS };
        let marks = Marks::new(&place, entries, is_packed).unwrap();
        // What the front end says counts only before there are marks.
        let base = if is_packed { PACKED_BASE } else { 0 };
        let place = RingPlace { size, is_packed, event_idx: false, address };
        let recovered = Ring::recover(&layout, &place, base, marks).unwrap();
        let ring = Ring::new(&layout, &place, base, Some(recovered)).unwrap();
        Server { ring, guest: GuestMemory::new(&layout), in_flight: Vec::new(), resuming: true }
    }

    fn take(&mut self) -> Option<u32> {
        let mut chain = Chain::default();
        self.resuming = self.resuming && self.ring.resume(&self.guest, &mut chain).unwrap();
        if !self.resuming && !self.ring.next(&self.guest, &mut chain).unwrap() {
            return None;
        }
        let request = u32::try_from(chain.readable()[0].len()).unwrap();
        self.in_flight.push((chain.head, request));
        Some(request)
    }

    fn complete(&mut self, nth: usize) {
        let (head, _) = self.in_flight.swap_remove(nth % self.in_flight.len());
        self.ring.complete(head, 1);
    }
}

/// How everything was after a store.
struct Cut {
    bytes: Vec<u8>,
    driver: Driver,
}

/// Does `act`, and tells how it was after each of its stores.
fn cuts<T>(shared: &Shared, driver: &Rc<RefCell<Driver>>, act: impl FnOnce() -> T) -> (Vec<Cut>, T) {
    let cuts = Rc::new(RefCell::new(Vec::new()));
    let (shared, driver, found) = (shared.clone(), driver.clone(), cuts.clone());
    let result = watch(
        move || {
            found.borrow_mut().push(Cut { bytes: shared.bytes(), driver: driver.borrow().clone() });
        },
        act,
    );
    (cuts.take(), result)
}

/// A server that comes after the cut takes what was posted and not answered, in its order, and answers it.
fn goes_on(shared: &Shared, driver: &mut Driver, entries: u16, random: &mut Random) {
    let mut server = Server::start(shared, driver, entries);
    let taken: Vec<u32> = std::iter::from_fn(|| server.take()).collect();
    let expected: Vec<u32> = (1..=driver.last).filter(|request| !driver.answered.contains(request)).collect();
    assert_eq!(taken, expected);
    while !server.in_flight.is_empty() {
        server.complete(random.below(64) as usize);
        if random.below(2) == 0 {
            server.ring.publish();
            driver.consume(&shared.all);
        }
    }
    server.ring.publish();
    driver.consume(&shared.all);
    assert_eq!(driver.answered.len() as u32, driver.last, "all are answered");
}

/// The server was killed there. Its successor is, too, after each of its first stores.
fn survives(cut: &Cut, repost: bool, entries: u16, random: &mut Random) {
    let restore = || {
        let shared = Shared::holding(&cut.bytes);
        let mut driver = cut.driver.clone();
        driver.consume(&shared.all);
        for _ in 0..if repost { 8 } else { 0 } {
            driver.post(&shared.all, 1);
        }
        (shared, driver)
    };
    let (shared, mut driver) = restore();
    let kept = Rc::new(RefCell::new(driver.clone()));
    let (later, server) = cuts(&shared, &kept, || Server::start(&shared, &driver, entries));
    drop(server);
    for Cut { bytes, mut driver } in later {
        goes_on(&Shared::holding(&bytes), &mut driver, entries, random);
    }
    goes_on(&shared, &mut driver, entries, random);
}

fn every_cut_of_a_random_run(is_packed: bool, size: u16, entries: u16, seed: u64) -> usize {
    let mut random = Random::new(seed);
    let shared = Shared::holding(&[0; BYTES]);
    let driver = Rc::new(RefCell::new(Driver::new(is_packed, size)));
    let (mut all, mut server) = {
        let first = driver.borrow().clone();
        cuts(&shared, &driver, || Server::start(&shared, &first, entries))
    };
    for _ in 0..100 {
        let n = random.below(64);
        match random.below(8) {
            0..3 => driver.borrow_mut().post(&shared.all, 1 + (n % 3) as u16),
            3..5 => all.extend(cuts(&shared, &driver, || server.take()).0),
            5..7 if !server.in_flight.is_empty() => {
                all.extend(cuts(&shared, &driver, || server.complete(n as usize)).0);
            }
            _ => {
                all.extend(cuts(&shared, &driver, || server.ring.publish()).0);
                driver.borrow_mut().consume(&shared.all);
            }
        }
    }
    for cut in &all {
        survives(cut, false, entries, &mut random);
        survives(cut, true, entries, &mut random);
    }
    all.len()
}

fn every_cut_of_random_runs(is_packed: bool, size: u16, entries: u16) {
    let cuts: usize = (0..8).map(|seed| every_cut_of_a_random_run(is_packed, size, entries, seed)).sum();
    assert!(cuts > 500, "{cuts}");
}

#[test]
fn wherever_a_server_is_killed_no_request_of_a_split_ring_is_lost_or_done_again() {
    every_cut_of_random_runs(false, 4, 4);
    every_cut_of_random_runs(false, 8, 13);
}

#[test]
fn wherever_a_server_is_killed_no_request_of_a_packed_ring_is_lost_or_done_again() {
    every_cut_of_random_runs(true, 5, 5);
    every_cut_of_random_runs(true, 3, 9);
}
